# SPDX-License-Identifier: Apache-2.0
"""Ranks that finish long before the others, on several nodes: waves are taken, and their ends are part of them."""

import signal
from pathlib import Path

import pytest

import harness
from chains import interrupt
from ends import MUCH_AFTER_AN_END, MUCH_FROM_AN_END, TAKEN_AFTER_AN_END, THREE, leaving, lives_of_the_end
from harness import by_rank, slow
from on_nodes import agents
from settings import EVERY, MANY, TOGETHER, WAVES, every
from survival import agent_of, began_from_images

together = pytest.mark.parametrize("protocol", TOGETHER)


def start(jobs, protocol, command, period="100ms"):
    options = [*MANY, *THREE, *(every(period) if period else [])]
    return jobs.start(3, *command, options=options, protocol=protocol)


def lose_node_of_the_end(job):
    """Kills the agent of rank 2, which has finished."""
    others = {int(agent_of(job, rank)) for rank in (0, 1)}
    (victim,) = set(agents(job)) - others
    job.hit(victim, signal.SIGKILL)
    job.reach_event("node_lost")


def come_again(job, count=2):
    """Waits for waves that were asked for after now: one may be under way."""
    for _ in range(count):
        job.reach_another("wave_complete")


@pytest.mark.gate("blocking", "chandy-lamport")
@together
def test_a_rank_that_has_finished_is_part_of_later_waves(jobs, protocol):
    """Ranks fail, and nodes are lost, its own first: it is not done again."""
    command, go, calm = leaving(jobs)
    job = start(jobs, protocol, command)
    job.reach_event("finished", rank=2)
    come_again(job)
    job.strike([1])
    job.reach_another("returned")
    assert jobs.resurgo("checkpoint", job.process.pid).ok().text.endswith("a wave is complete\n")
    lose_node_of_the_end(job)
    # Nobody returns for it, and waves go on.
    come_again(job)
    assert [event["event"] for event in job.events].count("returned") == 1
    go(30)
    job.strike([0])
    job.reach_another("returned")
    come_again(job)
    go(60)
    job.hit(int(agent_of(job, 1)), signal.SIGKILL)
    job.reach_another("returned")
    come_again(job)
    go(90)
    result = job.wait().ok()
    assert by_rank(result.out) == by_rank(calm().out)
    assert lives_of_the_end(result) == [1], result.describe()
    assert len(began_from_images(result)) >= 2 and all(event["wave"] > 0 for event in result.of("returned")), result.describe()


def test_single_failures_and_lost_nodes_under_auto(jobs):
    """A failed rank goes on alone. When a node is lost all return, also for the node of the end; that is not done again."""
    command, go, calm = leaving(jobs)
    job = start(jobs, "auto", command)
    job.reach_event("finished", rank=2)
    come_again(job)
    job.strike([1])
    job.reach_another("started", rank=1)
    assert jobs.resurgo("checkpoint", job.process.pid).ok().text.endswith("a wave is complete\n")
    lose_node_of_the_end(job)
    job.reach_event("returned")
    # A rank that goes on has an image after its first call of MPI.
    go(30)
    come_again(job)
    job.strike([0])
    job.reach_another("started", rank=0)
    go(60)
    come_again(job)
    job.hit(int(agent_of(job, 1)), signal.SIGKILL)
    job.reach_another("returned")
    go(90)
    result = job.wait().ok()
    assert by_rank(result.out) == by_rank(calm().out)
    assert lives_of_the_end(result) == [1] and not result.of("waves_given_up"), result.describe()
    assert len(result.of("returned")) == 2 and all(event["wave"] > 0 for event in result.of("returned")), result.describe()


@pytest.mark.parametrize("loses", ["a rank", "its node", "their node"])
def test_an_image_has_what_a_finished_rank_had_sent(jobs, loses):
    """Under auto nothing of an end lies beside images. So there is no wave before the others have taken it."""
    command = [harness.PYTHON, "-c", TAKEN_AFTER_AN_END, jobs.directory / "go"]
    job = start(jobs, "auto", command)
    job.reach_event("finished", rank=2)
    waves = len(job.of("wave_complete"))
    job.reach_another("not_checkpointed")
    jobs.resurgo("checkpoint", job.process.pid)
    assert len(job.of("wave_complete")) == waves
    Path(f"{command[-1]}0").touch()
    come_again(job)
    if loses == "a rank":
        job.strike([0])
        job.reach_another("started", rank=0)
    else:
        if loses == "its node":
            lose_node_of_the_end(job)
        else:
            job.hit(int(agent_of(job, 0)), signal.SIGKILL)
        # The return may be told with the loss.
        job.reach_event("returned")
    for number in (100, 200, 300):
        Path(f"{command[-1]}{number}").touch()
    result = job.wait().ok()
    assert by_rank(result.out) == by_rank(jobs.calm(3, *command).out)
    assert lives_of_the_end(result) == [1], result.describe()
    assert all(event["wave"] > 0 for event in result.of("returned")), result.describe()


@pytest.mark.parametrize("protocol", ["blocking", "auto", slow("chandy-lamport"), slow("group")])
def test_an_end_that_is_in_no_wave_is_done_again(jobs, protocol):
    """All begin again, because there was no wave. Its node is lost, so it does so on another one."""
    command, go, calm = leaving(jobs)
    job = start(jobs, protocol, command, None)
    job.reach_event("finished", rank=2)
    lose_node_of_the_end(job)
    if protocol != "auto":
        job.strike([1])
    job.reach_event("returned", wave=0)
    for number in (30, 60, 90):
        go(number)
    result = job.wait().ok()
    assert by_rank(result.out) == by_rank(calm().out)
    assert lives_of_the_end(result) == [1, 2], result.describe()


