# SPDX-License-Identifier: Apache-2.0
"""Waves of groups (`--protocol group`): how groups are formed, what is deferred between them, and in which order they
write their images. Tests for all kinds of waves are in test_waves.py."""

import os
import signal

import pytest

import harness
from harness import by_rank, came_about, in_time, storm
from settings import MANY, every
from survival import began_from_images, measured, of_catalogue, survive, undisturbed


@pytest.fixture
def protocol():
    return "group"


def groups(*words):
    return ["--groups", *map(str, words)]


def by_size(size):
    return groups("static", "--group-size", size)


def python(text):
    return [harness.PYTHON, "-c", text]


# Ranks of equal parity talk; or, with an argument, all ranks do.
TALK = """
import sys, time
from mpi4py import MPI
world = MPI.COMM_WORLD
some = world if len(sys.argv) > 1 else world.Split(world.rank % 2, world.rank)
end, count = time.monotonic() + 60, 0
while time.monotonic() < end:
    some.allreduce(1)
    count += 1
    if count == 1000:
        print("talks", flush=True)
"""


@pytest.mark.parametrize(
    "how, talk, expected, is_global",
    [
        ([], [], [[0, 2, 4], [1, 3, 5]], False),
        (["--group-size", "4"], ["all"], [[0, 1, 2, 3], [4, 5]], True),
        pytest.param([], ["all"], [[0, 1, 2], [3, 4, 5]], True, marks=pytest.mark.soak),
        pytest.param(by_size(4), [], [[0, 1, 2, 3], [4, 5]], False, marks=pytest.mark.soak),
    ],
    ids=["by communication", "it is global", "and no size is given", "by size"],
)
def test_formation(jobs, how, talk, expected, is_global):
    job = jobs.start(6, *python(TALK), *talk, protocol="group", options=how)
    job.reach(lambda: job.out.read_bytes().count(b"talks") == 6)
    job.process.send_signal(signal.SIGUSR1)
    job.reach_event("wave_complete")
    job.process.terminate()
    (wave,) = job.wait(10).of("wave_complete")
    assert (wave["groups"], wave["communication_is_global"]) == (expected, is_global)


def test_a_file_says_who_is_together_and_in_which_order(jobs, program, rng):
    file = jobs.directory / "groups"
    file.write_text("# by hand\n2-3\n0, 1\n")
    command = [*program("heat"), "256", "2000"]
    calm = jobs.calm(4, *command)
    job = jobs.start(4, *command, protocol="group", options=[*MANY, *every("30ms"), *groups(file)])
    storm(job, rng, 3, max(0.3, calm.seconds))
    result = job.wait().ok()
    assert by_rank(result.out) == by_rank(calm.out)
    assert all(wave["groups"] == [[2, 3], [0, 1]] for wave in result.of("wave_complete")), result.describe()


@pytest.mark.parametrize(
    "text, said",
    [
        ("0 1\n2 4\n", ", line 2: there is no rank 4: the job has ranks 0 to 3"),
        ("0 1\n1 2 3\n", ", line 2: rank 1 is in line 1 already"),
        ("0 1\n2\n", ": rank 3 is in no group: add a line `3`"),
        ("0 1\n\ntwo 3\n", ", line 3: `two` is no rank"),
        (None, "cannot read the file"),
    ],
)
def test_a_file_that_cannot_be_used(jobs, program, text, said):
    file = jobs.directory / "groups"
    if text is not None:
        file.write_text(text)
    result = jobs.run(4, *program("hello"), protocol="group", options=groups(file))
    assert result.code == 2 and f"--groups {file}" in result.errors and said in result.errors, result.describe()


@pytest.mark.parametrize("kind, said", [("device", "it is a device"), ("pipe", "rank 0 (and others) is in no group"), ("directory", "it is a directory")])
def test_what_is_no_file_is_not_read_for_ever(jobs, program, kind, said):
    file = jobs.directory / "groups"
    if kind == "device":
        file.symlink_to("/dev/zero")
    elif kind == "pipe":  # without a writer
        os.mkfifo(file)
    else:
        file.mkdir()
    result = jobs.run(4, *program("hello"), protocol="group", options=groups(file), timeout=20)
    assert result.code == 2 and said in result.errors, result.describe()


@pytest.mark.gate("master_worker-3")
@pytest.mark.parametrize("name, size", [("comm_churn", 1), ("master_worker", 3), ("rma_halo", 1)])
def test_random_kills_with_many_turns(jobs, program, rng, kills, name, size):
    entry, command = of_catalogue(program, name)
    expected = undisturbed(jobs, command, entry, 4)
    survive(jobs, rng, command, entry, 4, kills or 4, expected, [*every("20ms"), *by_size(size)], protocol="group")


