# SPDX-License-Identifier: Apache-2.0
"""`resurgo ps`, `checkpoint` and `kill`; images on a signal; option values that make no sense."""

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import time
from pathlib import Path

import pytest

import harness
import survival
from harness import RESURGO

# Says that it runs, then waits silently until the given file exists.
QUIET = """
import os, sys, time
from mpi4py import MPI
world = MPI.COMM_WORLD
world.Barrier()
print("ready", world.rank, flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
world.Barrier()
print("done", world.rank)
"""


@pytest.fixture
def quiet(jobs):
    """Starts a quiet job, and makes it end."""
    begin = harness.held(jobs, QUIET, size=2)
    end = begin.end

    def end_whole(job):
        result = end(job)
        assert result.text.count("done") == result.text.count("ready"), result.describe()
        return result

    begin.end = end_whole
    return begin


@pytest.fixture
def ask(jobs):
    """Runs a command about jobs; it must not take long."""

    def run(*arguments, **more):
        result = jobs.resurgo(*arguments, timeout=5, **more)
        return result.code, result.text, result.errors

    return run


def rows(text):
    """The table's lines by job number. As root, other users' jobs are listed, too."""
    header, *lines = text.splitlines()
    assert header.split() == ["JOB", "RANKS", "PROTOCOL", "TIME", "RESTARTS", "IMAGES", "LAST", "COMMAND"]
    return {int(line.split()[0]): line for line in lines}


def test_a_job_from_its_beginning_to_its_end(quiet, ask):
    job = quiet(3)
    number = job.process.pid
    code, text, _ = ask("ps")
    row = rows(text)[number]
    assert code == 0 and re.search(r" 3 of 3  auto +\d+\.\d m?s +0 +0 +- +\S+python -c ", row), row
    # Nothing else happens in this job: the answer must come by itself.
    assert ask("checkpoint", number) == (0, f"job {number}: a wave is complete\n", "")
    job.kill([2])
    job.reach_another("started", rank=2)
    assert [event["image"] for event in job.events if event["event"] == "started"] == [0, 0, 0, 1]
    row = rows(ask("ps")[1])[number]
    assert re.search(r" 3 of 3  auto .* 1 +1 +\d+\.\d m?s +\S+python", row), row
    assert ask("kill", number) == (0, f"job {number}: is being ended\n", "")
    result = job.wait(10)
    assert result.code == 143 and "ended by SIGTERM" in result.errors, result.describe()
    assert number not in rows(ask("ps")[1])


@pytest.mark.gate("chandy-lamport")
@pytest.mark.parametrize("protocol", ["blocking", "chandy-lamport"])
def test_a_wave_on_command(quiet, ask, protocol):
    job = quiet(2, protocol=protocol)
    number = job.process.pid
    assert ask("checkpoint", number) == (0, f"job {number}: a wave is complete\n", "")
    assert ask("checkpoint", number)[0] == 0
    assert re.search(rf" {protocol} .* 0 +2 +\d", rows(ask("ps")[1])[number])
    newest = job.newest("wave_complete")["wave"]
    job.kill([0])
    job.reach_event("returned", wave=newest)
    assert quiet.end(job).restarts == 1


@pytest.mark.parametrize("protocol, images", [("pessimistic", "checkpointed"), ("blocking", "wave_complete")])
def test_images_on_a_signal(quiet, protocol, images):
    job = quiet(2, protocol=protocol)
    job.process.send_signal(signal.SIGUSR1)
    job.reach_event(images, **({"rank": 1} if protocol == "pessimistic" else {}))
    job.kill([1])
    job.reach(lambda: any(event["event"] == "started" and event["image"] > 0 for event in job.events))
    assert quiet.end(job).restarts == 1


