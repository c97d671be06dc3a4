# SPDX-License-Identifier: Apache-2.0
"""MPI is left and entered again in one process: sessions, one after the other or around MPI_Init."""

import pytest

from harness import slow, storm
from settings import MANY, TOLERATE_NODE, every

WAYS = ["apart", "world", "around"]
# Rounds in each session, and the least time of one.
LONGER = ("40", "3")


@pytest.mark.gate("around")
@pytest.mark.parametrize("way", WAYS)
def test_undisturbed(jobs, program, way):
    command = (*program("sessions"), way)
    theirs = jobs.mpiexec(3, *command).ok()
    assert len(theirs.text.splitlines()) == 3 + (way == "around")
    for protocol in ("none", "auto"):
        ours = jobs.run(3, *command, protocol=protocol).ok()
        assert ours.out == theirs.out and ours.restarts == 0, ours.describe()
        assert {event["rank"] for event in ours.of("finished")} == {0, 1, 2}


STORMS = [
    ("auto", "world", []),
    ("auto", "around", every("60ms")),
    ("pessimistic", "apart", every("60ms")),
    ("channel-memory", "world", []),
    ("blocking", "world", every("60ms")),
    ("group", "apart", every("60ms")),
    slow("pessimistic", "around", TOLERATE_NODE),
    slow("causal", "apart", [*TOLERATE_NODE, *every("60ms")]),
    slow("channel-memory", "apart", every("60ms")),
    slow("chandy-lamport", "around", every("60ms")),
    slow("hierarchical", "world", every("60ms")),
]


@pytest.mark.parametrize("protocol, way, options", STORMS)
@pytest.mark.gate("auto*")
def test_random_kills(jobs, program, rng, kills, protocol, way, options):
    command = (*program("sessions"), way, "4", *LONGER)
    calm = jobs.calm(3, *command, protocol="none")
    job = jobs.start(3, *command, protocol=protocol, options=[*MANY, *options])
    struck = storm(job, rng, kills or 4, calm.seconds)
    print(f"struck {struck}")
    result = job.wait().ok()
    assert result.out == calm.out, result.describe()


def test_a_kill_between_two_sessions(jobs, program):
    """A life that is killed outside of MPI, before its next session, has not finished."""
    command = (*program("sessions"), "apart", "6", "5", "40")
    calm = jobs.calm(3, *command, protocol="none")
    for protocol in ("pessimistic", "blocking"):
        job = jobs.start(3, *command, protocol=protocol, options=MANY)
        job.reach(lambda job=job: b"session 0" in job.out.read_bytes(), what="the end of the first session")
        job.strike([1])
        result = job.wait().ok()
        assert result.out == calm.out and len(result.of("failed")) == 1, result.describe()
