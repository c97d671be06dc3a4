# SPDX-License-Identifier: Apache-2.0
"""Fixtures that several folders use; `conftest.py` loads them."""

import os
import subprocess

import pytest

import cluster
import harness
from chains import Chain
from harness import RESURGO
from places import Levels, Stored


@pytest.fixture
def own_disks(tmp_path):
    """Starts agents of hosts that have a file system of their own at one path: the options, that path, and what makes a host's."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0:
        pytest.skip("mounts cannot be made here")
    disks = tmp_path / "disks"
    place = tmp_path / "place"
    for directory in (disks, place):
        directory.mkdir()
    script = tmp_path / "ssh"
    # What a host has stays when its processes end, as long as the host is not removed.
    script.write_text(
        '#!/bin/sh\nshift 5; host=$1; shift\n'
        f"mkdir -p -m 700 {disks}/$host\n"
        f'exec unshare -m --propagation private sh -c "mount --bind {disks}/$host {place} && '
        f'{{ [ ! -e {disks}/$host.mount ] || . {disks}/$host.mount; }} && $*"\n'
    )
    script.chmod(0o755)
    return ["-launcher-exec", script], place, disks


@pytest.fixture
def chain(jobs):
    return Chain(jobs)


@pytest.fixture
def stored(jobs):
    return Stored(jobs)


@pytest.fixture
def levels(jobs, own_disks):  # noqa: F811
    return Levels(jobs, own_disks)


@pytest.fixture
def nodes():
    with cluster.Cluster(3) as made:
        yield made


@pytest.fixture
def somebody():
    """Arguments of Popen with which the process runs as another user."""
    if os.geteuid() != 0:
        pytest.skip("only root can be somebody else")
    if subprocess.run([RESURGO, "--version"], user=65534, group=65534, extra_groups=[], capture_output=True).returncode:
        pytest.skip("another user cannot run resurgo where it is")
    return {"user": 65534, "group": 65534, "extra_groups": []}


# Rank 1 waits for a message that rank 0 sends once the file exists; rank 0 does not, and is not in MPI.
WAITS = """
import os, sys, time
from mpi4py import MPI
world = MPI.COMM_WORLD
world.Barrier()
print("ready", world.rank, flush=True)
if world.rank == 1:
    world.recv(source=0)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
if world.rank == 0 and world.size > 1:
    world.send(1, dest=1)
world.Barrier()
print("done", world.rank)
"""


@pytest.fixture
def waits(jobs):
    return harness.held(jobs, WAITS, size=3)
