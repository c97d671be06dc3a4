# SPDX-License-Identifier: Apache-2.0
"""A job's measurements of itself (`--stats`, `--stats-json`): counts that kills do not change, and times that add
up."""

import json
import os
import signal

import pytest

import harness
from settings import MANY, SMALL_LOG, TOLERATE_NODE, every
from survival import LONG, measured, ring

pytestmark = pytest.mark.protocol("pessimistic")
COUNTS = ["messages", "bytes", "deliveries", "delivered_bytes", "sizes"]
RING = ["99", "kill", "0", "always"]


def counts(stats):
    return [{name: rank[name] for name in COUNTS} for rank in [stats["total"], *stats["ranks"]]]


HOW = {
    "logs": ["--fault", "rank=1,messages=20000", "--fault", "rank=2,at=150ms"],
    "in replay": ["--fault", "rank=1,messages=20000", "--fault", "rank=1,during=replay"],
    "images": [*every("40ms"), "--fault", "rank=1,messages=20000", "--fault", "rank=all,at=200ms"],
    "node": [*TOLERATE_NODE, "--fault", "rank=1,messages=20000"],
}


@pytest.mark.gate("logs", "images", "waves", "auto")
@pytest.mark.parametrize("how", [*HOW, "files", "waves", "auto"])
def test_nothing_counts_twice(jobs, program, how):
    """Messages that a later life sends again are those that an earlier one sent."""
    command = program("crash") + [*RING, "20000"]
    _, calm = measured(jobs, 3, *command, name="calm")
    options, protocol = HOW.get(how, HOW["images"]), None
    if how == "files":
        options = [*options, "--checkpoint-dir", jobs.directory / "images"]
    if how in ("waves", "auto"):
        protocol = {"waves": "blocking", "auto": "auto"}[how]
    result, stats = measured(jobs, 3, *command, options=[*MANY, *options], protocol=protocol)
    result.ok()
    assert counts(stats) == counts(calm)
    assert stats["recoveries"]["restarts"] == result.restarts > 0
    assert stats["complete"] and stats["protocol"] == (protocol or "pessimistic")
    total = stats["total"]
    assert sum(size["messages"] for size in total["sizes"]) == total["messages"] == sum(rank["messages"] for rank in stats["ranks"])
    assert total["deliveries"] == total["messages"], "all that was sent has been delivered"


@pytest.mark.parametrize("how", ["images", "waves"])
def test_advice_of_a_run(jobs, program, how):
    """A run's own figures are enough for advice, and `--stats` ends with it."""
    options = [*MANY, *every("40ms"), "--fault", "rank=1,messages=20000", "--stats"]
    protocol = "blocking" if how == "waves" else None
    result, stats = measured(jobs, 3, *program("crash"), *RING, "20000", options=options, protocol=protocol)
    assert "advice, for a failure every " in result.ok().errors, result.describe()
    advice = json.loads(jobs.resurgo("advise", jobs.directory / "stats", "--json").ok().text)
    assert advice["mtbf_seconds"] == pytest.approx(stats["wall_seconds"] / stats["recoveries"]["failures"])
    assert 0 < advice["cost_seconds"] < 5 and advice["nodes_at_once"] == 0
    expected = [choice["expected_seconds"] for choice in advice["choices"]]
    assert {choice["after_failure"] for choice in advice["choices"]} == {"waves", "logging", "begins again"}
    assert expected[0] <= 1.01 * min(time for time in expected if time)
    assert "take: " in jobs.resurgo("advise", jobs.directory / "stats", "--mtbf", "1h", "--time", "30d").ok().text


def test_a_run_without_images_has_no_advice(jobs, program):
    result, _ = measured(jobs, 2, *program("hello"), options=["--stats"])
    assert "advice" not in result.ok().errors
    refused = jobs.resurgo("advise", jobs.directory / "stats")
    assert refused.code == 2 and "give --cost" in refused.errors and refused.errors.count("\n") == 1, refused.describe()


