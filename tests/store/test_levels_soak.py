# SPDX-License-Identifier: Apache-2.0
"""Jobs whose images are at several levels, with all that befalls levels at random moments: nodes are lost with their disks, several at
once; servers are killed; disks are full; a tenth of all copies is damaged; agents and servers stand still, as if their links were cut; at
last the launcher may be killed with everything. Every answer is right, and nothing is lost that a level had promised to keep."""

import contextlib
import os
import shutil
import signal
import subprocess
import time

import pytest

import cluster
import harness
from catalogue import BY_NAME, arguments
from chains import interrupt
from harness import ROOT_ONLY
from places import HOSTS, Levels, Server, damage, serving
from settings import WAVES, every
from survival import PROGRAMS

pytestmark = [pytest.mark.soak, ROOT_ONLY]

RANKS = 4
PLACES = [[], ["dir"], ["server"], ["dir", "server"]]
# How many nodes may be lost at one moment.
COPIES = {"peers:0": 0, "peers:1": 1, "peers:2": 2, "parity:2+1": 1, "parity:2+2": 2, "parity:3+1": 1}
# After these nobody knows what is left.
SPOILING = {"damage", "full"}


@contextlib.contextmanager
def disk(directory):
    """A small file system, in which a place is."""
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512M,mode=700", "none", directory], check=True)
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", directory], check=True)


