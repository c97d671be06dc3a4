# SPDX-License-Identifier: Apache-2.0
"""Another user on the same machine, who may write where our directories lie. Nothing of that user is loaded, resumed or
written through."""

import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

import harness
from chains import HEAT, ready
from harness import ROOT_ONLY, came_about, slow
from image_files import kill_with_snapshots, reach_written, start
from sealing import from_another_kernel
from settings import MANY, TOLERATE_NODE

OTHER = 65534


def as_other(*command):
    """Runs a command as the other user."""
    command = [str(word) for word in command]
    return subprocess.run(command, user=OTHER, group=OTHER, extra_groups=[], capture_output=True, text=True, check=False)


@pytest.fixture
def shared():
    """A directory that everybody may reach and write to, like a scratch file system."""
    place = Path(subprocess.check_output(["mktemp", "-d", "/tmp/resurgo-shared-XXXXXX"], text=True).strip())
    place.chmod(0o1777)
    yield place
    shutil.rmtree(place)


@ROOT_ONLY
def test_where_everybody_may_write_there_is_no_job(jobs, program, shared):
    """Without the sticky bit, anybody can exchange the job's directory. Somebody else's symbolic link leads nowhere."""
    shared.chmod(0o777)
    for place in (shared, shared / "own", shared / "own" / "below"):
        result = start(jobs, place, 2, *program("hello")).wait()
        assert result.code == 2 and "everybody may write to this directory" in result.errors, result.describe()
    shared.chmod(0o1777)
    assert as_other("ln", "-s", jobs.directory, shared / "link").returncode == 0
    result = start(jobs, shared / "link", 2, *program("hello")).wait()
    assert result.code == 2 and f"it is a symbolic link of user {OTHER}" in result.errors, result.describe()
    start(jobs, shared / "own", 2, *program("hello")).wait().ok()
    assert sorted(os.listdir(shared)) == ["link", "own"]


@ROOT_ONLY
def test_an_exchanged_directory_is_not_written_through(jobs, program, shared):
    """The other user replaces the job's directory by one with links to the victim's files. Images still go where they
    were, and ranks come back from them."""
    calm = jobs.calm(2, *program("heat"), *HEAT)
    precious = shared / "precious"
    precious.write_text("precious")
    precious.chmod(0o600)
    job = start(jobs, shared, 2, *program("heat"), *HEAT, every="100ms")
    reach_written(job, 1)
    (own,) = (path for path in shared.iterdir() if path.is_dir())
    refused = as_other("mv", own, shared / "away")
    assert refused.returncode != 0 and own.is_dir()
    shared.chmod(0o777)  # others' present rights did not exist when the job began
    assert as_other("mv", own, shared / "away").returncode == 0
    names = [f"rank-{rank}.{end}" for rank in range(2) for end in ("new", "spare", *(f"image-{number}" for number in range(1, 60)))]
    script = 'mkdir -m 777 "$1" && cd "$1" && shift && target=$1 && shift && for name; do ln -s "$target" "$name"; done'
    planted = as_other("sh", "-c", script, "sh", own, precious, *names, "suspended", "suspended.new")
    assert planted.returncode == 0, planted
    before = len([event for event in job.events if event["event"] == "image_written"])
    job.reach(lambda: len([event for event in job.events if event["event"] == "image_written"]) > before + 4)
    kill_with_snapshots(job, 0)
    kill_with_snapshots(job, 1)
    result = job.wait().ok()
    assert result.out == calm.out
    came_about(any(event["from_file"] for event in result.of("started")), result)
    assert precious.read_text() == "precious"
    assert all(path.is_symlink() for path in own.iterdir())


