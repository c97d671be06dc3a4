# SPDX-License-Identifier: Apache-2.0
"""What ranks make in the file system, where a node is lost with what its ranks had noted of it, or a run; and where a job is suspended
while ranks do again what they did."""

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


def begin(jobs, kind, protocol, options, image):
    """Only one image, so that all ranks do what comes behind it again."""
    job = jobs.start(2, PYTHON, "-c", PIECES, kind, protocol=protocol, options=options)
    job.reach((job.directory / "early").exists)
    if image:
        jobs.resurgo("checkpoint", job.process.pid).ok()
    (job.directory / "taken").touch()
    job.reach((job.directory / "late").exists)
    return job


@pytest.mark.parametrize("kind", ["folders", "moved", "moving", "removed", "claims"])
@pytest.mark.parametrize("protocol, options, image", LOSSES)
def test_a_lost_node_takes_along_who_has_made_what(jobs, protocol, options, image, kind):
    job = begin(jobs, kind, protocol, ["--nodes", "2", "--lease", "10s", *options], image)
    os.kill(agents(job)[1], signal.SIGKILL)
    job.reach_event("node_lost")
    (job.directory / "lost").touch()
    result = job.wait()
    if result.code != 0:
        assert kind != "folders" and result.code == 119 and UNKNOWN in result.errors, result.describe()
        return
    assert kind != "claims" and result.out.split() == [b"90"], result.describe()
    if kind in ("moved", "moving"):
        left = {path.name: path.read_text() for path in job.directory.glob("[01]-*")}
        assert left == {f"{rank}-{piece}": str(piece) for rank in range(2) for piece in range(10)}, result.describe()


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
