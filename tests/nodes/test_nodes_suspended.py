# SPDX-License-Identifier: Apache-2.0
"""Jobs on several nodes that are suspended: ranks whose images are their own have a wave for that."""

import time
from pathlib import Path

import pytest

import harness
from catalogue import BY_NAME, arguments
from chains import ready
from harness import by_rank, came_about, slow
from settings import EVERY
from survival import A_RANK_THAT_LEAVES, A_SOCKET_FOR_A_WHILE

TWO = ["--nodes", "2"]


def suspended_again_and_again(jobs, chain, program, rng, name, protocol, rounds):
    """At random moments, each time on other nodes, with ranks killed before and after."""
    entry = BY_NAME[name]
    calm_file, file = jobs.directory / "calm", jobs.directory / "result"
    calm = jobs.calm(4, *program(name), *arguments(entry, True, calm_file))
    first, went_on = len(chain.runs), 0
    every = rng.choice([[], ["--checkpoint-every", "50ms"]])
    job = chain.start(4, *program(name), *arguments(entry, True, file), options=[*TWO, *every], protocol=protocol)
    for _ in range(rounds):
        ready(job)
        time.sleep(rng.uniform(0, min(calm.seconds, 0.5) / 4))
        if rng.random() < 0.6:
            job.kill([rng.randrange(4)])
        if not chain.suspend():
            break
        nodes = rng.choice("1234")
        job = chain.resume(options=["--nodes", nodes])
        went_on += 1
        if rng.random() < 0.5 and job.until(job.is_in_mpi, what="MPI_Init"):
            time.sleep(rng.uniform(0, 0.2))
            job.kill([rng.randrange(4)])
        if nodes == "1":
            # What it leaves behind on one machine has no wave.
            break
    result = chain.end()
    out = b"".join(run.out.read_bytes() for run in chain.runs[first:])
    assert by_rank(out) == by_rank(calm.out), result.describe()
    assert not entry.result or file.read_bytes() == calm_file.read_bytes()
    return result, went_on or calm.seconds < 1


@pytest.mark.gate("master_worker-pessimistic")
@pytest.mark.parametrize("protocol", ["pessimistic", slow("causal")])
@pytest.mark.parametrize("name", ["heat", slow("cg"), "master_worker", slow("messages"), slow("numpy_cg.py")])
def test_again_and_again(jobs, chain, program, rng, name, protocol):
    result, went_on = suspended_again_and_again(jobs, chain, program, rng, name, protocol, 3)
    came_about(went_on, result, "a suspension")


@pytest.mark.soak
@pytest.mark.parametrize("protocol", ["auto", "pessimistic", "causal"])
@pytest.mark.parametrize("name", ["heat", "cg", "master_worker", "messages", "numpy_cg.py"])
def test_hundreds_of_times(jobs, chain, program, rng, request, name, protocol):
    for _ in range(request.config.option.rounds):
        suspended_again_and_again(jobs, chain, program, rng, name, protocol, 6)


@pytest.mark.parametrize("protocol", ["pessimistic", slow("causal")])
def test_a_rank_that_has_finished_stays_so(jobs, chain, protocol):
    go = jobs.directory / "go"
    command = [harness.PYTHON, "-c", A_RANK_THAT_LEAVES, go]
    job = chain.start(3, *command, protocol=protocol, options=[*TWO, *EVERY])
    job.reach_event("finished", rank=2)
    assert chain.suspend()
    for number in (30, 60, 90):
        Path(f"{go}{number}").touch()
    chain.resume(options=["--nodes", "3", "-ppn", "1"])
    result = chain.end()
    assert {event["rank"] for event in result.of("started")} == {0, 1}, result.describe()
    assert by_rank(chain.out) == by_rank(jobs.calm(3, *command).out)


def test_a_suspension_that_fails_leaves_ranks_their_own_images(jobs, chain):
    """The wave for it is refused by a rank. The job goes on, and a rank that fails still returns alone."""
    closes, ends = (jobs.directory / name for name in ("closes", "ends"))
    command = [harness.PYTHON, "-c", A_SOCKET_FOR_A_WHILE, closes, ends]
    job = chain.start(3, *command, protocol="pessimistic", options=[*TWO, *EVERY])
    job.reach(lambda: any("socket" in event["reason"] for event in job.of("not_checkpointed", rank=1)))
    told = chain.resurgo("suspend", job.process.pid, timeout=30)
    assert told.code == 1 and "goes on: no image can be taken: rank 1: " in told.errors and "socket" in told.errors
    job.reach_another("checkpointed", rank=0)
    job.kill([0])
    job.reach_another("started", rank=0)
    closes.touch()
    job.reach_another("checkpointed", rank=1)
    assert chain.suspend()
    ends.touch()
    chain.resume(options=TWO)
    result = chain.end()
    assert not result.of("wave_complete") and not result.of("waves_given_up"), result.describe()
    assert by_rank(chain.out) == by_rank(jobs.calm(3, *command).out)


