# SPDX-License-Identifier: Apache-2.0
"""Which rank's image is taken next (`--checkpoint-policy`), and how many are on their way at once."""

import signal
import subprocess
import sys
import time

import pytest

import harness
from harness import by_rank, came_about, in_time, slow
from settings import MANY, every
from survival import LONG, of_catalogue, ring, survive, undisturbed

pytestmark = pytest.mark.protocol("pessimistic")
POLICIES = ["periodic", "round-robin", "random,seed=3", "most-log", "daly"]


def by(policy, period="60ms"):
    return ["--checkpoint-policy", policy, *([] if policy == "daly" else every(period))]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", [slow("cg"), "master_worker"])
@pytest.mark.gate("master_worker-most-log")
def test_random_kills(jobs, program, rng, kills, name, policy):
    entry, command = of_catalogue(program, name)
    expected = undisturbed(jobs, command, entry, 4)
    survive(jobs, rng, command, entry, 4, kills or 3, expected, by(policy), images=policy != "daly")


@pytest.mark.perf
def test_daly_chooses_the_time_between_images(jobs, program):
    """The first images come after a second. Failures are rare, so the next ones are further apart than the least."""
    job = ring(jobs, program, 2, "started", options=[*MANY, *by("daly"), "--mtbf", "20s"])
    job.reach(lambda: [event["event"] for event in job.events].count("checkpointed") >= 6)
    job.kill([1])
    job.reach_event("caught_up", rank=1)
    job.process.terminate()
    result = job.wait(10)
    times = [event["time"] for event in result.of("checkpointed") if event["rank"] == 0]
    between = [after - before for before, after in zip(times, times[1:])]
    assert times[0] > 0.4 and min(between) >= 0.1, times
    in_time(times[0] < 3 and max(between) < 20, times)
    (life,) = (event for event in result.of("started") if event["life"] == 2)
    assert life["rank"] == 1 and life["image"] > 0, result.describe()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.gate("periodic")
def test_kills_while_files_are_written(jobs, program, rng, kills, policy):
    entry, command = of_catalogue(program, "cg")
    expected = undisturbed(jobs, command, entry, 3)
    options = [*by(policy, "30ms"), "--checkpoint-dir", jobs.directory / "images", "--checkpoint-in-flight", "1"]
    survive(jobs, rng, command, entry, 3, kills or 5, expected, options)


def answers(result):
    """The answers of ranks that were asked for images, in order."""
    return [event for event in result.events if event["event"] in ("checkpointed", "not_checkpointed")]


def asked(result):
    """The ranks that were asked, in order."""
    return [event["rank"] for event in answers(result)]


def until_there_are(jobs, program, size, options, count, kind="checkpointed"):
    job = jobs.start(size, *program("crash"), *LONG, options=options)
    job.reach(lambda: [event["event"] for event in job.events].count(kind) >= count, what=f"{count} times {kind}")
    job.process.terminate()
    return job.wait(10)


def test_one_after_another(jobs, program):
    result = until_there_are(jobs, program, 3, by("round-robin", "150ms"), 12)
    ranks = asked(result)
    assert ranks == [turn % 3 for turn in range(len(ranks))], ranks
    for turn, answer in enumerate(answers(result), 1):
        assert answer["time"] >= turn * 0.05, "a third of the period apart"


def test_at_random(jobs, program):
    ranks = asked(until_there_are(jobs, program, 3, by("random,seed=5", "60ms"), 25))
    assert set(ranks) == {0, 1, 2} and ranks != [turn % 3 for turn in range(len(ranks))], ranks
    assert any(before == after for before, after in zip(ranks, ranks[1:])), f"the same rank twice in a row: {ranks}"


# Rank 0 sends much to rank 1 and little to the others. After the first half it takes its time until the test lets it go.
UNEVEN = """
import os, time
from mpi4py import MPI
world = MPI.COMM_WORLD
much, little = bytearray(50000), bytearray(8)
for turn in range(4000):
    if world.rank == 0:
        world.Send(much, 1)
        for other in range(2, world.size):
            world.Send(little, other)
    else:
        world.Recv(much if world.rank == 1 else little, 0)
    if turn % 20 == 0:
        world.Barrier()
        time.sleep(0.005 if turn < 2000 or os.path.exists(os.environ["AWAITED"]) else 0.1)
print("rank", world.rank, "done")
"""


