# SPDX-License-Identifier: Apache-2.0
"""Programs that deal with failures themselves, on several nodes: ranks, agents and links are struck, also together."""

import contextlib
import json
import os
import re
import signal
import time

import pytest

import harness
import told
from on_nodes import agents

LEASE = "2s"


@pytest.mark.gate("recv-*", "barrier-*", "comm_dup-*")
@pytest.mark.parametrize("calls", told.CALLS, ids=lambda calls: "-".join(calls[:3]))
def test_blocked_calls_come_back(jobs, program, seed, calls):
    told.check_calls(jobs, program, seed, calls, ["--nodes", "3"])


@pytest.mark.gate("2-7-3-False", "4-9-3-True")
@pytest.mark.parametrize("on, n, kills, lowest", [(2, 4, 1, True), (2, 7, 3, False), (4, 9, 3, True), (4, 4, 2, False)])
def test_survivors_go_on_with_right_answers(jobs, program, seed, on, n, kills, lowest):
    told.check_loop(jobs, program, seed, n, kills, lowest, options=["--nodes", on])


@pytest.mark.parametrize("on, n, kills", [(2, 6, 3), harness.slow(4, 9, 5)])
def test_all_learn_the_same(jobs, program, seed, on, n, kills):
    told.check_agreements(jobs, program, seed, n, kills, ["--nodes", on])


def test_ranks_with_connections_of_their_own(jobs, program, seed):
    """As many ranks as cores: these carry messages between two nodes."""
    for round in range(5):
        told.check_loop(jobs, program, seed + round, 2, 1, round % 2, options=["--nodes", "2"])


def test_revoking_brings_everybody_back(jobs, program):
    result = told.run(jobs, 8, *program("ulfm_revoke"), jobs.directory / "file", options=["--nodes", "4"])
    assert result.code == 0 and result.text == "revoked\n", result.describe()


def begin(jobs, program, seed, n, kills, options, steps=100_000):
    """A job that goes on until a rank is told to end it; returns when all compute."""
    command = [*program("ulfm_loop"), seed % 10**6, steps, kills, 300, 0]
    job = jobs.start(n, *command, options=[*told.FT, *options, "--lease", LEASE])
    job.says(b"begun")
    return job


def ends_well(job, n, gone):
    """The lost ranks are told, each once; the others have right answers, and are as many as each of them thinks."""
    result = job.wait(60)
    assert result.code == 0 and "WRONG" not in result.text, result.describe()
    lost = [event["rank"] for event in result.of("lost")]
    assert len(set(lost)) == len(lost) and gone <= set(lost), result.describe()
    done = re.findall(r"rank (\d+): done, (\d+) of (\d+), shrunk (\d+) times", result.text)
    assert n - len(lost) <= len(done) and len({size for *_, size, _ in done}) == 1, result.describe()
    assert not {int(rank) for rank, *_ in done} & gone, result.describe()
    return result, done


@pytest.mark.parametrize("on, n, number", [(2, 4, signal.SIGKILL), (4, 8, signal.SIGKILL), (3, 6, signal.SIGSTOP)])
@pytest.mark.gate("2-4-9")
def test_a_lost_node_is_the_failure_of_its_ranks(jobs, program, rng, seed, on, n, number):
    """Its agent is killed, or stands still for longer than its lease and comes back. All of its ranks fail at one moment: the
    others shrink once."""
    job = begin(jobs, program, seed, n, 0, ["--nodes", on], steps=3_000)
    time.sleep(rng.uniform(0, 0.3))
    lost = rng.randrange(on)
    agent = agents(job)[lost]
    os.kill(agent, number)
    job.reach_event("node_lost")
    if number == signal.SIGSTOP:
        with contextlib.suppress(ProcessLookupError):
            os.kill(agent, signal.SIGCONT)
    gone = {rank for rank in range(n) if rank * on // n == lost}
    # Their records are not lost with the node.
    records = lambda: json.loads(jobs.resurgo("ft", "records", job.process.pid, "--json").ok().text)
    job.reach(lambda: sorted(one["rank"] for one in records()) == sorted(gone), what="records of the node's ranks")
    result, done = ends_well(job, n, gone)
    assert {int(times) for *_, times in done} == {1}, result.describe()
    assert [event["node"] for event in result.of("node_lost")] == [lost]
    assert set(result.of("lost")[0]) >= {"rank", "left"} and len(result.of("lost")) == len(gone)


@pytest.mark.gate("4-9")
@pytest.mark.parametrize("on, n", [(2, 6), (4, 9)])
def test_ranks_and_nodes_are_lost_together(jobs, program, rng, seed, on, n):
    job = begin(jobs, program, seed, n, 2, ["--nodes", on], steps=2_000)
    time.sleep(rng.uniform(0, 0.3))
    for agent in rng.sample(agents(job), on // 2):
        os.kill(agent, signal.SIGKILL)
    ends_well(job, n, set())


@pytest.mark.soak
@pytest.mark.parametrize("round", range(200))
def test_survivors_go_on_each_time(jobs, program, rng, seed, round):
    """1 to 3 of 4 to 9 ranks on 1, 2 or 4 nodes, and in a third of the jobs on several a node with the others."""
    on, n, kills = [1, 2, 4][round % 3], 4 + round % 6, 1 + round // 6 % 3
    if on == 1 or round // 18 % 3:
        told.check_loop(jobs, program, seed + round, n, kills, round % 2, 400, ["--nodes", on] * (on > 1))
        return
    job = begin(jobs, program, seed + round, n, kills, ["--nodes", on], steps=2_000)
    time.sleep(rng.uniform(0, 0.3))
    os.kill(rng.choice(agents(job)), signal.SIGKILL)
    ends_well(job, n, set())


def test_a_node_that_is_cut_off_is_lost(jobs, nodes, program, rng, seed):
    """It comes back when its ranks have failed: nothing from there counts."""
    command = [*program("ulfm_loop"), seed % 10**6, 10_000, 1, 3000, 0]
    launcher = ["-launcher", "ssh", "-launcher-exec", nodes.bin / "ssh", "-hosts", nodes.hosts(2)]
    job = jobs.start(6, *command, options=[*told.FT, *launcher, "--lease", LEASE])
    job.says(b"begun")
    nodes.cut(2)
    job.reach_event("node_lost")
    nodes.heal(2)
    ends_well(job, 6, {2, 3})


def test_a_node_that_is_lost_before_its_ranks_have_begun_ends_the_job(jobs, program):
    job = jobs.start(4, "sh", "-c", 'sleep 100; exec "$0"', *program("hello"), options=[*told.FT, "--nodes", "2"])
    job.reach(lambda: len(job.lives()) == 4)
    os.kill(agents(job)[1], signal.SIGKILL)
    result = job.wait(30)
    assert result.code != 0 and "not all of its ranks had begun MPI" in result.errors, result.describe()
