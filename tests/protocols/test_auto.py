# SPDX-License-Identifier: Apache-2.0
"""Logs and waves together (`--protocol auto`): a failed rank recovers alone; when the program turns out not to repeat what it
did, all ranks return to the last wave instead, and the job goes on."""

import signal
import time

import pytest

import harness
from catalogue import BY_NAME, arguments
from harness import by_rank, came_about, slow, storm
from settings import MANY, SMALL_LOG, TOLERATE_NODE, every
from survival import (
    A_SOCKET_FOR_A_WHILE, NONDETERMINISTIC, PROGRAMS, TEXT, began_from_images, feed, kill_snapshots, of_catalogue,
    soak, survive, undisturbed,
)

OFTEN = every("20ms")


def start(jobs, size, *command, options=(), **more):
    return jobs.start(size, *command, options=[*MANY, *options], protocol="auto", **more)


def test_the_choice_is_told(jobs, program, tmp_path):
    told = jobs.run(2, *program("hello"), protocol="auto").ok()
    assert "--protocol auto: message logging, so that" in told.errors
    told = jobs.run(2, *program("hello"), protocol="auto", options=["--spill-dir", tmp_path]).ok()
    assert "--protocol auto: message logging alone, as pessimistic: logs that have been spilled" in told.errors
    assert told.of("job_started")[0]["protocol"] == "pessimistic"
    told = jobs.run(2, *program("hello"), protocol="auto", options=TOLERATE_NODE).ok()
    assert "--protocol auto: message logging alone, as causal, where no send waits" in told.errors
    # auto is the default, and says so when it chooses something unusual.
    assert "--protocol auto" not in jobs.resurgo("run", "-n", "2", *program("hello")).ok().errors
    told = jobs.resurgo("run", "-n", "2", *TOLERATE_NODE, *program("hello")).ok()
    assert "--protocol auto: message logging alone, as causal" in told.errors
    assert jobs.run(2, *program("hello"), protocol="auto", options=["-q"]).ok().errors == ""


@pytest.mark.gate("rma_halo")
@pytest.mark.parametrize("name", ["cg", slow("master_worker"), "rma_halo", "comm_churn", slow("messages"), slow("numpy_cg.py")])
def test_ranks_recover_alone(jobs, program, rng, kills, name):
    entry, command = of_catalogue(program, name)
    expected = undisturbed(jobs, command, entry, 4)
    period = rng.choice(["20ms", "50ms", "200ms"])
    result = survive(jobs, rng, command, entry, 4, kills or 4, expected, every(period), protocol="auto")
    assert not result.of("returned"), result.describe()


@pytest.mark.parametrize("period", [None, "20ms"], ids=["without waves", "with waves"])
@pytest.mark.parametrize("variant", NONDETERMINISTIC)
@pytest.mark.gate("random-with waves", "time-without waves")
def test_programs_that_do_not_repeat(jobs, program, rng, variant, period):
    """A rank dies by itself once, and others are killed at random besides. In the end every message has come to its
    receiver."""
    marker = jobs.directory / "marker"
    command = program("nondeterministic") + [variant, "1", "3000", marker, "20000"]
    job = start(jobs, 4, *command, options=every(period) if period else [])
    storm(job, rng, 3, 0.5)
    result = job.wait().ok()
    assert result.text == f"nondeterministic {variant} iterations=20000 done\n"
    assert marker.exists(), result.describe()
    if variant in ("random", "length", "tag", "destination") and not period:
        came_about(result.of("returned") and result.of("returns_together"), result)
        assert result.of("returned")[0]["wave"] == 0, result.describe()


@pytest.mark.slow
def test_all_begin_again_where_no_wave_was_ever_possible(jobs, program):
    """The user asks for images, and one rank can have none: the job is no worse off for that."""
    marker = jobs.directory / "marker"
    marker.touch()  # so it does not kill itself
    command = " ".join(map(str, [*program("nondeterministic"), "random", "1", "100", marker, "2000000"]))
    socket = f"[ $PMI_RANK = 2 ] && exec 9<>/dev/udp/127.0.0.1/9; exec {command}"
    job = start(jobs, 3, "bash", "-c", socket, options=every("200ms"))
    job.reach(lambda: b"no image of rank 2 can be taken: it has an open socket" in job.err.read_bytes())
    job.reach_event("checkpointed", rank=1)
    job.strike([1])
    result = job.wait(180).ok()
    assert result.text == "nondeterministic random iterations=2000000 done\n"
    assert [event["wave"] for event in result.of("returned")] == [0], result.describe()
    # There were images of single ranks; the victim went on from one.
    came_about(result.of("checkpointed") and began_from_images(result), result)


