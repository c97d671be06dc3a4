# SPDX-License-Identifier: Apache-2.0
"""MPI_Comm_spawn on several nodes: where the new ranks run, and that they outlive what all ranks do."""

import contextlib
import os
import re
import signal
import time

import pytest

import harness
from harness import came_about, slow, storm
from on_nodes import agents
from settings import MANY, TOLERATE_NODE, every
from spawned import ARGUMENTS, lines

NODES = ["--nodes", "3", "--lease", "2s"]


@pytest.fixture
def expected(jobs, program):
    """What the program prints on one node."""
    return lines(jobs.calm(3, *program("spawn"), *ARGUMENTS))


def nodes_of(result):
    """The node of each rank's last life."""
    return {event["rank"]: event["node"] for event in result.of("started")}


@pytest.mark.gate("pessimistic")
@pytest.mark.parametrize("protocol", ["none", "pessimistic"])
def test_new_ranks_run_where_slots_are_free(jobs, program, expected, protocol):
    result = jobs.run(3, *program("spawn"), *ARGUMENTS, options=["--nodes", "3"], protocol=protocol).ok()
    assert lines(result) == expected and not result.errors, result.describe()
    nodes = nodes_of(result)
    # Three that were launched, and the first ones that they have spawned.
    assert len(nodes) == 23 and [nodes[rank] for rank in range(5)] == ["0", "1", "2", "0", "1"], nodes
    assert set(nodes.values()) == {"0", "1", "2"}


def test_spare_nodes_stay_free(jobs, program, expected):
    result = jobs.run(3, *program("spawn"), *ARGUMENTS, options=["--nodes", "3", "--spares", "1"]).ok()
    assert lines(result) == expected
    assert set(nodes_of(result).values()) == {"0", "1"}


ON_HOST = """
import sys
from mpi4py import MPI
others = MPI.Comm.Get_parent()
if others != MPI.COMM_NULL:
    others.Disconnect()
    sys.exit()
info = MPI.Info.Create()
info["host"] = sys.argv[1]
try:
    MPI.COMM_SELF.Spawn(sys.executable, sys.argv, maxprocs=3, info=info).Disconnect()
except MPI.Exception as error:
    print("not spawned")
"""


def spawned_on(jobs, host, *options):
    file = jobs.directory / "on_host.py"
    file.write_text(ON_HOST)
    return jobs.run(1, harness.PYTHON, file, host, options=["--nodes", "3", "-ppn", "2", *options])


def test_new_ranks_run_where_the_program_says(jobs):
    nodes = nodes_of(spawned_on(jobs, "2").ok())
    assert nodes == {0: "0", 1: "2", 2: "2", 3: "2"}
    # Of two, each where more is free; a spare one, since it is named.
    assert nodes_of(spawned_on(jobs, "0, 1").ok()) == {0: "0", 1: "1", 2: "0", 3: "1"}
    assert nodes_of(spawned_on(jobs, "2", "--spares", "1").ok())[3] == "2"


def test_a_host_that_is_no_node_is_named(jobs):
    result = spawned_on(jobs, "elsewhere").ok()
    assert "not spawned" in result.text, result.describe()
    assert "the info key host names elsewhere, which is no node of the job now; there are 0, 1, 2" in result.errors


@pytest.mark.parametrize("protocol, images", [("auto", []), ("causal", every("50ms")), ("channel-memory", every("50ms"))])
def test_ranks_are_killed(jobs, program, expected, rng, kills, protocol, images):
    options = [*NODES, *MANY, *images]
    job = jobs.start(3, *program("spawn"), *ARGUMENTS, options=options, protocol=protocol)
    print("struck", storm(job, rng, kills or 5, 2))
    assert lines(job.wait(120).ok()) == expected


def test_a_parent_is_killed_while_its_spawn_is_carried_out(jobs, program):
    calm = jobs.calm(1, *program("spawn"), "2", "2", "3")
    for messages in (1, 3, 5, 8, 15):
        options = [*NODES, "--fault", f"rank=0,messages={messages}"]
        result = jobs.run(1, *program("spawn"), "2", "2", "3", options=options).ok()
        assert lines(result) == lines(calm)
        assert result.restarts == 1 and len(result.of("spawned")) == 2


# What a job needs to go on without a node.
TOLERANT = {
    "memories": ("channel-memory", []),
    "pessimistic": ("pessimistic", TOLERATE_NODE),
    "images": ("pessimistic", [*TOLERATE_NODE, *every("100ms")]),
    "causal": ("causal", TOLERATE_NODE),
    "no loggers": ("causal", [*TOLERATE_NODE, "--event-loggers", "0"]),
}


@pytest.mark.parametrize("how, moment", [
    (how, moment) if moment == "while" or how == "causal" else slow(how, moment)
    for how in TOLERANT for moment in ("before", "while", "after")
])
@pytest.mark.gate("memories-while", "causal-after")
def test_nodes_of_spawned_ranks_are_lost(jobs, program, rng, how, moment):
    """Nodes with parents, with children and with both. Each spawn is carried out once, whoever repeats it."""
    protocol, options = TOLERANT[how]
    command = [*program("spawn"), "6", "2", "100"]
    calm = jobs.calm(3, *command)
    job = jobs.start(3, *command, options=["--nodes", "3", "--lease", "4s", *MANY, *options], protocol=protocol)
    job.reach(lambda: len(job.lives()) >= 3)
    left = agents(job)
    if "--checkpoint-every" in options:
        # Its ranks' images are on two nodes: the next one may be the other.
        left = rng.sample(left, 2)
    if moment != "before":
        wanted = rng.randrange(1, 5)
        job.reach(lambda: sum(event["event"] == "spawned" for event in job.events) >= wanted)
    if moment == "after":
        time.sleep(rng.uniform(0, 0.3))
    while len(left) > 1 and job.process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(left.pop(rng.randrange(len(left))), rng.choice([signal.SIGKILL, signal.SIGSTOP]))
        time.sleep(rng.uniform(0, 1))
        if rng.random() < 0.5:
            job.kill_one(rng)
    result = job.wait(180).ok()
    assert lines(result) == lines(calm), result.describe()
    came_about(result.of("node_lost"), result)
    assert len(result.of("spawned")) == len(calm.of("spawned")), result.describe()


