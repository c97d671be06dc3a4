# SPDX-License-Identifier: Apache-2.0
"""Memory of a waiting rank, and of one whose log is full."""

import contextlib
import re
import tempfile
import time
from pathlib import Path
from statistics import median

from contenders import DEFAULT, NONE, PESSIMISTIC, TCP, Failed, Job, Rounds
from node_memory import NodeMemory
from report import OUT, Section, spread

MIB = 1 << 20
LOG = 64  # MiB
TRAFFIC = 512  # MiB that each rank sends under load
CONTENDERS = (DEFAULT, TCP, NONE, PESSIMISTIC)
IDLE_BOUND = 64  # MiB


def pss(pid):
    """Proportional set size in bytes: each process gets its share of the pages that several have."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(re.search(r"^Pss:\s+(\d+)", text, re.M)[1]) << 10


def node_memory_pss(pid):
    """The part of it that belongs to the node memory."""
    total, inside = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            inside = line.startswith("1000")  # mapped at 0x1000_0000_0000
            inside = inside and "memfd:" in line
        elif inside and line.startswith("Pss:"):
            total += int(line.split()[1]) << 10
    return total


def per_rank(job, pids, memory):
    """MiB of a rank: its own, and an equal share of the node memory, whichever rank has touched it."""
    own = sum(pss(pid) - (node_memory_pss(pid) if memory else 0) for pid in pids.values())
    return (own + (memory.bytes if memory else 0)) / len(pids) / MIB


def idle(contender, ranks):
    with Job(contender, ranks, "idle", 1.2) as job:
        job.until(lambda: "waiting" in job.output, "the ranks to wait")
        time.sleep(0.5)
        pids = job.ranks()
        if len(pids) != ranks:
            raise Failed(f"found the ranks {sorted(pids)}: {job.describe()}")
        with NodeMemory(pids[0]) if contender.is_resurgo else contextlib.nullcontext() as memory:
            size = per_rank(job, pids, memory)
        launcher = sum(pss(pid) for pid in job.processes() if pid not in pids.values()) / MIB
        job.wait()
        return size, launcher


def loaded(contender):
    """The most MiB that a rank was seen with while it sends much."""
    with Job(contender, 2, "pingpong", 1, f"{MIB}:{TRAFFIC * 10 // 11}") as job:
        job.until(lambda: len(job.ranks()) == 2, "two ranks")
        pids = job.ranks()
        with NodeMemory(pids[0]) if contender.is_resurgo else contextlib.nullcontext() as memory:
            most = 0.0
            while not job.over():
                with contextlib.suppress(OSError, TypeError):
                    most = max(most, per_rank(job, pids, memory))
                time.sleep(0.01)
        job.wait()
        return most


def measure(quick):
    section = Section("memory", "Memory", quick)
    rounds = Rounds(quick)
    rows = []
    for ranks in (2, 4):
        sizes = rounds.go(CONTENDERS, 1 if quick else 3, lambda contender, ranks=ranks: (idle(contender, ranks), 0.0))
        own = {name: [size for size, _ in values] for name, values in sizes.items()}
        launcher = {name: [size for _, size in values] for name, values in sizes.items()}
        for subject in (NONE, PESSIMISTIC):
            more = median(own[subject.name]) - median(own[DEFAULT.name])
            what = f"{subject.name}, {ranks} ranks that wait: more per rank than MPICH"
            section.figure(what, f"< {IDLE_BOUND} MiB", f"{more:.1f} MiB", more < IDLE_BOUND)
        rows.append([f"a rank of {ranks} that wait", *(spread(own[contender.name]) for contender in CONTENDERS)])
        rows.append([f"launcher of {ranks}", *(spread(launcher[contender.name]) for contender in CONTENDERS)])
    OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=OUT) as folder:
        bounded = PESSIMISTIC.with_options("pessimistic", "--log-memory", f"{LOG}M", "--spill-dir", folder)
        under = (DEFAULT, TCP, NONE, bounded)
        sizes = rounds.go(under, 1 if quick else 3, lambda contender: (loaded(contender), 0.0))
    for subject in (NONE, bounded):
        more = median(sizes[subject.name]) - median(sizes[DEFAULT.name])
        bound = IDLE_BOUND + (LOG if subject is bounded else 0)
        what = f"{subject.name}, {TRAFFIC} MiB sent by each of 2 ranks: more per rank than MPICH"
        if subject is bounded:
            what += f" (`--log-memory {LOG}M`, spilled to a file)"
        section.figure(what, f"< {bound} MiB", f"{more:.1f} MiB", more < bound)
    rows.append([f"a rank of 2 that sends {TRAFFIC} MiB, the most", *(spread(sizes[one.name]) for one in under)])
    section.table(["MiB", *(contender.name for contender in CONTENDERS)], rows)
    section.text(
        "The PSS of the ranks without their mappings of the node memory, and the node memory's pages in use shared "
        "out evenly. The launcher: mpiexec and its proxy; `resurgo run` and its agent."
    )
    section.note = rounds.note()
    return section
