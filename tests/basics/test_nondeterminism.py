# SPDX-License-Identifier: Apache-2.0
"""Programs that do not repeat themselves are detected: an error, never a silently wrong answer."""

import os
import signal
import time

import pytest

import harness
from harness import in_time, slow
from on_nodes import agents
from settings import TOLERATE_NODE

pytestmark = pytest.mark.protocol("pessimistic")


def run(jobs, program, variant, n=3, victim=1, **more):
    marker = jobs.directory / "marker"
    result = jobs.run(n, *program("nondeterministic"), variant, victim, "100", marker, "300", **more)
    assert marker.exists(), f"the victim has not died\n{result.describe()}"
    return result


@pytest.mark.gate("time", "length", "tag")
@pytest.mark.parametrize("variant", ["time", "random", "pid", "length", "tag"])
def test_a_different_message_is_detected(jobs, program, variant):
    result = run(jobs, program, variant)
    assert result.code != 0 and "done" not in result.text, result.describe()
    for word in ("rank 1", "rank 2", "send number"):
        assert word in result.errors, f"{word!r} should be there\n{result.describe()}"
    if variant != "tag":
        assert "tag 1" in result.errors, result.describe()
    assert "--protocol auto" in result.errors and "find the source" in result.errors, result.describe()


@pytest.mark.gate("order")
@pytest.mark.parametrize("variant", ["random", "order"])
def test_under_causal_logging(jobs, program, variant):
    result = run(jobs, program, variant, protocol="causal")
    assert result.code != 0 and "done" not in result.text, result.describe()
    assert "rank 1" in result.errors and "--protocol auto" in result.errors, result.describe()


def test_other_destinations_are_detected(jobs, program):
    result = run(jobs, program, "destination", n=4)
    assert result.code != 0 and "done" not in result.text, result.describe()
    assert "rank 1" in result.errors, result.describe()


def test_a_wait_for_what_cannot_come_is_detected(jobs, program):
    """No rank delivers anything new before the last sends are repeated, and the victim repeats them only after it gets
    something."""
    result = run(jobs, program, "order")
    assert result.code != 0 and "done" not in result.text, result.describe()
    assert "rank 1 waits for a message before it has repeated its last sends (1 of them)" in result.errors, result.describe()


RING = """
import os, sys, time
from mpi4py import MPI
world = MPI.COMM_WORLD
other, when = 3 - world.rank, 20
for k in range(400 if world.rank else 0):
    waits = k == when and os.path.exists(sys.argv[1])
    if not waits:
        world.send(k, other)
    assert world.recv(source=other) == k
    if waits:
        world.send(k, other)
    if k == 2 * when and world.rank == 1:
        open(sys.argv[1], "w").close()
    if k > 2 * when:
        time.sleep(0.01)
world.Barrier()
"""


@pytest.mark.parametrize("protocol", ["pessimistic", "causal", slow("hierarchical")])
def test_a_ring_of_waits_on_two_nodes_is_detected(jobs, tmp_path, protocol):
    """Two ranks of a lost node go to two others. In later lives each waits for the other's message before it sends."""
    (script := tmp_path / "ssh").write_text(f'#!/bin/sh\n{harness.APART}shift 6\nexec sh -c "$*"\n')
    script.chmod(0o755)
    (file := tmp_path / "ring.py").write_text(RING)
    hosts = ["-hosts", "localhost:1,a.invalid:2,b.invalid:1,c.invalid:1", "--spares", "2", "-launcher-exec", script]
    options = [*hosts, "--lease", "4s", *TOLERATE_NODE]
    marker = tmp_path / "marker"
    job = jobs.start(3, harness.PYTHON, file, marker, options=options, protocol=protocol)
    job.reach(marker.exists)
    time.sleep(0.5)  # Event loggers have what was received by then.
    there = job.lives()[1][0]
    (victim,) = [pid for pid in agents(job) if pid == harness.parent_of(there)]
    os.kill(victim, signal.SIGKILL)
    result = job.wait(30)
    nodes = {event["rank"]: event["node"] for event in result.of("started")}
    assert sorted((nodes[1], nodes[2])) == ["b.invalid", "c.invalid"], result.describe()
    assert result.code != 0 and "each waits for another's message" in result.errors, result.describe()
    assert "not piecewise deterministic" in result.errors, result.describe()
    in_time(result.seconds < 25, result.describe())


@pytest.mark.parametrize("variant", ["threads", "multiple"])
def test_threads_are_detected_or_refused(jobs, program, variant):
    marker = jobs.directory / "marker"
    result = jobs.run(3, *program("nondeterministic"), variant, "1", "100", marker, "300")
    assert result.code != 0 and "done" not in result.text, result.describe()
    assert "thread" in result.errors and "--protocol auto" in result.errors, result.describe()


@pytest.mark.parametrize("variant", ["none", "address"])
def test_what_repeats_is_not_suspected(jobs, program, variant):
    """Addresses repeat when the memory layout is pinned."""
    result = run(jobs, program, variant).ok()
    assert result.text == f"nondeterministic {variant} iterations=300 done\n"


@pytest.mark.gate("1")
@pytest.mark.parametrize("victim", [0, 1, 2])
def test_of_any_rank(jobs, program, victim):
    """Whichever rank it is."""
    result = run(jobs, program, "random", victim=victim)
    assert result.code != 0 and f"rank {victim}" in result.errors, result.describe()


def test_undisturbed_they_may_do_as_they_like(jobs, program):
    for variant in ("time", "random", "pid", "length", "tag", "destination"):
        marker = jobs.directory / f"marker.{variant}"
        marker.touch()
        jobs.run(3, *program("nondeterministic"), variant, "1", "100", marker, "300").ok()
