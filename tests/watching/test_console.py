# SPDX-License-Identifier: Apache-2.0
"""`resurgo console`: words about a running job, at a prompt, from a pipe, and in the command line."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest

import harness
from harness import RESURGO
from screen import Terminal


@pytest.fixture
def prompt(jobs):
    """Opens the prompt for a job in a terminal."""
    opened = []

    def begin(number, *options, **more):
        env = harness.environment(TERM="xterm-256color", **more)
        terminal = Terminal([RESURGO, "console", *options, number], 40, 100, env)
        opened.append(terminal)
        terminal.shows(rf"^job {number}> $|^job {number}>$")
        return terminal

    yield begin
    for terminal in opened:
        terminal.close()


def leaves(terminal, number):
    """Ctrl-D, which means the end only where a line is edited."""
    terminal.shows(rf"job {number}>\s*\Z")
    terminal.press("\x04")
    return terminal.wait() == 0


@pytest.fixture
def script(jobs):
    """Gives the console lines by a pipe."""

    def run(job, *lines, options=()):
        read, write = os.pipe()
        os.write(write, "\n".join(lines).encode("latin-1"))
        os.close(write)
        try:
            return jobs.resurgo("console", *options, job.process.pid, stdin=read)
        finally:
            os.close(read)

    return run


def objects(result):
    return [json.loads(line) for line in result.text.splitlines()]


def test_a_user_kills_a_rank(waits, prompt):
    """The rank comes back, and what the job prints at its end is right."""
    job = waits(3, protocol="pessimistic")
    [pid, _] = job.lives()[1]
    terminal = prompt(job.process.pid)
    terminal.press("kill 1\r")
    terminal.shows(rf"^rank 1 \(pid {pid}\) is killed$")
    job.reach_event("caught_up", rank=1)
    terminal.press("ranks\r")
    terminal.shows(r"^ +1 +0 +\d+ +2 ")
    terminal.press("status\r")
    terminal.shows(r"^pessimistic, .*, 1 failure, 1 restart;")
    terminal.press("quit\r")
    assert terminal.wait() == 0
    result = waits.end(job)
    assert sorted(result.text.split("\n")[-4:]) == ["", "done 0", "done 1", "done 2"], result.describe()
    assert result.restarts == 1


def test_wrong_words_are_one_line_each(waits, prompt):
    """They do not end the console of a user."""
    job = waits(2)
    number = job.process.pid
    terminal = prompt(number)
    for typed, answer in [
        ("rnks", "there is no word rnks; did you mean ranks? help lists them"),
        ("kill", "write kill RANK"),
        ("kill x", "kill x: not the number of a rank"),
        ("kill 7", f"job {number}: it has no rank 7; its ranks are 0 to 1"),
        ("drain n9", f"job {number}: it runs on one node, or has been resumed; nodes of others can leave"),
        ("add n1", f"job {number}: it runs on one node, or has been resumed; only others take hosts"),
    ]:
        terminal.press(typed + "\r")
        terminal.shows(rf"^job {number}> {typed}\nresurgo: {re.escape(answer)}\njob {number}>$")
    terminal.press("checkpoint\r")
    terminal.shows("^a wave is complete$")
    assert leaves(terminal, number)
    assert len(job.lives()) == 2
    waits.end(job)


def test_completion_and_history(waits, prompt):
    job = waits(3, protocol="blocking", options=["--nodes", "2"])
    number = job.process.pid
    names = {event["node"] for event in job.events if event["event"] == "started"}
    terminal = prompt(number)
    terminal.press("prot\t")
    terminal.shows(rf"^job {number}> protocol$")
    terminal.press("\r")
    terminal.shows("^blocking$")
    terminal.press("kill \t\t")
    terminal.shows(r"^0 +1 +2$")
    terminal.press("\x15drain \t\t")
    terminal.shows(lambda text: any(set(line.split()) == names for line in text.splitlines()))
    terminal.press("\x03")
    terminal.shows(rf"> drain *\njob {number}>$")
    # What is pasted is all carried out, a line after the other.
    terminal.press("nonsense\rprotocol\rquit\r")
    assert terminal.wait() == 0
    assert re.search(r"no word nonsense.*blocking", terminal.raw, re.S), terminal.raw
    again = prompt(number)
    again.press("\x1b[A\x1b[A")
    again.shows(rf"^job {number}> protocol$")
    again.press("\r")
    again.shows("^blocking$")
    assert leaves(again, number)
    waits.end(job)


def test_the_job_ends(waits, prompt):
    job = waits(2)
    terminal = prompt(job.process.pid)
    terminal.press("rank")
    terminal.shows("> rank$")
    waits.end(job)
    assert terminal.wait() == 0
    assert terminal.raw.count("has ended") == 1 and f"job {job.process.pid}: has ended" in terminal.raw, terminal.raw


def test_the_job_is_suspended(waits, prompt, jobs):
    job = waits(2, options=["--checkpoint-dir", jobs.directory / "images"])
    terminal = prompt(job.process.pid)
    terminal.press("suspend\r")
    assert terminal.wait() == 0
    assert f"job {job.process.pid}: has ended" in terminal.raw and "is suspended" in terminal.raw, terminal.raw
    assert job.wait().code == 75


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_it_is_killed(waits, prompt, number):
    job = waits(1)
    terminal = prompt(job.process.pid)
    terminal.process.send_signal(number)
    assert terminal.wait() == 128 + number
    waits.end(job)


def test_a_script(waits, script):
    job = waits(2)
    result = script(job, "# all is well", "", "ranks", "hosts", "protocol", "help", "quit", "nonsense").ok()
    assert "\x1b" not in result.text and "> " not in result.text and not result.err, result.describe()
    rows = [line.split() for line in result.text.splitlines()]
    for rank, (pid, life) in job.lives().items():
        assert any(row[:4] == [str(rank), "0", str(pid), str(life)] for row in rows), result.text
    assert ["NODE", "NAME", "STATE", "RANKS", "LOG", "HOLDS", "SILENT"] in rows and "kill RANK" in result.text
    waits.end(job)


def test_the_first_word_that_fails_ends_a_script(waits, script):
    job = waits(2)
    result = script(job, "protocol", "kill 5", "kill 0")
    assert result.code == 1 and len(result.text.splitlines()) == 1, result.describe()
    assert result.errors == f"resurgo: job {job.process.pid}: it has no rank 5; its ranks are 0 to 1\n"
    assert len(job.lives()) == 2 and not job.of("fault_injected")
    waits.end(job)


def test_lines_are_text(waits, script):
    job = waits(1)
    result = script(job, "\xff\x1b", "protocol")
    assert result.code == 1 and not result.text, result.describe()
    assert result.errors == "resurgo: there is no word \N{REPLACEMENT CHARACTER} ; help lists them\n"
    waits.end(job)


def test_one_word_in_the_command_line(waits, jobs):
    job = waits(2, protocol="pessimistic")
    number = job.process.pid
    assert jobs.resurgo("console", number, "protocol").ok().text == "pessimistic\n"
    jobs.resurgo("console", number, "kill", "1").ok()
    job.reach_event("caught_up", rank=1)
    events = jobs.resurgo("console", number, "events").ok().text
    assert re.search(r"caught up .*rank=1", events), events
    wrong = jobs.resurgo("console", number, "kill", "x")
    assert (wrong.code, wrong.errors, wrong.text) == (1, "resurgo: kill x: not the number of a rank\n", "")
    waits.end(job)


def test_json(waits, script, jobs):
    job = waits(3, protocol="pessimistic")
    words = ["hosts", "ranks", "status", "events", "protocol", "help", "checkpoint", "kill 2", "kill x", "ranks"]
    result = script(job, *words, options=["--json"])
    assert result.code == 1 and not result.err, result.describe()
    told = objects(result)
    assert [answer["word"] for answer in told] == [word.split()[0] for word in words[:-1]]
    hosts, ranks, status, events, protocol, helped, image, killed, wrong = told
    assert [node["state"] for node in hosts["nodes"]] == ["there"] and hosts["nodes"][0]["ranks"] == 3
    assert [(rank["rank"], rank["life"]) for rank in ranks["ranks"]] == [(0, 1), (1, 1), (2, 1)]
    assert status["job"] == job.process.pid and status["failures"] == 0 and "ranks" not in status
    assert events["events"][-1]["number"] == events["last_event"] and protocol["protocol"] == "pessimistic"
    assert "ranks" in helped["words"] and "new image" in image["said"]
    assert killed["said"] == f"rank 2 (pid {ranks['ranks'][2]['pid']}) is killed"
    assert wrong == {"word": "kill", "error": "kill x: not the number of a rank"}
    job.reach_event("started", rank=2, life=2)
    waits.end(job)


def test_the_job_of_a_script_ends(waits, jobs):
    """Also while the script says nothing."""
    job = waits(1)
    read, write = os.pipe()
    try:
        console = jobs.command([RESURGO, "console", "--json", job.process.pid], stdin=read)
        os.write(write, b"protocol\n")
        console.reach(lambda: b"protocol" in console.out.read_bytes(), what="an answer")
        waits.end(job)
        result = console.wait().ok()
    finally:
        os.close(read), os.close(write)
    assert objects(result)[1:] == [{"word": None, "said": f"job {job.process.pid}: has ended"}]


def test_nodes_come_and_go(waits, script, jobs):
    job = waits(2, protocol="blocking", options=["--nodes", "2"])
    [hosts] = objects(script(job, "hosts", options=["--json"]).ok())
    name = hosts["nodes"][1]["name"]
    result = script(job, "add another", f"remove {name}", "hosts", options=["--json"]).ok()
    nodes = {node["name"]: node for node in objects(result)[-1]["nodes"]}
    assert len(nodes) == 3 and nodes[name]["state"] == "left", nodes
    assert sum(node["ranks"] for node in nodes.values() if node["state"] == "there") == 2, nodes
    waits.end(job)


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["1"], "there is no job 1; resurgo ps lists them"),
        (["ranks"], "console needs the number of a job before a word, as in: resurgo console 4711 ranks"),
        (["--colour"], 'console takes --json, not "--colour"'),
    ],
    ids=str,
)
def test_wrong_arguments(jobs, arguments, words):
    result = jobs.resurgo("console", *arguments)
    assert result.code == 2 and result.errors == f"resurgo: {words}\n" and not result.text, result.describe()


EVIL = "n\x1b[2J\x1b]0;title\x07\x9bm\nx"

# Pretends to be a job: answers each request for the state with what it was given.
FALSE_JOB = """
import json, os, socket, struct, sys, threading
listener = socket.socket(socket.AF_UNIX)
listener.bind("\\0resurgo/%d/%d/0" % (os.getuid(), os.getpid()))
listener.listen()
print("listens", flush=True)
state = json.loads(sys.argv[1])
answer = json.dumps({"State": {"job": os.getpid(), **state}}).encode()
refused = json.dumps({"Refused": state["command"]}).encode()
def serve(client):
    while head := client.recv(4, socket.MSG_WAITALL):
        request = client.recv(struct.unpack("<I", head)[0], socket.MSG_WAITALL)
        reply = answer if b"State" in request else refused
        client.sendall(struct.pack("<I", len(reply) + 1) + b"\\0" + reply)