def test_a_program_that_waits_for_what_cannot_come(jobs, program):
    """A replay that would last for ever is given up."""
    marker = jobs.directory / "marker"
    result = start(jobs, 3, *program("nondeterministic"), "order", "1", "3000", marker, "20000").wait().ok()
    assert result.text == "nondeterministic order iterations=20000 done\n"
    assert [event["wave"] for event in result.of("returned")] == [0], result.describe()


def test_a_rank_that_aborts_while_it_repeats_does_not_end_the_job(jobs, program):
    """The first time it did not abort: so it does not repeat what it did. If nothing else helps, the job ends with its
    status."""
    marker = jobs.directory / "marker"
    result = start(jobs, 3, *program("nondeterministic"), "abort", "1", "3000", marker, "20000").wait().ok()
    assert result.text == "nondeterministic abort iterations=20000 done\n"
    assert [event["wave"] for event in result.of("returned")] == [0], result.describe()
    assert "called MPI_Abort" in result.errors and marker.with_suffix(".abort").exists()
    marker = jobs.directory / "another"
    command = [*program("nondeterministic"), "abort", "1", "3000", marker, "20000"]
    assert jobs.run(3, *command, options=MANY, protocol="pessimistic").code == 7


@pytest.mark.parametrize("victims", [slow([1]), [0, 2], slow([0, 1, 2])], ids=["one", "two", "all"])
def test_kills_while_all_return(jobs, program, rng, victims):
    """Ranks are killed again on the way back, or just before."""
    marker = jobs.directory / "marker"
    command = program("nondeterministic") + ["random", "1", "3000", marker, "200000"]
    job = start(jobs, 3, *command, options=OFTEN)
    for _ in range(12):
        if not job.until_another("wave_complete"):
            break
        job.kill([rng.randrange(3)])
        time.sleep(rng.uniform(0, 0.03))
        job.kill(victims)
        time.sleep(rng.uniform(0, 0.03))
    result = job.wait().ok()
    assert result.text == "nondeterministic random iterations=200000 done\n"
    came_about(result.of("returns_together") and began_from_images(result), result)
    came_about(any(event["wave"] > 0 for event in result.of("returned")), result)


@pytest.mark.parametrize("name, variant", [slow("heat", None), ("nondeterministic", "random"), slow("nondeterministic", "multiple")])
def test_images_in_files(jobs, program, rng, name, variant):
    """Ranks are killed together with their sleeping images, alone or all at once: they go on from files."""
    if variant:
        command = program(name) + [variant, "1", "3000", jobs.directory / "marker", "200000"]
    else:
        command = program(name) + ["400", "400", "8000"]
    calm = None if variant else jobs.run(3, *command).ok()
    job = start(jobs, 3, *command, options=[*every("100ms"), "--checkpoint-dir", jobs.directory / "images"])
    for _ in range(5):
        written = len([event for event in job.events if event["event"] == "image_written"])
        if not job.until(lambda: len([e for e in job.events if e["event"] == "image_written"]) >= written + 6):
            break
        kill_snapshots(job)
        job.kill(rng.choice([[0], [1], [0, 2], [0, 1, 2]]))
        time.sleep(rng.uniform(0, 0.1))
    result = job.wait().ok()
    if calm:
        assert result.out == calm.out and not result.of("returned"), result.describe()
    else:
        assert result.text == f"nondeterministic {variant} iterations=200000 done\n"
        came_about(any(event["wave"] > 0 for event in result.of("returned")), result)
    came_about(any(event["from_file"] for event in result.of("started")), result)


def test_output_exactly_once(jobs, program, rng, kills):
    command = program("output") + ["400", "1000"]
    calm = jobs.calm(3, *command)
    job = start(jobs, 3, *command, options=every("50ms"))
    storm(job, rng, kills or 4, calm.seconds)
    result = job.wait().ok()
    assert by_rank(result.out) == by_rank(calm.out)
    assert by_rank(result.program_errors) == by_rank(calm.program_errors)


def test_a_full_log_brings_waves(jobs, program):
    """Waves let the logs forget."""
    result = jobs.run(4, *program("transpose"), "128", "200", protocol="auto", options=SMALL_LOG).ok()
    came_about(result.of("log_fills") and result.of("wave_complete"), result)


def test_an_image_is_lost(jobs, program):
    """No image is in a file: the failure of the rank that needs the lost one takes all to the beginning. Others'
    failures do not."""
    command = program("crash") + ["99", "kill", "0", "always", "60000"]
    calm = jobs.calm(3, *command)
    job = start(jobs, 3, *command)
    job.says(b"iteration 50 ")
    job.process.send_signal(signal.SIGUSR1)
    job.reach_event("wave_complete")
    job.strike([1], signal.SIGSTOP)  # the next wave begins at once, and would bring another image
    assert kill_snapshots(job, 2) == 1
    job.reach_event("image_lost")
    job.kill([0])
    job.reach(lambda: [event["event"] for event in job.events].count("started") > 3)
    assert not [event for event in job.events if event["event"] == "returned"]
    job.kill([2])
    result = job.wait().ok()
    assert by_rank(result.out) == by_rank(calm.out)
    assert "rank 2 cannot recover alone: its last image is lost" in result.errors, result.describe()
    assert [event["wave"] for event in result.of("returned")] == [0], result.describe()


