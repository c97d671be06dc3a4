# SPDX-License-Identifier: Apache-2.0
"""`resurgo web`: what its server says, who is let in, and what a real browser shows of it."""

import http.client
import json
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

import pytest

import harness
from browser import CHROMIUM, Browser
from harness import RESURGO
from settings import MANY

HOSTILE = "<img src=x onerror=document.body.dataset.bad=1>"


class Web:
    """`resurgo web` of a job, and one page that hears it."""

    def __init__(self, job, *options):
        self.process = None
        if options == ("--web",):
            job.reach(lambda: b"/?token=" in job.err.read_bytes() and job.err.read_bytes().endswith(b"\n"), what="an address")
            self.address = re.search(r"http://\S+", job.err.read_text())[0]
        else:
            command = [str(word) for word in (RESURGO, "web", *options, job.process.pid)]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            self.process = subprocess.Popen(command, **pipes, text=True, env=harness.environment())
            self.address = self.process.stdout.readline().strip()
        parts = urllib.parse.urlsplit(self.address)
        self.port, self.token = parts.port, urllib.parse.parse_qs(parts.query)["token"][0]
        self.page, self.heard = None, []

    def ask(self, path, method="GET", body=None, token=None, **headers):
        """The status, the headers and the text."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=harness.patience(30))
        if token:
            headers["Authorization"] = f"Bearer {token}"
        if body is not None:
            body, headers["Content-Type"] = json.dumps(body), "application/json"
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        told = answer.status, answer.headers, answer.read().decode()
        connection.close()
        return told

    def order(self, **what):
        status, _, text = self.ask("/do", "POST", what, self.token)
        return status, json.loads(text)["said"]

    def listen(self, last=None):
        """Begins to hear events."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=harness.patience(30))
        connection.request("GET", f"/events?token={self.token}", headers={"Last-Event-ID": str(last)} if last else {})
        self.page = connection.getresponse()
        assert self.page.status == 200 and self.page.headers["Content-Type"] == "text/event-stream"

    def next(self):
        """The next event: its name and what it says; None at the end."""
        name, data = None, None
        while line := self.page.readline().decode():
            field, _, value = line.rstrip("\n").partition(":")
            if field == "event":
                name = value.strip()
            elif field == "data":
                data = json.loads(value)
            elif not field and name:
                self.heard.append((name, data))
                return name, data
        return None

    def reach(self, condition):
        """Hears events until `condition(name, data)` is true."""
        end = time.monotonic() + harness.patience(30)
        while (event := self.next()) is not None:
            if condition(*event):
                return event[1]
            if time.monotonic() > end:
                raise harness.Expired(f"the last event: {event}")
        raise harness.Absent("the page has ended")

    def events(self):
        return [event for name, data in self.heard if name == "state" for event in data["events"]]

    def ended(self):
        """Its exit status, and what it said at the end."""
        said, errors = self.process.communicate(timeout=harness.patience(30))
        assert errors == ""
        return self.process.returncode, said


@pytest.fixture
def web(jobs):
    opened = []

    def begin(job, *options):
        opened.append(Web(job, *options))
        return opened[-1]

    yield begin
    for one in opened:
        if one.process:
            one.process.kill()
            one.process.communicate()


def running(name, data):
    return name == "state" and all(rank["pid"] for rank in data["ranks"])


