# SPDX-License-Identifier: Apache-2.0
"""Images of single ranks (`--checkpoint-every` with message logging). A killed rank goes on from its newest image, and
the answer is that of an undisturbed run, byte for byte."""

import os
import signal
import subprocess
import time

import pytest

import harness
from harness import by_rank, came_about, slow
from settings import MANY, SMALL_LOG, TOLERATE_NODE, every
from survival import (
    PROGRAMS, again_as_soon_as_back, began_from_images, feed, goes_on_from_newest_image, in_a_row,
    input_and_output_exactly_once, kill_snapshots, moments, of_catalogue, ring, snapshots, soak, survive,
    undisturbed, without_the_one_or_the_other,
)

pytestmark = pytest.mark.protocol("pessimistic")
SOME = ["cg", "master_worker", "rma_halo", "mpiio", "futures_pi.py", *map(slow, ("comm_churn", "heat_f08", "lu", "bt", "ft"))]


@pytest.mark.parametrize("name", SOME)
@pytest.mark.gate("master_worker", "mpiio")
def test_random_kills(jobs, program, rng, kills, name):
    entry, command = of_catalogue(program, name)
    expected = undisturbed(jobs, command, entry, 4)
    result = survive(jobs, rng, command, entry, 4, kills or 3, expected, every(rng.choice(["50ms", "200ms"])))
    came_about(result.of("checkpointed"), result)


@pytest.mark.gate("master_worker")
@pytest.mark.parametrize("name", ["cg", "master_worker"])
def test_kills_while_images_are_taken(jobs, program, rng, kills, name):
    """Images are so frequent that most kills fall into one."""
    entry, command = of_catalogue(program, name)
    expected = undisturbed(jobs, command, entry, 3)
    result = survive(jobs, rng, command, entry, 3, kills or 8, expected, every("20ms"))
    came_about(result.of("checkpointed"), result)


def test_one_rank_alone(jobs, program, rng, kills):
    entry, command = of_catalogue(program, "cg")
    expected = undisturbed(jobs, command, entry, 1)
    survive(jobs, rng, command, entry, 1, kills or 3, expected, every("20ms"))


def test_a_rank_goes_on_from_its_newest_image(jobs, program):
    """It does not begin at the beginning: it repeats only what came after the image."""
    result, life = goes_on_from_newest_image(jobs, program)
    (ended,) = result.of("job_ended")
    assert ended["images"] == len(result.of("checkpointed")) > 0
    assert f"rank 1 restarted on this node from its image {life['image']} (life 2)" in result.errors
    # The reference says what the measures of checkpoints mean.
    assert 0 < ended["individual_checkpoint_seconds"] <= ended["longest_stall_seconds"]
    assert 0 < ended["effective_delay_seconds"] < ended["wall_seconds"]
    assert ended["total_checkpoint_seconds"] is None


@pytest.mark.parametrize("victims", [[1], [0, 2], [0, 1, 2]], ids=["one", "two", "all"])
@pytest.mark.gate("all")
def test_again_as_soon_as_they_are_back(jobs, program, rng, victims):
    again_as_soon_as_back(jobs, program, rng, victims, "100000")


@pytest.mark.gate("pipe")
@pytest.mark.parametrize("how", ["file", "pipe"])
def test_input_and_output_exactly_once(jobs, program, rng, kills, how):
    input_and_output_exactly_once(jobs, program, rng, kills or 4, how)


READER = """
import sys
from mpi4py import MPI
import time
world, total = MPI.COMM_WORLD, 0
for number in range(100):
    line = sys.stdin.readline() if world.rank == 0 else None
    total += int(world.bcast(line))
    print("rank %d read %d" % (world.rank, total), flush=True)
    time.sleep(0.01)
rest = sys.stdin.read() if world.rank == 0 else None
print("rank %d rest %r" % (world.rank, world.bcast(rest)))
"""


@pytest.mark.gate("file")
@pytest.mark.parametrize("how", ["file", "pipe"])
def test_input_between_images(jobs, rng, how):
    """The program reads line by line while images are taken. A life from an image goes on reading where it was."""
    text = b"".join(b"%d\n" % (number * 7) for number in range(100)) + b"the end"
    command = [harness.PYTHON, "-c", READER]
    calm = feed(jobs, 2, command, text, how).wait().ok()
    job = feed(jobs, 2, command, text, how, options=[*MANY, *every("50ms")])
    job.reach_event("checkpointed", rank=0)
    for _ in moments(rng, 3, 0.7):
        job.kill([0])
    result = job.wait().ok()
    assert by_rank(result.out) == by_rank(calm.out)
    came_about(began_from_images(result), result)


