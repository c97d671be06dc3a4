# SPDX-License-Identifier: Apache-2.0
"""Images under `channel-memory`: a killed rank goes on from its newest one. Its channel memory serves what came after,
and gives up what no life will ask for again."""

import json
import signal
from pathlib import Path

import pytest

import harness
from harness import by_rank, came_about, slow
from image_files import survives_by_files, survives_damage, survives_without_two_files
from servers import SLOW, SUM
from settings import MANY, every
from survival import (
    LONG, PROGRAMS, again_as_soon_as_back, began_from_images, goes_on_from_newest_image, has_images_on_request,
    has_images_when_a_server_goes_on, input_and_output_exactly_once, kill_snapshots, of_catalogue, soak, survive,
    undisturbed, without_the_one_or_the_other,
)

pytestmark = pytest.mark.protocol("channel-memory")

SOME = [
    ("cg", 1),
    ("master_worker", 2),
    ("rma_halo", 3),
    ("comm_churn", 1),
    ("mpiio", 1),
    ("heat_f08", 2),
    ("futures_pi.py", 1),
    ("lu", 2),
    ("ft", 4),
]


def memories(count):
    return ["--channel-memories", str(count)]


@pytest.mark.parametrize("name, count", [*SOME[::2], *(slow(*one) for one in SOME[1::2])])
@pytest.mark.gate("cg-1")
def test_random_kills(jobs, program, rng, kills, name, count):
    entry, command = of_catalogue(program, name)
    expected = undisturbed(jobs, command, entry, 4)
    result = survive(jobs, rng, command, entry, 4, kills or 3, expected, [*memories(count), *every("200ms")])
    came_about(result.of("checkpointed"), result)


@pytest.mark.parametrize("name, count", [("cg", 2), slow("master_worker", 1)])
def test_kills_while_images_are_taken(jobs, program, rng, kills, name, count):
    """Images are so frequent that most kills fall into one."""
    entry, command = of_catalogue(program, name)
    expected = undisturbed(jobs, command, entry, 3)
    result = survive(jobs, rng, command, entry, 3, kills or 8, expected, [*memories(count), *every("20ms")])
    came_about(result.of("checkpointed"), result)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["round-robin", slow("most-log"), slow("daly")])
def test_policies(jobs, program, rng, kills, policy):
    entry, command = of_catalogue(program, "master_worker")
    expected = undisturbed(jobs, command, entry, 4)
    period = [] if policy == "daly" else every("60ms")
    options = [*memories(2), "--checkpoint-policy", policy, *period]
    result = survive(jobs, rng, command, entry, 4, kills or 3, expected, options)
    came_about(policy == "daly" or result.of("checkpointed"), result)


@pytest.mark.gate("2")
@pytest.mark.parametrize("count", [1, 2])
def test_a_rank_goes_on_from_its_newest_image(jobs, program, count):
    goes_on_from_newest_image(jobs, program, memories(count))


@pytest.mark.slow
@pytest.mark.parametrize("victims", [[1], [0, 1, 2]], ids=["one", "all"])
def test_again_as_soon_as_they_are_back(jobs, program, rng, victims):
    again_as_soon_as_back(jobs, program, rng, victims, "30000", memories(2))


def test_input_and_output_exactly_once(jobs, program, rng, kills):
    input_and_output_exactly_once(jobs, program, rng, kills or 4, "pipe")


# Each of two ranks sends the other so many doubles, in so many rounds, and rests so many seconds after each.
SENDER = """
import sys, time
from mpi4py import MPI
import numpy
world = MPI.COMM_WORLD
rounds, doubles = map(int, sys.argv[1:3])
mine, theirs, total = numpy.zeros(doubles), numpy.zeros(doubles), 0.0
for number in range(rounds):
    mine[:] = number + world.rank
    world.Sendrecv(mine, (world.rank + 1) % world.size, recvbuf=theirs)
    total += theirs.sum()
    time.sleep(float(sys.argv[3]))
print("rank", world.rank, total)
"""


def held(path):
    """The messages that the only channel memory of a job reports."""
    (memory,) = json.loads(path.read_text())["channel_memories"]
    return memory


@pytest.mark.gate("in a file")
@pytest.mark.parametrize("how", ["in memory", "in a file"])
def test_a_channel_memory_stays_bounded(jobs, tmp_path, how):
    """100 MiB go through a channel memory with room for 16 MiB; or with a file and room for 2 MiB, which is what a
    round of 20 ms sends. Without images the first ends with an error, and the second's file has nearly all of it in the
    end."""
    size = ["200", "32768", "0.01"] if how == "in memory" else ["50", "131072", "0.02"]
    command, spill, stats = [harness.PYTHON, "-c", SENDER, *size], tmp_path / "spill", tmp_path / "stats"
    spill.mkdir()
    bound = ["--log-memory", "8M"] if how == "in memory" else ["--log-memory", "1M", "--spill-dir", spill]
    calm = jobs.calm(2, *command)
    options = [*MANY, *bound, *every("20ms"), "--stats-json", stats]
    job = jobs.start(2, *command, options=options)
    job.reach(lambda: len(job.events) > 40 and len(job.of("checkpointed", rank=1)) > 1)
    job.kill([1])
    result = job.wait().ok()
    assert by_rank(result.out) == by_rank(calm.out), result.describe()
    came_about(began_from_images(result), result)
    memory = held(stats)
    assert memory["bytes"] > 90 << 20 and memory["most_bytes"] < memory["bytes"] // 2 < memory["forgotten_bytes"], memory
    if how == "in a file":
        assert memory["most_memory_bytes"] <= 2 << 20 < min(memory["most_bytes"], memory["spilled_bytes"]), memory
        assert memory["spill_file_bytes"] < memory["bytes"] // 2, memory
    assert not any(spill.iterdir())