def test_it_says_what_the_job_is(waits, web, jobs):
    job = waits(4, protocol="pessimistic", options=MANY)
    page = web(job, "--control")
    page.listen()
    page.reach(running)
    assert page.order(do="checkpoint")[0] == 200
    page.reach(lambda name, data: name == "state" and any(event["event"] == "checkpointed" for event in data["events"]))
    job.kill([1])
    state = page.reach(lambda name, data: running(name, data) and data["ranks"][1]["life"] == 2)
    told = json.loads(jobs.resurgo("ps", "--json", job.process.pid).ok().text)
    same = ("rank", "node", "pid", "life")
    assert [[rank[key] for key in same] for rank in state["ranks"]] == [[rank[key] for key in same] for rank in told["ranks"]]
    assert (state["command"], state["failures"], state["control"]) == (told["command"], 1, True)
    assert page.order(do="kill", rank=2)[0] == 200
    page.reach(lambda name, data: running(name, data) and data["ranks"][2]["life"] == 2)
    # Each event once, in order; a page that comes later, or again, gets what it lacks.
    numbers = [event["number"] for event in page.events()]
    assert numbers == list(range(1, len(numbers) + 1))
    other = web(job)
    other.listen(last=f"{numbers[2]}-0")
    other.reach(lambda name, data: name == "state")
    assert other.events()[0]["number"] == numbers[3]
    job.destroy()
    assert page.reach(lambda name, data: name == "over") == {"how": "has ended"}
    assert page.next() is None
    assert page.ended() == (0, f"job {job.process.pid}: has ended\n")


def test_without_the_token_nobody_sees_the_job(waits, web):
    job = waits(1)
    page = web(job)
    for path in ("/events", "/events?token=", f"/events?token={page.token[:-1]}", f"/events?token={page.token}0", "/do"):
        method = "POST" if path == "/do" else "GET"
        status, _, text = page.ask(path, method, {"do": "checkpoint"} if method == "POST" else None)
        assert status == 403 and "token" in text, path
    for path, kind in (("/", "text/html"), ("/page.js", "text/javascript"), ("/page.css", "text/css")):
        status, headers, text = page.ask(path)
        assert status == 200 and headers["Content-Type"].startswith(kind) and page.token not in text
        assert "default-src 'none'" in headers["Content-Security-Policy"] and headers["Referrer-Policy"] == "no-referrer"
    # Without --control it only looks.
    status, said = page.order(do="kill", rank=0)
    assert status == 403 and "--control" in said and job.lives()
    assert page.ask("/../etc/passwd")[0] == 404
    # No other machine can connect.
    assert page.address.startswith("http://127.0.0.1:")
    waits.end(job)


def test_wrong_orders_are_refused(waits, web):
    job = waits(2)
    page = web(job, "--control")
    for order in ({}, {"do": "drain"}, {"do": "kill", "rank": "1"}, {"do": "kill", "rank": -1}, {"do": "rm"}):
        assert page.order(**order)[0] == 400, order
    status, said = page.order(do="kill", rank=7)
    assert status == 409 and said.startswith("refused: ")
    status, said = page.order(do="drain", node="\x1b[31mnone")
    assert status == 409 and "\x1b" not in said
    assert page.ask("/do", "POST", {"do": "x" * 5000}, page.token)[0] == 413
    assert len(job.lives()) == 2
    waits.end(job)


def test_a_job_that_stands_still_is_silent_and_comes_back(waits, web):
    job = waits(1)
    page = web(job)
    page.listen()
    page.reach(running)
    job.process.send_signal(signal.SIGSTOP)
    try:
        page.reach(lambda name, data: name == "silent")
    finally:
        job.process.send_signal(signal.SIGCONT)
    page.reach(running)
    waits.end(job)


def test_a_job_shows_itself(waits, web, jobs):
    """`resurgo run --web`: its page only looks, begins before the job and hears of its end."""
    job = waits(2, options=["--web", "127.0.0.1:0"], protocol="pessimistic")
    page = web(job, "--web")
    page.listen()
    page.reach(running)
    assert page.order(do="kill", rank=0)[0] == 403
    job.kill([1])
    page.reach(lambda name, data: running(name, data) and data["ranks"][1]["life"] == 2)
    waits.end(job)
    assert page.reach(lambda name, data: name == "over") == {"how": "has ended"}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        told = jobs.run(1, "true", options=["--web", f"127.0.0.1:{taken.getsockname()[1]}"])
    assert told.code == 1 and "--web: cannot listen at 127.0.0.1" in told.errors, told.describe()


PRINTS = """
while [ ! -e "$1" ]; do sleep 0.01; done
printf 'rank %s begins\\n' $RESURGO_RANK; printf '\\303\\274 %s\\n' "$2" >&2
while [ ! -e "$1.2" ]; do sleep 0.01; done
seq 5000; printf 'the end, without a line'
"""


