# SPDX-License-Identifier: Apache-2.0
"""Jobs that are suspended or interrupted and go on: `Chain`, a job with its later runs."""

import contextlib
import os
import re
import signal
from pathlib import Path

import harness
from harness import RESURGO
from settings import MANY

SUSPENDED = 75
HEAT = ("400", "400", "6000")
LONG_HEAT = ("400", "400", "40000")


class Chain:
    """A job and its later runs."""

    def __init__(self, jobs):
        self.jobs = jobs
        self.images = jobs.directory / "images"
        self.env = harness.environment(XDG_CACHE_HOME=jobs.directory / "cache")
        self.runs = []

    @property
    def last(self):
        return self.runs[-1]

    @property
    def out(self):
        return b"".join(run.out.read_bytes() for run in self.runs)

    @property
    def directory(self):
        """The directory of the job's files."""
        (own,) = self.images.iterdir()
        return own

    def start(self, size, *program, options=(), **more):
        options = ["--checkpoint-dir", self.images, *options]
        self.runs.append(self.jobs.start(size, *program, options=[*MANY, *options], env=self.env, **more))
        return self.last

    def resurgo(self, *words, **more):
        return self.jobs.resurgo(*words, env=self.env, **more)

    def suspend(self):
        """Suspends the last run; False when it was over before."""
        told = self.resurgo("suspend", self.last.process.pid)
        ended = self.last.wait(lets_go=False)
        if ended.code == 0:
            return False
        assert (told.code, ended.code) == (0, SUSPENDED), told.describe() + ended.describe()
        assert "is suspended after" in told.text and "resurgo resume" in ended.errors
        assert not self.last.leftovers()
        return True

    def resume(self, name=None, options=(), **more):
        events = self.jobs.directory / f"events{self.jobs.number + 1}.json"
        name = self.last.process.pid if name is None else name
        command = [*self.jobs.before, RESURGO, "resume", "--json-events", events, *options, name]
        job = self.jobs.command(command, env=self.env, events=events, **more)
        job.goes_on_from(self.last)
        self.runs.append(job)
        return job

    def end(self):
        """Waits for the job's end, and checks that nothing is left of it."""
        result = self.last.wait().ok()
        assert not list(self.images.iterdir()) and self.suspended() == {}
        return result

    def suspended(self):
        """The lines of `resurgo ps` for suspended jobs, by number."""
        lines = self.resurgo("ps").ok().text.splitlines()
        return {int(line.split()[0]): line for line in lines[1:] if re.match(r" *\d+ +\d+ (suspended|interrupted)", line)}


def ready(job):
    """All ranks run, and have come to MPI_Init or begun where they were."""
    return job.opens_mpi()


INPUT = """
import os, sys, time
from mpi4py import MPI
world = MPI.COMM_WORLD
for i in range(int(sys.argv[1])):
    line = world.bcast(sys.stdin.readline() if world.rank == 0 else None)
    assert line == f"line {i}\\n", (line, i)
    sys.stdout.write(f"[{world.rank} {i}]" + ("\\n" if i % 7 == 6 else ""))
    sys.stdout.flush()
    time.sleep(0.002)
    # The rest waits for the test.
    while i == 200 and world.rank == 0 and not os.path.exists(os.environ["AWAITED"]):
        time.sleep(0.01)
if world.rank == 0:
    assert sys.stdin.readline() == ""
"""


def agent_of(job):
    pid = job.process.pid
    with contextlib.suppress(OSError, IndexError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            if Path(f"/proc/{child}/comm").read_text() == "resurgo agent\n":
                return int(child)
    return None


def interrupt(job, victim):
    """Kills the launcher, its agent, or the whole job, at once. False: the job was over before."""
    pids = {"launcher": [job.process.pid], "agent": [agent_of(job)], "everything": [job.process.pid, *job.processes()]}[victim]
    for pid in filter(None, pids):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    ended = job.wait(lets_go=False)
    assert not job.leftovers()
    return ended.code != 0


def until_recorded(job, count=1):
    """Waits until the job can be resumed from a wave. False: the job is over."""
    return job.until(lambda: sum(event["event"] == "wave_recorded" for event in job.events) >= count, what="a wave")


def reach_recorded(job, count=1):
    return job.has_reached(until_recorded(job, count), "a recorded wave")
