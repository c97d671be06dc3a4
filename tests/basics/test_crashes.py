# SPDX-License-Identifier: Apache-2.0
"""Every way to die at every place, once: the job goes on and prints the same as without."""

import pytest

import harness
from harness import by_rank, slow

ITERATIONS = "300"
WAYS = ["segv", "abort", "fpe", "kill", "term", "exit0", "exit3", "_exit5"]
LIKE_OTHERS = ("fpe", "term", "exit3")
PLACES = ["constructor", "before-init", "after-init", "0", "150", "before-finalize"]


def expected(plain, program, size):
    return plain(size, *program("crash"), "99", "kill", "0", "always", ITERATIONS)


def crash(jobs, program, size, who, how, where, **more):
    marker = jobs.directory / "marker"
    result = jobs.run(size, *program("crash"), who, how, where, marker, ITERATIONS, **more)
    died = sorted(int(path.suffix[1:]) for path in jobs.directory.glob("marker.*"))
    return result, died


# A program that leaves on its own before MPI_Init looks like one that is not an MPI program, or that rejects its
# arguments: starting it again would not help.
ENDS_THE_JOB = {(how, where) for how in ("exit0", "exit3", "_exit5") for where in ("constructor", "before-init")}


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("how", [slow(way) if way in LIKE_OTHERS else way for way in WAYS])
@pytest.mark.gate("segv-*", "kill-*", "exit0-*")
def test_one_rank_dies_once(jobs, program, plain, how, where):
    if (how, where) in ENDS_THE_JOB:
        pytest.skip("an end, not a crash")
    result, died = crash(jobs, program, 3, "1", how, where)
    result.ok()
    assert died == [1]
    assert result.restarts == 1
    assert by_rank(result.out) == by_rank(expected(plain, program, 3).out)


@pytest.mark.parametrize("how", ["kill", "segv"])
def test_one_rank_dies_after_finalize(jobs, program, plain, how):
    result, died = crash(jobs, program, 3, "2", how, "after-finalize")
    assert died == [2]
    result.ok()
    assert by_rank(result.out) == by_rank(expected(plain, program, 3).out)


@pytest.mark.parametrize("who", ["0", "0,2", "1,2,3", "all"])
@pytest.mark.parametrize("where", ["after-init", "100", "before-finalize"])
def test_several_ranks_die_at_once(jobs, program, plain, who, where):
    result, died = crash(jobs, program, 4, who, "kill", where)
    result.ok()
    assert died == ([0, 1, 2, 3] if who == "all" else [int(rank) for rank in who.split(",")])
    assert by_rank(result.out) == by_rank(expected(plain, program, 4).out)


def test_a_single_rank(jobs, program, plain):
    result, died = crash(jobs, program, 1, "0", "kill", "150")
    result.ok()
    assert died == [0] and by_rank(result.out) == by_rank(expected(plain, program, 1).out)


@pytest.mark.parametrize("how, code", [("segv", 139), ("exit3", 3), ("kill", 137), ("abort", 134)])
def test_with_protocol_none_the_job_ends(jobs, program, how, code):
    result, died = crash(jobs, program, 3, "1", how, "100", protocol="none")
    assert died == [1]
    assert result.code == code, result.describe()
    assert "rank 1" in result.errors and "--protocol auto" in result.errors, result.describe()
    what = {139: "SIGSEGV", 137: "SIGKILL", 134: "SIGABRT", 3: "code 3"}[code]
    assert what in result.errors, result.describe()


@pytest.mark.parametrize("how", ["segv", "abort", "exit3", "kill"])
@pytest.mark.parametrize("where", ["after-init", "100"])
def test_always_at_the_same_place_ends_with_an_error(jobs, program, how, where):
    """There is no endless loop of restarts."""
    result = jobs.run(3, *program("crash"), "1", how, where, "always", ITERATIONS, timeout=60)
    assert result.code != 0
    assert "rank 1" in result.errors, result.describe()
    assert len([event for event in result.of("started") if event["rank"] == 1]) <= 20


def test_max_restarts_per_rank(jobs, program):
    result = jobs.run(
        2, *program("crash"), "1", "kill", "100", "always", ITERATIONS, options=["--max-restarts-per-rank", "2"]
    )
    assert result.code != 0
    assert len([event for event in result.of("started") if event["rank"] == 1]) == 3
    assert "max-restarts" in result.errors, result.describe()


def test_max_restarts(jobs, program):
    result = jobs.run(4, *program("crash"), "all", "kill", "100", "always", ITERATIONS, options=["--max-restarts", "3"])
    assert result.code != 0
    assert len(result.of("started")) <= 4 + 3
    assert "max-restarts" in result.errors, result.describe()


def test_no_restarts_at_all(jobs, program):
    result, died = crash(jobs, program, 2, "1", "kill", "100", options=["--max-restarts", "0"])
    assert died == [1] and result.code == 137, result.describe()


@pytest.mark.parametrize("how", ["exit3", "_exit5", "exit0"])
def test_an_exit_before_init_is_an_end(jobs, program, how):
    """Every rank leaves before MPI_Init, like a program that prints its usage."""
    result, _ = crash(jobs, program, 2, "all", how, "before-init")
    assert result.code == int(how[-1]), result.describe()


def test_output_is_exactly_once(jobs, program):
    """A rank that dies late prints everything again; nobody sees it twice."""
    calm = jobs.calm(3, *program("output"), "300")
    for rank in range(3):
        stormy = jobs.run(3, *program("output"), "300", options=["--fault", f"rank={rank},messages=20"]).ok()
        assert stormy.restarts == 1, stormy.describe()
        assert by_rank(stormy.out) == by_rank(calm.out)
        assert by_rank(stormy.program_errors) == by_rank(calm.program_errors)


def test_events_tell_the_story(jobs, program):
    result, _ = crash(jobs, program, 3, "1", "kill", "100")
    story = [event["event"] for event in result.events if event.get("rank", 1) == 1]
    assert story == ["job_started", "started", "failed", "started", "caught_up", "finished", "job_ended"], story
    failed, = result.of("failed")
    assert failed["pid"] > 0 and failed["deliveries"] > 0
    times = [event["time"] for event in result.events]
    assert times == sorted(times)
    assert harness.re.search(r"rank 1 killed by SIGKILL", result.errors), result.describe()
    assert harness.re.search(r"rank 1 restarted on this node", result.errors), result.describe()
    assert harness.re.search(r"rank 1 replayed [\d,]+ deliveries in", result.errors), result.describe()


def test_quiet(jobs, program):
    result, died = crash(jobs, program, 3, "1", "kill", "100", options=["-q"])
    assert died == [1] and result.ok().errors == ""