SENDS = """
from mpi4py import MPI
world = MPI.COMM_WORLD
for size, number in ((100, 10), (70000, 5), (0, 3)):
    for _ in range(number):
        if world.rank == 0:
            world.Send(bytearray(size), 1)
        else:
            world.Recv(bytearray(size))
"""


def test_sizes(jobs):
    _, stats = measured(jobs, 2, harness.PYTHON, "-c", SENDS)
    classes = {size["up_to"]: size for size in stats["ranks"][0]["sizes"]}
    assert classes[128]["messages"] >= 10 and classes[0]["messages"] >= 3
    assert classes[131072] == {"up_to": 131072, "messages": 5, "bytes": 350000}
    assert stats["ranks"][1]["delivered_bytes"] == stats["ranks"][0]["bytes"]


def test_waiting_for_the_event_logger(jobs, program):
    options = [*TOLERATE_NODE, "--stats"]
    result, stats = measured(jobs, 3, *program("crash"), *RING, "3000", options=options)
    total = stats["total"]
    trips, held = total["event_logger_round_trips"], total["held_sends"]
    assert 0 < trips <= total["deliveries"] and 0 < held <= total["messages"], total
    assert 0 < total["event_logger_seconds"] / trips <= total["longest_event_logger_seconds"] < result.seconds
    assert 0 < total["held_seconds"] / held <= total["longest_held_seconds"] < result.seconds
    assert "event logger: " in result.errors and f"{held:,} sends held" in result.errors, result.describe()


def test_log_memory(jobs, program):
    """It grows with what is sent, images let go of it, and the excess goes to a file."""
    busy = program("transpose") + ["64", "200"]
    _, stats = measured(jobs, 4, *busy)
    kept = [rank["log_bytes"] for rank in stats["ranks"]]
    assert all(bytes >= rank["bytes"] for bytes, rank in zip(kept, stats["ranks"])), stats["ranks"]
    assert stats["total"]["log_bytes"] == sum(kept) and stats["total"]["most_log_bytes"] == max(kept)
    result, stats = measured(jobs, 4, *busy, options=SMALL_LOG, name="bound")
    assert result.ok().of("checkpointed")
    assert all(rank["log_bytes"] <= rank["most_log_bytes"] <= 4 << 20 for rank in stats["ranks"]), stats["ranks"]
    spill = jobs.directory / "spill"
    spill.mkdir()
    options = [*SMALL_LOG, "--spill-dir", spill, *TOLERATE_NODE, "--fault", "rank=1,messages=900"]
    result, stats = measured(jobs, 4, *busy, options=options, name="spilled")
    assert stats["total"]["spilled_bytes"] == result.ok().of("job_ended")[0]["spilled_segments"] * (64 << 10) > 0


PARTS = ["detect", "end", "fetch_image", "begin", "collect", "replay", "catch_up"]


def test_parts_of_recoveries(jobs, program):
    """For a death at a known moment all parts are known, and add up."""
    # So late that the rank is in MPI, also where starting it takes long.
    faults = ["--fault", "rank=1,messages=20000", "--fault", "rank=2,at=1s"]
    result, stats = measured(jobs, 3, *program("crash"), *RING, "100000", options=[*every("60ms"), *faults])
    each = stats["recoveries"]["each"]
    assert len(each) == 2 and stats["recoveries"]["left_out"] == 0, result.describe()
    for recovery in each:
        assert recovery["complete"] and recovery["life"] == 2
        parts = [recovery[f"{part}_seconds"] for part in PARTS]
        assert all(part >= 0 for part in parts), recovery
        assert sum(parts) == pytest.approx(recovery["total_seconds"], abs=1e-6), recovery
        (began,) = (event for event in result.of("started") if event["rank"] == recovery["rank"] and event["life"] == 2)
        (failed,) = (event for event in result.of("failed") if event["rank"] == recovery["rank"])
        assert recovery["image"] == began["image"] and 0 < recovery["time"] <= failed["time"]
        (caught_up,) = (event for event in result.of("caught_up") if event["rank"] == recovery["rank"])
        assert recovery["replayed_deliveries"] == caught_up["deliveries"]
    assert all(recovery["total_seconds"] > 0 for recovery in each)
    # One of them may have died just after an image.
    assert any(recovery["replay_seconds"] > 0 for recovery in each)


