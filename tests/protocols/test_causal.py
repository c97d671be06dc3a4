# SPDX-License-Identifier: Apache-2.0
"""Causal message logging where a node may be lost. A crashed rank collects what it delivered from the event loggers and
from the ranks that depend on it. The answer is that of an undisturbed run, byte for byte."""

import json
import os
import resource
import signal
import time
from pathlib import Path

import pytest

import harness
from catalogue import BY_NAME, arguments
from harness import came_about, in_time, slow
from servers import SPREADS, WAYS, journal_of, logger_of, node, strike_logger
from settings import MANY, REDUCTIONS, TOLERATE_NODE, every
from survival import LONG, PROGRAMS, compare, soak, survive, undisturbed


@pytest.mark.gate("vcausal-1*", "logon-1*")
@pytest.mark.parametrize("reduction, loggers, name", [*WAYS[1::2], *(slow(*way) for way in WAYS[::2])])
def test_random_kills(jobs, program, rng, kills, reduction, loggers, name):
    entry, command = BY_NAME[name], program(name)
    expected = undisturbed(jobs, command, entry, 4)
    survive(jobs, rng, command, entry, 4, kills or 3, expected, node(reduction, loggers))


@pytest.mark.gate("broadcast")
@pytest.mark.parametrize("spread", ["broadcast", "piggyback"])
def test_random_kills_with_clocks_that_spread(jobs, program, rng, kills, spread):
    entry, command = BY_NAME["master_worker"], program("master_worker")
    expected = undisturbed(jobs, command, entry, 4)
    survive(jobs, rng, command, entry, 4, kills or 3, expected, node("manetho", 2, spread))


@pytest.mark.gate("logon-1")
@pytest.mark.parametrize("reduction, loggers", [("manetho", 0), ("logon", 1)])
def test_all_ranks_at_once(jobs, program, rng, reduction, loggers):
    """Deliveries that no other rank has heard of are lost, and no rank depends on them."""
    entry, command = BY_NAME["master_worker"], program("master_worker")
    expected = undisturbed(jobs, command, entry, 4)
    how = {"everyone": 1.0, "in_replay": 0}
    survive(jobs, rng, command, entry, 4, 2, expected, node(reduction, loggers), **how)


def test_where_only_processes_are_lost_nothing_is_carried(jobs, program, rng, kills):
    entry, command = BY_NAME["master_worker"], program("master_worker")
    expected = undisturbed(jobs, command, entry, 4)
    result = survive(jobs, rng, command, entry, 4, kills or 2, expected, ["--protocol", "causal"])
    assert not result.of("event_logger_started")
    assert not any("piggybacks" in event for event in result.of("finished"))


def test_images_while_only_processes_are_lost(jobs, program, rng, kills):
    entry, command = BY_NAME["heat"], program("heat")
    expected = undisturbed(jobs, command, entry, 4)
    options = ["--protocol", "causal", *every("100ms")]
    result = survive(jobs, rng, command, entry, 4, kills or 2, expected, options)
    came_about(result.of("checkpointed"), result)


def carried(result):
    """How many events messages carried, and how many messages there were."""
    piggybacks = [event["piggybacks"] for event in result.of("finished")]
    return sum(each["events"] for each in piggybacks), sum(each["messages"] for each in piggybacks)


def test_the_time_that_piggybacks_take_is_told(jobs, program, tmp_path):
    stats = tmp_path / "stats"
    jobs.run(3, *program("transpose"), "64", "300", options=[*node("vcausal", 0), "--stats-json", stats]).ok()
    told = json.loads(stats.read_text())
    total = told["total"]
    assert total["piggyback_events"] > 1000, total
    for way in ("prepare_seconds", "absorb_seconds"):
        assert 0 < total[way] < told["wall_seconds"] * 3, total
        assert total[way] == pytest.approx(sum(rank[way] for rank in told["ranks"])), told


def test_event_loggers_make_piggybacks_smaller(jobs, program):
    command = program("transpose")
    events = {}
    for loggers in (0, 1):
        result = jobs.run(4, *command, "64", "300", options=node("manetho", loggers)).ok()
        events[loggers], messages = carried(result)
        assert messages > 1000
    assert 0 < events[1] < events[0]


