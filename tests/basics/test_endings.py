# SPDX-License-Identifier: Apache-2.0
"""How jobs end: exit codes, MPI_Abort, signals, components that die. Nothing may stay behind (the fixture sees to it)."""

import contextlib
import os
import re
import signal
import time

import pytest

import harness

LONG = ["99", "kill", "0", "always", "100000000"]  # of crash: a ring that goes round for minutes


def start_long(jobs, program, n=3, **more):
    job = jobs.start(n, *program("crash"), *LONG, **more)
    job.says(b"iteration 50 ")
    return job


@pytest.mark.parametrize("protocol", ["none", "pessimistic"])
@pytest.mark.parametrize("rank, code", [(0, 42), (1, 7), (2, 1)])
def test_abort(jobs, program, protocol, rank, code):
    result = jobs.run(3, *program("abort"), rank, code, protocol=protocol)
    assert result.code == code, result.describe()
    assert result.text == ""


@pytest.mark.parametrize("script, code", [("exit 0", 0), ("exit 5", 5), ("exit $((PMI_RANK + 3))", 3)])
@pytest.mark.parametrize("protocol", ["none", "pessimistic"])
def test_exit_code_after_finalize(jobs, program, protocol, script, code):
    """The first code that is not zero counts, in rank order."""
    hello = program("hello")[0]
    result = jobs.run(2, "sh", "-c", f"{hello}; {script}", protocol=protocol)
    assert result.code == code, result.describe()


UNMATCHED = "has ended after MPI_Finalize had failed"


@pytest.mark.parametrize("code", [0, 3])
@pytest.mark.parametrize("protocol", ["none", "pessimistic", "auto", "blocking"])
def test_finalize_fails_and_the_program_ignores_it(jobs, program, protocol, code):
    """What the program has done is over: the job ends with its exit status, as under plain MPICH (which leaves files in
    /dev/shm then, and so does not run here), and says once what was wrong."""
    result = jobs.run(3, *program("unmatched"), code, protocol=protocol)
    assert (result.code, result.restarts) == (code, 0), result.describe()
    ends = [f"rank {rank}: MPI_Finalize {'failed' if rank else 'succeeded'}" for rank in range(3)]
    assert sorted(result.text.splitlines()) == ends, result.describe()
    assert result.errors.count(UNMATCHED) == 1 and len(result.of("finished")) == 3, result.describe()


@pytest.mark.parametrize("protocol", ["pessimistic", "auto", "blocking"])
def test_finalize_fails_in_a_later_life(jobs, program, protocol):
    calm = jobs.calm(3, *program("unmatched"), protocol=protocol)
    result = jobs.run(3, *program("unmatched"), 0, jobs.directory / "marker", protocol=protocol).ok()
    assert result.restarts >= 1 and harness.by_rank(result.out) == harness.by_rank(calm.out), result.describe()


def test_finalize_fails_in_python(jobs):
    """mpi4py finalises MPI when the interpreter ends, and ignores the error."""
    script = "from mpi4py import MPI\nc = MPI.COMM_WORLD\nif c.rank == 0: c.send(1, 1)\nelse: c.probe()\nprint(c.rank)"
    result = jobs.run(2, harness.PYTHON, "-c", script).ok()
    assert sorted(result.text.split()) == ["0", "1"]
    assert result.restarts == 0 and UNMATCHED in result.errors, result.describe()


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signals_end_every_process(jobs, program, number, code):
    job = start_long(jobs, program)
    assert len(job.processes()) >= 4
    job.process.send_signal(number)
    result = job.wait(10)
    assert result.code == code, result.describe()


def test_ctrl_c_reaches_the_whole_foreground(jobs, program):
    """A terminal signals the whole process group, even ranks and agents that are in it: the job still ends."""
    job = start_long(jobs, program)
    os.killpg(job.process.pid, signal.SIGINT)
    assert job.wait(10).code == 130


def test_ctrl_c_twice(jobs, program):
    job = start_long(jobs, program)
    for _ in range(3):
        if not job.over():
            job.process.send_signal(signal.SIGINT)
        time.sleep(0.01)
    assert job.wait(10).code in (130, -2, 2)


def components(job):
    """The job's processes that are neither ranks nor the dispatcher."""
    ranks = {pid for pid, _ in job.lives().values()}
    return [pid for pid in job.processes() if pid not in ranks and pid != job.process.pid]


def test_the_agent_is_killed(jobs, program):
    job = start_long(jobs, program)
    agent = harness.parent_of(job.lives()[0][0])
    assert agent in components(job), "no agent found"
    os.kill(agent, signal.SIGKILL)
    result = job.wait(20)
    assert result.code not in (0, None)
    assert "agent" in result.errors, result.describe()


def test_the_dispatcher_is_killed(jobs, program):
    """No dispatcher is left to tell: ranks and agent must end on their own."""
    job = start_long(jobs, program)
    job.process.kill()
    job.wait(10)
    assert not job.leftovers(5)


def test_the_agent_is_stopped_and_killed_with_ranks(jobs, program):
    job = start_long(jobs, program)
    job.kill(list(job.lives()))
    for pid in components(job):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert job.wait(20).code != 0


def test_standard_output_is_closed(jobs, program, tmp_path):
    """As in `resurgo run ... | head -1`."""
    events = tmp_path / "events.json"
    line = f"{harness.RESURGO} run -n 2 --json-events {events} {' '.join(program('crash') + LONG)} | head -1"
    job = jobs.command(["bash", "-c", f"set -o pipefail; {line}"])
    result = job.wait(20)
    assert result.code != 0 and result.text.startswith("rank "), result.describe()


def test_children_of_ranks_end_too(jobs, program):
    job = jobs.start(2, "sh", "-c", f"sleep 1000 & {' '.join(program('crash') + LONG)}")
    job.says(b"iteration 50 ")
    job.process.send_signal(signal.SIGTERM)
    job.wait(10)


@pytest.mark.parametrize("moment", [0.0, 0.005, 0.02, 0.05])
def test_interrupted_while_starting(jobs, program, moment):
    job = jobs.start(4, *program("crash"), *LONG)
    time.sleep(moment)
    job.process.send_signal(signal.SIGTERM)
    assert job.wait(10).code in (143, -15)


def test_ended_before_a_rank_has_caught_up(jobs, program):
    """The time since the failure is lost although no recovery was completed. What was logged stays logged."""
    marker = jobs.directory / "marker"
    script = f"if [ $PMI_RANK = 1 -a -e {marker} ]; then sleep 1000; fi; exec {' '.join(program('crash') + LONG)}"
    job = jobs.start(3, "sh", "-c", script)
    job.says(b"iteration 50 ")
    marker.touch()
    job.kill([1])
    job.reach_another("started", rank=1)
    time.sleep(0.3)
    job.process.terminate()
    result = job.wait(10)
    assert result.code == 143, result.describe()
    summary = r"1 restart; \d+\.\d s lost; rank 1 had not caught up when the job ended; .* sent in [1-9][\d,]* messages"
    assert re.search(summary, result.errors), result.describe()
    ended, = result.of("job_ended")
    assert ended["lost_seconds"] >= 0.3 and ended["replay_seconds"] == 0
