# SPDX-License-Identifier: Apache-2.0
"""Groups of ranks on several nodes, of which some are lost: only the groups of these return."""

import os
import signal

import pytest

import harness
from harness import slow
from on_nodes import BURSTS, agents, lose, lose_all_images, spread, strike
from settings import MANY, TOLERATE_NODE, every
from survival import LONG, PROGRAMS


def ranks_on(job, node):
    """The ranks whose present lives are on this node."""
    where = {event["rank"]: event["node"] for event in job.events if event["event"] == "started"}
    return {rank for rank, there in where.items() if there == str(node)}


def told(job, kind):
    return [event for event in job.events if event["event"] == kind]


@pytest.mark.gate("images")
@pytest.mark.parametrize("images", [[], every("100ms")], ids=["begin", "images"])
def test_only_the_groups_of_a_lost_node_return(jobs, program, images):
    """Twice, and then a process of it is killed."""
    options = ["--nodes", "4", "-ppn", "2", "--spares", "2", "--lease", "10s", *MANY, *TOLERATE_NODE, *images]
    job = jobs.start(4, *program("crash"), *LONG, options=options, protocol="hierarchical")
    job.reach(lambda: len(job.lives()) == 4)
    there = agents(job)
    for losses, node in enumerate((1, 2), 1):
        if images:
            spread(job, 4)
        before = job.lives()
        lost = ranks_on(job, node)
        assert lost == {2, 3}
        os.kill(there[node], signal.SIGKILL)
        job.reach(lambda losses=losses: len(told(job, "returned")) == losses)
        job.reach(lambda before=before: all(job.lives()[rank][1] == before[rank][1] + 1 for rank in (2, 3)))
        assert all(job.lives()[rank] == before[rank] for rank in (0, 1))
        job.reach(lambda losses=losses: len(told(job, "caught_up")) >= 2 * losses)
        returned = told(job, "returned")[-1]
        assert returned["ranks"] == [2, 3] and (returned["wave"] > 0) == bool(images), returned
    before = job.lives()
    job.reach(lambda: job.kill([3]))
    job.reach(lambda: len(told(job, "returned")) == 3)
    assert all(job.lives()[rank] == before[rank] for rank in (0, 1))
    job.process.terminate()
    job.wait(20)


@pytest.mark.slow
def test_a_node_has_several_groups(jobs, program, rng):
    """All of them return, each by itself, and all images are on two nodes again afterwards."""
    options = ["--nodes", "3", "-ppn", "4", "--spares", "1", "--group-size", "2", "--lease", "10s", *MANY, *TOLERATE_NODE, *every("100ms")]
    job = jobs.start(8, *program("crash"), *LONG, options=options, protocol="hierarchical")
    job.reach(lambda: len(job.lives()) == 8)
    there = agents(job)
    for losses, node in enumerate((0, 1), 1):
        spread(job, 8)
        lost = sorted(ranks_on(job, node))
        os.kill(there[node], signal.SIGKILL)
        job.reach(lambda losses=losses: len(told(job, "node_lost")) == losses)
        groups = {rank // 2 for rank in lost}
        returned = lambda: {event["ranks"][0] // 2 for event in told(job, "returned") if event["wave"] > 0}
        job.reach(lambda groups=groups: groups <= returned())  # noqa: B023
    spread(job, 8)
    job.process.terminate()
    job.wait(20)


def test_all_begin_again_when_all_images_of_a_group_are_lost(jobs, program):
    lose_all_images(jobs, program, "hierarchical")


@pytest.mark.parametrize("name", ["cg", "master_worker"])
@pytest.mark.parametrize("images", [[], every("100ms")], ids=["begin", "images"])
@pytest.mark.gate("begin-cg")
def test_ranks_and_nodes_are_killed(jobs, program, rng, kills, name, images):
    lose(jobs, program, rng, kills, name, "hierarchical", 3, [*TOLERATE_NODE, *images])


def test_what_is_on_its_way_comes_back(jobs, rng, kills):
    command = [harness.PYTHON, "-c", BURSTS, "150"]
    expected = jobs.calm(4, *command)
    options = ["--nodes", "3", "-ppn", "2", "--spares", "1", "--lease", "2s", *MANY, *TOLERATE_NODE, *every("100ms")]
    job = jobs.start(4, *command, options=options, protocol="hierarchical")
    job.reach_event("wave_complete")
    strike(job, rng, kills or 5, 4, True)
    result = job.wait(120).ok()
    assert sorted(result.text.splitlines()) == sorted(expected.text.splitlines())


@pytest.mark.parametrize("images", [[], every("200ms")], ids=["begin", "images"])
@pytest.mark.parametrize("nodes", [2, 4])
@pytest.mark.parametrize("name", [slow(entry.name) for entry in PROGRAMS])
def test_the_catalogue(jobs, program, rng, kills, name, nodes, images):
    lose(jobs, program, rng, kills, name, "hierarchical", nodes, [*TOLERATE_NODE, *images])


def test_on_one_machine_the_option_is_refused(jobs, program):
    result = jobs.run(2, *program("crash"), options=TOLERATE_NODE, protocol="hierarchical")
    assert result.code == 2 and "is for a job on several nodes" in result.errors, result.describe()


def test_nodes_that_join_later_are_refused(jobs, program):
    result = jobs.run(2, *program("hello"), options=["-launcher", "join"], protocol="hierarchical")
    assert result.code == 2 and "not known before they join" in result.errors, result.describe()