# Rank 2 takes what 0 and 1 send as it comes, tells rank 3 the order, and prints it. Then rank 3 makes no MPI call until
# it is released, and ranks 0 and 1 wait for rank 2.
SILENT = """
import sys, time
from pathlib import Path
from mpi4py import MPI
comm, here = MPI.COMM_WORLD, Path(sys.argv[1])
if comm.rank < 2:
    for number in range(300):
        comm.send((comm.rank, number), 2)
    comm.recv(source=2)
elif comm.rank == 2:
    order = [comm.recv(source=MPI.ANY_SOURCE) for _ in range(600)]
    comm.send(order, 3)
    print("rank 2", order, flush=True)
    assert comm.recv(source=3) == order
    for rank in (0, 1):
        comm.send(None, rank)
else:
    order = comm.recv(source=2)
    (here / "silent").touch()
    while not (here / "go").exists():
        time.sleep(0.01)
    comm.send(order, 2)
    print("rank 3", order, flush=True)
"""


@pytest.mark.gate("0")
@pytest.mark.parametrize("loggers", [0, 1])
def test_a_rank_that_makes_no_mpi_call_answers(jobs, tmp_path, loggers):
    command = [harness.PYTHON, "-c", SILENT, tmp_path]
    job = jobs.start(4, *command, options=[*MANY, *node("manetho", loggers)])
    job.reach(lambda: (tmp_path / "silent").exists())
    for _ in range(2):
        job.strike([2])
        job.reach_another("caught_up", rank=2)
    (tmp_path / "go").touch()
    result = job.wait().ok()
    lines = result.text.splitlines()
    told = {line[:6]: line[7:] for line in lines}
    assert len(lines) == 2 and told["rank 2"] == told["rank 3"]


def test_what_was_printed_has_happened(jobs, program, tmp_path):
    """Only the user knows in which order rank 0 has received."""
    source = """
import sys, time
from pathlib import Path
from mpi4py import MPI
comm, here = MPI.COMM_WORLD, Path(sys.argv[1])
if comm.rank:
    for number in range(200):
        comm.send((comm.rank, number), 0)
else:
    for _ in range(200 * (comm.size - 1)):
        print(comm.recv(source=MPI.ANY_SOURCE), flush=True)
    (here / "printed").touch()
    while not (here / "go").exists():
        time.sleep(0.01)
comm.barrier()
"""
    job = jobs.start(3, harness.PYTHON, "-c", source, tmp_path, options=[*MANY, *node("logon", 0)])
    job.reach(lambda: (tmp_path / "printed").exists())
    job.strike([0])
    job.reach_another("started", rank=0)
    (tmp_path / "go").touch()
    result = job.wait().ok()
    assert "printed something else" not in result.errors and len(result.text.splitlines()) == 400
    assert not result.of("output_differs")


@pytest.mark.gate("pessimistic")
@pytest.mark.parametrize("protocol", ["causal", "pessimistic"])
def test_an_event_logger_is_killed(jobs, program, rng, protocol):
    entry, command = BY_NAME["master_worker"], program("master_worker")
    calm, file = expected = undisturbed(jobs, command, entry, 4)
    options = [*MANY, *TOLERATE_NODE]
    job = jobs.start(4, *command, *arguments(entry, True, None), options=options, protocol=protocol)
    for _ in range(2):
        job.reach_event("event_logger_started")
        time.sleep(rng.uniform(0.05, calm.seconds / 3))
        before = strike_logger(job)
        job.kill([rng.randrange(4)])
        if not job.until(lambda: logger_of(job) != before, what="another event logger"):
            break
    result = compare(entry, job.wait(), file, expected)
    came_about(result.of("event_logger_lost"), result)
    waits = "ranks hold their sends" in result.errors
    assert waits == (protocol == "pessimistic") and "was lost (killed by SIGKILL)" in result.errors


