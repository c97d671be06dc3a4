# SPDX-License-Identifier: Apache-2.0
"""Images with parity (`--store parity:N+M`): any M nodes are lost at one moment, and what they had is made anew from the others."""

import contextlib
import dataclasses
import os
import shutil
import signal
import time

import pytest

from catalogue import BY_NAME, arguments
from chains import interrupt, reach_recorded
from harness import came_about, slow
from on_nodes import agents, ask, images_of, last_lives, lose_a_rack, waves
from places import damage
from settings import EVERY, MANY, TOGETHER, WAVES, every
from survival import LONG, PROGRAMS, compare, undisturbed

HEAT = ("200", "200", "12000")
LOSSES = ["--lease", "10s", *MANY]


def pieces_of(agent):
    """The pieces in the memory of an agent, with their lengths, by the inodes of their files."""
    found = {}
    for name in os.listdir(f"/proc/{agent}/fd"):
        with contextlib.suppress(FileNotFoundError):
            if "memfd:resurgo-piece" in os.readlink(f"/proc/{agent}/fd/{name}"):
                about = os.stat(f"/proc/{agent}/fd/{name}")
                found[about.st_ino] = about.st_size
    return found


def count(job, event):
    return sum(one["event"] == event for one in job.events)


def begin(jobs, program, name, ranks, nodes, parity, protocol, number=0, options=(), steps="4000"):
    """A job with waves all the time, what is left of it, and how it is compared with one that nothing happens to."""
    entry, command = BY_NAME[name], program(name)
    if name == "heat":
        entry = dataclasses.replace(entry, longer=("400", "400", steps, "{file}"))
    expected = undisturbed(jobs, command, entry, ranks)
    file = jobs.directory / f"result{number}"
    options = ["--nodes", str(nodes), "-ppn", "1", "--store", f"parity:{parity}", *LOSSES, *every("100ms"), *options]
    job = jobs.start(ranks, *command, *arguments(entry, True, file), options=options, protocol=protocol)
    job.reach(lambda: len(job.lives()) == ranks)

    def end():
        result = compare(entry, job.wait(120 + 20 * expected[0].seconds), file, expected)
        print(f"{name} {protocol}: lost {[one['node'] for one in result.of('node_lost')]}, to {[one['wave'] for one in result.of('returned')]}")
        return result

    return job, end


def kill(job, rng, together=1, gone=None):
    """Ends so many nodes at one moment."""
    left = [agent for agent in agents(job) if gone is None or agent not in gone]
    victims = rng.sample(left, min(together, len(left)))
    if gone is not None:
        gone += victims
    # All stand still before the first is missed.
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for victim in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, number)


def lose_one_after_the_other(jobs, program, rng, protocol, name, number):
    """Any node of three, and any of the two that are left, when sets are made of these."""
    job, end = begin(jobs, program, name, 4, 3, "2+1", protocol, number)
    for loss in range(2):
        before = waves(job)
        job.reach(lambda: waves(job) >= before + 2)  # noqa: B023
        time.sleep(rng.uniform(0, 0.3))
        if job.over():
            break
        kill(job, rng)
        job.reach(lambda: count(job, "returned") > loss)  # noqa: B023
    return end()


@pytest.mark.parametrize("protocol", ["auto", *map(slow, TOGETHER)])
def test_any_node_of_three_is_lost(jobs, program, rng, protocol):
    result = lose_one_after_the_other(jobs, program, rng, protocol, "heat", 0)
    assert result.of("node_lost") and all(one["wave"] > 0 for one in result.of("returned")), result.describe()
    came_about(result.of("image_rebuilt"), result)


def lose_together(jobs, program, rng, protocol, name, number):
    """Two of five nodes end at one moment; a third one later, when new waves are whole."""
    job, end = begin(jobs, program, name, 4, 5, "3+2", protocol, number, options=["--spares", "1"])
    gone = []
    for loss, together in enumerate((2, 1)):
        before = waves(job)
        job.reach(lambda: waves(job) >= before + 2)  # noqa: B023
        time.sleep(rng.uniform(0, 0.3))
        if job.over():
            break
        kill(job, rng, together, gone)
        job.reach(lambda: count(job, "returned") > loss)  # noqa: B023
    return end()


@pytest.mark.parametrize("protocol", [slow("blocking"), "chandy-lamport", slow("auto"), slow("group")])
def test_two_nodes_are_lost_at_one_moment(jobs, program, rng, protocol):
    result = lose_together(jobs, program, rng, protocol, "heat", 0)
    came_about(len(result.of("node_lost")) >= 2, result)
    assert all(one["wave"] > 0 for one in result.of("returned")) and result.of("image_rebuilt"), result.describe()


def lose_at_any_moment(jobs, program, rng, protocol, name, number):
    """Nodes at moments of which many are between the parts of a set, or while images are made anew. Sometimes that is too many."""
    job, end = begin(jobs, program, name, 4, 5, "3+2", protocol, number, options=["--spares", "1"])
    gone = []
    while not job.over() and len(gone) < 4:
        event = rng.choice(["set_encoded", "checkpointed", "wave_complete", "node_lost", "image_rebuilt", "image_replicated"])
        before = count(job, event)
        patience = time.monotonic() + 3
        while not job.over() and count(job, event) == before and time.monotonic() < patience:
            time.sleep(0.002)
        time.sleep(rng.choice([0, rng.uniform(0, 0.05), rng.uniform(0, 0.5)]))
        kill(job, rng, min(rng.choice([1, 1, 2]), 4 - len(gone)), gone)
    return end()