def test_nobody_knows_when_a_process_was_killed_from_outside(jobs, program):
    file = jobs.directory / "stats"
    job = ring(jobs, program, 3, "started", options=["--stats-json", file, "--stats"])
    job.says(b"iteration 50 ")
    job.kill([1])
    job.reach_event("caught_up", rank=1)
    job.process.terminate()
    result = job.wait(10)
    (recovery,) = json.loads(file.read_text())["recoveries"]["each"]
    assert recovery["detect_seconds"] is None and recovery["total_seconds"] > 0, recovery
    assert recovery["image"] == 0 and not recovery["from_file"] and recovery["wave"] is None
    assert "recovery of rank 1 (life 2, from the beginning): end " in result.errors, result.describe()


def test_a_return_to_a_wave(jobs, program):
    file = jobs.directory / "stats"
    options = [*every("50ms"), "--stats-json", file]
    job = ring(jobs, program, 3, "wave_complete", options=options, protocol="blocking")
    job.kill([2])
    job.reach_event("returned")
    job.process.terminate()
    result = job.wait(10)
    stats = json.loads(file.read_text())
    (recovery,), returned = stats["recoveries"]["each"], result.of("returned")[0]
    assert recovery["wave"] == returned["wave"] > 0 and recovery["rank"] == 2, recovery
    assert recovery["complete"] and recovery["replay_seconds"] is None
    waves = [(one["number"], one["total_seconds"]) for one in stats["checkpoints"]["each"]]
    assert waves == [(event["wave"], event["total_seconds"]) for event in result.of("wave_complete")]
    assert all(one["rank"] is None for one in stats["checkpoints"]["each"])
    assert stats["checkpoints"]["waves"] == len(waves)


def test_checkpoints_one_by_one(jobs, program):
    file = jobs.directory / "stats"
    options = [*every("50ms"), "--checkpoint-dir", jobs.directory / "images", "--stats", "--stats-json", file]
    job = jobs.start(3, *program("crash"), *RING, "30000", options=options)
    job.reach(lambda: len(job.of("checkpointed")) > 3, what="four images")
    result = job.wait().ok()
    told, taken = json.loads(file.read_text())["checkpoints"], result.of("checkpointed")
    assert [(one["rank"], one["number"], one["individual_seconds"]) for one in told["each"]] == [
        (event["rank"], event["image"], event["stall_seconds"]) for event in taken
    ]
    written = {(event["rank"], event["image"]): event for event in result.of("image_written")}
    for one in told["each"]:
        event = written.get((one["rank"], one["number"]))
        assert one["files"] == (event is not None) and one["bytes"] == (event and event["bytes"])
        assert one["written_bytes"] == (event and event["written_bytes"])
        assert one["individual_seconds"] <= one["total_seconds"]
        assert one["effective_delay_seconds"] == pytest.approx(one["individual_seconds"] / 3, abs=1e-8)
    assert told["images"] == len(taken) > 3 and told["written_bytes"] == sum(event["written_bytes"] for event in written.values())
    assert f"{len(taken)} images: a rank stood still for" in result.errors