# Rank 0 computes, and sends a message now and then; rank 1 takes the time.
RARELY = """
import sys, time
from mpi4py import MPI
world, bytes = MPI.COMM_WORLD, int(sys.argv[1])
late = 0.0
for number in range(12):
    if world.rank == 0:
        world.send((time.monotonic(), b"x" * bytes), dest=1, tag=number)
        end = time.monotonic() + 0.15
        while time.monotonic() < end:
            pass
    elif world.rank == 1:
        sent, content = world.recv(source=0, tag=number)
        late = max(late, time.monotonic() - sent)
        assert content == b"x" * bytes
world.barrier()
if world.rank == 1:
    print(f"late {late:.3f}")
"""


@pytest.mark.parametrize("kilobytes", [0, pytest.param(10, marks=pytest.mark.soak), 300])
@pytest.mark.perf
def test_what_is_deferred_arrives_soon_also_from_who_computes(jobs, kilobytes):
    """Small messages are buffered, and leave while the sender computes. Large ones stay with the sender until they have
    left."""
    options = [*MANY, *every("10ms"), *by_size(1)]
    result, stats = measured(jobs, 3, *python(RARELY), kilobytes << 10, options=options, protocol="group")
    result.ok()
    assert stats["total"]["held_sends"] > 0, "a wave has come between"
    in_time(float(result.text.split()[1]) < 3, f"on an idle machine a few milliseconds: {result.text}")
    came_about(len(result.of("wave_complete")) > 5, result)


# No rank calls MPI until a file exists; messages were sent before.
COMPUTES = """
import os, sys
from mpi4py import MPI
world = MPI.COMM_WORLD
world.barrier()
sends = [world.isend(bytes(100), dest=other, tag=1) for other in range(world.size) if other != world.rank]
print("rank", world.rank, "computes", flush=True)
while not os.path.exists(sys.argv[1]):
    pass
for other in range(world.size - 1):
    assert world.recv(tag=1) == bytes(100)
MPI.Request.waitall(sends)
world.barrier()
print("rank", world.rank, "has all", flush=True)
"""


@pytest.mark.perf
def test_who_computes_delays_no_wave(jobs):
    enough = jobs.directory / "enough"
    job = jobs.start(4, *python(COMPUTES), enough, protocol="group", options=[*MANY, *by_size(1)])
    job.reach(lambda: job.out.read_bytes().count(b"computes") == 4)
    for _ in range(5):
        waves = len(job.of("wave_complete"))
        job.process.send_signal(signal.SIGUSR1)
        job.reach(lambda: len(job.of("wave_complete")) > waves, what="another wave")  # noqa: B023
    enough.touch()
    job.kill([2])
    result = job.wait().ok()
    assert len(result.text.splitlines()) == 8
    assert [event["image"] for event in began_from_images(result)] == [5] * 4, result.describe()
    # Four computing ranks share the processors, and have their images one after the other.
    in_time(min(event["total_seconds"] for event in result.of("wave_complete")) < 4 * 0.1, result.describe())


@pytest.mark.parametrize("at_once", [1, 2])
@pytest.mark.perf
def test_groups_write_their_files_in_turn(jobs, program, at_once):
    """A group begins to write when fewer than `at_once` of the groups before it are still writing."""
    directory = jobs.directory / "images"
    options = [*by_size(1), "--groups-at-once", at_once, "--checkpoint-dir", directory]
    job = jobs.start(4, *program("heat"), "4000", "4000", "100000", protocol="group", options=options)
    job.opens_mpi()
    job.process.send_signal(signal.SIGUSR1)
    job.reach(lambda: len([event for event in job.events if event["event"] == "image_written"]) == 4)
    job.process.terminate()
    written = job.wait(20).of("image_written")
    for place, event in enumerate(written):
        assert event["rank"] < place + at_once, written
        half = event["time"] - event["write_seconds"] / 2
        writing = [other for other in written[:place] if other["time"] > half]
        in_time(len(writing) < at_once, f"at the same time: {writing}, {event}")


@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_kills_while_groups_write_their_files(jobs, program, rng, size):
    directory = jobs.directory / "images"
    command = [*program("heat"), "400", "400", "2000"]
    calm = jobs.calm(4, *command)
    options = [*MANY, *every("60ms"), *by_size(size), "--checkpoint-dir", directory]
    job = jobs.start(4, *command, options=options, protocol="group")
    storm(job, rng, 4, max(0.3, calm.seconds))
    result = job.wait().ok()
    assert by_rank(result.out) == by_rank(calm.out)
    assert not list(directory.iterdir())


@pytest.mark.soak
@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8, 16])
@pytest.mark.parametrize("name", ["comm_churn", "cg", "rma_halo", "master_worker", "messages"])
def test_soak(jobs, program, rng, kills, name, ranks, size):
    entry, command = of_catalogue(program, name)
    if not entry.accepts(ranks) or size > ranks:
        pytest.skip(f"{name} does not run on {ranks} ranks in groups of {size}")
    expected = undisturbed(jobs, command, entry, ranks)
    options = [*every("30ms"), *by_size(size)]
    survive(jobs, rng, command, entry, ranks, kills or 6, expected, options, protocol="group")