# Each rank reads the place of a common file that it has overwritten, and overwrites it again.
OVERWRITES = """
import os, sys, time
import numpy as np
from mpi4py import MPI
world = MPI.COMM_WORLD
rank, size, total = world.rank, world.size, world.rank + 1
file = MPI.File.Open(world, sys.argv[1], MPI.MODE_CREATE | MPI.MODE_RDWR)
found = np.zeros(1, dtype="q")
for step in range(int(sys.argv[2])):
    if step:
        file.Read_at(8 * rank, found)
    total = (31 * total + int(found[0])) % 1000003
    total = (31 * total + world.sendrecv(total, (rank + 1) % size)) % 1000003
    file.Write_at(8 * rank, np.array([total], dtype="q"))
    if step % 100 == 0:
        print("rank", rank, step, total, flush=True)
    # The rest waits for the test.
    while step == 2000 and len(sys.argv) > 3 and not world.bcast(os.path.exists(sys.argv[3])):
        time.sleep(0.01)
file.Close()
"""


@pytest.mark.gate("auto-nodes4", "pessimistic-nodes6")
@pytest.mark.parametrize(
    "protocol, nodes",
    [("blocking", []), slow("group", []), slow("auto", []), slow("pessimistic", []), ("auto", TWO), slow("blocking", TWO), ("pessimistic", TWO), slow("causal", TWO)],
)
def test_what_has_been_overwritten_since_the_wave_is_undone(jobs, chain, rng, protocol, nodes):
    """Ranks go on for a moment between the wave of a suspension and their end, and do that again."""
    paths = [jobs.directory / name for name in ("calm", "struck")]
    command = lambda path: [harness.PYTHON, "-c", OVERWRITES, path, "8000"]
    calm = jobs.calm(2, *command(paths[0]))
    job, went_on = chain.start(2, *command(paths[1]), options=nodes, protocol=protocol), 0
    for _ in range(4):
        ready(job)
        time.sleep(rng.uniform(0, min(calm.seconds, 2) / 8))
        if not chain.suspend():
            break
        went_on += 1
        job = chain.resume(options=nodes)
    result = chain.end()
    assert by_rank(chain.out) == by_rank(calm.out), result.describe()
    assert paths[0].read_bytes() == paths[1].read_bytes()
    came_about(went_on, result, "a suspension")


@pytest.mark.gate("blocking-nodes0", "pessimistic-nodes3")
@pytest.mark.parametrize(
    "protocol, nodes", [("blocking", []), slow("auto", []), ("auto", TWO), ("pessimistic", TWO), slow("causal", TWO), slow("group", TWO)]
)
def test_when_its_file_cannot_be_written_ranks_do_again_what_was_undone(jobs, chain, protocol, nodes):
    paths = [jobs.directory / name for name in ("calm", "struck")]
    go = jobs.directory / "go"
    command = lambda path: [harness.PYTHON, "-c", OVERWRITES, path, "3000"]
    calm = jobs.calm(2, *command(paths[0]))
    job = chain.start(2, *command(paths[1]), go, options=nodes, protocol=protocol)
    ready(job)
    job.says(b"rank 1 100 ")
    obstacle = chain.directory / "suspended.new"
    for _ in range(3):
        obstacle.mkdir()
        told = chain.resurgo("suspend", job.process.pid, timeout=30)
        obstacle.rmdir()
        assert told.code == 1 and "could not be suspended and goes on" in told.errors, told.describe()
    go.touch()
    result = chain.end()
    assert len(result.of("not_suspended")) == 3, result.describe()
    assert by_rank(chain.out) == by_rank(calm.out), result.describe()
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_groups_have_no_wave_together(jobs, chain, program):
    words = [*TWO, "--checkpoint-dir", chain.images, "--protocol", "hierarchical", "--time-limit", "1m"]
    told = jobs.resurgo("run", *words, "-n", "2", harness.PROGRAMS / "hello")
    assert told.code == 2 and "--time-limit: with --protocol hierarchical a job on several nodes" in told.errors, told.describe()
    job = chain.start(4, *program("heat"), "400", "400", "2000", options=[*TWO, *EVERY], protocol="hierarchical")
    ready(job)
    told = chain.resurgo("suspend", job.process.pid)
    assert told.code == 1 and "its groups have no wave together" in told.errors, told.describe()
    chain.end()
