# SPDX-License-Identifier: Apache-2.0
"""Jobs on many hosts: helpers on some of them start the agents of others, and no node depends on its helper."""

import contextlib
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

import harness
import sshd
from catalogue import BY_NAME, arguments
from harness import in_time, slow
from settings import every
from survival import compare, undisturbed

# Few ranks, and a node for each; the other nodes are spares, so that this machine can have many.
RANKS = 4
# Addresses that no machine has: they need no look-up, which takes its time here.
HOST = "198.51.100."
# Agents share the cores of this machine.
LEASE = ["--lease", "20s"]


def hosts(count):
    return ["-hosts", ",".join(f"{HOST}{number}:1" for number in range(count)), "--spares", str(count - RANKS), *LEASE]


@pytest.fixture
def ssh(tmp_path):
    """Makes a program that stands in for ssh: a shell line, with the host in $host, the command in $*, and in $by whether
    resurgo run or a helper calls. The calls are in a file."""

    def make(line="true"):
        script = tmp_path / "ssh"
        script.write_text(
            f'#!/bin/sh\n{harness.APART}[ "$1 $2 $3 $4 $5" = "-T -x -o BatchMode=yes --" ] || exit 99\nshift 5; host=$1; shift\n'
            f'case "$(tr "\\0" " " < /proc/$PPID/cmdline)" in *"agent helper"*) by=helper;; *) by=run;; esac\n'
            f'echo "$by $host $*" >> {tmp_path}/calls\n{line}\nexec sh -c "$*"\n'
        )
        script.chmod(0o755)
        return ["-launcher-exec", script]

    return make


def calls(tmp_path):
    """(caller, host, what it starts) of each call."""
    lines = (tmp_path / "calls").read_text().splitlines()
    return [(line.split()[0], line.split()[1], re.search(r"agent (helper|kept)", line)[1]) for line in lines]


@pytest.mark.gate("32-0")
@pytest.mark.parametrize("count, helpers", [(32, 0), (34, 17), slow(128, 32)])
def test_most_agents_are_started_by_helpers(jobs, program, ssh, tmp_path, count, helpers):
    options = [*hosts(count), *ssh()]
    assert "4 ranks, sum 6" in jobs.run(RANKS, *program("hello"), options=options, protocol="none", timeout=120).ok().text
    made = calls(tmp_path)
    of_run = [what for by, _, what in made if by == "run"]
    assert of_run == (["helper"] * helpers if helpers else ["kept"] * count), made
    assert len(made) == count == len({host for _, host, _ in made}), made


def test_hosts_that_only_this_machine_reaches_are_reached_by_it(jobs, program, ssh, tmp_path):
    script = ssh('[ $by = run ] || { echo "no way from here" >&2; exit 255; }')
    result = jobs.run(RANKS, *program("hello"), options=[*hosts(34), *script], protocol="none").ok()
    assert "no way" not in result.errors, result.describe()
    assert sum(by == "run" for by, *_ in calls(tmp_path)) == 34


@pytest.mark.parametrize("host", [0, 1])
def test_a_host_that_nobody_reaches_is_named(jobs, ssh, host):
    """One where a helper would be, and one below a helper: the words are those of ssh on this machine."""
    script = ssh(f'[ $host != {HOST}{host} ] || {{ echo "ssh: connect to $host by $by: No route" >&2; exit 255; }}')
    result = jobs.resurgo("run", "-n", RANKS, *hosts(34), *script, harness.PROGRAMS / "hello")
    error = f"resurgo: node {HOST}{host}: ssh cannot reach it: ssh: connect to {HOST}{host} by run: No route"
    assert (result.code, result.text) == (1, "") and result.errors.startswith(error), result.describe()
    assert len(result.errors.splitlines()) == 1, result.describe()


@pytest.mark.slow
def test_a_job_begins_without_a_helper_and_a_node_below_one(jobs, program, ssh):
    script = ssh(f"case $host in {HOST}0|{HOST}3) echo gone >&2; exit 255;; esac")
    options = [*hosts(34), *script, "--allow-missing", "2"]
    result = jobs.run(RANKS, *program("messages"), options=options).ok()
    assert {event["name"] for event in result.of("node_missing")} == {f"{HOST}0", f"{HOST}3"}, result.describe()


def test_a_node_below_a_helper_that_differs_is_refused(jobs, ssh, tmp_path):
    copy = tmp_path / "resurgo"
    copy.write_bytes(harness.RESURGO.read_bytes() + b"\0")
    copy.chmod(0o755)
    script = ssh(f'[ $host != {HOST}1 ] || exec {copy} agent kept 1')
    result = jobs.resurgo("run", "-n", RANKS, *hosts(34), *script, harness.PROGRAMS / "hello")
    assert result.code == 1 and f"node {HOST}1: has another build of resurgo" in result.errors, result.describe()
    assert len(result.errors.splitlines()) == 1, result.describe()


