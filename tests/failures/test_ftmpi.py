# SPDX-License-Identifier: Apache-2.0
"""Programs that deal with failures by FT-MPI's rules (`resurgo run --ft-mode`): every rank is told, communicators are
rebuilt by MPI_Comm_dup, _split and _create, and survivors compute right answers."""

import re

import pytest

from harness import slow
from settings import MANY
from survival import refused
from told import check_filled


HOW = ["codes", "jump", "split", "create"]


def run(jobs, mode, n, *program, **more):
    return jobs.run(n, *program, options=["--ft-mode", mode], timeout=60, **more)


@pytest.mark.parametrize("messages", ["nop", "cont"])
def test_programs_see_modes_states_and_failures(jobs, program, messages):
    result = run(jobs, "shrink", 5, *program("ftmpi_modes"), messages)
    assert result.code == 0, result.describe()
    assert sorted(result.text.splitlines()) == [f"right {rank}" for rank in (0, 2, 3, 4)], result.describe()


@pytest.mark.parametrize("mode", ["shrink", "blank", "rebuild"])
def test_nobody_waits_for_a_rank_that_rebuilds(jobs, program, mode):
    """Messages go on after a failure, but a rank that rebuilds sends nothing before all others do so, too."""
    result = run(jobs, f"{mode},cont", 5, *program("ftmpi_waits"))
    assert result.code == 0, result.describe()
    assert "WRONG" not in result.text and result.text.count("right") == 4 + (mode == "rebuild"), result.describe()


MODES = {"blank": 1, "shrink": 2, "rebuild": 3}


@pytest.mark.parametrize("name", ["ftmpi_states", "ftmpi_states.py"])
@pytest.mark.parametrize("mode, messages", [("shrink", "nop"), ("blank", "cont"), ("rebuild", "nop")])
def test_states_and_failures_in_fortran_and_python(jobs, program, name, mode, messages):
    """Rank 1 is killed; survivors, and a new rank, read what happened."""
    command = [*program(name), MODES[mode], int(messages == "cont")]
    job = jobs.start(5, *command, options=["--ft-mode", f"{mode},{messages}"])
    job.says(b"ready")
    job.strike([1])
    result = job.wait(60)
    new = ["new 1", "right 1"] if mode == "rebuild" else []
    # Those that are left have numbers anew.
    left = [0, 1, 2, 3] if mode == "shrink" else [0, 2, 3, 4]
    assert result.code == 0, result.describe()
    assert sorted(result.text.splitlines()) == sorted([*map("right {}".format, left), "ready", *new]), result.describe()


def test_a_rank_that_had_finished_is_not_available(jobs, program):
    result = run(jobs, "blank", 5, *program("ftmpi_done"))
    assert result.code == 0, result.describe()
    assert sorted(result.text.splitlines()) == [f"right {rank}" for rank in (0, 2, 3, 4)], result.describe()


def test_a_gap_is_no_rank(jobs, program):
    result = run(jobs, "blank", 6, *program("ftmpi_gaps"))
    assert result.code == 0, result.describe()
    assert sorted(result.text.splitlines()) == [f"right {rank}" for rank in (0, 2, 3, 4, 5)], result.describe()


@pytest.mark.parametrize("mode, how", [("shrink", "abort"), ("abort", "nop")])
def test_with_abort_the_job_ends(jobs, program, mode, how):
    """A communicator of that mode, or the whole job: no handler of the program keeps it from that."""
    name = "ftmpi_modes" if mode == "shrink" else "ftmpi_blocked"
    result = run(jobs, mode, 5, *program(name), *([how] if mode == "shrink" else []))
    assert result.code != 0 and "WRONG" not in result.text, result.describe()
    assert "a rank has failed in a communicator of the mode abort; the job ends" in result.errors, result.describe()


def test_every_blocked_call_comes_back_whatever_its_peer(jobs, program):
    result = run(jobs, "shrink", 13, *program("ftmpi_blocked"))
    assert result.code == 0, result.describe()
    assert sorted(result.text.splitlines()) == sorted(f"back {rank}" for rank in range(12)), result.describe()


def check_loop(jobs, program, seed, mode, n, kills, lowest, how, steps=250):
    command = [*program("ftmpi_loop"), seed % 10**6, steps, kills, 150, int(lowest), how]
    result = run(jobs, mode, n, *command)
    assert result.code == 0 and "WRONG" not in result.text, result.describe()
    done = re.findall(r"rank (\d+): done, (\d+) of (\d+), (\d+) recoveries", result.text)
    # A rank that is killed after it has said so is no loss.
    assert n - kills <= len(done) <= n, result.describe()
    return result


@pytest.mark.parametrize(
    "mode, n, kills, lowest, how",
    [
        ("shrink", 4, 1, True, "codes"),
        ("shrink", 7, 3, True, "jump"),
        ("shrink", 9, 3, False, "codes"),
        ("blank", 5, 2, False, "jump"),
        ("blank", 7, 3, True, "codes"),
        ("shrink", 6, 2, False, "split"),
        ("blank", 6, 2, True, "create"),
        ("shrink,cont", 6, 2, False, "codes"),
        ("blank,cont,strict", 6, 2, False, "codes"),
    ],
)
def test_survivors_rebuild_the_world_and_go_on(jobs, program, seed, mode, n, kills, lowest, how):
    check_loop(jobs, program, seed, mode, n, kills, lowest, how)