@ROOT_ONLY
def test_a_planted_job_is_not_resumed(chain, program, shared):
    """A whole suspended job, in another user's files, or in a directory that the other user may write to."""
    chain.images = shared
    chain.start(2, *program("heat"), *HEAT)
    ready(chain.last)
    time.sleep(0.3)
    assert chain.suspend()
    (own,) = shared.iterdir()
    good = shared / "good"
    shutil.copytree(own, good)
    good.chmod(0o700)

    def refused(words, path=own):
        result = chain.resurgo("resume", path)
        assert result.code == 2 and words in result.errors and not result.out, result.describe()

    os.chown(own, OTHER, OTHER)
    refused(f"belongs to user {OTHER}")
    os.chown(own, 0, 0)
    own.chmod(0o777)
    refused("others may write to it")
    own.chmod(0o700)
    os.chown(own / "suspended", OTHER, OTHER)
    refused(f"belongs to user {OTHER}")
    os.chown(own / "suspended", 0, 0)
    shared.chmod(0o777)
    refused("everybody may write to this directory")
    shared.chmod(0o1777)
    (own / "key").write_bytes(bytes(32))  # of somebody who has made the rest
    refused("cannot be used")
    shutil.rmtree(own)
    assert as_other("ln", "-s", good, own).returncode == 0
    refused("symbolic link")
    own.unlink()
    good.rename(own)
    # Files that others put beside it disturb nothing.
    assert as_other("ln", "-s", own, shared / "planted").returncode == 0
    assert as_other("mkdir", shared / "theirs").returncode == 0
    chain.resume(shared)
    chain.last.wait().ok()
    assert chain.out == chain.jobs.calm(2, *program("heat"), *HEAT).out and not own.exists()


