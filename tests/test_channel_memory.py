# SPDX-License-Identifier: Apache-2.0
"""Every message goes through its receiver's channel memory: a crashed rank begins again with what that serves, and the answer
is that of an undisturbed run, byte for byte."""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

import harness
from catalogue import BY_NAME, arguments
from harness import MANY, by_rank
from survival import PROGRAMS, soak, survive, undisturbed

pytestmark = pytest.mark.protocol("channel-memory")

WAYS = [
    ("master_worker", 1),
    ("heat", 2),
    ("comm_churn", 3),
    ("rma_halo", 1),
    ("messages", 2),
    ("master_worker.py", 2),
]


def memories(count):
    return ["--protocol", "channel-memory", "--channel-memories", str(count)]


@pytest.mark.parametrize("name, count", WAYS)
def test_random_kills(jobs, program, rng, kills, name, count):
    entry, command = BY_NAME[name], program(name)
    expected = undisturbed(jobs, command, entry, 4)
    result = survive(jobs, rng, command, entry, 4, kills or 3, expected, memories(count))
    assert len(result.of("channel_memory_started")) == count


@pytest.mark.parametrize("count", [1, 2])
def test_all_ranks_at_once(jobs, program, rng, count):
    entry, command = BY_NAME["master_worker"], program("master_worker")
    expected = undisturbed(jobs, command, entry, 4)
    survive(jobs, rng, command, entry, 4, 2, expected, memories(count), everyone=1.0, in_replay=0)


@pytest.mark.soak
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("size", [3, 8])
@pytest.mark.parametrize("entry", PROGRAMS, ids=str)
def test_soak(jobs, program, rng, kills, request, entry, size, count):
    soak(jobs, program, rng, request, entry, size, kills or 8, memories(count))