@pytest.mark.gate("rebuild-6-3-False-jump-0", "rebuild-5-2-True-codes-3", "rebuild-shrink-5-2-*", "rebuild-5-2-*-split-0", "rebuild,cont-*")
@pytest.mark.parametrize(
    "mode, n, kills, lowest, how, more",
    [
        ("rebuild", 4, 1, True, "codes", 0),
        ("rebuild", 6, 3, False, "jump", 0),
        ("rebuild", 5, 2, True, "codes", 3),
        ("rebuild-shrink", 5, 2, True, "jump", 2),
        ("rebuild", 4, 3, True, "jump", 1),
        slow("rebuild-shrink", 9, 3, False, "codes", 3),
        ("rebuild", 5, 2, False, "split", 0),
        ("rebuild,cont", 5, 2, False, "codes", 2),
    ],
)
def test_new_ranks_take_the_places_of_the_dead(jobs, program, seed, mode, n, kills, lowest, how, more):
    check_filled(jobs, program, seed, mode, n, kills, lowest, how, more)


@pytest.mark.soak
@pytest.mark.parametrize("round", range(200))
def test_new_ranks_take_the_places_of_the_dead_each_time(jobs, program, seed, round):
    # Nobody has a group with those that will come: MPI_Comm_create is for the others.
    mode, how = ["rebuild", "rebuild-shrink"][round % 2], HOW[round // 2 % 3]
    mode += ["", ",cont"][round // 6 % 2]
    check_filled(jobs, program, seed + round, mode, 4 + round % 6, 1 + round % 3, round % 2, how, round % 4)


def check_many(jobs, program, failures):
    """One failure after the other: each costs the rank that lives through all of them the same memory."""
    result = jobs.run(4, *program("ftmpi_many"), failures, options=["--ft-mode", "rebuild", *MANY], timeout=600)
    assert result.code == 0 and "WRONG" not in result.text, result.describe()
    assert len(re.findall(rf"right after {failures}$", result.text, re.MULTILINE)) == 4, result.describe()
    assert len(result.of("lost")) == failures, result.describe()
    grown = {int(at): int(size) for at, size in re.findall(r"round (\d+): (\d+) KiB", result.text)}
    assert grown[failures] - grown[50] < 64 * (failures - 50), result.describe()


@pytest.mark.slow
def test_one_failure_after_the_other(jobs, program):
    check_many(jobs, program, 100)


@pytest.mark.soak
def test_a_thousand_failures_in_a_row(jobs, program):
    check_many(jobs, program, 1000)


@pytest.mark.parametrize("messages", ["nop", "cont"])
def test_a_program_sees_that_ranks_are_new(jobs, program, messages):
    result = run(jobs, f"rebuild,{messages}", 5, *program("ftmpi_rebuilt"), "a b")
    assert result.code == 0, result.describe()
    assert sorted(result.text.splitlines()) == sorted(["right 0", "right 1", "new 1", *map("right {}".format, (2, 3, 4))]), result.describe()
    assert result.of("replaced") == [result.of("replaced")[0]] and result.of("replaced")[0]["places"] == [1]


def test_each_place_keeps_its_program(jobs, program):
    name = program("ftmpi_rebuilt")
    command = [*name, "first", ":", "-n", 3, "-env", "OF", "second", *name, "second one", "with\nlines"]
    result = run(jobs, "rebuild", 2, *command)
    assert result.code == 0 and "new 1" in result.text and "WRONG" not in result.text, result.describe()


@pytest.mark.parametrize("option, words", [("--max-restarts", "--max-restarts allows"), ("--max-restarts-per-rank", "per-rank allows")])
def test_a_job_that_cannot_be_filled_has_one_error(jobs, program, option, words):
    result = jobs.run(5, *program("ftmpi_rebuilt"), "refused", options=["--ft-mode", "rebuild", option, 0], timeout=60)
    assert result.code == 0, result.describe()
    assert sorted(result.text.splitlines()) == [f"refused {rank}" for rank in (0, 2, 3, 4)], result.describe()
    assert result.errors.count(words) == 1, result.describe()


@pytest.mark.soak
@pytest.mark.parametrize("round", range(200))
def test_survivors_rebuild_the_world_each_time(jobs, program, seed, round):
    mode, how = ["shrink", "blank"][round % 2], HOW[round // 2 % 4]
    mode += ["", ",cont", ",nop,strict", ",cont,strict"][round // 8 % 4]
    check_loop(jobs, program, seed + round, mode, 4 + round % 6, 1 + round % 3, round % 2, how, steps=400)


def test_without_failures_nothing_changes(jobs, program, plain):
    for name in ("comm_churn", "messages"):
        result = run(jobs, "shrink", 4, *program(name))
        assert result.code == 0 and result.text == plain(4, *program(name)).text, result.describe()


def test_a_wrong_mode_is_refused(jobs, program):
    refused(jobs.resurgo("run", "--ft-mode", "shrunk", *program("hello")), "--ft-mode", "shrink", "cont", code=2)
