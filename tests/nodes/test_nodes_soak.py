# SPDX-License-Identifier: Apache-2.0
"""Jobs on several nodes that lose some at random moments: agents are killed or stand still, links are cut, machines are switched off,
several at once, with kills of ranks mixed in; nodes that join meanwhile, and jobs of which nothing is left but files."""

import contextlib
import os
import shutil
import signal
import socket
import time

import pytest

import cluster
import harness
from catalogue import BY_NAME, arguments
from chains import interrupt
from harness import by_rank
from on_nodes import Joined, agents
from settings import MANY, PROTOCOLS, TOLERANT, TOLERATE_NODE, every
from survival import PROGRAMS, children_of, compare, undisturbed

pytestmark = pytest.mark.soak

LEASE = 2.0
RANKS = 4
# Those whose jobs on several nodes keep images in files.
IN_FILES = ["auto", "blocking"]
# What happens to a job, and how often: ranks alone, standing still or a cut for less than the lease or for more, and the end of a node;
# `resurgo run` stands still, and strangers call at every port.
BLOWS = {"ranks": 6, "pause": 2, "silence": 4, "end": 6, "launcher": 1, "strangers": 1}


class Forked:
    """Nodes of this machine: their agents are what can be struck."""

    def __init__(self, job):
        self.left = agents(job)

    def end(self, victim):
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)

    def silence(self, victim, seconds):
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGSTOP)
            time.sleep(seconds)
            os.kill(victim, signal.SIGCONT)


class Joining(Forked):
    """Nodes that have joined. Each that ends may be followed by another one."""

    def __init__(self, job, joined, rng):
        self.job, self.joined, self.rng, self.left = job, joined, rng, [process.pid for process in joined.all]

    def silence(self, victim, seconds):
        """The agent stands still; what has started it waits for that, and then joins again."""
        for agent in children_of(victim):
            super().silence(int(agent), seconds)

    def end(self, victim):
        super().end(victim)
        if self.rng.random() < 0.5:
            came = lambda: sum(event["event"] == "node_came" for event in self.job.events)
            before, process = came(), self.joined.join()
            if self.job.until(lambda: came() > before, what="a node that joins"):
                self.left.append(process.pid)


class Emulated:
    """Nodes with networks of their own."""

    def __init__(self, nodes):
        self.nodes, self.left = nodes, list(nodes.nodes)

    def end(self, victim):
        self.nodes.kill(victim)

    def silence(self, victim, seconds):
        self.nodes.cut(victim)
        time.sleep(seconds)
        self.nodes.heal(victim)