class Struck(Levels):
    """A job with levels, and what can be done to them."""

    BLOWS = ["ranks", "nodes", "nodes", "nodes", "servers", "full", "damage", "pause"]

    def __init__(self, jobs, own_disks, rng, stack, number):
        super().__init__(jobs, own_disks)
        self.rng, self.done, self.servers = rng, [], []
        self.room = stack.enter_context(disk(jobs.directory / f"disk{number}"))
        self.copies = rng.choice(list(COPIES))
        self.kinds = rng.choice(PLACES)
        places = [self.copies, *(self.new_place(kind, stack) for kind in self.kinds)]
        self.shown = ",".join(places)
        # Waves that must not get lost: the newest one with copies on other nodes, and in places.
        self.promised = 0

    def new_place(self, kind, stack):
        if kind == "dir":
            return f"dir:{self.room}/dir"
        self.servers.append(stack.enter_context(serving(self.room / "server")))
        return self.servers[-1].place

    def newest(self, event):
        """The newest wave of such an event since the last return."""
        waves = 0
        for one in list(self.last.events):
            if one["event"] == "returned":
                waves = min(waves, one["wave"])
            elif one["event"] == event:
                waves = max(waves, one["wave"])
        return waves

    def is_whole(self):
        """Waits until all levels are as they are to be: a wave is on all nodes that are to have it, and recorded."""
        recorded = lambda: sum(event["event"] == "wave_recorded" for event in self.last.events)
        before = recorded()
        return self.last.until(lambda: recorded() > before, what="a recorded wave")

    def nodes(self):
        """Some nodes at one moment, with their disks."""
        if len(self.hosts) < 2:
            return None
        lost = self.rng.sample(sorted(self.hosts), self.rng.randint(1, min(2, len(self.hosts) - 1)))
        is_calm = not SPOILING & {kind for kind, _ in self.done}
        if is_calm and self.is_whole():
            keeps_copies = len(lost) <= min(COPIES[self.copies], len(self.hosts) - 1)
            self.promised = self.newest("wave_recorded" if keeps_copies else "wave_flushed")
        before = len(self.returned())
        self.lose(*lost)
        back = self.last.until(lambda: len(self.returned()) > before, what="a return")
        if back and is_calm and self.promised:
            assert self.returned()[before] >= self.promised, (self.promised, self.returned(), self.done, self.last.result(None).describe())
        return lost

    def ranks(self):
        return self.last.kill(self.rng.sample(range(RANKS), self.rng.choice([1, 2, RANKS])))

    def server_dies(self):
        for server in self.servers:
            server.kill()
            time.sleep(self.rng.uniform(0, 1))
            server.start()
        return len(self.servers)

    def full(self):
        filler = self.room / "filler"
        with contextlib.suppress(OSError), open(filler, "wb") as file:
            while True:
                file.write(bytes(1 << 20))
        time.sleep(self.rng.uniform(0.2, 1.5))
        filler.unlink()
        return True

    def copies_are_damaged(self):
        """A tenth of all: on disks of nodes, and in places."""
        of_nodes = [path for path in self.disks.rglob("*") if "image-" in path.name or "parity" in path.name]
        of_places = [path for path in self.room.rglob("*") if path.parent.name in ("chunks", "parts", "generations")]
        every_one = [path for path in of_nodes + of_places if path.is_file()]
        chosen = self.rng.sample(every_one, (len(every_one) + 9) // 10)
        for path in chosen:
            with contextlib.suppress(OSError, ValueError):
                damage(path)
        return len(chosen)

    def pause(self):
        """An agent, or a server, is not to be reached for less than the lease."""
        pids = [*self.hosts.values(), *(server.process.pid for server in self.servers)]
        pid = self.rng.choice(pids)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(self.rng.uniform(0.1, 1.5))
            os.kill(pid, signal.SIGCONT)
        return pid

    def cut(self):
        raise NotImplementedError

    def strike(self, blows):
        does = {"ranks": self.ranks, "nodes": self.nodes, "servers": self.server_dies, "full": self.full}
        does |= {"damage": self.copies_are_damaged, "pause": self.pause, "cut": self.cut}
        for _ in range(blows):
            time.sleep(self.rng.uniform(0, 0.5))
            if self.last.over():
                return
            kind = self.rng.choice([kind for kind in self.BLOWS if kind != "servers" or self.servers])
            self.done.append((kind, None))
            self.done[-1] = (kind, does[kind]())

    def loses_everything(self):
        """Launcher, agents, ranks and disks of nodes. False: the job was over, or has nothing in places."""
        if not self.kinds or SPOILING & {kind for kind, _ in self.done} or not self.newest("wave_flushed"):
            return False
        if not interrupt(self.last, "everything"):
            return False
        for left in [*self.disks.iterdir(), *self.images.iterdir()]:
            shutil.rmtree(left, ignore_errors=True)
        return True


class Wired(Struck):
    """The same with networks of their own: a cable can be pulled out, also that of the checkpoint server."""

    BLOWS = ["ranks", "nodes", "cut", "cut", "cut", "servers", "damage"]

    def __init__(self, jobs, own_disks, rng, stack, number):
        self.net = stack.enter_context(cluster.Cluster(len(HOSTS) + 1))
        super().__init__(jobs, own_disks, rng, stack, number)
        self.addresses = {self.net.address(node): node for node in list(self.net.nodes)[:-1]}
        self.net.give_disks(self.disks, self.images)
        self.launcher = ["-launcher-exec", self.net.bin / "ssh"]

    def new_place(self, kind, stack):
        if kind == "dir":
            return super().new_place(kind, stack)
        node = list(self.net.nodes)[-1]
        place = Behind(self.net, node, self.room / "server")
        stack.callback(place.kill)
        self.servers.append(place)
        return place.place

    def hosts_named(self):
        return ",".join(f"{address}:2" for address in self.addresses)

    def host_of(self, pid):
        with contextlib.suppress(OSError, StopIteration):
            lines = open(f"/proc/{pid}/mountinfo").read().splitlines()
            return next(line.split()[3].rsplit("/", 1)[1] for line in lines if line.split()[4] == str(self.images))
        return None

    def lose(self, *hosts):
        for host in hosts:
            self.net.kill(self.addresses[host])
            self.hosts.pop(host)
        for host in hosts:
            shutil.rmtree(self.disks / host, ignore_errors=True)

    def cut(self):
        """A node's link, or the server's, for less than the lease or for more; after that the node is lost."""
        node = self.rng.choice([*(self.addresses[host] for host in self.hosts), *([list(self.net.nodes)[-1]] if self.servers else [])])
        is_long = node not in self.addresses.values() or len(self.hosts) > 2 and self.rng.random() < 0.5
        seconds = self.rng.uniform(3.5, 6) if is_long else self.rng.uniform(0.1, 1.5)
        self.net.cut(node)
        time.sleep(seconds)
        self.net.heal(node)
        if is_long:
            self.hosts = {host: pid for host, pid in self.hosts.items() if self.addresses[host] != node}
        return node, seconds


class Behind(Server):
    """A checkpoint server on a node of its own."""

    def __init__(self, net, node, directory):
        self.net, self.node = net, node
        super().__init__(directory)

    def start(self):
        command = ["ip", "netns", "exec", self.net.space(self.node), harness.RESURGO, "checkpoint-server", "--directory", self.directory]
        command += ["--listen", f"{self.net.address(self.node)}:4717"]
        self.process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout.readline()

    @property
    def place(self):
        return f"server:{self.net.address(self.node)}:4717;key={self.directory}/keys"


def all_that_befalls(kind, jobs, own_disks, program, rng, request, kills, protocol, name):
    entry = BY_NAME[name]
    files = [jobs.directory / "calm", jobs.directory / "disturbed"]
    calm = jobs.calm(RANKS, *program(name), *arguments(entry, True, files[0]))
    for number in range(request.config.option.rounds):
        with contextlib.ExitStack() as stack:
            levels = kind(jobs, own_disks, rng, stack, number)
            print(f"{name} {protocol} --store {levels.shown}")
            options = ["--lease", "3s", *every(rng.choice(["50ms", "200ms"]))]
            job = levels.start(RANKS, *program(name), *arguments(entry, True, files[1]), options=options, protocol=protocol)
            job.reach(lambda: len(job.lives()) == RANKS, what="ranks")  # noqa: B023
            levels.strike(kills or rng.randint(2, 5))
            if rng.random() < 0.3 and levels.loses_everything():
                levels.done.append(("everything", None))
                levels.shown = rng.choice(levels.shown.split(",")[1:])
                levels.go_on(options=["--nodes", rng.choice("123")])
            print(f"struck: {levels.done}")
            levels.last.wait(180).ok()
            seen = b"".join(run.out.read_bytes() for run in levels.runs)
            assert set(seen.splitlines()) == set(calm.out.splitlines())
            assert not entry.result or files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize("name", [entry.name for entry in PROGRAMS])
@pytest.mark.parametrize("protocol", WAVES)
def test_levels_under_all_that_befalls_them(jobs, own_disks, program, rng, request, kills, protocol, name):
    all_that_befalls(Struck, jobs, own_disks, program, rng, request, kills, protocol, name)


@pytest.mark.skipif(not cluster.is_possible(), reason="network namespaces cannot be made here (as root, with ip and tc)")
@pytest.mark.parametrize("name", [entry.name for entry in PROGRAMS])
@pytest.mark.parametrize("protocol", WAVES)
def test_levels_on_networks_that_are_cut(jobs, own_disks, program, rng, request, kills, protocol, name):
    all_that_befalls(Wired, jobs, own_disks, program, rng, request, kills, protocol, name)
