# SPDX-License-Identifier: Apache-2.0
"""FT-MPI's mode REBUILD on several nodes: ranks and nodes are struck, and all places are taken again."""

import os
import re
import signal
import time

import pytest

import told
from harness import slow
from on_nodes import agents
from settings import MANY


@pytest.mark.parametrize(
    "on, mode, n, kills, lowest, more",
    [(2, "rebuild", 4, 1, True, 0), (3, "rebuild", 6, 2, True, 2), slow(4, "rebuild-shrink", 8, 3, False, 3)],
)
def test_new_ranks_take_the_places_of_the_dead(jobs, program, seed, on, mode, n, kills, lowest, more):
    told.check_filled(jobs, program, seed, mode, n, kills, lowest, "codes", more, options=["--nodes", on])


@pytest.mark.parametrize("mode, on", [("shrink", 2), ("blank,cont", 3), slow("shrink,nop,strict", 2)])
def test_survivors_go_on(jobs, program, seed, mode, on):
    command = [*program("ftmpi_loop"), seed % 10**6, 200, 2, 150, 0, "codes"]
    result = jobs.run(6, *command, options=["--ft-mode", mode, "--nodes", on], timeout=60)
    assert result.code == 0 and "WRONG" not in result.text, result.describe()
    assert 4 <= len(re.findall("done", result.text)) <= 6, result.describe()


@pytest.mark.soak
@pytest.mark.parametrize("round", range(40))
def test_new_ranks_take_the_places_of_the_dead_each_time(jobs, program, seed, round):
    mode = ["rebuild", "rebuild-shrink"][round % 2]
    more = ["--nodes", 2 + round % 3]
    told.check_filled(jobs, program, seed + round, mode, 4 + round % 6, 1 + round % 3, round % 2, "codes", round % 3, options=more)


def check_lost_node(jobs, program, rng, seed, on, n, lost, steps=20_000):
    """The node of a rank that the program counts on stays: others come for its neighbours."""
    counter = jobs.directory / "deaths"
    counter.write_text("")
    command = [*program("ftmpi_loop"), seed % 10**6, steps, 0, 150, 0, "codes", 0, counter]
    job = jobs.start(n, *command, options=["--ft-mode", "rebuild", *MANY, "--nodes", on, "--lease", "2s"])
    job.reach(lambda: counter.read_text())
    time.sleep(rng.uniform(0, 0.3))
    os.kill(agents(job)[lost], signal.SIGKILL)
    job.reach_event("node_lost")
    result = job.wait(90)
    told.is_filled(result, n)
    gone = {rank for rank in range(n) if rank * on // n == lost}
    assert gone <= {event["rank"] for event in result.of("lost")}, result.describe()
    return result


@pytest.mark.parametrize("on, n, lost", [(2, 4, 0), (3, 6, 1), slow(2, 6, 1), slow(4, 8, 3)])
def test_ranks_of_a_lost_node_begin_on_the_others(jobs, program, rng, seed, on, n, lost):
    check_lost_node(jobs, program, rng, seed, on, n, lost)


@pytest.mark.soak
@pytest.mark.parametrize("round", range(20))
def test_ranks_of_a_lost_node_begin_on_the_others_each_time(jobs, program, rng, seed, round):
    on = 2 + round % 3
    check_lost_node(jobs, program, rng, seed + round, on, on + round % 5, round % on)
