# SPDX-License-Identifier: Apache-2.0
"""Debian's ssh server on the nodes of a cluster, with keys of its own; and the ssh that reaches it."""

import os
import shutil
import subprocess
import time

import pytest

import harness

SERVER = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")


class Servers:
    """One server on each node. `run` has `options`; the files `known_hosts` and `authorized_keys` say whom ssh and
    servers trust."""

    def __init__(self, nodes, directory):
        self.nodes, self.directory = nodes, directory
        self.known_hosts, self.authorized_keys = directory / "known_hosts", directory / "authorized_keys"
        self.processes = {}
        for name in ("host", "own"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", directory / name], check=True)
        self.trust()
        (directory / "server").write_text(
            f"HostKey {directory}/host\nAuthorizedKeysFile {self.authorized_keys}\nStrictModes no\nPidFile none\nUsePAM no\n"
            # The user's own .bashrc may do anything, and may be killed with its node in the middle of that.
            f"PermitRootLogin yes\nMaxStartups 100\nSetEnv HOME={directory}\n"
        )
        (directory / "client").write_text(
            f"IdentityFile {directory}/own\nIdentitiesOnly yes\nUserKnownHostsFile {self.known_hosts}\n"
            "GlobalKnownHostsFile /dev/null\nStrictHostKeyChecking yes\n"
        )
        (script := directory / "ssh").write_text(f'#!/bin/sh\nexec ssh -F {directory}/client "$@"\n')
        script.chmod(0o755)
        self.options = ["-launcher", "ssh", "-launcher-exec", script]

    def trust(self, *but):
        """Makes all hosts known except these; the key opens all of them."""
        key = (self.directory / "host.pub").read_text()
        known = [self.nodes.address(node) for node in self.nodes.nodes if node not in but]
        self.known_hosts.write_text("".join(f"{address} {key}" for address in known))
        shutil.copy(self.directory / "own.pub", self.authorized_keys)

    def start(self, node, before="true"):
        """Starts a server on a node, after a line of shell: the server sees what that line mounts."""
        log = self.directory / f"log{node}"
        line = f'hostname node{node} && {before} && exec {SERVER} -D -e -f {self.directory}/server'
        command = ["ip", "netns", "exec", self.nodes.space(node), "unshare", "--uts", "--mount", "sh", "-c", line]
        self.processes[node] = subprocess.Popen(command, stderr=open(log, "wb"))
        end = time.monotonic() + harness.patience(20)
        while b"Server listening" not in log.read_bytes():
            assert self.processes[node].poll() is None, log.read_text()
            if time.monotonic() > end:
                raise harness.Expired(f"the server does not listen\n{log.read_text()}")
            time.sleep(0.02)

    def stop(self, node):
        self.processes[node].kill()
        self.processes[node].wait()

    def others(self, node):
        """Processes on a node beside its server."""
        return [pid for pid in self.nodes.pids(node) if pid != self.processes[node].pid]


def on(nodes, directory):
    """An ssh server on each node. The test is skipped if there is none to start."""
    if not SERVER or not shutil.which("ssh"):
        pytest.skip("there is no sshd here (Debian's openssh-server)")
    os.makedirs("/run/sshd", exist_ok=True)
    servers = Servers(nodes, directory)
    for node in nodes.nodes:
        servers.start(node)
    return servers
