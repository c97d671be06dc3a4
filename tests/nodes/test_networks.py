# SPDX-License-Identifier: Apache-2.0
"""Networks between nodes: IPv6, several of them at once, and a stranger on them. As root only."""

import contextlib
import json
import re
import shutil
import struct
import subprocess
import sys
import time

import pytest

import cluster
from harness import came_about, slow
from networks import ANSWER, HEAT, Listening
from settings import every

pytestmark = pytest.mark.skipif(not cluster.is_possible(), reason="network namespaces cannot be made here (as root, with ip and tc)")


@pytest.fixture
def nodes():
    with cluster.Cluster(2) as made:
        yield made


class Second(cluster.Cluster):
    """Another network for the same nodes, whose devices there are called eth1."""

    def __init__(self, first, net):
        super().__init__(len(first.nodes))
        self.first, self.net, self.bridge = first, net, f"{first.tag}xbr"

    def address(self, node):
        return f"{self.net}{node + 1:x}"

    def link(self, node):
        return f"{self.first.tag}c{node}"

    def __enter__(self):
        bits = 64 if ":" in self.net else 24
        extra = ["nodad"] if ":" in self.net else []
        cluster.ip("link", "add", self.bridge, "address", "02:00:00:00:00:02", "type", "bridge")
        cluster.ip("addr", "add", f"{self.address(0)}/{bits}", "dev", self.bridge, *extra)
        cluster.ip("link", "set", self.bridge, "up")
        for node in self.nodes:
            space, theirs = self.first.space(node), f"{self.first.tag}f{node}"
            cluster.ip("link", "add", self.link(node), "type", "veth", "peer", "name", theirs)
            cluster.ip("link", "set", theirs, "netns", space, "name", "eth1")
            cluster.ip("link", "set", self.link(node), "master", self.bridge, "up")
            cluster.ip("-n", space, "addr", "add", f"{self.address(node)}/{bits}", "dev", "eth1", *extra)
            cluster.ip("-n", space, "link", "set", "eth1", "up")
        return self

    def __exit__(self, *_):
        for device in [self.bridge, *map(self.link, self.nodes)]:
            subprocess.run(["ip", "link", "delete", device], capture_output=True, check=False)
        shutil.rmtree(self.directory, ignore_errors=True)


def begin(jobs, nodes, program, *options, protocol="blocking", heat=HEAT):
    """A job of four ranks on these nodes, which has come so far that all ranks compute."""
    hosts = ["-hosts", nodes.hosts(2), "-launcher", "ssh", "-launcher-exec", nodes.bin / "ssh", "--lease", "5s"]
    job = jobs.start(4, *program(heat[0]), *heat[1:], options=[*hosts, *options], protocol=protocol)
    job.says(b"step 500 ")
    return job


def peers(nodes):
    """The addresses at the other ends of connections of all nodes."""
    found = set()
    for node in nodes.nodes:
        command = ["ip", "netns", "exec", nodes.space(node), "ss", "-Htn", "state", "established"]
        for line in subprocess.check_output(command, text=True).splitlines():
            found.add(line.split()[3].rpartition(":")[0].strip("[]").removeprefix("::ffff:"))
    return found


@pytest.mark.gate("blocking")
@pytest.mark.parametrize("protocol", ["blocking", slow("auto"), "channel-memory"])
def test_nodes_meet_by_ipv6(jobs, nodes, program, protocol):
    with Second(nodes, "fd00:7:7:7::") as second:
        job = begin(jobs, nodes, program, "--interface", "fd00:7:7:7::/64", *every("200ms"), protocol=protocol)
        found = peers(nodes)
        assert found and all(address.startswith("fd00:7:7:7:") for address in found), found
        job.kill([1])
        nodes.kill(2)
        result = job.wait(60).ok()
        assert ANSWER in result.text, result.describe()
        came_about(result.of("node_lost"), result)
        assert second.address(0) in found


def test_what_is_chosen_by_interface_needs_no_other_network(jobs, nodes, program):
    """Nodes do not even try the first one, whose cables are pulled out."""
    with Second(nodes, "10.199.7.") as second:
        job = begin(jobs, nodes, program, "--interface", "10.199.7.0/24", *every("200ms"))
        assert peers(nodes) == {second.address(node) for node in (0, 1, 2)}
        for node in nodes.nodes:
            nodes.cut(node)
        job.kill([0, 3])
        result = job.wait(60).ok()
        assert ANSWER in result.text and not result.of("node_lost"), result.describe()
        came_about(result.of("returned"), result)


def test_an_interface_that_is_not_there_is_named(jobs, nodes, program):
    hosts = ["-hosts", nodes.hosts(2), "-launcher", "ssh", "-launcher-exec", nodes.bin / "ssh"]
    result = jobs.run(4, *program("hello"), options=[*hosts, "--interface", "ib7"], protocol="blocking")
    assert result.code == 1 and "--interface ib7: no interface has that name" in result.errors, result.describe()
    # The name is the first machine's: others have none like it.
    result = jobs.run(4, *program("hello"), options=[*hosts, "--interface", nodes.bridge], protocol="blocking")
    assert result.code == 1 and re.search(rf"node {nodes.net}\.[23]: .*--interface {nodes.bridge}", result.errors)


