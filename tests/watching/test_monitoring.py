# SPDX-License-Identifier: Apache-2.0
"""Metrics of a running job, in a file and over HTTP, and a command that is run for news."""

import json
import re
import signal
import socket
import time
import urllib.request

import pytest

import harness
from harness import in_time

# Each rank says that it is ready, then waits until the file exists.
READY = """
import os, sys, time
from mpi4py import MPI
world = MPI.COMM_WORLD
for _ in range(10):
    world.allreduce(1)
print("ready", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
world.Barrier()
"""
FAMILY = re.compile(r"# (TYPE|UNIT|HELP) (resurgo_\w+) (.+)")
SAMPLE = re.compile(r'(resurgo_\w+?)(?:\{((?:\w+="(?:[^"\\]|\\.)*",?)*)\})? (-?[\d.]+)')


def read(text):
    """The samples of OpenMetrics: {(name, labels): value}. It must be well-formed, with every family in one piece."""
    *lines, end = text.splitlines()
    assert end == "# EOF" and text.endswith("\n")
    samples, kinds, family = {}, {}, None
    for line in lines:
        if told := FAMILY.fullmatch(line):
            what, name, value = told.groups()
            if what == "TYPE":
                assert name not in kinds, f"{name} comes twice"
                kinds[name], family = value, name
            assert name == family, line
            assert what != "UNIT" or name.endswith("_" + value), line
            continue
        name, labels, value = SAMPLE.fullmatch(line).groups()
        ends = {"counter": "_total", "info": "_info", "gauge": ""}
        assert name == family + ends[kinds[family]], line
        labels = tuple(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels or ""))
        assert (name, labels) not in samples, line
        samples[name, labels] = float(value)
    return samples


def total(samples, name):
    return sum(value for (of, _), value in samples.items() if of == name)


@pytest.fixture
def ready(jobs):
    return harness.held(jobs, READY, size=2)


def get(address, path="/metrics"):
    with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
        return answer.read().decode()


def test_metrics_over_http(ready, jobs):
    job = ready(3, options=["--metrics", "127.0.0.1:0"])
    [address] = re.findall(r"metrics are at http://(127\.0\.0\.1:\d+)/metrics", job.err.read_text())
    samples = read(get(address))
    assert samples["resurgo_ranks", (("state", "computing"),)] == 3, samples
    assert total(samples, "resurgo_failures_total") == 0 and ("resurgo_exit_code", ()) not in samples
    state = json.loads(jobs.resurgo("ps", "--json", job.process.pid).ok().text)
    assert total(samples, "resurgo_messages_total") == state["messages"] > 0
    assert total(samples, "resurgo_sent_bytes_total") == state["bytes"] > 0
    job.kill([1])
    job.reach_event("caught_up", rank=1)
    samples = read(get(address, "/metrics?x=y"))
    assert samples["resurgo_failures_total", ()] == samples["resurgo_restarts_total", ()] == 1
    assert samples["resurgo_life", (("rank", "1"),)] == 2 == samples["resurgo_life", (("rank", "0"),)] + 1
    with pytest.raises(urllib.error.HTTPError, match="404"):
        get(address, "/")
    with pytest.raises(urllib.error.HTTPError, match="405"):
        urllib.request.urlopen(f"http://{address}/metrics", data=b"x", timeout=10)
    ready.end(job)


def test_bad_readers_do_not_keep_others_waiting(ready):
    job = ready(1, options=["--metrics", "127.0.0.1:0"])
    [port] = re.findall(r"http://127\.0\.0\.1:(\d+)/", job.err.read_text())
    port = int(port)
    readers = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
    readers[1].sendall(b"GET /" + b"x" * 20000)
    readers[2].close()
    begun = time.monotonic()
    assert read(get(f"127.0.0.1:{port}"))
    in_time(time.monotonic() - begun < 8, "an answer beside readers that send nothing")
    readers[0].close(), readers[1].close()
    for request in (b"\r\n\r\n", b"\xff\xfe\r\n\r\n", b"GET\r\n\r\n", b"GET /metrics\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", port), timeout=5) as reader:
            reader.sendall(request)
            assert reader.recv(100).startswith(b"HTTP/1.1 ")
    ready.end(job)


