# SPDX-License-Identifier: Apache-2.0
"""What ranks make in the file system, where a node is lost, or a run with what ranks had noted of it; and where a job is suspended while
ranks do again what they did."""

import os
import signal

import pytest

from chains import interrupt, reach_recorded
from harness import PYTHON, slow
from on_nodes import agents
from settings import EVERY, TOLERATE_NODE

# Rank 1 dies when it has made its first six pieces. A piece is a directory, a file that must be new, or a rank's own file that gets
# another name or is removed; of claims whoever makes the file does the piece. The image is behind piece 2; of files that are moving or
# removed, in the middle of it.
PIECES = """
import os, sys, time
from mpi4py import MPI
world, kind, seen = MPI.COMM_WORLD, sys.argv[1], 0
def wait(name, until):
    open(name, "w").close()
    while not os.path.exists(until):
        time.sleep(0.01)
for piece in range(10):
    if kind == "folders":
        os.mkdir(f"{world.rank}-{piece}")
        seen += piece
    elif kind in ("moved", "moving", "removed"):
        with open(f"{world.rank}", "w") as file:
            file.write(str(piece))
        world.barrier()
        if kind != "moved" and piece == 2:
            if world.rank == 0:
                wait("early", "taken")
            world.barrier()
        if kind == "removed":
            os.unlink(f"{world.rank}")
        else:
            os.rename(f"{world.rank}", f"{world.rank}-{piece}")
        seen += piece
    elif world.rank == piece % 2 or piece > 6:
        try:
            open(f"piece-{piece}", "x").close()
            seen += piece
        except FileExistsError:
            pass
    if piece == 2:
        world.barrier()
        if world.rank == 0 and kind not in ("moving", "removed"):
            wait("early", "taken")
        world.barrier()
    if piece == 6 and world.rank == 1:
        wait("late", "lost")
    if piece == 6:
        world.barrier()
seen = world.reduce(seen)
if world.rank == 0:
    print(seen, flush=True)
"""
UNKNOWN = "cannot know what it did to"
LOSSES = [
    *[("auto", [], True), ("auto", [], False), ("blocking", [], True), slow("chandy-lamport", [], True), slow("group", [], True)],
    *[slow("pessimistic", TOLERATE_NODE, True), slow("causal", TOLERATE_NODE, False), slow("channel-memory", [], True)],
]


def begin(jobs, kind, protocol, options, image, program=PIECES):
    """Only one image, so that all ranks do what comes behind it again."""
    job = jobs.start(2, PYTHON, "-c", program, kind, protocol=protocol, options=options)
    job.reach((job.directory / "early").exists)
    if image:
        jobs.resurgo("checkpoint", job.process.pid).ok()
    (job.directory / "taken").touch()
    job.reach((job.directory / "late").exists)
    return job


@pytest.mark.parametrize("kind", ["folders", "moved", "moving", "removed", "claims"])
@pytest.mark.parametrize("protocol, options, image", LOSSES)
def test_who_has_made_what_is_known_after_the_loss_of_a_node(jobs, protocol, options, image, kind):
    job = begin(jobs, kind, protocol, ["--nodes", "2", "--lease", "10s", *options], image)
    os.kill(agents(job)[1], signal.SIGKILL)
    job.reach_event("node_lost")
    (job.directory / "lost").touch()
    result = job.wait().ok()
    assert result.out.split() == [b"45" if kind == "claims" else b"90"], result.describe()
    if kind in ("moved", "moving"):
        left = {path.name: path.read_text() for path in job.directory.glob("[01]-*")}
        assert left == {f"{rank}-{piece}": str(piece) for rank in range(2) for piece in range(10)}, result.describe()