SENDER = """
from mpi4py import MPI
import numpy, time
world = MPI.COMM_WORLD
mine, theirs, total = numpy.zeros(32768), numpy.zeros(32768), 0.0
for number in range(200):
    mine[:] = number + world.rank
    world.Sendrecv(mine, (world.rank + 1) % world.size, recvbuf=theirs)
    total += theirs.sum()
    time.sleep(0.005)
print("rank", world.rank, total)
"""


def test_the_log_stays_bounded(jobs):
    """50 MiB of each rank go through a log of 4 MiB."""
    command, bound = [harness.PYTHON, "-c", SENDER], SMALL_LOG
    calm = jobs.calm(2, *command)
    job = jobs.start(2, *command, options=[*bound, *every("20ms")])
    job.reach(lambda: len(job.events) > 20)
    time.sleep(0.5)
    job.kill([1])
    result = job.wait().ok()
    assert by_rank(result.out) == by_rank(calm.out)
    (ended,) = result.of("job_ended")
    assert ended["logged_bytes"] > 80 << 20 and ended["spilled_segments"] == 0


PRINTS_AND_SENDS = """
import time
from mpi4py import MPI
world, data = MPI.COMM_WORLD, bytearray(8192)
for step in range(20):
    if world.rank == 0:
        print("step", step, flush=True)
    for _ in range(384):
        if world.rank == 0:
            world.Send(data, 1)
        else:
            world.Recv(data, 0)
            time.sleep(0.0001)
"""


@pytest.mark.gate("2600")
@pytest.mark.parametrize("place", [1700, 2600, 4000])
def test_a_rank_that_only_sends_has_images_after_it_has_begun_again(jobs, place):
    """It reads nothing, and its log has room again only by images of all ranks, its own among them."""
    command, options = [harness.PYTHON, "-c", PRINTS_AND_SENDS], ["--log-memory", "2M", *every("100ms")]
    calm = jobs.calm(2, *command)
    result = jobs.run(2, *command, options=[*options, "--fault", f"rank=0,messages={place}"], timeout=60).ok()
    assert result.out == calm.out and result.of("failed")


def test_an_image_that_was_killed_is_replaced(jobs, program):
    """At once, not only when the next one is due."""
    job = ring(jobs, program, 3, "checkpointed", options=every("2s"))
    job.reach(lambda: len(snapshots(job)) == 3, what="an image of each, and no more")
    assert kill_snapshots(job) == 3
    lost = len(job.events)
    taken = lambda: {event["rank"] for event in job.events[lost:] if event["event"] == "checkpointed"}
    job.reach(lambda: taken() == {0, 1, 2})
    job.kill([0, 1, 2])
    for rank in range(3):
        job.reach_event("caught_up", rank=rank)
    job.process.terminate()
    result = job.wait(10)
    assert len(began_from_images(result)) == 3 and result.code == 143, result.describe()


@pytest.mark.gate("process-pessimistic", "node-causal")
@pytest.mark.parametrize("protocol", ["pessimistic", "causal"])
@pytest.mark.parametrize("tolerated", [[], TOLERATE_NODE], ids=["process", "node"])
def test_the_failure_of_a_rank_whose_image_was_killed_takes_all_to_the_beginning(jobs, program, protocol, tolerated):
    """Messages from before the image are forgotten, by event loggers, too. It is as without images, and no worse."""
    command = program("crash") + ["99", "kill", "0", "always", "60000"]
    calm = jobs.calm(3, *command)
    job = jobs.start(3, *command, protocol=protocol, options=[*MANY, *tolerated])
    job.says(b"iteration 50 ")
    job.process.send_signal(signal.SIGUSR1)
    for rank in range(3):
        job.reach_event("checkpointed", rank=rank)
    # While it is stopped, it cannot have a new image before it dies.
    job.strike([1], signal.SIGSTOP)
    assert kill_snapshots(job, 1) == 1
    job.reach_event("image_lost", rank=1)
    job.strike([2])
    job.reach_another("started", rank=2)
    assert job.newest("started", rank=2)["image"] > 0
    job.strike([1])
    job.reach_event("returned", wave=0)
    result = job.wait().ok()
    assert by_rank(result.out) == by_rank(calm.out)
    assert "all ranks begin again" in result.errors, result.describe()


