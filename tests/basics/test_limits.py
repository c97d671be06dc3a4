# SPDX-License-Identifier: Apache-2.0
"""The message log has a bound. When it is reached: a clear error, or a file; never an endless wait."""

import os
import signal

import pytest

import harness
from harness import by_rank, came_about, slow
from settings import SMALL_LOG, TOLERATE_NODE

# transpose: rounds of all-to-all, 64 x 64 blocks of 8 bytes between each pair: 4 ranks send some 25 MB in all.
BUSY = ["64", "200"]


# A socket to itself: this rank can have no image, and messages to it are kept.
NO_IMAGE = """
import socket
from mpi4py import MPI
import numpy
world = MPI.COMM_WORLD
both = socket.socketpair() if world.rank else None
buffer = numpy.zeros(32768)
for number in range(200):
    world.Send(buffer, 1) if world.rank == 0 else world.Recv(buffer, 0)
"""


@pytest.mark.parametrize("tolerate", ["process", slow("node")])
def test_the_bound_is_reached(jobs, tolerate):
    """There are no images that would let the log forget."""
    options = [*SMALL_LOG, "--tolerate", tolerate]
    result = jobs.run(2, harness.PYTHON, "-c", NO_IMAGE, protocol="pessimistic", options=options, timeout=60)
    assert result.code == 119, result.describe()
    assert "--log-memory" in result.errors and "--spill-dir" in result.errors, result.describe()


@pytest.mark.parametrize("protocol", ["pessimistic", "causal"])
def test_images_let_the_log_forget_where_nodes_may_be_lost(jobs, program, protocol):
    calm = jobs.calm(4, *program("transpose"), *BUSY)
    options = [*SMALL_LOG, *TOLERATE_NODE, "--fault", "random,seed=5,mean=200ms,count=4"]
    result = jobs.run(4, *program("transpose"), *BUSY, protocol=protocol, options=options, timeout=60).ok()
    assert result.out == calm.out
    came_about(result.of("log_fills") and result.of("checkpointed"), result)


def test_images_let_the_log_forget(jobs, program):
    """A log that fills asks for images by itself, even while ranks are killed."""
    calm = jobs.calm(4, *program("transpose"), *BUSY)
    options = [*SMALL_LOG]
    result = jobs.run(4, *program("transpose"), *BUSY, options=options, timeout=60).ok()
    assert result.out == calm.out
    came_about(result.of("log_fills") and result.of("wave_complete"), result)
    options += ["--fault", "random,seed=5,mean=200ms,count=4"]
    result = jobs.run(4, *program("transpose"), *BUSY, options=options, timeout=60).ok()
    assert result.out == calm.out


def test_the_log_goes_to_a_file(jobs, program):
    spill = jobs.directory / "spill"
    spill.mkdir()
    calm = jobs.calm(4, *program("transpose"), *BUSY)
    options = [*SMALL_LOG, "--spill-dir", spill]
    result = jobs.run(4, *program("transpose"), *BUSY, options=options).ok()
    assert result.out == calm.out
    assert result.of("job_ended")[0]["spilled_segments"] > 0
    assert not list(spill.iterdir()), "nothing may be left there"


def test_a_replay_from_the_file(jobs, program):
    spill = jobs.directory / "spill"
    spill.mkdir()
    calm = jobs.calm(4, *program("transpose"), *BUSY)
    options = [*SMALL_LOG, "--spill-dir", spill, "--fault", "rank=1,messages=400"]
    result = jobs.run(4, *program("transpose"), *BUSY, options=options).ok()
    assert result.out == calm.out and result.restarts == 1
    assert not list(spill.iterdir())


def test_protocol_none_keeps_no_log(jobs, program):
    """A small bound is enough when nothing must be kept."""
    result = jobs.run(4, *program("transpose"), *BUSY, protocol="none", options=SMALL_LOG, timeout=60)
    result.ok()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a small file system of its own")
