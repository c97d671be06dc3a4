# SPDX-License-Identifier: Apache-2.0
"""Images with several replicas (`--store peers:2`): so many nodes are lost at one moment, and what they had is made anew elsewhere."""

import os
import random
import signal
import time

import pytest

from catalogue import BY_NAME, arguments
from harness import came_about, slow
from on_nodes import agents, goes_on_from_images, images_of, last_lives, lose_a_rack, spread, waves
from places import damage
from settings import MANY, PROTOCOLS, TOLERANT, TOLERATE_NODE, WAVES, every
from survival import LONG, PROGRAMS, compare, undisturbed

RANKS = 5
HEAT = ("200", "200", "12000")
NODES = ["--nodes", str(RANKS), "-ppn", "1"]


def whole(job, protocol):
    """Waits until each rank has an image with all of its replicas: only then the next one is taken."""
    before = waves(job)
    if protocol in WAVES:
        return job.until(lambda: waves(job) >= before + 2)
    spread(job, 4)
    return True


def lose_together(jobs, program, rng, protocol, name, number):
    """Two of five nodes end at one moment, when images have two replicas; a third one later, when new ones have them."""
    entry, command = BY_NAME[name], program(name)
    expected = undisturbed(jobs, command, entry, 4)
    file = jobs.directory / f"result{number}"
    options = [*NODES, "--lease", "2s", "--store", "peers:2", *MANY, *every("100ms")]
    options += TOLERATE_NODE * (protocol in TOLERANT)
    job = jobs.start(4, *command, *arguments(entry, True, file), options=options, protocol=protocol)
    job.reach(lambda: len(job.lives()) == 4)
    left = agents(job)
    for together in (2, 1):
        whole(job, protocol)
        time.sleep(rng.uniform(0, 0.3))
        if job.over():
            break
        victims = rng.sample(left, together)
        left = [agent for agent in left if agent not in victims]
        for victim in victims:
            os.kill(victim, signal.SIGKILL)
    result = compare(entry, job.wait(120 + 20 * expected[0].seconds), file, expected)
    print(f"{name} {protocol}: lost {[one['node'] for one in result.of('node_lost')]}")
    return result


@pytest.mark.parametrize("protocol", [protocol if protocol in ("blocking", "pessimistic") else slow(protocol) for protocol in PROTOCOLS])
def test_two_nodes_are_lost_at_one_moment(jobs, program, rng, protocol):
    result = lose_together(jobs, program, rng, protocol, "heat", 0)
    came_about(len(result.of("node_lost")) >= 2, result)
    assert goes_on_from_images(result, protocol), result.describe()


def test_copies_keep_to_their_rate(jobs, program):
    """The kernel spaces their packets, so that the first copies take at least as long as that rate says."""
    rate = 4 << 20
    options = ["--nodes", "2", "-ppn", "1", "--store", f"peers:1;rate={rate}", *MANY, *every("50ms")]
    job = jobs.start(2, *program("heat"), "200", "200", "40000", options=options, protocol="blocking")
    for rank in (0, 1):
        job.reach_event("image_replicated", rank=rank)
    result = job.wait().ok()
    begun = min(event["time"] for event in result.of("wave_complete"))
    for rank in (0, 1):
        first = next(event for event in result.of("image_replicated") if event["rank"] == rank)
        written = next(event for event in result.of("image_written") if (event["rank"], event["image"]) == (rank, first["image"]))
        seconds = written["written_bytes"] / rate
        assert first["time"] - begun > seconds / 2 > 0.2, (first, written)


@pytest.mark.soak
@pytest.mark.parametrize("name", [entry.name for entry in PROGRAMS])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nodes_are_lost_together(jobs, program, rng, request, protocol, name):
    for number in range(request.config.option.rounds):
        result = lose_together(jobs, program, rng, protocol, name, number)
        assert protocol not in WAVES or all(one["wave"] > 0 for one in result.of("returned")), result.describe()


