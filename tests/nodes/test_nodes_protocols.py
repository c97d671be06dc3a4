# SPDX-License-Identifier: Apache-2.0
"""Each protocol on several nodes: programs of the catalogue print the same while ranks and nodes are killed."""

import os
import signal

import pytest

import harness
from catalogue import BY_NAME
from harness import by_rank, slow
from on_nodes import BURSTS, agents, last_lives, lose, on_three, strike
from settings import MANY, PROTOCOLS, every
from survival import LONG, PROGRAMS, agent_of, survive, undisturbed


@pytest.mark.gate("heat-group", "heat-hierarchical")
@pytest.mark.parametrize("name, protocol", [
    ("master_worker", "channel-memory"), ("heat", "group"), ("master_worker", "pessimistic"), ("master_worker", "causal"), ("heat", "hierarchical"),
])
def test_ranks_and_nodes_are_killed(jobs, program, rng, kills, name, protocol):
    lose(jobs, program, rng, kills, name, protocol, 3, every("200ms"))


@pytest.mark.parametrize("protocol", ["chandy-lamport", *map(slow, ["group", "blocking", "channel-memory"])])
def test_what_is_on_its_way_between_nodes_is_in_the_image(jobs, rng, kills, protocol):
    command = [harness.PYTHON, "-c", BURSTS, "150"]
    expected = jobs.calm(4, *command)
    options = ["--nodes", "3", "--lease", "2s", *MANY, *every("100ms")]
    job = jobs.start(4, *command, options=options, protocol=protocol)
    job.reach_event("checkpointed" if protocol == "channel-memory" else "wave_complete")
    strike(job, rng, kills or 5, 4, protocol == "channel-memory")
    result = job.wait(120).ok()
    assert sorted(result.text.splitlines()) == sorted(expected.text.splitlines())


@pytest.mark.parametrize("name, protocol", [("cg", "hierarchical"), slow("cg", "causal"), slow("cg", "chandy-lamport")])
def test_ranks_are_killed(jobs, program, rng, kills, name, protocol):
    entry, command = BY_NAME[name], program(name)
    expected = undisturbed(jobs, command, entry, 4)
    options = ["--nodes", "2", *every("100ms")]
    survive(jobs, rng, command, entry, 4, kills or 3, expected, options, protocol=protocol)


def test_the_ranks_of_each_node_are_a_group(jobs, program):
    job = jobs.start(4, *program("crash"), *LONG, options=["--nodes", "2", *every("100ms")], protocol="hierarchical")
    for ranks in ([0, 1], [2, 3]):
        job.reach_event("wave_complete", ranks=ranks)
    job.kill([3])
    job.reach_event("returned", ranks=[2, 3])
    job.process.terminate()
    job.wait(20)


def test_only_the_ranks_of_a_lost_node_begin_again(jobs, program, rng):
    job, result_after = on_three(jobs, program, "channel-memory")
    # A second image is taken when the first, whatever its number, is on two nodes.
    taken = lambda: [event["rank"] for event in job.events if event["event"] == "checkpointed"]
    job.reach(lambda: all(taken().count(rank) >= 2 for rank in range(4)))
    before = job.lives()
    os.kill(rng.choice(agents(job)), signal.SIGKILL)
    result = result_after(60)
    (lost,) = result.of("node_lost")
    there = {event["rank"] for event in result.of("started") if event["life"] == 1 and event["node"] == str(lost["node"])}
    after = {rank for rank, (_, life) in last_lives(result).items() if life > before[rank][1]}
    assert after == there and not result.of("returned"), result.describe()
    assert all(event["image"] > 0 for event in result.of("started") if event["life"] > 1), result.describe()


@pytest.mark.slow
def test_a_node_is_lost_together_with_the_one_that_has_its_images(jobs, program):
    """Channel memories have forgotten what came before these images: all ranks begin again, on the spare node."""
    command = [*program("crash"), "99", "kill", "0", "always", "100000"]
    calm = jobs.calm(4, *command)
    options = ["--nodes", "3", "-ppn", "2", "--spares", "1", "--lease", "2s", *MANY, *every("1h")]
    job = jobs.start(4, *command, options=options, protocol="channel-memory")
    job.says(b"iteration 50 ")
    nodes = {event["node"] for event in job.of("started")}

    def only_there(rank):
        """The other nodes that have the last two images of the rank are among those that will be lost."""
        others = {}
        for event in job.of("image_replicated"):
            if event["rank"] == rank:
                others.setdefault(event["image"], set()).add(str(event["node"]))
        last = sorted(others)[-2:]
        return len(last) == 2 and all(others[image] <= nodes for image in last)

    def has_more():
        return jobs.resurgo("checkpoint", str(job.process.pid)).code == 0 and any(map(only_there, range(4)))

    job.reach(has_more, what="images that the spare node has not")
    for agent in {int(agent_of(job, rank)) for rank in range(4)}:
        os.kill(agent, signal.SIGKILL)
    job.reach_event("returned", wave=0)
    result = job.wait(120).ok()
    assert by_rank(result.out) == by_rank(calm.out), result.describe()
    assert len(result.of("returned")) == 1, result.describe()


@pytest.mark.parametrize("images", [[], every("200ms")], ids=["begin", "images"])
@pytest.mark.parametrize("nodes", [2, 3])
@pytest.mark.parametrize("protocol", [*map(slow, PROTOCOLS)])
@pytest.mark.parametrize("name", [entry.name for entry in PROGRAMS])
def test_the_catalogue(jobs, program, rng, kills, name, protocol, nodes, images):
    lose(jobs, program, rng, kills, name, protocol, nodes, images)
