# SPDX-License-Identifier: Apache-2.0
"""Programs that a wrapper (a shell script, Python) starts as its child: no images in files, the reason told once, and right
output whichever of the two processes is killed. tests/images/test_parting.py has their images in memory."""

import contextlib
import re
import time
from pathlib import Path

import pytest

from flooding import FLOOD
from harness import PYTHON, Absent, has_come_to_mpi, slow
from settings import SMALL_LOG, every

# Ranks print, wait for a file near the end, and print again. The wrapper prints before and after.
PROGRAM = """
import os, sys, time
from mpi4py import MPI
world = MPI.COMM_WORLD
total = 0
for number in range(200):
    total += world.allreduce(number * world.rank)
    if number == 100:
        print("rank", world.rank, "is half way:", total, flush=True)
        while not os.path.exists(sys.argv[1]):
            time.sleep(0.01)
print("rank", world.rank, "is through:", total, flush=True)
"""
WRAPPER = 'echo "rank $PMI_RANK begins"; "$@"; echo "rank $PMI_RANK has ended with $?"'


def begin(jobs, **more):
    """A job of two ranks, each half way; and the file that lets them end."""
    go = jobs.directory / "go"
    job = jobs.start(2, "sh", "-c", WRAPPER, "sh", PYTHON, "-c", PROGRAM, go, **more)
    job.reach(lambda: job.out.read_bytes().count(b"half way") == 2, what="the ranks to be half way")
    return job, go


def child_of(job, rank):
    """The number of the wrapper's child."""
    pid = job.lives()[rank][0]
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


def expected(rank):
    through = sum(number for number in range(200))
    half = sum(number for number in range(101))
    return [f"rank {rank} begins", f"rank {rank} is half way: {half}", f"rank {rank} is through: {through}", f"rank {rank} has ended with 0"]


def lines_of(result, rank):
    return [line for line in result.text.splitlines() if line.startswith(f"rank {rank} ")]


def in_files(jobs):
    return ["--checkpoint-dir", jobs.directory / "images"]


def refused(job, rank):
    return any("a wrapper (sh -c " in event["reason"] for event in job.of("not_checkpointed", rank=rank))


@pytest.mark.gate("auto")
@pytest.mark.parametrize("protocol", ["pessimistic", "auto", slow("blocking"), slow("causal")])
def test_the_reason_is_told_once(jobs, protocol):
    """At the first request, of one rank, with what helps."""
    job, go = begin(jobs, options=[*every("20ms"), *in_files(jobs)], protocol=protocol)
    # One refusal is enough to drop a wave.
    enough = all if protocol in ("pessimistic", "causal") else any
    job.reach(lambda: enough(refused(job, rank) for rank in range(2)), what="refusals")
    told = r"warning: no image of rank \d can be taken: a wrapper \(sh -c .*\) has started the program as its child, and .*\(--checkpoint-dir\)\. Run \S+ itself, or with exec"
    job.reach(lambda: re.search(told, job.err.read_text()), what="the warning")
    go.touch()
    result = job.wait().ok()
    assert len(re.findall("no image of rank", result.errors)) == 1, result.describe()
    assert [lines_of(result, rank) for rank in range(2)] == [expected(0), expected(1)]


@pytest.mark.gate("checkpoint")
@pytest.mark.parametrize("verb", ["checkpoint", "suspend"])
def test_who_asks_for_images_gets_the_reason(jobs, verb):
    job, go = begin(jobs, options=in_files(jobs))
    told = jobs.resurgo(verb, job.process.pid)
    assert told.code != 0 and "a wrapper (sh -c " in told.errors and "with exec in the wrapper" in told.errors, told.describe()
    go.touch()
    result = job.wait().ok()
    assert [lines_of(result, rank) for rank in range(2)] == [expected(0), expected(1)]


@pytest.mark.gate("auto-wrapper", "pessimistic-program")
@pytest.mark.parametrize("victim", ["program", "wrapper"])
@pytest.mark.parametrize("protocol", ["pessimistic", "auto", slow("blocking"), slow("chandy-lamport"), slow("causal")])
def test_either_process_is_killed(jobs, protocol, victim):
    """A wrapper prints how its program has ended; the job's output has the end of the life that comes to its end."""
    job, go = begin(jobs, protocol=protocol, options=every("100ms"))
    pid = child_of(job, 1) if victim == "program" else job.lives()[1][0]
    assert job.hit(pid, 9)
    job.reach_another("started", rank=1)
    go.touch()
    result = job.wait().ok()
    assert result.restarts >= 1
    assert [lines_of(result, rank) for rank in range(2)] == [expected(0), expected(1)], result.describe()
    assert "has not repeated" not in result.errors and "other numbers" not in result.errors, result.describe()
    # The shell says "Killed" of the program that has died; the life that counts has none such.
    assert b"Killed" not in result.program_errors, result.describe()


def test_the_last_words_of_a_job_are_not_lost(jobs):
    """A program that fails in all of its lives: what it and its wrapper said in the last one is there, once."""
    program = "import os, sys; from mpi4py import MPI; print('this cannot work', file=sys.stderr, flush=True); os._exit(3)"
    wrapper = '"$@"; code=$?; echo "it has ended with $code"; exit $code'
    options = ["--max-restarts", "2"]
    result = jobs.run(1, "sh", "-c", wrapper, "sh", PYTHON, "-c", program, options=options)
    assert result.code == 3, result.describe()
    assert result.text == "it has ended with 3\n" and result.program_errors == b"this cannot work\n", result.describe()


