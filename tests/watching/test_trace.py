# SPDX-License-Identifier: Apache-2.0
"""`resurgo run --trace`: the trace has what ranks did before they died, and what followed, however the job ends."""

import signal

import pytest

from harness import MANY
from perfetto import Trace
from survival import LONG, every, ring

pytestmark = pytest.mark.protocol("pessimistic")
RING = ["99", "kill", "0", "always"]


def lives(trace, rank):
    return [span["args"]["life"] for span in trace.of(f"rank {rank}", track="lives", category="life")]


def flows(trace, size):
    """Of the messages that both sides have noted: the moments at which they were sent and taken."""
    sent, taken = {}, {}
    for rank in range(size):
        sent |= {flow: span for span in trace.messages(rank, "send") for flow in span["flows"]}
        taken |= {flow: span for span in trace.messages(rank, "receive") for flow in span["ends"]}
    return [(sent[flow], taken[flow]) for flow in sent.keys() & taken.keys()]


def test_a_rank_is_killed_in_the_middle(jobs, program):
    file = jobs.directory / "trace"
    options = ["--trace", file, "--fault", "rank=1,messages=2000"]
    result = jobs.run(3, *program("crash"), *RING, "2000", options=options).ok()
    trace = Trace(file)
    (failure,) = trace.of("rank 1", name="failed")
    (replay,) = trace.of("rank 1", track="replay")
    (recovery,) = trace.of("rank 1", track="recovery")
    assert failure["args"]["cause"] == "killed by SIGKILL" and lives(trace, 1) == [1, 2]
    assert replay["category"] == "replay" and replay["args"]["complete"] and replay["begin"] > failure["begin"]
    assert recovery["begin"] == failure["begin"] and recovery["end"] >= replay["end"]
    (caught_up,) = result.of("caught_up")
    assert replay["args"]["deliveries"] == caught_up["deliveries"]
    # Messages before the death, repeated ones, and those of afterwards.
    before = [span for span in trace.messages(1, "") if span["begin"] < failure["begin"]]
    after = [span for span in trace.messages(1, "") if span["begin"] > failure["begin"]]
    repeated = trace.messages(1, "", category="replay")
    assert len(before) == 2000 and all(span["begin"] >= replay["end"] for span in after), len(before)
    assert all(replay["begin"] <= span["begin"] <= replay["end"] for span in repeated)
    assert len([span for span in repeated if span["name"].startswith("receive")]) == caught_up["deliveries"]
    sends = [span["args"]["number"] for span in trace.messages(1, "send to 2")]
    assert sends == list(range(1, len(sends) + 1)), "each message once, and none is missing"
    assert lives(trace, 0) == lives(trace, 2) == [1]
    pairs = flows(trace, 3)
    assert len(pairs) > 6000 and all(sent["begin"] <= taken["begin"] for sent, taken in pairs)
    assert all(sent["args"]["bytes"] == taken["args"]["bytes"] for sent, taken in pairs)


def test_a_job_that_fails_has_a_trace(jobs, program):
    file = jobs.directory / "trace"
    options = ["--trace", file, "--fault", "rank=1,messages=500"]
    result = jobs.run(3, *program("crash"), *RING, "100000", options=options, protocol="none")
    assert result.code != 0
    trace = Trace(file)
    assert trace.of("rank 1", name="failed") and not trace.of("rank 1", track="replay")
    assert len(trace.messages(1, "")) == 500 and trace.messages(0, "receive from 2"), "all that the dead rank did"
    assert trace.of("job", name="job_ended")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_job_that_the_user_ends_has_a_trace(jobs, program, number):
    file = jobs.directory / "trace"
    job = ring(jobs, program, 3, "started", options=["--trace", file, "--trace-memory", "64K"])
    job.says(b"iteration 50 ")
    job.process.send_signal(number)
    assert job.wait().code == 128 + number
    trace = Trace(file)
    for rank in range(3):
        assert trace.of(f"rank {rank}", name="started") and lives(trace, rank) == [1]
    assert any(trace.messages(rank, "") for rank in range(3))


def test_the_newest_records_stay(jobs, program):
    """When the ring is full the oldest records go, and the trace says how many."""
    file = jobs.directory / "trace"
    options = ["--trace", file, "--trace-memory", "64K"]
    jobs.run(2, *program("crash"), *RING, "5000", options=options).ok()
    trace = Trace(file)
    for rank in range(2):
        (missing,) = trace.of(f"rank {rank}", category="missing")
        noted = [span for span in trace.of(f"rank {rank}", track="MPI") if span["category"] != "missing"]
        assert len(noted) <= 1024 and missing["args"]["missing"] + len(noted) > 10000
        assert missing["begin"] <= min(span["begin"] for span in noted)
        assert max(span["args"]["number"] for span in trace.messages(rank, "send")) >= 5000