@pytest.mark.parametrize("protocol", ["auto", slow("blocking")])
def test_lost_replicas_are_made_anew(jobs, program, rng, protocol):
    """One node is lost, and every image is on three of the others again; so the loss of any two of these is survived."""
    options = [*NODES, "--lease", "2s", "--store", "peers:2", *every("1h")]
    job = jobs.start(RANKS, *program("crash"), *LONG, options=options, protocol=protocol)
    job.reach(lambda: len(job.lives()) == RANKS)
    held = lambda: [len(images_of(agent)) for agent in agents(job)]
    returns = lambda: sum(event["event"] == "returned" for event in job.events)
    newest = lambda: job.newest("wave_complete")["wave"]
    is_whole = lambda copies: len(job.of("image_replicated", image=newest())) >= RANKS * (copies - 1) and sum(held()) >= RANKS * copies
    for _ in range(2):
        job.reach(lambda: jobs.resurgo("checkpoint", str(job.process.pid)).code == 0)
    job.reach(lambda: is_whole(3), what="three copies of each image")
    for loss, (together, copies) in enumerate([(1, 3), (2, 2)]):
        before = newest()
        for victim in rng.sample(agents(job), together):
            os.kill(victim, signal.SIGKILL)
        # The loss is the occasion for another wave. Memory has that one, and may have the one before.
        job.reach(lambda: returns() > loss and newest() > before and is_whole(copies), what=f"{copies} copies of each image")  # noqa: B023
    assert any(event["event"] == "image_replicated" and event["anew"] for event in job.events)
    job.process.send_signal(signal.SIGINT)
    result = job.wait(20)
    assert [one["wave"] > 0 for one in result.of("returned")] == [True] * returns(), result.describe()
    assert len(last_lives(result)) == RANKS


def test_a_damaged_replica_is_named_and_another_one_is_read(jobs, levels, program):
    """Of the two other nodes with an image, the one that it is read from first has a damaged file."""
    calm = jobs.calm(2, *program("heat"), *HEAT)
    options = ["--spares", "2", "--store", "peers:2", *every("1h")]
    job = levels.start(2, *program("heat"), *HEAT, options=options, protocol="blocking")
    for _ in range(2):
        job.reach(lambda: jobs.resurgo("checkpoint", str(job.process.pid)).code == 0)
    wave = job.newest("wave_complete")["wave"]
    holders = lambda: sorted(one["node"] for one in job.of("image_replicated", rank=0, image=wave))
    job.reach(lambda: len(holders()) == 2)
    # The rank goes to the first spare node, and begins from its file there if it has one.
    first = 2 if 2 in holders() else holders()[0]
    (path,) = (levels.disks / f"{sorted(levels.hosts)[first]}.invalid").glob(f"*/rank-0.image-{wave}")
    damage(path)
    levels.lose("a")
    job.reach_event("returned")
    result = job.wait().ok()
    assert result.out == calm.out and levels.returned()[0] == wave, result.describe()
    lost = [one["reason"] for one in result.of("image_lost") if one["rank"] == 0]
    assert any("the checksum of its memory is wrong" in reason for reason in lost), result.describe()


def test_replicas_are_on_random_nodes_and_as_many_as_there_can_be(jobs, program):
    """With four other nodes each of them gets some; with one there is one, which is said."""
    options = ["--lease", "2s", *every("1h")]
    job = jobs.start(4, *program("crash"), *LONG, options=["--nodes", "2", "--store", "peers:2", *options], protocol="blocking")
    job.reach(lambda: jobs.resurgo("checkpoint", str(job.process.pid)).code == 0)
    job.reach(lambda: [len(images_of(agent)) for agent in agents(job)] == [4, 4])
    job.process.send_signal(signal.SIGINT)
    result = job.wait(20)
    told = "warning: each image is to be on 2 other nodes, and there is room on 1 only"
    assert result.errors.count(told) == 1, result.describe()
    job = jobs.start(RANKS, *program("crash"), *LONG, options=[*NODES, "--store", "peers:0", *options], protocol="blocking")
    job.reach(lambda: jobs.resurgo("checkpoint", str(job.process.pid)).code == 0)
    assert not any(images_of(agent) for agent in agents(job))
    os.kill(random.choice(agents(job)), signal.SIGKILL)
    job.reach(lambda: any(event["event"] == "returned" for event in job.events))
    job.process.send_signal(signal.SIGINT)
    assert job.wait(20).of("returned")[0]["wave"] == 0


@pytest.mark.parametrize("protocol", ["blocking", slow("auto"), slow("channel-memory")])
def test_a_rack_is_lost(jobs, program, rng, protocol):
    """The images of its nodes are in other racks."""
    lose_a_rack(jobs, program, rng, protocol, [], lambda job: whole(job, protocol))
