# SPDX-License-Identifier: Apache-2.0
"""Jobs on several nodes that lose some at random moments: agents are killed or stand still, links are cut, machines are switched off,
several at once, with kills of ranks mixed in."""

import contextlib
import os
import signal
import sys
import time

import pytest

import harness
from catalogue import BY_NAME, arguments
from survival import PROGRAMS, compare, every, undisturbed
from test_nodes import agents

sys.path.insert(0, str(harness.ROOT / "bench"))

import cluster  # noqa: E402

pytestmark = pytest.mark.soak

LEASE = 2.0
RANKS = 4
PROTOCOLS = ["blocking", "auto"]
# What happens to a job, and how often: ranks alone, standing still or a cut for less than the lease or for more, and the end of a node.
BLOWS = {"ranks": 3, "pause": 1, "silence": 2, "end": 3}


class Forked:
    """Nodes of this machine: their agents are what can be struck."""

    def __init__(self, job):
        self.left = agents(job)
        self.stopped = []

    def end(self, victim):
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)

    def silence(self, victim, seconds):
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGSTOP)
            self.stopped.append(victim)
            time.sleep(seconds)
            os.kill(victim, signal.SIGCONT)


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
            nodes.silence(victims[0], LEASE * rng.uniform(1.6, 2.5))
    return done


def lose_nodes(jobs, program, rng, kills, name, protocol, begin, nodes_of):
    """A job that is struck, compared with an undisturbed one."""
    entry, command = BY_NAME[name], program(name)
    expected = undisturbed(jobs, command, entry, RANKS)
    file = jobs.directory / f"result{jobs.number}"
    options = ["--lease", f"{LEASE:g}s", *harness.MANY, *every(rng.choice(["100ms", "500ms"])), *rng.choice([[], ["--encrypt"]])]
    job = begin([*command, *arguments(entry, True, file)], options, protocol)
    assert job.until(lambda: len(job.lives()) == RANKS), job.result(None).describe()
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
