# SPDX-License-Identifier: Apache-2.0
"""What the tests themselves stand on: leftovers are found, and those of others are not taken for them."""

import contextlib
import mmap
import os
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
    """A launcher whose end is looked at, not demanded."""
    (tmp_path / "inner").mkdir()
    return harness.Launcher(tmp_path / "inner")


def test_a_file_left_in_shared_memory_is_found(closing):
    with shared_memory() as path, pytest.raises(AssertionError, match=path.name):
        closing.close()


def test_a_process_left_behind_is_found(closing):
    job = closing.command(["sleep", "1000"])
    # A program that has just been executed has no environment for a moment.
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
    """Who has mapped it, only that user and root can see."""
    with shared_memory() as path:
        os.chown(path, 65534, 65534)
        closing.close()


def test_as_root_nobody_elses_shared_memory_is_seen():
    parent = Path(f"/proc/{os.getppid()}")
    if os.geteuid() != 0 or os.readlink(parent / "ns/mnt") == os.readlink("/proc/self/ns/mnt"):
        pytest.skip("may not have a mount namespace of its own")
    with shared_memory() as path:
        assert not (parent / "root" / path.relative_to("/")).exists()
