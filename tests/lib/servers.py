# SPDX-License-Identifier: Apache-2.0
"""Event loggers and channel memories."""

import os
import re
import signal

from harness import Absent
from settings import TOLERATE_NODE

SPREADS = ["multicast", "broadcast", "piggyback"]
# One program for each setting, so that all programs get their turn.
WAYS = [
    ("vcausal", 0, "heat"),
    ("vcausal", 1, "master_worker"),
    ("vcausal", 2, "messages"),
    ("manetho", 0, "master_worker"),
    ("manetho", 1, "rma_halo"),
    ("manetho", 2, "comm_churn"),
    ("logon", 0, "comm_churn"),
    ("logon", 1, "heat"),
    ("logon", 2, "master_worker"),
]


def node(reduction="manetho", loggers=1, spread=None):
    options = ["--protocol", "causal", *TOLERATE_NODE, "--reduction", reduction, "--event-loggers", str(loggers)]
    return options + (["--clock-spread", spread] if spread else [])


def logger_of(job, number=0):
    return job.newest("event_logger_started", timeout=60, logger=number)["pid"]


def strike_logger(job, number=0, blow=signal.SIGKILL):
    pid = logger_of(job, number)
    job.reach(lambda: job.lives())
    if not job.hit(pid, blow):
        raise Absent(f"event logger {number} is not there at this moment")
    return pid


def journal_of(job):
    """The file of the event logger, which the launcher holds open."""
    held = f"/proc/{job.process.pid}/fd"
    for number in os.listdir(held):
        try:
            if re.search(r"/#\d+ \(deleted\)$", os.readlink(f"{held}/{number}")):
                return f"{held}/{number}"
        except OSError:
            pass
    raise AssertionError("the event logger has no file")


# Each rank but the last sends the last one much, which that does not read before it is told. Meanwhile the others go
# on.
SLOW = """
import sys, time
from pathlib import Path
import numpy
from mpi4py import MPI
comm, here, rounds = MPI.COMM_WORLD, Path(sys.argv[1]), int(sys.argv[2])
last = comm.size - 1
others = comm.Split(comm.rank == last)
if comm.rank == last:
    (here / "slow").touch()
    while not (here / "go").exists():
        time.sleep(0.01)
    total = 0
    for _ in range(rounds * last):
        room = numpy.empty(1 << 17)
        comm.Recv(room, source=MPI.ANY_SOURCE)
        total += int(room.sum())
    print("sum", total, flush=True)
else:
    for number in range(rounds):
        comm.Send(numpy.full(1 << 17, comm.rank + number, dtype=float), dest=last)
        assert others.allreduce(number) == number * last
    if comm.rank == 0:
        (here / "sent").touch()
        print("sent", flush=True)
"""
SUM = {rounds: (1 << 17) * sum(r + n for r in range(2) for n in range(rounds)) for rounds in (20, 60)}
