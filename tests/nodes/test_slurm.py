# SPDX-License-Identifier: Apache-2.0
"""Jobs in allocations of a real Slurm, on nodes with networks of their own. As root, with Slurm installed (`scripts/setup.sh slurm`)."""

import os
import signal

import pytest

import cluster
import harness
import slurm
from networks import ANSWER, HEAT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not cluster.is_possible(), reason="network namespaces cannot be made here (as root, with ip and tc)"),
]

@pytest.fixture
def manager(nodes, tmp_path):
    with slurm.Slurm(nodes, tmp_path) as made:
        yield made


def heat(program, *options):
    return [harness.RESURGO, "run", "--lease", "2s", *options, *program(HEAT[0]), *HEAT[1:]]


def steps(nodes, node):
    """Slurm's own processes for the agent's step on a node, and that agent."""
    commands = {pid: harness.command_of(pid) for pid in nodes.pids(node)}
    return [pid for pid, command in commands.items() if command.startswith("slurmstepd") and ".batch" not in command]


def submitted(manager, program, nodes, protocol):
    """A job of four ranks on two nodes, in which all ranks compute; its output, and its number."""
    out = manager.directory / "out"
    line = " ".join(str(word) for word in heat(program, "--protocol", protocol))
    number = manager.said("sbatch", "--parsable", "-N", "2", "--ntasks-per-node=2", "--no-kill", "-o", out, "--wrap", f"exec {line}")
    manager.until(lambda: out.exists() and "step 500 " in out.read_text(), f"job {number}")
    return out, number


def state(manager, number):
    return manager.said("squeue", "-h", "-t", "all", "-o", "%T", "-j", number)


@pytest.mark.parametrize("protocol", ["blocking", "auto"])
def test_a_job_of_sbatch_loses_a_step(manager, nodes, program, protocol):
    """Slurm's process that holds the agent of the second node is killed, and the agent with it."""
    out, number = submitted(manager, program, nodes, protocol)
    assert (killed := steps(nodes, 2))
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    manager.until(lambda: state(manager, number) == "COMPLETED", "the job to be over")
    text = out.read_text()
    assert ANSWER in text and "node2" in text, text


def test_a_job_of_sbatch_loses_a_node(manager, nodes, program):
    """The node is switched off. Slurm considers it down, and does not end the job."""
    out, number = submitted(manager, program, nodes, "blocking")
    nodes.kill(2)
    manager.until(lambda: ANSWER in out.read_text(), "the answer")
    assert "node2" in out.read_text()
    manager.until(lambda: state(manager, number) in ("COMPLETED", "COMPLETING"), "the job to be over")


def test_a_job_in_an_allocation_of_salloc(manager, nodes, jobs, program):
    """`resurgo run` is on this machine, which is no node of the job."""
    command = [slurm.PROGRAMS["salloc"], "-Q", "-N", "2", "--ntasks-per-node=2", "--no-kill", *heat(program, "--protocol", "blocking")]
    job = jobs.command(command, env=manager.environment)
    job.says(b"step 500 ")
    assert (killed := steps(nodes, 2))
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    result = job.wait(60).ok()
    assert ANSWER in result.text and "node2" in result.errors, result.describe()
