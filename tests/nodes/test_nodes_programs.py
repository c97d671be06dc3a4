# SPDX-License-Identifier: Apache-2.0
"""Programs of others on two nodes: what plain MPICH gives across the same two, also when ranks and nodes are lost on the way."""

import os
import signal
import time

import pytest

import cluster
import harness
import imb_suite as imb
import lammps_suite as lammps
import mpi4py_suite as mpi4py
from harness import came_about, storm
from on_nodes import agents
from settings import MANY, every

pytestmark = pytest.mark.slow

PROTOCOLS = ["auto", "blocking", "pessimistic"]
TWO = ["--nodes", "2"]
# Of mpi4py's tests, what is short enough to be begun again and again.
SOME = r"test_(cco_buf|p2p_buf|p2p_buf_matched|request|status|win)\.py$"
in_namespaces = pytest.mark.skipif(
    not cluster.is_possible(), reason="network namespaces cannot be made here (as root, with ip and tc)"
)


@pytest.fixture
def nodes():
    with cluster.Cluster(2) as made:
        yield made


def ours(jobs, nodes, size, line, protocol):
    options = ["-hosts", nodes.hosts(size // 2), "-launcher", "ssh", "-launcher-exec", nodes.bin / "ssh"]
    return jobs.run(size, *line, options=options, protocol=protocol, timeout=150).ok()


def plain(jobs, nodes, size, line):
    """mpiexec across the nodes, by the same ssh."""
    options = ["-launcher", "ssh", "-launcher-exec", nodes.bin / "ssh", "-localhost", nodes.address(0), "-iface", nodes.bridge]
    env = {**harness.environment(LD_LIBRARY_PATH=harness.MPICH / "lib"), **harness.PLAIN}
    return jobs.command([harness.MPICH / "bin/mpiexec", *options, "-hosts", nodes.hosts(size // 2), "-n", size, *line], env=env).wait(900)


@in_namespaces
@pytest.mark.parametrize("protocol", ["none", *PROTOCOLS])
@pytest.mark.parametrize("name", ["melt", "ions"])
def test_lammps_as_plain_mpich(jobs, nodes, name, protocol):
    own = ours(jobs, nodes, 4, lammps.command(name, jobs.directory / "ours", 100), protocol)
    theirs = plain(jobs, nodes, 4, lammps.command(name, jobs.directory / "theirs", 100)).ok()
    assert lammps.physics(own) == lammps.physics(theirs)
    assert lammps.files(jobs.directory, "ours") == lammps.files(jobs.directory, "theirs")


@in_namespaces
@pytest.mark.parametrize("protocol", ["none", *PROTOCOLS])
def test_mpi4py_as_plain_mpich(jobs, nodes, protocol):
    run = lambda size, *line, **_: ours(jobs, nodes, size, line, protocol)
    own = mpi4py.run_suite(run, 2, "-i", SOME)
    theirs = mpi4py.run_suite(lambda size, *line, **_: plain(jobs, nodes, size, line), 2, "-i", SOME)
    mpi4py.as_under_plain_mpich(own, mpi4py.verdicts(theirs))


@in_namespaces
@pytest.mark.intel
@pytest.mark.parametrize("protocol", ["none", *PROTOCOLS])
@pytest.mark.parametrize("name", imb.SHORT)
def test_imb_as_plain_mpich(jobs, nodes, name, protocol):
    own = ours(jobs, nodes, 2, imb.command(name, 2), protocol)
    theirs = plain(jobs, nodes, 2, imb.command(name, 2)).ok()
    assert imb.shape(own.text) == imb.shape(theirs.text) and "# All processes entering MPI_Finalize" in own.text


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", ["melt", "ions"])
def test_lammps_with_kills_of_ranks(jobs, rng, kills, name, protocol):
    """Under pessimistic in the first half: at its end LAMMPS sends measured times, which no replay repeats."""
    calm = jobs.calm(4, *lammps.command(name, jobs.directory / "calm", 600, lammps.PROGRAM))
    line = lammps.command(name, jobs.directory / "stormy", 600, lammps.PROGRAM)
    together = {"span": calm.seconds} if protocol != "pessimistic" else {"span": calm.seconds * 0.5, "in_replay": 0}
    images = every(rng.choice(["50ms", "300ms"])) if protocol != "pessimistic" else []
    job = jobs.start(4, *line, options=[*TWO, *MANY, *images], protocol=protocol)
    print(storm(job, rng, kills or 4, **together))
    stormy = job.wait(150).ok()
    assert lammps.physics(stormy) == lammps.physics(calm)
    assert lammps.files(jobs.directory, "stormy") == lammps.files(jobs.directory, "calm")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_mpi4py_with_kills_of_ranks(jobs, rng, kills, protocol):
    options = [*TWO, *MANY, *(every("300ms") if protocol != "pessimistic" else [])]
    job = mpi4py.run_suite(jobs.start, 4, "-i", SOME, options=options, protocol=protocol)
    print(storm(job, rng, kills or 6, 12))
    failed, ran = mpi4py.verdicts(result := job.wait(160))
    assert not failed and len(ran) == 1 and int(ran.pop()) > 100, result.describe()
    came_about(result.restarts > 0, result)


def loses_a_node(jobs, rng, size, line, protocol):
    """A job on three nodes loses one at a random moment, and goes on."""
    options = ["--nodes", "3", "-ppn", "1", "--lease", "2s", *MANY, *every("500ms")]
    job = jobs.start(size, *line, options=options, protocol=protocol)
    job.reach(lambda: len(job.lives()) == size)
    time.sleep(rng.uniform(0.3, 3))
    if not (there := agents(job)):
        pytest.skip("it was over before")
    os.kill(rng.choice(there), rng.choice([signal.SIGKILL, signal.SIGSTOP]))
    result = job.wait(160).ok()
    assert len(result.of("node_lost")) == 1, result.describe()
    return result


@pytest.mark.parametrize("protocol", ["auto", "blocking"])
@pytest.mark.parametrize("name", ["melt", "ions"])
def test_lammps_loses_a_node(jobs, rng, name, protocol):
    calm = jobs.calm(4, *lammps.command(name, jobs.directory / "calm", 1500, lammps.PROGRAM))
    line = lammps.command(name, jobs.directory / "stormy", 1500, lammps.PROGRAM)
    stormy = loses_a_node(jobs, rng, 4, line, protocol)
    assert lammps.physics(stormy) == lammps.physics(calm)
    assert lammps.files(jobs.directory, "stormy") == lammps.files(jobs.directory, "calm")


@pytest.mark.parametrize("protocol", ["auto", "blocking"])
def test_mpi4py_loses_a_node(jobs, rng, protocol):
    run = lambda size, *line, **_: loses_a_node(jobs, rng, size, line, protocol)
    failed, ran = mpi4py.verdicts(result := mpi4py.run_suite(run, 4, "-i", SOME))
    assert not failed and len(ran) == 1 and int(ran.pop()) > 100, result.describe()


@pytest.mark.intel
@pytest.mark.parametrize("protocol", ["auto", "blocking"])
@pytest.mark.parametrize("name", imb.SHORT)
def test_imb_loses_a_node(jobs, rng, name, protocol):
    """A table that is printed again has other times: the first stands, or there are two with a warning."""
    calm = jobs.calm(2, *imb.command(name, 2))
    stormy = loses_a_node(jobs, rng, 2, imb.command(name, 2), protocol)
    assert set(imb.shape(stormy.text)) == set(imb.shape(calm.text)), stormy.describe()
