# SPDX-License-Identifier: Apache-2.0
"""mpi4py: its own test suite, its benchmarks, its pool of workers."""

import pytest

import harness
from harness import came_about, slow, storm
from mpi4py_suite import as_under_plain_mpich, run_suite, verdicts
from settings import MANY, PROTOCOLS, every

# Tests that depend on the time of day or the machine, or take long (io), are left to the long run.
SUBSET = r"test_(cco_buf|cco_nb_buf|cco_obj|comm|comm_topo|datatype|errhandler|file|group|" \
         r"p2p_buf|p2p_buf_matched|p2p_obj|request|rma|status|win)\.py$"


def test_part_of_the_suite(jobs):
    result = run_suite(jobs.run, 2, "-i", SUBSET, timeout=120)
    failed, ran = verdicts(result)
    assert not failed and len(ran) == 1 and int(ran.pop()) > 300, result.describe()


@pytest.fixture(scope="module")
def plain_verdicts(tmp_path_factory):
    """Verdicts under plain MPICH. Each command runs once: on 4 ranks it takes twice as long as under resurgo."""
    answers = {}

    def ask(size, *options):
        if (size, options) not in answers:
            launcher = harness.Launcher(tmp_path_factory.mktemp("plain"))
            try:
                answers[size, options] = verdicts(run_suite(launcher.mpiexec, size, *options, timeout=1500))
            finally:  # even if the tests are interrupted meanwhile
                for job in launcher.jobs:
                    job.destroy()
                    job.destroyed = True  # plain MPICH leaves shared memory behind when tests fail
                launcher.close()
        return answers[size, options]

    return ask


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["none", "pessimistic"])
@pytest.mark.parametrize("size", [2, 4])
def test_the_whole_suite_passes_as_under_plain_mpich(jobs, plain_verdicts, size, protocol):
    ours = run_suite(jobs.run, size, protocol=protocol, timeout=900)
    as_under_plain_mpich(ours, plain_verdicts(size))


# Its tests of files choose random names, which no replay repeats.
REPEATED = SUBSET.replace("file|", "").replace("io|", "")


@pytest.mark.soak
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("size, options", [(2, every("100ms")), (3, every("1s")), (4, [])])
def test_the_suite_under_kills(jobs, rng, kills, request, protocol, size, options):
    for _ in range(request.config.option.rounds):
        if protocol in ("blocking", "chandy-lamport", "group"):
            options = options or every("300ms")
        job = run_suite(jobs.start, size, "-i", REPEATED, options=[*MANY, *options], protocol=protocol)
        print(storm(job, rng, kills or 8, 12))
        result = job.wait(400).ok()
        failed, ran = verdicts(result)
        assert not failed and len(ran) == 1 and int(ran.pop()) > 300, result.describe()
        came_about(result.restarts > 0, result)


SPAWNING = ["-i", r"test_(spawn|util_pool)\.py$"]


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["none", "pessimistic"])
@pytest.mark.parametrize("size", [2, 4])
def test_spawned_processes_as_under_plain_mpich(jobs, plain_verdicts, size, protocol):
    ours = run_suite(jobs.run, size, *SPAWNING, protocol=protocol, timeout=900)
    as_under_plain_mpich(ours, plain_verdicts(size, *SPAWNING))
    assert sum(len(event["ranks"]) for event in ours.of("spawned")) > 50


def test_spawned_processes(jobs):
    """Each of the two ranks starts others by itself, and both do together."""
    result = run_suite(jobs.run, 2, "-i", r"test_spawn\.py$", "-k", "testCommSpawn", timeout=120)
    failed, ran = verdicts(result)
    assert not failed and ran == {"16"}, result.describe()


@pytest.mark.parametrize("protocol", [slow("none"), "pessimistic"])
def test_benchmarks(jobs, protocol):
    bench = [harness.PYTHON, "-m", "mpi4py.bench"]
    for arguments in (["helloworld", "-q"], ["ringtest", "-l", "20"], ["pingpong", "-n", "1024", "-p", "-l", "20"]):
        jobs.run(2, *bench, *arguments, protocol=protocol).ok()


def test_benchmarks_with_a_kill(jobs):
    result = jobs.run(
        3, harness.PYTHON, "-m", "mpi4py.bench", "ringtest", "-l", "2000", "-n", "100",
        options=[*MANY, "--fault", "rank=1,messages=500", "--fault", "rank=2,messages=700"],
    ).ok()
    assert result.restarts == 2 and "time for 2000 loops" in result.text


@pytest.mark.gate("single", "multiple")
@pytest.mark.parametrize("level", ["single", "funneled", "serialized", "multiple"])
def test_thread_levels(jobs, level):
    """mpi4py asks for MPI_THREAD_MULTIPLE unless told otherwise; a program with one thread must still run."""
    script = f"import mpi4py; mpi4py.rc.thread_level = '{level}'; from mpi4py import MPI; " \
             "print(MPI.COMM_WORLD.allreduce(1), MPI.COMM_WORLD.rank)"
    result = jobs.run(3, harness.PYTHON, "-c", script, options=["--fault", "rank=1,messages=2"]).ok()
    assert sorted(result.text.splitlines()) == ["3 0", "3 1", "3 2"]
