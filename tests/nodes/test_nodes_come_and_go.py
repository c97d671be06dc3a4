# SPDX-License-Identifier: Apache-2.0
"""Nodes that come while a job runs, and that leave it: by `resurgo join`, `add-host`, `drain`, `remove-host`, and notices."""

import dataclasses
import http.server
import os
import signal
import subprocess
import threading
import time

import pytest

import harness
from catalogue import BY_NAME, arguments
from chains import interrupt, reach_recorded
from harness import came_about, slow
from on_nodes import Joined, agents, ask, spread
from settings import MANY, TOGETHER, TOLERATE_NODE, every
from survival import LONG, compare, undisturbed


def heat(jobs, program, options, ranks=4, protocol="blocking", steps=9000):
    """A job with many images; and what waits for it, and compares what it gives with an undisturbed one."""
    entry, command = BY_NAME["heat"], program("heat")
    entry = dataclasses.replace(entry, longer=("400", "400", str(steps), "{file}"))
    expected = undisturbed(jobs, command, entry, ranks)
    file = jobs.directory / "result"
    job = jobs.start(ranks, *command, *arguments(entry, True, file), options=options, protocol=protocol)
    return job, lambda patience=90: compare(entry, job.wait(patience), file, expected)


def nodes_of(result):
    """{rank: node} of each rank's last life."""
    return {event["rank"]: event["node"] for event in result.of("started")}


def test_nodes_join_before_and_while_the_job_runs(jobs, program):
    """One that came first is lost; one that has come later takes its ranks."""
    job, result_after = heat(jobs, program, ["-launcher", "join", "--lease", "3s", *every("100ms")])
    with Joined(job) as nodes:
        wrong = nodes.join(token="0123456789abcdef")
        assert wrong.wait(20) == 1 and "another token" in wrong.stderr.read()
        first, second = nodes.join(), nodes.join()
        job.reach_event("wave_complete")
        third = nodes.join()
        job.reach_event("node_came")
        first.kill()
        result = result_after()
        assert len(result.of("node_lost")) == 1, result.describe()
        came_about(result.of("returned"), result)
        assert result.of("node_came")[0]["name"] in nodes_of(result).values(), result.describe()
        assert [process.wait(20) for process in (second, third)] == [0, 0]
        assert "the job needs this node no more" in third.stderr.read()


def test_a_node_that_comes_knows_earlier_images(jobs, chain, program):
    """All nodes see the files. It gets the ranks of a node that is lost before there is another wave."""
    options = ["-launcher", "join", "--lease", "2s", *every("1h")]
    job = chain.start(4, *program("crash"), *LONG, options=options, protocol="blocking")
    with Joined(job) as nodes:
        first, _ = nodes.join(), nodes.join()
        job.reach(lambda: jobs.resurgo("checkpoint", str(job.process.pid), env=chain.env).code == 0)
        job.reach_event("wave_recorded")
        nodes.join()
        job.reach_event("node_came")
        (wave,) = {event["wave"] for event in job.events if event["event"] == "wave_complete"}
        first.kill()
        job.reach_event("returned")
        job.reach(lambda: len(job.lives()) == 4 and all(life > 1 for _, life in job.lives().values()))
        job.process.terminate()
        result = job.wait(20)
    assert result.of("returned")[0]["wave"] == wave, result.describe()
    assert {event["image"] for event in result.of("started") if event["life"] > 1} == {wave}, result.describe()


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["launcher", slow("everything")])
@pytest.mark.parametrize("protocol", ["auto", slow("blocking")])
def test_joined_nodes_outlive_the_launcher(jobs, chain, program, rng, protocol, victim):
    """One is lost before. When the job goes on at the same port with the same token, those that are left join again; if they
    have been lost, others do. What is printed goes on to the byte."""
    long = ("400", "400", "6000")
    calm = jobs.calm(4, *program("heat"), *long)
    port = harness.free_port()
    (secret := jobs.directory / "token").write_text(token := f"{rng.getrandbits(128):032x}")
    secret.chmod(0o600)
    options = ["-launcher", "join", "--join-port", port, "--join-token-file", secret]
    job = chain.start(4, *program("heat"), *long, options=[*options, "--lease", "3s", *every("100ms")], protocol=protocol)
    with Joined(job, token) as nodes:
        first, second = nodes.join(), nodes.join()
        reach_recorded(job, 2)
        third = nodes.join()
        job.reach_event("node_came")
        first.kill()
        job.reach_event("returned")
        # A return to an older wave than the recorded one takes the record away, until the next one.
        job.reach_another("wave_recorded")
        time.sleep(rng.uniform(0, 0.3))
        assert interrupt(job, victim)
        if victim == "everything":
            for process in nodes.all:
                process.kill()
            second, third = nodes.join(), nodes.join()
        chain.resume(options=options)
        result = chain.end()
        assert [process.wait(20) for process in (second, third)] == [0, 0]
    assert min(event["image"] for event in result.of("started")) > 0 and len(set(nodes_of(result).values())) == 2, result.describe()
    assert chain.out == calm.out