def test_a_file_of_metrics(ready, jobs):
    file = jobs.directory / "job.prom"
    file.write_text("of a former job\n")
    job = ready(2, options=["--metrics-file", file])
    job.reach(lambda: ("resurgo_run_seconds", ()) in read(file.read_text()), what="metrics")
    job.kill([0])
    job.reach_event("caught_up", rank=0)
    result = ready.end(job)
    samples, [ended] = read(file.read_text()), result.of("job_ended")
    assert samples["resurgo_exit_code", ()] == 0
    assert samples["resurgo_restarts_total", ()] == ended["restarts"] == 1
    assert total(samples, "resurgo_messages_total") == ended["messages"] > 0
    assert samples["resurgo_ranks", (("state", "finished"),)] == 2, samples
    assert [path.name for path in jobs.directory.glob("job.prom*")] == ["job.prom"]


def test_what_cannot_be_written_is_said_before_the_job(jobs, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = "127.0.0.1:%d" % taken.getsockname()[1]
        result = jobs.run(1, harness.PROGRAMS / "hello", options=["--metrics", address])
    assert result.code == 1 and not result.text, result.describe()
    assert f"cannot listen at {address} for --metrics: " in result.errors and len(result.errors.splitlines()) == 1
    result = jobs.run(1, harness.PROGRAMS / "hello", options=["--metrics-file", tmp_path / "none" / "file"])
    assert result.code == 1 and not result.text, result.describe()
    assert "for --metrics-file: No such file" in result.errors and len(result.errors.splitlines()) == 1
    result = jobs.run(1, harness.PROGRAMS / "hello", options=["--metrics", "9000"])
    assert result.code == 2 and "is not an address and a port" in result.errors, result.describe()


def news(directory):
    """What the command has been told: for each piece of news, its variables and its event."""
    told = []
    for line in (directory / "news").read_text().splitlines():
        variables, _, event = line.partition(" {")
        told.append((variables.split("|"), json.loads("{" + event)))
    return told


TELL = 'echo "$NOTIFY_EVENT|$NOTIFY_JOB|$NOTIFY_RANK|$NOTIFY_EXIT_CODE $(cat)" >> news'


def test_a_command_for_news(ready, jobs):
    job = ready(2, options=["--notify", TELL], cwd=jobs.directory)
    job.kill([1])
    job.reach_event("caught_up", rank=1)
    job.reach(lambda: len(news(jobs.directory)) == 2, what="the news")
    result = ready.end(job)
    told, number = news(jobs.directory), str(job.process.pid)
    assert told[-1][0] == ["end", number, "", "0"] and told[-1][1]["event"] == "job_ended"
    assert told[-1][1] == result.of("job_ended")[0]
    expected = [["failure", number, "1", ""], ["recovery", number, "1", ""]]
    assert [variables for variables, _ in told[:-1]] == expected, told
    assert told[0][1]["event"] == "failed" and "SIGKILL" in told[0][1]["cause"]


@pytest.mark.parametrize(
    "command, why",
    [("exit 3", "failed (exit status: 3)"), ("kill -9 $$", "failed (signal: 9"), ("/nowhere/at/all", "failed (exit status: 127)")],
)
def test_a_failing_command_is_one_warning(ready, command, why):
    job = ready(2, options=["--notify", command])
    for _ in range(2):
        job.strike([1])
        job.reach_another("caught_up", rank=1)
    job.reach(lambda: b"--notify" in job.err.read_bytes(), what="the warning")
    result = ready.end(job)
    warnings = [line for line in result.errors.splitlines() if "--notify" in line]
    assert len(warnings) == 1 and why in warnings[0], result.describe()


def test_a_command_that_takes_long_does_not_hold_the_job_up(ready, jobs):
    """It is ended, with what it has in the background. The news of the end comes all the same."""
    command = f'[ $NOTIFY_EVENT = end ] || sleep 100 & [ $NOTIFY_EVENT = end ] || sleep 100; {TELL}'
    job = ready(2, options=["--notify", command], cwd=jobs.directory)
    job.kill([1])
    job.reach_event("caught_up", rank=1)
    result = ready.end(job)
    [failed], [ended] = result.of("failed"), result.of("job_ended")
    assert ended["time"] < failed["time"] + 10 and "was ended after 10 s" in result.errors, result.describe()
    assert [variables[0] for variables, _ in news(jobs.directory)] == ["end"]


def test_the_end_of_a_lost_launcher_is_told(ready, jobs):
    job = ready(1, options=["--notify", TELL], cwd=jobs.directory)
    job.process.send_signal(signal.SIGKILL)
    job.process.wait()
    end = time.monotonic() + harness.patience(20)
    while not (jobs.directory / "news").exists() or not news(jobs.directory):
        assert time.monotonic() < end, "nothing is told"
        time.sleep(0.02)
    [(variables, event)] = news(jobs.directory)
    assert variables[0] == "end" and event["event"] == "launcher_lost"
