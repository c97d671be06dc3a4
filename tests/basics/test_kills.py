# SPDX-License-Identifier: Apache-2.0
"""SIGKILL to ranks at random moments: the answer is that of an undisturbed run, byte for byte."""

import time

import pytest

import harness
from catalogue import BY_NAME, arguments
from harness import by_rank, in_time, slow
from settings import MANY, TOLERATE_NODE
from survival import PROGRAMS, soak, survive, undisturbed

SOME = ["heat", "master_worker", "comm_churn", "messages", "rma_halo", "mpiio", *map(slow, ("cg", "transpose", "heat_f08", "lu", "ft"))]
PYTHON = ["pickles.py", "numpy_cg.py", "master_worker.py", "futures_pi.py"]


@pytest.mark.parametrize("size", [slow(2), 4])
@pytest.mark.parametrize("name", SOME)
@pytest.mark.gate("heat-4", "master_worker-4")
def test_random_kills(jobs, program, rng, kills, name, size):
    entry, command = BY_NAME[name], program(name)
    expected = undisturbed(jobs, command, entry, size)
    survive(jobs, rng, command, entry, size, kills or 4, expected)


def test_random_kills_of_bt(jobs, program, rng, kills):
    entry, command = BY_NAME["bt"], program("bt")
    expected = undisturbed(jobs, command, entry, 4)
    survive(jobs, rng, command, entry, 4, kills or 4, expected)


@pytest.mark.gate("futures_pi.py", "pickles.py")
@pytest.mark.parametrize("name", PYTHON)
def test_random_kills_of_python(jobs, program, rng, kills, name):
    entry, command = BY_NAME[name], program(name)
    expected = undisturbed(jobs, command, entry, 3)
    survive(jobs, rng, command, entry, 3, kills or 3, expected)


def test_random_kills_of_many_ranks(jobs, program, rng, kills):
    entry, command = BY_NAME["cg"], program("cg")
    expected = undisturbed(jobs, command, entry, 16)
    survive(jobs, rng, command, entry, 16, kills or 4, expected)


def test_random_kills_when_a_node_may_be_lost(jobs, program, rng, kills):
    entry, command = BY_NAME["master_worker"], program("master_worker")
    expected = undisturbed(jobs, command, entry, 4)
    survive(jobs, rng, command, entry, 4, kills or 3, expected, TOLERATE_NODE)


@pytest.mark.gate("master_worker")
@pytest.mark.parametrize("name", ["heat", "master_worker"])
def test_all_ranks_at_once(jobs, program, rng, name):
    entry, command = BY_NAME[name], program(name)
    expected = undisturbed(jobs, command, entry, 4)
    survive(jobs, rng, command, entry, 4, 2, expected, everyone=1.0, in_replay=0)


@pytest.mark.gate("master_worker")
@pytest.mark.parametrize("name", ["cg", "master_worker"])
def test_again_and_again_during_replay(jobs, program, rng, name):
    entry, command = BY_NAME[name], program(name)
    calm, _ = undisturbed(jobs, command, entry, 3)
    job = jobs.start(3, *command, *arguments(entry, True, None), options=MANY)
    job.reach(lambda: len(job.lives()) == 3)
    victim = rng.randrange(3)
    for life in range(1, 6):
        if not job.until(lambda: job.lives().get(victim, (0, 0))[1] >= life, 20, f"life {life} of rank {victim}"):
            break
        time.sleep(rng.uniform(0.02, max(0.1, calm.seconds / 3)))
        job.kill([victim])
    result = job.wait().ok()
    assert by_rank(result.out) == by_rank(calm.out)


def test_kills_in_the_first_moments(jobs, program, rng, kills):
    """Inside exec, the loader, MPI_Init."""
    command = program("hello")
    calm = jobs.calm(4, *command)
    for _ in range(kills or 8):
        job = jobs.start(4, *command, options=MANY)
        rank = rng.randrange(4)
        job.reach(lambda: rank in job.lives())
        time.sleep(rng.uniform(0, 0.08))
        job.kill([rank])
        assert by_rank(job.wait().ok().out) == by_rank(calm.out)


# Rank 0 answers and computes at once. Rank 1 prints its waits for the answers, in milliseconds, the shortest first.
ANSWERS = """
import time
from mpi4py import MPI
comm = MPI.COMM_WORLD
waits = []
for number in range(10):
    if comm.rank == 0:
        comm.send(comm.recv(source=1), 1)
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            pass
    else:
        began = time.monotonic()
        comm.send(number, 0)
        assert comm.recv(source=0) == number
        waits.append(int(1000 * (time.monotonic() - began)))
        time.sleep(0.6)
if comm.rank:
    print(*sorted(waits))
"""


def test_what_a_rank_holds_leaves_also_while_it_computes(jobs):
    """As soon as the event logger has the deliveries before it, or the agent sees that the message does not leave by
    itself."""
    result = jobs.run(2, harness.PYTHON, "-c", ANSWERS, protocol="pessimistic", options=TOLERATE_NODE).ok()
    # Otherwise each of them takes half a second. What else the machine does delays some.
    in_time(int(result.text.split()[5]) < 250, result.describe())


@pytest.mark.soak
@pytest.mark.parametrize("tolerate", ["process", "node"])
@pytest.mark.parametrize("size", [2, 3, 4, 8])
@pytest.mark.parametrize("entry", PROGRAMS, ids=str)
def test_soak(jobs, program, rng, kills, request, entry, size, tolerate):
    soak(jobs, program, rng, request, entry, size, kills or 10, ["--tolerate", tolerate])