@pytest.mark.parametrize("name", ["heat", slow("messages"), slow("cg"), slow("pickles.py"), slow("transpose")])
def test_images_are_killed_before_ranks(jobs, program, rng, kills, name):
    """Images exist in memory only, and the kernel kills them when memory is used up. A rank that cannot recover alone
    takes all to the beginning, and then everything is as before."""
    entry = BY_NAME[name]
    command = [*program(name), *arguments(entry, True, jobs.directory / "result")]
    calm = jobs.calm(3, *command)
    job = start(jobs, 3, *command, options=every("30ms"))
    for _ in range(kills or 6):
        if not job.until_another("wave_complete"):
            break
        kill_snapshots(job, rng.choice([None, 0, 1, 2]))
        time.sleep(rng.choice([0, 0.002, 0.02]))
        job.kill(rng.choice([[0], [1], [0, 2], [0, 1, 2]]))
        time.sleep(rng.uniform(0, 0.1))
    result = job.wait().ok()
    assert by_rank(result.out) == by_rank(calm.out), result.describe()


def test_input_and_output_when_all_begin_again(jobs, program, rng):
    command = program("output") + ["400", "1000"]
    calm = feed(jobs, 3, command, TEXT, "pipe").wait().ok()
    job = feed(jobs, 3, command, TEXT, "pipe", options=[*MANY, *every("30ms")], protocol="auto")
    for _ in range(4):
        if job.until_another("wave_complete"):
            time.sleep(rng.uniform(0, 0.2))
            kill_snapshots(job)
            job.kill([rng.randrange(3)])
    result = job.wait().ok()
    assert by_rank(result.out) == by_rank(calm.out)
    assert by_rank(result.program_errors) == by_rank(calm.program_errors)


ONE_WITH_A_SOCKET = """
import os, socket, time
if os.environ["PMI_RANK"] == "1":
    kept = socket.socket()
from mpi4py import MPI
world, total = MPI.COMM_WORLD, 0
for number in range(800):
    total += world.allreduce(number * world.rank)
    time.sleep(0.01)
print("rank", world.rank, total)
"""


def test_waves_come_back_when_all_ranks_can_have_images(jobs):
    """While one rank can have no image, the others take theirs alone; that is said, with the reason."""
    go, end = jobs.directory / "go", jobs.directory / "end"
    command = [harness.PYTHON, "-c", A_SOCKET_FOR_A_WHILE, go, end]
    job = start(jobs, 3, *command, options=every("100ms"))
    job.reach_event("waves_given_up", 60, rank=1)
    for rank in (0, 2):
        job.reach_event("checkpointed", rank=rank)
    go.touch()
    job.reach_event("waves_back", rank=1)
    job.reach_event("wave_complete")
    job.strike([1])
    job.reach_another("wave_complete")
    end.touch()
    result = job.wait().ok()
    assert result.errors.count("there are no waves while rank 1 can have no image (it has an open socket") == 1, result.describe()
    assert by_rank(result.out) == by_rank(jobs.calm(3, *command).out)
    came_about(began_from_images(result), result)


@pytest.mark.slow
def test_one_rank_that_cannot_be_in_a_wave(jobs):
    """It does not keep the others from having images: after a while each has its own."""
    calm = jobs.calm(3, harness.PYTHON, "-c", ONE_WITH_A_SOCKET)
    job = start(jobs, 3, harness.PYTHON, "-c", ONE_WITH_A_SOCKET, options=every("200ms"))
    for rank in (0, 2):
        job.reach_event("checkpointed", rank=rank)
    for victims in ([0], [1], [0, 1, 2]):
        job.kill(victims)
        time.sleep(0.2)
    result = job.wait().ok()
    assert by_rank(result.out) == by_rank(calm.out)
    assert "no image of rank 1 can be taken: it has an open socket" in result.errors, result.describe()
    assert {event["rank"] for event in began_from_images(result)} == {0, 2} and not result.of("wave_complete")


@pytest.mark.soak
@pytest.mark.parametrize("period", ["50ms", "1s"])
@pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("entry", PROGRAMS, ids=str)
def test_soak(jobs, program, rng, kills, request, entry, size, period):
    soak(jobs, program, rng, request, entry, size, kills or 6, every(period), protocol="auto")
