# SPDX-License-Identifier: Apache-2.0
"""Jobs on several nodes: how they begin, what goes wrong then, and that programs run on them as on one."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import harness
from catalogue import BY_NAME, arguments
from harness import by_rank, came_about, slow
from on_nodes import agents, last_lives, on_three
from settings import MANY, TOLERATE_NODE, every
from survival import A_SLOW_START, A_SOCKET_FOR_A_WHILE, LONG, compare, survive, undisturbed

HOSTS = ["-hosts", "a.invalid:2,b.invalid:2"]


@pytest.fixture
def ssh(tmp_path):
    """Makes a program that stands in for ssh: a shell line, with the host in $host and the command in $*."""

    def make(line):
        script = tmp_path / "ssh"
        script.write_text(
            f'#!/bin/sh\n{harness.APART}[ "$1 $2 $3 $4 $5" = "-T -x -o BatchMode=yes --" ] || exit 99\nshift 5; host=$1; shift\n'
            f"{line}\n"
        )
        script.chmod(0o755)
        return ["-launcher-exec", script]

    return make


def refused(jobs, *options):
    """Starts a job that does not begin, and gives the one line that it says."""
    result = jobs.resurgo("run", *options, harness.PROGRAMS / "hello", timeout=30)
    assert (result.code, result.text, len(result.errors.splitlines())) == (1, "", 1), result.describe()
    return result.errors


def test_a_host_that_cannot_be_reached_is_named(jobs, ssh):
    there = 'exec sh -c "$*"'
    script = ssh(f'[ $host = a.invalid ] || {{ echo "ssh: connect to host $host: No route" >&2; exit 255; }}\n{there}')
    assert "node b.invalid: ssh cannot reach it: ssh: connect to host b.invalid: No route" in refused(jobs, *HOSTS, *script)


def test_a_job_may_begin_without_some_hosts(jobs, program, ssh):
    script = ssh('[ $host = b.invalid ] || { echo "no such host" >&2; exit 255; }; exec sh -c "$*"')
    hosts = ["-hosts", "a.invalid:1,b.invalid:2,c.invalid:1", *script]
    result = jobs.run(4, *program("messages"), options=[*hosts, "--allow-missing", "2"]).ok()
    assert {event["node"] for event in result.of("started")} == {"b.invalid"}
    missing = {event["name"]: event["reason"] for event in result.of("node_missing")}
    assert missing == dict.fromkeys(["a.invalid", "c.invalid"], "ssh cannot reach it: no such host"), result.describe()
    assert "warning: node a.invalid: ssh cannot reach it: no such host; the job begins without it" in result.errors
    assert "ssh cannot reach it" in refused(jobs, *hosts, "--allow-missing", "1")


def test_doctor_examines_hosts(jobs, ssh, tmp_path):
    (hosts := tmp_path / "hosts").write_text("a.invalid:2\nlocalhost\nb.invalid\n")
    script = ssh('[ $host = b.invalid ] || { cd /; exec sh -c "$*"; }; echo "Permission denied" >&2; exit 255')
    result = jobs.resurgo("doctor", "--hosts", hosts, *script, harness.PROGRAMS / "hello")
    lines = dict(line.split(None, 1) for line in result.text.splitlines())
    assert lines == {"a.invalid": "ready", "localhost": "ready", "b.invalid": "ssh cannot reach it: Permission denied"}
    assert result.code == 1, result.describe()
    result = jobs.resurgo("doctor", "--json", "-hosts", "a.invalid,localhost", *script).ok()
    assert [host["ready"] for host in json.loads(result.text)] == [True, True]


@pytest.fixture
def namesakes(tmp_path):
    """A program in place of ssh, for which all names lead to this machine."""
    (script := tmp_path / "namesakes").write_text('#!/bin/sh\nshift 6\nexec sh -c "$*"\n')
    script.chmod(0o755)
    return ["-launcher-exec", script]


def test_a_machine_under_two_names_is_refused(jobs, program, namesakes):
    """An image and its copy would be lost together."""
    error = refused(jobs, *HOSTS, *namesakes)
    assert re.search("node [ab].invalid: is the same machine as [ab].invalid; name it once", error), error
    result = jobs.run(4, *program("hello"), options=[*HOSTS, *namesakes, "--allow-missing", "1"]).ok()
    assert len({event["node"] for event in result.of("started")}) == 1, result.describe()
    (missing,) = result.of("node_missing")
    assert "is the same machine as" in missing["reason"], result.describe()


def test_doctor_finds_a_machine_under_two_names(jobs, namesakes):
    result = jobs.resurgo("doctor", "-hosts", "a.invalid,localhost", *namesakes)
    lines = sorted(line.split(None, 1)[1] for line in result.text.splitlines())
    assert result.code == 1 and lines[1] == "ready" and lines[0].startswith("is the same machine as "), result.describe()


def test_a_host_without_resurgo_is_named(jobs, ssh):
    error = refused(jobs, *HOSTS, *ssh('exec sh -c "exec /nowhere/resurgo agent invited"'))
    assert re.search(r"node [ab].invalid: there is no resurgo where it is here: .*/nowhere/resurgo", error), error


def test_a_shell_that_ends_before_resurgo_starts_is_told_with_its_words(jobs, ssh):
    """As one does whose .bashrc ends it: with any exit status, and words on standard output."""
    script = ssh('[ $host = a.invalid ] || { echo closed for today; echo call us >&2; exit 0; }; exec sh -c "$*"')
    ended = "node b.invalid: the shell there ended before resurgo started (exit status: 0): call us; closed for today; "
    assert ended in refused(jobs, *HOSTS, *script)


def test_another_build_is_refused(jobs, ssh, tmp_path):
    shutil.copy(harness.RESURGO, tmp_path / "resurgo")
    with open(tmp_path / "resurgo", "ab") as file:
        file.write(b"\0")
    error = refused(jobs, *HOSTS, *ssh(f"exec {tmp_path}/resurgo agent invited"))
    assert re.search(r"node [ab].invalid: has another build of resurgo", error), error


def test_another_user_is_refused(jobs, ssh):
    if os.geteuid() != 0 or subprocess.run(["setpriv", "--reuid=65534", "test", "-x", harness.RESURGO]).returncode != 0:
        pytest.skip("another user cannot be played here")
    error = refused(jobs, *HOSTS, *ssh('exec setpriv --reuid=65534 sh -c "$*"'))
    assert re.search(r"node [ab].invalid: runs resurgo as user 65534, and this one as user 0", error), error


def test_the_wait_for_nodes_can_be_ended(jobs, ssh):
    command = [harness.RESURGO, "run", *HOSTS, *ssh("exec sleep 60"), harness.PROGRAMS / "hello"]
    job = jobs.command(command)
    job.reach(lambda: any("sleep" in harness.command_of(pid) for pid in job.processes()))
    job.process.send_signal(signal.SIGINT)
    result = job.wait(10)
    assert result.code == 130 and "ended by SIGINT before its nodes were there" in result.errors


@pytest.mark.gate("True")
@pytest.mark.parametrize("stands_still", [False, True])
def test_hosts_wait_for_the_last_one_longer_than_their_lease(jobs, program, ssh, tmp_path, stands_still):
    """Also while `resurgo run` says nothing: the lease begins with the job."""
    calm = jobs.calm(4, *program("messages"))
    waits = f'[ $host = a.invalid ] || while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; exec sh -c "$*"'
    job = jobs.start(4, *program("messages"), options=[*HOSTS, *ssh(waits), "--lease", "2s"])
    # It has shown its key, listens for other nodes twice, and has a socket for signs of life.
    job.reach(lambda: [sockets(pid) for pid in agents(job)] == [4])
    if stands_still:
        job.process.send_signal(signal.SIGSTOP)
    time.sleep(5)
    job.process.send_signal(signal.SIGCONT)
    (tmp_path / "go").touch()
    result = job.wait().ok()
    assert {event["node"] for event in result.of("started")} == {"a.invalid", "b.invalid"}, result.describe()
    assert result.out == calm.out and not result.of("node_lost"), result.describe()


def sockets(pid):
    """How many sockets a process has, its standard streams aside."""
    found = 0
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                found += int(entry.name) > 2 and os.readlink(entry.path).startswith("socket:")
    return found


# Stands between an agent and `resurgo run`: ends a connection at once, one after its first word, and one before its last
# word of the handshake arrives. The next one is left alone.
BETWEEN = """
import json, os, socket, subprocess, sys, threading
told = json.loads(sys.stdin.buffer.readline())
if socket.has_dualstack_ipv6():
    door = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
