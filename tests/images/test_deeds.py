# SPDX-License-Identifier: Apache-2.0
"""Programs that make, rename and remove things which must be new, or must exist. A killed rank repeats such calls, and
they do not fail because a former life has done them."""

import os
import stat

import pytest

from harness import PYTHON, slow, storm
from settings import MANY, every

IMAGES = ["auto", "pessimistic", "blocking"]
RUNS = [(protocol, []) for protocol in IMAGES] + [(protocol, every("100ms")) for protocol in IMAGES]
RUNS += [slow(protocol, []) for protocol in ["causal", "channel-memory", "hierarchical", "group", "chandy-lamport"]]


def tree(directory, beside=("stdout", "stderr")):
    """Everything below a directory: kind, and content or target, by name."""
    found = {}
    for root, directories, files in os.walk(directory):
        for path in (os.path.join(root, name) for name in directories + files):
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode):
                content = os.readlink(path)
            else:
                content = open(path, "rb").read() if stat.S_ISREG(mode) else None
            found[os.path.relpath(path, directory)] = (stat.S_IFMT(mode), content)
    return {name: what for name, what in found.items() if name not in beside}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A program's output, and the files that it leaves, under plain MPICH."""
    import harness

    answers = {}

    def ask(*command):
        if command not in answers:
            launcher = harness.Launcher(tmp_path_factory.mktemp("plain"))
            result = launcher.mpiexec(3, *command).ok()
            answers[command] = result.out, tree(launcher.jobs[0].directory)
        return answers[command]

    return ask


def survives(jobs, rng, blows, undisturbed, command, protocol, options):
    out, left = undisturbed(*command)
    job = jobs.start(3, *command, options=[*MANY, *options], protocol=protocol)
    print(storm(job, rng, blows, 0.5))
    result = job.wait().ok()
    assert result.out == out, result.describe()
    assert tree(job.directory) == left


@pytest.mark.gate("auto-options3", "pessimistic-options1", "blocking-options5")
@pytest.mark.parametrize("protocol, options", RUNS)
def test_what_has_been_done_is_done_again_without_an_error(jobs, program, rng, kills, undisturbed, protocol, options):
    survives(jobs, rng, kills or 3, undisturbed, program("deeds"), protocol, options)


@pytest.mark.parametrize("protocol, options", RUNS[:1] + [slow(*run) for run in RUNS[1:6]])
def test_the_same_in_python(jobs, program, rng, kills, undisturbed, protocol, options):
    survives(jobs, rng, kills or 2, undisturbed, [*program("deeds.py"), "30", "10000"], protocol, options)


# While the test that has named a file has not made it, programs take their time.
WAIT = """
import os, sys, time
def wait():
    while not os.path.exists(os.environ["AWAITED"]):
        time.sleep(0.01)
"""

# Rank 0 reads a file and removes it, and makes a new one that exists already.
READS = WAIT + """
from mpi4py import MPI
world = MPI.COMM_WORLD
if world.rank == 0:
    try:
        open("input").close()
        os.unlink("input")
        if sys.argv[1:]:
            os.mkdir("there")
    except OSError as error:
        print(error, file=sys.stderr, flush=True)
        world.Abort(5)
world.barrier()
wait()
world.barrier()
"""


@pytest.mark.parametrize("protocol", ["pessimistic", "blocking"])
def test_a_job_that_ends_for_what_its_former_life_has_removed_says_so(jobs, protocol):
    job = jobs.start(2, "sh", "-c", f'test -e begun || {{ touch input begun; }}; exec {PYTHON} -c "$0"', READS, protocol=protocol)
    job.reach(lambda: (job.directory / "begun").exists() and not (job.directory / "input").exists())
    job.kill([0])
    result = job.wait()
    assert result.code == 5, result.describe()
    assert "rank 0 ends badly, and before: input could not be opened: it had been removed" in result.errors, result.describe()


# Rank 0 makes this many directories.
MANY_DEEDS = WAIT + """
from mpi4py import MPI
world = MPI.COMM_WORLD
for i in range(int(sys.argv[1]) if world.rank == 0 else 0):
    try:
        os.mkdir(f"d{i}")
    except OSError as error:
        print(error, file=sys.stderr, flush=True)
        world.Abort(5)
        time.sleep(0.02)
        world.Abort(5)
        time.sleep(100)
world.barrier()
open(f"made.{world.rank}", "w").close()
wait()
world.barrier()
print("done", flush=True)
"""


@pytest.mark.parametrize("deeds, code", [(4000, 0), (5000, 5)])
def test_more_than_is_kept_is_said_to_be_so(jobs, deeds, code):
    job = jobs.start(2, PYTHON, "-c", MANY_DEEDS, deeds, protocol="pessimistic")
    job.reach(lambda: (job.directory / "made.0").exists())
    job.kill([0])
    result = job.wait()
    assert result.code == code, result.describe()
    told = result.errors.count("d0 stands in its way, and it has done more than is kept")
    assert told == bool(code), result.describe()


# Rank 1 takes the lock file that rank 0 had before, until rank 0 wants it again.
LOCKS = """
import os, time
from mpi4py import MPI
world = MPI.COMM_WORLD
def take():
    while True:
        try:
            file = open("lock", "x")
        except FileExistsError:
            open("waited", "w").close()
            time.sleep(0.01)
        else:
            print(world.rank, file=file)
            return file.close()
def has():
    return os.path.exists("lock") and open("lock").read() == f"{world.rank}\\n"
if world.rank == 0:
    take()
    os.unlink("lock")
world.barrier()
if world.rank == 1:
    take()
    while has() and not os.path.exists("waited"):
        time.sleep(0.01)
    time.sleep(0.1)
    print(has(), flush=True)
    os.unlink("lock")
world.barrier()
"""


def test_a_lock_that_another_rank_has_by_now_is_waited_for(jobs):
    job = jobs.start(2, PYTHON, "-c", LOCKS, protocol="pessimistic")
    job.reach(lambda: (job.directory / "lock").read_text() == "1\n")
    job.kill([0])
    result = job.wait().ok()
    assert result.text == "True\n" and not (job.directory / "lock").exists(), result.describe()


def test_what_others_have_made_is_an_error_as_ever(jobs):
    result = jobs.run(2, "sh", "-c", f'mkdir -p there; touch input; exec {PYTHON} -c "$0" there', READS, protocol="pessimistic")
    assert result.code == 5 and "File exists" in result.errors and "ends badly" not in result.errors, result.describe()