def test_a_forged_image_is_noticed(jobs, chain, program):
    """The image is whole, has the right name, rank and number, and belongs to the user. The older image is taken
    instead; if that is forged, too, the job ends."""
    chain.start(2, *program("heat"), *HEAT, options=["--checkpoint-every", "50ms"])
    written = lambda: [event["rank"] for event in chain.last.events if event["event"] == "image_written"]
    chain.last.reach(lambda: written().count(0) >= 2, what="two images of rank 0")
    assert chain.suspend()
    older, newest = sorted(chain.directory.glob("rank-0.image-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    from_another_kernel(newest)
    jobs.resurgo("image", "show", newest).ok()
    chain.resume(chain.directory)
    result = chain.end()
    (lost,) = result.of("image_lost")
    assert "not the image that this job has written there" in lost["reason"] and str(newest) in lost["reason"]
    assert chain.out == jobs.calm(2, *program("heat"), *HEAT).out


@ROOT_ONLY
@pytest.mark.parametrize("planted", ["directory", "link", "open"])
def test_a_planted_folder_of_libraries_is_refused(jobs, program, shared, planted):
    """Without HOME and XDG_CACHE_HOME the folder with links to libraries lies in the temporary directory."""
    env = harness.environment(HOME=None, XDG_CACHE_HOME=None, TMPDIR=shared)
    run = lambda: jobs.resurgo("run", "-n", 1, *program("hello_debian"), env=env)
    run().ok()
    cache = shared / "resurgo-0"
    assert cache.stat().st_mode & 0o777 == 0o700
    (shim,) = cache.iterdir()
    if planted == "open":
        # Everything in it is right, but somebody else can change it at any time.
        shim.chmod(0o777)
        words = "others may write to it"
    else:
        copy = shared / "copy"
        shutil.copytree(cache, copy, symlinks=True)
        subprocess.run(["chown", "-hR", f"{OTHER}:{OTHER}", copy], check=True)
        shutil.rmtree(cache)
        if planted == "directory":
            copy.rename(cache)
            words = f"belongs to user {OTHER}"
        else:
            assert as_other("ln", "-s", copy, cache).returncode == 0
            words = "symbolic link"
    result = run()
    assert result.code == 2 and words in result.errors and not result.out, result.describe()


class Strangers(threading.Thread):
    """Strangers hold as many connections to a server as they can. On half of them they have said something; when cut,
    they connect again."""

    def __init__(self, port, count=400):
        super().__init__()
        self.port, self.count, self.cut, self.over = port, count, 0, threading.Event()

    def connect(self):
        stranger = socket.create_connection(("127.0.0.1", self.port), timeout=1)
        stranger.setblocking(False)
        if len(self.held) % 2:
            with contextlib.suppress(OSError):
                stranger.send(b"\0\0")
        self.held[stranger.fileno()] = stranger
        self.poll.register(stranger, select.POLLIN)

    def run(self):
        self.held, self.poll = {}, select.poll()
        while not self.over.is_set():
            with contextlib.suppress(OSError):
                while len(self.held) < self.count:
                    self.connect()
            for number, _ in self.poll.poll(20):
                self.poll.unregister(number)
                self.held.pop(number).close()
                self.cut += 1
        for stranger in self.held.values():
            stranger.close()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.join()


@pytest.mark.parametrize(
    "options",
    [
        ["--protocol", "pessimistic", *TOLERATE_NODE, "--event-logger"],
        slow(["--protocol", "channel-memory", "--channel-memory"]),
        slow(["--protocol", "causal", *TOLERATE_NODE, "--event-logger"]),
    ],
    ids=lambda options: options[1],
)
def test_hundreds_of_strangers_keep_no_rank_out(jobs, program, options):
    """They connect all the time, say nothing or too little, and take every place that they can get. Killed ranks come
    back."""
    heat = [*program("heat"), "200", "200", "12000"]
    calm = jobs.calm(3, *heat)
    port = harness.free_port()
    job = jobs.start(3, *heat, options=[*MANY, *options, f"127.0.0.1:{port}"])
    job.reach(lambda: len(job.lives()) == 3, what="the ranks")
    with Strangers(port) as strangers:
        for rank in (0, 1, 2, 1):
            job.reach(lambda: strangers.cut > 0, what="cut strangers")
            job.kill([rank])
            if not job.until_another("started"):
                break
        job.reach(lambda: strangers.cut > 100, what="many cut strangers")
        result = job.wait().ok()
    assert result.out == calm.out, result.describe()
    came_about(result.restarts >= 2, result)


def listening(job):
    """The ports on which processes of the job listen."""
    inodes = set()
    for pid in [job.process.pid, *job.processes()]:
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    inodes.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    lines = [line for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    fields = [line.split() for line in lines]
    return {int(line[1].split(":")[1], 16) for line in fields if line[3] == "0A" and f"socket:[{line[9]}]" in inodes}


@pytest.mark.parametrize("options", [[], slow(["--encrypt"])])
def test_strangers_keep_no_node_out_of_a_job_that_begins(jobs, program, tmp_path, options):
    """They have all places at `resurgo run` when the agents come."""
    (script := tmp_path / "ssh").write_text(
        f'#!/bin/sh\n{harness.APART}shift 6; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; exec sh -c "$*"\n'
    )
    script.chmod(0o755)
    hosts = ["-hosts", "a.invalid:2,b.invalid:2", "-launcher-exec", script, *options]
    job = jobs.start(4, *program("messages"), options=hosts, protocol="blocking")
    job.reach(lambda: len(listening(job)) == 1)
    (port,) = listening(job)
    with Strangers(port, 100) as strangers:
        job.reach(lambda: strangers.cut > 0, what="cut strangers")
        (tmp_path / "go").touch()
        result = job.wait().ok()
    assert {event["node"] for event in result.of("started")} == {"a.invalid", "b.invalid"}, result.describe()


@pytest.mark.parametrize("options", [[], slow(["--encrypt"])])
def test_strangers_hold_up_no_nodes(jobs, program, options):
    """A thousand hold connections to all ports of a job on three nodes, and say nothing or garbage, while a node is
    lost."""
    heat = [*program("heat"), "200", "200", "6000"]
    calm = jobs.calm(3, *heat)
    several = ["--nodes", "3", "-ppn", "1", "--protocol", "blocking", "--checkpoint-every", "200ms", *options]
    job = jobs.start(3, *heat, options=several, protocol="blocking")
    job.reach_event("wave_complete")
    ports = listening(job)
    assert len(ports) >= 6, "where movers call, and where images are brought"
    with contextlib.ExitStack() as stack:
        all_of_them = [stack.enter_context(Strangers(port, 1000 // len(ports))) for port in ports]
        job.reach(lambda: all(strangers.cut > 0 for strangers in all_of_them), what="cut strangers")
        job.kill([0])
        agent = next(pid for pid in job.processes() if harness.command_of(pid).startswith("resurgo agent invited"))
        os.kill(agent, signal.SIGKILL)
        result = job.wait(90).ok()
    assert result.out == calm.out and len(result.of("node_lost")) == 1, result.describe()
