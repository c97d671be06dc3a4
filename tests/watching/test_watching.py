# SPDX-License-Identifier: Apache-2.0
"""The state of a running job: what is shown of it while its ranks wait, fail, and come back."""

import json
import re

import pytest

import harness


@pytest.fixture
def state(jobs):
    """The state of a job."""

    def ask(job):
        return json.loads(jobs.resurgo("ps", "--json", job.process.pid, timeout=10).ok().text)

    return ask


def doing(state):
    return [rank["state"] for rank in state["ranks"]]


def test_what_ranks_do(waits, state, jobs):
    job = waits(protocol="pessimistic")
    job.reach(lambda: doing(state(job)) == ["computing", "waiting", "computing"], what="rank 1 to wait")
    told = state(job)
    assert [rank["waits_for"] for rank in told["ranks"]] == [None, 0, None]
    assert told["job"] == job.process.pid and told["protocol"] == "pessimistic" and not told["is_ending"]
    assert {rank["rank"]: (rank["pid"], rank["life"]) for rank in told["ranks"]} == job.lives()
    assert told["messages"] == sum(rank["messages"] for rank in told["ranks"]) > 0
    assert told["log_bytes"] == told["nodes"][0]["log_bytes"] > 0 and told["nodes"][0]["ranks"] == 3
    assert told["last_image"] is None and told["failures"] == told["restarts"] == 0
    assert jobs.resurgo("checkpoint", job.process.pid).ok()
    before = state(job)
    assert before["images"] == 3 and before["last_image"]["seconds"] < 60, before
    killed = jobs.resurgo("kill", "--rank", "1", job.process.pid).ok()
    assert killed.text == f"job {job.process.pid}: rank 1 (pid {told['ranks'][1]['pid']}) is killed\n"
    job.reach(lambda: state(job)["ranks"][1]["life"] == 2 and doing(state(job))[1] == "waiting", what="rank 1 to be back")
    job.reach_event("caught_up", rank=1)
    told = state(job)
    assert (told["failures"], told["restarts"], told["ranks"][1]["restarts"]) == (1, 1, 1)
    assert told["messages"] >= before["messages"]
    events = [{name: value for name, value in event.items() if name != "number"} for event in told["events"]]
    assert events == job.events and told["last_event"] == len(events)
    assert [event["number"] for event in told["events"]] == list(range(1, len(events) + 1))
    assert waits.end(job).restarts == 1


def test_a_table_for_people(waits, state, jobs):
    job = waits(2, protocol="blocking")
    assert jobs.resurgo("checkpoint", job.process.pid).ok()
    text = jobs.resurgo("ps", job.process.pid).ok().text
    assert re.search(rf"^job {job.process.pid}: .*python -c ", text)
    assert re.search(r"^blocking, .*, 0 failures, 0 restarts; wave 1 .* ago$", text, re.M), text
    rows = [line.split() for line in text.splitlines()]
    for rank, (pid, life) in job.lives().items():
        assert any(row[:4] == [str(rank), "0", str(pid), str(life)] for row in rows), text
    assert re.search(r"wave complete .*wave=1", text), text
    waits.end(job)


def test_a_lost_node(waits, state):
    job = waits(4, protocol="blocking", options=["--nodes", "3", "--spares", "1", "--fault", "node=1,at=0s"])
    if job.until_event("returned"):
        job.reach(lambda: all(rank["life"] > 1 for rank in state(job)["ranks"]), what="all ranks to be back")
        told = state(job)
        assert [node["state"] for node in told["nodes"]] == ["there", "lost", "there"], told
        assert {rank["node"] for rank in told["ranks"]} == {0, 2}, told
        assert sum(node["ranks"] for node in told["nodes"]) == 4 and told["nodes"][1]["ranks"] == 0
    waits.end(job)


def test_a_rank_that_is_lost_for_good(jobs, state, program):
    script = (
        "import os, sys, time; from mpi4py import MPI; MPI.COMM_WORLD.Barrier(); print('ready', flush=True)\n"
        "while not os.path.exists(sys.argv[1]): time.sleep(0.01)"
    )
    go = jobs.directory / "go"
    job = jobs.start(3, harness.PYTHON, "-c", script, go, options=["--ft"])
    job.reach(lambda: job.out.read_bytes().count(b"ready") == 3)
    jobs.resurgo("kill", job.process.pid, "--rank", "2").ok()
    job.reach_event("lost", rank=2)
    told = state(job)
    assert doing(told)[2] == "lost" and told["ranks"][2]["pid"] is None, told
    assert "lost" not in doing(told)[:2] and told["restarts"] == 0
    refused = jobs.resurgo("kill", "--rank", "2", job.process.pid)
    assert refused.code == 1 and "rank 2 has no process now" in refused.errors
    job.process.terminate()
    job.wait(10)


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["ps", "1"], "there is no job 1; resurgo ps lists them"),
        (["ps", "1", "2"], "ps takes no arguments but JOB"),
        (["kill", "--rank", "1"], "kill --rank takes a rank and the number of one job"),
        (["kill", "--rank", "x", "1"], "--rank x: not the number of a rank"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_arguments(jobs, arguments, words):
    result = jobs.resurgo(*arguments)
    assert result.code == 2 and words in result.errors and not result.text, result.describe()


def test_a_rank_that_does_not_exist(waits, jobs):
    job = waits(1)
    refused = jobs.resurgo("kill", "--rank", "7", job.process.pid)
    assert refused.code == 1 and "it has no rank 7" in refused.errors, refused.describe()
    waits.end(job)
