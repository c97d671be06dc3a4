# SPDX-License-Identifier: Apache-2.0
"""In a container with the profile that engines use by default: address randomisation stays on, so ranks cannot recover alone."""

import os
import shutil

import pytest

import container
import harness
from chains import ready
from harness import ROOT_ONLY, came_about, slow, storm
from image_files import from_files, kill_with_snapshots, start, until_written
from settings import MANY, TOLERATE_NODE, every

HEAT = ("400", "400", "9000")
# Root inside of the container.
CAPABILITIES = "chown dac_override fsetid fowner mknod net_raw setgid setuid setfcap setpcap net_bind_service sys_chroot kill audit_write"
INSIDE = [harness.PYTHON, container.__file__]
if os.geteuid() == 0 and shutil.which("setpriv"):
    INSIDE += ["setpriv", "--bounding-set", ",".join(["-all", *(f"+{name}" for name in CAPABILITIES.split())])]


@pytest.fixture
def inside(jobs):
    jobs.before = INSIDE
    return jobs


def test_auto_has_waves_alone(inside, program, rng, kills):
    calm = inside.run(3, *program("heat"), *HEAT).ok()
    job = inside.start(3, *program("heat"), *HEAT, options=[*MANY, *every("50ms")])
    print(storm(job, rng, kills or 4, calm.seconds))
    result = job.wait().ok()
    assert result.out == calm.out
    for errors in (calm.errors, result.errors):
        assert errors.count("note: --protocol auto: waves alone") == 1 and "seccomp=unconfined" in errors
    came_about(result.of("wave_complete"), result)


@pytest.mark.parametrize("protocol", ["chandy-lamport", slow("group"), slow("blocking")])
def test_waves_are_read_from_files(inside, program, tmp_path, protocol):
    calm = inside.calm(2, *program("heat"), *HEAT)
    job = start(inside, tmp_path / "images", 2, *program("heat"), *HEAT, every="50ms", protocol=protocol)
    for life in (2, 3):
        if until_written(job, 1, 2 * life):
            kill_with_snapshots(job, 1)
            job.reach(lambda life=life: job.lives().get(1, (0, 0))[1] >= life, what="the next life")
    result = job.wait().ok()
    assert result.out == calm.out, result.describe()
    came_about(from_files(result), result)


def test_suspended_jobs_go_in_and_out(inside, chain, program):
    calm = inside.calm(2, *program("heat"), *HEAT)
    chain.start(2, *program("heat"), *HEAT)
    for before in ([], INSIDE):
        ready(chain.last)
        if not chain.suspend():
            break
        inside.before = before
        chain.resume()
    chain.end()
    assert chain.out == calm.out and len(chain.runs) > 1


@ROOT_ONLY
def test_little_shared_memory(jobs, program):
    """Docker's 64 MiB are enough for 16 ranks. With less there is a warning, before the kernel kills MPICH's ranks for
    it."""
    script = 'mount -t tmpfs -o size="$0" none /dev/shm && exec "$@"'
    for size, ranks, is_enough in (("64m", 16, True), ("2m", 8, False)):
        result = jobs.command(["unshare", "-m", "sh", "-c", script, size, harness.RESURGO, "run", "-n", ranks, *program("hello")]).wait()
        assert ("warning: " in result.errors and "--shm-size" in result.errors) != is_enough, result.describe()
        assert result.code == 0 or not is_enough, result.describe()


def test_no_rank_recovers_alone(inside, chain, program):
    for protocol in ("pessimistic", "causal", "channel-memory", "hierarchical"):
        result = inside.run(2, *program("hello"), protocol=protocol)
        assert result.code == 2 and result.out == b"" and "personality" in result.errors, result.describe()
        assert f"--protocol {protocol} needs the same addresses" in result.errors and "--protocol blocking" in result.errors
    assert inside.run(2, *program("hello"), options=TOLERATE_NODE).code == 2
    inside.run(2, *program("hello"), protocol="none").ok()
    # A job that began outside.
    inside.before = []
    chain.start(2, *program("heat"), *HEAT, protocol="pessimistic")
    ready(chain.last)
    if chain.suspend():
        inside.before = INSIDE
        refused = chain.resume().wait()
        assert refused.code == 2 and "--protocol pessimistic needs the same addresses" in refused.errors, refused.describe()
        chain.runs.pop()
        inside.before = []
        chain.resume()
    chain.end()
