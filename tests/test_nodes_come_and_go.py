# SPDX-License-Identifier: Apache-2.0
"""Nodes that come while a job runs, and that leave it: by `resurgo join`, `add-host`, `drain`, `remove-host`, and notices."""

import os
import re
import signal
import subprocess
import time

import pytest

import harness
from catalogue import BY_NAME, arguments
from harness import slow
from survival import compare, every, undisturbed
from test_nodes import agents


class Joined:
    """Processes of `resurgo join` on this machine, which end with the test."""

    def __init__(self, job):
        assert job.until(lambda: b"resurgo join" in job.err.read_bytes()), job.result(None).describe()
        told = re.search(r"RESURGO_JOIN_TOKEN=(\w+) resurgo join (\S+)", job.err.read_text())
        self.token, self.address = told.groups()
        self.all = []

    def join(self, slots=2, token=None):
        env = harness.environment(RESURGO_JOIN_TOKEN=token or self.token)
        command = [harness.RESURGO, "join", "--slots", str(slots), self.address]
        self.all.append(subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True))
        return self.all[-1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.all:
            process.kill()
            process.wait(10)


def heat(jobs, program, options, ranks=4, protocol="blocking"):
    """A job with many images; and what waits for it, and compares what it gives with an undisturbed one."""
    entry, command = BY_NAME["heat"], program("heat")
    expected = undisturbed(jobs, command, entry, ranks)
    file = jobs.directory / "result"
    job = jobs.start(ranks, *command, *arguments(entry, True, file), options=options, protocol=protocol)
    return job, lambda patience=90: compare(entry, job.wait(patience), file, expected)


def nodes_of(result):
    """{rank: node} of each rank's last life."""
    return {event["rank"]: event["node"] for event in result.of("started")}


def command(jobs, verb, job, *words):
    return jobs.resurgo(verb, str(job.process.pid), *words, timeout=60)


def test_nodes_join_before_and_while_the_job_runs(jobs, program):
    """One that came first is lost; one that has come later takes its ranks."""
    job, result_after = heat(jobs, program, ["-launcher", "join", "--lease", "3s", *every("100ms")])
    with Joined(job) as nodes:
        wrong = nodes.join(token="0123456789abcdef")
        assert wrong.wait(20) == 1 and "another token" in wrong.stderr.read()
        first, second = nodes.join(), nodes.join()
        assert job.until_event("wave_complete"), job.result(None).describe()
        third = nodes.join()
        assert job.until_event("node_came")
        first.kill()
        result = result_after()
        assert len(result.of("node_lost")) == 1 and result.of("returned"), result.describe()
        assert result.of("node_came")[0]["name"] in nodes_of(result).values(), result.describe()
        assert [process.wait(20) for process in (second, third)] == [0, 0]
        assert "the job needs this node no more" in third.stderr.read()


def test_a_host_is_added_and_takes_the_ranks_of_a_lost_one(jobs, program, rng):
    job, result_after = heat(jobs, program, ["--nodes", "2", "--lease", "3s", *every("100ms")])
    assert job.until_event("wave_complete")
    assert command(jobs, "add-host", job, "more:2").ok().text.endswith("node more is there\n")
    assert "already" in command(jobs, "add-host", job, "more").errors
    os.kill(rng.choice(agents(job)[:2]), signal.SIGKILL)
    result = result_after()
    assert result.of("returned") and "more" in nodes_of(result).values(), result.describe()


def test_a_node_is_drained_and_nothing_is_lost(jobs, program):
    job, result_after = heat(jobs, program, ["--nodes", "3", "--spares", "1", "--lease", "6s"])
    assert job.until(lambda: b"step" in job.out.read_bytes() and len(job.lives()) == 4)
    assert "has no node x" in command(jobs, "drain", job, "x").errors
    command(jobs, "drain", job, "1").ok()
    os.kill(agents(job)[1], signal.SIGKILL)
    command(jobs, "remove-host", job, "0").ok()
    assert job.until(lambda: len(agents(job)) == 1)
    result = result_after()
    waves = [event["wave"] for event in result.of("wave_complete")]
    assert [event["wave"] for event in result.of("returned")] == waves[:2], "nobody goes back further than to this moment"
    assert set(nodes_of(result).values()) == {"2"} and len(result.of("node_left")) == 2, result.describe()


def test_the_last_node_is_not_drained(jobs, program):
    job, result_after = heat(jobs, program, ["--nodes", "2", "-ppn", "2"])
    assert job.until(lambda: len(job.lives()) == 4)
    command(jobs, "remove-host", job, "0").ok()
    refused = command(jobs, "drain", job, "1")
    assert refused.code == 1 and "no other node" in refused.errors
    result_after()


@pytest.mark.parametrize("by", ["signal", slow("file")])
def test_a_node_that_is_about_to_be_taken_away_is_left_in_time(jobs, program, by, tmp_path):
    """The notice comes, its ranks leave, and then everything on it is killed."""
    notice = ["--preempt-signal", "USR2"] if by == "signal" else ["--preempt-file", str(tmp_path / "notice")]
    job, result_after = heat(jobs, program, ["--nodes", "3", "--spares", "1", "--lease", "6s", *notice])
    assert job.until(lambda: len(job.lives()) == 4)
    time.sleep(0.3)
    doomed = agents(job)[1]
    if by == "file":
        # All nodes are this machine: the last one that says so has no other to go to, and keeps its ranks.
        (tmp_path / "notice").write_text("")
        assert job.until_event("node_left") and job.until_event("node_stays")
        result_after()
        return
    os.kill(doomed, signal.SIGUSR2)
    assert job.until_event("node_left", timeout=30)
    os.kill(doomed, signal.SIGKILL)
    result = result_after()
    (wave,) = [event["wave"] for event in result.of("returned")]
    assert wave == result.of("wave_complete")[0]["wave"] and len(result.of("node_lost")) == 1, result.describe()
    assert "1" not in nodes_of(result).values(), result.describe()


@pytest.mark.slow
def test_many_nodes_are_started(jobs, program):
    """More than are started at a time."""
    jobs.run(64, *program("hello"), options=["--nodes", "64"], protocol="none", timeout=120).ok()
