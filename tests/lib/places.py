# SPDX-License-Identifier: Apache-2.0
"""Places of images: servers, jobs that have a place (`Stored`), and jobs with levels on hosts of their own (`Levels`)."""

import contextlib
import json
import os
import shutil
import signal
import subprocess

import harness
from chains import Chain, interrupt
from harness import RESURGO
from on_nodes import agents
from settings import EVERY


def store(*words, code=0, **more):
    """Runs `resurgo store`; returns its output, or what it complains about."""
    command = [harness.RESURGO, "store", *map(str, words)]
    environment = harness.environment(**more)
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert code is None or result.returncode == code, f"{words}: {result.returncode}\n{result.stdout}{result.stderr}"
    return result if code is None else result.stdout if code == 0 else result.stderr


def files(directory, rng, size=6_000_000):
    """A node's files, some of them alike."""
    directory.mkdir()
    noise = rng.randbytes(size)
    (directory / "image").write_bytes(noise)
    (directory / "other").write_bytes(noise[: size // 2] + b"changed" + noise[size // 2 :])
    (directory / "zeros").write_bytes(bytes(size // 2))
    (directory / "empty").write_bytes(b"")
    return directory


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def check(place, job, expected, directory, *options):
    """All generations of a job that are there come back as they were put; returns their numbers."""
    numbers = [one["generation"] for one in json.loads(store("ls", "--json", place, job, *options))]
    for number in numbers:
        back = directory / f"back-{job}-{number}"
        back.mkdir()
        store("get", place, f"{job}@{number}", back, *options)
        assert contents(back) == contents(expected[number]), number
        shutil.rmtree(back)
    return numbers


class Server:
    """A checkpoint server in a process of its own, always at the same port."""

    def __init__(self, directory, *options, **environment):
        self.directory, self.options, self.port, self.process = directory, options, harness.free_port(), None
        self.environment = harness.environment(**environment)
        self.start()

    def start(self):
        command = [harness.RESURGO, "checkpoint-server", "--directory", self.directory, *self.options]
        command += ["--listen", f"127.0.0.1:{self.port}"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=self.environment)
        assert f"at 127.0.0.1:{self.port}" in self.process.stdout.readline()

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()

    @property
    def place(self):
        return f"server:127.0.0.1:{self.port};key={self.directory}/keys"


@contextlib.contextmanager
def serving(directory, *options, **environment):
    server = Server(directory, *options, **environment)
    try:
        yield server
    finally:
        server.kill()


# Some seconds of waves.
LONG = ("200", "200", "12000")


class Stored(Chain):
    """A job with a place for its waves, and its later runs."""

    def __init__(self, jobs):
        super().__init__(jobs)
        self.place = jobs.directory / "place"
        self.shown = f"dir:{self.place}"

    def start(self, size, *program, options=(), more_of_it="", **more):
        return super().start(size, *program, options=["--store", self.shown + more_of_it, *EVERY, *options], **more)

    def loses_all(self):
        """Everything is killed, and the disk with the image files is lost. False: the job was over before."""
        if not interrupt(self.last, "everything"):
            return False
        shutil.rmtree(self.images)
        return True

    def go_on(self, *words, options=()):
        """Goes on from the place."""
        events = self.jobs.directory / f"events{self.jobs.number + 1}.json"
        command = [*self.jobs.before, RESURGO, "resume", "--json-events", events, *options, "--from", self.shown, *words]
        job = self.jobs.command(command, env=self.env, events=events)
        job.goes_on_from(self.last)
        self.runs.append(job)
        return job

    def refused(self, *words):
        """Why it does not."""
        told = self.resurgo("resume", "--from", self.shown, *words)
        assert told.code == 2 and told.errors.count("\n") == 1, told.describe()
        return told.errors

    def stored(self):
        """The waves that the last run has copied."""
        return [event["wave"] for event in self.last.events if event["event"] == "wave_flushed"]

    def until_stored(self, count=1):
        return self.last.until(lambda: len(self.stored()) >= count, what=f"{count} waves in the place")

    def reach_stored(self, count=1):
        return self.last.has_reached(self.until_stored(count), f"{count} waves in the place")

    def is_complete(self, calm):
        """What the runs printed is the whole output; a run may print again what came after the wave that it went on from."""
        whole = b""
        for run in self.runs:
            printed = run.out.read_bytes()
            at = next((at for at in range(len(whole), -1, -1) if calm.out[at:].startswith(printed)), None)
            assert at is not None, (whole, printed)
            whole = whole[:at] + printed
        assert whole == calm.out
        return True


def damage(path):
    bytes_ = bytearray(path.read_bytes())
    bytes_[len(bytes_) // 2] ^= 1
    path.write_bytes(bytes_)


HOSTS = ["a", "b", "c", "d"]
NO_COPIES = ["--store", "peers:0"]


class Levels(Stored):
    """A job on four hosts with disks of their own, and a place that all of them see."""

    def __init__(self, jobs, own_disks):
        super().__init__(jobs)
        self.launcher, self.images, self.disks = own_disks
        self.place = jobs.directory / "store"
        self.shown = f"dir:{self.place}"
        self.hosts = {}

    def start(self, size, *program, options=(), **more):
        options = ["-hosts", self.hosts_named(), "-ppn", "1", *self.launcher, "--lease", "5s", *options]
        job = super().start(size, *program, options=options, **more)
        job.reach(lambda: len(agents(job)) == len(HOSTS) and all(map(self.host_of, agents(job))), what="agents")
        self.hosts = {self.host_of(pid): pid for pid in agents(job)}
        return job

    def hosts_named(self):
        return ",".join(f"{host}.invalid:2" for host in HOSTS)

    def host_of(self, pid):
        """The host of an agent: that of the disk which it sees."""
        with contextlib.suppress(OSError, StopIteration):
            lines = open(f"/proc/{pid}/mountinfo").read().splitlines()
            return next(line.split()[3].rsplit("/", 1)[1][0] for line in lines if line.split()[4] == str(self.images))
        return None

    def lose(self, *hosts):
        """These hosts at once, with their disks."""
        for host in hosts:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.hosts.pop(host), signal.SIGKILL)
        for host in hosts:
            shutil.rmtree(self.disks / f"{host}.invalid", ignore_errors=True)

    def some(self, rng, most=2):
        """Some hosts that are there."""
        return rng.sample(sorted(self.hosts), rng.randint(1, most))

    def returned(self):
        return [event["wave"] for event in self.last.events if event["event"] == "returned"]
