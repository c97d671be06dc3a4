# SPDX-License-Identifier: Apache-2.0
"""Jobs on several nodes of this machine: their agents, and how nodes are lost."""

import contextlib
import os
import re
import signal
import subprocess
import time

import pytest

import harness
from catalogue import BY_NAME, arguments
from settings import MANY, TOLERATE_NODE, WAVES, every
from survival import agent_of, compare, undisturbed


def agents(job):
    """The processes of agents, in the order in which they were started. What one has just forked looks like it for a moment."""
    found = {pid for pid in job.processes() if harness.command_of(pid).startswith("resurgo agent invited")}
    return harness.Present(sorted((pid for pid in found if harness.parent_of(pid) not in found), key=harness.age_of))


def spread(job, size):
    """Waits until the images of all ranks are on two nodes that are there now: the next one is taken only when the last one is."""
    is_of = lambda event, rank: (
        event["event"] == "checkpointed" and event["rank"] == rank or event["event"] == "wave_complete" and rank in (event.get("ranks") or [])
    )
    images = lambda: [sum(is_of(event, rank) for event in job.events) for rank in range(size)]
    before, end = images(), time.monotonic() + harness.patience(10)
    while not job.over() and time.monotonic() < end and any(now < then + 3 for now, then in zip(images(), before, strict=True)):
        time.sleep(0.05)


def last_lives(result):
    """{rank: (pid, life)} of each rank's last life."""
    return {event["rank"]: (event["pid"], event["life"]) for event in result.of("started")}


def on_three(jobs, program, protocol):
    """A job on three nodes with many images; and what waits for it, and compares what it gives with an undisturbed one."""
    entry, command = BY_NAME["heat"], program("heat")
    expected = undisturbed(jobs, command, entry, 4)
    file = jobs.directory / "result-lost"
    options = ["--nodes", "3", "-ppn", "1", "--lease", "2s", *every("100ms")]
    job = jobs.start(4, *command, *arguments(entry, True, file), options=options, protocol=protocol)
    return job, lambda patience: compare(entry, job.wait(patience), file, expected)


# Each rank sends a burst to the next one before it takes the last one's: channels are seldom empty.
BURSTS = """
import sys, time
from mpi4py import MPI
import numpy
comm = MPI.COMM_WORLD
left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
total = 0
for number in range(int(sys.argv[1])):
    bursts = [numpy.arange(400, dtype=float) + number * comm.rank + piece for piece in range(30)]
    sends = [comm.Isend(burst, dest=right, tag=piece % 3) for piece, burst in enumerate(bursts)]
    time.sleep(0.01 * ((number + comm.rank) % 2))
    for piece in range(30):
        room = numpy.empty(400)
        comm.Recv(room, source=left, tag=piece % 3)
        total = (total * 31 + int(room.sum())) % 1000003
    MPI.Request.Waitall(sends)
print("rank", comm.rank, "has", total, flush=True)
"""


def strike(job, rng, blows, size, are_alone):
    """Kills ranks and agents at random; one agent is left. `are_alone`: without both nodes that have a rank's images all would begin
    again, so one node is lost after the other."""
    left = agents(job)
    for _ in range(blows):
        time.sleep(rng.uniform(0, 0.5))
        if len(left) > 1 and rng.random() < 0.5:
            with contextlib.suppress(ProcessLookupError):
                os.kill(left.pop(rng.randrange(len(left))), rng.choice([signal.SIGKILL, signal.SIGSTOP]))
            if are_alone:
                spread(job, size)
        else:
            job.kill(rng.sample(range(size), rng.choice([1, 1, 2])))


def lose(jobs, program, rng, kills, name, protocol, nodes, images):
    entry, command = BY_NAME[name], program(name)
    if not entry.accepts(4):
        pytest.skip(f"{entry} does not run on 4 ranks")
    expected = undisturbed(jobs, command, entry, 4)
    file = jobs.directory / "result-struck"
    nodes = ["--nodes", str(nodes)] if isinstance(nodes, int) else nodes
    options = [*nodes, "--lease", "2s", *MANY, *images]
    job = jobs.start(4, *command, *arguments(entry, True, file), options=options, protocol=protocol)
    job.reach(lambda: len(job.lives()) == 4)
    are_alone = protocol == "channel-memory" or "--tolerate" in images
    strike(job, rng, kills or 4, 4, "--checkpoint-every" in images and are_alone)
    return compare(entry, job.wait(120 + 20 * expected[0].seconds), file, expected)


def waves(job):
    """How many waves are complete. Each but the last is in the memory of two nodes: the next begins only then."""
    return sum(event["event"] == "wave_complete" for event in job.events)


def images_of(agent):
    """The images in the memory of an agent, by the inodes of their files."""
    found = set()
    for name in os.listdir(f"/proc/{agent}/fd"):
        with contextlib.suppress(FileNotFoundError):
            if "memfd:resurgo-image" in os.readlink(f"/proc/{agent}/fd/{name}"):
                found.add(os.stat(f"/proc/{agent}/fd/{name}").st_ino)
    return found