@pytest.mark.parametrize("how", ["--web", "web"])
def test_a_page_has_the_output(jobs, web, how):
    """What ranks print, to the last word, which comes before the end of the job. A late page gets what was before it."""
    go = jobs.directory / "go"
    job = jobs.start(1, "sh", "-c", PRINTS, "sh", go, HOSTILE, options=["--web", "127.0.0.1:0"] if how == "--web" else [])
    job.reach(lambda: job.lives(), what="a process")
    page = web(job, *([how] if how == "--web" else []))
    page.listen()

    def text(of, is_error):
        told = [part for name, data in of.heard if name == "output" for part in data["parts"]]
        return "".join(part["text"] for part in told if part["is_error"] == is_error)

    go.touch()
    page.reach(lambda name, data: text(page, True) and text(page, False))
    other = web(job)
    other.listen()
    other.reach(lambda name, data: text(other, True) and text(other, False))
    (jobs.directory / "go.2").touch()
    result = job.wait().ok()
    for of in (page, other):
        of.reach(lambda name, data: name == "over")
        assert text(of, False) == result.text and text(of, True) == f"\u00fc {HOSTILE}\n"


def test_it_shows_a_trace(jobs, program):
    """The picture of `resurgo trace report`, for those that have the token."""
    file, out = jobs.directory / "job.pftrace", jobs.directory / "job.svg"
    jobs.run(2, *program("hello"), options=["--trace", file]).ok()
    jobs.resurgo("trace", "report", file, "--picture", out).ok()
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([str(RESURGO), "web", str(file)], **pipes, text=True, env=harness.environment())
    try:
        address = process.stdout.readline().strip()
        with urllib.request.urlopen(address, timeout=harness.patience(30)) as answer:
            assert answer.headers["Content-Type"] == "image/svg+xml" and answer.read() == out.read_bytes()
            policy = answer.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy and "script" not in policy and answer.headers["Cache-Control"] == "no-store"
        for wrong in (address.split("?")[0], address[:-1], address.replace("/?", "/events?")):
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(wrong, timeout=harness.patience(30))
            assert refused.value.code == (404 if "events" in wrong else 403)
        process.send_signal(signal.SIGINT)
        said, errors = process.communicate(timeout=harness.patience(30))
        assert process.returncode == -signal.SIGINT and (said, errors) == ("", "")
    finally:
        process.kill()
        process.communicate()
    for words, why in [(["--control", file], "--control"), ([__file__], "no trace of resurgo"), ([file, file], "one job")]:
        result = jobs.resurgo("web", *words)
        assert result.code == 2 and result.errors.count("\n") == 1 and why in result.errors, result.describe()


def test_wrong_command_lines(waits, jobs):
    job = waits(1)
    for words, why in (
        (["--listen", "here"], "is not ADDR:PORT"),
        (["--colour"], "web has no option"),
        (["12", "13"], "web takes the number of one job"),
        (["999999999"], "there is no job"),
    ):
        told = jobs.resurgo("web", *words)
        assert told.code == 2 and why in told.errors and told.errors.count("\n") == 1, told.describe()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        told = jobs.resurgo("web", f"--listen=127.0.0.1:{taken.getsockname()[1]}", job.process.pid)
    assert told.code == 1 and "cannot listen at 127.0.0.1" in told.errors, told.describe()
    waits.end(job)


@pytest.fixture
def browser(tmp_path):
    if not CHROMIUM:
        pytest.skip("no Chromium: scripts/setup.sh web installs it")
    opened = Browser(tmp_path / "browser")
    yield opened
    opened.close()


RANKS = """[...document.querySelectorAll('#ranks tbody tr')].map(row => [...row.cells].slice(0, 4).map(cell => cell.textContent))"""


