# SPDX-License-Identifier: Apache-2.0
"""Programs that deal with failures themselves (`resurgo run --ft`): every blocked call comes back, survivors agree,
shrink and compute right answers. Ranks are killed by the kernel at random moments, or by the test."""

import json
import re
import signal
import time

import pytest

import harness
from survival import refused
from told import CALLS, FT, check_agreements, check_calls, check_loop, run


@pytest.mark.parametrize("calls", CALLS, ids=lambda calls: "-".join(calls[:3]))
def test_blocked_calls_come_back(jobs, program, seed, calls):
    check_calls(jobs, program, seed, calls)


@pytest.mark.soak
@pytest.mark.parametrize("calls", CALLS, ids=lambda calls: "-".join(calls[:3]))
@pytest.mark.parametrize("round", range(20))
def test_blocked_calls_come_back_each_time(jobs, program, seed, calls, round):
    check_calls(jobs, program, seed + 1000 * round, calls)


@pytest.mark.perf
@pytest.mark.parametrize("calls", CALLS, ids=lambda calls: "-".join(calls[:3]))
def test_blocked_calls_are_back_within_50_ms(jobs, program, seed, calls):
    """From the death of a rank until the last of the others is back, on a machine with nothing else to do."""
    n = len([call for call in calls if call not in ("low", "high")]) + 2
    result = run(jobs, n, *program("ulfm_calls"), seed % 10**6, "times", *calls)
    assert result.code == 0 and "WRONG" not in result.text, result.describe()
    late = {call: int(late) for call, late in re.findall(r"^ok (\S+) \d+ (\d+)$", result.text, re.M)}
    assert len(result.of("lost")) == n - 2 and late and max(late.values()) <= 50_000, (late, result.describe())


@pytest.mark.parametrize("n, kills, lowest", [(2, 1, False), (4, 1, True), (5, 2, False), (7, 3, True), (9, 3, False)])
def test_survivors_go_on_with_right_answers(jobs, program, seed, n, kills, lowest):
    check_loop(jobs, program, seed, n, kills, lowest)


EDGES = ["allgather", "allgatherv", "gapped", "iallgather", "bcast", "ibcast", "scatter", "split"]


@pytest.mark.parametrize("call", EDGES)
def test_no_rank_touches_what_lies_behind_its_buffer(jobs, program, seed, call):
    """What comes of an ended receive is nothing: MPI must not send on more than a buffer has."""
    for count in (64, 4096):
        result = run(jobs, 8, *program("ulfm_edge"), seed % 10**6, count, call)
        assert result.code == 0 and result.text == "ok\n", result.describe()
        assert len(result.of("lost")) == 1, result.describe()


@pytest.mark.soak
@pytest.mark.parametrize("round", range(60))
def test_survivors_go_on_each_time(jobs, program, seed, round):
    check_loop(jobs, program, seed + round, 4 + round % 6, 1 + round % 3, round % 2, steps=300)


@pytest.mark.parametrize("n, kills", [(4, 1), (6, 3), harness.slow(9, 5)])
def test_all_learn_the_same(jobs, program, seed, n, kills):
    check_agreements(jobs, program, seed, n, kills)


def test_in_cpp(jobs, program):
    result = run(jobs, 4, *program("ft_headers"))
    assert result.code == 0, result.describe()
    assert sorted(result.text.splitlines()) == [f"rank {rank}: 3 left, 0 0" for rank in (0, 2, 3)], result.describe()


def test_nothing_of_it_is_in_a_job_without_the_option(jobs):
    """Neither the library nor its rules."""
    script = "from mpi4py import MPI; maps = open('/proc/self/maps').read(); print('resurgo-ft' in maps, 'resurgo-fi' in maps)"
    for options, told in ([], "False True"), (FT, "True True"):
        result = jobs.run(1, harness.PYTHON, "-c", script, options=options).ok()
        assert result.text.strip() == told, result.describe()


def test_revoking_brings_everybody_back(jobs, program):
    result = run(jobs, 8, *program("ulfm_revoke"), jobs.directory / "file")
    assert result.code == 0 and result.text == "revoked\n", result.describe()


def test_a_failure_is_told_and_the_survivors_code_counts(jobs, program):
    """Killed from outside; the error handler of the program is the default: the survivors end the job."""
    job = jobs.start(3, *program("crash"), "99", "kill", "0", "always", "100000000", options=FT)
    job.says(b"iteration 50 ")
    job.kill([1])
    result = job.wait()
    assert result.code != 0 and "rank 1 is lost; the 2 others go on without it" in result.errors, result.describe()
    assert "Process failed" in result.errors, result.describe()
    lost = result.of("lost")
    assert [(event["rank"], event["left"]) for event in lost] == [(1, 2)]


@pytest.mark.parametrize("n", [2, 4])
def test_what_nobody_has_received_does_not_matter_at_the_end(jobs, program, n):
    result = run(jobs, n, *program("ulfm_unread"))
    assert result.code == 0 and result.text == "finalized 0\n" * (n - 1), result.describe()