@pytest.mark.gate("pessimistic-*")
@pytest.mark.parametrize("protocol, said", [("pessimistic", "1 image is still to be taken"), ("blocking", "a wave is being taken")])
def test_a_terminal_is_shown_how_far_it_has_come(quiet, protocol, said):
    """While a rank does not answer, the terminal shows progress; in the end nothing of it stays on the line."""
    job = quiet(2, protocol=protocol)
    number = job.process.pid
    job.kill([1], signal.SIGSTOP)
    own, terminal = os.openpty()
    command = [RESURGO, "checkpoint", str(number)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=terminal, env=harness.environment(TERM="xterm")) as asking:
        try:
            shown, end = "", time.monotonic() + harness.patience(10)
            while said not in shown:
                assert select.select([own], [], [], max(0, end - time.monotonic()))[0], f"not shown: {shown!r}"
                shown += os.read(own, 1000).decode()
        finally:
            job.kill([1], signal.SIGCONT)
        answer, _ = asking.communicate(timeout=harness.patience(10))
    os.close(terminal)
    with contextlib.suppress(OSError):  # EIO: nothing more will come
        while more := os.read(own, 1000).decode():
            shown += more
    os.close(own)
    assert asking.returncode == 0 and answer.startswith(b"job %d: " % number), (answer, shown)
    assert f"job {number}: {said}" in shown and shown.endswith("\r\x1b[2K"), shown
    quiet.end(job)


@pytest.mark.parametrize("verb", ["run", "ps", "checkpoint", "suspend", "resume", "kill", "image", "doctor", "bench"])
def test_every_command_has_help_of_its_own(jobs, verb):
    told = jobs.resurgo(verb, "--help").ok()
    assert told.text.startswith(f"resurgo {verb} ") and told.errors == ""
    assert jobs.resurgo("help", verb).ok().text == told.text


def test_the_agent_has_a_name(quiet):
    """In ps, by its short name and by its command line."""
    job = quiet(1)
    [agent] = survival.children_of(job.process.pid)
    assert Path(f"/proc/{agent}/comm").read_text() == "resurgo agent\n"
    assert Path(f"/proc/{agent}/cmdline").read_bytes() == b"resurgo\0agent\0"
    quiet.end(job)


# What commands for a job that is over say, depending on the moment.
OVER = ["has ended meanwhile", "there is no job", "takes no commands now"]


def test_a_job_is_killed_twice(quiet, ask):
    job = quiet(2)
    answers = [ask("kill", job.process.pid) for _ in range(3)]
    job.wait(10)
    assert answers[0][0] == 0, answers
    for code, text, errors in answers[1:]:
        assert code == 0 or any(words in errors for words in OVER), (code, text, errors)


def test_there_are_no_images_without_a_protocol(quiet, ask):
    job = quiet(2, protocol="none")
    job.process.send_signal(signal.SIGUSR1)
    for verb in ("checkpoint", "suspend"):
        code, text, errors = ask(verb, job.process.pid)
        assert (code, text) == (1, "") and "no images with --protocol none" in errors
    result = quiet.end(job)
    assert not result.of("checkpointed") and not result.of("not_checkpointed")


def test_what_can_have_no_image_is_said(jobs):
    """After several attempts the waiting user hears why there is no image. The job goes on."""
    script = (
        "import socket, time; from mpi4py import MPI; s = socket.create_server(('127.0.0.1', 0)); "
        "c = socket.create_connection(s.getsockname()); print('ready', flush=True); time.sleep(100)"
    )
    job = jobs.start(1, harness.PYTHON, "-c", script, protocol="pessimistic")
    job.says(b"ready")
    number = job.process.pid
    result = jobs.resurgo("checkpoint", number, timeout=20)
    assert result.code == 1 and f"job {number}: no image can be taken: rank 0: " in result.errors, result.describe()
    assert "socket" in result.errors and "descriptor" in result.errors, result.describe()
    job.process.terminate()
    job.wait(10)


@pytest.mark.gate("blocking*")
@pytest.mark.parametrize(
    "protocol, answer",
    [("pessimistic", "no image can be taken: rank 1: "), ("blocking", "no wave can be taken: rank 1: ")],
)
def test_after_a_rank_has_finished(jobs, protocol, answer):
    """The finished rank needs no image. The other has left MPI and can have none."""
    script = "import os, time; from mpi4py import MPI; MPI.Finalize(); time.sleep(100 * int(os.environ['RESURGO_RANK']))"
    job = jobs.start(2, harness.PYTHON, "-c", script, protocol=protocol)
    if job.until_event("finished", rank=0):
        # The other one may not have left MPI yet.
        answers = []
        asked = lambda: answers.append(jobs.resurgo("checkpoint", job.process.pid, timeout=20)) or answers[-1].code == 1
        job.reach(asked, what="a refusal")
        assert answer in answers[-1].errors, answers[-1].describe()
        job.process.terminate()
        job.wait(10)


