# SPDX-License-Identifier: Apache-2.0
"""Coordinated waves (`--protocol blocking`, `chandy-lamport` and `group`): after a failure all ranks return to the last
complete wave, and the answer is that of an undisturbed run. Programs that message logging cannot replay finish, too."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

import harness
from catalogue import BY_NAME, arguments
from ends import MUCH_AFTER_AN_END, MUCH_FROM_AN_END, leaving
from harness import by_rank, came_about, in_time, slow, storm
from returns import files, strike_the_returning
from settings import MANY, TOGETHER, WAVES, every
from survival import (
    A_SLOW_START, LONG, NONDETERMINISTIC, PROGRAMS, TEXT, began_from_images, feed, in_a_row, kill_snapshots,
    moments, of_catalogue, soak, survive, undisturbed, without_the_one_or_the_other,
)

SOME = ["master_worker", "rma_halo", "futures_pi.py", *map(slow, ("comm_churn", "heat", "cg", "transpose", "lu", "bt", "ft"))]
OFTEN = [*MANY, *every("20ms")]


# A power iteration with OpenBLAS's own threads, which work while their rank is copied.
BLAS = """
import os
from mpi4py import MPI
import numpy
world = MPI.COMM_WORLD
matrix = numpy.random.default_rng(7).random((400, 400))
block, state = matrix[world.rank :: world.size].copy(), numpy.ones((400, 50))
for number in range(100):
    rows = numpy.zeros((400, 50))
    rows[world.rank :: world.size] = block @ state
    world.Allreduce(MPI.IN_PLACE, rows)
    state = rows / numpy.abs(rows).max()