@pytest.mark.slow
def test_a_browser_shows_what_the_job_is(waits, web, browser, jobs, rng):
    job = waits(3, protocol="pessimistic", options=MANY)
    page = web(job, "--control")
    browser.open(page.address)

    def same():
        state = json.loads(jobs.resurgo("ps", "--json", job.process.pid).ok().text)
        told = [[rank["rank"], rank["node"], rank["pid"] or "-", rank["life"]] for rank in state["ranks"]]
        return browser.evaluate(RANKS) == [list(map(str, row)) for row in told]

    browser.shows(lambda: browser.evaluate("document.querySelectorAll('#ranks tbody tr').length") == 3 and same(), "all ranks")
    # Who sends to whom, by the images: what the page shows is what the job says.
    jobs.resurgo("checkpoint", job.process.pid).ok()
    drawn = "[...document.querySelectorAll('rect.sends')].map(box => [box.dataset.from, box.dataset.to, box.dataset.sent].map(Number))"

    def same_traffic():
        state = json.loads(jobs.resurgo("ps", "--json", job.process.pid).ok().text)
        told = [[rank["rank"], *pair] for rank in state["ranks"] for pair in rank["sent_to"]]
        return told and browser.evaluate(drawn) == told

    browser.shows(same_traffic, "who sends to whom")
    for _ in range(4):
        job.kill([rng.randrange(3)])
        browser.shows(same, "the job's ranks")
    lives = sum(rank["life"] for rank in json.loads(jobs.resurgo("ps", "--json", job.process.pid).ok().text)["ranks"])
    count = lambda what: browser.evaluate(f"document.querySelectorAll('{what}').length")  # noqa: E731
    browser.shows(lambda: count("rect.life") == lives and count("path.failed") == lives - 3, "all lives and failures")
    # By the keyboard alone: a rank is killed after a question, then nothing is when the answer is no.
    for answer, more in (("yes", 1), ("no", 0)):
        browser.evaluate("document.querySelector('#ranks tbody tr:nth-child(2) button').focus()")
        browser.key("Enter")
        browser.shows(lambda: browser.evaluate("document.querySelector('dialog').open"), "a question")
        assert "rank 1" in browser.text("#asked")
        browser.evaluate(f"document.querySelector('dialog button[value={answer}]').focus()")
        browser.key("Enter")
        lives += more
        browser.shows(lambda: not browser.evaluate("document.querySelector('dialog').open") and count("rect.life") == lives, "lives")
    browser.evaluate("document.querySelector('#timeline').focus()")
    for key in "++-0":
        browser.key(key)
    # Readable on a phone and on a screen: nothing is wider than the page.
    for width, height in ((390, 800), (1280, 900)):
        browser.resize(width, height)
        browser.shows(lambda: browser.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), f"{width} pixels")
    job.destroy()
    browser.shows(lambda: browser.text("#standing") == "has ended", "the end")
    assert browser.complaints == []


@pytest.mark.slow
@pytest.mark.parametrize("token", ["", "?token=0"])
def test_a_browser_without_the_token_says_so(waits, web, browser, token):
    job = waits(1)
    browser.open(web(job).address.partition("?")[0] + token)
    browser.shows(lambda: "token" in browser.text("#standing"), "a reason")
    waits.end(job)


@pytest.mark.slow
def test_what_a_job_says_is_never_markup(jobs, web, browser):
    job = jobs.start(1, "sh", "-c", "sleep 1000", HOSTILE)
    job.reach(lambda: job.lives())
    page = web(job)
    browser.open(page.address)
    browser.shows(lambda: HOSTILE in browser.text("#command"), "the command")
    assert browser.evaluate("document.body.dataset.bad || document.querySelectorAll('img').length") == 0
    job.destroy()


@pytest.mark.slow
def test_a_browser_shows_a_trace(jobs, program, browser):
    """With its colours, although the server lets pages take nothing."""
    file = jobs.directory / "job.pftrace"
    jobs.run(2, *program("hello"), options=["--trace", file]).ok()
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([str(RESURGO), "web", str(file)], **pipes, text=True, env=harness.environment())
    try:
        browser.open(process.stdout.readline().strip())
        browser.shows(lambda: browser.evaluate("document.querySelector('#rank-1 .life') !== null"), "the line of a rank")
        assert browser.evaluate("getComputedStyle(document.querySelector('.life')).stroke") != "none"
    finally:
        process.kill()
        process.communicate()
