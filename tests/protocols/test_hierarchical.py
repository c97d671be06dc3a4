# SPDX-License-Identifier: Apache-2.0
"""Waves inside groups of ranks and logs between them (`--protocol hierarchical`). A failed rank's group returns to its
last wave and repeats what it did; the other groups go on."""

import signal
import time

import pytest

import harness
from catalogue import arguments
from harness import by_rank, came_about, storm
from settings import MANY, every
from survival import PROGRAMS, kill_snapshots, measured, of_catalogue, soak, survive, undisturbed

PAIRS = ["--group-size", "2"]


def start(jobs, size, *command, options=(), **more):
    return jobs.start(size, *command, options=[*MANY, *options], protocol="hierarchical", **more)


def group_of(rank, size=2):
    return rank // size


def check_who_returned(result, size=2):
    """Checks that groups without a failed rank were left alone, and that groups which returned did so as one."""
    failed = {group_of(event["rank"], size) for event in result.of("failed")}
    again = {group_of(event["rank"], size) for event in result.of("started") if event["life"] > 1}
    assert again <= failed, result.describe()
    for event in result.of("returned"):
        assert len({group_of(rank, size) for rank in event["ranks"]}) == 1, result.describe()
    return failed


@pytest.mark.gate("master_worker")
@pytest.mark.parametrize("name", ["cg", "master_worker"])
def test_groups_return_alone(jobs, program, rng, kills, name):
    entry, command = of_catalogue(program, name)
    expected = undisturbed(jobs, command, entry, 4)
    options = [*every(rng.choice(["20ms", "50ms", "200ms"])), *PAIRS]
    result = survive(jobs, rng, command, entry, 4, kills or 4, expected, options, protocol="hierarchical")
    check_who_returned(result)


def test_other_groups_are_not_restarted(jobs, program):
    """Ranks of one group are killed, one and both, before there is a wave and after."""
    command = program("crash") + ["99", "kill", "0", "never", "30000"]
    calm = jobs.run(6, *command).ok()
    job = start(jobs, 6, *command, options=PAIRS)
    job.says(b"rank 3 iteration 100 ")
    job.kill([3])
    job.reach_event("returned", ranks=[2, 3], wave=0)
    job.reach_event("caught_up", rank=2)
    job.reach_event("caught_up", rank=3)
    job.process.send_signal(signal.SIGUSR1)
    for ranks in ([0, 1], [2, 3], [4, 5]):
        job.reach_event("wave_complete", ranks=ranks)
    for victims in ([2], [2, 3], [3]):
        job.reach(lambda: {2, 3} <= job.lives().keys(), what="both ranks of the group")
        job.strike(victims)
        job.reach_another("returned")
    result = job.wait().ok()
    assert by_rank(result.out) == by_rank(calm.out)
    assert check_who_returned(result) == {1}
    came_about(any(event["wave"] > 0 for event in result.of("returned")), result)


def test_several_groups_and_again_in_the_replay(jobs, program, rng):
    entry, command = of_catalogue(program, "cg")
    calm, _ = undisturbed(jobs, command, entry, 6)
    job = start(jobs, 6, *command, *arguments(entry, True, None), options=[*every("30ms"), *PAIRS])
    for victims in ([0, 2], [1, 4, 5], [0, 1, 2, 3, 4, 5], [3], [2, 5]):
        time.sleep(rng.uniform(0.02, 0.15))
        if not job.kill(victims):
            break
        time.sleep(rng.uniform(0, 0.05))
        job.kill([rng.choice(victims)])
    result = job.wait().ok()
    assert by_rank(result.out) == by_rank(calm.out)
    check_who_returned(result)


@pytest.mark.gate("one group")
@pytest.mark.parametrize("how", ["groups of one", "one group", "a file"])
def test_sizes_of_groups(jobs, program, rng, how):
    """Groups of single ranks recover as under pessimistic logging. One group of all ranks keeps nothing for others."""
    entry, command = of_catalogue(program, "cg")
    expected = undisturbed(jobs, command, entry, 4)
    file = jobs.directory / "groups"
    file.write_text("0 3\n1 2\n")
    options = {"groups of one": ["--group-size", "1"], "one group": ["--group-size", "4"], "a file": ["--groups", file]}
    result = survive(jobs, rng, command, entry, 4, 3, expected, [*every("40ms"), *options[how]], protocol="hierarchical")
    if how == "a file":
        assert all(wave["ranks"] in ([0, 3], [1, 2]) for wave in result.of("wave_complete")), result.describe()
    else:
        check_who_returned(result, 1 if how == "groups of one" else 4)


def test_images_in_files(jobs, program, rng):
    """Ranks are killed together with their sleeping images: their groups go on from files."""
    command = program("heat") + ["400", "400", "4000"]
    calm = jobs.run(4, *command).ok()
    options = [*every("100ms"), *PAIRS, "--checkpoint-dir", jobs.directory / "images"]
    job = start(jobs, 4, *command, options=options)
    for victims in ([0], [1, 2, 3]):
        written = len([event for event in job.events if event["event"] == "image_written"])
        if not job.until(lambda: len([e for e in job.events if e["event"] == "image_written"]) >= written + 8):
            break
        kill_snapshots(job)
        job.kill(victims)
        time.sleep(rng.uniform(0, 0.1))
    result = job.wait().ok()
    assert result.out == calm.out
    came_about(any(event["from_file"] for event in result.of("started")), result)