def test_nodes_wait_for_others_longer_than_their_lease(jobs, program):
    """One of them ends meanwhile, and has no ranks."""
    job = jobs.start(4, *program("hello"), options=["-launcher", "join", "--lease", "1s"], protocol="blocking")
    with Joined(job) as nodes:
        gone, _ = nodes.join(), nodes.join(1)
        assert all("takes part" in process.stderr.readline() for process in nodes.all)
        told = ask(jobs, "checkpoint", job)
        assert (told.code, "takes no commands now" in told.errors) == (2, True), told.describe()
        time.sleep(1)
        gone.kill()
        time.sleep(1.5)
        nodes.join(3)
        result = job.wait(60).ok()
        assert len(set(nodes_of(result).values())) == 2 and not result.of("node_lost"), result.describe()


def test_a_host_is_added_and_takes_the_ranks_of_a_lost_one(jobs, program, rng):
    job, result_after = heat(jobs, program, ["--nodes", "2", "--lease", "3s", *every("100ms")])
    job.reach_event("wave_complete")
    assert ask(jobs, "add-host", job, "more:2").ok().text.endswith("node more is there\n")
    assert "already" in ask(jobs, "add-host", job, "more").errors
    os.kill(rng.choice(agents(job)[:2]), signal.SIGKILL)
    result = result_after()
    assert "more" in nodes_of(result).values(), result.describe()
    came_about(result.of("returned"), result)


@pytest.mark.parametrize("protocol", ["auto", *map(slow, TOGETHER)])
def test_a_node_is_drained_and_nothing_is_lost(jobs, program, protocol):
    job, result_after = heat(jobs, program, ["--nodes", "3", "--spares", "1", "--lease", "6s"], protocol=protocol)
    job.reach(lambda: b"step" in job.out.read_bytes() and len(job.lives()) == 4)
    assert "has no node x" in ask(jobs, "drain", job, "x").errors
    ask(jobs, "drain", job, "1").ok()
    os.kill(agents(job)[1], signal.SIGKILL)
    ask(jobs, "remove-host", job, "0").ok()
    job.reach(lambda: len(agents(job)) == 1)
    result = result_after()
    waves = [event["wave"] for event in result.of("wave_complete")]
    assert [event["wave"] for event in result.of("returned")] == waves[:2], "nobody goes back further than to this moment"
    assert set(nodes_of(result).values()) == {"2"} and len(result.of("node_left")) == 2, result.describe()


@pytest.mark.gate("True")
@pytest.mark.parametrize("killed", [False, True])
def test_ranks_with_channel_memories_leave_one_after_the_other(jobs, program, killed, rng):
    """Others go on meanwhile and repeat nothing, also when ranks that are about to leave are killed."""
    options = ["--nodes", "3", "--spares", "1", "--lease", "6s"]
    job, result_after = heat(jobs, program, options, protocol="channel-memory", steps=6000)
    job.reach(lambda: b"step" in job.out.read_bytes() and len(job.lives()) == 4)
    here = sorted(event["rank"] for event in job.events if event["event"] == "started" and event["node"] == "1")
    if killed:
        env = harness.environment(TMPDIR=str(jobs.temporary))
        drain = subprocess.Popen([harness.RESURGO, "drain", str(job.process.pid), "1"], env=env)
        for _ in range(3):
            time.sleep(rng.uniform(0, 0.1))
            job.kill(here)
        assert drain.wait(60) == 0
    else:
        ask(jobs, "drain", job, "1").ok()
    moved = lambda: sorted({event["rank"] for event in job.events if event["event"] == "started" and event["life"] > 1})
    job.reach(lambda: moved() == here, what=f"moves of {here}")
    if len(there := agents(job)) < 2:
        came_about(False, job.wait(20), "a second node")
    os.kill(there[1], signal.SIGKILL)
    ask(jobs, "remove-host", job, "0").ok()
    job.reach(lambda: len(agents(job)) == 1)
    result = result_after()
    assert killed or not result.of("failed"), result.describe()
    assert set(nodes_of(result).values()) == {"2"} and len(result.of("node_left")) == 2, result.describe()