# One more while an image is taken.
assert len(os.listdir("/proc/self/task")) - min(4, os.cpu_count()) in (0, 1), os.listdir("/proc/self/task")
print("rank", world.rank, state.sum().hex(), state[world.rank].tobytes().hex()[:64])
"""


# `blocking` stands for what `group` has in common with it, and is tested at length.
@pytest.fixture(params=["blocking", "chandy-lamport", pytest.param("group", marks=pytest.mark.soak)])
def protocol(request):
    return request.param


together = pytest.mark.parametrize("protocol", TOGETHER)


def start(jobs, protocol, size, *command, period=None, **more):
    options = [*MANY, *(every(period) if period else [])]
    return jobs.start(size, *command, options=options, protocol=protocol, **more)


@pytest.mark.parametrize("name", SOME)
@pytest.mark.gate("blocking-futures_pi.py", "chandy-lamport-rma_halo")
def test_random_kills(jobs, program, rng, kills, name, protocol):
    entry, command = of_catalogue(program, name)
    expected = undisturbed(jobs, command, entry, 4)
    period = rng.choice(["50ms", "200ms"])
    survive(jobs, rng, command, entry, 4, kills or 3, expected, every(period), protocol=protocol)


@pytest.mark.slow
def test_random_kills_of_eight_ranks(jobs, program, rng, kills, protocol):
    command = [*program("comm_churn"), *arguments(BY_NAME["comm_churn"], True, None)]
    calm = jobs.calm(8, *command)
    job = jobs.start(8, *command, protocol=protocol, options=OFTEN)
    storm(job, rng, kills or 4, max(0.3, calm.seconds))
    result = job.wait().ok()
    assert by_rank(result.out) == by_rank(calm.out)


@together
@pytest.mark.parametrize("name", ["cg", "master_worker"])
@pytest.mark.gate("cg-blocking", "master_worker-chandy-lamport")
def test_kills_while_waves_are_taken(jobs, program, rng, kills, name, protocol):
    entry, command = of_catalogue(program, name)
    expected = undisturbed(jobs, command, entry, 3)
    survive(jobs, rng, command, entry, 3, kills or 8, expected, every("20ms"), protocol=protocol)


def test_one_rank_alone(jobs, program, rng, kills, protocol):
    entry, command = of_catalogue(program, "cg")
    expected = undisturbed(jobs, command, entry, 1)
    survive(jobs, rng, command, entry, 1, kills or 3, expected, every("20ms"), protocol=protocol)


@pytest.mark.gate("chandy-lamport", "group")
@together
def test_without_waves_all_begin_again(jobs, program, protocol):
    entry, command = of_catalogue(program, "cg")
    expected = undisturbed(jobs, command, entry, 3)
    job = start(jobs, protocol, 3, *command, *entry.longer)
    job.reach(lambda: len(job.lives()) == 3)
    time.sleep(0.15)
    job.kill([1])
    result = job.wait().ok()
    assert by_rank(result.out) == by_rank(expected[0].out)
    assert result.of("returned")[0]["wave"] == 0 and "all ranks begin again" in result.errors


@pytest.mark.gate("blocking", "chandy-lamport")
@together
def test_all_return_and_what_they_had_done_is_lost(jobs, program, protocol):
    """The time counts from the wave, not from the failure."""
    job = start(jobs, protocol, 3, *program("crash"), *LONG)
    job.says(b"iteration 50 ")
    job.process.send_signal(signal.SIGUSR1)
    job.reach_event("wave_complete")
    time.sleep(0.7)
    job.kill([1])
    job.reach_event("returned")
    job.process.terminate()
    result = job.wait(10)
    assert [event["image"] for event in began_from_images(result)] == [1, 1, 1]
    (wave,), (returned,), (ended,) = (result.of(kind) for kind in ("wave_complete", "returned", "job_ended"))
    assert returned["wave"] == 1 and returned["lost_seconds"] >= 0.7, result.describe()
    in_time(abs(returned["lost_seconds"] - (returned["time"] - wave["time"])) < 0.1, (wave, returned))
    in_time(abs(ended["lost_seconds"] - returned["lost_seconds"]) < 0.05, f"nothing has been lost since: {ended}")
    assert wave["mean_stall_seconds"] <= wave["stall_seconds"] <= wave["total_seconds"] + 0.001
    for measure in ("individual_checkpoint_seconds", "effective_delay_seconds"):
        assert ended[measure] == pytest.approx(wave["mean_stall_seconds"])
    assert ended["total_checkpoint_seconds"] == wave["total_seconds"]
    assert "all ranks go on from wave 1" in result.errors and "1 wave taken" in result.errors, result.describe()


@pytest.mark.gate("auto", "chandy-lamport", "group")
@pytest.mark.parametrize("protocol", WAVES)
def test_a_rank_that_has_finished_is_part_of_later_waves(jobs, protocol):
    """Its end is its image: the others go on from these waves, and it is not done again."""
    command, go, calm = leaving(jobs)
    job = start(jobs, protocol, 3, *command, period="100ms")
    job.reach_event("finished", rank=2)
    job.reach_another("wave_complete")
    job.strike([1])
    job.reach_another("wave_complete")
    assert jobs.resurgo("checkpoint", job.process.pid).ok().text.endswith("a wave is complete\n")
    go(30)
    # Where all return, the first blow ends both.
    job.strike([0, 1] if protocol == "auto" else [0])
    job.reach_another("wave_complete")
    go(60)
    go(90)
    result = job.wait().ok()
    assert by_rank(result.out) == by_rank(calm().out)
    assert [event["life"] for event in result.of("started") if event["rank"] == 2] == [1], result.describe()
    assert len(began_from_images(result)) >= 2 and all(event["wave"] > 0 for event in result.of("returned")), result.describe()


@pytest.mark.parametrize("protocol", TOGETHER[:2])
def test_an_end_that_is_in_no_wave_is_done_again(jobs, protocol):
    """All begin again, because there was no wave. What the rank prints again is shown once."""
    command, go, calm = leaving(jobs)
    job = start(jobs, protocol, 3, *command)
    job.reach_event("finished", rank=2)
    job.strike([1])
    job.reach_event("returned", wave=0)
    for number in (30, 60, 90):
        go(number)
    result = job.wait().ok()
    assert by_rank(result.out) == by_rank(calm().out)
    assert [event["life"] for event in result.of("started") if event["rank"] == 2] == [1, 2], result.describe()


@pytest.mark.gate("auto", "blocking", "chandy-lamport")
@pytest.mark.parametrize("protocol", WAVES)
def test_what_a_rank_has_sent_before_it_finished_stays_on_its_way(jobs, protocol):
    """Waves after its end have these messages, and those that were taken since the last one come again."""
    command = [harness.PYTHON, "-c", MUCH_FROM_AN_END, jobs.directory / "go"]
    job = start(jobs, protocol, 3, *command, period="100ms")
    job.reach_event("finished", rank=2)
    for number in (0, 60):
        for _ in range(2):
            # One of them may have been asked for before.
            job.reach_another("wave_complete")
        job.strike([0])
        job.reach_another("started", rank=0)
        Path(f"{command[-1]}{number}").touch()
    result = job.wait().ok()
    assert by_rank(result.out) == by_rank(jobs.calm(3, *command).out)
    assert [event["life"] for event in result.of("started") if event["rank"] == 2] == [1], result.describe()
    assert all(event["wave"] > 0 for event in result.of("returned")), result.describe()


def test_logs_do_not_fill_up_when_a_rank_has_finished(jobs):
    command = [harness.PYTHON, "-c", MUCH_AFTER_AN_END]
    job = jobs.start(3, *command, protocol="auto", options=["--log-memory", "64M"])
    result = job.wait().ok()
    assert by_rank(result.out) == by_rank(jobs.calm(3, *command, protocol="none").out)
    finished = next(event["time"] for event in result.of("finished") if event["rank"] == 2)
    came_about([event for event in result.of("wave_complete") if event["time"] > finished], result)


@pytest.mark.gate("auto")
@pytest.mark.parametrize("protocol", ["auto", "blocking", slow("chandy-lamport"), slow("group")])
def test_a_rank_that_comes_late_to_mpi_costs_no_waves(jobs, protocol):
    """However long the others wait for it, there are waves once it is there."""
    go, end = jobs.directory / "go", jobs.directory / "end"
    command = [harness.PYTHON, "-c", A_SLOW_START, go, end]
    job = start(jobs, protocol, 3, *command, period="100ms")

    def has_lasted():
        """Longer than a lasting reason goes without a report."""
        refused = [event["time"] for event in job.events if event["event"] == "not_checkpointed"]
        return refused and refused[-1] - refused[0] > 8

    job.reach(has_lasted, 60, "images to be refused for long")
    go.touch()
    job.reach_event("wave_complete")
    job.strike([2])
    job.reach_another("wave_complete")
    end.touch()
    result = job.wait().ok()
    assert not result.of("waves_given_up") and "no image of rank" not in result.errors, result.describe()
    assert by_rank(result.out) == by_rank(jobs.calm(3, *command).out)
    came_about(began_from_images(result), result)


@pytest.mark.gate("group")
@pytest.mark.parametrize("protocol", [slow("blocking"), "chandy-lamport", "group"])
def test_threads_in_mpi(jobs, program, rng, kills, protocol):
    """Message logging refuses this."""
    command = program("threads") + ["4", "6000"]
    calm = jobs.calm(3, *command, protocol="none")
    job = start(jobs, protocol, 3, *command, period="100ms")
    job.reach_event("wave_complete")
    print(storm(job, rng, kills or 3, calm.seconds / 2))
    result = job.wait().ok()
    assert result.out == calm.out
    came_about(began_from_images(result), result)


@pytest.mark.gate("chandy-lamport")
def test_waves_that_follow_a_return_at_once(jobs, program, rng, protocol):
    """On a crowded machine a thread that has just returned is asked for the next wave while others of its rank have
    hardly begun."""
    calm = jobs.calm(3, *program("image/openmp"))
    crowd = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(4)]
    try:
        job = start(jobs, protocol, 3, *program("image/openmp"), period="10ms")
        job.reach_event("wave_complete")
        print(storm(job, rng, 16, 1.0))
        result = job.wait().ok()
    finally:
        for process in crowd:
            process.kill()
            process.wait()
    assert result.out == calm.out, result.describe()
    came_about(began_from_images(result), result)
    assert {failed["cause"] for failed in result.of("failed")} == {"killed by SIGKILL"}, result.describe()


@pytest.mark.parametrize("variant", NONDETERMINISTIC)
@pytest.mark.gate("blocking-multiple", "chandy-lamport-random")
def test_programs_that_do_not_repeat(jobs, program, rng, variant, protocol):
    """They die by themselves once, and are killed at random besides; in the end every message has come to its
    receiver."""
    marker = jobs.directory / "marker"
    command = program("nondeterministic") + [variant, "1", "3000", marker, "20000"]
    job = start(jobs, protocol, 4, *command, period="20ms")
    storm(job, rng, 2, 0.5)
    result = job.wait().ok()
    assert result.text == f"nondeterministic {variant} iterations=20000 done\n"
    assert marker.exists(), result.describe()
    came_about(result.of("returned"), result)


@pytest.mark.parametrize("victims", [[1], [0, 2], [0, 1, 2]], ids=["one", "two", "all"])
@pytest.mark.gate("blocking-two", "chandy-lamport-one")
def test_kills_while_all_return(jobs, program, rng, victims, protocol):
    """Ranks are killed again on the way back."""
    command = program("crash") + ["99", "kill", "0", "always", "60000"]
    calm = jobs.calm(3, *command)
    job = start(jobs, protocol, 3, *command, period="50ms")
    job.reach_event("wave_complete")
    for _ in range(4):
        returned = len([event for event in job.events if event["event"] == "returned"])
        job.kill([1])
        time.sleep(rng.uniform(0, 0.02))
        job.kill(victims)
        if not job.until(lambda: [event["event"] for event in job.events].count("returned") > returned):
            break
    result = job.wait().ok()
    assert by_rank(result.out) == by_rank(calm.out)
    came_about(began_from_images(result), result)


@pytest.mark.parametrize("protocol", [slow("blocking"), "chandy-lamport", slow("group")])
def test_kills_of_new_processes_while_all_return(jobs, program, rng, kills, protocol):
    command = program("heat")
    calm = jobs.calm(8, *command, "256", "1500")
    job = jobs.start(8, *command, "256", "1500", protocol=protocol, options=OFTEN)
    hits = strike_the_returning(job, rng, kills or 30)
    result = job.wait().ok()
    assert by_rank(result.out) == by_rank(calm.out)
    came_about(hits > 0 and any(event["wave"] > 0 for event in result.of("returned")), result)


@pytest.mark.gate("chandy-lamport-file")
@pytest.mark.parametrize("how", ["file", "pipe"])
def test_input_and_output_exactly_once(jobs, program, rng, kills, how, protocol):
    command = program("output") + ["400", "1000"]
    calm = feed(jobs, 3, command, TEXT, how).wait().ok()
    options = [*MANY, *every("50ms")]
    job = feed(jobs, 3, command, TEXT, how, options=options, protocol=protocol)
    print(storm(job, rng, kills or 4, calm.seconds))
    result = job.wait().ok()
    assert by_rank(result.out) == by_rank(calm.out)
    assert by_rank(result.program_errors) == by_rank(calm.program_errors)


@together
@pytest.mark.parametrize("often", [False, True], ids=["one wave", "many"])
@pytest.mark.gate("many-group")
def test_images_of_the_wave_are_killed(jobs, program, rng, often, protocol):
    """All begin again, or go on from a later wave. Ranks that are standing still for the next one go on."""
    command = program("crash") + ["99", "kill", "0", "always", "100000"]
    calm = jobs.calm(3, *command)
    job = start(jobs, protocol, 3, *command, period="20ms" if often else None)
    if not often:
        job.says(b"iteration 50 ")
        job.process.send_signal(signal.SIGUSR1)
    job.reach_event("wave_complete")
    for _ in moments(rng, 6 if often else 1, 0.3):
        if not often:
            job.kill([1], signal.SIGSTOP)  # the next wave begins at once, and is not complete before this one dies
        assert kill_snapshots(job, rng.choice([None, 0, 1, 2])) > 0 or often
        time.sleep(rng.uniform(0, 0.05))
        if not often or rng.random() < 0.5:
            job.kill([1])
    result = job.wait().ok()
    assert by_rank(result.out) == by_rank(calm.out)
    if not often:
        assert [event["wave"] for event in result.of("returned")] == [0], result.describe()


@pytest.mark.gate("blocking-agent", "chandy-lamport-dispatcher")
@pytest.mark.parametrize("who", ["agent", "dispatcher"])
def test_without_the_one_or_the_other(jobs, program, who, protocol):
    without_the_one_or_the_other(jobs, program, who, "wave_complete", protocol=protocol)


def test_always_at_the_same_place_ends_with_an_error(jobs, program, protocol):
    """There is no endless loop of returns."""
    result = jobs.run(
        3, *program("crash"), "1", "segv", "2000", "always", "100000", protocol=protocol, options=every("20ms"), timeout=60
    )
    assert result.code == 139 and "the program itself fails there" in result.errors, result.describe()


LATE = """
import os, sys, time
from mpi4py import MPI
rank, marker = MPI.COMM_WORLD.rank, sys.argv[1]
print("rank", rank, "ends")
sys.stdout.flush()
MPI.Finalize()
if rank == 1 and not os.path.exists(marker):
    open(marker, "w").close()
    time.sleep(0.5)
    os.kill(os.getpid(), 9)