def test_the_losses_of_a_job_can_be_read(jobs, program):
    job = jobs.start(5, *program("ulfm_sums.py"), "1", "1000000", "0", "1", options=FT)
    job.reach(lambda: len(job.lives()) == 5)
    number = job.process.pid
    assert jobs.resurgo("ft", "records", number, "--json").ok().text == "[]\n"
    job.says(b"they compute")
    for lost, rank in enumerate((3, 0), 1):
        job.kill([rank])
        job.reach(lambda: len(json.loads(jobs.resurgo("ft", "records", number, "--json").ok().text)) == lost, what="the record")
    records = json.loads(jobs.resurgo("ft", "records", number, "--json").ok().text)
    assert [(one["number"], one["rank"], one["left"]) for one in records] == [(1, 3, 4), (2, 0, 3)]
    assert all("SIGKILL" in one["how"] and abs(time.time() - one["unix_time"]) < 60 for one in records), records
    lines = jobs.resurgo("ft", "records", number).ok().text.splitlines()
    assert len(lines) == 3 and lines[1].split()[0] == "1" and "SIGKILL" in lines[1], lines
    job.process.terminate()
    job.wait()
    refused(jobs.resurgo("ft", "record"), "there is only resurgo ft records", code=2)
    refused(jobs.resurgo("ft", "records", "1"), "there is no job 1", code=2)


def test_a_job_without_ft_has_no_records(jobs, program):
    job = jobs.start(1, *program("crash"), "99", "kill", "0", "always", "100000000")
    job.reach(lambda: job.lives())
    refused(jobs.resurgo("ft", "records", job.process.pid), "does not deal with failures itself", code=1)
    job.process.terminate()
    job.wait()


def test_when_all_are_lost_the_job_has_failed(jobs, program):
    job = jobs.start(2, *program("crash"), "99", "kill", "0", "always", "100000000", options=FT)
    job.says(b"iteration 50 ")
    job.kill([0, 1], signal.SIGKILL)
    assert job.wait().code != 0


def test_without_failures_nothing_changes(jobs, program, plain):
    """The library of --ft passes all calls of a program on."""
    for name, *words in (["comm_churn", 40], ["messages"], ["rma_halo", 500, 20], ["mpiio", jobs.directory / "file", 60, 500]):
        result = run(jobs, 4, *program(name), *words)
        assert result.code == 0 and result.text == plain(4, *program(name), *words).text, result.describe()


@pytest.mark.parametrize("mode", [["--ft"], ["--ft-mode", "shrink"]], ids=["ulfm", "ftmpi"])
@pytest.mark.parametrize("comm", [0, 1], ids=["world", "duplicate"])
def test_abort_ends_the_job(jobs, program, mode, comm):
    """It loses no rank, and no rank goes on, whichever communicator of all ranks the program names."""
    result = jobs.run(4, *program("abort"), 2, 7, comm, options=mode, timeout=60)
    assert result.code == 7 and not result.text and "gone on" not in result.errors, result.describe()
    assert not result.of("lost"), result.describe()


def test_who_aborts_itself_is_lost(jobs, program):
    """MPI_Abort in MPI_COMM_SELF: the others have an error, which ends the job."""
    result = jobs.run(4, *program("abort"), 2, 7, 2, options=FT, timeout=60)
    assert result.code != 0 and not result.text, result.describe()
    assert [event["rank"] for event in result.of("lost")] == [2], result.describe()


@pytest.mark.parametrize("name", ["heat_f08", "cg_mpif"])
def test_fortran_without_failures_computes_the_same(jobs, program, plain, name):
    words = ["20000", "100"] if name == "cg_mpif" else []
    result = run(jobs, 4, *program(name), *words)
    assert result.code == 0 and result.text == plain(4, *program(name), *words).text, result.describe()


@pytest.mark.slow
def test_survivors_go_on_in_fortran(jobs, program, rng):
    """Killed from outside. Fortran calls many functions by their other names."""
    job = jobs.start(5, *program("ulfm_sums"), "40000", options=FT)
    job.says(b"they compute")
    for rank in rng.sample(range(5), 2):
        job.strike([rank])
        time.sleep(rng.uniform(0, 0.3))
    result = job.wait()
    done = re.findall(r"rank (\d+): done, (\d+)", result.text)
    assert result.code == 0 and len(done) == 3 and {size for _, size in done} == {"3"}, result.describe()


@pytest.mark.parametrize("n, kills", [(5, 2), harness.slow(8, 3)])
def test_survivors_go_on_in_python(jobs, program, seed, n, kills):
    result = run(jobs, n, *program("ulfm_sums.py"), seed % 10**6, 1500, kills, 400)
    assert result.code == 0 and "WRONG" not in result.text, result.describe()
    done = re.findall(r"rank (\d+): done, (\d+)", result.text)
    assert n - kills <= len(done) and len({size for _, size in done}) == 1, result.describe()


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--protocol", "pessimistic"], ["--ft and --protocol pessimistic cannot be combined"]),
        (["--protocol", "auto"], ["--ft and --protocol auto cannot be combined"]),
    ],
)
def test_what_does_not_go_together_is_refused(jobs, program, arguments, words):
    refused(jobs.resurgo("run", *FT, *arguments, *program("hello")), *words, code=2)


def test_the_standard_abi_is_refused(jobs, program):
    result = run(jobs, 2, *program("hello_abi"))
    assert result.code != 0 and "mpicc instead of mpicc_abi" in result.errors, result.describe()
