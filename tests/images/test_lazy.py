# SPDX-License-Identifier: Apache-2.0
"""Ranks with much memory are rebuilt from files, and run before all of it has been read (docs/internals/image.md)."""

import contextlib
import os
import re
import signal
import time
from pathlib import Path

import pytest

import harness
from harness import came_about
from image_files import damage_bit, files, flip, from_files, kill_with_snapshots, start, until_written, written
from survival import agent_of, fillers, kill_snapshots


def may_follow_processes():
    """Whether there is CAP_SYS_PTRACE; without it a rank waits until its memory is there."""
    status = Path("/proc/self/status").read_text()
    return bool(int(re.search(r"CapEff:\s*(\w+)", status)[1], 16) >> 19 & 1)


pytestmark = [
    pytest.mark.protocol("pessimistic"),
    pytest.mark.skipif(not may_follow_processes(), reason="needs CAP_SYS_PTRACE"),
]
# Everything that a program can do to its memory, with 200 MiB of it.
CHANGED = (harness.PROGRAMS / "image" / "changed", "8")


def runs_again(job, rank, before=lambda: None):
    """Kills a rank and its snapshot as soon as the rank has two more files with all of its memory. Returns the process
    that fills the memory of the next life."""
    before_this = len(written(job, rank))
    with_all = lambda: [event for event in written(job, rank)[before_this:] if event["bytes"] > 150 << 20]
    if not job.until(lambda: len(with_all()) > 1, what=f"image files of rank {rank}"):
        return []
    agent, (_, number) = agent_of(job, rank), job.lives()[rank]
    kill_with_snapshots(job, rank, before)
    found = []

    def lives_again():
        """On a busy machine the memory may be full before the life is heard of."""
        found.extend([] if found else fillers(agent))
        return job.lives().get(rank, (0, 0))[1] > number

    job.reach(lives_again, what="the next life")
    return found


def test_what_a_rank_does_meanwhile_makes_no_difference(jobs, rng, tmp_path):
    calm = jobs.calm(2, *CHANGED)
    job = start(jobs, tmp_path / "images", 2, *CHANGED)
    seen = [runs_again(job, rng.randrange(2)) for _ in range(2)]
    result = job.wait().ok()
    assert result.out == calm.out and any(seen), result.describe()


@pytest.mark.slow
def test_a_rank_dies_again_meanwhile(jobs, rng, tmp_path):
    calm = jobs.calm(2, *CHANGED)
    job = start(jobs, tmp_path / "images", 2, *CHANGED)
    rank = rng.randrange(2)
    assert runs_again(job, rank)
    for _ in range(3):
        time.sleep(rng.uniform(0, 0.1))
        if rank not in (lives := job.lives()):
            break
        _, number = lives[rank]
        job.kill([rank])
        job.reach(lambda number=number: job.lives().get(rank, (0, 0))[1] > number, what="the next life")
    result = job.wait().ok()
    assert result.out == calm.out, result.describe()


def goes_on_from_the_older_file(job, calm, why):
    """A life began from a file that cannot be read to its end. The next one begins from the file before. On a busy
    machine the first may end before it is heard of."""
    result = job.wait().ok()
    lost = [event["image"] for event in result.of("image_lost") if why in event["reason"]]
    *first, second = [event["image"] for event in from_files(result)[:2]]
    assert len(lost) == 1 and first in ([], lost) and 0 < second < lost[0], result.describe()
    assert result.out == calm.out, result.describe()


def test_damage_that_is_noticed_while_the_rank_runs(jobs, tmp_path):
    calm = jobs.calm(2, *CHANGED)
    job = start(jobs, tmp_path / "images", 2, *CHANGED)

    def damage():
        newest = files(tmp_path / "images", 0)[-1]
        flip(newest, newest.stat().st_size * 7 // 8)  # in memory that nothing needs at once

    runs_again(job, 0, damage)
    goes_on_from_the_older_file(job, calm, "the checksum of its memory is wrong")


def test_who_fills_the_memory_is_killed(jobs, tmp_path):
    """No thread ever sees zeros in place of missing memory, and the file is as good as before."""
    calm = jobs.calm(2, *CHANGED)
    job = start(jobs, tmp_path / "images", 2, *CHANGED)
    for filler in runs_again(job, 0):
        with contextlib.suppress(ProcessLookupError):
            os.kill(filler, signal.SIGKILL)
    result = job.wait().ok()
    assert result.out == calm.out, result.describe()
    # It may have filled all of the memory before it was found.
    came_about(result.restarts == 2, result)
    first, second = (event["image"] for event in from_files(result)[:2])
    assert first == second, result.describe()


# Has much memory, and ends without looking at it again.
ENDS = """
import sys
from mpi4py import MPI
world, much = MPI.COMM_WORLD, b"much" * (40 << 20)
for number in range(int(sys.argv[1])):
    total = world.allreduce(number)
print("rank", world.rank, "total", total)
"""


@pytest.mark.slow
def test_a_rank_ends_meanwhile(jobs, tmp_path):
    python = [harness.PYTHON, "-c", ENDS, "200000"]
    job = start(jobs, tmp_path / "images", 2, *python)
    assert runs_again(job, 0)
    result = job.wait().ok()
    assert harness.by_rank(result.out) == harness.by_rank(b"rank 0 total 399998\nrank 1 total 399998\n")
    assert not job.leftovers(1), result.describe()


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["blocking", "chandy-lamport", "auto"])
def test_all_ranks_return_to_a_wave(jobs, rng, tmp_path, protocol):
    calm = jobs.calm(2, *CHANGED)
    job = start(jobs, tmp_path / "images", 2, *CHANGED, protocol=protocol)
    for kill in range(3):
        if not until_written(job, 0, len(written(job, 0)) + 2):
            break
        _, number = job.lives()[0]
        kill_snapshots(job)
        job.kill([rng.randrange(2)])
        job.reach(lambda number=number: job.lives().get(0, (0, 0))[1] > number, what="the next life")
        if kill == 1:
            time.sleep(rng.uniform(0, 0.1))
            job.kill([rng.randrange(2)])
    result = job.wait().ok()
    assert result.out == calm.out, result.describe()
    harness.came_about(from_files(result), result)


@pytest.mark.slow
def test_what_is_not_brought_later_is_verified_at_once(jobs, tmp_path):
    """Memory of files, and memory that should be in huge pages."""
    calm = jobs.calm(2, *CHANGED)
    job = start(jobs, tmp_path / "images", 2, *CHANGED)
    runs_again(job, 0, lambda: damage_bit(files(tmp_path / "images", 0)[-1]))
    result = job.wait().ok()
    assert result.out == calm.out, result.describe()
    harness.came_about(len(result.of("image_lost")) > 1, result)