def test_several_jobs(quiet, ask):
    one, other = quiet(1), quiet(2, protocol="blocking")
    table = rows(ask("ps")[1])
    assert {one.process.pid, other.process.pid} <= set(table)
    assert list(table) == sorted(table)
    code, _, errors = ask("checkpoint")
    assert code == 2 and "say which" in errors
    assert ask("checkpoint", other.process.pid)[0] == 0
    assert ask("kill", one.process.pid)[0] == 0
    assert one.wait(10).code == 143
    quiet.end(other)


def test_many_ask_at_once(jobs, quiet):
    """Some of them do not wait for the answer."""
    job = quiet(2)
    asking = [jobs.command([RESURGO, "checkpoint", job.process.pid]) for _ in range(20)]
    for one in asking[::5]:
        one.process.kill()
    for one in asking:
        assert one.wait(10).code in (0, -9)
    quiet.end(job)


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["checkpoint", "1"], "there is no job 1; resurgo ps lists them"),
        (["kill", "1"], "there is no job 1; resurgo ps lists them"),
        (["kill", "-9"], "there is no job -9"),
        (["kill", "nonsense"], "there is no job nonsense"),
        (["kill", "99999999999999999999"], "there is no job 99999999999999999999"),
        (["checkpoint", ""], "there is no job"),
        (["checkpoint", "1", "2"], "the number of one job"),
        (["kill", "1", "2"], "there is no job 2; resurgo ps lists them"),
        (["kill"], "needs the number of a job"),
        (["ps", "-a"], "ps takes no arguments"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_arguments(ask, arguments, words):
    code, text, errors = ask(*arguments)
    assert (code, text) == (2, "") and words in errors and "panicked" not in errors, errors


def test_no_job(somebody):
    """As a user without jobs."""
    run = lambda *words: subprocess.run([RESURGO, *words], **somebody, capture_output=True, text=True, timeout=5)
    table = run("ps")
    assert table.returncode == 0 and rows(table.stdout) == {}
    none = run("checkpoint")
    assert none.returncode == 2 and none.stderr == "resurgo: there is no job\n"


def test_another_users_job(quiet, somebody):
    """It is not listed, and whoever connects to it anyway is not heard."""
    job = quiet(1)
    number = job.process.pid
    for words in (["checkpoint", str(number)], ["kill", str(number)]):
        result = subprocess.run([RESURGO, *words], **somebody, capture_output=True, text=True, timeout=5)
        assert result.returncode == 2 and f"there is no job {number}" in result.stderr
    # Once for each connection, too: other tests may look at all jobs just now.
    [name] = set(re.findall(rf"@(resurgo/{os.geteuid()}/{number}/\w+)", Path("/proc/net/unix").read_text()))
    script = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.settimeout(3); "
        f"s.connect('\\0{name}'); s.sendall(sys.stdin.buffer.read()); print(s.recv(100))"
    )
    # A frame: the length of the rest, its kind (JSON), and the text.
    request = b'\0"Kill"'
    intruder = subprocess.run(
        ["python3", "-c", script], input=len(request).to_bytes(4, "little") + request, **somebody, capture_output=True
    )
    assert intruder.stdout in (b"b''\n", b""), intruder
    time.sleep(0.2)
    assert not job.over()
    quiet.end(job)


# Listens as {name} and answers every request with {answer}: text as a frame, bytes as they are.
HOSTILE = """
import os, socket, sys, threading, time
socks = []
for name in {names}:
    s = socket.socket(socket.AF_UNIX)
    s.bind(b"\\0" + name.replace(b"PID", b"%d" % os.getpid()))
    s.listen({backlog})
    socks.append(s)
print("listens", flush=True)
answer = {answer}
if isinstance(answer, str):
    answer = len(answer.encode() + b"0").to_bytes(4, "little") + b"\\0" + answer.encode()
def serve(client):
    try:
        client.recv(100)
        client.sendall(answer)
        while {again}:
            client.sendall(answer)
        client.recv(1)
    except OSError:
        pass
while True:
    if answer is None:
        time.sleep(100)
    threading.Thread(target=serve, args=[socks[0].accept()[0]], daemon=True).start()
"""


@pytest.fixture
def hostile(somebody):
    """Starts sockets of another user that look like jobs' sockets, most of them like its own jobs'."""
    running = []

    def begin(answer, names=(b"resurgo/65534/PID/x",), again=False, backlog=10):
        script = HOSTILE.format(names=list(names), answer=repr(answer), again=again, backlog=backlog)
        one = subprocess.Popen(["python3", "-c", script], **somebody, cwd="/", stdout=subprocess.PIPE)
        running.append(one)
        assert one.stdout.readline() == b"listens\n"
        return one.pid

    yield begin
    for one in running:
        one.kill()
        one.wait()
        one.stdout.close()