def test_the_disk_is_full(jobs, program):
    spill = jobs.directory / "spill"
    spill.mkdir()
    line = (
        f"mount -t tmpfs -o size=2M none {spill} && exec {harness.RESURGO} run -n 4 --log-memory 4M "
        f"--spill-dir {spill} {' '.join(program('transpose') + BUSY)}"
    )
    result = jobs.command(["unshare", "--mount", "bash", "-c", line]).wait(60)
    assert result.code != 0
    assert "resurgo:" in result.errors and "panicked" not in result.errors, result.describe()


@pytest.mark.gate("4k-*")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs a small file system of its own")
@pytest.mark.parametrize(
    "size, protocol",
    [("128k", "pessimistic"), ("4k", "pessimistic"), slow("128k", "causal"), slow("4k", "causal")],
)
def test_the_disk_of_an_event_logger_is_full(jobs, program, size, protocol):
    """From the beginning, or soon. The logger goes on without its file, and says so. If it dies then, ranks tell the
    next one what they have."""
    heat = [*program("heat"), "100", "100", "6000"]
    calm = jobs.calm(3, *heat)
    small = jobs.directory / "small"
    small.mkdir()
    events = jobs.directory / "events"
    options = f"--protocol {protocol} --tolerate node --json-events {events}"
    line = (
        f"mount -t tmpfs -o size={size} none {small} && (dd if=/dev/zero of={small}/full bs=4k count=1 || true) 2> /dev/null && "
        f"TMPDIR={small} exec {harness.RESURGO} run -n 3 {options} {' '.join(map(str, heat))}"
    )
    job = jobs.command(["unshare", "--mount", "bash", "-c", line], events=events, env=jobs.unhurried())
    job.reach_event("event_logger_without_journal")
    assert job.reach(lambda: len(job.lives()) == 3, what="the ranks") and job.kill([1])
    job.reach_event("caught_up", rank=1)
    (first,) = (event["pid"] for event in job.events if event["event"] == "event_logger_started")
    os.kill(first, signal.SIGKILL)
    job.reach_event("event_logger_started", epoch=2)
    result = job.wait(60).ok()
    assert result.out == calm.out and result.restarts == 1, result.describe()
    assert "No space left on device" in result.of("event_logger_without_journal")[0]["reason"]
    assert [event["epoch"] for event in result.of("event_logger_started")] == [1, 2]


def test_memory_per_rank_when_idle(jobs, program):
    """Beyond plain MPICH: under 64 MiB a rank, measured in the middle of a quiet job."""
    command = program("crash") + ["99", "kill", "0", "always", "100000000"]

    def private_memory(job):
        total = 0
        for pid in job.processes():
            if "crash" not in harness.command_of(pid).split(" ")[0]:
                continue
            text = open(f"/proc/{pid}/smaps_rollup").read()
            fields = dict(line.split(":") for line in text.splitlines()[1:])
            total += int(fields["Pss"].split()[0])
        return total / 1024

    measured = {}
    ours = jobs.start(2, *command)
    theirs = jobs.command(
        [harness.MPICH / "bin/mpiexec", "-n", "2", *command], env={**harness.environment(), **harness.PLAIN}
    )
    for name, job in (("resurgo", ours), ("plain", theirs)):
        job.reach(lambda job=job: b"iteration 50 " in job.out.read_bytes())
        measured[name] = private_memory(job) / 2
    theirs.destroyed = True  # plain MPICH leaves its shared memory behind when it is ended
    for job in (ours, theirs):
        job.process.terminate()
        job.wait(10)
    assert measured["resurgo"] - measured["plain"] < 64, measured


def test_output_order_is_kept_under_load(jobs, program):
    result = jobs.run(4, *program("output"), "1000").ok()
    for rank in range(4):
        numbers = [int(line.split()[3]) for line in by_rank(result.out)[rank] if b" line " in line]
        assert numbers == sorted(numbers)
