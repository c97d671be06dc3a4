# SPDX-License-Identifier: Apache-2.0
"""--fault: users try out the recovery of their own jobs."""

import re

import pytest

import harness
from harness import by_rank
from settings import MANY

CG = ("512", "1200")


@pytest.fixture
def calm(jobs, program):
    return jobs.run(3, *program("cg"), *CG).ok()


def faulty(jobs, program, *faults, n=3, struck=0):
    """Waits until so many ranks have been struck: a fault at a time spares a rank that does not run then."""
    options = list(MANY)
    for fault in faults:
        options += ["--fault", fault]
    job = jobs.start(n, *program("cg"), *CG, options=options)
    job.reach(lambda: len(job.of("failed")) >= struck, what="the fault")
    return job.wait().ok()


@pytest.mark.gate("rank=1,messages=1000-1", "rank=0,messages=1-1", "rank=all,at=300ms-3")
@pytest.mark.parametrize(
    "fault, restarts",
    [
        ("rank=2,at=0.1s", 1),
        ("rank=0,at=50ms", 1),
        ("rank=1,messages=1000", 1),
        ("rank=0,messages=1", 1),
        ("rank=all,messages=500", 3),
        ("rank=all,at=300ms", 3),
    ],
)
def test_one_fault(jobs, program, calm, fault, restarts):
    # On a slow machine ranks begin later.
    fault = re.sub(r"(?<=at=)[\d.]+", lambda time: f"{float(time[0]) * harness.SLOWNESS:g}", fault)
    result = faulty(jobs, program, fault, struck=restarts)
    assert result.out == calm.out
    assert result.restarts == restarts, result.describe()


def test_a_fault_during_replay(jobs, program, calm):
    result = faulty(jobs, program, "rank=1,messages=1500", "rank=1,during=replay")
    assert result.out == calm.out
    assert result.restarts == 2, result.describe()


def test_one_life_after_the_other(jobs, program, calm):
    result = faulty(jobs, program, "rank=1,messages=300", "rank=1,messages=200", "rank=1,messages=1500")
    assert result.out == calm.out
    assert result.restarts == 3, result.describe()


def test_random_faults(jobs, program, calm, seed):
    result = faulty(jobs, program, f"random,seed={seed},mean=100ms,count=4")
    assert result.out == calm.out


def test_by_messages_is_at_the_same_place_every_time(jobs, program):
    places = []
    for _ in range(2):
        result = faulty(jobs, program, "rank=1,messages=700")
        places += [event["deliveries"] + event["sends"] for event in result.of("failed")]
    assert len(places) == 2 and all(abs(place - 700) <= 1 for place in places), places


@pytest.mark.parametrize("fault", ["rank=9,at=1s", "rank=1", "at=1s", "random,seed=1", "rank=1,at=soon", "lightning", "node=0,at=1s"])
def test_what_cannot_be_is_an_error(jobs, program, fault):
    result = jobs.resurgo("run", "-n", "2", "--fault", fault, *program("hello"))
    assert result.code == 2 and not result.out
    assert fault in result.errors and "write rank=N" in result.errors, result.describe()


def test_with_output_and_ranks_that_talk(jobs, program):
    command = program("crash") + ["99", "kill", "0", "always", "500"]
    calm = jobs.calm(4, *command)
    result = jobs.run(4, *command, options=["--fault", "rank=3,messages=300", "--fault", "rank=0,messages=400"]).ok()
    assert by_rank(result.out) == by_rank(calm.out) and result.restarts == 2