LOGS_GO_ALONG = ["--nodes", "3", "--spares", "1", "--lease", "6s", *TOLERATE_NODE]


@pytest.mark.parametrize("protocol", [["pessimistic"], ["causal"], slow(["causal", "--event-loggers", "0"])], ids=" ".join)
@pytest.mark.parametrize("killed, images", [(False, []), (True, every("200ms")), slow(True, []), slow(False, every("200ms"))],
                         ids=["requested", "killed regular", "killed requested", "regular"])
@pytest.mark.gate("killed regular-causal")
def test_a_node_that_takes_logs_along_ends_when_others_have_new_images(jobs, program, killed, images, protocol, rng):
    """Its ranks go on from there, also when they are killed meanwhile, and no other rank begins again."""
    protocol, *loggers = protocol
    job, result_after = heat(jobs, program, [*LOGS_GO_ALONG, *loggers, *images], protocol=protocol, steps=6000)
    job.reach(lambda: b"step" in job.out.read_bytes() and len(job.lives()) == 4)
    time.sleep(rng.uniform(0, 0.5))
    here = sorted(event["rank"] for event in job.events if event["event"] == "started" and event["node"] == "1")
    env = harness.environment(TMPDIR=str(jobs.temporary))
    drain = subprocess.Popen([harness.RESURGO, "drain", str(job.process.pid), "1"], env=env)
    for _ in range(3 * killed):
        time.sleep(rng.uniform(0, 0.1))
        job.kill(here)
    if drain.wait(60) != 0:
        # An image was being written when its rank was killed.
        assert killed
        ask(jobs, "drain", job, "1").ok()
    moved = lambda: [event for event in job.events if event["event"] == "started" and event["node"] == "2"]
    job.reach(lambda: {event["rank"] for event in moved()} == set(here), what=f"moves of {here}")
    assert all(event["image"] > 0 for event in moved())
    job.reach(lambda: len(agents(job)) == 2, what="the end of the node")
    if not killed:
        assert {event["rank"] for event in job.events if event["event"] == "started" and event["life"] > 1} == set(here)
    ask(jobs, "remove-host", job, "0").ok()
    job.reach(lambda: len(agents(job)) == 1)
    result = result_after()
    assert set(nodes_of(result).values()) == {"2"} and len(result.of("node_left")) == 2, result.describe()
    assert not result.of("node_lost") and (killed or not result.of("failed")), result.describe()


@pytest.mark.slow
def test_notice_where_a_node_takes_logs_along(jobs, program):
    options = [*LOGS_GO_ALONG, "--preempt-signal", "USR2"]
    job, result_after = heat(jobs, program, options, protocol="pessimistic", steps=6000)
    job.reach(lambda: b"step" in job.out.read_bytes() and len(job.lives()) == 4)
    os.kill(agents(job)[1], signal.SIGUSR2)
    job.reach_event("node_left", timeout=30)
    result = result_after()
    assert "1" not in nodes_of(result).values() and not result.of("node_lost"), result.describe()


@pytest.mark.slow
def test_groups_with_waves_of_their_own_do_not_leave(jobs, program):
    options = ["--nodes", "3", "-ppn", "2", "--spares", "1", *TOLERATE_NODE, *every("200ms")]
    job, result_after = heat(jobs, program, options, protocol="hierarchical")
    job.reach(lambda: len(job.lives()) == 4)
    refused = ask(jobs, "drain", job, "1")
    assert refused.code != 0 and "groups with waves of their own do not leave a node that is up" in refused.errors, refused.describe()
    assert not result_after().of("node_left")


