# SPDX-License-Identifier: Apache-2.0
"""Every message goes through its receiver's channel memory. A crashed rank begins again with what that serves, and the
answer is that of an undisturbed run, byte for byte."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

import harness
from catalogue import BY_NAME
from harness import by_rank, came_about, slow
from servers import SLOW, SUM
from settings import MANY, TOLERATE_NODE, every
from survival import LONG, PROGRAMS, began_from_images, soak, survive, undisturbed

pytestmark = pytest.mark.protocol("channel-memory")

WAYS = [
    ("master_worker", 1),
    ("heat", 2),
    ("rma_halo", 1),
    ("master_worker.py", 3),
]


def memories(count):
    return ["--protocol", "channel-memory", "--channel-memories", str(count)]


@pytest.mark.parametrize("name, count", WAYS)
@pytest.mark.gate("heat-2")
def test_random_kills(jobs, program, rng, kills, name, count):
    entry, command = BY_NAME[name], program(name)
    expected = undisturbed(jobs, command, entry, 4)
    result = survive(jobs, rng, command, entry, 4, kills or 3, expected, memories(count))
    assert len(result.of("channel_memory_started")) == count


def test_all_ranks_at_once(jobs, program, rng):
    entry, command = BY_NAME["master_worker"], program("master_worker")
    expected = undisturbed(jobs, command, entry, 4)
    survive(jobs, rng, command, entry, 4, 2, expected, memories(2), everyone=1.0, in_replay=0)


@pytest.mark.gate("tag-1", "length-2")
@pytest.mark.parametrize("variant, count", [("time", 1), ("length", 2), ("tag", 1), ("destination", 2), slow("order", 1)])
def test_a_different_message_is_detected(jobs, program, variant, count):
    marker = jobs.directory / "marker"
    command = [*program("nondeterministic"), variant, "1", "100", marker, "300"]
    result = jobs.run(4, *command, options=memories(count))
    assert marker.exists() and result.code == 119 and "done" not in result.text, result.describe()
    assert "not piecewise deterministic" in result.errors and "rank 1" in result.errors, result.describe()


def memory_of(job, number=0):
    pid = job.newest("channel_memory_started", memory=number)["pid"]
    assert job.mark.encode() in Path(f"/proc/{pid}/environ").read_bytes()
    return pid


def test_the_job_ends_with_its_channel_memory(jobs, program):
    job = jobs.start(3, *program("crash"), "99", "kill", "0", "always", "100000000", options=memories(2))
    job.says(b"iteration 50 ")
    os.kill(memory_of(job, 1), signal.SIGKILL)
    result = job.wait(20)
    assert result.code == 1 and not result.of("failed"), result.describe()
    assert "channel memory 1 was lost (killed by SIGKILL)" in result.errors, result.describe()


LOGGERS = ["--protocol", "causal", *TOLERATE_NODE, "--event-loggers", "2", "--event-logger"]


@pytest.mark.parametrize("listens", ["[::1]:0", slow("[::]:0"), "0.0.0.0:0"])
@pytest.mark.parametrize("servers", [[*memories(2), "--channel-memory"], LOGGERS], ids=["memories", "loggers"])
@pytest.mark.gate("loggers*")
def test_servers_listen_on_any_address(jobs, program, rng, servers, listens):
    """IPv6 too; ranks reach servers that listen on every address through the loopback."""
    if "::" in listens and not Path("/proc/net/if_inet6").exists():
        pytest.skip("this machine has no IPv6")
    entry, command = BY_NAME["master_worker"], program("master_worker")
    expected = undisturbed(jobs, command, entry, 4)
    survive(jobs, rng, command, entry, 4, 1, expected, [*servers, listens])


def test_a_rank_needs_no_other_to_come_back(jobs, program):
    job = jobs.start(3, *program("crash"), "99", "kill", "0", "always", "100000000", options=[*MANY, *memories(2)])
    job.says(b"iteration 200 ")
    job.strike([0, 2], signal.SIGSTOP)
    job.strike([1])
    job.reach_another("caught_up", rank=1)
    job.strike([0, 2], signal.SIGCONT)
    before = len(job.out.read_bytes())
    job.reach(lambda: len(job.out.read_bytes()) > before + 100, what="the ring to go on")
    job.process.terminate()
    result = job.wait(20)
    repeated = [event["deliveries"] for event in result.of("caught_up")]
    assert len(repeated) == 1 and repeated[0] > 100, result.describe()


@pytest.mark.gate("True")
@pytest.mark.parametrize("stopped", [False, True])
def test_a_rank_that_does_not_read_stops_nobody(jobs, tmp_path, stopped):
    """In memory, and in a file: 40 messages of 1 MiB for 3 MiB of memory. The reader is killed in the middle."""
    spill = tmp_path / "spill"
    spill.mkdir()
    options = [*MANY, *memories(1), "--log-memory", "1M", "--spill-dir", spill]
    job = jobs.start(3, harness.PYTHON, "-c", SLOW, tmp_path, "20", options=options)
    job.reach(lambda: (tmp_path / "slow").exists())
    if stopped:
        job.strike([2], signal.SIGSTOP)
    job.reach(lambda: (tmp_path / "sent").exists())
    if stopped:
        job.strike([2], signal.SIGCONT)
    (tmp_path / "go").touch()
    time.sleep(0.1)
    job.kill([2])
    result = job.wait().ok()
    assert sorted(result.text.splitlines()) == ["sent", f"sum {SUM[20]}"]
    assert not any(spill.iterdir())


def test_a_full_channel_memory(jobs, tmp_path):
    options = [*memories(1), "--log-memory", "1M"]
    result = jobs.run(3, harness.PYTHON, "-c", SLOW, tmp_path, "20", options=options)
    assert result.code == 1 and "sum" not in result.text, result.describe()
    assert "channel memory 0 cannot go on: it is full (3 MiB of messages)" in result.errors, result.describe()
    assert "--spill-dir" in result.errors


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to mount a small file system")
def test_a_full_disk(jobs, tmp_path):
    spill = tmp_path / "spill"
    spill.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8M", "none", spill], check=True)
    try:
        options = [*memories(1), "--log-memory", "1M", "--spill-dir", spill]
        result = jobs.run(3, harness.PYTHON, "-c", SLOW, tmp_path, "20", options=options)
    finally:
        subprocess.run(["umount", spill], check=True)
    assert result.code == 1 and "sum" not in result.text, result.describe()
    assert "No space left on device" in result.errors and "--spill-dir" in result.errors, result.describe()


def listening(pid):
    """TCP sockets that listen in the network namespace of a process."""
    lines = [line for file in ("tcp", "tcp6") for line in Path(f"/proc/{pid}/net/{file}").read_text().splitlines()[1:]]
    return [line for line in lines if line.split()[3] == "0A"]


@pytest.fixture
def secluded(tmp_path):
    """A network namespace from which connections to this machine can be opened. No process in it listens, which the
    test checks, so nobody can reach it."""
    if os.geteuid() != 0:
        pytest.skip("only root may have a network namespace")
    name = f"rsg{os.getpid()}"
    network = f"10.213.{os.getpid() % 254}"
    host = f"{network}.1"

    def ip(*words):
        subprocess.run(["ip", *words], check=True)

    ip("netns", "add", name)
    try:
        ip("link", "add", f"{name}h", "type", "veth", "peer", "name", "inside", "netns", name)
        ip("addr", "add", f"{host}/30", "dev", f"{name}h")
        ip("link", "set", f"{name}h", "up")
        ip("-n", name, "addr", "add", f"{network}.2/30", "dev", "inside")
        ip("-n", name, "link", "set", "inside", "up")
        ip("-n", name, "link", "set", "lo", "up")
        yield name, host
    finally:
        subprocess.run(["ip", "link", "del", f"{name}h"], check=False)
        subprocess.run(["ip", "netns", "del", name], check=False)


@pytest.mark.gate("from an image")
@pytest.mark.parametrize("images", [(), every("50ms")], ids=["from the beginning", "from an image"])
def test_a_rank_that_nobody_can_reach(jobs, program, rng, secluded, images):
    name, host = secluded
    command = [*program("master_worker"), *BY_NAME["master_worker"].longer]
    calm = jobs.run(4, *command).ok()
    options = [*MANY, *memories(2), "--channel-memory", f"{host}:0", *images]
    inside = ["sh", "-c", f'exec ip netns exec {name} "$@"', "sh", *command]
    job = jobs.start(3, *command, ":", "-n", "1", *inside, options=options)
    is_inside = lambda: os.readlink(f"/proc/{job.lives()[3][0]}/ns/net") != os.readlink("/proc/self/ns/net")
    job.reach(is_inside, what="the rank's own network")
    time.sleep(rng.uniform(0.2, 0.4))
    pid = job.lives()[3][0]
    assert listening(os.getpid()) and not listening(pid)
    memory = "".join(f"{int(part):02X}" for part in reversed(host.split(".")))

    def connected():
        lines = Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
        return len([line for line in lines if line.split()[2].startswith(memory)])

    job.reach(lambda: connected() == 2, what="two connections")
    if images:
        job.reach_event("checkpointed", rank=3)
    job.strike([3])
    job.reach(lambda: job.lives().get(3, (0, 1))[1] > 1)
    if images:
        assert is_inside()
    time.sleep(rng.uniform(0, 0.2))
    job.kill([rng.randrange(3)])
    result = job.wait().ok()
    assert by_rank(result.out) == by_rank(calm.out)
    came_about(result.restarts >= 2, result)
    assert not images or any(life["rank"] == 3 for life in began_from_images(result)), result.describe()


def test_a_rank_in_a_namespace_of_its_own_has_no_files(jobs, program, tmp_path, secluded):
    """A process that is rebuilt from a file would be outside of it. Its image in memory is as good as others'."""
    name, host = secluded
    command = [*program("crash"), *LONG]
    inside = ["sh", "-c", f'exec ip netns exec {name} "$@"', "sh", *command]
    options = [*MANY, *memories(1), "--channel-memory", f"{host}:0", *every("100ms"), "--checkpoint-dir", tmp_path / "images"]
    job = jobs.start(1, *command, ":", "-n", "1", *inside, options=options)
    job.reach_event("image_not_written", rank=1)
    job.reach_event("image_written", rank=0)
    job.kill([1])
    job.reach_event("caught_up", rank=1)
    assert os.readlink(f"/proc/{job.lives()[1][0]}/ns/net") != os.readlink("/proc/self/ns/net")
    assert not list((tmp_path / "images").glob("*/rank-1.image-*"))
    job.process.terminate()
    result = job.wait(10)
    reasons = {event["reason"] for event in result.of("image_not_written")}
    assert reasons == {"it is in a network namespace of its own, and a process that is rebuilt would not be"}, result.describe()
    assert result.errors.count("namespace of its own") == 1, result.describe()