def ports_of(pids):
    """The ports at which these processes wait for connections."""
    ports = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            held = {os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd")}
            for line in open(f"/proc/{pid}/net/tcp").read().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and f"socket:[{fields[9]}]" in held:
                    ports.add(int(fields[1].split(":")[1], 16))
    return sorted(ports)


def call(port, rng):
    """Somebody who is not of the job; some say nothing, or a word, or much. Nodes with networks of their own are not reached."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as stranger:
        stranger.sendall(rng.choice([b"", b"GET / HTTP/1.0\r\n\r\n", rng.randbytes(rng.choice([1, 100, 100_000]))]))
    return port


def strike(job, rng, nodes, blows):
    """So many blows at random moments, as long as there is a node that has been left alone. What was done."""
    done = []
    for _ in range(blows):
        time.sleep(rng.uniform(0, rng.choice([0.3, 1.5])))
        if job.over():
            break
        kind = rng.choices(list(BLOWS), BLOWS.values())[0]
        if kind == "ranks":
            done.append((kind, job.kill(rng.sample(range(RANKS), rng.choice([1, 1, 2, RANKS])))))
            continue
        if kind == "launcher":
            done.append((kind, seconds := rng.choice([rng.uniform(0.05, LEASE), rng.uniform(LEASE, 2 * LEASE)])))
            job.process.send_signal(signal.SIGSTOP)
            time.sleep(seconds)
            job.process.send_signal(signal.SIGCONT)
            continue
        if kind == "strangers":
            done.append((kind, [call(port, rng) for port in ports_of([job.process.pid, *agents(job)])]))
            continue
        if not nodes.left:
            continue
        if kind == "pause":
            done.append((kind, victim := rng.choice(nodes.left)))
            nodes.silence(victim, rng.uniform(0.05, LEASE / 3))
            continue
        together = rng.choice([1, 1, 1, 2])
        victims = rng.sample(nodes.left, min(together, len(nodes.left) - 1))
        for victim in victims:
            nodes.left.remove(victim)
            done.append((kind, victim))
            if kind == "end":
                nodes.end(victim)
        if kind == "silence" and victims:
            # Some of these come back just before they would be lost, or just after.
            nodes.silence(victims[0], LEASE * rng.choice([rng.uniform(0.8, 1.6), rng.uniform(1.6, 2.5)]))
    return done


def lose_nodes(jobs, program, rng, kills, name, protocol, begin, nodes_of):
    """A job that is struck, compared with an undisturbed one."""
    entry, command = BY_NAME[name], program(name)
    expected = undisturbed(jobs, command, entry, RANKS)
    file = jobs.directory / f"result{jobs.number}"
    options = ["--lease", f"{LEASE:g}s", *MANY]
    options += ["--encrypt"] * (rng.random() < 0.5)
    if protocol in TOLERANT and rng.random() < 0.25:
        # A lost node takes logs along, and all begin again.
        options += rng.choice([[], every("500ms")])
    elif protocol in TOLERANT:
        loggers = rng.choice([0, 1, 2] if protocol == "causal" else [1, 2])
        options += [*TOLERATE_NODE, "--event-loggers", loggers, *rng.choice([[], every("500ms")])]
    else:
        options += every(rng.choice(["100ms", "500ms"]))
    job = begin([*command, *arguments(entry, True, file)], options, protocol)
    job.reach(lambda: len(job.lives()) == RANKS)
    nodes = nodes_of(job)
    done = strike(job, rng, nodes, kills or 3 * len(nodes.left))
    print(f"{name} {protocol}: struck {done}")
    result = compare(entry, job.wait(120 + 20 * expected[0].seconds), file, expected)
    print(f"losses: {len(result.of('node_lost'))} restarts: {result.restarts} returns: {[one['wave'] for one in result.of('returned')]}")


@pytest.mark.parametrize("name", [entry.name for entry in PROGRAMS])
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("count", [2, 3, 4, 8])
def test_forked_nodes(jobs, program, rng, kills, request, count, protocol, name):
    spares = ["--spares", 1] if count > 2 and rng.random() < 0.5 else []

    def begin(line, options, protocol):
        options = [*options, "--nodes", count, *spares]
        return jobs.start(RANKS, *line, options=options, protocol=protocol)

    for _ in range(request.config.option.rounds):
        lose_nodes(jobs, program, rng, kills, name, protocol, begin, Forked)


@pytest.mark.parametrize("name", [entry.name for entry in PROGRAMS])
@pytest.mark.parametrize("protocol", [protocol for protocol in PROTOCOLS if protocol != "hierarchical"])
def test_nodes_that_join(jobs, program, rng, kills, request, protocol, name):
    for _ in range(request.config.option.rounds):
        with contextlib.ExitStack() as stack:
            joined = []

            def begin(line, options, protocol, stack=stack, joined=joined):
                job = jobs.start(RANKS, *line, options=[*options, "-launcher", "join"], protocol=protocol)
                joined.append(stack.enter_context(Joined(job)))
                for _ in range(3):
                    joined[0].join()
                return job

            lose_nodes(jobs, program, rng, kills, name, protocol, begin, lambda job, joined=joined: Joining(job, joined[0], rng))


def is_over(chain):
    """The job was killed when it had given all, and its files were being removed."""
    if any(chain.images.glob("*/suspended")):
        return False
    for left in chain.images.iterdir():
        shutil.rmtree(left)
    return True


@pytest.mark.parametrize("name", [entry.name for entry in PROGRAMS])
@pytest.mark.parametrize("protocol", IN_FILES)
def test_nothing_is_left_but_files(jobs, chain, program, rng, kills, request, protocol, name):
    """Struck nodes; then launcher, agents and ranks are killed at once, or the job is suspended; then it is on other nodes."""
    entry, command = BY_NAME[name], program(name)
    expected = undisturbed(jobs, command, entry, RANKS)
    for number in range(request.config.option.rounds):
        chain.runs.clear()
        file = jobs.directory / f"result{number}"
        nodes = lambda: ["--nodes", *rng.choice([[1], [2], [3], [3, "--spares", 1], [4]])]
        options = ["--lease", f"{LEASE:g}s", *every(rng.choice(["50ms", "200ms"])), *rng.choice([[], ["--encrypt"]]), *nodes()]
        job = chain.start(RANKS, *command, *arguments(entry, True, file), options=options, protocol=protocol)
        was_over = False
        for _ in range(4):
            begun = lambda job=job: len(job.lives()) == RANKS and any(event["event"] == "wave_recorded" for event in job.events)
            if not job.until(begun, 60):
                break
            print(f"{name} {protocol}: struck {strike(job, rng, Forked(job), kills or rng.choice([0, 1, 3]))}")
            how = rng.choice(["launcher", "everything", "suspend"])
            if not (chain.suspend() if how == "suspend" else interrupt(job, how)):
                break
            if was_over := is_over(chain):
                break
            job = chain.resume(chain.directory, options=nodes())
        result = job.result(0) if was_over else job.wait(120 + 20 * expected[0].seconds).ok()
        assert by_rank(chain.out) == by_rank(expected[0].out), result.describe()
        assert not entry.result or file.read_bytes() == expected[1].read_bytes()
        assert not list(chain.images.iterdir())


@pytest.mark.skipif(not cluster.is_possible(), reason="network namespaces cannot be made here (as root, with ip and tc)")
@pytest.mark.parametrize("name", [entry.name for entry in PROGRAMS])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nodes_with_networks_of_their_own(jobs, program, rng, kills, request, protocol, name):
    for _ in range(request.config.option.rounds):
        with cluster.Cluster(4) as nodes:

            def begin(line, options, protocol, nodes=nodes):
                launcher = ["-launcher", "ssh", "-launcher-exec", nodes.bin / "ssh"]
                options = [*options, "-hosts", nodes.hosts(1), *launcher]
                return jobs.start(RANKS, *line, options=options, protocol=protocol)

            lose_nodes(jobs, program, rng, kills, name, protocol, begin, lambda job, nodes=nodes: Emulated(nodes))
            for node in nodes.nodes:
                end = time.monotonic() + 2 * LEASE
                while nodes.pids(node) and time.monotonic() < end:
                    time.sleep(0.05)
                assert not nodes.pids(node), (node, [harness.command_of(pid) for pid in nodes.pids(node)])
