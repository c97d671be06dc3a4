# SPDX-License-Identifier: Apache-2.0
"""Checkpoint servers that a job starts itself (server:HOST;start): they die, hosts are lost, and the job goes on."""

import contextlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import threading
import time

import pytest

import cluster
import harness
import places
from harness import RESURGO, came_about, slow
from places import LONG, Stored, damage
from settings import EVERY, WAVES


class Serving:
    """The servers of a job."""

    def with_servers(self, count=2):
        self.home = self.jobs.directory / "servers"
        self.home.mkdir(mode=0o700)
        self.ports = []
        while len(self.ports) < count:
            self.ports += {harness.free_port()} - set(self.ports)
        self.address = "server:" + ",".join(f"localhost:{port}" for port in self.ports)
        self.shown = f"{self.address};start={self.home}"
        return self

    def serves(self):
        """Their processes."""
        found = {event["server"]: event["pid"] for event in self.last.events if event["event"] == "checkpoint_server_started"}
        return list(found.values())

    def kill_one(self, rng):
        with contextlib.suppress(ProcessLookupError):
            os.kill(rng.choice(self.serves()), signal.SIGKILL)

    @contextlib.contextmanager
    def killed_all_the_time(self, rng, least=0.1, most=1.0):
        over, pause = threading.Event(), random.Random(rng.random())

        def storm():
            while not over.wait(pause.uniform(least, most)):
                self.kill_one(pause)

        killer = threading.Thread(target=storm)
        killer.start()
        try:
            yield
        finally:
            over.set()
            killer.join()

    def by_hand(self):
        """The same servers, started by a user: a context for each."""
        for port in self.ports:
            (directory,) = self.home.glob(f"*-{port}")
            command = [RESURGO, "checkpoint-server", "--directory", directory, "--listen", f"127.0.0.1:{port}"]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            assert "checkpoint server at" in process.stdout.readline()
            yield process, directory / "keys"

    def is_tidy(self):
        assert not list(self.home.iterdir())
        return True


class Stores(Serving, Stored):
    pass


class Levels(Serving, places.Levels):
    pass


@pytest.fixture
def stores(jobs):
    return Stores(jobs).with_servers()


@pytest.fixture
def levels(jobs, own_disks):
    return Levels(jobs, own_disks).with_servers()


def test_servers_take_waves_and_leave_nothing(jobs, stores, program):
    calm = jobs.calm(2, *program("heat"), *LONG)
    job = stores.start(2, *program("heat"), *LONG, protocol="blocking")
    stores.reach_stored(2)
    pids = stores.serves()
    assert len(pids) == 2 and all(len(list(own.glob("users/*/*/chunks/*"))) > 0 for own in stores.home.iterdir())
    result = stores.end()
    assert result.out == calm.out and stores.is_tidy() and not result.of("checkpoint_server_lost")
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
    assert f"{stores.address}, which this job starts, every recorded wave" in result.errors
    assert not job.leftovers()


@pytest.mark.parametrize("protocol", [WAVES[1], *map(slow, [WAVES[0], *WAVES[2:]])])
def test_servers_are_killed_while_waves_go_there(jobs, stores, program, rng, protocol):
    longer = ("200", "200", "40000")
    calm = jobs.calm(2, *program("heat"), *longer)
    job = stores.start(2, *program("heat"), *longer, protocol=protocol)
    job.reach(lambda: len(stores.serves()) == 2)
    with stores.killed_all_the_time(rng, 0.5, 2.5):
        stores.reach_stored(2)
        job.reach(lambda: b"was restarted" in job.err.read_bytes(), what="a server that is back")
        result = job.wait().ok()
    assert result.out == calm.out and "was restarted" in result.errors
    came_about(result.of("checkpoint_server_lost"), result)
    assert not result.of("wave_not_flushed") and not result.of("checkpoint_server_away"), result.describe()
    # One that was killed in the last moment may not have removed what it had; then this is said.
    assert "what the job has stored stays in" in result.errors or stores.is_tidy()