sys.exit(5 + rank)
"""


def test_a_rank_that_has_finished_returns_with_the_others(jobs, protocol):
    """Its output is not printed again, and it ends again."""
    result = jobs.run(2, harness.PYTHON, "-c", LATE, jobs.directory / "marker", protocol=protocol)
    assert result.code == 5 and sorted(result.text.splitlines()) == ["rank 0 ends", "rank 1 ends"], result.describe()
    assert [event["wave"] for event in result.of("returned")] == [0], result.describe()
    assert [event["rank"] for event in result.of("finished")].count(0) == 2


@pytest.mark.gate("blocking")
def test_openblas_with_threads(jobs, rng, kills, protocol):
    command, env = [harness.PYTHON, "-c", BLAS], harness.environment(OPENBLAS_NUM_THREADS="4")
    calm = jobs.calm(2, *command, env=env)
    job = jobs.start(2, *command, options=[*MANY, *every("50ms")], env=env, protocol=protocol)
    job.reach_event("wave_complete")
    job.kill([rng.randrange(2)])
    print(storm(job, rng, kills or 4, calm.seconds))
    result = job.wait().ok()
    assert by_rank(result.out) == by_rank(calm.out)
    came_about(began_from_images(result), result)


@pytest.mark.soak
@pytest.mark.parametrize("period", ["50ms", "1s"])
@pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("entry", PROGRAMS, ids=str)
def test_soak(jobs, program, rng, kills, request, entry, size, period, protocol):
    soak(jobs, program, rng, request, entry, size, kills or 6, every(period), protocol=protocol)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["master_worker", "threads"])
def test_two_hundred_kills_in_a_row(jobs, program, rng, kills, name, protocol):
    command = program(name) + {"master_worker": ["60000", "3000"], "threads": ["2", "120000"]}[name]
    calm = jobs.calm(3, *command, protocol="none", timeout=600)
    # Waves must come in between, or the job makes no progress.
    in_a_row(lambda: start(jobs, protocol, 3, *command, period="50ms"), calm, rng, 3, kills or 200, (0.1, 0.4))


def in_files(job, count):
    """Whether all ranks have written so many waves."""

    def whole():
        written = [event["image"] for event in job.events if event["event"] == "image_written"]
        return len([wave for wave in set(written) if written.count(wave) == 3]) >= count

    return job.until(whole, what=f"{count} waves in files")


@pytest.mark.parametrize("name", ["heat", slow("messages"), slow("transpose"), slow("pickles.py")])
def test_a_wave_in_files(jobs, program, rng, name, protocol):
    """All ranks and all sleeping images are killed, several times."""
    entry, command = of_catalogue(program, name)
    calm, calm_file = undisturbed(jobs, command, entry, 3)
    directory, file = jobs.directory / "images", jobs.directory / "result"
    options = [*MANY, *every("100ms"), "--checkpoint-dir", directory]
    words = [*command, *arguments(entry, True, file)]
    job = jobs.start(3, *words, options=options, protocol=protocol)
    for count in (1, 3):
        if in_files(job, count):
            victims = rng.sample(range(3), rng.randint(1, 3))
            job.kill(victims, signal.SIGSTOP)
            kill_snapshots(job)
            job.kill(victims)
            job.reach(lambda: any(e["event"] == "returned" for e in job.events), what="the return")
    result = job.wait().ok()
    assert by_rank(result.out) == by_rank(calm.out)
    assert not entry.result or file.read_bytes() == calm_file.read_bytes()
    assert any(event["from_file"] for event in result.of("started")) or not result.of("returned"), result.describe()
    assert not list(directory.iterdir())


@pytest.mark.gate("chandy-lamport-*")
@pytest.mark.parametrize(
    "protocol, damaged", [("blocking", "image"), ("chandy-lamport", "image"), ("chandy-lamport", "in transit")]
)
def test_a_damaged_file_of_a_wave(jobs, program, protocol, damaged):
    """The wave before is as good; the last two stay. It is not if its messages in transit cannot be read."""
    calm = jobs.calm(3, *program("heat"), "400", "400", "6000")
    directory = jobs.directory / "images"
    options = [*MANY, "--checkpoint-dir", directory]
    job = jobs.start(3, *program("heat"), "400", "400", "6000", options=options, protocol=protocol)
    job.says(b"step 500 ")
    for count in (1, 2):
        job.process.send_signal(signal.SIGUSR1)
        job.reach(lambda: len(job.of("wave_complete")) >= count, what="a wave")  # noqa: B023
        job.has_reached(in_files(job, count), "waves in files")
    job.kill([0], signal.SIGSTOP)  # so that it does not end
    job.reach(lambda: sorted(map(len, files(directory).values())) == [3, 3], what="two whole waves")
    time.sleep(0.3)
    waves = files(directory)
    newest = max(waves)
    assert len(waves) == 2 and all(len(paths) == 3 for paths in waves.values()), waves
    image = waves[newest][1]
    os.truncate(image, 8192)
    if damaged == "in transit":
        os.truncate(image.with_name(f"in-transit-{newest - 1}"), 20)
    kill_snapshots(job)
    job.kill([0])
    result = job.wait().ok()
    assert result.out == calm.out
    lost = {(1, newest), *([(0, newest - 1)] if damaged == "in transit" else [])}
    assert {(event["rank"], event["image"]) for event in result.of("image_lost")} >= lost
    assert result.of("returned")[0]["wave"] == (newest - 1 if damaged == "image" else 0), result.describe()


COMPUTES = """
import os, sys, time
from mpi4py import MPI
world, kilobytes = MPI.COMM_WORLD, int(sys.argv[1])
world.barrier()
if world.rank > 0:
    time.sleep(1)  # rank 0 has left the barrier and takes nothing more
    sends = [world.isend(bytes([number]) * (kilobytes << 10), dest=0, tag=number) for number in range(4)]
    print("rank", world.rank, "has sent", flush=True)
    MPI.Request.waitall(sends)
