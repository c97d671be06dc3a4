# SPDX-License-Identifier: Apache-2.0
"""`resurgo top` in a real terminal: what is on its screen is what the job is."""

import json
import os
import re
import signal
import subprocess

import pytest

import harness
from harness import RESURGO
from screen import Terminal
from settings import MANY

# A row of a rank: number, node, process, life, messages, two sizes, state.
RANK = re.compile(r"^ {2} +(\d+) +(\d+) +(\d+|-) +(\d+) +(\d+) +\S+ \S+ +\S+ \S+ (\w[^\n]*?)$", re.M)


@pytest.fixture
def top(jobs):
    """Opens `resurgo top` of a job in a terminal."""
    opened = []

    def begin(job, rows=24, columns=80, **more):
        env = harness.environment(TERM="xterm-256color", **more)
        opened.append(Terminal([RESURGO, "top", job.process.pid], rows, columns, env))
        return opened[-1]

    yield begin
    for terminal in opened:
        terminal.close()


def ranks(text):
    """What the screen says of ranks: {rank: (node, pid, life, state)}."""
    return {int(row[0]): (int(row[1]), row[2], int(row[3]), row[5]) for row in RANK.findall(text)}


def doing(rank):
    """What the screen says of a rank's state."""
    whom = f" for {rank['waits_for']}" if rank["state"] == "waiting" and rank["waits_for"] is not None else ""
    return rank["state"].replace("_", " ") + whom


def same(jobs, job):
    """Whether the screen says of ranks what the job's JSON says."""

    def compare(text):
        state = json.loads(jobs.resurgo("ps", "--json", job.process.pid).ok().text)
        told = {
            rank["rank"]: (rank["node"], str(rank["pid"] or "-"), rank["life"], doing(rank))
            for rank in state["ranks"]
        }
        return ranks(text) == told and f"{state['failures']} failure" in text and f"{state['restarts']} restart" in text

    return compare


def test_it_shows_what_the_job_is(waits, top, jobs, rng):
    job = waits(4, protocol="pessimistic", options=MANY)
    terminal = top(job)
    terminal.shows(lambda text: same(jobs, job)(text) and ranks(text)[1][3] == "waiting for 0")
    for _ in range(5):
        job.kill([rng.randrange(4) for _ in range(2)])
        terminal.shows(same(jobs, job))
    terminal.shows(rf"^job {job.process.pid}: .*python -c")
    terminal.shows(r"caught up .*rank=\d")
    terminal.press("q")
    assert terminal.wait() == 0
    waits.end(job)


def test_keys(waits, top):
    job = waits(3, protocol="pessimistic")
    terminal = top(job)
    terminal.shows(r"q quit +c image now")
    terminal.press("c")
    terminal.shows("every rank has a new image")
    terminal.shows(r"image 1 of rank \d .* ago")
    terminal.press("\x1b[Bk")
    terminal.shows(rf"^kill rank 1 \(pid {job.lives()[1][0]}\)\? y/n")
    terminal.press("n")
    terminal.shows("nothing was done")
    assert len(job.lives()) == 3 and not any(event["event"] == "failed" for event in job.events)
    terminal.press("ky")
    job.reach_event("caught_up", rank=1)
    assert any(event == {"event": "fault_injected", "rank": 1, "time": event["time"]} for event in job.events)
    terminal.shows(lambda text: ranks(text).get(1, (0, "", 0))[2] == 2)
    terminal.press("\x1b[A" * 9 + "\x1b[6~" * 3 + "\t\x1b[5~\t\t\x1b[H\x1b[Fxyz")
    terminal.press("\x03")
    assert terminal.wait() == 0 and "panicked" not in terminal.raw
    waits.end(job)