def test_output_exactly_once(jobs, program, rng, kills):
    command = program("output") + ["400", "1000"]
    calm = jobs.run(4, *command).ok()
    job = start(jobs, 4, *command, options=[*every("50ms"), *PAIRS])
    storm(job, rng, kills or 4, calm.seconds)
    result = job.wait().ok()
    assert by_rank(result.out) == by_rank(calm.out)
    assert by_rank(result.program_errors) == by_rank(calm.program_errors)


def test_a_program_that_does_not_repeat_ends_the_job(jobs, program):
    """What it sends to another group differs."""
    marker = jobs.directory / "marker"
    command = program("nondeterministic") + ["random", "1", "3000", marker, "20000"]
    result = start(jobs, 4, *command, options=["--group-size", "1"]).wait()
    assert result.code == 119 and "not piecewise deterministic" in result.errors, result.describe()


# Pairs of ranks talk all the time, and all ranks now and then.
PAIRS_TALK = """
from mpi4py import MPI
world, data = MPI.COMM_WORLD, bytearray(20000)
pair = world.Split(world.rank // 2, world.rank)
for number in range(1000):
    pair.Sendrecv_replace(data, 1 - pair.rank, source=1 - pair.rank)
    if number % 100 == 0:
        world.allreduce(number)
"""


def test_what_differs_inside_a_group_ends_the_job(jobs, program):
    """No log exists that it could be compared with."""
    marker = jobs.directory / "marker"
    command = program("nondeterministic") + ["destination", "1", "3000", marker, "20000"]
    result = start(jobs, 4, *command, options=["--group-size", "4"]).wait()
    assert result.code == 119 and "not piecewise deterministic" in result.errors, result.describe()


def test_a_sleeping_image_is_lost(jobs, program):
    """No image is in a file: a failure in its group takes all groups to the beginning, as others have forgotten what
    they sent it. A failure in another group does not."""
    command = program("crash") + ["99", "kill", "0", "always", "60000"]
    calm = jobs.calm(4, *command)
    job = start(jobs, 4, *command, options=PAIRS)
    job.says(b"iteration 50 ")
    job.process.send_signal(signal.SIGUSR1)
    for ranks in ([0, 1], [2, 3]):
        job.reach_event("wave_complete", ranks=ranks)
    job.strike([1], signal.SIGSTOP)  # the next wave of its group begins at once, and would bring another image
    assert kill_snapshots(job, 0) == 1
    job.reach_event("image_lost")
    job.kill([2])
    job.reach_another("returned", ranks=[2, 3])
    assert job.newest("returned")["wave"] > 0
    job.kill([0])
    for ranks in ([0, 1], [2, 3]):
        job.reach_event("returned", ranks=ranks, wave=0)
    result = job.wait().ok()
    assert by_rank(result.out) == by_rank(calm.out), result.describe()


@pytest.mark.slow
def test_all_images_are_lost_again_and_again(jobs, program):
    """Sleeping images and a rank are killed at once: its group, or all groups, begin again where a wave is missing."""
    command = program("crash") + ["99", "kill", "0", "always", "100000"]
    calm = jobs.calm(4, *command)
    job = start(jobs, 4, *command, options=PAIRS)

    def wave_of_both():
        before = len(job.events)
        job.process.send_signal(signal.SIGUSR1)
        later = lambda: [event.get("ranks") for event in job.events[before:] if event["event"] == "wave_complete"]
        job.reach(lambda: all(ranks in later() for ranks in ([0, 1], [2, 3])), what="a wave of both groups")

    job.says(b"iteration 50 ")
    for victims in ([0], [0, 1, 2, 3]):
        wave_of_both()
        kill_snapshots(job)
        job.kill(victims)
    result = job.wait().ok()
    assert by_rank(result.out) == by_rank(calm.out), result.describe()


def test_logs_hold_what_other_groups_may_ask_for(jobs):
    def logged(protocol, options):
        command = [harness.PYTHON, "-c", PAIRS_TALK]
        _, stats = measured(jobs, 4, *command, options=options, name=protocol, protocol=protocol)
        return stats["total"]["log_bytes"]

    everything, between = logged("pessimistic", []), logged("hierarchical", PAIRS)
    assert everything > 50_000_000
    assert between < everything / 10


@pytest.mark.soak
@pytest.mark.parametrize("period", ["50ms", "1s"])
@pytest.mark.parametrize("size", [2, 4, 8, 16])
@pytest.mark.parametrize("entry", PROGRAMS, ids=str)
def test_soak(jobs, program, rng, kills, request, entry, size, period):
    if entry.name == "spawn":
        pytest.skip("ranks cannot spawn others")
    options = [*every(period), "--group-size", str(rng.choice([1, 2, min(3, size), size]))]
    soak(jobs, program, rng, request, entry, size, kills or 6, options, protocol="hierarchical")
