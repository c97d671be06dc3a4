# SPDX-License-Identifier: Apache-2.0
"""Jobs whose launcher, agent or whole process tree is killed, and that go on from the last wave in files."""

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest

from harness import by_rank, slow
from test_suspend import HEAT, LONG_HEAT, Chain, flip, ready

EVERY = ["--checkpoint-every", "100ms"]
WAVES = ["auto", "blocking", "chandy-lamport", "group"]


@pytest.fixture
def chain(jobs):
    return Chain(jobs)


def agent_of(job):
    pid = job.process.pid
    with contextlib.suppress(OSError, IndexError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            if Path(f"/proc/{child}/comm").read_text() == "resurgo agent\n":
                return int(child)
    return None


def interrupt(job, victim):
    """Kills the launcher, its agent, or all that belongs to the job, at once. False: it was over before."""
    pids = {"launcher": [job.process.pid], "agent": [agent_of(job)], "everything": [job.process.pid, *job.processes()]}[victim]
    for pid in filter(None, pids):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    ended = job.wait()
    assert not job.leftovers()
    return ended.code != 0


def recorded(job, count=1):
    """The job can be resumed from a wave; False: it is over."""
    return job.until(lambda: sum(event["event"] == "wave_recorded" for event in job.events) >= count, what="a wave")


@pytest.mark.parametrize("victim", ["launcher", "agent", "everything"])
@pytest.mark.parametrize("protocol", [*WAVES[:2], *map(slow, WAVES[2:])])
def test_it_goes_on_from_its_last_wave(jobs, chain, program, protocol, victim):
    calm = jobs.calm(2, *program("heat"), *HEAT)
    job = chain.start(2, *program("heat"), *HEAT, options=EVERY, protocol=protocol)
    assert recorded(job, 2)
    wave = job.result(0).of("wave_recorded")[-1]["wave"]
    assert interrupt(job, victim)
    chain.resume()
    result = chain.end()
    begun = {event["image"] for event in result.of("started")}
    assert len(begun) == 1 and begun.pop() >= wave, result.describe()
    lines = calm.out.splitlines(keepends=True)
    assert result.out == b"".join(lines[-result.out.count(b"\n") :])


def test_without_a_wave_it_is_said_that_there_is_nothing(chain, program):
    job = chain.start(2, *program("heat"), *HEAT, protocol="pessimistic", options=EVERY)
    assert job.until(lambda: len(list(chain.images.glob("*/rank-*.image-*"))) >= 2)
    told = chain.resurgo("resume", chain.images)
    assert told.code == 2 and "no job is suspended" in told.errors
    told = chain.resurgo("resume", chain.directory)
    assert told.code == 2 and "is running" in told.errors and told.errors.count("\n") == 1, told.describe()
    assert interrupt(job, "launcher")
    told = chain.resurgo("resume", chain.directory)
    assert told.code == 2 and "there is no set of images of one moment" in told.errors, told.describe()
    assert told.errors.count("\n") == 1 and told.text == ""