def test_a_node_is_drained(waits, top):
    job = waits(4, protocol="blocking", options=["--nodes", "3", "--spares", "1"])
    terminal = top(job)
    names = {event["rank"]: event["node"] for event in job.events if event["event"] == "started"}
    terminal.shows("WAVE|no image yet")
    terminal.press("\t\t\x1b[Bd")
    terminal.shows(rf"shall the ranks of node 1 \({names[3]}\) go to other nodes\? y/n")
    terminal.press("y")
    terminal.shows(lambda text: {row[0] for row in ranks(text).values()} == {0, 2})
    terminal.press("q")
    assert terminal.wait() == 0
    waits.end(job)


def test_sizes(waits, top, jobs):
    """Nothing is shown beyond the edges, and nothing fails, however small the terminal is."""
    job = waits(20, protocol="none")
    terminal = top(job, 10, 40)
    terminal.shows(lambda text: text.startswith(f"job {job.process.pid}"))
    for rows, columns in [(24, 80), (1, 1), (2, 80), (24, 3), (4, 20), (60, 200)]:
        terminal.resize(rows, columns)
        terminal.shows(lambda text: text.strip())
        terminal.read(0.3)
    terminal.shows(lambda text: len(ranks(text)) == 20)
    terminal.resize(24, 80)
    terminal.shows(lambda text: 0 in ranks(text) and 19 not in ranks(text))
    terminal.press("\x1b[F")
    terminal.shows(lambda text: 19 in ranks(text) and 0 not in ranks(text))
    terminal.press("q")
    assert terminal.wait() == 0 and "panicked" not in terminal.raw
    waits.end(job)


@pytest.mark.parametrize("no_color", [None, "1"])
def test_colours(waits, top, no_color):
    job = waits(2, protocol="none")
    terminal = top(job, NO_COLOR=no_color)
    terminal.shows(lambda text: "waiting" in text)
    terminal.press("k")
    terminal.shows("kill rank 0")
    terminal.press("nq")
    assert terminal.wait() == 0
    coloured = re.search(r"\x1b\[[\d;]*(?<![\d])(3[0-7]|9[0-7]|38[;:]\d)", terminal.raw)
    assert bool(coloured) == (no_color is None), coloured
    waits.end(job)


def test_the_job_ends(waits, top):
    job = waits(2)
    terminal = top(job)
    terminal.shows("computing")
    waits.end(job)
    assert terminal.wait() == 0
    assert f"job {job.process.pid}: has ended" in terminal.raw


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_it_is_killed(waits, top, number):
    job = waits(1)
    terminal = top(job)
    terminal.shows("computing")
    terminal.process.send_signal(number)
    assert terminal.wait() == 0
    waits.end(job)


@pytest.mark.slow
def test_a_stopped_job_is_waited_for(waits, top):
    job = waits(1)
    terminal = top(job)
    terminal.shows("computing")
    job.process.send_signal(signal.SIGSTOP)
    try:
        terminal.shows(f"does not answer.*kill -CONT {job.process.pid}", timeout=30)
    finally:
        job.process.send_signal(signal.SIGCONT)
    terminal.shows("q quit")
    terminal.press("q")
    assert terminal.wait() == 0
    waits.end(job)


def test_without_a_terminal(waits, jobs):
    """It prints one table and ends."""
    job = waits(2)
    told = jobs.resurgo("top", job.process.pid).ok()
    assert told.text.startswith(f"job {job.process.pid}: ") and "\x1b" not in told.text and "RANK" in told.text
    wrong = jobs.resurgo("top", "--colour")
    assert wrong.code == 2 and "top takes the number of one job" in wrong.errors
    waits.end(job)


def test_another_users_job(waits, somebody):
    job = waits(1)
    for verb in ("top", "ps"):
        refused = subprocess.run(
            [RESURGO, verb, str(job.process.pid)], **somebody, capture_output=True, text=True, timeout=5
        )
        assert refused.returncode == 2 and not refused.stdout
        expected = f"there is no job {job.process.pid} of yours: it belongs to user {os.geteuid()}"
        assert expected in refused.stderr, refused.stderr
    waits.end(job)
