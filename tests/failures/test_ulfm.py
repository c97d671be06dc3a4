# SPDX-License-Identifier: Apache-2.0
"""Programs that deal with failures themselves: calls that need something before, and ranks that are replaced."""

import json
import re

import pytest

import harness
from told import BLOCKING, COUNTS, FT, NONBLOCKING, roots, strike_at_random

CALLS = [
    ["bcast_init", "allreduce_init", "recv_init", "barrier_init", "any_init"],
    ["inter_barrier", "inter_allreduce", "merge", "inter_create", "inter_recv", "inter_bcast"],
    ["inter_agree", "neighbor", "iagree", "ineighbor", "ssend_init"],
    ["idup", "iagree", "idup", "threads", "merge"],
    ["precv", "psend", "parrived", "recv_init"],
]


def check_calls(jobs, program, seed, kind, calls):
    n = len(calls) + 2
    command = [*program("ulfm_more"), kind, seed % 10**6, *calls]
    result = jobs.run(n, *command, options=FT, timeout=60)
    assert result.code == 0 and "WRONG" not in result.text, result.describe()
    lines = [line for line in result.text.splitlines() if line.startswith("ok")]
    assert lines == [f"ok {call} {n - 1 - at}" for at, call in enumerate(calls)], result.describe()


@pytest.mark.parametrize("calls", CALLS, ids=lambda calls: "-".join(calls[:3]))
def test_blocked_calls_come_back(jobs, program, seed, calls):
    check_calls(jobs, program, seed, "world", calls)


def test_blocked_calls_come_back_without_a_world(jobs, program, seed):
    calls = [call for call in [*CALLS[0][:2], *CALLS[1][:3], "iagree", "idup"] if call != "threads"]
    check_calls(jobs, program, seed, "session", calls)


@pytest.mark.soak
@pytest.mark.parametrize("calls", CALLS, ids=lambda calls: "-".join(calls[:3]))
@pytest.mark.parametrize("round", range(20))
def test_blocked_calls_come_back_each_time(jobs, program, seed, calls, round):
    check_calls(jobs, program, seed + 1000 * round, "world", calls)


ON_WINDOWS = [
    ["win_create", "win_fence", "win_lock", "win_unlock", "win_flush", "win_free"],
    ["win_allocate", "win_exclusive", "win_lock_all", "win_unlock_all", "win_flush_all", "win_test"],
    ["win_dynamic", "win_start", "win_wait", "win_rwait", "win_rwaitall"],
]
ON_FILES = [
    ["file_open", "file_write_all", "file_spread", "file_close", "file_ordered"],
    ["file_read_at_all", "file_begin", "file_iwrite_all", "file_set_size", "file_sync"],
]


def check_objects(jobs, program, seed, calls, options=()):
    n = len(calls) + 2
    command = [*program("ulfm_objects"), jobs.directory / "file", seed % 10**6, *calls]
    result = jobs.run(n, *command, options=[*FT, *options], timeout=60)
    assert result.code == 0 and "WRONG" not in result.text, result.describe()
    lines = [line for line in result.text.splitlines() if line.startswith("ok")]
    assert lines == [f"ok {call} {n - 1 - at}" for at, call in enumerate(calls)], result.describe()


@pytest.mark.gate("1-win_create-*", "3-win_dynamic-*", "3-win_allocate-*", "1-file_open-*", "3-file_read_at_all-*")
@pytest.mark.parametrize("calls", [*ON_WINDOWS, *ON_FILES], ids=lambda calls: "-".join(calls[:3]))
@pytest.mark.parametrize("nodes", [1, 3])
def test_calls_on_windows_and_files_come_back(jobs, program, seed, nodes, calls):
    check_objects(jobs, program, seed, calls, ["--nodes", nodes] if nodes > 1 else [])


@pytest.mark.soak
@pytest.mark.parametrize("calls", [*ON_WINDOWS, *ON_FILES], ids=lambda calls: "-".join(calls[:3]))
@pytest.mark.parametrize("round", range(20))
def test_calls_on_windows_and_files_come_back_each_time(jobs, program, seed, round, calls):
    check_objects(jobs, program, seed + 1000 * round, calls, ["--nodes", "3"] if round % 2 else [])