def test_doctor_examines_many_hosts(jobs, ssh):
    script = ssh(f'[ $host != {HOST}5 ] || {{ echo "Permission denied" >&2; exit 255; }}')
    result = jobs.resurgo("doctor", "-hosts", ",".join(f"{HOST}{number}" for number in range(34)), *script, timeout=60)
    lines = dict(line.split(None, 1) for line in result.text.splitlines())
    assert lines.pop(f"{HOST}5") == "ssh cannot reach it: Permission denied" and set(lines.values()) == {"ready"}, lines
    assert len(lines) == 33


@pytest.fixture
def server(tmp_path):
    """A real ssh server on this machine, which is all hosts; and the options that lead to it."""
    if not sshd.SERVER:
        pytest.skip("there is no sshd here (Debian's openssh-server)")
    os.makedirs("/run/sshd", exist_ok=True)
    for name in ("host", "own"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name], check=True)
    port = harness.free_port()
    (tmp_path / "server").write_text(
        f"HostKey {tmp_path}/host\nAuthorizedKeysFile {tmp_path}/own.pub\nStrictModes no\nPidFile none\nUsePAM no\n"
        f"PermitRootLogin yes\nMaxStartups 200\nListenAddress 127.0.0.1\nPort {port}\nSetEnv HOME={tmp_path}\n"
        f'AcceptEnv RESURGO_TEST_MARK\nForceCommand exec unshare {harness.OWN_NAMESPACE} sh -c "$SSH_ORIGINAL_COMMAND"\n'
    )
    (tmp_path / "known").write_text(f"all {(tmp_path / 'host.pub').read_text()}")
    (tmp_path / "client").write_text(
        f"Host {HOST}*\nHostName 127.0.0.1\nPort {port}\nHostKeyAlias all\nUserKnownHostsFile {tmp_path}/known\n"
        f"IdentityFile {tmp_path}/own\nIdentitiesOnly yes\nStrictHostKeyChecking yes\nSendEnv RESURGO_TEST_MARK\n"
    )
    (script := tmp_path / "ssh").write_text(f'#!/bin/sh\nexec ssh -F {tmp_path}/client "$@"\n')
    script.chmod(0o755)
    with open(tmp_path / "log", "wb") as log:
        process = subprocess.Popen([sshd.SERVER, "-D", "-e", "-f", tmp_path / "server"], stderr=log)
    end = time.monotonic() + harness.patience(20)
    while b"Server listening" not in (said := (tmp_path / "log").read_bytes()):
        assert process.poll() is None and time.monotonic() < end, said
        time.sleep(0.02)
    yield ["-launcher", "ssh", "-launcher-exec", script]
    process.kill()
    process.wait()


def below(pid):
    """The process and all that come from it."""
    children = []
    with contextlib.suppress(OSError):  # it may be gone
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(one for child in children for one in below(int(child)))]


@pytest.mark.slow
def test_only_its_own_node_is_lost_with_a_helper(jobs, program, server, rng):
    """A node with a helper is switched off: the node that it has started goes on. Then an agent below another helper is
    killed: its end is noticed long before its lease is over."""
    entry, command = BY_NAME["heat"], program("heat")
    expected = undisturbed(jobs, command, entry, RANKS)
    file = jobs.directory / "result-helper"
    options = [*hosts(33), "--lease", "10s", *server, *every("200ms")]
    job = jobs.start(RANKS, *command, *arguments(entry, True, file), options=options, protocol="blocking")
    assert job.reach(lambda: len(job.lives()) == RANKS, timeout=60) and job.reach_event("wave_complete")
    # One that does not execute its program yet looks like what has started it.
    helpers = lambda: [pid for pid in job.processes() if harness.command_of(pid) == f"{harness.RESURGO} agent helper "]
    job.reach(lambda: len(helpers()) == 17, what="17 helpers")
    of_rank = lambda rank: next(group for group in map(below, helpers()) if job.lives()[rank][0] in group)
    agent_of = lambda rank: harness.parent_of(job.lives()[rank][0])
    first, second = (0, 2) if rng.random() < 0.5 else (2, 0)
    # Rank 0 is on a helper's node, rank 1 on one that it has started; and so on.
    for pid in of_rank(first):
        with contextlib.suppress(ProcessLookupError):  # images come and go
            os.kill(pid, signal.SIGKILL)
    job.reach_event("node_lost", node=first, timeout=60)
    job.reach_another("wave_complete")
    struck = time.monotonic()
    os.kill(agent_of(second + 1), signal.SIGKILL)
    job.reach_event("node_lost", node=second + 1)
    in_time((seconds := time.monotonic() - struck) < 6, f"{seconds} s")
    result = compare(entry, job.wait(60), file, expected)
    assert len(result.of("node_lost")) == 2, result.describe()