def test_a_broken_connection_is_the_end_of_a_life(jobs, program, secluded):
    name, host = secluded
    command = [*program("crash"), "99", "kill", "0", "always", "100000000"]
    inside = ["sh", "-c", f'exec ip netns exec {name} "$@"', "sh", *command]
    options = [*MANY, *memories(2), "--channel-memory", f"{host}:0"]
    job = jobs.start(2, *command, ":", "-n", "1", *inside, options=options)
    job.says(b"iteration 50 ")
    cut = subprocess.run(["ip", "netns", "exec", name, "ss", "-K", "dst", host], capture_output=True, text=True)
    if "ESTAB" not in cut.stdout:
        pytest.skip("the kernel does not let connections be cut")
    job.reach_event("caught_up", rank=2)
    job.process.terminate()
    assert len(job.wait(20).of("failed")) == 1


def test_spawned_ranks(jobs, program, rng):
    command = [*program("spawn"), "6", "2", "20"]
    calm = jobs.run(2, *command, protocol="none").ok()
    job = jobs.start(2, *command, options=[*MANY, *memories(2), "--fault", "rank=spawned,messages=20"])
    result = job.wait().ok()
    assert sorted(result.out.splitlines()) == sorted(calm.out.splitlines())
    came_about(result.restarts > 0, result)


