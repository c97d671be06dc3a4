# SPDX-License-Identifier: Apache-2.0
"""Debian's Slurm on the nodes of a cluster: the controller on this machine, and a daemon on each node."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

import harness

PROGRAMS = {name: shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") for name in ("munged", "slurmctld", "slurmd", "sbatch", "salloc")}

CONFIGURATION = """\
ClusterName=emulated
SlurmctldHost={host}({controller})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket
CryptoType=crypto/munge
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
SlurmdParameters=config_overrides
SlurmctldPort=6817
SlurmdPort=6818
SlurmdTimeout=10
StateSaveLocation={directory}/state
SlurmctldPidFile={directory}/slurmctld.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdPidFile={directory}/slurmd.%n.pid
SlurmdLogFile={directory}/slurmd.%n.log
SlurmdSpoolDir={directory}/spool.%n
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """Started by `with`; in `environment`, Slurm's commands reach it."""

    def __init__(self, nodes, directory, cpus=4):
        missing = [name for name, path in PROGRAMS.items() if path is None]
        if missing:
            pytest.skip(f"there is no {missing[0]} here: scripts/setup.sh slurm")
        self.nodes, self.directory, self.processes = nodes, directory, []
        lines = [f"NodeName={self.name(node)} NodeAddr={nodes.address(node)} CPUs={cpus} State=UNKNOWN" for node in nodes.nodes]
        self.configuration = directory / "slurm.conf"
        self.configuration.write_text(
            CONFIGURATION.format(host=os.uname().nodename, controller=nodes.address(0), directory=directory, nodes="\n".join(lines))
        )
        (directory / "state").mkdir()
        (directory / "cgroup").mkdir()
        self.environment = harness.environment(SLURM_CONF=self.configuration)

    @staticmethod
    def name(node):
        return f"node{node}"

    def start(self, *command):
        log = open(self.directory / f"{Path(command[0]).name}{len(self.processes)}.err", "wb")
        self.processes.append(subprocess.Popen([str(word) for word in command], stdout=log, stderr=log, env=self.environment))
        log.close()

    def __enter__(self):
        try:
            self.make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for node in self.nodes.nodes:
            self.nodes.kill(node)
        for process in reversed(self.processes):
            process.terminate()
            process.wait(20)

    def make(self):
        directory = self.directory
        (directory / "munge.key").write_bytes(os.urandom(128))
        (directory / "munge.key").chmod(0o600)
        self.start(PROGRAMS["munged"], "--foreground", "--force", f"--key-file={directory}/munge.key", f"--socket={directory}/munge.socket",
                   f"--pid-file={directory}/munged.pid", f"--log-file={directory}/munged.log", f"--seed-file={directory}/munge.seed")
        self.until(lambda: (directory / "munge.socket").exists(), "munged")
        self.start(PROGRAMS["slurmctld"], "-D", "-c", "-f", self.configuration)
        for node in self.nodes.nodes:
            # Each daemon wants control groups below /sys, which is another one in its namespace.
            line = (f"mount --rbind /sys/fs/cgroup {directory}/cgroup && exec ip netns exec {self.nodes.space(node)} sh -c "
                    f"'mount --rbind {directory}/cgroup /sys/fs/cgroup && hostname {self.name(node)} && "
                    f"exec {PROGRAMS['slurmd']} -D -f {self.configuration}'")
            self.start("unshare", "--uts", "--mount", "sh", "-c", line)
        self.until(lambda: self.said("sinfo", "-h", "-o", "%t %D") == f"idle {len(self.nodes.nodes)}", "all nodes to be idle")

    def said(self, *command):
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    def until(self, condition, what):
        end = time.monotonic() + harness.patience(60)
        while not condition():
            if time.monotonic() > end:
                raise harness.Expired(f"waited for {what}\n{self.logs()}")
            time.sleep(0.1)

    def logs(self):
        logs = sorted(self.directory.glob("*.err")) + sorted(self.directory.glob("*.log"))
        return "\n".join(f"{log.name}:\n{log.read_text(errors='replace')[-1500:]}" for log in logs)