@pytest.mark.slow
@pytest.mark.parametrize("protocol", [WAVES[1], *map(slow, [WAVES[0], *WAVES[2:]])])
def test_servers_are_killed_while_ranks_go_on_from_there(jobs, levels, program, rng, protocol):
    """Nodes are lost with all images of their ranks."""
    calm = jobs.calm(4, *program("heat"), *LONG)
    job = levels.start(4, *program("heat"), *LONG, options=places.NO_COPIES, protocol=protocol)
    levels.reach_stored(rng.randint(1, 3))
    time.sleep(rng.uniform(0, 0.3))
    least = levels.stored()[-1]
    with levels.killed_all_the_time(rng, 0.3, 1.5):
        levels.lose(*levels.some(rng))
        assert job.reach_event("returned") and job.reach_event("wave_comes")
    result = job.wait().ok()
    assert result.out == calm.out, result.describe()
    assert levels.returned()[0] >= least - 2 and levels.returned()[0] > 0, result.describe()
    assert levels.is_tidy()


def test_a_run_that_goes_on_starts_them_again(jobs, stores, program, rng):
    """On their directories: what they have is a source. The launcher is killed with everything, and servers with it."""
    calm = jobs.calm(2, *program("heat"), *LONG)
    job = stores.start(2, *program("heat"), *LONG, options=["--local-copies", "off"], protocol="blocking")
    stores.reach_stored(2)
    pids = stores.serves()
    os.kill(job.process.pid, signal.SIGKILL)
    job.wait(lets_go=False)
    end = time.monotonic() + 5 * harness.SLOWNESS
    while any(os.path.exists(f"/proc/{pid}") for pid in pids) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids) and len(list(stores.home.iterdir())) == 2
    assert not job.leftovers()
    job = stores.resume(stores.directory, options=["--checkpoint-every", "1h"])
    job.reach(lambda: len(job.lives()) == 2)
    for path in stores.directory.glob("rank-*.image-*"):
        damage(path)
    job.kill([rng.randrange(2)])
    result = stores.end()
    assert stores.is_complete(calm) and stores.is_tidy()
    assert result.of("wave_comes") and all(event["image"] > 0 for event in result.of("started"))


@pytest.mark.slow
def test_it_goes_on_from_servers_that_are_started_by_hand(jobs, stores, program):
    """All but their directories is lost. When these servers end, the job has its own again."""
    longer = ("200", "200", "160000")
    calm = jobs.calm(2, *program("heat"), *longer)
    stores.start(2, *program("heat"), *longer, protocol="blocking")
    stores.reach_stored(2)
    assert stores.loses_all()
    assert not stores.last.leftovers()
    servers = dict(stores.by_hand())
    try:
        ours, stores.shown = stores.shown, f"{stores.address};key={next(iter(servers.values()))}"
        job = stores.go_on()
        job.reach_event("resumed")
    finally:
        stores.shown = ours
        for process in servers:
            process.kill()
            process.wait()
            process.stdout.close()
    assert job.reach(lambda: len(stores.serves()) == 2) and stores.reach_stored()
    result = stores.end()
    assert stores.is_complete(calm) and stores.is_tidy()
    assert "another checkpoint server uses this directory" in result.errors, result.errors


def test_a_job_that_does_not_end_well_leaves_them(jobs, stores, program):
    job = stores.start(2, *program("heat"), *LONG, protocol="blocking")
    stores.reach_stored()
    pids = stores.serves()
    job.process.send_signal(signal.SIGINT)
    result = job.wait()
    assert result.code == 130 and not any(os.path.exists(f"/proc/{pid}") for pid in pids)
    kept = sorted(stores.home.iterdir())
    assert len(kept) == 2 and all(str(path) in result.errors for path in kept), result.errors
    assert "resurgo checkpoint-server --directory DIR serves it" in result.errors
    stores.resurgo("rm", stores.directory).ok()