@pytest.mark.parametrize("options", [["--time-limit", "1h", "--checkpoint-dir", "x"], TOLERATE_NODE])
def test_what_cannot_be_combined_is_refused(jobs, program, options):
    result = jobs.run(2, *program("hello"), options=options)
    assert result.code == 2 and options[0] in result.errors and "channel-memory" in result.errors, result.describe()


@pytest.mark.soak
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("size", [3, 8])
@pytest.mark.parametrize("entry", PROGRAMS, ids=str)
def test_soak(jobs, program, rng, kills, request, entry, size, count):
    soak(jobs, program, rng, request, entry, size, kills or 8, memories(count))


# Rank 1 is served more than it takes from the kernel. It sends rank 0 more than that one's channel memory, which is
# stopped, has room for, takes two messages, and says so. As it has unread bytes, its death breaks the connection.
UNREAD = """
import sys, time
from pathlib import Path
import numpy
from mpi4py import MPI
comm, here = MPI.COMM_WORLD, Path(sys.argv[1])
small, room = numpy.zeros(1 << 15), numpy.zeros(1 << 17)
def wait_for(name):
    while not (here / name).exists():
        time.sleep(0.01)
if comm.rank == 0:
    for number in range(20):
        comm.Send(numpy.full(1 << 15, number, dtype=float), dest=1)
    (here / "served").touch()
    comm.Recv(room, source=1)
    comm.Recv(small, source=1)
    print("last", int(room[0]), int(small[0]), flush=True)
else:
    wait_for("stopped")
    comm.Send(numpy.full(1 << 17, 7, dtype=float), dest=0)
    total = 0
    for number in range(20):
        comm.Recv(small, source=0)
        total += int(small[0])
        if number == 1:
            print("two", flush=True)
            wait_for("killed")
    comm.Send(numpy.full(1 << 15, total, dtype=float), dest=0)
"""


def test_a_rank_says_nothing_that_its_channel_memory_may_not_hear(jobs, tmp_path):
    job = jobs.start(2, harness.PYTHON, "-c", UNREAD, tmp_path, options=[*MANY, *memories(1)])
    job.reach(lambda: (tmp_path / "served").exists())
    time.sleep(0.3)
    memory = memory_of(job)
    os.kill(memory, signal.SIGSTOP)
    try:
        (tmp_path / "stopped").touch()
        time.sleep(1)
        said = b"two" in job.out.read_bytes()
        if said:
            job.kill([1])
            job.reach_event("failed", rank=1)
    finally:
        os.kill(memory, signal.SIGCONT)
    if not said:
        job.says(b"two")
        job.kill([1])
    (tmp_path / "killed").touch()
    result = job.wait().ok()
    assert result.text.splitlines() == ["two", "last 7 190"]
    (failed,), (caught_up,) = result.of("failed"), result.of("caught_up")
    assert caught_up["deliveries"] == failed["deliveries"] > 2, result.describe()