@pytest.mark.gate("blocking-its node", "chandy-lamport-their node", "group-nothing")
@pytest.mark.parametrize("loses", ["nothing", "its node", "their node"])
@together
def test_what_a_rank_has_sent_before_it_finished_stays_on_its_way(jobs, protocol, loses):
    """Waves after its end have these messages, and those that were taken since the last one come again."""
    command = [harness.PYTHON, "-c", MUCH_FROM_AN_END, jobs.directory / "go"]
    job = start(jobs, protocol, command)
    job.reach_event("finished", rank=2)
    for number in (0, 60):
        come_again(job)
        if number == 0 and loses == "its node":
            lose_node_of_the_end(job)
            come_again(job)
        if number == 60 and loses == "their node":
            job.hit(int(agent_of(job, 0)), signal.SIGKILL)
        else:
            job.strike([0])
        job.reach_another("started", rank=0)
        Path(f"{command[-1]}{number}").touch()
    result = job.wait().ok()
    assert by_rank(result.out) == by_rank(jobs.calm(3, *command).out)
    assert lives_of_the_end(result) == [1], result.describe()
    assert all(event["wave"] > 0 for event in result.of("returned")), result.describe()


@pytest.mark.gate("auto", "blocking")
@pytest.mark.parametrize("protocol", WAVES)
def test_a_node_is_drained_after_that(jobs, protocol):
    command, go, calm = leaving(jobs)
    job = start(jobs, protocol, command)
    job.reach_event("finished", rank=2)
    come_again(job)
    node = next(event["node"] for event in job.events if event["event"] == "started" and event["rank"] == 1)
    jobs.resurgo("drain", job.process.pid, node).ok()
    for number in (30, 60, 90):
        go(number)
    result = job.wait().ok()
    assert by_rank(result.out) == by_rank(calm().out)
    moved = [event["node"] for event in result.of("started") if event["rank"] == 1]
    assert moved[0] == node and node not in moved[1:] and lives_of_the_end(result) == [1], result.describe()


def test_the_node_of_an_end_is_drained_under_auto(jobs):
    """All return to a wave, and nobody needs what the node has. Its loss is nothing then."""
    command, go, calm = leaving(jobs)
    job = start(jobs, "auto", command)
    job.reach_event("finished", rank=2)
    come_again(job)
    node = job.of("started", rank=2)[0]["node"]
    jobs.resurgo("remove-host", job.process.pid, node).ok()
    job.reach_event("returned")
    go(30)
    come_again(job)
    job.strike([0, 1])
    go(60)
    come_again(job)
    go(90)
    result = job.wait().ok()
    assert by_rank(result.out) == by_rank(calm().out)
    assert lives_of_the_end(result) == [1] and len(result.of("returned")) == 1, result.describe()


@pytest.mark.gate("auto-True-interrupted", "auto-False-suspended", "blocking-True-suspended", "blocking-False-interrupted")
@pytest.mark.parametrize("how", ["suspended", "interrupted"])
@pytest.mark.parametrize("loses", [False, True])
@pytest.mark.parametrize("protocol", ["auto", "blocking", slow("chandy-lamport"), slow("group")])
def test_the_job_goes_on_later(jobs, chain, protocol, loses, how):
    """A rank that had finished has, whether its node was there at the end or not."""
    command, go, calm = leaving(jobs)
    job = chain.start(3, *command, options=[*THREE, *EVERY], protocol=protocol)
    job.reach_event("finished", rank=2)
    come_again(job)
    if loses:
        lose_node_of_the_end(job)
        if protocol == "auto":
            job.reach_event("returned")
            go(30)
        come_again(job)
    job.reach_another("wave_recorded")
    assert chain.suspend() if how == "suspended" else interrupt(job, "everything")
    go(30)
    resumed = chain.resume(options=["--nodes", "2"])
    if loses and protocol == "auto":
        go(60)
    come_again(resumed)
    resumed.strike([0])
    if protocol == "auto":
        resumed.reach_another("started", rank=0)
    else:
        resumed.reach_another("returned")
    go(60)
    go(90)
    result = chain.end()
    assert lives_of_the_end(result) == [], result.describe()
    assert by_rank(chain.out) == by_rank(calm().out)


@pytest.mark.gate("a rank")
@pytest.mark.parametrize("loses", ["a rank", slow("its node"), "their node"])
def test_logs_do_not_fill_up_when_a_rank_has_finished(jobs, loses):
    """Under auto the logs forget with later waves."""
    go = jobs.directory / "go"
    command = [harness.PYTHON, "-c", MUCH_AFTER_AN_END, go]
    job = jobs.start(3, *command, options=[*MANY, *THREE, "--log-memory", "64M"], protocol="auto")
    job.reach_event("finished", rank=2)
    Path(f"{go}20").touch()
    come_again(job)
    if loses == "a rank":
        job.strike([1])
    elif loses == "its node":
        lose_node_of_the_end(job)
    else:
        job.hit(int(agent_of(job, 1)), signal.SIGKILL)
        job.reach_event("node_lost")
    Path(f"{go}300").touch()
    result = job.wait().ok()
    assert by_rank(result.out) == by_rank(jobs.calm(3, *command).out)