@pytest.mark.parametrize("protocol", ["blocking", *map(slow, WAVES[:1] + WAVES[2:])])
def test_nodes_are_lost_while_pieces_and_images_are_made(jobs, program, rng, protocol):
    lose_at_any_moment(jobs, program, rng, protocol, "heat", 0)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", WAVES)
def test_a_second_node_is_lost_while_images_are_made_anew(jobs, program, rng, protocol):
    job, end = begin(jobs, program, "heat", 5, 5, "3+2", protocol, steps="12000")
    gone = []
    job.reach(lambda: waves(job) >= 3)
    kill(job, rng, 1, gone)
    job.reach(lambda: count(job, "node_lost") == 1)
    time.sleep(rng.uniform(0, 0.2))
    kill(job, rng, 1, gone)
    result = end()
    assert all(one["wave"] > 0 for one in result.of("returned")), result.describe()


@pytest.mark.parametrize("protocol", [slow("blocking"), "auto"])
def test_more_are_lost_than_there_are_pieces(jobs, program, rng, protocol):
    """Nothing is left of the waves but the beginning, and the result is right."""
    job, end = begin(jobs, program, "heat", 3, 3, "2+1", protocol)
    job.reach(lambda: waves(job) >= 3)
    kill(job, rng, 2)
    result = end()
    assert len(result.of("node_lost")) == 2 and result.of("returned")[-1]["wave"] == 0, result.describe()


@pytest.mark.slow
@pytest.mark.parametrize("protocol", WAVES)
def test_more_are_lost_and_a_place_has_the_wave(jobs, levels, program, rng, protocol):
    calm = jobs.calm(4, *program("heat"), *HEAT)
    job = levels.start(4, *program("heat"), *HEAT, options=["--store", "parity:3+1"], protocol=protocol)
    levels.reach_stored(rng.randint(1, 3))
    time.sleep(rng.uniform(0, 0.3))
    least = levels.stored()[-1]
    levels.lose(*rng.sample(sorted(levels.hosts), 2))
    job.reach_event("returned")
    result = job.wait().ok()
    assert result.out == calm.out, result.describe()
    assert levels.returned()[0] >= least - 2 and levels.returned()[0] > 0, result.describe()


@pytest.mark.parametrize("protocol", [slow("blocking"), slow("auto"), slow("chandy-lamport")])
def test_a_node_and_the_launcher_are_lost(jobs, chain, program, own_disks, protocol):
    """With all processes, and one of three disks. The job goes on from what the others have."""
    launcher, place, disks = own_disks
    chain.images = place
    calm = jobs.calm(3, *program("heat"), *HEAT)
    options = ["-hosts", "a.invalid,b.invalid,c.invalid", *launcher, "--store", "parity:2+1", *EVERY]
    job = chain.start(3, *program("heat"), *HEAT, options=options, protocol=protocol)
    reach_recorded(job, 2)
    assert interrupt(job, "everything")
    shutil.rmtree(disks / "b.invalid")
    chain.resume(options=["-hosts", "c.invalid:1,d.invalid:1,a.invalid:1", *launcher])
    result = chain.last.wait().ok()
    assert result.of("image_rebuilt") and 0 not in {event["image"] for event in result.of("started")}, result.describe()
    assert chain.out == calm.out


def two_waves(jobs, job):
    job.opens_mpi()
    for _ in range(2):
        job.reach(lambda: jobs.resurgo("checkpoint", str(job.process.pid)).code == 0)


def test_pieces_are_small_and_nothing_else_stays(jobs, program, rng):
    """Six images on three nodes with 2+1: three pieces, half of the memory of the images. After a loss there are two nodes."""
    options = ["--nodes", "3", "-ppn", "2", "--lease", "10s", "--store", "parity:2+1", "--stats", *every("1h")]
    job = jobs.start(6, *program("crash"), *LONG, options=options, protocol="blocking")
    two_waves(jobs, job)
    held = lambda: [(len(images_of(agent)), len(pieces_of(agent))) for agent in agents(job)]  # noqa: E731
    job.reach(lambda: held() == [(4, 2)] * 3, 20)
    images = [one["bytes"] for one in job.events if one["event"] == "image_written"]
    pieces = [size for agent in agents(job) for size in pieces_of(agent).values()]
    assert len(images) == 12 and 0.5 <= sum(pieces) / sum(images) < 0.6, (images, pieces)
    made = [one for one in job.events if one["event"] == "set_encoded"]
    assert len(made) == 6 and sum(one["bytes"] for one in made) == sum(pieces)
    assert sorted(rank for one in made for rank in one["ranks"]) == sorted([*range(6)] * 2)
    os.kill(rng.choice(agents(job)), signal.SIGKILL)
    job.reach(lambda: count(job, "returned") == 1)
    job.reach(lambda: len(held()) == 2 and sum(pieces for _, pieces in held()) >= 6, 20)
    job.process.send_signal(signal.SIGINT)
    result = job.wait(20)
    assert result.of("returned")[0]["wave"] > 0 and len(last_lives(result)) == 6, result.describe()
    assert "; held at most " in result.errors