def check_respawn(jobs, program, seed, n, rounds, kills, early, steps=4000):
    command = [*program("ulfm_respawn"), seed % 10**6, steps, rounds, kills, 60, early]
    result = jobs.run(n, *command, options=FT, timeout=120)
    assert result.code == 0 and "WRONG" not in result.text, result.describe()
    done = re.findall(r"place (\d+) of (\d+): right, replaced (\d+) times", result.text)
    assert sorted(int(place) for place, *_ in done) == list(range(n)), result.describe()
    assert {int(size) for _, size, _ in done} == {n}, result.describe()
    lost = result.of("lost")
    assert len(lost) >= min(kills, 1), result.describe()
    return len(lost)


@pytest.mark.gate("4-2-1-3", "5-2-2-0")
@pytest.mark.parametrize("n, rounds, kills, early", [(4, 3, 1, 0), (5, 2, 2, 0), (4, 2, 1, 3), harness.slow(8, 5, 3, 6)])
def test_the_dead_are_replaced(jobs, program, seed, n, rounds, kills, early):
    check_respawn(jobs, program, seed, n, rounds, kills, early)


@pytest.mark.soak
@pytest.mark.parametrize("round", range(60))
def test_the_dead_are_replaced_each_time(jobs, program, seed, round):
    check_respawn(jobs, program, seed + round, 3 + round % 6, 3, 1 + round % 3, round % 5)


def answers(jobs, program, n, call, root, count, options=()):
    """What each rank says, by its number, how many messages each sends and gets, and the job's result."""
    file = jobs.directory / "stats"
    command = [*program("ulfm_matrix"), call, root, count]
    result = jobs.run(n, *command, options=[*FT, "--stats-json", file, *options], timeout=60)
    if result.code == 137 and "would be restarted" in result.errors:
        return None, None, result  # A rank has died before it had left MPI_Init, and the job with it.
    assert result.code == 0 and "WRONG" not in result.text, result.describe()
    ranks = json.loads(file.read_text())["ranks"]
    lines = re.findall(r"rank (\d+): (.*)", result.text)
    return {int(rank): said for rank, said in lines}, [rank["messages"] + rank["deliveries"] for rank in ranks], result


def check_killed_at(jobs, program, n, call, root, count, victim, place, calm={}):
    """`victim` is killed at that part of its sends and deliveries: all others come back, and no result is wrong. False:
    it has not left MPI_Init."""
    key = (n, call, root, count)
    if key not in calm:
        calm[key] = answers(jobs, program, *key)
    right, messages, result = calm[key]
    assert len(right) == n and all(said.startswith("result") for said in right.values()), result.describe()
    fault = f"rank={victim},messages={1 + int(place * messages[victim])}"
    said, _, result = answers(jobs, program, *key, options=["--fault", fault])
    if said is None:
        return False
    assert set(range(n)) - {victim} <= set(said), (fault, result.describe())
    for rank, what in said.items():
        assert what in (right[rank], "error 101"), (fault, rank, right, result.describe())
    return True


@pytest.mark.parametrize("calls", [BLOCKING, NONBLOCKING], ids=["blocking", "nonblocking"])
def test_no_message_of_a_collective_call_is_needed(jobs, program, seed, calls):
    strike_at_random(seed, [2, 3, 4, 5], calls, 5, lambda *drawn: check_killed_at(jobs, program, *drawn))


@pytest.mark.soak
@pytest.mark.parametrize("call", BLOCKING + NONBLOCKING)
@pytest.mark.parametrize("n", range(2, 10))
def test_no_message_of_a_collective_call_is_needed_at_all(jobs, program, n, call):
    """Each message of each rank, with each root."""
    for count in COUNTS:
        for root in roots(call, n):
            _, all_messages, _ = answers(jobs, program, n, call, root, count)
            for victim, messages in enumerate(all_messages):
                for message in range(messages):
                    check_killed_at(jobs, program, n, call, root, count, victim, (message + 0.5) / messages)


def test_a_master_gives_the_tasks_of_the_dead_to_others(jobs, program, seed):
    result = jobs.run(5, *program("ulfm_master"), seed % 10**6, 3000, 3, 150, options=FT, timeout=60)
    assert result.code == 0 and result.text.startswith("right"), result.describe()
    assert len(result.of("lost")) == 3 and ", 3 workers lost" in result.text, result.describe()
