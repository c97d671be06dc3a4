# SPDX-License-Identifier: Apache-2.0
"""What takes long has a bar on a terminal, and only there; nothing of it stays."""

import contextlib
import json
import os
import re
import signal

import pytest

import harness
from harness import PYTHON, RESURGO
from places import serving, store
from screen import Terminal

# Sums up. At step 200 it waits while the first file exists, and in the end until the second one does.
STEPS = """
import os, sys, time
from mpi4py import MPI
world = MPI.COMM_WORLD
held, go = sys.argv[1:]
for step in range(300):
    total = world.allreduce(step + world.rank)
    while step == 200 and os.path.exists(held):
        time.sleep(0.02)
print("ready", world.rank, total, flush=True)
while not os.path.exists(go):
    time.sleep(0.02)
print("done", world.rank, flush=True)
"""
OF_BAR = r"\[[=> ]{20}\]"


class Shown:
    """A job in a terminal, if `seen`; otherwise with files for its output."""

    def __init__(self, jobs, options, seen=True):
        self.held, self.go, self.events_file = (jobs.directory / name for name in ("held", "go", "events"))
        command = [RESURGO, "run", "-n", "2", "--json-events", self.events_file, *options, PYTHON, "-c", STEPS, self.held, self.go]
        env = harness.environment(TERM="xterm", TMPDIR=jobs.temporary)
        self.job = None if seen else jobs.command(command, env=env)
        self.terminal = Terminal(command, 60, 100, env) if seen else None
        self.process = self.terminal.process if seen else self.job.process
        self.until(lambda text: text.count("ready") == 2)

    def text(self):
        if self.job:
            return self.job.out.read_text() + self.job.err.read_text()
        self.terminal.read()
        return self.terminal.screen.text()

    def until(self, condition):
        if self.terminal:
            return self.terminal.shows(condition)
        return self.job.reach(lambda: condition(self.text()))

    def pid(self, rank):
        lives = [event for event in harness.read_events(self.events_file) if event["event"] == "started" and event["rank"] == rank]
        return lives[-1]["pid"]

    def wait(self):
        """The exit status, and all that the terminal got, or the files."""
        if self.terminal:
            return self.terminal.wait(60), self.terminal.screen.text()
        result = self.job.wait()
        return result.code, result.text + result.errors


@pytest.fixture
def shown(jobs):
    """Starts jobs in terminals."""
    begun = []

    def begin(*options, **more):
        begun.append(Shown(jobs, options, **more))
        return begun[-1]

    yield begin
    for job in begun:
        if job.terminal:
            job.terminal.close()


@pytest.mark.parametrize("seen, quiet", [(True, False), (True, True), (False, False)])
def test_a_suspension_has_a_bar_on_a_terminal_only(shown, tmp_path, seen, quiet):
    """A rank does not answer. The command that waits has a bar of its own, which comes later than that of the job."""
    options = ["-q"] if quiet else []
    job = shown("--protocol", "pessimistic", "--checkpoint-dir", tmp_path / "images", *options, seen=seen)
    number, rank = job.process.pid, job.pid(1)
    os.kill(rank, signal.SIGSTOP)
    suspends = Terminal([RESURGO, "suspend", number], env=harness.environment(TERM="xterm"))
    try:
        still = rf"^resurgo: {OF_BAR} %s: 1 image is still to be taken \(\d+\.\d s\)$"
        suspends.shows(still % f"job {number}")
        if seen and not quiet:
            job.until(lambda text: re.search(still % "the job is being suspended", text, re.M))
        else:
            assert "is being suspended" not in job.text() and "[" not in job.text()
    finally:
        os.kill(rank, signal.SIGCONT)
    assert suspends.wait() == 0
    assert re.fullmatch(rf"job {number}: is suspended after [\d.]+ m?s; resurgo resume {number} goes on with it\s*", suspends.screen.text())
    suspends.close()
    code, text = job.wait()
    assert code == 75 and ("the job is suspended in" in text) != quiet and "is being suspended" not in text and "[" not in text, text
    if not seen:
        assert "\x1b" not in text and "\r" not in text


def test_a_rank_that_replays_has_a_bar_beside_what_others_print(shown):
    job = shown()
    job.held.touch()
    os.kill(job.pid(1), signal.SIGKILL)
    # It cannot come further than to its step 200.
    pattern = rf"^resurgo: {OF_BAR} rank 1 replays: ([\d,]+) of ([\d,]+) deliveries \(\d+\.\d s\)$"
    found = job.terminal.shows(lambda text: (found := re.search(pattern, text, re.M)) and found[1] != "0" and found)
    done, of = (int(number.replace(",", "")) for number in found.groups())
    assert 0 < done < of
    job.go.touch()  # Rank 0 prints its last line meanwhile.
    job.terminal.shows("^done 0$")
    job.terminal.shows(pattern)
    job.held.unlink()
    code, text = job.wait()
    lines = [line for line in text.splitlines() if line and not line.startswith("resurgo: ")]
    assert code == 0 and "replays" not in text and sorted(lines) == ["done 0", "done 1", "ready 0 599", "ready 1 599"], text
    assert re.search(r"^resurgo: rank 1 replayed [\d,]+ deliveries in ", text, re.M)


@pytest.fixture
def held(tmp_path):
    """A server with one wave of a job; it does not answer within `with held.silent():`."""
    files = tmp_path / "files"
    files.mkdir()
    (files / "one").write_bytes(b"1" * 1000)
    with serving(tmp_path / "served") as server:
        store("put", server.place, "job", 1, 0, files)

        @contextlib.contextmanager
        def silent():
            server.process.send_signal(signal.SIGSTOP)
            try:
                yield
            finally:
                server.process.send_signal(signal.SIGCONT)

        server.silent = silent
        yield server


@pytest.fixture
def asks():
    """Runs `resurgo store` in terminals."""
    opened = []

    def begin(*words, term="xterm"):
        opened.append(Terminal([RESURGO, "store", *words], env=harness.environment(TERM=term)))
        return opened[-1]

    yield begin
    for terminal in opened:
        terminal.close()


ASKED = r"^resurgo: server:\S+ is being asked \(\d+\.\d s\)$"


@pytest.mark.parametrize(
    "verb, shown, said",
    [("verify", ASKED, "job@1: 1 file, 1000 bytes: whole"), ("rm", r"^resurgo: job is being removed \(\d+\.\d s\)$", "")],
)
def test_a_store_that_does_not_answer_has_a_bar(held, asks, verb, shown, said):
    with held.silent():
        waits = asks(verb, held.place, "job")
        waits.shows(shown)
    assert waits.wait() == 0 and waits.screen.text().strip() == said


@pytest.mark.parametrize("words, term", [(["--json"], "xterm"), ([], "dumb")])
def test_json_and_a_dumb_terminal_have_no_bar(held, asks, words, term):
    """The reader of JSON may share the terminal; a dumb one would show all bars one behind the other."""
    with held.silent():
        without, other = asks("ls", *words, held.place, term=term), asks("ls", held.place)
        other.shows(ASKED)
        without.read()
        assert without.raw == ""
    assert without.wait() == other.wait() == 0
    assert without.raw.startswith("[{" if words else "JOB ") and "\x1b" not in without.raw and "asked" not in without.raw
    if words:
        assert json.loads(without.raw)[0]["job"] == "job"