@pytest.mark.gate("agent")
@pytest.mark.parametrize("who", ["agent", "dispatcher"])
def test_without_the_one_or_the_other(jobs, program, who):
    """Nothing stays behind, not even sleeping images (the fixture checks that)."""
    without_the_one_or_the_other(jobs, program, who, "checkpointed")


def test_a_shell_has_no_image_in_files_but_recovers(jobs, program):
    """The agent's child is not the MPI program: files bring no shell back, and replay starts at the beginning."""
    command = ["sh", "-c", f"{program('cg')[0]} 512 400; exit 0"]
    calm = jobs.calm(2, *command)
    job = jobs.start(2, *command, options=[*every("20ms"), "--checkpoint-dir", jobs.directory / "images"])
    refused = lambda rank: any(
        event["event"] == "not_checkpointed" and event["rank"] == rank and "a wrapper" in event["reason"]
        for event in job.events
    )
    job.reach(lambda: refused(0) and refused(1))
    job.kill([1])
    result = job.wait().ok()
    assert by_rank(result.out) == by_rank(calm.out) and not result.of("checkpointed")


@pytest.mark.soak
@pytest.mark.parametrize("period", ["50ms", "1s"])
@pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("entry", PROGRAMS, ids=str)
def test_soak(jobs, program, rng, kills, request, entry, size, period):
    soak(jobs, program, rng, request, entry, size, kills or 10, every(period))


@pytest.mark.slow
@pytest.mark.parametrize("period", ["20ms", "300ms"])
def test_two_hundred_kills_in_a_row(jobs, program, rng, kills, period):
    """One after the other, each as soon as some rank is back; in as many images, lives and jobs as that takes."""
    command = program("master_worker") + ["400000", "3000"]
    calm = jobs.calm(4, *command, timeout=600)
    in_a_row(lambda: jobs.start(4, *command, options=[*MANY, *every(period)]), calm, rng, 4, kills or 200, (0, 0.2))


def until_no_image(job, rank, reason, timeout=30):
    def told():
        return any(event["event"] == "not_checkpointed" and event["rank"] == rank and reason in event["reason"] for event in job.events)

    job.reach(told, timeout, what=f"no image of rank {rank}")


@pytest.mark.gate("blocking*")
@pytest.mark.skipif(os.geteuid() != 0, reason="has a rank of another user, who has a limit of processes")
@pytest.mark.parametrize("protocol, kind", [("pessimistic", "checkpointed"), ("blocking", "wave_complete"), slow("group", "wave_complete")])
def test_a_rank_that_cannot_make_a_thread(jobs, program, protocol, kind):
    """It says so, and has images again when it can."""
    command = [*program("cg"), "512", "600"]
    calm = jobs.calm(3, *command)
    user = ["setpriv", "--reuid=54321", "--clear-groups"]
    as_user = f"exec {' '.join([*user, *command])}"
    job = jobs.start(3, "bash", "-c", as_user, options=[*MANY, *every("20ms")], protocol=protocol)
    job.reach_event(kind)
    pid = job.lives()[1][0]
    limit = lambda processes: subprocess.run([*user, "prlimit", f"--pid={pid}", f"--nproc={processes}:"], check=True)
    limit(1)
    until_no_image(job, 1, "there is no thread to be had to take it")
    limit(1000)
    job.reach_another(kind, **({"rank": 1} if kind == "checkpointed" else {}))
    job.kill([1])
    result = job.wait().ok()
    assert result.out == calm.out, result.describe()
    came_about(began_from_images(result), result)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["pessimistic", "blocking", "chandy-lamport", "group", "auto"])
def test_a_rank_that_does_not_answer_is_not_waited_for(jobs, program, protocol):
    """The rank is stopped. The others go on after some time, and the user is told. When it goes on, it has images
    again."""
    command = [*program("cg"), "512", "3000"]
    calm = jobs.calm(3, *command)
    job = jobs.start(3, *command, options=[*MANY, *every("200ms")], protocol=protocol)
    kind = "checkpointed" if protocol == "pessimistic" else "wave_complete"
    job.reach_event(kind)
    job.strike([1], signal.SIGSTOP)
    until_no_image(job, 1, "it has not answered for 10 s")
    job.kill([1], signal.SIGCONT)
    of_all = lambda: [event for event in job.events if event["event"] == kind and event.get("rank", 1) == 1]
    before = len(of_all())
    job.reach(lambda: len(of_all()) > before, what="an image of rank 1")
    job.kill([1])
    result = job.wait().ok()
    assert result.out == calm.out, result.describe()
    assert "no image of rank 1 can be taken: it has not answered" in result.errors, result.describe()
    came_about(began_from_images(result), result)
