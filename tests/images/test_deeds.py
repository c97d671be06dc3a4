# SPDX-License-Identifier: Apache-2.0
"""Programs that make, rename and remove things which must be new, or must exist. A killed rank repeats such calls, and
they do not fail because a former life has done them."""

import os
import signal
import stat
import subprocess

import pytest

import harness

from harness import PYTHON, slow, storm
from image_files import struck_behind_an_image
from settings import MANY, every
from survival import began_from_images

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


# Rank 0 makes the same names again and again. Its image falls between the making of one and its removal, and it dies when it has
# made later ones.
AGAIN = """
import os, sys, time
from mpi4py import MPI
world, kind = MPI.COMM_WORLD, sys.argv[1]
def wait(name, until):
    open(name, "w").close()
    while not os.path.exists(until):
        time.sleep(0.01)
def put(name, step, mode="w"):
    with open(name, mode) as file:
        file.write(f"step {step}\\n")
def make(step):
    if kind == "folders":
        os.mkdir("new")
        put("new/file", step)
    elif kind == "links":
        put("new", step)
        os.link("new", "other")
    else:
        put("new", step, "x" if kind == "kept" else "w")
def move(step):
    if kind == "rotated":
        for number in range(step, 0, -1):
            os.rename(f"new.{number}", f"new.{number + 1}")
        os.rename("new", "new.1")
    elif kind == "kept":
        os.rename("new", "old")
    elif kind == "links":
        os.rename("other", f"new.{step}")
        os.unlink("new")
    else:
        os.rename("new", f"new.{step}")
for step in range(6):
    if world.rank == 0:
        make(step)
        if step == 1:
            wait("ready", "taken")
        if step == 4:
            wait("late", "killed")
        move(step)
    world.barrier()
print("done", flush=True)
"""
KINDS = ["numbered", "rotated", "kept", "links"]


def made_again(jobs, kind, protocol, image):
    options = [*MANY, "--checkpoint-signal", "USR1"]
    job = jobs.start(2, PYTHON, "-c", AGAIN, kind, options=options, protocol=protocol)
    job.reach(lambda: (job.directory / "ready").exists())
    if image:
        job.process.send_signal(signal.SIGUSR1)
        taken = "wave_complete" if protocol == "blocking" else "checkpointed"
        job.reach_event(taken)
    (job.directory / "taken").touch()
    job.reach(lambda: (job.directory / "late").exists())
    job.kill([0])
    job.reach_event("failed", rank=0)
    (job.directory / "killed").touch()
    result = job.wait().ok()
    return result, tree(job.directory)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("protocol, image", [("pessimistic", True), slow("pessimistic", False), slow("blocking", True)])
def test_a_later_file_of_the_same_name_stays_when_a_former_one_is_moved_again(jobs, kind, protocol, image):
    result, left = made_again(jobs, kind, protocol, image)
    names = {"numbered": range(6), "links": range(6), "rotated": range(6, 0, -1)}
    files = {"old": 5} if kind == "kept" else {f"new.{name}": step for name, step in zip(names[kind], range(6))}
    found = {name: content for name, (_, content) in left.items() if name.startswith(("new", "old", "other"))}
    assert found == {name: f"step {step}\n".encode() for name, step in files.items()}, result.describe()


# The next call lingers when it has been made, until there is an image.
LINGERS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
static int lingers(int result) {
    int error = errno;
    char *slow = getenv("SLOW_CALL");
    if (slow && rmdir(slow) == 0) {
        mkdir("lingers", 0700);
        while (access("taken", F_OK) != 0)
            nanosleep(&(struct timespec){0, 10000000}, NULL);
    }
    errno = error;
    return result;
}
int rename(const char *from, const char *to) { return lingers(((int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename"))(from, to)); }
int unlink(const char *path) { return lingers(((int (*)(const char *))dlsym(RTLD_NEXT, "unlink"))(path)); }
int open(const char *path, int flags, unsigned mode) {
    return lingers(((int (*)(const char *, int, unsigned))dlsym(RTLD_NEXT, "open"))(path, flags, mode));
}
"""

# Rank 0 makes what must be new, and once more when it has removed it.
ANEW = """
import os, sys, time
from mpi4py import MPI
world = MPI.COMM_WORLD
if world.rank == 0:
    for step in range(2):
        with open("new", "x") as file:
            file.write(f"step {step}\\n")
        if step == 0:
            os.mkdir(os.environ["SLOW_CALL"])
            os.rename("new", "old") if sys.argv[1] == "rename" else os.unlink("new")
    open("late", "w").close()
    while not os.path.exists("killed"):
        time.sleep(0.01)
world.barrier()
print("done", flush=True)
"""


# Rank 0 makes a file anew at each step, and gives it another name.
MOVED = """
import os, sys, time
from mpi4py import MPI
world = MPI.COMM_WORLD
if world.rank == 0:
    for step in range(3):
        if step == 0:
            os.mkdir(os.environ["SLOW_CALL"])
        with open("new", "w") as file:
            file.write(f"step {step}\\n")
        if step < 2:
            os.rename("new", f"new.{step}")
    open("late", "w").close()
    while not os.path.exists("killed"):
        time.sleep(0.01)
world.barrier()
print("done", flush=True)
"""


def struck_after_lingering(jobs, tmp_path, program, *words, protocol):
    """A job whose rank 0 goes on from an image in the middle of a call."""
    (tmp_path / "lingers.c").write_text(LINGERS)
    library = tmp_path / "lingers.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "lingers.c", "-ldl"], check=True)
    env = harness.environment(LD_PRELOAD=library, SLOW_CALL=tmp_path / "slow")
    job = jobs.start(2, PYTHON, "-c", program, *words, options=[*MANY, *every("1h")], protocol=protocol, env=env)
    result = struck_behind_an_image(jobs, job, "lingers").ok()
    assert began_from_images(result), result.describe()
    return job, result


@pytest.mark.parametrize("protocol, call", [("pessimistic", "rename"), slow("pessimistic", "unlink"), slow("blocking", "rename")])
def test_what_is_made_anew_after_an_image_in_the_removal_is_the_ranks_own(jobs, tmp_path, protocol, call):
    job, result = struck_after_lingering(jobs, tmp_path, ANEW, call, protocol=protocol)
    assert (job.directory / "new").read_text() == "step 1\n", result.describe()
    assert call == "unlink" or (job.directory / "old").read_text() == "step 0\n", result.describe()


@pytest.mark.parametrize("protocol", ["pessimistic", slow("blocking"), slow("auto")])
def test_a_file_that_was_opened_anew_in_an_image_is_not_moved_in_place_of_a_later_one(jobs, tmp_path, protocol):
    job, result = struck_after_lingering(jobs, tmp_path, MOVED, protocol=protocol)
    found = [(job.directory / name).read_text() for name in ("new.0", "new.1", "new")]
    assert found == ["step 0\n", "step 1\n", "step 2\n"], result.describe()
