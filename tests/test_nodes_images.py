# SPDX-License-Identifier: Apache-2.0
"""Images that leave their node: a node is lost, and its ranks go on from copies that other nodes have."""

import os
import signal

import pytest

from harness import slow
from test_nodes import agents, last_lives, on_three


def waves(job):
    """How many waves are complete. Each but the last is in the memory of two nodes: the next begins only then."""
    return sum(event["event"] == "wave_complete" for event in job.events)


def run_with_losses(jobs, program, rng, protocol, number, losses):
    """A job on three nodes that loses some, each when a wave is on two nodes; and that has the same result as without."""
    job, result_after = on_three(jobs, program, protocol)
    for loss in range(losses):
        before = waves(job)
        assert job.until(lambda: waves(job) >= before + 2), f"loss {loss}"  # noqa: B023
        os.kill(rng.choice(agents(job)), number)
        assert job.until(lambda: len([event for event in job.events if event["event"] == "returned"]) > loss)  # noqa: B023
    return result_after(90)


@pytest.mark.parametrize(
    "protocol,number", [("blocking", signal.SIGKILL), slow("blocking", signal.SIGSTOP), ("auto", signal.SIGKILL)]
)
def test_ranks_of_a_lost_node_begin_from_copies_elsewhere(jobs, program, rng, protocol, number):
    result = run_with_losses(jobs, program, rng, protocol, number, 1)
    assert len(result.of("node_lost")) == 1 and result.of("returned")[0]["wave"] > 0, result.describe()
    moved = [event for event in result.of("started") if event["from_file"] and event["image"] > 0]
    assert {event["rank"] for event in moved} <= set(last_lives(result)), result.describe()


@pytest.mark.parametrize("protocol", [slow("blocking"), "auto"])
def test_nodes_are_lost_one_after_the_other(jobs, program, rng, protocol):
    """What was begun from a copy is copied again, as long as there is another node."""
    result = run_with_losses(jobs, program, rng, protocol, signal.SIGKILL, 2)
    assert [event["wave"] > 0 for event in result.of("returned")] == [True, True], result.describe()