while True:
    threading.Thread(target=serve, args=[listener.accept()[0]], daemon=True).start()
"""


@pytest.fixture
def hostile():
    """The number of a job whose words and names steer terminals."""
    node = {"ranks": 1, "log_bytes": 0, "held_bytes": 0, "silent_seconds": None, "state": "there"}
    rank = {
        "rank": 0, "node": 0, "pid": 1, "life": 1, "state": "computing", "waits_for": None, "replayed": None, "writes_image": False,
        "restarts": 0, "messages": 0, "bytes": 0, "deliveries": 0, "log_bytes": 0,
    }  # fmt: skip
    state = {
        "command": EVIL, "protocol": EVIL, "is_ending": False, "seconds": 1.0, "failures": 0, "restarts": 0, "images": 0,
        "last_image": None, "messages": 0, "bytes": 0, "log_bytes": 0, "last_event": 1,
        "nodes": [{"node": 0, "name": EVIL, **node}, {"node": 1, "name": "good", **node}],
        "ranks": [rank], "events": [{"event": EVIL, "time": 1.0, "number": 1, "reason": EVIL}],
    }  # fmt: skip
    process = subprocess.Popen([sys.executable, "-c", FALSE_JOB, json.dumps(state)], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"listens\n"
    yield process.pid
    process.kill()
    process.wait()
    process.stdout.close()


def test_hostile_names_steer_no_terminal(hostile, jobs, prompt):
    for word in (["hosts"], ["ranks"], ["status"], ["events"], ["protocol"], ["kill", "0"], ["drain", EVIL.split("\n")[0]]):
        result = jobs.resurgo("console", hostile, *word)
        assert result.code == (word[0] in ("kill", "drain")), result.describe()
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", result.text + result.errors), result.describe()
        assert len(result.text.splitlines()) < 4, result.describe()
    terminal = prompt(hostile)
    terminal.press("drain \t\t")
    terminal.shows(r"^0 +good$")
    terminal.press("\x15hosts\r")
    terminal.shows("good +there")
    assert leaves(terminal, hostile) and not re.search("\x1b\\]|\x1b\\[2J|\x9b|title\x07", terminal.raw), terminal.raw