def test_a_job_that_stores_nothing_leaves_nothing(jobs, stores, program):
    told = stores.start(2, *program("crash"), protocol="blocking", options=["--max-restarts", "0"], more_of_it=";every=1000").wait()
    assert stores.is_tidy(), told.describe()
    (told,) = [stores.resurgo("run", "--checkpoint-dir", stores.images, "--store", stores.shown, "-hosts", "no.invalid", *program("hello"))]
    assert told.code == 1 and stores.is_tidy(), told.describe()


def test_a_port_that_is_taken_is_said(jobs, stores, program):
    with socket.socket() as taken:
        taken.bind(("", stores.ports[1]))
        taken.listen()
        told = stores.resurgo("run", "--checkpoint-dir", stores.images, "--store", stores.shown, *program("hello"))
    port = stores.ports[1]
    assert told.code == 1 and told.errors.count("\n") == 1, told.describe()
    assert f"server of localhost:{port} cannot be started: port {port} is in use there; write another one" in told.errors
    assert stores.is_tidy()


@pytest.mark.slow
def test_what_a_server_has_counts_no_more_when_it_does_not_come_back(jobs, stores, program, rng):
    """Its directory is away, and later it is there again."""
    longer = ("200", "200", "600000")
    calm = jobs.calm(2, *program("heat"), *longer)
    options = ["--local-copies", "off", "--checkpoint-every", "1h"]
    job = stores.start(2, *program("heat"), *longer, options=options, protocol="blocking")
    job.reach(lambda: len(job.lives()) == 2)
    job.reach(lambda: stores.resurgo("checkpoint", job.process.pid).code == 0, what="a wave")
    stores.reach_stored(1)
    aside = jobs.directory / "aside"
    os.rename(stores.home, aside)
    stores.home.write_text("")
    stores.kill_one(rng)
    job.reach_event("checkpoint_server_away")
    stores.home.unlink()
    os.rename(aside, stores.home)
    job.reach(lambda: "was restarted" in job.result(0).errors)
    time.sleep(0.5)
    for path in stores.directory.glob("rank-*.image-*"):
        damage(path)
    job.kill([rng.randrange(2)])
    result = stores.end()
    assert result.out == calm.out and stores.is_tidy()
    assert re.search(r"server of localhost:\d+ cannot be started again: .*Not a directory", result.errors), result.errors
    again = [event["image"] for event in result.of("started") if event["life"] > 1]
    assert again and 0 not in again, result.describe()
    came_about(result.of("wave_comes"), result)


@pytest.mark.slow
@pytest.mark.skipif(not cluster.is_possible(), reason="network namespaces cannot be made here (as root, with ip and tc)")
def test_a_host_with_a_server_is_switched_off(jobs, program, tmp_path):
    """It is named, and the job goes on without it."""
    calm = jobs.calm(4, *program("heat"), *LONG)
    home, images = tmp_path / "servers", tmp_path / "images"
    home.mkdir(mode=0o700)
    with cluster.Cluster(3) as nodes:
        ranks = ["-hosts", ",".join(f"{nodes.address(node)}:2" for node in (1, 2)), "-launcher", "ssh"]
        options = [*ranks, "-launcher-exec", nodes.bin / "ssh", "--lease", "4s", "--checkpoint-dir", images, *EVERY]
        address = f"{nodes.address(3)}:4801"
        options += ["--store", f"server:{address};start={home}"]
        job = jobs.start(4, *program("heat"), *LONG, options=options, protocol="blocking")
        stored = lambda: [event for event in job.events if event["event"] == "wave_flushed"]
        job.reach(lambda: len(stored()) >= 2)
        nodes.kill(3)
        job.reach_event("checkpoint_server_lost")
        result = job.wait(120).ok()
        assert result.out == calm.out and f"the checkpoint server of {address} was lost" in result.errors, result.describe()
        shutil.rmtree(home)
        assert not any(map(nodes.pids, nodes.nodes))