def test_logs_alone_do_not_outlive_a_node(jobs, program):
    job = jobs.start(3, *program("spawn"), "6", "2", "1000", options=NODES)
    job.reach_event("spawned")
    os.kill(agents(job)[2], signal.SIGKILL)
    result = job.wait(30)
    assert result.code == 1, result.describe()
    assert re.search("agent of node 2 .*what its ranks need to go on is lost", result.errors), result.describe()


@pytest.mark.parametrize("protocol", ["blocking", "hierarchical"])
def test_waves_have_no_place_for_new_ranks(jobs, program, protocol):
    result = jobs.run(2, *program("spawn"), *ARGUMENTS, options=["--nodes", "2"], protocol=protocol)
    assert result.code != 0 and f"cannot spawn others under --protocol {protocol}" in result.errors, result.describe()


ASK = """
import os, sys
from mpi4py import MPI
others = MPI.Comm.Get_parent()
if others != MPI.COMM_NULL:
    others.send(tuple(os.environ[name] for name in ("MPI_LOCALRANKID", "MPI_LOCALNRANKS")), dest=0)
    others.Disconnect()
elif MPI.COMM_WORLD.rank == 0:
    others = MPI.COMM_SELF.Spawn(sys.executable, sys.argv, 4)
    print(sorted(others.recv(source=rank) for rank in range(4)))
    others.Disconnect()
"""


def test_new_ranks_are_numbered_on_their_nodes(jobs):
    (file := jobs.directory / "ask.py").write_text(ASK)
    result = jobs.run(2, harness.PYTHON, file, options=["--nodes", "2"]).ok()
    assert result.text == "[('0', '2'), ('0', '2'), ('1', '2'), ('1', '2')]\n", result.describe()


IMAGES = {
    "memories": ("channel-memory", every("100ms")),
    "pessimistic": ("pessimistic", [*TOLERATE_NODE, *every("100ms")]),
    "causal": ("causal", [*TOLERATE_NODE, *every("100ms")]),
    "no loggers": ("causal", [*TOLERATE_NODE, "--event-loggers", "0", *every("100ms")]),
}


@pytest.mark.gate("causal")
@pytest.mark.parametrize("how", ["memories", "causal", *map(slow, ["pessimistic", "no loggers"])])
def test_nodes_are_drained_while_ranks_spawn_others(jobs, program, rng, how):
    """Two of four nodes leave, each at any moment, and a process is killed now and then."""
    protocol, options = IMAGES[how]
    command = [*program("spawn"), "12", "2", "100"]
    calm = jobs.calm(4, *command)
    nodes = ["--nodes", "4", "--lease", "4s", *MANY, *options]
    job = jobs.start(4, *command, options=nodes, protocol=protocol)
    job.reach(lambda: len(job.lives()) >= 4)
    left = []
    for node in rng.sample(["0", "1", "2", "3"], 2):
        time.sleep(rng.uniform(0, 1))
        if rng.random() < 0.5:
            job.kill_one(rng)
        told = jobs.resurgo("drain", str(job.process.pid), node, timeout=90)
        if told.code == 0:
            left.append(node)
        else:
            # The job was over, or its rank could not have an image.
            assert job.process.poll() is not None or "keeps its ranks" in told.errors, told.describe()
    result = job.wait(180).ok()
    assert lines(result) == lines(calm), result.describe()
    assert len(result.of("spawned")) == len(calm.of("spawned")), result.describe()
    assert {event["name"] for event in result.of("node_left")} >= set(left), result.describe()
    print("left", left)


@pytest.mark.slow
@pytest.mark.parametrize("loggers", [[], slow(["--event-loggers", "0"])])
def test_spawned_ranks_with_images_outlive_nodes_under_causal(jobs, program, rng, loggers):
    """Two of four nodes are lost, each when the images of all ranks are on two of those that are left."""
    command = [*program("spawn"), "12", "2", "200"]
    calm = jobs.calm(4, *command)
    options = ["--nodes", "4", "--lease", "2s", *MANY, *TOLERATE_NODE, *loggers, *every("50ms")]
    job = jobs.start(4, *command, options=options, protocol="causal")
    there = agents_when(job, 4)
    for victim in rng.sample(there, 2):
        begun = sum(event["event"] == "checkpointed" for event in job.events)
        wanted = begun + rng.randrange(4, 12)
        if not job.until(lambda wanted=wanted: sum(event["event"] == "checkpointed" for event in job.events) >= wanted):
            break
        if rng.random() < 0.5:
            job.kill_one(rng)
        job.hit(victim, rng.choice([signal.SIGKILL, signal.SIGSTOP]))
        if not job.until_another("node_lost", timeout=20):
            break
        time.sleep(rng.uniform(0.5, 1))
    result = job.wait(180).ok()
    assert lines(result) == lines(calm), result.describe()
    assert len(result.of("spawned")) == len(calm.of("spawned")), result.describe()


def agents_when(job, count):
    """All agents, once they are there."""
    job.reach(lambda: len(agents(job)) == count and job.lives())
    return agents(job)