def status(seconds="1.0", command="./a"):
    """An answer to `ps`, as JSON text."""
    return (
        f'{{"Status":{{"ranks":2,"running":2,"protocol":"\\u001b[31mauto","seconds":{seconds},"restarts":0,"images":0,'
        f'"seconds_since_image":{seconds},"command":"{command}"}}}}'
    )


EVIL = "\\u001b]0;title\\u0007\\u001b[2J\\r\\nover\\u009b1m\\u202e\\u0000"


def is_clean(text):
    return not re.search("[\\0-\\x09\\x0b-\\x1f\\x7f-\\x9f\u202e]", text)


def test_hostile_sockets_are_no_jobs(jobs, quiet, ask, hostile):
    """No other user's socket is listed under our name. Root sees others' sockets, and they neither hang nor break
    anything."""
    job, stopped = quiet(1), quiet(1)
    own, number = os.geteuid(), job.process.pid
    # Sockets under our user's name, under a job's very name, many for one process, without text, with a line of its
    # own.
    false = hostile(
        status(),
        [
            b"resurgo/%d/PID/x" % own,
            b"resurgo/%d/%d/false" % (own, number),
            b"resurgo/65534/%d/false" % number,
            b"resurgo/%d/1/x\xff\xfe\n" % own,
            b"x\n0: 00000002 00000000 00010000 0001 01 20 @resurgo/0/1/x",
        ],
    )
    hostile(None, [b"resurgo/65534/PID/x", b"resurgo/65534/PID/y"], backlog=0)
    shown = {
        hostile(status(command=EVIL)): r" 2 of 2   \[31mauto .* 1\.0 s   \]0;title  \[2J  over 1m  $",
        hostile(status("-1.0")): r" \? +0 +0 +\? +\./a$",
        hostile(status("1e300")): r" \? +0 +0 +\? +\./a$",
        hostile(status("1e999")): r"\(answers something else",
        hostile("[" * 5000): r"\(answers something else",
        hostile('{"Done":"yes"}'): r"\(answers something else",
        hostile(b"\xff\xff\xff\x03" + bytes(1 << 13), again=True): r"\(answers something else",
        hostile(None): r"\(does not answer",
        hostile(b"\0\0"): r"\(does not answer",
        hostile('{"Progress":"still"}', again=True): r"\(answers something else",
    }
    stopped.process.send_signal(signal.SIGSTOP)
    try:
        other = jobs.command([RESURGO, "ps", "--json"])
        code, text, errors = ask("ps")
        as_json = json.loads(other.wait(5).ok().text)
    finally:
        stopped.process.send_signal(signal.SIGCONT)
    assert code == 0 and errors == "" and is_clean(text), (text, errors)
    table = rows(text)
    assert re.search(r" 1 of 1  auto .*python", table[number]), table
    assert re.search(r" - .* \(does not answer", table[stopped.process.pid]), table
    assert false not in table and 1 not in table and len(re.findall(rf"^ *{number} ", text, re.M)) == 1, text
    for pid, pattern in shown.items():
        assert re.search(pattern, table[pid]), (pattern, table[pid])
    states = {entry["job"]: entry["state"] for entry in as_json}
    assert states[number] == "running" and states[stopped.process.pid] == "silent", as_json
    assert ask("kill", false)[0] == 2
    quiet.end(job)
    quiet.end(stopped)


@pytest.mark.parametrize("verb", ["checkpoint", "kill", "suspend"])
def test_what_a_hostile_job_answers_is_cleaned(ask, hostile, verb):
    done, refused = hostile(f'{{"Done":"{EVIL}"}}'), hostile(f'{{"Refused":"{EVIL}"}}')
    broken = hostile(b"\1\0\0\0\7")
    code, text, errors = ask(verb, done)
    assert (code, errors) == (0, "") and is_clean(text) and "over" in text, text
    for pid, words in {refused: "over", broken: "does not answer"}.items():
        code, text, errors = ask(verb, pid)
        assert (code, text) == (1, "") and is_clean(errors) and words in errors, errors