else:
    door = socket.create_server(("", 0))
real, told["port"] = told["port"], door.getsockname()[1]
agent = subprocess.Popen(["sh", "-c", sys.argv[1]], stdin=subprocess.PIPE)
agent.stdin.write(json.dumps(told).encode() + b"\\n")
agent.stdin.flush()

def pass_on(source, target):
    while data := source.recv(65536):
        target.sendall(data)
    target.shutdown(socket.SHUT_WR)

def meet():
    for number in range(4):
        caller, _ = door.accept()
        if number:
            hello = caller.recv(65536)
        if number > 1:
            called = socket.create_connection((told["addresses"][0], real))
            called.sendall(hello)
        if number == 2:
            caller.sendall(called.recv(65536))
            caller.recv(65536)
            called.close()
        if number < 3:
            caller.close()
    threading.Thread(target=pass_on, args=(caller, called), daemon=True).start()
    pass_on(called, caller)

def hold_on():
    while os.read(0, 1):
        pass
    agent.stdin.close()

for what in (meet, hold_on):
    threading.Thread(target=what, daemon=True).start()
sys.exit(agent.wait())
"""


def test_an_agent_calls_until_it_is_let_in(jobs, program, ssh, tmp_path):
    (between := tmp_path / "between.py").write_text(BETWEEN)
    script = ssh(f'[ $host = b.invalid ] || exec sh -c "$*"; exec {harness.PYTHON} {between} "$*"')
    result = jobs.run(4, *program("messages"), options=[*HOSTS, *script]).ok()
    assert {event["node"] for event in result.of("started")} == {"a.invalid", "b.invalid"}, result.describe()


def test_what_does_not_work_on_several_nodes_is_refused(jobs):
    result = jobs.resurgo("run", "--nodes", "2", "--spill-dir", "/tmp", "-n", "2", harness.PROGRAMS / "hello")
    assert result.code == 2 and "--spill-dir does not work on several nodes yet" in result.errors, result.describe()
    assert len(result.errors.splitlines()) == 1


def test_a_host_file_says_where_it_is_wrong(jobs):
    (hosts := jobs.directory / "hosts").write_text("localhost:2\nother:0\n")
    result = jobs.resurgo("run", "-f", hosts, harness.PROGRAMS / "hello")
    assert (result.code, result.errors) == (2, f"resurgo: -f {hosts}: line 2: 0 is no number of slots\n")


def test_ranks_are_as_many_as_slots(jobs, program):
    (hosts := jobs.directory / "hosts").write_text("localhost:2 # this one\nlocalhost slots=1\n")
    assert "3 ranks, sum 3" in jobs.resurgo("run", "-f", hosts, *program("hello")).ok().text


def test_ranks_fill_slots_and_know_their_place(jobs):
    show = "import os; print('rank', os.environ['PMI_RANK'], os.environ['MPI_LOCALRANKID'], os.environ['MPI_LOCALNRANKS'])"
    result = jobs.resurgo("run", "-q", "--nodes", "2", "-n", "5", harness.PYTHON, "-c", show).ok()
    assert sorted(result.text.splitlines()) == ["rank 0 0 3", "rank 1 1 3", "rank 2 2 3", "rank 3 0 2", "rank 4 1 2"]


def test_input_and_signals_reach_ranks(jobs, program):
    """Rank 0 reads a stream, and Ctrl-Z for longer than the lease does no harm."""
    command = [harness.RESURGO, "run", "-q", "--nodes", "2", "-n", "2", "--lease", "1s", "cat"]
    job = jobs.command(command, stdin=subprocess.PIPE)
    job.process.stdin.write(b"one\n")
    job.process.stdin.flush()
    job.says(b"one\n")
    job.process.send_signal(signal.SIGTSTP)
    time.sleep(2.5)
    job.process.send_signal(signal.SIGCONT)
    job.process.stdin.write(b"two\n")
    job.process.stdin.close()
    assert job.wait(20).ok().text == "one\ntwo\n"


@pytest.mark.parametrize("protocol", ["none", "pessimistic", "blocking", "auto", *map(slow, ["causal", "channel-memory", "chandy-lamport", "group", "hierarchical"])])
@pytest.mark.gate("auto")
def test_programs_print_the_same_as_on_one_node(jobs, program, protocol):
    for name in ("heat", "messages", "comm_churn"):
        entry, command = BY_NAME[name], program(name)
        expected = undisturbed(jobs, command, entry, 4, longer=False)
        file = jobs.directory / f"result-{name}"
        options = ["--nodes", "2"]
        result = jobs.run(4, *command, *arguments(entry, False, file), protocol=protocol, options=options)
        compare(entry, result, file, expected)


@pytest.mark.parametrize("protocol", ["pessimistic", "blocking", "auto"])
@pytest.mark.parametrize("name", ["heat", "master_worker"])
@pytest.mark.gate("heat-auto", "master_worker-pessimistic")
def test_random_kills(jobs, program, rng, kills, name, protocol):
    entry, command = BY_NAME[name], program(name)
    expected = undisturbed(jobs, command, entry, 4)
    survive(jobs, rng, command, entry, 4, kills or 3, expected, ["--nodes", "2"], protocol=protocol)


@pytest.mark.gate("auto")
@pytest.mark.parametrize("protocol", ["pessimistic", slow("blocking"), "auto"])
def test_random_kills_of_ranks_with_connections_of_their_own(jobs, program, rng, kills, protocol):
    """Two ranks have them where this machine has two cores."""
    entry, command = BY_NAME["heat"], program("heat")
    expected = undisturbed(jobs, command, entry, 2)
    options = ["--nodes", "2", "--lease", "10s", *every("100ms")]
    survive(jobs, rng, command, entry, 2, kills or 3, expected, options, protocol=protocol)


@pytest.mark.gate("auto")
@pytest.mark.parametrize("protocol", ["pessimistic", "blocking", "auto"])
def test_random_kills_with_images(jobs, program, rng, kills, protocol):
    entry, command = BY_NAME["cg"], program("cg")
    expected = undisturbed(jobs, command, entry, 4)
    options = ["--nodes", "2", *every("100ms")]
    survive(jobs, rng, command, entry, 4, kills or 3, expected, options, protocol=protocol, images=True)


def test_messages_name_the_node_of_a_rank(jobs, program):
    job = jobs.start(4, *program("crash"), *LONG, options=["--nodes", "2"], protocol="pessimistic")
    job.reach(lambda: len(job.lives()) == 4)
    node = job.newest("started", rank=3)["node"]
    rows = [line.split() for line in jobs.resurgo("ps", job.process.pid).ok().text.splitlines()]
    assert any(row[:2] == ["3", node] for row in rows), rows
    job.strike([3])
    job.reach_event("failed", rank=3)
    job.process.send_signal(signal.SIGINT)
    result = job.wait(20)
    assert f"rank 3 on node {node} killed by SIGKILL (pid " in result.errors, result.describe()


@pytest.mark.gate("pessimistic-images", "causal-no-images", "hierarchical-images")
@pytest.mark.parametrize("images", [[], every("100ms")], ids=["no-images", "images"])
@pytest.mark.parametrize("protocol", ["pessimistic", "causal", "hierarchical"])
def test_all_begin_again_where_a_node_takes_logs_along(jobs, program, protocol, images):
    """Logs are in the memory of nodes alone: all ranks begin again at the beginning, twice in succession."""
    entry, command = BY_NAME["cg"], program("cg")
    expected = undisturbed(jobs, command, entry, 4)
    file = jobs.directory / "result-struck"
    options = ["--nodes", "3", "-ppn", "2", *images]
    job = jobs.start(4, *command, *arguments(entry, True, file), options=options, protocol=protocol)
    for lost in (1, 2):
        job.opens_mpi()
        if images:
            job.reach_another("checkpointed" if protocol != "hierarchical" else "wave_complete")
        before = len(job.of("returned"))
        job.hit(agents(job)[0], signal.SIGKILL)
        job.reach(lambda lost=lost, before=before: len(job.of("node_lost")) == lost and len(job.of("returned")) > before)
    # From now on a rank that fails takes nobody along, or its group.
    job.opens_mpi()
    job.strike([3])
    job.reach_another("started", rank=3)
    result = compare(entry, job.wait(60), file, expected)
    assert images or {event["wave"] for event in result.of("returned")} == {0}, result.describe()
    assert re.search("(all ranks|ranks 0 and 1) begin again", result.errors), result.describe()


def test_nodes_are_killed_on_demand(jobs, program):
    entry, command = BY_NAME["heat"], program("heat")
    expected = undisturbed(jobs, command, entry, 4)
    faults = ["--fault", "node=1,at=300ms", "--fault", "node=random,at=900ms,seed=3"]
    options = ["--nodes", "3", "-ppn", "1", "--encrypt", *faults, "--stats-json", jobs.directory / "stats", *every("100ms")]
    file = jobs.directory / "result-killed"
    job = jobs.start(4, *command, *arguments(entry, True, file), options=options, protocol="blocking")
    job.reach(lambda: len(job.of("node_fault_injected")) == 2)
    result = compare(entry, job.wait(60), file, expected)
    killed = [event["node"] for event in result.of("node_fault_injected")]
    assert killed[0] == 1 and len(set(killed)) == 2, result.describe()
    assert {event["node"] for event in result.of("node_lost")} == set(killed), result.describe()
    figures = json.loads((jobs.directory / "stats").read_text())["nodes"]
    (left,) = {0, 1, 2} - set(killed)
    assert [node["ranks"] for node in figures] == [list(range(4)) if node == left else [] for node in range(3)]
    assert all((node["lost_at"] is None) == (node["node"] == left) for node in figures), figures


@pytest.mark.parametrize("protocol, options", [("channel-memory", []), ("pessimistic", TOLERATE_NODE), ("causal", TOLERATE_NODE)])
@pytest.mark.gate("causal*")
def test_ranks_speak_to_servers_through_tunnels(jobs, program, protocol, options, rng):
    """Ranks and a node are killed while what they say to event loggers or channel memories is encrypted."""
    entry, command = BY_NAME["heat"], program("heat")
    expected = undisturbed(jobs, command, entry, 4)
    options = ["--nodes", "3", "-ppn", "2", "--spares", "1", "--encrypt", *options, *every("100ms")]
    file = jobs.directory / "result-tunnels"
    job = jobs.start(4, *command, *arguments(entry, True, file), options=options, protocol=protocol)
    job.reach(lambda: len(job.lives()) == 4 and b"step" in job.out.read_bytes())
    job.kill([rng.randrange(4)])
    job.reach_another("failed")
    time.sleep(rng.uniform(0, 0.3))
    os.kill(agents(job)[1], signal.SIGKILL)
    result = compare(entry, job.wait(60), file, expected)
    came_about(result.of("node_lost"), result)


def test_nodes_count_what_they_send_to_others(jobs, program):
    options = ["--nodes", "2", "-bind-to", "core", "--stats", "--stats-json", jobs.directory / "stats"]
    result = jobs.run(4, *program("messages"), options=options, protocol="none").ok()
    stats = json.loads((jobs.directory / "stats").read_text())
    for node, figures in enumerate(stats["nodes"]):
        sent = sum(rank["messages_to_other_nodes"] for rank in stats["ranks"][2 * node : 2 * node + 2])
        total = sum(rank["messages"] for rank in stats["ranks"][2 * node : 2 * node + 2])
        assert (figures["node"], figures["ranks"]) == (node, [2 * node, 2 * node + 1])
        assert 0 < figures["messages_to_other_nodes"] == sent < total, stats
        assert f"node {node}: 2 ranks, " in result.errors, result.describe()


def test_each_node_binds_its_ranks_in_turn(jobs):
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("there is one processor")
    show = "import os; print('rank', os.environ['PMI_RANK'], *os.sched_getaffinity(0))"
    options = ["--nodes", "2", "-n", "5", "-bind-to", f"user:{cpus[1]},{cpus[0]}"]
    result = jobs.resurgo("run", "-q", *options, harness.PYTHON, "-c", show).ok()
    turns = [cpus[1], cpus[0], cpus[1], cpus[1], cpus[0]]
    assert sorted(result.text.splitlines()) == [f"rank {rank} {cpu}" for rank, cpu in enumerate(turns)]


def test_the_largest_logs_of_all_nodes_are_found(jobs, program):
    options = ["--nodes", "2", *every("50ms"), "--checkpoint-policy", "most-log", "--checkpoint-share", "50"]
    command = [*program("cg"), *arguments(BY_NAME["cg"], True, None)]
    job = jobs.start(4, *command, options=options, protocol="pessimistic")
    job.reach(lambda: len({event["rank"] for event in job.of("checkpointed")}) > 1, what="images of several ranks")
    job.wait().ok()


@pytest.mark.soak
@pytest.mark.parametrize("protocol", ["none", "auto"])
@pytest.mark.parametrize("count", [24, 64])
def test_many_nodes_start_on_a_busy_machine(jobs, program, count, protocol):
    loop = "import time\nend = time.time() + 120\nwhile time.time() < end: pass"
    busy = [subprocess.Popen([sys.executable, "-c", loop]) for _ in range(30)]
    try:
        result = jobs.run(count, *program("hello"), options=["--nodes", count], protocol=protocol, timeout=180).ok()
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert f"{count} ranks, sum {count * (count - 1) // 2}" in result.text and not result.of("node_lost"), result.describe()


def state_of(pid):
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def test_ranks_look_at_the_lease_themselves(jobs):
    """Nobody is there who could stop a rank whose node has no lease: launcher and agent stand still. It goes on with them."""
    send = (
        "import sys, time\nfrom pathlib import Path\nfrom mpi4py import MPI\nsent = 0\nwhile True:\n"
        "    if MPI.COMM_WORLD.rank:\n        MPI.COMM_WORLD.send(b'more', 0)\n        sent += 1\n"
        "        Path(sys.argv[1]).write_text(f'{sent}.')\n"
        "    else: MPI.COMM_WORLD.recv()\n    time.sleep(0.01)\n"
    )
    file = jobs.directory / "sent"
    job = jobs.start(2, harness.PYTHON, "-c", send, file, options=["--nodes", "2", "--lease", "2s"], protocol="none")
    job.reach(file.exists)
    standing = [agents(job)[1], job.process.pid]
    for process in standing:
        os.kill(process, signal.SIGSTOP)

    def sends_nothing():
        before = file.read_text()
        time.sleep(1)
        return before.endswith(".") and file.read_text() == before

    job.reach(sends_nothing)
    before = file.read_text()
    for process in standing:
        os.kill(process, signal.SIGCONT)
    job.reach(lambda: file.read_text() not in ("", before))
    job.process.terminate()
    assert not job.wait(20).of("node_lost")


@pytest.mark.gate("blocking")
@pytest.mark.parametrize("protocol", ["none", "blocking", "pessimistic", slow("auto"), slow("channel-memory"), slow("chandy-lamport")])
def test_ranks_wait_for_a_launcher_that_stands_still(jobs, program, protocol):
    """Those of other nodes stop when their lease is over, and go on when the launcher does: nothing is lost."""
    options = ["--nodes", "3", "-ppn", "2", "--lease", "1s"]
    images = every("100ms") if protocol != "none" else []
    job = jobs.start(6, *program("heat"), "256", "256", "3000", options=[*options, *images], protocol=protocol)
    job.reach(lambda: len(job.lives()) == 6)
    if images:
        job.reach_event("checkpointed" if protocol in ("pessimistic", "channel-memory") else "wave_complete")
    ranks = [job.lives()[rank][0] for rank in range(2, 6)]
    for _ in range(2):
        os.kill(job.process.pid, signal.SIGSTOP)
        job.reach(lambda: all(state_of(pid) == "T" for pid in ranks))
        os.kill(job.process.pid, signal.SIGCONT)
        job.reach(lambda: all(state_of(pid) != "T" for pid in ranks))
    result = job.wait().ok()
    assert not result.of("node_lost") and not result.of("failed"), result.describe()
    assert result.out == jobs.calm(6, *program("heat"), "256", "256", "3000").out


def test_ranks_that_have_stood_still_for_long_end(jobs, program):
    """The launcher comes back too late, and tells why no node is left."""
    options = ["--nodes", "2", "--lease", "1s", "--hold", "500ms", *every("100ms")]
    job = jobs.start(4, *program("heat"), "256", "256", "3000", options=options, protocol="blocking")
    job.reach_event("wave_complete")
    both = agents(job)
    os.kill(job.process.pid, signal.SIGSTOP)
    job.reach(lambda: all(is_gone(agent) for agent in both))
    os.kill(job.process.pid, signal.SIGCONT)
    result = job.wait(30)
    assert result.code == 1 and len(result.of("node_lost")) == 2, result.describe()
    assert "resurgo run has not answered for the length of the lease, nor for 500ms since" in result.errors
    assert "no node is left on which ranks could run" in result.errors


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("protocol", ["blocking", "auto"])
@pytest.mark.gate("blocking-9")
def test_the_loss_of_a_node_is_survived(jobs, program, rng, protocol, number):
    """Its agent is killed, or stands still for longer than its lease."""
    job, result_after = on_three(jobs, program, protocol)
    job.reach_event("wave_complete")
    before = job.lives()
    os.kill(rng.choice(agents(job)), number)
    result = result_after(60)
    (lost,) = result.of("node_lost")
    how = "its agent was killed by SIGKILL" if number == signal.SIGKILL else "it cannot be reached"
    assert lost["cause"] == how, result.describe()
    assert (f"node {lost['node']} cannot be reached" in result.errors) == (number == signal.SIGSTOP), result.describe()
    came_about(result.of("returned"), result)
    assert all(life > before[rank][1] for rank, (_, life) in last_lives(result).items()), result.describe()


@pytest.mark.slow
def test_a_node_is_lost_when_waves_have_been_given_up(jobs):
    """One rank can have no image, so that the job goes on with logs alone: all begin again."""
    go, end = jobs.directory / "go", jobs.directory / "end"
    command = [harness.PYTHON, "-c", A_SOCKET_FOR_A_WHILE, go, end]
    options = ["--nodes", "3", "-ppn", "1", *every("100ms")]
    job = jobs.start(4, *command, options=options, protocol="auto")
    job.reach_event("waves_given_up", 60)
    os.kill(agents(job)[1], signal.SIGKILL)
    job.reach_event("returned", wave=0)
    go.touch()
    end.touch()
    result = job.wait(90).ok()
    assert "and the loss of a node takes all ranks back to the beginning" in result.errors, result.describe()
    assert by_rank(result.out) == by_rank(jobs.calm(4, *command).out)


@pytest.mark.slow
def test_a_node_is_lost_after_a_slow_start(jobs):
    """Ranks that wait long for another one in MPI_Init have waves afterwards, and return to one."""
    go, end = jobs.directory / "go", jobs.directory / "end"
    command = [harness.PYTHON, "-c", A_SLOW_START, go, end]
    options = ["--nodes", "3", "-ppn", "1", *every("100ms")]
    job = jobs.start(4, *command, options=options, protocol="auto")

    def has_lasted():
        refused = [event["time"] for event in job.events if event["event"] == "not_checkpointed"]
        return refused and refused[-1] - refused[0] > 8

    job.reach(has_lasted, 60, "images to be refused for long")
    go.touch()
    # The next wave begins when this one is on other nodes.
    job.reach_event("wave_complete")
    job.reach_another("wave_complete")
    os.kill(agents(job)[1], signal.SIGKILL)
    job.reach_event("returned")
    end.touch()
    result = job.wait(90).ok()
    assert all(event["wave"] > 0 for event in result.of("returned")), result.describe()
    assert by_rank(result.out) == by_rank(jobs.calm(4, *command).out)


def test_ranks_of_a_lost_node_go_to_a_spare_one(jobs, program, rng):
    entry, command = BY_NAME["heat"], program("heat")
    expected = undisturbed(jobs, command, entry, 4)
    file = jobs.directory / "result-spared"
    options = ["--nodes", "3", "--spares", "1"]
    job = jobs.start(4, *command, *arguments(entry, True, file), options=options, protocol="auto")
    job.reach(lambda: len(job.lives()) == 4)
    *used, _ = agents(job)
    os.kill(rng.choice(used), signal.SIGKILL)
    result = compare(entry, job.wait(60), file, expected)
    nodes = {event["rank"]: event["node"] for event in result.of("started")}
    (lost,) = result.of("node_lost")
    assert sorted(nodes.values()) == sorted(["2", "2"] + 2 * [str(1 - lost["node"])]), result.describe()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_when_the_job_is_ended(jobs, program, number):
    """Nothing of any node outlives `resurgo run` (which the fixture demands)."""
    job = jobs.start(4, *program("crash"), *LONG, options=["--nodes", "2"])
    job.reach(lambda: len(job.lives()) == 4)
    job.process.send_signal(number)
    result = job.wait(20)
    assert result.code == (130 if number == signal.SIGINT else -9), result.describe()


def test_launchers_may_take_their_time_to_end(jobs, program, ssh, tmp_path):
    """`resurgo run` ends when nothing of its nodes runs any more."""
    script = ssh(f'sh -c "$*"; sleep 0.5; touch {tmp_path}/$host')
    jobs.run(4, *program("hello"), options=[*HOSTS, *script]).ok()
    assert {path.name for path in tmp_path.glob("*.invalid")} == {"a.invalid", "b.invalid"}


def test_a_job_of_slurm_runs_on_its_nodes(jobs, program, tmp_path):
    """With a program that stands in for srun, and starts its step here."""
    (tmp_path / "bin").mkdir()
    (srun := tmp_path / "bin/srun").write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/steps\nwhile [ "${{1#-}}" != "$1" ]; do shift; done\nexec "$@"\n'
    )
    srun.chmod(0o755)
    env = harness.environment(SLURM_JOB_ID=7, SLURM_JOB_NODELIST="n[1-2]", SLURM_TASKS_PER_NODE="2(x2)")
    env["PATH"] = f"{tmp_path}/bin:{env['PATH']}"
    assert "4 ranks, sum 6" in jobs.resurgo("run", "-q", *program("hello"), env=env).ok().text
    steps = (tmp_path / "steps").read_text().splitlines()
    assert sorted(step.split("--nodelist=")[1].split()[0] for step in steps) == ["n1", "n2"]
    assert all("--no-kill --kill-on-bad-exit=0 --overlap" in step for step in steps), steps


def test_a_job_of_pbs_runs_on_its_nodes(jobs, ssh, program, tmp_path):
    (nodes := tmp_path / "nodes").write_text("a.invalid\na.invalid\nb.invalid\n")
    env = harness.environment(PBS_NODEFILE=nodes)
    events = tmp_path / "events"
    script = ssh('exec sh -c "$*"')
    result = jobs.resurgo("run", "-q", "--json-events", events, *script, *program("hello"), env=env).ok()
    assert "3 ranks, sum 3" in result.text
    begun = [event["node"] for event in harness.read_events(events) if event["event"] == "started"]
    assert sorted(begun) == ["a.invalid", "a.invalid", "b.invalid"]
    nodes.unlink()
    result = jobs.resurgo("run", *script, *program("hello"), env=env)
    assert result.code == 2 and f'PBS_NODEFILE="{nodes}" cannot be read: No such file' in result.errors, result.describe()


def test_programs_have_hosts_of_their_own(jobs, ssh, program):
    options = ["-hosts", "a.invalid", *ssh('exec sh -c "$*"')]
    more = [":", "-hosts", "b.invalid,c.invalid", "-n", "2", *program("hello"), ":", "-n", "1", *program("hello")]
    result = jobs.run(1, *program("hello"), *more, options=options).ok()
    assert "4 ranks, sum 6" in result.text
    nodes = {event["rank"]: event["node"] for event in result.of("started")}
    assert nodes == {0: "a.invalid", 1: "b.invalid", 2: "c.invalid", 3: "a.invalid"}, result.describe()


def test_patterns_name_the_host_of_a_rank(jobs, ssh, program, tmp_path):
    hosts = [*HOSTS, *ssh('exec sh -c "$*"')]
    of = {0: "a.invalid.0", 1: "a.invalid.0", 2: "b.invalid.1", 3: "b.invalid.1"}
    result = jobs.run(4, *program("hello"), options=[*hosts, "-prepend-pattern", "%h.%p> "]).ok()
    expected = [f"{home}> hello from rank {rank} of 4" for rank, home in of.items()] + ["a.invalid.0> 4 ranks, sum 6"]
    assert sorted(result.text.splitlines()) == sorted(expected)
    jobs.run(4, *program("hello"), options=[*hosts, "-outfile-pattern", tmp_path / "out.%h.%p.%r"]).ok()
    for rank, home in of.items():
        assert f"hello from rank {rank} of 4\n" in (tmp_path / f"out.{home}.{rank}").read_text()
    file = tmp_path / "none/out.%h"
    result = jobs.run(4, *program("hello"), options=[*hosts, "-outfile-pattern", file])
    assert (result.code, result.text, len(result.errors.splitlines())) == (1, "", 1), result.describe()
    assert f"cannot write output of ranks to {tmp_path}/none/out.a.invalid" in result.errors


def test_the_file_of_a_rank_keeps_its_name_on_another_host(jobs, ssh, program, tmp_path):
    heat = [*program("heat"), "200", "200", "6000"]
    calm = jobs.calm(2, *heat)
    options = [*HOSTS, *ssh('exec sh -c "$*"'), "-outfile-pattern", tmp_path / "out.%h", *every("100ms")]
    job = jobs.start(2, *heat, options=options, protocol="blocking")
    job.reach_event("wave_complete")
    os.kill(harness.parent_of(job.lives()[0][0]), signal.SIGKILL)
    result = job.wait().ok()
    assert {event["node"] for event in result.of("started")} == {"a.invalid", "b.invalid"}, result.describe()
    assert (tmp_path / "out.a.invalid").read_bytes() == calm.out and not (tmp_path / "out.b.invalid").exists()


LIMITS = """
import resource
from mpi4py import MPI
print(resource.getrlimit(resource.RLIMIT_STACK)[0] >> 20, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


def test_limits_are_those_of_resurgo_run(jobs, ssh):
    """As far as the hosts permit it, and otherwise there is one warning."""
    jobs.before = ["prlimit", "--stack=9437184:", "--nofile=512:"]
    script = ssh('exec prlimit --stack=4194304: --nofile=256: sh -c "$*"')
    result = jobs.run(4, harness.PYTHON, "-c", LIMITS, options=[*HOSTS, *script]).ok()
    assert result.text.splitlines() == ["9 512"] * 4 and "lower limits" not in result.errors, result.describe()
    may_not = "setpriv --bounding-set=-sys_resource" if os.geteuid() == 0 else ""
    script = ssh(f'exec {may_not} prlimit --stack=4194304:4194304 sh -c "$*"')
    result = jobs.run(4, harness.PYTHON, "-c", LIMITS, options=[*HOSTS, *script]).ok()
    assert result.text.splitlines() == ["4 512"] * 4, result.describe()
    told = "warning: ranks on node a.invalid and 1 other node have lower limits than here: ulimit -s 4.0 MiB in place of 9.0 MiB;"
    assert result.errors.count("lower limits") == 1 and told in result.errors, result.describe()


def test_a_host_without_ranks_takes_those_of_a_lost_one(jobs, ssh, program):
    heat = [*program("heat"), "200", "200", "6000"]
    calm = jobs.calm(2, *heat)
    hosts = ["-hosts", "a.invalid:2,b.invalid:2", *ssh('exec sh -c "$*"')]
    job = jobs.start(2, *heat, options=[*hosts, *every("100ms")], protocol="blocking")
    job.reach_event("wave_complete")
    assert {event["node"] for event in job.events if event["event"] == "started"} == {"a.invalid"}
    agent = harness.parent_of(job.lives()[0][0])
    assert agent in agents(job)
    os.kill(agent, signal.SIGKILL)
    result = job.wait().ok()
    assert result.out == calm.out
    assert {event["node"] for event in result.of("started")} == {"a.invalid", "b.invalid"}, result.describe()


@pytest.mark.parametrize("protocol", ["auto", slow("blocking")])
def test_random_kills_of_ranks_and_agents(jobs, program, rng, kills, protocol):
    entry, command = BY_NAME["cg"], program("cg")
    expected = undisturbed(jobs, command, entry, 6)
    options = ["--nodes", "4", "--spares", "1", "--lease", "2s", *MANY, *every("200ms")]
    job = jobs.start(6, *command, *arguments(entry, True, None), options=options, protocol=protocol)
    job.reach(lambda: len(job.lives()) == 6)
    left = agents(job)
    for _ in range(kills or 4):
        time.sleep(rng.uniform(0, 0.5))
        if len(left) > 1 and rng.random() < 0.5:
            victim = left.pop(rng.randrange(len(left)))
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, rng.choice([signal.SIGKILL, signal.SIGSTOP]))
        else:
            job.kill(rng.sample(range(6), rng.choice([1, 1, 2])))
    compare(entry, job.wait(60), None, expected)


