# SPDX-License-Identifier: Apache-2.0
"""Channel memories on nodes of their own (--channel-memory-hosts): ranks come and go, and these stay."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import time

import pytest

import cluster
import harness
from harness import came_about
from on_nodes import agents
from settings import MANY, every

NODES = ["--nodes", "2", "--lease", "4s", "--channel-memory-hosts"]
HEAT = ("heat", 400, 400, 1500)


@pytest.fixture
def expected(jobs, program):
    return jobs.calm(4, *program(HEAT[0]), *HEAT[1:]).text


def start(jobs, program, memories, *options):
    command = [*program(HEAT[0]), *HEAT[1:]]
    job = jobs.start(4, *command, options=[*NODES, memories, *MANY, *options], protocol="channel-memory")
    job.says(b"step 500 ")
    return job


def memories_of(job):
    """The channel memories, each with its parent."""
    def parent(pid):
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])

    found = [pid for pid in job.processes() if harness.command_of(pid).startswith("resurgo channel-memory")]
    return {pid: parent(pid) for pid in found}


def test_ranks_and_their_nodes_are_lost_and_channel_memories_stay(jobs, program, expected, rng):
    job = start(jobs, program, "localhost:2", *every("200ms"))
    found = memories_of(job)
    assert len(found) == 2 and set(found.values()) == {agents(job)[-1]}, found
    time.sleep(rng.uniform(0, 0.3))
    job.kill([rng.randrange(4)])
    with contextlib.suppress(ProcessLookupError):
        os.kill(rng.choice(agents(job)[:2]), rng.choice([signal.SIGKILL, signal.SIGSTOP]))
    result = job.wait(60).ok()
    assert result.text == expected, result.describe()
    came_about(result.of("node_lost"), result)
    # The node of channel memories has no rank, and keeps the images of all.
    assert {event["node"] for event in result.of("started")} == {"0", "1"}
    assert {event["pid"] for event in result.of("channel_memory_started")} == set(found)


def test_what_is_lost_with_the_node_of_a_channel_memory_is_said(jobs, program):
    job = start(jobs, program, "localhost")
    os.kill(agents(job)[-1], signal.SIGKILL)
    result = job.wait(30)
    expected = r"agent of node localhost \(pid \d+\) has died .*, and channel memory 0 with it; its messages are nowhere else"
    assert result.code == 1 and re.search(expected, result.errors), result.describe()
    assert len(result.of("channel_memory_lost")) == 1


def test_a_channel_memory_that_ends_alone_ends_the_job(jobs, program):
    job = start(jobs, program, "localhost:2")
    (pid, _), *_ = memories_of(job).items()
    os.kill(pid, signal.SIGKILL)
    result = job.wait(30)
    assert result.code == 1 and re.search(r"channel memory \d was lost \(killed by SIGKILL\)", result.errors), result.describe()


def test_ranks_may_speak_until_they_have_ended(jobs, program):
    """A signal that ends the job leaves them time for it."""
    options = [*NODES, "localhost", "--grace", "20s"]
    job = jobs.start(2, *program("signals"), jobs.directory / "over", options=options, protocol="channel-memory")
    job.says(b"ready")
    job.process.send_signal(signal.SIGINT)
    result = job.wait(30).ok()
    assert result.text.endswith("over\n") and "channel memory" not in result.errors, result.describe()


def test_random_faults_spare_nodes_of_channel_memories(jobs, program, expected):
    fault = ["--fault", "node=random,mean=300ms,seed=2"]
    result = start(jobs, program, "localhost", *fault).wait(60).ok()
    assert result.text == expected and {event["node"] for event in result.of("node_lost")} <= {0, 1}


def test_a_host_that_is_missing_is_named(jobs, program):
    (ssh := jobs.directory / "ssh").write_text("#!/bin/sh\necho no such host >&2; exit 255\n")
    ssh.chmod(0o755)
    options = ["--channel-memory-hosts", "m.invalid", "-launcher-exec", ssh, "--allow-missing", "1"]
    result = jobs.run(2, *program("hello"), options=options, protocol="channel-memory")
    assert result.code == 1 and "node m.invalid: ssh cannot reach it: no such host" in result.errors


FIREWALL = """
table inet resurgo_test { chain input {
    type filter hook input priority 0; policy accept;
    iif != "lo" tcp flags & (syn | ack) == syn drop
}
}
"""


@pytest.mark.skipif(not cluster.is_possible(), reason="network namespaces cannot be made here (as root, with ip and tc)")
@pytest.mark.skipif(not shutil.which("nft"), reason="there is no nft (Debian's nftables)")
def test_ranks_behind_a_firewall(jobs, program, expected):
    """Their nodes take no connection. One is switched off, and its ranks go on from images on the channel memory's node."""
    with cluster.Cluster(3) as nodes:
        for node in (1, 2):
            space = ["ip", "netns", "exec", nodes.space(node)]
            subprocess.run([*space, "nft", "-f", "-"], input=FIREWALL, text=True, check=True)
        with pytest.raises(TimeoutError), socket.create_connection((nodes.address(1), 7), 0.3):
            pass
        ranks = ["-hosts", ",".join(f"{nodes.address(node)}:2" for node in (1, 2)), "-launcher-exec", nodes.bin / "ssh"]
        options = [*ranks, "-launcher", "ssh", "--lease", "4s", "--channel-memory-hosts", nodes.address(3), *every("200ms")]
        job = jobs.start(4, *program(HEAT[0]), *HEAT[1:], options=options, protocol="channel-memory")
        elsewhere = lambda: {event["rank"] for event in job.events if event["event"] == "image_replicated"}
        job.reach(lambda: elsewhere() == {0, 1, 2, 3})
        nodes.kill(2)
        result = job.wait(60).ok()
        assert result.text == expected, result.describe()
        again = [event for event in result.of("started") if event["life"] > 1]
        assert len(again) == 2 and all(event["image"] > 0 and event["node"] == nodes.address(1) for event in again)
        assert not any(map(nodes.pids, nodes.nodes))