def test_a_damaged_piece_is_named_and_another_one_is_used(jobs, levels, program, rng):
    calm = jobs.calm(2, *program("heat"), *HEAT)
    job = levels.start(2, *program("heat"), *HEAT, options=["--spares", "2", "--store", "parity:2+2", *every("1h")], protocol="blocking")
    two_waves(jobs, job)
    job.reach(lambda: count(job, "set_encoded") >= 2)
    (newest,) = [one for one in job.events if one["event"] == "set_encoded"][-1:]
    hosts = sorted(levels.hosts)
    (path,) = (levels.disks / f"{hosts[newest['nodes'][0]]}.invalid").glob(f"*/set-{newest['set']}.*")
    damage(path)
    levels.lose(hosts[rng.randrange(2)])
    job.reach_event("returned")
    result = job.wait().ok()
    assert result.out == calm.out and levels.returned()[0] == newest["wave"], result.describe()
    (lost,) = result.of("piece_lost")
    assert lost["node"] == newest["nodes"][0] and "its bytes are damaged" in lost["reason"], result.describe()
    assert f"node {lost['node']} has lost a piece of parity" in result.errors


@pytest.mark.slow
def test_a_holder_without_room_is_told_and_another_one_is_found(jobs, levels, program, rng):
    """Without ranks it would have all pieces, and its disk is full. It is lost, and then any other one."""
    room = levels.images
    (levels.disks / "d.invalid.mount").write_text(f"mount -t tmpfs -o mode=700,size=300k none {room}")
    calm = jobs.calm(3, *program("heat"), *HEAT)
    options = ["--spares", "1", "--store", "parity:3+1", *every("100ms")]
    job = levels.start(3, *program("heat"), *HEAT, options=options, protocol="blocking")
    # The set of the last wave may still be made.
    job.reach(lambda: waves(job) >= 3 and count(job, "set_encoded") >= 3 and job.of("few_replicas"))
    full = [one for one in job.events if one["event"] == "few_replicas" and "No space left on device" in one["reason"]]
    assert full, job.result(0).describe()
    assert all(3 not in one["nodes"] for one in job.events if one["event"] == "set_encoded")
    levels.lose("d")
    before = waves(job)
    job.reach(lambda: waves(job) >= before + 2)
    levels.lose(rng.choice("abc"))
    job.reach_event("returned")
    result = job.wait().ok()
    assert result.out == calm.out and levels.returned()[0] >= before, result.describe()


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["blocking", slow("auto")])
def test_a_rack_is_lost(jobs, program, rng, protocol):
    result = lose_a_rack(jobs, program, rng, protocol, ["--store", "parity:4+2"], lambda job: job.reach(lambda: waves(job) >= 2))
    assert "warning" not in result.errors.partition("node")[0], result.describe()


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["blocking", slow("auto")])
def test_a_node_is_drained_and_others_have_its_images(jobs, program, rng, protocol):
    """Its ranks go on elsewhere, and another node may be lost then."""
    job, end = begin(jobs, program, "heat", 3, 4, "2+1", protocol, options=["--spares", "1"])
    job.reach(lambda: waves(job) >= 2)
    ask(jobs, "drain", job, "1").ok()
    before = waves(job)
    job.reach(lambda: waves(job) >= before + 2)
    kill(job, rng)
    result = end()
    assert result.of("node_left") and all(one["wave"] > 0 for one in result.of("returned")), result.describe()


def test_it_is_refused_where_it_is_of_no_use(jobs, program):
    options = ["--nodes", "2", "--store", "parity:2+1", "--protocol", "blocking", "--checkpoint-dir", jobs.directory / "images"]
    (jobs.directory / "images").mkdir()
    told = jobs.resurgo("run", *options, *program("hello"))
    assert told.code == 1 and told.errors.count("\n") == 1, told.describe()
    assert "all nodes see one directory" in told.errors
    assert not list((jobs.directory / "images").iterdir())
    told = jobs.resurgo("run", "--nodes", "2", "--store", "parity:8+2", "--protocol", "blocking", *program("hello"))
    assert told.code == 0 and "parity:8+2 is for 10 nodes, and there are 2: any 1 of them" in told.errors, told.describe()


@pytest.mark.soak
@pytest.mark.parametrize("name", [entry.name for entry in PROGRAMS])
@pytest.mark.parametrize("protocol", WAVES)
@pytest.mark.parametrize("how", [lose_one_after_the_other, lose_together, lose_at_any_moment])
def test_nodes_are_lost_again_and_again(jobs, program, rng, request, how, protocol, name):
    for number in range(request.config.option.rounds):
        result = how(jobs, program, rng, protocol, name, number)
        assert how is lose_at_any_moment or all(one["wave"] > 0 for one in result.of("returned")), result.describe()