@pytest.mark.parametrize("fault", [[], ["--fault", "rank=1,at=700ms", "--fault", "rank=0,at=900ms"]], ids=["calm", "killed"])
def test_the_rank_whose_image_frees_most(jobs, fault):
    options = [*by("most-log", "80ms"), "--log-memory", "1G", *fault]
    job = jobs.start(4, harness.PYTHON, "-c", UNEVEN, options=options)
    job.reach(lambda: len(job.of("checkpointed")) > 10 and len(job.of("failed")) >= len(fault) // 2, what="images and faults")
    result = job.wait().ok()
    assert sorted(result.text.splitlines()) == [f"rank {rank} done" for rank in range(4)]
    taken = [event["rank"] for event in result.of("checkpointed")]
    assert taken.count(1) > 0.6 * len(taken), taken
    assert result.restarts == len(fault) // 2


def test_no_more_on_their_way_than_may_be(jobs, program):
    directory = jobs.directory / "images"
    options = [*every("20ms"), "--checkpoint-dir", directory]

    def most(events):
        writing, greatest = set(), 0
        for event in events:
            if event["event"] == "checkpointed":
                writing.add(event["rank"])
                greatest = max(greatest, len(writing))
            if event["event"] in ("image_written", "image_not_written"):
                writing.discard(event["rank"])
        return greatest

    bounded = lambda bound: until_there_are(jobs, program, 4, [*options, "--checkpoint-in-flight", bound], 12, "image_written")
    assert most(bounded(1).events) == 1
    assert most(bounded(2).events) <= 2
    job = jobs.start(4, *program("crash"), *LONG, options=options)
    job.reach(lambda: most(job.events) > 1, what="images that are written at the same time")
    job.process.terminate()
    job.wait(10)


def test_everybody_can_be_asked_for_at_once(jobs, program):
    """Even if only one image may be on its way, and ranks die with half-written images."""
    options = [*MANY, "--checkpoint-dir", jobs.directory / "images", "--checkpoint-in-flight", "1"]
    job = ring(jobs, program, 3, "started", options=options)
    job.says(b"iteration 50 ")
    for _ in range(3):
        jobs.resurgo("checkpoint", job.process.pid).ok()
        job.kill([1])
        job.reach(lambda: len(job.lives()) == 3)
    job.reach_event("caught_up")
    job.process.terminate()
    assert len(job.wait(10).of("checkpointed")) >= 9


def test_a_wave_that_cannot_complete_is_dropped_whole(jobs, program):
    """No other wave begins before; its number is not used again, and none of its files stays."""
    directory = jobs.directory / "images"
    job = jobs.start(3, *program("crash"), *LONG, options=[*MANY, "--checkpoint-dir", directory], protocol="blocking")

    def files():
        return {file.name for file in directory.glob("*/rank-*")}

    job.says(b"iteration 50 ")
    complete = lambda: [event["wave"] for event in job.events if event["event"] == "wave_complete"]
    job.process.send_signal(signal.SIGUSR1)
    job.reach(complete, what="a wave")
    (first,) = complete()
    job.kill([1], signal.SIGSTOP)
    for _ in range(3):
        job.process.send_signal(signal.SIGUSR1)
        time.sleep(0.2)
    job.kill([1])
    job.reach_event("returned", wave=first)
    job.reach(lambda: files() == {f"rank-{rank}.image-{first}" for rank in range(3)}, what="nothing of the dropped wave")
    job.process.send_signal(signal.SIGUSR1)
    job.reach(lambda: len(complete()) > 1, what="another wave")
    job.kill([0])
    job.reach(lambda: len(job.of("returned")) == 2, what="the second return")
    # A wave that was asked for while the rank stood still may have been taken, too.
    second = job.of("returned")[1]["wave"]
    job.process.terminate()
    result = job.wait(10)
    assert second in complete()[1:] and complete()[1] > first + 1, result.describe()
    came_about(result.of("not_checkpointed"), result)
    for life in (2, 3):
        images = {event["image"] for event in result.of("started") if event["life"] == life}
        assert images == {{2: first, 3: second}[life]}, "parts of different waves"


@pytest.mark.gate("most-log")
@pytest.mark.parametrize("policy", ["round-robin", "random", "most-log"])
def test_waves_know_no_turns(jobs, program, policy):
    result = jobs.resurgo("run", "--protocol", "blocking", *by(policy), *program("hello"))
    assert result.code == 2 and not result.out, result.describe()
    for word in (policy, "blocking", "together", "the nearest is periodic"):
        assert word in result.errors, result.describe()


@pytest.mark.gate("periodic-auto", "daly-blocking")
@pytest.mark.parametrize("protocol", ["blocking", "auto"])
@pytest.mark.parametrize("policy", ["periodic", "daly"])
def test_waves_by_policy(jobs, program, rng, kills, policy, protocol):
    entry, command = of_catalogue(program, "cg")
    expected = undisturbed(jobs, command, entry, 3)
    result = survive(jobs, rng, command, entry, 3, kills or 3, expected, by(policy), protocol=protocol)
    assert result.of("job_started")[0]["protocol"] == protocol and not result.of("checkpointed")


@pytest.mark.gate("most-log")
@pytest.mark.parametrize("policy", [slow("round-robin"), "random", "most-log"])
def test_auto_logs_alone_where_ranks_have_turns(jobs, program, rng, kills, policy):
    entry, command = of_catalogue(program, "cg")
    expected = undisturbed(jobs, command, entry, 3)
    result = survive(jobs, rng, command, entry, 3, kills or 2, expected, by(policy), protocol="auto")
    assert result.of("job_started")[0]["protocol"] == "pessimistic" and not result.of("wave_complete")
    assert "--protocol auto: message logging alone, as pessimistic: images of single ranks" in result.errors


def test_by_the_environment(jobs, program):
    env = harness.environment(
        RESURGO_CHECKPOINT_POLICY="round-robin",
        RESURGO_CHECKPOINT_EVERY="60ms",
        RESURGO_CHECKPOINT_DIR=jobs.directory / "images",
        RESURGO_CHECKPOINT_IN_FLIGHT="1",
    )
    command = program("crash") + ["99", "kill", "0", "always", "20000"]
    calm = jobs.calm(3, *command)
    result = jobs.run(3, *command, env=env).ok()
    assert by_rank(result.out) == by_rank(calm.out)
    # Finished ranks are left out.
    finished = min(result.of("finished"), key=lambda event: event["time"])
    ranks = [event["rank"] for event in answers(result) if event["time"] < finished["time"]]
    assert ranks and ranks == [turn % 3 for turn in range(len(ranks))]
    env["RESURGO_CHECKPOINT_POLICY"] = "robin"
    result = jobs.resurgo("run", *program("hello"), env=env)
    assert result.code == 2 and "RESURGO_CHECKPOINT_POLICY" in result.errors


@pytest.mark.parametrize("protocol", ["pessimistic", slow("auto")])
@pytest.mark.perf
def test_images_take_their_share_on_a_loaded_machine(jobs, program, protocol):
    """Others want the processors, and images take long: without a share a job does little else."""
    command = [*program("cg"), "512", "150"]
    busy = [subprocess.Popen([sys.executable, "-c", "import time\nend = time.time() + 90\nwhile time.time() < end: pass"]) for _ in range(12)]
    try:
        calm = jobs.run(8, *command, protocol=protocol).ok()
        env = harness.environment(RESURGO_CHECKPOINT_SHARE=None)
        shared = jobs.run(8, *command, protocol=protocol, options=["--checkpoint-every", "10ms"], env=env).ok()
    finally:
        for process in busy:
            process.kill()
            process.wait()
    print(f"{calm.seconds:.1f} s without images, {shared.seconds:.1f} s with")
    assert shared.out == calm.out, shared.describe()
    in_time(shared.seconds < 3 * calm.seconds + 1, shared.describe())
    kind = "wave_complete" if protocol == "auto" else "checkpointed"
    assert shared.of(kind), shared.describe()
    came_about(shared.of("images_held_back"), shared)
    assert "--checkpoint-share" in shared.errors, shared.describe()