# Each rank reads numbers by MPI-IO, and overwrites them with the next ones. They begin from what is in the file, which is nothing.
NUMBERS = """
import os, time
import numpy
from mpi4py import MPI
world = MPI.COMM_WORLD
file = MPI.File.Open(MPI.COMM_SELF, f"number-{world.rank}", MPI.MODE_CREATE | MPI.MODE_RDWR)
number = numpy.full(512, world.rank + file.Get_size(), dtype=numpy.int64)
file.Write_at(0, number)
def wait(name, until):
    open(name, "w").close()
    while not os.path.exists(until):
        time.sleep(0.01)
for step in range(10):
    file.Read_at(0, number)
    number = number * 3 + step
    file.Write_at(0, number)
    world.barrier()
    if step == 4 and world.rank == 0:
        wait("early", "taken")
    if step == 4:
        world.barrier()
    if step == 8 and world.rank == 1:
        wait("late", "lost")
total = world.reduce(int(number.sum()))
if world.rank == 0:
    print(total, flush=True)
"""
READ = "has read by MPI-IO what it has overwritten since"
NUMBERED = [("auto", [], True), ("auto", [], False), ("blocking", [], True), ("group", [], True), ("pessimistic", TOLERATE_NODE, True)]


@pytest.mark.parametrize("protocol, options, image", NUMBERED)
def test_what_mpi_io_has_overwritten_is_undone_after_the_loss_of_a_node(jobs, protocol, options, image):
    """Where ranks go on alone, what they had read is lost with their node, and the job says so."""
    job = begin(jobs, "", protocol, ["--nodes", "2", "--lease", "10s", *options], image, NUMBERS)
    os.kill(agents(job)[1], signal.SIGKILL)
    job.reach_event("node_lost")
    (job.directory / "lost").touch()
    result = job.wait()
    if protocol == "pessimistic":
        assert result.code == 119 and READ in result.errors, result.describe()
        return
    numbers = [0, 1]
    for step in range(10):
        numbers = [number * 3 + step for number in numbers]
    assert result.ok().out.split() == [str(512 * sum(numbers)).encode()], result.describe()


@pytest.mark.parametrize("protocol", ["blocking", slow("chandy-lamport"), slow("group")])
def test_a_suspended_job_knows_who_has_made_what(chain, protocol):
    """Also if ranks have not yet done again what they did before."""
    job = begin(chain, "claims", protocol, [], True)
    job.strike([1])
    assert chain.suspend()
    (job.directory / "lost").touch()
    chain.resume()
    result = chain.end()
    assert chain.out.split() == [b"45"], result.describe()


@pytest.mark.parametrize("kind", ["claims", slow("moved"), slow("moving"), slow("removed")])
@pytest.mark.parametrize("protocol", ["blocking", slow("auto")])
def test_a_resumed_job_knows_it_after_the_loss_of_a_node(chain, protocol, kind):
    nodes = ["--nodes", "2", "--lease", "10s"]
    job = chain.start(2, PYTHON, "-c", PIECES, kind, protocol=protocol, options=nodes)
    job.reach((job.directory / "early").exists)
    assert chain.suspend()
    (job.directory / "taken").touch()
    resumed = chain.resume(options=nodes)
    resumed.reach((job.directory / "late").exists)
    os.kill(agents(resumed)[1], signal.SIGKILL)
    resumed.reach_event("node_lost")
    (job.directory / "lost").touch()
    result = chain.end()
    assert chain.out.split() == [b"45" if kind == "claims" else b"90"], result.describe()


@pytest.mark.parametrize("protocol", ["auto", slow("blocking")])
def test_an_interrupted_job_does_not(chain, protocol):
    job = chain.start(2, PYTHON, "-c", PIECES, "claims", protocol=protocol, options=EVERY)
    job.reach((job.directory / "early").exists)
    reach_recorded(job)
    (job.directory / "taken").touch()
    job.reach((job.directory / "late").exists)
    assert interrupt(job, "launcher")
    (job.directory / "lost").touch()
    chain.resume()
    result = chain.last.wait()
    assert result.code == 119 and UNKNOWN in result.errors or result.code == 0 and chain.out.split() == [b"45"], result.describe()
