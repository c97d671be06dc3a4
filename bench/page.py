#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the picture of `resurgo web` in the guide: a job on three nodes that loses a rank, and then a node.

    .deps/mpich/bin/python bench/page.py [FILE]
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "lib"))

import harness  # noqa: E402
from browser import Browser  # noqa: E402

PICTURE = ROOT / "docs" / "guide" / "images" / "web.png"
FAULTS = ["--fault", "rank=2,at=3s", "--fault", "node=1,at=8s"]
OPTIONS = ["-n", "6", "--nodes", "3", "--checkpoint-every", "1s", *FAULTS]
SECONDS = 14


def main(file=PICTURE):
    program = [harness.PROGRAMS / "heat", "400", "400", "1000000"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    job = subprocess.Popen([harness.RESURGO, "run", *OPTIONS, *program], env=harness.environment(), **quiet)
    try:
        time.sleep(1)
        page = subprocess.Popen([harness.RESURGO, "web", "--control", str(job.pid)], stdout=subprocess.PIPE, text=True)
        with tempfile.TemporaryDirectory() as directory:
            browser = Browser(directory, 1000)
            try:
                browser.resize(1000, 800)
                browser.open(page.stdout.readline().strip())
                time.sleep(SECONDS)
                Path(file).write_bytes(browser.picture())
            finally:
                browser.close()
    finally:
        job.terminate()
        job.wait()
    page.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
