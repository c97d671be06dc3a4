# SPDX-License-Identifier: Apache-2.0
"""`resurgo run --journal`: what the journal of systemd gets. Its socket is one of the test, in a namespace of the job."""

import contextlib
import os
import re
import socket
import struct
import subprocess

import pytest

import harness

# The last argument is the directory that holds the socket.
INSIDE = 'mount -t tmpfs none /run && mkdir -p /run/systemd/journal && mount --bind "$0" /run/systemd/journal && exec "$@"'


def fields(entry):
    """The fields of an entry, as the protocol has them."""
    found = {}
    while entry:
        line, _, entry = entry.partition(b"\n")
        name, equals, value = line.partition(b"=")
        if not equals:
            [length] = struct.unpack("<Q", entry[:8])
            value, end, entry = entry[8 : 8 + length], entry[8 + length : 9 + length], entry[9 + length :]
            assert end == b"\n", name
        assert re.fullmatch(rb"[A-Z][A-Z0-9_]*", name) and name not in found, name
        found[name.decode()] = value.decode()
    return found


class Journal:
    def __init__(self, jobs):
        self.place = jobs.directory / "journal"
        self.place.mkdir()
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.path = str(self.place / "socket")
        self.socket.setblocking(False)

    def listen(self):
        # The name of the test's directory may be longer than an address.
        directory = os.open(self.place, os.O_PATH)
        try:
            self.socket.bind(f"/proc/self/fd/{directory}/socket")
        finally:
            os.close(directory)

    def fill(self):
        """Until there is no room left."""
        directory = os.open(self.place, os.O_PATH)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender, contextlib.suppress(BlockingIOError):
            sender.setblocking(False)
            while True:
                sender.sendto(b"FULL=1\n", f"/proc/self/fd/{directory}/socket")
        os.close(directory)

    def read(self):
        """What has come."""
        entries = []
        with contextlib.suppress(BlockingIOError):
            while True:
                entries.append(fields(self.socket.recv(1 << 20)))
        return [entry for entry in entries if "FULL" not in entry]


@pytest.fixture
def journal(jobs):
    if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0:
        pytest.skip("mounts cannot be made here")
    made = Journal(jobs)
    jobs.before = ["unshare", "--mount", "sh", "-c", INSIDE, made.place]
    yield made
    made.socket.close()


def test_a_failure_and_what_follows(journal, waits):
    journal.listen()
    job = waits(2, protocol="pessimistic", options=["--journal", "-q"])
    [pid, _] = job.lives()[1]
    job.kill([1])
    job.reach_event("caught_up", rank=1)
    result = waits.end(job)
    entries, number = journal.read(), str(job.process.pid)
    assert all(entry["SYSLOG_IDENTIFIER"] == "resurgo" and entry["RESURGO_JOB"] == number for entry in entries)
    by_event = {entry["RESURGO_EVENT"]: entry for entry in entries}
    assert list(by_event) == ["failed", "started", "caught_up", "job_ended"], entries
    failed, started, back, ended = by_event.values()
    assert failed["MESSAGE"] == f"rank 1 killed by SIGKILL (pid {pid})" and failed["PRIORITY"] == "4"
    assert (failed["RESURGO_RANK"], failed["RESURGO_CAUSE"], failed["RESURGO_PID"]) == ("1", "killed by SIGKILL", str(pid))
    assert started["MESSAGE"] == "rank 1 restarted on this node (life 2)" and started["RESURGO_LIFE"] == "2"
    assert back["RESURGO_RANK"] == "1" and back["PRIORITY"] == "5" and "RESURGO_NODE" not in back
    end, *summary = ended["MESSAGE"].splitlines()
    assert end.startswith("the job has ended with exit code 0 after ") and summary[0].startswith("1 restart; "), ended
    assert (ended["RESURGO_EXIT_CODE"], ended["RESURGO_RESTARTS"], ended["PRIORITY"]) == ("0", "1", "5")
    assert "journal" not in result.errors, result.describe()


def test_the_node_of_a_rank(journal, waits):
    """The words are those of standard error."""
    journal.listen()
    job = waits(2, protocol="blocking", options=["--journal", "--nodes", "2"])
    node = job.newest("started", rank=1)["node"]
    job.kill([1])
    job.reach_event("returned")
    result = waits.end(job)
    entries = journal.read()
    [failed] = [entry for entry in entries if entry["RESURGO_EVENT"] == "failed"]
    assert failed["RESURGO_NODE"] == node and f"rank 1 on node {node} " in failed["MESSAGE"], failed
    said = [line.removeprefix("resurgo: ") for line in result.errors.splitlines()]
    told = [line for entry in entries for line in entry["MESSAGE"].splitlines() if not line.startswith("the job has ended")]
    assert told == said, result.describe()


def test_a_job_that_ends_badly(journal, jobs):
    journal.listen()
    result = jobs.run(1, "sh", "-c", "kill -SEGV $$", options=["--journal", "--max-restarts", "0"])
    assert result.code == 139, result.describe()
    entries = journal.read()
    told = {entry["RESURGO_EVENT"]: entry for entry in entries}
    assert told["failed"]["RESURGO_RANK"] == "0" and "SIGSEGV" in told["failed"]["MESSAGE"], entries
    assert told["error"]["PRIORITY"] == "3" and f"resurgo: {told['error']['MESSAGE']}" in result.errors, entries
    assert (told["job_ended"]["PRIORITY"], told["job_ended"]["RESURGO_EXIT_CODE"]) == ("4", "139"), entries


@pytest.mark.parametrize("is_there", [False, True], ids=["no-socket", "nobody-listens"])
def test_without_a_journal(journal, jobs, is_there):
    """One warning at the start, and the job runs."""
    if is_there:
        journal.listen()
        journal.socket.close()
    result = jobs.run(2, harness.PROGRAMS / "hello", options=["--journal"]).ok()
    why = "Connection refused (os error 111)" if is_there else "No such file or directory (os error 2)"
    place = "/run/systemd/journal/socket"
    warning = f"resurgo: warning: there is no journal to write into: {place}: {why}; the job runs without (--journal)"
    assert result.errors.splitlines() == [warning], result.describe()


def test_a_journal_that_does_not_read(journal, waits):
    """It holds nothing up, and what it misses is told once."""
    journal.listen()
    journal.fill()
    job = waits(2, protocol="pessimistic", options=["--journal"])
    for _ in range(2):
        job.strike([1])
        job.reach_another("caught_up", rank=1)
    result = waits.end(job)
    warnings = [line for line in result.errors.splitlines() if "journal" in line]
    assert len(warnings) == 1 and re.fullmatch(
        r"resurgo: warning: the journal has not taken 7 entries: Resource temporarily unavailable \(os error 11\) \(--journal\)",
        warnings[0],
    ), result.describe()
    assert journal.read() == []


def test_a_journal_that_reads_again(journal, waits, jobs):
    journal.listen()
    journal.fill()
    job = waits(2, protocol="pessimistic", options=["--journal"])
    job.kill([1])
    job.reach_event("caught_up", rank=1)
    # Who answers has told everything before.
    jobs.resurgo("ps", job.process.pid).ok()
    assert journal.read() == []
    result = waits.end(job)
    ended, missed = journal.read()
    assert ended["RESURGO_EVENT"] == "job_ended" and "has not taken 3 entries" in missed["MESSAGE"], (ended, missed)
    assert "the journal has not taken 3 entries" in result.errors, result.describe()