@pytest.mark.slow
@pytest.mark.parametrize("told", ["drain", slow("notice")])
def test_what_does_not_leave_is_not_harmed_by_that(jobs, program, rng, told):
    """Groups refuse to leave at any moment, also while one returns or its node is lost."""
    options = ["--nodes", "4", "-ppn", "2", "--spares", "2", "--lease", "4s", *TOLERATE_NODE, *every("100ms")]
    job, result_after = heat(jobs, program, [*options, *MANY, "--preempt-signal", "USR2"], protocol="hierarchical", steps=6000)
    job.reach(lambda: len(job.lives()) == 4)
    spread(job, 4)
    left = agents(job)
    for blow in rng.sample(["rank", "node", "rank", "nothing"], 4):
        if blow == "rank":
            job.kill([rng.randrange(4)])
        elif blow == "node":
            spread(job, 4)
            os.kill(left.pop(1), signal.SIGKILL)
        time.sleep(rng.uniform(0, 0.1))
        if told == "notice":
            os.kill(left[0], signal.SIGUSR2)
            continue
        refused = ask(jobs, "drain", job, "0")
        assert refused.code == 1 and "do not leave a node that is up" in refused.errors or job.over(), refused.describe()
        time.sleep(rng.uniform(0, 0.3))
    result = result_after()
    assert not result.of("node_left") and len(result.of("node_lost")) <= 1, result.describe()
    assert bool(result.of("node_stays")) == (told == "notice"), result.describe()


def test_the_last_node_is_not_drained(jobs, program):
    job, result_after = heat(jobs, program, ["--nodes", "2", "-ppn", "2"])
    job.reach(lambda: len(job.lives()) == 4)
    ask(jobs, "remove-host", job, "0").ok()
    refused = ask(jobs, "drain", job, "1")
    assert refused.code == 1 and "no other node" in refused.errors
    result_after()


@pytest.mark.parametrize("by", ["signal", slow("file")])
def test_a_node_that_is_about_to_be_taken_away_is_left_in_time(jobs, program, by, tmp_path):
    """The notice comes, its ranks leave, and then everything on it is killed."""
    notice = ["--preempt-signal", "USR2"] if by == "signal" else ["--preempt-file", str(tmp_path / "notice")]
    job, result_after = heat(jobs, program, ["--nodes", "3", "--spares", "1", "--lease", "6s", *notice])
    job.opens_mpi()
    doomed = agents(job)[1]
    if by == "file":
        # All nodes are this machine: the last one that says so has no other to go to, and keeps its ranks.
        (tmp_path / "notice").write_text("")
        assert job.reach_event("node_left") and job.reach_event("node_stays")
        result_after()
        return
    os.kill(doomed, signal.SIGUSR2)
    job.reach_event("node_left", timeout=30)
    os.kill(doomed, signal.SIGKILL)
    job.reach_event("node_lost")
    result = result_after()
    (wave,) = [event["wave"] for event in result.of("returned")]
    assert wave == result.of("wave_complete")[0]["wave"] and len(result.of("node_lost")) == 1, result.describe()
    assert "1" not in nodes_of(result).values(), result.describe()


@pytest.fixture
def others(tmp_path):
    """What makes hosts with names of their own other machines."""
    (script := tmp_path / "ssh").write_text(f'#!/bin/sh\n{harness.APART}shift 6\nexec sh -c "$*"\n')
    script.chmod(0o755)
    return ["-launcher-exec", script]


@pytest.mark.gate("blocking*")
@pytest.mark.parametrize("number", [signal.SIGTERM, slow(signal.SIGUSR2)])
@pytest.mark.parametrize("protocol", ["blocking", slow("auto"), "channel-memory"])
def test_ranks_leave_the_machine_of_resurgo_run(jobs, program, others, protocol, number):
    """It gets the signal, and stays; a second one has its usual meaning."""
    hosts = ["-hosts", "localhost:2,a.invalid:2,b.invalid:2", "--spares", "1", "--lease", "6s", *others]
    options = [*hosts, "--preempt-signal", number.name[3:]]
    job, result_after = heat(jobs, program, options, protocol=protocol)
    job.reach(lambda: len(job.lives()) == 4 and b"step" in job.out.read_bytes())
    job.process.send_signal(number)
    job.reach_event("node_left", timeout=30)
    (leaves,) = [event for event in job.events if event["event"] == "node_leaves"]
    assert leaves["name"] == "localhost" and f"resurgo run has got {number.name}" in leaves["reason"], leaves
    result = result_after()
    assert set(nodes_of(result).values()) == {"a.invalid", "b.invalid"}, result.describe()
    assert not result.of("node_lost") and not result.of("failed"), result.describe()


