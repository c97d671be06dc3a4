# SPDX-License-Identifier: Apache-2.0
"""What the MPI library does to a file happens once, also where an image is asked for in the middle of such a call: the
process that is woken from the image does not make the call again."""

import subprocess

import pytest

import harness
from harness import slow
from settings import MANY, every
from survival import began_from_images

# These calls take their time, where a file says so: until an image is asked for.
SLOW = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>
static void linger(void) {
    char *slow = getenv("SLOW_CALL"), *here = getenv("IN_SLOW_CALL");
    if (slow && syscall(SYS_unlinkat, AT_FDCWD, slow, 0) == 0) {
        close(syscall(SYS_openat, AT_FDCWD, here, O_CREAT | O_WRONLY, 0600));
        /* A signal ends it. */
        nanosleep(&(struct timespec){60, 0}, NULL);
    }
}
#define SLOW(result, name, arguments, ...) \
    result name arguments { linger(); return ((result(*) arguments)dlsym(RTLD_NEXT, #name))(__VA_ARGS__); }
SLOW(int, ftruncate, (int fd, off_t length), fd, length)
SLOW(int, ftruncate64, (int fd, off_t length), fd, length)
SLOW(int, unlink, (const char *path), path)
SLOW(ssize_t, pwrite, (int fd, const void *bytes, size_t length, off_t at), fd, bytes, length, at)
SLOW(ssize_t, pwrite64, (int fd, const void *bytes, size_t length, off_t at), fd, bytes, length, at)
"""

# Rank 0 makes a slow call, and what comes after it does not stand if the call is made once more. (Of nonblocking writes an
# image before is enough.) Then the ranks talk until they may stop.
ONCE = """
import os, sys, time
import numpy as np
from mpi4py import MPI
world, directory, kind = MPI.COMM_WORLD, sys.argv[1], sys.argv[2]
name = f"{directory}/file"
def opened():
    return MPI.File.Open(world, name, MPI.MODE_CREATE | MPI.MODE_RDWR)
def be_slow():
    if world.rank == 0:
        os.close(os.open(os.environ["SLOW_CALL"], os.O_CREAT | os.O_WRONLY))
world.barrier()
row = np.full(64, 100 + world.rank, dtype="q")
at = world.rank * row.nbytes
file = opened()
if kind == "ftruncate":
    be_slow()
    file.Set_size(0)
elif kind == "pwrite":
    be_slow()
    file.Write_at(at, row)
elif kind == "iwrite":
    if world.rank == 0:
        os.close(os.open(os.environ["IN_SLOW_CALL"], os.O_CREAT | os.O_WRONLY))
        while not os.path.exists(f"{directory}/go"):
            time.sleep(0.01)
    file.Iwrite_at(at, row).Wait()
elif kind == "unlink":
    file.Close()
    if world.rank == 0:
        be_slow()
        MPI.File.Delete(name)
    world.barrier()
    file = opened()
file.Write_at(at, row + 1)
world.barrier()
goes_on = True
while goes_on:
    time.sleep(0.01)
    goes_on = world.bcast(not os.path.exists(f"{directory}/stop"))
file.Close()
print("rank", world.rank, "ends")
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    directory = tmp_path_factory.mktemp("slow")
    source = directory / "slow.c"
    source.write_text(SLOW)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", directory / "slow.so", source, "-ldl"], check=True)
    return directory / "slow.so"


@pytest.mark.gate("auto-*", "pessimistic-iwrite")
@pytest.mark.parametrize("kind", ["ftruncate", "unlink", "pwrite", "iwrite"])
@pytest.mark.parametrize("protocol", ["auto", "pessimistic", slow("causal"), slow("channel-memory"), slow("hierarchical")])
def test_a_call_is_made_once(jobs, tmp_path, library, protocol, kind):
    asked, here, file = (tmp_path / name for name in ("slow", "in-slow-call", "file"))
    env = harness.environment(LD_PRELOAD=library, SLOW_CALL=asked, IN_SLOW_CALL=here)
    options = [*MANY, *every("1h")]
    job = jobs.start(2, harness.PYTHON, "-c", ONCE, tmp_path, kind, options=options, protocol=protocol, env=env)
    has_image = lambda: jobs.resurgo("checkpoint", str(job.process.pid)).code == 0
    job.reach(here.exists, what="the slow call")
    job.reach(has_image, what="an image")
    (tmp_path / "go").touch()
    written = b"".join((101 + rank).to_bytes(8, "little") * 64 for rank in range(2))
    job.reach(lambda: file.read_bytes() == written, what="the file")
    job.strike([0])
    job.reach_another("caught_up", rank=0)
    (tmp_path / "stop").touch()
    result = job.wait().ok()
    assert file.read_bytes() == written, result.describe()
    assert began_from_images(result), result.describe()