FINISHES = (
    "import os, sys, time\nfrom mpi4py import MPI\nprint('begun', flush=True)\n"
    "while not os.path.exists(sys.argv[1]): time.sleep(0.01)\nprint('the last line', flush=True)\n"
)


def is_gone(pid):
    """It has ended, although perhaps nobody has asked how."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.gate("options0")
@pytest.mark.parametrize("options", [["--protocol", "none"], ["--protocol", "auto", *every("50ms")]])
def test_ranks_finish_while_the_launcher_stands_still(jobs, tmp_path, options):
    """It stands still for longer than the lease and the hold, which ends the agents. What they had said before counts."""
    (go := tmp_path / "directory").mkdir()
    go /= "go"
    options = ["--nodes", "2", "--lease", "4s", "--hold", "500ms", *options]
    job = jobs.start(2, harness.PYTHON, "-c", FINISHES, go, options=options)
    job.reach(lambda: job.out.read_bytes().count(b"begun") == 2)
    if "auto" in options:
        job.reach_event("wave_complete")
    ranks, both = [pid for pid, _ in job.lives().values()], agents(job)
    assert len(both) == 2
    job.process.send_signal(signal.SIGSTOP)
    go.touch()
    for pids in (ranks, both):
        job.reach(lambda pids=pids: all(is_gone(pid) for pid in pids))
    job.process.send_signal(signal.SIGCONT)
    result = job.wait(30).ok()
    assert result.text.count("the last line") == 2 and not result.of("restarting"), result.describe()
