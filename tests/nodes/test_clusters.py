# SPDX-License-Identifier: Apache-2.0
"""Jobs on nodes with networks of their own: machines are switched off, and links are cut. As root only."""

import os
import re
import signal
import subprocess
import time

import pytest

import cluster
import harness
import sshd
from harness import in_time, slow
from networks import ANSWER, HEAT, Listening
from settings import TOLERATE_NODE

pytestmark = pytest.mark.skipif(not cluster.is_possible(), reason="network namespaces cannot be made here (as root, with ip and tc)")

LEASE = 3.0


def begin(jobs, nodes, program, protocol, launcher=None, lease=LEASE):
    """A job of four ranks on three nodes; returns when all ranks compute."""
    launcher = launcher or ["-launcher", "ssh", "-launcher-exec", nodes.bin / "ssh"]
    options = ["-hosts", nodes.hosts(2), *launcher, "--lease", f"{lease:g}s"]
    job = jobs.start(4, *program(HEAT[0]), *HEAT[1:], options=options, protocol=protocol)
    job.says(b"step 500 ")
    return job


def finished(job, nodes, left=None):
    """Checks that the answer is right, and that nothing is left on any node."""
    result = job.wait(60).ok()
    assert ANSWER in result.text, result.describe()
    left = left or nodes.pids
    for node in nodes.nodes:
        end = time.monotonic() + LEASE + 3
        while left(node) and time.monotonic() < end:
            time.sleep(0.05)
        assert not left(node), (node, [harness.command_of(pid) for pid in left(node)])
    return result


@pytest.mark.parametrize("protocol", ["blocking", "auto"])
def test_a_machine_is_switched_off(jobs, nodes, program, protocol):
    job = begin(jobs, nodes, program, protocol)
    nodes.kill(2)
    assert nodes.address(2) in finished(job, nodes).errors


@pytest.mark.gate("auto")
@pytest.mark.parametrize("protocol", ["blocking", "auto"])
def test_a_cable_is_pulled_out(jobs, nodes, program, protocol):
    """The ranks behind the cable stop although nobody can reach them, and others take their places."""
    job = begin(jobs, nodes, program, protocol)
    nodes.cut(2)
    result = finished(job, nodes)
    assert f"node {nodes.address(2)} cannot be reached" in result.errors, result.describe()
    assert {event["cause"] for event in result.of("node_lost")} == {"it cannot be reached"}, result.describe()


@pytest.mark.gate("auto-*")
@pytest.mark.parametrize("protocol, part", [("none", 1 / 6), ("pessimistic", 1 / 6), ("auto", 1 / 6), slow("blocking", 0.85)])
def test_a_link_that_comes_back_costs_time_only(jobs, nodes, program, protocol, part):
    """Also shortly before the lease is over: TCP sends again 0.1 s after it, and ranks that have stopped go on."""
    job = begin(jobs, nodes, program, protocol)
    for node in (1, 2):
        nodes.cut(node)
        time.sleep(LEASE * part)
        nodes.heal(node)
    result = finished(job, nodes)
    assert not result.of("node_lost") and result.restarts == 0, result.describe()


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["blocking", "auto"])
def test_signs_of_life_come_before_tcp_sends_again(jobs, nodes, program, protocol):
    """Nothing arrives for 8 s of a lease of 9. The pauses of TCP double: it would send again after 12.6 s, and nodes are lost after 12."""
    job = begin(jobs, nodes, program, protocol, lease=9)
    for node in (1, 2):
        nodes.isolate(node)
        time.sleep(8)
        nodes.heal(node)
        time.sleep(1)
    result = finished(job, nodes)
    assert not result.of("node_lost") and result.restarts == 0, result.describe()


def test_a_machine_reached_by_the_real_ssh_is_switched_off(jobs, nodes, program, tmp_path):
    servers = sshd.on(nodes, tmp_path)
    job = begin(jobs, nodes, program, "blocking", servers.options)
    nodes.kill(2)
    assert nodes.address(2) in finished(job, nodes, servers.others).errors


def test_what_ssh_complains_of_is_told(jobs, nodes, program, tmp_path):
    """The user gets ssh's own words, and the node."""
    servers = sshd.on(nodes, tmp_path)

    def refused():
        result = jobs.resurgo("run", "-hosts", nodes.hosts(1), *servers.options, *program("hello"), timeout=30)
        assert (result.code, result.text, len(result.errors.splitlines())) == (1, "", 1), result.describe()
        return result.errors

    second = f"node {nodes.address(2)}: ssh cannot reach it: "
    servers.trust(2)
    assert re.search(f"{second}.*Host key verification failed", refused())
    servers.trust()
    servers.authorized_keys.write_text("")
    assert re.search(r"ssh cannot reach it: .*Permission denied \(publickey", refused())
    servers.trust()
    servers.stop(2)
    assert re.search(f"{second}ssh: connect to host {nodes.address(2)} port 22: Connection refused", refused())
    servers.start(2, f"mount -t tmpfs none {harness.RESURGO.parent}")
    error = refused()
    assert f"node {nodes.address(2)}: there is no resurgo where it is here: " in error, error
    assert re.search(f"{harness.RESURGO}:? .*not found|{harness.RESURGO}: No such file", error), error


def test_nothing_outlives_an_agent(jobs, nodes, program):
    """Not even a rank's children, where no launcher gets the orphans."""
    options = ["-hosts", nodes.hosts(2), "-launcher", "ssh", "-launcher-exec", nodes.bin / "ssh"]
    wrapped = ["sh", "-c", '"$0" "$@"; exit $?', *program(HEAT[0]), *HEAT[1:]]
    job = jobs.start(4, *wrapped, options=options, protocol="auto")
    job.says(b"step 500 ")
    (agent,) = (pid for pid in nodes.pids(2) if harness.command_of(pid).startswith("resurgo agent invited"))
    os.kill(agent, signal.SIGKILL)
    struck = time.monotonic()
    job.reach(lambda: not nodes.pids(2), what="the end of all processes there")
    seconds = time.monotonic() - struck
    finished(job, nodes)
    in_time(seconds < 1, f"{seconds} s")


SECRET = b"attack at dawn, "
SPEAK = """
import sys
from mpi4py import MPI
world = MPI.COMM_WORLD
said = sys.stdin.read() if world.rank == 0 else None
for _ in range(20):
    said = world.bcast(said)
    world.send(said, (world.rank + 1) % world.size)
    said = world.recv()
print(said)
"""


@pytest.mark.parametrize(
    "protocol, options",
    [
        ("blocking", []),
        ("blocking", ["--encrypt"]),
        ("channel-memory", ["--encrypt"]),
        ("pessimistic", ["--encrypt", *TOLERATE_NODE]),
    ],
)
def test_what_is_said_can_be_read_unless_it_is_encrypted(jobs, nodes, protocol, options):
    """Messages, input and output, and images, seen from the node's cable."""
    hosts = ["-hosts", nodes.hosts(1), "-launcher", "ssh", "-launcher-exec", nodes.bin / "ssh"]
    command = [harness.RESURGO, "run", "-q", *hosts, *options, "--protocol", protocol, "--checkpoint-every", "200ms"]
    with Listening([nodes.link(node) for node in nodes.nodes]) as listening:
        job = jobs.command([*command, harness.PYTHON, "-c", SPEAK], stdin=subprocess.PIPE)
        job.process.stdin.write(SECRET * 100)
        job.process.stdin.close()
        result = job.wait(60).ok()
    assert result.text.count(SECRET.decode() * 100) == 3, result.describe()
    assert len(listening.heard) > 100_000
    assert (SECRET in listening.heard) != bool(options)