else:
    while not os.path.exists(sys.argv[2]):
        pass
    for source in range(1, world.size):
        for number in (3, 0, 2, 1):
            received = world.recv(source=source, tag=number)
            assert received == bytes([number]) * (kilobytes << 10)
    print("rank 0 has received", flush=True)
world.barrier()
"""


@pytest.mark.parametrize("kept", ["asleep", "in files"])
@pytest.mark.parametrize("kilobytes", [slow(1), 100, slow(3000)])
@pytest.mark.perf
def test_who_computes_delays_no_wave_and_receives_what_was_in_transit(jobs, rng, kilobytes, kept):
    """A rank is copied while it computes without MPI calls. Messages that had been sent to it and that nobody had
    received are delivered after the return, even if they are more than a channel holds."""
    directory = jobs.directory / "images"
    options = [*MANY, *(["--checkpoint-dir", directory] if kept == "in files" else [])]
    enough = jobs.directory / "enough"
    job = jobs.start(3, harness.PYTHON, "-c", COMPUTES, kilobytes, enough, options=options, protocol="chandy-lamport")
    job.reach(lambda: job.out.read_bytes().count(b"has sent") == 2)
    for _ in range(3):
        waves = len(job.of("wave_complete"))
        job.process.send_signal(signal.SIGUSR1)
        job.reach(lambda: len(job.of("wave_complete")) > waves, what="another wave")  # noqa: B023
    times = [event["total_seconds"] for event in job.events if event["event"] == "wave_complete"]
    in_time(min(times) < 0.1, f"a rank that computes is made to take part at once: {times}")
    if kept == "in files":
        job.has_reached(in_files(job, 3), "waves in files")
        (file,) = directory.glob("*/in-transit-3")
        assert file.stat().st_size > min(4 * kilobytes, 400) << 10
        job.kill([0], signal.SIGSTOP)  # no other wave comes
        kill_snapshots(job)
    job.kill(rng.choice([[0], [2], [0, 1, 2]]))
    enough.touch()
    result = job.wait().ok()
    assert [event["image"] for event in began_from_images(result)] == [3, 3, 3], result.describe()
    assert {event["from_file"] for event in began_from_images(result)} == {kept == "in files"}
    assert sorted(result.text.splitlines()) == ["rank 0 has received", "rank 1 has sent", "rank 2 has sent"]
