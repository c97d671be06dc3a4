# SPDX-License-Identifier: Apache-2.0
"""Images that are copied into a buffer; a process that shares the memory writes them. This is for programs that wrote
to little memory, where a fork takes longer than copying."""

import contextlib
import os
import signal
import tempfile
import time
from pathlib import Path

import pytest

import harness
from harness import came_about
from image_files import damage_bit, files, from_files, kill_with_snapshots, reach_warm, start, until_warm, warm
from settings import MANY
from survival import agent_of, children_of, named

pytestmark = pytest.mark.protocol("pessimistic")
# With this much memory a fork takes long enough.
FEW = (harness.PROGRAMS / "image" / "few", 256, 250)


@pytest.fixture(scope="module")
def calm():
    """The output of undisturbed programs."""
    return {}


def undisturbed(jobs, calm, program):
    if program not in calm:
        calm[program] = jobs.run(2, *program).ok().out
    return calm[program]


@pytest.fixture
def directory():
    """A directory in memory, as the files are large."""
    with tempfile.TemporaryDirectory(prefix="resurgo-test-", dir="/dev/shm") as path:
        yield Path(path)


def writers(job):
    """Processes that have the memory of a rank and write: children of the agent with nothing open but a socket, the
    node memory and a file. They exist for some milliseconds."""
    found = []
    with contextlib.suppress(OSError, KeyError):
        for pid in children_of(agent_of(job, 0)):
            with contextlib.suppress(OSError):
                opened = [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]
                if len(opened) == 3 and any(path.endswith("/rank-0.new") for path in opened):
                    found.append(int(pid))
    return found


def kill_writers(job):
    """Kills writing processes until one has left its file incomplete; False when the job is over first."""

    def strike():
        for pid in writers(job):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return any(event["event"] == "image_not_written" for event in job.events)

    return job.until(strike, what="a file that is not written", timeout=60)


def kill(job, how):
    """Kills rank 0 in one of three ways and waits for its next life."""
    life = job.lives().get(0, (0, 0))[1]
    if how == "while it is written" and not job.until(lambda: writers(job), what="a process that writes", timeout=60):
        return
    if how == "with all that it has":
        kill_with_snapshots(job, 0)
    else:
        job.kill([0])
    job.reach(lambda: job.lives().get(0, (0, 0))[1] > life, what="the next life")


def test_a_rank_without_a_snapshot_goes_on_from_its_newest_good_file(jobs, calm, directory):
    expected = undisturbed(jobs, calm, FEW)
    job = start(jobs, directory, 2, *FEW, every="150ms")
    reach_warm(job, 3)
    ways = [event["copy"] for event in job.events if event["event"] == "checkpointed" and event["rank"] == 0]
    assert ways[:3] == ["forked"] * 3, ways  # they are whole
    job.kill([0], signal.SIGSTOP)
    numbers = lambda kind: {event["image"] for event in job.of(kind, rank=0)}
    job.reach(lambda: numbers("checkpointed") <= numbers("image_written"), what="the end of writing")
    time.sleep(0.2)
    newest = files(directory, 0)[-1]
    number = int(newest.name.rpartition("-")[2])
    damage_bit(newest)
    kill(job, "alone")
    result = job.wait().ok()
    assert result.out == expected and result.program_errors == b"", result.describe()
    lost = [(event["image"], event["reason"]) for event in result.of("image_lost")]
    assert len(lost) == 1 and lost[0][0] == number and "the checksum of its memory is wrong" in lost[0][1], result.describe()
    assert from_files(result)[-1]["image"] < number, result.describe()


def test_a_writer_that_dies_costs_its_file_only(jobs, calm, directory):
    expected = undisturbed(jobs, calm, FEW)
    job = start(jobs, directory, 2, *FEW, every="150ms")
    reach_warm(job)
    job.has_reached(kill_writers(job), "a file that is not written")
    kill(job, "alone")
    result = job.wait().ok()
    assert result.out == expected and result.program_errors == b"", result.describe()
    reasons = {event["reason"] for event in result.of("image_not_written")}
    assert reasons <= {"the process that wrote it has ended", "Broken pipe (os error 32)"}, reasons
    assert result.restarts == 1 and not result.of("image_lost"), result.describe()


@pytest.mark.parametrize("who", ["agent", pytest.param("dispatcher", marks=pytest.mark.soak)])
def test_nothing_goes_on_without_the_agent_or_the_dispatcher(jobs, directory, who):
    job = start(jobs, directory, 2, *FEW[:2], 100000, every="100ms")
    reach_warm(job)
    job.reach(lambda: writers(job), what="a process that writes", timeout=60)
    (agent,) = named("resurgo agent", children_of(job.process.pid))
    os.kill(agent, signal.SIGKILL) if who == "agent" else job.process.kill()
    job.wait(20)
    assert not job.leftovers(5)


WAYS = ("alone", "while it is written", "with all that it has")


def killed_at_random(jobs, rng, calm, directory, program, kills):
    expected = undisturbed(jobs, calm, program)
    job = start(jobs, directory, 2, *program, every=f"{rng.choice([60, 100, 150])}ms", options=MANY)
    ways = rng.sample(WAYS, 3)
    for number in range(kills):
        if not until_warm(job, rng.randint(1, 2)):
            break
        time.sleep(rng.uniform(0, 0.2))
        kill(job, ways[number % 3])
    result = job.wait().ok()
    assert result.out == expected and result.program_errors == b"", result.describe()
    assert warm(job), result.describe()
    came_about(result.restarts > 0, result)


def test_answers_are_the_same(jobs, rng, calm, directory):
    killed_at_random(jobs, rng, calm, directory, FEW, 3)


@pytest.mark.soak
def test_answers_are_the_same_after_many_kills(jobs, rng, calm, directory, request):
    for _ in range(request.config.option.rounds):
        killed_at_random(jobs, rng, calm, directory, (*FEW[:2], 1000), request.config.option.kills or 9)
