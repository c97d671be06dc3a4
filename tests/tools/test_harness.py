# SPDX-License-Identifier: Apache-2.0
"""The tests' own foundations: leftovers are found, and others' files and processes are not mistaken for them."""

import contextlib
import datetime
import json
import mmap
import os
import re
import uuid
from pathlib import Path

import pytest

import gate
import harness
from planted import gate_of


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
    job.reach(job.processes, what="the process")
    with pytest.raises(AssertionError, match="sleep 1000"):
        closing.close()
    assert job.over() and not job.processes()


def test_a_temporary_file_left_behind_is_found(closing):
    closing.command(["sh", "-c", "touch $TMPDIR/forgotten"]).wait()
    with pytest.raises(AssertionError, match="forgotten"):
        closing.close()


def test_a_machine_that_has_become_slower_gives_more_time(jobs, tmp_path, monkeypatch):
    go = tmp_path / "go"
    monkeypatch.setattr(harness, "SHORTEST_PATIENCE", 0.1)
    monkeypatch.setattr(harness, "SLOWNESS", 1.0)
    monkeypatch.setattr(harness, "slowness", lambda: go.touch() or 1000.0)
    assert jobs.command(["sh", "-c", f"while [ ! -e {go} ]; do sleep 0.01; done"]).wait(0.1).code == 0


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


def test_files_of_tests_stand_alone_and_are_told_apart():
    """No test file imports another, and names differ by more than an s."""
    files = sorted(harness.SOURCES.parent.glob("*/test_*.py"))
    assert not [path for path in files if re.search(r"^\s*(from|import) test_", path.read_text(), re.M)]
    names = [re.sub(r"s(?=_|$)", "", path.stem) for path in files]
    assert len(files) > 50 and len(set(names)) == len(names), sorted(names)


ATTEMPTS = """
import harness

calm = harness.Result(0, b"right", b"", 1.0)


def test_that_misses_once(request):
    harness.came_about(request.config.option.pass_number > 1, calm)


def test_that_waits_in_vain_once(request):
    if request.config.option.pass_number == 1:
        raise harness.Expired("waited")


def test_that_always_misses():
    raise harness.Missed("nobody was there")


def test_that_is_wrong_once(request):
    assert calm.out == (b"right" if request.config.option.pass_number > 1 else b"wrong")


def test_whose_job_fails():
    harness.came_about(False, harness.Result(1, b"", b"", 1.0))


def test_that_hangs(jobs, monkeypatch):
    monkeypatch.setattr(harness, "SHORTEST_PATIENCE", 0.1)
    jobs.command(["sleep", "1000"]).wait(0.1)


def test_that_is_right():
    pass
"""
ARE_REPEATED = {"test_that_misses_once", "test_that_waits_in_vain_once", "test_that_always_misses"}
ARE_RED = {"test_that_always_misses", "test_that_is_wrong_once", "test_whose_job_fails", "test_that_hangs"}


def test_the_gate_forgives_only_misses(tmp_path):
    ended = gate_of(tmp_path, ATTEMPTS)
    said = [line.split(": ") for line in ended.stdout.splitlines() if line.startswith("gate: ")]
    told = lambda what: {line[2].rpartition("::")[2] for line in said if line[1] == what}
    assert ended.returncode == 1, ended.stdout
    assert told("failed") == ARE_RED, ended.stdout
    assert told("forgiven") == ARE_REPEATED - ARE_RED, ended.stdout
    assert "3 passed, 4 failed, 0 skipped" in ended.stdout
    again = [json.loads(line)["test"] for line in (tmp_path / "build/gate/pass-2.jsonl").read_text().splitlines()]
    assert {test.rpartition("::")[2] for test in again} == ARE_REPEATED
    forgiven = (tmp_path / "build/gate/forgiven.jsonl").read_text()
    assert "waited" in forgiven and "did not come about" in forgiven


def test_the_list_of_known_failures(tmp_path):
    """It excuses failures until its day, but no wrong answer."""
    today = datetime.date.today()
    line = "tests/test_planted.py::{} | seen | " + f"{today} | {today}\n"
    lines = [line.format(name) for name in (*ARE_RED, "test_that_was_mended")]
    ended = gate_of(tmp_path, ATTEMPTS, "# A comment.\n" + "".join(lines))
    failed = [line for line in ended.stdout.splitlines() if line.startswith("gate: failed")]
    assert ended.returncode == 1 and len(failed) == 1 and "test_that_is_wrong_once" in failed[0], ended.stdout
    _, wrong = gate.listed("".join(lines), today)
    assert not wrong
    _, wrong = gate.listed("".join(lines), today + datetime.timedelta(days=1))
    assert len(wrong) == len(lines) and "was to be mended" in wrong[0]
    _, wrong = gate.listed("".join([*lines * 3, "a | b\n"]), today)
    assert len(wrong) == 2 and "15 tests, of at most 10" in wrong[1]