@pytest.mark.parametrize("hosts, left", [("localhost:2,a.invalid:2", True), ("a.invalid:2,b.invalid:2", False)])
def test_a_notice_where_no_rank_is_ends_the_job(jobs, program, others, hosts, left):
    """As SIGTERM does without the option, at once or after the ranks have left."""
    options = ["-hosts", hosts, "--lease", "6s", *others, "--preempt-signal", "TERM"]
    job = jobs.start(4, *program("heat"), "400", "400", "100000", options=options, protocol="blocking")
    job.reach(lambda: len(job.lives()) == 4 and b"step" in job.out.read_bytes())
    job.process.terminate()
    if left:
        job.reach_event("node_left", timeout=30)
        job.process.terminate()
    result = job.wait(30)
    assert result.code == 128 + signal.SIGTERM and "ended by SIGTERM" in result.errors, result.describe()
    assert len(result.of("node_left")) == left


class Metadata(http.server.BaseHTTPRequestHandler):
    """Answers as the services of clouds do; the first who asks after the notice is the one that it is for."""

    def log_message(self, *_):
        pass

    def answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def do_PUT(self):
        is_right = self.path == "/latest/api/token" and "X-aws-ec2-metadata-token-ttl-seconds" in self.headers
        self.answer(200 if is_right else 400, "the-token" if is_right else "")

    def do_GET(self):
        if "instance-action" in self.path and self.headers.get("X-aws-ec2-metadata-token") != "the-token":
            return self.answer(401, "")
        if "computeMetadata" in self.path and self.headers.get("Metadata-Flavor") != "Google":
            return self.answer(403, "")
        if "scheduledevents" in self.path and self.headers.get("Metadata") != "true":
            return self.answer(400, "")
        before, after = next(answers for page, answers in PAGES.items() if page in self.path)
        is_notice = self.server.notice.is_set() and not self.server.told
        self.server.told |= is_notice
        return self.answer(*(after if is_notice else before))


PAGES = {
    "spot/instance-action": ((404, ""), (200, '{"action": "terminate", "time": "2026-11-26T08:22:00Z"}')),
    "instance/preempted": ((200, "FALSE"), (200, "TRUE")),
    "scheduledevents": ((200, '{"DocumentIncarnation":1,"Events":[]}'), (200, '{"Events":[{"EventType":"Preempt"}]}')),
}


OTHER_PAGES = ["computeMetadata/v1/instance/preempted", "metadata/scheduledevents?api-version=2020-07-01"]


@pytest.mark.parametrize("page", ["latest/meta-data/spot/instance-action", *map(slow, OTHER_PAGES)])
def test_a_page_says_that_a_node_is_taken_away(jobs, program, page):
    command = [*program("heat"), "400", "400", "6000"]
    calm = jobs.calm(4, *command)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Metadata) as server:
        server.notice, server.told = threading.Event(), False
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/{page}"
        options = ["--nodes", "2", "--lease", "6s", "--preempt-url", url]
        job = jobs.start(4, *command, options=options, protocol="auto")
        job.reach(lambda: len(job.lives()) == 4)
        server.notice.set()
        job.reach_event("node_left")
        result = job.wait(90).ok()
        server.shutdown()
    (left,) = result.of("node_left")
    assert server.told and left["name"] not in nodes_of(result).values(), result.describe()
    assert result.out == calm.out


@pytest.mark.slow
def test_many_nodes_are_started(jobs, program):
    """More than are started at a time."""
    # 64 agents and as many ranks share the cores of this machine: they may be slower than the usual lease.
    jobs.run(64, *program("hello"), options=["--nodes", "64", "--lease", "30s"], protocol="none", timeout=120).ok()


@pytest.mark.slow
def test_many_ranks_are_started_on_each_node(jobs, program):
    """That takes longer than the lease, which is kept meanwhile."""
    jobs.run(128, *program("hello"), options=["--nodes", "4"], protocol="none", timeout=120).ok()
