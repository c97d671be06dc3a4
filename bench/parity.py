# SPDX-License-Identifier: Apache-2.0
"""Parity of images: how long the pieces of a set take to make, against sending its images over one TCP stream.

The job's ranks stand still meanwhile (SIGSTOP), as it is the machine's work that is measured. Sending is a plain stream on this machine, and
what 1 Gbit/s takes at best.
"""

import contextlib
import os
import signal
import subprocess
import tempfile
from pathlib import Path

from contenders import BLOCKING, RESURGO, Job
from report import Section, number
from statistics import median
from store import stream, write

LINK = 125e6  # bytes in a second of 1 Gbit/s
SHAPES = [(2, 1), (8, 1), (3, 2), (8, 2)]


def signal_all(pids, which):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, which)


def one_set(data, parity, edge):
    """Bytes of the images of a set, of its pieces, and the seconds that making these took."""
    nodes = data + parity
    options = ["--nodes", nodes, "-ppn", 1, "--spares", parity, "--checkpoint-every", "1h", "--store", f"parity:{data}+{parity}"]
    with Job(BLOCKING, data, "heat", edge, edge, 10**7, options=options) as job:
        job.until(lambda: len(job.of("started")) == data, "ranks")
        asked = subprocess.Popen([RESURGO, "checkpoint", str(job.process.pid)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        job.until(lambda: job.of("wave_complete"), "a wave", 120)
        pids = [one["pid"] for one in job.of("started")]
        signal_all(pids, signal.SIGSTOP)
        try:
            (made,) = job.until(lambda: job.of("set_encoded"), "pieces", 300)
        finally:
            signal_all(pids, signal.SIGCONT)
            asked.kill()
            asked.wait()
        images = sum(one["bytes"] for one in job.of("image_written") if one["rank"] in made["ranks"])
        return images, made["bytes"], made["seconds"]


def measure(quick):
    section = Section("parity", "Parity of images", quick)
    rows = []
    with tempfile.TemporaryDirectory(prefix="resurgo-bench-parity-", dir=Path.cwd()) as scratch:
        write(path := f"{scratch}/file", size := 32 if quick else 512, 1)
        loopback = (size << 20) / median(stream(path) for _ in range(3))
    for data, parity in SHAPES:
        # All images of a set have some 16 bytes for each point of the grid.
        all_of = [one_set(data, parity, 1024 if quick else 4096) for _ in range(1 if quick else 3)]
        images, pieces, seconds = all_of[0][0], all_of[0][1], median(one[2] for one in all_of)
        # Each image once, and all pieces but the first.
        sent = images + pieces * (parity - 1) / parity
        share, beside = seconds / (sent / LINK), seconds / (sent / loopback)
        section.figure(f"pieces of {data}+{parity}, against sending on 1 Gbit/s", "≤ 10 %", f"{number(share * 100)} %", share <= 0.1)
        row = [f"{data}+{parity}", f"{images / 2**20:.0f} MiB", f"{pieces / images:.3f}", f"{images / seconds / 1e6:.0f} MB/s"]
        rows.append([*row, f"{number(share * 100)} %", f"{number(beside * 100)} %"])
    section.table(["N+M", "images", "pieces, of images", "made", "of 1 Gbit/s", "of a stream on this machine"], rows)
    section.text(f"A plain stream on this machine: {loopback / 1e6:.0f} MB/s.")
    return section
