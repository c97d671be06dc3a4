# SPDX-License-Identifier: Apache-2.0
"""Nodes of an emulated cluster: network namespaces of this machine on one bridge, as root.

    with Cluster(4) as cluster:
        cluster.shape(1, "1gbit")
        cluster.cut(2)

Every node has an address and a hostname of its own. `ssh` in `cluster.bin` starts commands on them, as ssh(1) does.
"""

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

# The ssh of these nodes: it skips options; then come the host and the words that the host's shell reads.
SSH = r"""#!/bin/sh
while :; do
    case "$1" in
        -o|-p|-l|-i|-F) shift 2 ;;
        -*) shift ;;
        *) break ;;
    esac
done
host="$1"; shift
space=$(sed -n "s/^$host //p" "{table}")
[ -n "$space" ] || { echo "ssh: Could not resolve hostname $host: Name or service not known" >&2; exit 255; }
cd /
{prepare}exec ip netns exec "$space" unshare --uts sh -c 'hostname "$0"; {there}exec sh -c "$*"' "$host" "$@"
"""


def is_possible():
    """Whether namespaces and their devices can be made here."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "tc", "unshare"))):
        return False
    name = f"rsgt{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode == 0
    if made:
        subprocess.run(["ip", "netns", "delete", name], check=False)
    return made


def ip(*words):
    subprocess.run(["ip", *map(str, words)], check=True, capture_output=True, text=True)


class Cluster:
    """`count` nodes. The machine itself is on the bridge too, at `address(0)`."""

    def __init__(self, nodes):
        self.nodes = range(1, nodes + 1)
        self.tag = f"rsg{os.getpid() % 10000}"
        self.net = f"10.{200 + os.getpid() % 50}.{os.getpid() // 50 % 250}"
        self.directory = Path(tempfile.mkdtemp(prefix="resurgo-nodes-"))
        self.bin = self.directory / "bin"
        self.bridge = f"{self.tag}br"

    def address(self, node):
        return f"{self.net}.{node + 1}"

    def space(self, node):
        return f"{self.tag}n{node}"

    def link(self, node):
        """The node's device on the bridge's side."""
        return f"{self.tag}b{node}"

    def __enter__(self):
        try:
            self.make()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_):
        self.remove()

    def make(self):
        bridge = self.bridge
        # Without an address of its own a bridge has the lowest of its ports' addresses, which changes as nodes are
        # added. A node to which an earlier job still sends something would learn the former address, and reach nothing
        # for 8 s.
        ip("link", "add", bridge, "address", "02:00:00:00:00:01", "type", "bridge")
        ip("addr", "add", f"{self.address(0)}/24", "dev", bridge)
        ip("link", "set", bridge, "up")
        for node in self.nodes:
            space, ours, theirs = self.space(node), self.link(node), f"{self.tag}e{node}"
            ip("netns", "add", space)
            ip("link", "add", ours, "type", "veth", "peer", "name", theirs)
            ip("link", "set", theirs, "netns", space, "name", "eth0")
            ip("link", "set", ours, "master", bridge, "up")
            ip("-n", space, "addr", "add", f"{self.address(node)}/24", "dev", "eth0")
            ip("-n", space, "link", "set", "eth0", "up")
            ip("-n", space, "link", "set", "lo", "up")
            # All contenders get the same congestion control: bbr, the default of some kernels, halves the bandwidth
            # here.
            ip("-n", space, "route", "replace", f"{self.net}.0/24", "dev", "eth0", "congctl", "cubic")
        self.bin.mkdir()
        table = self.directory / "hosts"
        table.write_text("".join(f"{self.address(node)} {self.space(node)}\n" for node in self.nodes))
        self.make_ssh()

    def make_ssh(self, prepare="", there=""):
        """`prepare`: what it does on this machine before, with the node's address in $host; `there`: on the node, where that is $0."""
        ssh = self.bin / "ssh"
        table = self.directory / "hosts"
        ssh.write_text(SSH.replace("{table}", str(table)).replace("{prepare}", prepare).replace("{there}", there))
        ssh.chmod(0o755)

    def give_disks(self, disks, place):
        """Commands on a node see a directory of the node's own, disks/ADDRESS, at `place`."""
        self.make_ssh(f'mkdir -p -m 700 "{disks}/$host"\n', f'mount --bind "{disks}/$0" "{place}" || exit; ')

    def remove(self):
        for node in self.nodes:
            self.kill(node)
            subprocess.run(["ip", "netns", "delete", self.space(node)], capture_output=True, check=False)
            subprocess.run(["ip", "link", "delete", self.link(node)], capture_output=True, check=False)
        subprocess.run(["ip", "link", "delete", self.bridge], capture_output=True, check=False)
        shutil.rmtree(self.directory, ignore_errors=True)

    def hosts(self, slots):
        """All nodes with so many slots each, in the form of -hosts."""
        return ",".join(f"{self.address(node)}:{slots}" for node in self.nodes)

    def environment(self):
        """The environment of a launcher: its `ssh` reaches these nodes."""
        return {**os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}"}

    def pids(self, node):
        """All processes on a node."""
        found = subprocess.run(["ip", "netns", "pids", self.space(node)], capture_output=True, text=True, check=False)
        return [int(pid) for pid in found.stdout.split()]

    def kill(self, node):
        """Switches the node off: everything on it ends at once."""
        for pid in self.pids(node):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def cut(self, node):
        """Pulls out the node's cable: the node notices nothing, and nothing arrives."""
        ip("link", "set", self.link(node), "down")

    def isolate(self, node):
        """Somewhere in the network everything to and from the node is dropped; its cable is whole. A kernel that notices a pulled cable
        sends again every half second; here TCP doubles its pauses."""
        ip("link", "set", self.link(node), "nomaster")

    def heal(self, node):
        ip("link", "set", self.link(node), "master", self.bridge, "up")

    def shape(self, node, rate):
        """Lets both directions of the node's link carry at most `rate` (of tc: "1gbit")."""
        tbf = ["root", "tbf", "rate", rate, "burst", "256kb", "latency", "50ms"]
        subprocess.run(["tc", "qdisc", "replace", "dev", self.link(node), *tbf], check=True)
        subprocess.run(["tc", "-n", self.space(node), "qdisc", "replace", "dev", "eth0", *tbf], check=True)