@pytest.mark.gate("auto")
@pytest.mark.parametrize("protocol", ["pessimistic", "blocking", "auto"])
def test_a_resumed_job_goes_on_counting(jobs, program, protocol):
    command = program("crash") + [*RING, "60000"]
    _, calm = measured(jobs, 3, *command, name="calm")
    options = ["--checkpoint-dir", jobs.directory / "images", "--stats-json", jobs.directory / "first"]
    job = jobs.start(3, *command, options=options, protocol=protocol)
    job.says(b"iteration 3000 ")
    jobs.resurgo("suspend", job.process.pid).ok()
    assert job.wait(10).code == 75
    first, second = json.loads((jobs.directory / "first").read_text()), jobs.directory / "second"
    jobs.resurgo("resume", "--stats-json", second, job.process.pid).ok()
    stats = json.loads(second.read_text())
    assert counts(stats) == counts(calm)
    assert 0 < first["total"]["messages"] < stats["total"]["messages"] and first["exit_code"] == 75


def test_a_job_that_is_ended_still_tells(jobs, program):
    file = jobs.directory / "stats"
    job = jobs.start(3, *program("crash"), *LONG, options=["--stats-json", file, "--stats", "-q"])
    job.says(b"iteration 50 ")
    job.process.send_signal(signal.SIGTERM)
    result = job.wait(10)
    stats = json.loads(file.read_text())
    assert result.code == stats["exit_code"] == 143 and stats["complete"]
    assert all(rank["messages"] > 50 and rank["deliveries"] > 50 for rank in stats["ranks"])
    assert "exit status 143" in result.errors and "rank restarts" in result.errors


def test_a_job_that_fails_still_tells(jobs, program):
    """The ranks' counts lie in memory that outlives them."""
    result, stats = measured(jobs, 3, *program("crash"), "1", "segv", "2000", "always", "100000")
    assert result.code == stats["exit_code"] == 139
    assert all(rank["messages"] > 1000 for rank in stats["ranks"]), stats["ranks"]
    last = stats["recoveries"]["each"][-1]
    assert not last["complete"] or last["life"] == stats["ranks"][1]["restarts"] + 1


def test_a_job_that_loses_its_agent_tells_what_it_knows(jobs, program):
    file = jobs.directory / "stats"
    job = jobs.start(2, *program("crash"), *LONG, options=["--stats-json", file, "--stats", "--fault", "rank=1,messages=5000"])
    job.reach_event("caught_up", rank=1)
    ranks = {pid for pid, _ in job.lives().values()}
    (agent,) = [pid for pid in job.processes() if pid not in ranks and pid != job.process.pid]
    os.kill(agent, signal.SIGKILL)
    result = job.wait(20)
    stats = json.loads(file.read_text())
    assert result.code == stats["exit_code"] == 1 and not stats["complete"]
    # Counts left by the killed life of rank 1.
    assert stats["ranks"][1]["messages"] + stats["ranks"][1]["deliveries"] == 5000
    assert stats["recoveries"]["restarts"] == 1 and "lost with the agent" in result.errors


def test_a_full_disk(jobs, program):
    """The job ends as it would; the user is told about the file."""
    result = jobs.run(2, *program("hello"), options=["--stats-json", "/dev/full"])
    assert result.ok().errors.count("--stats-json") == 1 and "No space left" in result.errors, result.describe()


def test_by_the_environment(jobs, program):
    file = jobs.directory / "stats"
    env = harness.environment(RESURGO_STATS="1", RESURGO_STATS_JSON=file)
    result = jobs.run(2, *program("hello"), env=env).ok()
    assert json.loads(file.read_text())["schema"] == 1
    assert "resurgo: statistics: pessimistic, 2 ranks" in result.errors
    env = harness.environment(RESURGO_STATS="0")
    assert "statistics" not in jobs.run(2, *program("hello"), env=env).ok().errors


def test_spawned_ranks_are_ranks(jobs, program):
    _, stats = measured(jobs, 2, *program("spawn"), "2", "2", "50")
    assert [rank["rank"] for rank in stats["ranks"]] == list(range(len(stats["ranks"]))) and len(stats["ranks"]) > 2
    assert stats["ranks"][-1]["messages"] > 0
