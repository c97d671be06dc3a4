# SPDX-License-Identifier: Apache-2.0
"""The tests' own foundations: leftovers are found, and others' files and processes are not mistaken for them."""

import contextlib
import mmap
import os
import subprocess
import uuid
from pathlib import Path

import pytest

import harness


@contextlib.contextmanager
def shared_memory():
    path = Path("/dev/shm") / f"resurgo-test-{uuid.uuid4().hex}"
    path.write_bytes(bytes(4096))
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


@pytest.fixture
def closing(tmp_path):
    """A launcher whose end the test inspects, and does not demand."""
    (tmp_path / "inner").mkdir()
    return harness.Launcher(tmp_path / "inner")


def test_a_file_left_in_shared_memory_is_found(closing):
    with shared_memory() as path, pytest.raises(AssertionError, match=path.name):
        closing.close()


def test_a_process_left_behind_is_found(closing):
    job = closing.command(["sleep", "1000"])
    # A program that was just executed has no environment for a moment.
    job.until(job.processes, what="the process")
    with pytest.raises(AssertionError, match="sleep 1000"):
        closing.close()
    assert job.over() and not job.processes()


def test_a_temporary_file_left_behind_is_found(closing):
    closing.command(["sh", "-c", "touch $TMPDIR/forgotten"]).wait()
    with pytest.raises(AssertionError, match="forgotten"):
        closing.close()


def test_shared_memory_in_use_belongs_to_somebody(closing):
    with shared_memory() as path, open(path, "r+b") as file, mmap.mmap(file.fileno(), 4096):
        closing.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_shared_memory_of_another_user_is_none_of_ours(closing):
    """Only that user and root can see which process has mapped it."""
    with shared_memory() as path:
        os.chown(path, 65534, 65534)
        closing.close()


def test_as_root_nobody_elses_shared_memory_is_seen():
    parent = Path(f"/proc/{os.getppid()}")
    if os.geteuid() != 0 or os.readlink(parent / "ns/mnt") == os.readlink("/proc/self/ns/mnt"):
        pytest.skip("may not have a mount namespace of its own")
    with shared_memory() as path:
        assert not (parent / "root" / path.relative_to("/")).exists()


ATTEMPTS = """
import harness

attempts = []


def test_that_misses():
    attempts.append("miss")
    harness.came_about(len(attempts) == 3, harness.Result(0, b"", b"", 1.0))


def test_that_always_misses():
    raise harness.Missed("nobody was there")


def test_that_is_wrong():
    assert False, "wrong"


def test_whose_job_fails():
    harness.came_about(False, harness.Result(1, b"", b"", 1.0))
"""


def test_only_a_miss_is_repeated(tmp_path):
    """Twice: who misses always has failed."""
    file = tmp_path / "test_attempts.py"
    file.write_text(ATTEMPTS)
    tests = Path(__file__).parent
    command = [harness.PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", tests / "pytest.ini", file]
    told = subprocess.run(list(map(str, command)), env={**os.environ, "PYTHONPATH": str(tests)}, capture_output=True, text=True).stdout
    assert "3 failed, 1 passed, 4 rerun" in told, told
    assert {line.split()[1].rpartition("::")[2] for line in told.splitlines() if line.startswith("FAILED")} == {
        "test_that_always_misses", "test_that_is_wrong", "test_whose_job_fails"
    }, told
