# SPDX-License-Identifier: Apache-2.0
"""The closing barrier of collective calls (`--ft-mode …,strict`): a rank is killed at any message of a call, and all that
live have the result of an undisturbed run, bit for bit, or all have an error."""

import json
import re

import pytest

from told import BLOCKING, COUNTS, roots, strike_at_random


def answers(jobs, program, mode, n, call, root, count, options=()):
    """What each rank says, by its number, and how many messages each sends and gets. None: the job has ended with a rank
    that had not left MPI_Init."""
    file = jobs.directory / "stats"
    options = ["--ft-mode", mode, "--stats-json", file, *options]
    result = jobs.run(n, *program("ulfm_matrix"), call, root, count, options=options, timeout=60)
    if result.code == 137 and "would be restarted" in result.errors:
        return None, None, result
    assert result.code == 0 and "WRONG" not in result.text, result.describe()
    ranks = json.loads(file.read_text())["ranks"]
    said = {int(rank): what for rank, what in re.findall(r"rank (\d+): (.*)", result.text)}
    return said, [rank["messages"] + rank["deliveries"] for rank in ranks], result


def check_killed_at(jobs, program, mode, n, call, root, count, victim, place, calm):
    """Returns how it ended for those that live: "result" or "error"; None: the victim has not left MPI_Init."""
    key = (mode, n, call, root, count)
    if key not in calm:
        calm[key] = answers(jobs, program, *key)
    right, messages, _ = calm[key]
    fault = f"rank={victim},messages={1 + int(place * messages[victim])}"
    said, _, result = answers(jobs, program, *key, options=["--fault", fault])
    if said is None:
        return None
    living = {rank: what for rank, what in said.items() if rank != victim}
    assert set(living) == set(range(n)) - {victim}, (fault, result.describe())
    are_right = all(what == right[rank] for rank, what in living.items())
    assert are_right or set(living.values()) == {"error 15"}, (fault, right, result.describe())
    return "result" if are_right else "error"


@pytest.mark.parametrize("mode", ["shrink,nop,strict", "blank,cont,strict"])
def test_a_call_ends_well_for_all_or_for_none(jobs, program, seed, mode):
    calm = {}
    ends = strike_at_random(seed, [3, 4, 5], BLOCKING, 6, lambda *drawn: check_killed_at(jobs, program, mode, *drawn, calm))
    assert set(ends) <= {"error", "result"}


@pytest.mark.soak
@pytest.mark.parametrize("call", BLOCKING)
@pytest.mark.parametrize("n", range(2, 10))
def test_at_each_message_a_call_ends_well_for_all_or_for_none(jobs, program, n, call):
    calm = {}
    for count in COUNTS:
        for root in roots(call, n):
            key = ("shrink,nop,strict", n, call, root, count)
            calm[key] = answers(jobs, program, *key)
            for victim, messages in enumerate(calm[key][1]):
                for message in range(messages):
                    check_killed_at(jobs, program, *key, victim, (message + 0.5) / messages, calm)