@pytest.mark.soak
@pytest.mark.parametrize("verb, seconds", [("kill", 10), ("checkpoint", 60), ("suspend", 60)])
def test_a_job_that_does_not_answer_is_not_waited_for(jobs, quiet, verb, seconds):
    """Its launcher is stopped; it carries out the order when it goes on."""
    job = quiet(1)
    job.process.send_signal(signal.SIGSTOP)
    try:
        result = jobs.resurgo(verb, job.process.pid, timeout=seconds + 20)
    finally:
        job.process.send_signal(signal.SIGCONT)
    assert result.code == 1 and "does not answer" in result.errors and "kill -CONT" in result.errors, result.describe()
    if verb == "kill":
        assert job.wait(10).code == 143
    else:
        quiet.end(job)


def test_several_jobs_are_killed(quiet, ask):
    """Whatever becomes of one of them."""
    one, other = quiet(1), quiet(1, protocol="blocking")
    numbers = [one.process.pid, other.process.pid]
    code, text, errors = ask("kill", numbers[0], 1, numbers[1], numbers[0])
    assert code == 2 and "there is no job 1;" in errors, errors
    assert text == "".join(f"job {number}: is being ended\n" for number in numbers)
    assert [one.wait(10).code, other.wait(10).code] == [143, 143]


def test_jobs_as_json(quiet, ask):
    job = quiet(2, protocol="blocking")
    number = job.process.pid
    assert ask("checkpoint", number)[0] == 0
    code, text, errors = ask("ps", "--json")
    [entry] = [entry for entry in json.loads(text) if entry["job"] == number]
    assert (code, errors) == (0, "")
    assert entry | {"seconds": 0, "seconds_since_image": 0, "command": ""} == {
        "job": number,
        "user": os.geteuid(),
        "state": "running",
        "ranks": 2,
        "running": 2,
        "protocol": "blocking",
        "seconds": 0,
        "restarts": 0,
        "images": 1,
        "seconds_since_image": 0,
        "command": "",
    }
    assert 0 < entry["seconds_since_image"] < entry["seconds"] and QUIET in entry["command"], entry
    quiet.end(job)


def test_root_has_power_over_all_jobs(program, somebody, ask):
    """A user's job, as root sees it."""
    job = subprocess.Popen(
        [RESURGO, "run", "-q", "-n", "1", *program("crash"), "99", "kill", "0", "always", "1000000"],
        **somebody,
        env=harness.environment(),
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        end = time.monotonic() + harness.patience(10)
        while job.pid not in rows(ask("ps")[1]):
            if job.poll() is not None:
                pytest.skip(f"another user cannot run a job here: {job.stderr.read()}")
            harness.in_time(time.monotonic() < end, "a job of another user")
            time.sleep(0.05)
        code, _, errors = ask("kill", job.pid)
        assert code == 0, (errors, job.poll(), job.stderr.read() if job.poll() is not None else "")
        assert job.wait(harness.patience(10)) == 143 and b"ended by SIGTERM" in job.stderr.read()
    finally:
        if job.poll() is None:
            job.terminate()
            job.wait(harness.patience(10))


@pytest.mark.parametrize(
    "options, words",
    [
        ("--checkpoint-every now", "not a duration"),
        ("--checkpoint-every 0", "must be at least 10ms"),
        ("--checkpoint-every -5s", "not a duration"),
        ("--checkpoint-every 1ms", "at least 10ms"),
        ("--checkpoint-every", "needs a value"),
        ("--checkpoint-evry 1s", "did you mean --checkpoint-every?"),
        ("--checkpoint-every 1s --protocol none", "--protocol none uses no images"),
        ("--protocol blocking --tolerate node", "blocking does not tolerate"),
        ("--protocol chandy-lamport --tolerate node", "chandy-lamport does not tolerate"),
        ("--protocol blokcing", "did you mean blocking?"),
        ("--protocol coordinated", "did you mean blocking?"),
    ],
)
def test_wrong_option_values(jobs, program, options, words):
    words_after = [] if options.endswith("every") else ["-n", "1", *program("hello")]
    result = jobs.resurgo("run", *options.split(), *words_after)
    assert result.code == 2 and words in result.errors and result.text == "", result.describe()


def test_the_period_from_the_environment(jobs, program):
    env = harness.environment(RESURGO_CHECKPOINT_EVERY="20ms", RESURGO_PROTOCOL="blocking")
    job = jobs.start(2, *program("crash"), "99", "kill", "0", "always", "100000000", env=env)
    job.reach_event("wave_complete")
    job.reach_another("wave_complete")
    job.process.terminate()
    job.wait(10)