@pytest.mark.gate("multicast")
@pytest.mark.parametrize("spread", ["multicast", *map(slow, SPREADS[1:]), "pessimistic"])
def test_one_of_two_event_loggers_is_killed(jobs, program, rng, spread):
    """A rank is killed with it, and then the other logger: the next one gets what either knew."""
    entry, command = BY_NAME["master_worker"], program("master_worker")
    calm, file = expected = undisturbed(jobs, command, entry, 4)
    is_pessimistic = spread == "pessimistic"
    options = [*TOLERATE_NODE, "--event-loggers", "2"] if is_pessimistic else node("manetho", 2, spread)
    protocol = "pessimistic" if is_pessimistic else None
    job = jobs.start(4, *command, *arguments(entry, True, None), options=[*MANY, *options], protocol=protocol)
    for number in rng.choice([(0, 1), (1, 0)]):
        time.sleep(rng.uniform(0.05, calm.seconds / 3))
        before = strike_logger(job, number)
        job.kill([rng.randrange(4)])
        if not job.until(lambda: logger_of(job, number) != before, what="another event logger"):
            break
    result = compare(entry, job.wait(), file, expected)
    assert {event["logger"] for event in result.of("event_logger_lost")} == {0, 1}, result.describe()


@pytest.mark.gate("0")
@pytest.mark.parametrize("loggers", [0, 1])
def test_no_send_waits(jobs, program, loggers):
    """And an event logger keeps the graph small."""
    file = jobs.directory / "stats"
    options = [*node("manetho", loggers), "--stats", "--stats-json", file]
    result = jobs.run(4, *program("crash"), "99", "kill", "0", "always", "10000", options=options).ok()
    total = json.loads(file.read_text())["total"]
    assert total["held_sends"] == 0 and total["piggyback_events"] > 0, total
    assert f"{total['largest_graph']:,} kept" in result.errors, result.describe()
    kept = total["largest_graph"] / total["deliveries"]
    assert kept > 0.9 if loggers == 0 else kept < 0.5, total


@pytest.mark.gate("causal")
@pytest.mark.parametrize("protocol", ["causal", "pessimistic"])
def test_an_event_logger_is_killed_and_its_file_lost(jobs, program, rng, protocol):
    """The next event logger begins empty, and ranks tell it everything again."""
    entry, command = BY_NAME["master_worker"], program("master_worker")
    calm, file = expected = undisturbed(jobs, command, entry, 4)
    options = [*MANY, *TOLERATE_NODE]
    job = jobs.start(4, *command, *arguments(entry, True, None), options=options, protocol=protocol)
    job.reach_event("event_logger_started")
    time.sleep(rng.uniform(0.05, calm.seconds / 3))
    # What it writes after that would not be lost.
    pid = strike_logger(job, blow=signal.SIGSTOP)
    job.reach(lambda: " (stopped)" in Path(f"/proc/{pid}/status").read_text(), what="the event logger to stand still")
    os.truncate(journal_of(job), 0)
    strike_logger(job)
    job.reach_event("event_logger_started", epoch=2)
    result = compare(entry, job.wait(), file, expected)
    assert [event["epoch"] for event in result.of("event_logger_started")] == [1, 2]
    assert "restarted, empty" in result.errors


@pytest.mark.soak
def test_an_event_logger_that_cannot_be_started_ends_the_job(jobs, program):
    """The launcher has no more descriptors for another one."""
    job = jobs.start(2, *program("crash"), *LONG, options=TOLERATE_NODE, protocol="pessimistic")
    job.reach_event("event_logger_started")
    job.reach(lambda: len(job.lives()) == 2, what="the ranks")
    launcher = job.process.pid
    taken = {int(number) for number in os.listdir(f"/proc/{launcher}/fd")}
    lowest_free = min(set(range(len(taken) + 1)) - taken)
    resource.prlimit(launcher, resource.RLIMIT_NOFILE, (lowest_free, lowest_free))
    began = time.monotonic()
    strike_logger(job)
    result = job.wait(20)
    seconds = time.monotonic() - began
    assert result.code == 1 and seconds > 9, result.describe()
    in_time(seconds < 14, f"{seconds} s")
    assert "event logger 0 cannot be started: Too many open files" in result.errors, result.describe()
    assert "event logger 0 cannot be started for 10s, so the job ends" in result.errors, result.describe()
    assert not job.leftovers()


@pytest.mark.soak
@pytest.mark.parametrize("loggers, spread", [(0, None), (1, None), *((2, spread) for spread in SPREADS)])
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("entry", PROGRAMS, ids=str)
def test_soak(jobs, program, rng, kills, request, entry, reduction, loggers, spread):
    soak(jobs, program, rng, request, entry, 4, kills or 8, node(reduction, loggers, spread))
