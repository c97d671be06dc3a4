# SPDX-License-Identifier: Apache-2.0
"""Signals to `resurgo run` reach the ranks unchanged, as under mpiexec. Ranks that they end are not started again."""

import os
import signal
import time
from pathlib import Path

import pytest

import harness

SAVES = [signal.SIGTERM, signal.SIGINT]  # after these the program ends well


def start(jobs, program, *arguments, over=None, n=2, **more):
    job = jobs.start(n, *program("signals"), over or jobs.directory / "over", *arguments, **more)
    job.says(b"ready")
    return job


def told(text):
    return sorted(line for line in text.splitlines() if "got signal" in line)


def state(job, rank):
    return Path(f"/proc/{job.lives()[rank][0]}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize("protocol", ["none", pytest.param("auto", marks=pytest.mark.soak)])
def test_every_signal_reaches_the_ranks(jobs, program, protocol):
    """One job gets the signals that a program outlives, then the one that ends it."""
    options = ["-q", "--checkpoint-signal", "none"]
    job = start(jobs, program, protocol=protocol, options=options)
    expected = []
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT, signal.SIGCONT, signal.SIGTERM):
        job.process.send_signal(number)
        expected += [f"rank {rank} got signal {int(number)}" for rank in (0, 1)]
        assert job.until(lambda: told(job.out.read_text()) == sorted(expected), what=f"{number}") or number in SAVES
    result = job.wait(20).ok()
    assert told(result.text) == sorted(expected) and result.text.endswith("over\n"), result.describe()
    assert result.errors == ""


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)])
def test_a_program_that_saves_itself_ends_as_under_mpiexec(jobs, program, number):
    plain = jobs.command(
        [harness.MPICH / "bin/mpiexec", "-n", 2, *program("signals"), "never"],
        env={**harness.environment(), **harness.PLAIN},
    )
    plain.reach(lambda: b"ready" in plain.out.read_bytes(), what="the program")
    job = start(jobs, program, protocol="pessimistic")
    for each in (plain, job):
        each.process.send_signal(number)
    result, expected = job.wait(20), plain.wait(20)
    assert (result.code, told(result.text)) == (expected.code, told(expected.text)) and result.code == 0
    assert len(told(result.text)) == 2 and result.text.endswith("over\n") and result.errors == ""


@pytest.mark.parametrize("protocol", ["pessimistic", pytest.param("blocking", marks=pytest.mark.soak)])
@pytest.mark.parametrize("number", [signal.SIGUSR2, *(pytest.param(n, marks=pytest.mark.soak) for n in SAVES)])
def test_what_the_users_signal_has_ended_is_not_started_again(jobs, program, number, protocol):
    job = start(jobs, program, "none", protocol=protocol)
    job.process.send_signal(number)
    result = job.wait(10)
    assert result.code == 128 + number and not result.of("restarting"), result.describe()
    assert len(result.of("started")) == 2 and f"ended by {signal.Signals(number).name}" in result.errors


def test_the_same_signal_to_a_rank_alone_is_a_failure(jobs, program):
    job = start(jobs, program, "none", protocol="pessimistic")
    job.strike([1], signal.SIGUSR2)
    job.reach_another("caught_up", rank=1)
    (jobs.directory / "over").touch()
    assert job.wait().ok().text.endswith("over\n")


def test_grace(jobs, program):
    """The program goes on after SIGHUP; it is killed when the time is up, or when the user insists."""
    job = start(jobs, program, protocol="pessimistic", options=["--grace", "1s"])
    began = time.monotonic()
    job.process.send_signal(signal.SIGHUP)
    result = job.wait(10)
    seconds = time.monotonic() - began
    assert result.code == 129 and seconds > 0.9, result.describe()
    harness.in_time(seconds < 5, f"{seconds} s")
    assert len(told(result.text)) == 2 and "ended by SIGHUP" in result.errors
    job = start(jobs, program, over="never", protocol="pessimistic", options=["--grace", "1h"])
    job.process.send_signal(signal.SIGHUP)
    job.reach(lambda: len(told(job.out.read_text())) == 2)
    job.process.send_signal(signal.SIGTERM)
    assert job.wait(10).code == 143


def test_usr1_takes_images_unless_another_does(jobs, program):
    job = start(jobs, program, protocol="pessimistic", options=["--checkpoint-signal", "USR2"])
    job.process.send_signal(signal.SIGUSR1)
    job.reach(lambda: len(told(job.out.read_text())) == 2)
    job.process.send_signal(signal.SIGUSR2)
    assert job.reach_event("checkpointed", rank=0) and job.reach_event("checkpointed", rank=1)
    job.process.send_signal(signal.SIGTERM)
    result = job.wait(20).ok()
    assert {line[-2:] for line in told(result.text)} == {"10", "15"}


def test_job_control(jobs, program):
    """Like Ctrl-Z and fg in a shell that watches the job."""
    script = f"""
import os, signal, subprocess, sys, time
job = subprocess.Popen(sys.argv[1:], process_group=0)
pid, status = os.waitpid(job.pid, os.WUNTRACED)
print("stopped", os.WIFSTOPPED(status), flush=True)
while not os.path.exists("{jobs.directory}/continue"):
    time.sleep(0.01)
os.kill(job.pid, signal.SIGCONT)
sys.exit(job.wait())
"""
    events = jobs.directory / "events.json"
    over = jobs.directory / "over"
    command = [harness.RESURGO, "run", "-n", "2", "--json-events", events, *program("signals"), over, "none"]
    job = jobs.command([harness.PYTHON, "-c", script, *command], events=events)
    job.says(b"ready")
    ranks = [pid for pid, _ in job.lives().values()]
    launcher = int(Path(f"/proc/{ranks[0]}/stat").read_text().rpartition(")")[2].split()[1])  # the agent
    launcher = int(Path(f"/proc/{launcher}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(launcher, signal.SIGTSTP)
    job.says(b"stopped True")
    job.reach(lambda: [state(job, rank) for rank in (0, 1)] == ["T", "T"], 5, "the ranks to stop")
    (jobs.directory / "continue").touch()
    job.reach(lambda: "T" not in [state(job, rank) for rank in (0, 1)], 5, "the ranks to go on")
    over.touch()
    assert job.wait(20).ok().text.endswith("over\n")