def resident(pid):
    """Bytes of memory of a process's own."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))


def test_a_rank_that_computes_does_not_gather_what_is_sent_to_it(jobs, tmp_path):
    """120 MiB wait for the rank in its channel memory, however many images it has meanwhile."""
    options = [*memories(1), *every("20ms")]
    job = jobs.start(3, harness.PYTHON, "-c", SLOW, tmp_path, "60", options=options)
    job.reach(lambda: (tmp_path / "slow").exists())
    before = resident(job.lives()[2][0])
    job.reach(lambda: (tmp_path / "sent").exists())
    taken = len(job.events)
    job.reach(lambda: len([e for e in job.events[taken:] if e["event"] == "checkpointed" and e["rank"] == 2]) >= 20)
    grown = resident(job.lives()[2][0]) - before
    (tmp_path / "go").touch()
    result = job.wait().ok()
    assert sorted(result.text.splitlines()) == ["sent", f"sum {SUM[60]}"]
    assert grown < 32 << 20, grown


def test_a_memory_that_fills_asks_for_images(jobs, tmp_path):
    """Even if the user asks for none. From half of the room until all of it is used there is time for images."""
    command, stats = [harness.PYTHON, "-c", SENDER, "150", "32768", "0.02"], tmp_path / "stats"
    calm = jobs.calm(2, *command)
    result = jobs.run(2, *command, options=["--log-memory", "16M", "--stats-json", stats]).ok()
    assert by_rank(result.out) == by_rank(calm.out)
    came_about(result.of("channel_memory_fills") and result.of("checkpointed"), result)
    memory = held(stats)
    assert memory["most_memory_bytes"] <= 32 << 20 < memory["forgotten_bytes"], memory


def test_a_damaged_file_is_passed_over(jobs, program, tmp_path):
    survives_damage(jobs, program, tmp_path / "images", memories(2))


def test_before_two_files_the_program_begins_again(jobs, program, tmp_path):
    survives_without_two_files(jobs, program, tmp_path / "images", memories(2))


@pytest.mark.parametrize("name", ["master_worker", slow("messages"), slow("numpy_cg.py")])
def test_ranks_are_rebuilt_from_files(jobs, program, tmp_path, name):
    survives_by_files(jobs, program, tmp_path, name, memories(2))


@pytest.mark.slow
def test_a_rank_whose_image_was_killed_takes_all_to_the_beginning(jobs, program):
    """Messages from before the image are forgotten: all ranks begin again, and so do the channel memories."""
    command = [*program("crash"), "99", "kill", "0", "always", "20000"]
    calm = jobs.calm(3, *command)
    job = jobs.start(3, *command, options=[*MANY, *memories(2)])
    job.says(b"iteration 50 ")
    job.process.send_signal(signal.SIGUSR1)
    job.reach(lambda: {event["rank"] for event in job.of("checkpointed")} == {0, 1, 2})
    # While it is stopped, it cannot have a new image before it dies.
    job.strike([1], signal.SIGSTOP)
    assert kill_snapshots(job, 1) == 1
    job.reach_event("image_lost", rank=1)
    job.kill([1])
    job.reach_event("returned", wave=0)
    result = job.wait().ok()
    assert by_rank(result.out) == by_rank(calm.out), result.describe()
    assert len(result.of("returned")) == 1 and len(result.of("channel_memory_started")) == 4, result.describe()


def test_a_channel_memory_that_stands_still_stops_no_rank_for_long(jobs, program):
    """It cannot confirm that it has everything."""
    job = jobs.start(2, *program("crash"), *LONG, options=memories(1))
    job.says(b"iteration 50 ")
    has_images_when_a_server_goes_on(job, job.newest("channel_memory_started")["pid"], "a channel memory does not answer")


def test_images_on_request(jobs, program):
    has_images_on_request(jobs, jobs.start(2, *program("crash"), *LONG), "channel memories")


def test_spawned_ranks(jobs, program, rng):
    command = [*program("spawn"), "6", "2", "20"]
    calm = jobs.run(2, *command, protocol="none").ok()
    options = [*MANY, *memories(2), *every("30ms"), "--fault", "random,seed=4,mean=150ms,count=3"]
    result = jobs.run(2, *command, options=options).ok()
    assert sorted(result.out.splitlines()) == sorted(calm.out.splitlines())
    came_about(result.restarts > 0, result)


def test_without_the_dispatcher(jobs, program):
    """Nothing stays behind, not even sleeping images (the fixture checks that)."""
    without_the_one_or_the_other(jobs, program, "dispatcher", "checkpointed")


@pytest.mark.soak
@pytest.mark.parametrize("period, count", [("50ms", 1), ("300ms", 3)])
@pytest.mark.parametrize("size", [3, 8])
@pytest.mark.parametrize("entry", PROGRAMS, ids=str)
def test_soak(jobs, program, rng, kills, request, entry, size, period, count):
    soak(jobs, program, rng, request, entry, size, kills or 8, [*memories(count), *every(period)])
