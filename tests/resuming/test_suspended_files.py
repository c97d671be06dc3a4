# SPDX-License-Identifier: Apache-2.0
"""Files that ranks write, rename and append to step by step, of a job that is suspended again and again."""

import pytest

from harness import PYTHON, slow

# Rank 0 says when it is enough.
STEPS = """
import os, sys
from mpi4py import MPI
world = MPI.COMM_WORLD
step, on = 0, True
while on:
    with open(f"state-{world.rank}.tmp", "w") as file:
        file.write(str(step))
    world.barrier()
    os.rename(f"state-{world.rank}.tmp", f"state-{world.rank}.{step}")
    with open(f"log-{world.rank}", "a") as file:
        file.write(f"{step}\\n")
    if world.rank == 0:
        open("new", "x").close()
    world.barrier()
    if world.rank == 0:
        os.unlink("new")
    step += 1
    on = world.bcast(not os.path.exists(sys.argv[1]))
print("done", step, flush=True)
"""
WAVES = ["blocking", "chandy-lamport", "group"]


def steps_of(directory, rank):
    return {int(path.suffix[1:]): path.read_text() for path in directory.glob(f"state-{rank}.*") if path.suffix != ".tmp"}


TWO = ["--nodes", "2"]
CASES = [
    *[("auto", []), ("blocking", []), ("chandy-lamport", []), slow("group", []), slow("pessimistic", []), slow("causal", [])],
    *[slow("auto", TWO), slow("blocking", TWO), slow("pessimistic", TWO), slow("chandy-lamport", TWO)],
]


@pytest.mark.parametrize("protocol, options", CASES)
def test_each_step_is_done_once(chain, protocol, options):
    go = chain.jobs.directory / "go"
    directory = chain.start(2, PYTHON, "-c", STEPS, go, protocol=protocol, options=options).directory
    for _ in range(4):
        known = max(steps_of(directory, 0), default=-1)
        chain.last.reach(lambda known=known: max(steps_of(directory, 0), default=-1) > known + 3)
        assert chain.suspend()
        chain.resume(options=options)
    known = max(steps_of(directory, 0))
    chain.last.reach(lambda: max(steps_of(directory, 0)) > known)
    go.touch()
    result = chain.end()
    for rank in range(2):
        left = steps_of(directory, rank)
        assert left == {step: str(step) for step in range(len(left))}, result.describe()
        lines = (directory / f"log-{rank}").read_text().split()
        # Where a rank repeats alone what it has done, it appends once more.
        lines = lines if options or protocol in WAVES else sorted(set(lines), key=int)
        assert lines == [str(step) for step in range(len(left))], result.describe()