def test_a_full_log_gives_the_reason(jobs):
    """The wrapper swallows the code with which the rank ends itself. The job ends with it all the same."""
    program = """
from mpi4py import MPI
import numpy
world = MPI.COMM_WORLD
buffer = numpy.zeros(32768)
for number in range(200):
    world.Send(buffer, 1) if world.rank == 0 else world.Recv(buffer, 0)
"""
    options = [*SMALL_LOG, *in_files(jobs)]
    result = jobs.run(2, "sh", "-c", '"$@"; true', "sh", PYTHON, "-c", program, protocol="pessimistic", options=options, timeout=60)
    assert result.code == 119 and result.restarts == 0, result.describe()
    assert "such ranks have no images, as a wrapper has started the program" in result.errors, result.describe()
    assert len(re.findall("no image of rank", result.errors)) == 1, result.describe()


FLOODED = ["sh", "-c", WRAPPER, "sh", PYTHON, "-c", FLOOD]


def flood(jobs, *second, options=()):
    """A job whose first rank has a wrapper, half way; and the file that lets it end."""
    go = jobs.directory / "go"
    # In files there are no images of a program below a wrapper.
    options = [*SMALL_LOG, *options, *([] if "--nodes" in options else in_files(jobs))]
    job = jobs.start(1, *FLOODED, go, ":", "-n", 1, *second, go, options=options, protocol="auto")
    job.reach(lambda: job.out.read_bytes().count(b"half way") == 2, what="the ranks to be half way")
    assert job.of("logs_let_go"), job.result(0).describe()
    return job, go


def flooded(jobs, second=FLOODED):
    there = jobs.directory / "is-there"
    there.touch()
    return sorted(jobs.run(1, *FLOODED, there, ":", "-n", 1, *second, there, protocol="none").ok().text.splitlines())


@pytest.mark.gate("2")
@pytest.mark.parametrize("nodes", ["1", "2"])
def test_a_full_log_ends_no_job(jobs, nodes):
    """Under auto the logs keep no more for ranks that can have no image."""
    job, go = flood(jobs, *FLOODED, options=["--nodes", nodes] if nodes != "1" else [])
    go.touch()
    result = job.wait().ok()
    assert sorted(result.text.splitlines()) == flooded(jobs) and result.restarts == 0, result.describe()
    said = "warning: the logs are full, and rank [01](?: on node [01])? can have no image: they keep nothing more for such ranks, and the failure of one takes all"
    assert len(re.findall(said, result.errors)) == 1, result.describe()


@pytest.mark.gate("wrapper-1", "program-2")
@pytest.mark.parametrize(("victim", "nodes"), [("program", "1"), ("wrapper", "1"), ("program", "2")])
def test_all_begin_again_when_the_logs_have_let_go(jobs, victim, nodes):
    job, go = flood(jobs, *FLOODED, options=["--nodes", nodes] if nodes != "1" else [])
    assert job.hit(child_of(job, 1) if victim == "program" else job.lives()[1][0], 9)
    job.reach_another("returned", wave=0)
    go.touch()
    result = job.wait().ok()
    assert sorted(result.text.splitlines()) == flooded(jobs), result.describe()
    # Full logs let go again: they do not end the job the second time.
    assert not result.of("returns_together"), result.describe()


def test_others_still_recover_alone(jobs):
    """Only the rank with a wrapper has no images: what is kept for the other one is kept."""
    job, go = flood(jobs, PYTHON, "-c", FLOOD)
    job.strike([1])
    job.reach_another("started", rank=1)
    go.touch()
    result = job.wait().ok()
    assert sorted(result.text.splitlines()) == flooded(jobs, [PYTHON, "-c", FLOOD]), result.describe()
    assert result.restarts == 1 and not result.of("returned"), result.describe()


@pytest.mark.soak
@pytest.mark.parametrize("second", [FLOODED, [PYTHON, "-c", FLOOD]], ids=["both", "one"])
def test_kills_while_logs_let_go(jobs, rng, request, second):
    """At any moment before the last messages of jobs whose logs are full again and again, whichever process is killed."""
    expected = flooded(jobs, second)
    for number in range(request.config.option.rounds):
        go = jobs.directory / f"go{number}"
        job = jobs.start(1, *FLOODED, go, ":", "-n", 1, *second, go, options=[*SMALL_LOG, *rng.choice([(), every("50ms")])], protocol="auto")
        # At the third failure in one place a job ends.
        for _ in range(rng.randrange(3)):
            time.sleep(rng.uniform(0.05, 0.6))
            rank = rng.randrange(2)
            with contextlib.suppress(Absent, ValueError, OSError):
                wrapped = rank == 0 or second is FLOODED
                victim = child_of(job, rank) if wrapped and rng.random() < 0.7 else job.lives()[rank][0]
                # Nobody can know whether a wrapper's program has died before MPI_Init has done its first work.
                is_wrapper = victim == job.lives()[rank][0]
                if is_wrapper or has_come_to_mpi((victim, None)):
                    time.sleep(0 if is_wrapper else 0.1)
                    job.hit(victim, 9)
        go.touch()
        result = job.wait().ok()
        assert sorted(result.text.splitlines()) == expected, result.describe()