STRANGER = """
import json, select, socket, sys, time
targets = [(address, port, [bytes.fromhex(said) for said in recorded]) for address, port, recorded in json.loads(sys.stdin.readline())]
cut, heard = {}, 0
held, poll = {}, select.poll()
poll.register(0, select.POLLIN)
def call(target, said):
    address, port, _ = target
    try:
        stranger = socket.create_connection((address, port), 2)
        stranger.setblocking(False)
        stranger.send(said)
    except OSError:
        return
    held[stranger.fileno()] = [stranger, target, said, 0]
    poll.register(stranger, select.POLLIN)
for target in targets:
    for number in range(30):
        call(target, b"" if number % 3 else b"\\x00\\x00")
    for said in target[2]:
        call(target, said)
print("there", flush=True)
while True:
    for number, _ in poll.poll():
        if number == 0:
            print(json.dumps({"cut": cut, "heard": heard}))
            sys.exit()
        stranger, target, said, _ = held[number]
        try:
            came = stranger.recv(65536)
        except OSError:
            came = b""
        held[number][3] += len(came)
        heard = max(heard, held[number][3])
        if not came:
            poll.unregister(number)
            stranger.close()
            del held[number]
            name = f"{target[0]} {target[1]}"
            cut[name] = cut.get(name, 0) + 1
            if len(said) < 3 or cut[name] < 100:
                call(target, said)
"""


def doors(job, nodes):
    """(address, port) at which processes of the job listen, on nodes and on the first machine."""
    found = []
    spaces = [(nodes.address(node), ["ip", "netns", "exec", nodes.space(node)], "") for node in nodes.nodes]
    for address, command, pid in [*spaces, (nodes.address(0), [], f"pid={job.process.pid},")]:
        for line in subprocess.check_output([*command, "ss", "-Htlnp"], text=True).splitlines():
            if pid in line:
                found.append((address, int(line.split()[3].rpartition(":")[2])))
    return found


def conversations(heard):
    """What was said first on each connection, by who called: {(address, port): [bytes]}, from Ethernet frames in the order of time."""
    said = {}
    for frame in heard:
        if frame[12:14] != b"\x08\x00" or frame[23] != 6:
            continue
        head = 14 + (frame[14] & 15) * 4
        source, to = struct.unpack_from("!HH", frame, head)
        start, flags = head + (frame[head + 12] >> 4) * 4, frame[head + 13]
        end = 14 + struct.unpack_from("!H", frame, 16)[0]
        way = (frame[26:30], source, frame[30:34], to)
        if flags & 0x12 == 0x02:
            said[way] = bytearray()
        elif way in said and len(said[way]) < 4000:
            said[way] += frame[start:end]
    doors = {}
    for (_, _, address, port), bytes_said in said.items():
        if bytes_said:
            doors.setdefault((".".join(map(str, address)), port), []).append(bytes(bytes_said))
    return doors


class Frames(Listening):
    """The same, one by one."""

    def __init__(self, devices):
        super().__init__(devices)
        self.frames = []

    def listen(self, listens):
        while not self.is_over:
            with contextlib.suppress(TimeoutError):
                self.frames.append(listens.recv(1 << 17))


@pytest.mark.parametrize(
    "protocol, options",
    [
        ("blocking", []),
        ("channel-memory", []),
        slow("blocking", ["--encrypt"]),
        slow("auto", []),
        slow("channel-memory", ["--encrypt"]),
    ],
    ids=["blocking", "channel-memory", "encrypted", "auto", "encrypted-channel-memory"],
)
def test_a_stranger_on_the_network_neither_gets_in_nor_holds_anything_up(jobs, program, protocol, options):
    """Another machine and user says again to each door what others said there, or garbage, or nothing, while a node is lost."""
    # So long that all the preparations fit in.
    heat = (*HEAT[:3], 4 * HEAT[3])
    calm = jobs.calm(4, *program(heat[0]), *heat[1:])
    with cluster.Cluster(4) as nodes:
        members = range(1, 4)
        with Frames([nodes.link(node) for node in members]) as listening:
            nodes.nodes, all_of_them = members, nodes.nodes
            job = begin(jobs, nodes, program, *every("200ms"), *options, protocol=protocol, heat=heat)
        recorded = conversations(listening.frames)
        found = doors(job, nodes)
        nodes.nodes = all_of_them
        # The dispatcher's, and for images; those of movers, or of the channel memory.
        assert len(found) >= 4 and any(place in recorded for place in found), (found, list(recorded))
        targets = [(*place, [said.hex() for said in recorded.get(place, [])[:4]]) for place in found]
        as_stranger = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable, "-c", STRANGER]
        command = ["ip", "netns", "exec", nodes.space(4), *as_stranger]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as stranger:
            stranger.stdin.write(json.dumps(targets) + "\n")
            stranger.stdin.flush()
            assert stranger.stdout.readline() == "there\n"
            time.sleep(0.3)
            job.kill([0])
            nodes.kill(2)
            result = job.wait(120).ok()
            told = json.loads(stranger.communicate("over\n")[0])
        assert result.out == calm.out, result.describe()
        came_about(result.of("node_lost"), result)
        assert told["heard"] < 2000, "a challenge at most, or TLS's first words"
        cut = {name: count for name, count in told["cut"].items() if nodes.address(2) not in name}
        assert {f"{address} {port}" for address, port in found if address != nodes.address(2)} <= set(cut), (found, cut)