@pytest.mark.protocol("blocking")
def test_all_ranks_return_to_a_wave(jobs, program):
    """The rings stay when the node memory is emptied, and a woken process goes on in its own."""
    file = jobs.directory / "trace"
    job = ring(jobs, program, 3, "wave_complete", options=[*every("100ms"), "--trace", file, "--trace-memory", "256M"])
    first = job.of("wave_complete")[-1]["wave"]
    job.kill([1])
    job.reach_event("returned")
    job.reach(lambda: job.of("wave_complete")[-1]["wave"] > first, what="a wave after the return")
    job.process.send_signal(signal.SIGTERM)
    job.wait()
    trace = Trace(file)
    (returned,) = trace.of("job", name="returned")
    (failure,) = trace.of("rank 1", name="failed")
    assert trace.of("job", track="waves")
    for rank in range(3):
        assert len(lives(trace, rank)) == 2
        messages = trace.messages(rank, "")
        assert any(span["begin"] < failure["begin"] for span in messages), "of the first life"
        assert any(span["begin"] > returned["begin"] for span in messages), "of the second"
        assert [span["args"]["life"] for span in trace.of(f"rank {rank}", track="MPI", category="life")] == [1, 2]


def test_a_rank_goes_on_from_its_image(jobs, program):
    file = jobs.directory / "trace"
    job = ring(jobs, program, 3, "checkpointed", options=[*every("60ms"), "--trace", file, "--trace-memory", "256M"])
    job.kill([1])
    job.reach_event("caught_up")
    job.process.send_signal(signal.SIGTERM)
    result = job.wait()
    trace = Trace(file)
    (began,) = (event for event in result.of("started") if event["rank"] == 1 and event["life"] == 2)
    (replay,) = trace.of("rank 1", track="replay")
    assert began["image"] > 0 and replay["args"]["deliveries"] == result.of("caught_up")[0]["deliveries"]
    images = [span["args"]["image"] for span in trace.of("rank 1", track="images")]
    assert began["image"] in images


@pytest.mark.parametrize("number", [1, 2])
def test_a_node_is_lost(jobs, program, number):
    """Of the lost node the trace has what had come to the dispatcher; the others are whole."""
    file = jobs.directory / "trace"
    options = ["--nodes", "3", "-ppn", "1", "--spares", "1", "--lease", "1s", "--trace", file, *every("100ms")]
    job = ring(jobs, program, 2, "wave_complete", protocol="blocking", options=[*options, "--fault", "node=1,at=4s"])
    job.reach_event("node_lost")
    if number == 2:
        job.reach_another("wave_complete")
    job.process.send_signal(signal.SIGTERM)
    job.wait()
    trace = Trace(file)
    (lost,) = trace.of("nodes", name="node_lost")
    nodes = {span["args"]["node"]: span for span in trace.of("nodes", category="node")}
    assert set(nodes) == {0, 1, 2} and nodes[1]["end"] <= lost["begin"] < nodes[0]["end"]
    assert any(span["begin"] < lost["begin"] for span in trace.messages(1, "")), "news came each second"
    assert any(span["begin"] < lost["begin"] for span in trace.messages(0, ""))
    if number == 2:
        assert any(span["begin"] > lost["begin"] for span in trace.messages(1, "")), "of the spare node"


@pytest.mark.parametrize("is_traced", [True, False])
def test_a_resumed_job(jobs, program, is_traced):
    """A job that was traced can be traced again; another has no memory for it."""
    first, second = jobs.directory / "first", jobs.directory / "second"
    options = ["--checkpoint-dir", jobs.directory / "images", *(["--trace", first] if is_traced else [])]
    job = jobs.start(2, *program("crash"), *RING, "400000", options=options)
    job.says(b"iteration 3000 ")
    jobs.resurgo("suspend", job.process.pid).ok()
    assert job.wait(10).code == 75
    result = jobs.resurgo("resume", "--trace", second, job.process.pid)
    if not is_traced:
        assert result.code == 2 and "without it" in result.errors and result.errors.count("\n") == 1, result.describe()
        jobs.resurgo("kill", job.process.pid).ok()
        return
    result.ok()
    assert Trace(first).of("job", name="suspended")
    trace = Trace(second)
    for rank in range(2):
        numbers = [span["args"]["number"] for span in trace.messages(rank, "send")]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), "the woken process goes on in a new ring"
        assert 3000 < numbers[0] < 400000 <= numbers[-1]


def test_a_file_that_cannot_be_written(jobs, program):
    for file, word in [("/nowhere/trace", "No such file"), ("/", "directory")]:
        result = jobs.run(2, *program("hello"), options=["--trace", file])
        assert result.code == 1 and result.errors.count("\n") == 1, result.describe()
        assert "--trace" in result.errors and word in result.errors and "hello" not in result.text
    result = jobs.run(2, *program("hello"), options=["--trace", "/dev/full"])
    assert result.ok().errors.count("--trace") == 1 and "No space left" in result.errors, result.describe()


def test_wrong_amounts(jobs, program):
    for amount in ("1K", "1T", "lots"):
        result = jobs.resurgo("run", "--trace-memory", amount, *program("hello"))
        assert result.code == 2 and result.errors.count("\n") == 1 and "--trace-memory" in result.errors