def with_copies(jobs, command, protocol, images, *options):
    """A job of four nodes with a rank each, and for each rank the nodes that have the copies of its images."""
    options = ["--nodes", "4", "-ppn", "1", "--lease", "10s", *MANY, *TOLERATE_NODE, *every("1h"), *options]
    job = jobs.start(4, *command, options=options, protocol=protocol)
    job.opens_mpi()
    copies = lambda: [event for event in job.events if event["event"] == "image_replicated"]
    for number in range(1, images + 1):
        job.reach(lambda: jobs.resurgo("checkpoint", str(job.process.pid)).code == 0)
        job.reach(lambda number=number: len(copies()) == 4 * number)
        time.sleep(0.2)
    return job, {rank: [int(event["node"]) for event in copies() if event["rank"] == rank] for rank in range(4)}


def kill_together(victims):
    """Ends agents. Those that are still to be killed stand still: what one of them has is copied nowhere meanwhile."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for victim in victims:
            os.kill(victim, number)


def lose_all_images(jobs, program, protocol, *options):
    """Those nodes are killed that have an image of rank 1: all ranks begin again at the beginning. Then a process is lost alone."""
    entry, command = BY_NAME["cg"], program("cg")
    expected = undisturbed(jobs, command, entry, 4)
    file = jobs.directory / "result-lost"
    job, copies = with_copies(jobs, [*command, *arguments(entry, True, file)], protocol, 2, *options)
    there = agents(job)
    kill_together([there[node] for node in {1, *copies[1]}])
    job.reach(lambda: {rank for event in job.of("returned", wave=0) for rank in event.get("ranks") or range(4)} == set(range(4)))
    job.opens_mpi()
    job.strike([1])
    job.reach_another("started", rank=1)
    result = compare(entry, job.wait(60), file, expected)
    later = [event for event in result.of("started") if event["life"] > 1]
    assert {event["rank"] for event in later if event["image"] == 0} == set(range(4)), result.describe()


def goes_on_from_images(result, protocol):
    """No rank has begun at the beginning again."""
    if protocol in WAVES:
        return result.of("returned") and all(one["wave"] > 0 for one in result.of("returned"))
    again = [one for one in result.of("started") if one["life"] > 1]
    return again and all(one["image"] > 0 for one in again)


def lose_a_rack(jobs, program, rng, protocol, options, is_whole):
    """Two of six nodes end at one moment, neighbours of one rack, when images are as they are to be."""
    entry, command = BY_NAME["heat"], program("heat")
    expected = undisturbed(jobs, command, entry, 6)
    (hosts := jobs.directory / "hosts").write_text("".join(f"198.51.100.{node}:1 rack={'abc'[node // 2]}\n" for node in range(6)))
    ssh = jobs.directory / "ssh"
    ssh.write_text(f'#!/bin/sh\n{harness.APART}shift 6; exec sh -c "$*"\n')
    ssh.chmod(0o755)
    file = jobs.directory / "result"
    options = ["-f", hosts, "-launcher", "ssh", "-launcher-exec", ssh, "--lease", "2s", *options, *MANY, *every("100ms")]
    job = jobs.start(6, *command, *arguments(entry, True, file), options=options, protocol=protocol)
    job.reach(lambda: len(job.lives()) == 6)
    job.has_reached(is_whole(job), "images as they are to be")
    time.sleep(rng.uniform(0, 0.3))
    rack = rng.randrange(3)
    for agent in [int(agent_of(job, rank)) for rank in (2 * rack, 2 * rack + 1)]:  # each node has the rank of its number
        os.kill(agent, signal.SIGKILL)
    result = compare(entry, job.wait(120 + 20 * expected[0].seconds), file, expected)
    assert {event["node"] for event in result.of("node_lost")} == {2 * rack, 2 * rack + 1}, result.describe()
    assert goes_on_from_images(result, protocol), result.describe()
    return result


class Joined:
    """Processes of `resurgo join` on this machine, which end with the test."""

    def __init__(self, job, token=None):
        job.reach(lambda: b"resurgo join" in job.err.read_bytes())
        told = re.search(r"(?:RESURGO_JOIN_TOKEN=(\w+) )?resurgo join (?:--token-file \S+ )?(\S+)", job.err.read_text())
        self.token, self.address = token or told[1], told[2]
        self.all = []

    def join(self, slots=2, token=None):
        env = harness.environment(RESURGO_JOIN_TOKEN=token or self.token)
        command = [harness.RESURGO, "join", "--slots", str(slots), self.address]
        self.all.append(subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True))
        return self.all[-1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.all:
            process.kill()
            process.wait(10)


def ask(jobs, verb, job, *words):
    return jobs.resurgo(verb, str(job.process.pid), *words, timeout=60)
