# SPDX-License-Identifier: Apache-2.0
"""Programs that are told of failures (ULFM, FT-MPI), and what must come out."""

import random
import re

import harness
from settings import MANY

FT = ["--ft"]
CALLS = [
    ["recv", "large", "irecv", "issend", "ssend", "mprobe", "low", "recv"],
    ["barrier", "bcast", "reduce", "gather", "scatter", "scan", "allreduce"],
    ["allgather", "alltoall", "ibarrier", "iallreduce", "ibcast", "low", "barrier"],
    ["comm_dup", "comm_split", "low", "comm_split", "high", "comm_dup", "sendrecv", "waitany"],
    ["waitall", "waitsome", "test", "probe", "probe_any", "pending", "recv_any"],
    ["low", "send_many", "bcast", "allreduce", "high", "recv_any", "pending"],
    ["sendrecv_c", "low", "replace_c", "issend_c", "sendrecv", "isendrecv", "low", "ireplace"],
]


def run(jobs, n, *program, options=(), **more):
    return jobs.run(n, *program, options=[*FT, *options], timeout=60, **more)


def check_calls(jobs, program, seed, calls, options=()):
    wanted = [call for call in calls if call not in ("low", "high")]
    n = len(wanted) + 2
    result = run(jobs, n, *program("ulfm_calls"), seed % 10**6, *calls, options=options)
    assert result.code == 0 and "WRONG" not in result.text, result.describe()
    lines = [line for line in result.text.splitlines() if line.startswith("ok")]
    assert lines == [f"ok {call} {n - 1 - at}" for at, call in enumerate(wanted)], result.describe()


def check_loop(jobs, program, seed, n, kills, lowest, steps=150, options=()):
    command = [*program("ulfm_loop"), seed % 10**6, steps, kills, 150, int(lowest)]
    result = run(jobs, n, *command, options=options)
    assert result.code == 0 and "WRONG" not in result.text, result.describe()
    done = re.findall(r"rank (\d+): done, (\d+) of (\d+), shrunk (\d+) times", result.text)
    # A rank that is killed after it has said so is no loss.
    assert n - kills <= len(done) <= n, result.describe()
    assert len({size for *_, size, _ in done}) == 1, result.describe()
    return result


def check_agreements(jobs, program, seed, n, kills, options=()):
    result = run(jobs, n, *program("ulfm_agree"), seed % 10**6, 300, kills, 40, options=options)
    assert result.code == 0, result.describe()
    learnt = {}
    for number, what in re.findall(r"agreed (\d+): (.*)", result.text):
        learnt.setdefault(int(number), []).append(what)
    assert sorted(learnt) == list(range(300)), result.describe()
    differing = {number: what for number, what in learnt.items() if len(set(what)) > 1}
    assert not differing, differing
    assert all(len(what) >= n - kills for what in learnt.values())


def check_filled(jobs, program, seed, mode, n, kills, lowest, how, more, steps=4000, options=()):
    """Each place is taken until the end, whoever dies, also while new ranks come."""
    counter = jobs.directory / "deaths"
    counter.write_text("")
    command = [*program("ftmpi_loop"), seed % 10**6, steps, kills, 150, int(lowest), how, more, counter]
    result = jobs.run(n, *command, options=["--ft-mode", mode, *MANY, *options], timeout=90)
    is_filled(result, n)


def is_filled(result, n):
    assert result.code == 0 and "WRONG" not in result.text, result.describe()
    done = re.findall(r"rank (\d+): done, (\d+) of (\d+), (\d+) recoveries", result.text)
    places = sorted(int(place) for _, place, *_ in done)
    assert places == list(range(n)), result.describe()
    lost, replaced = result.of("lost"), result.of("replaced")
    harness.came_about(lost, result, "a loss")
    assert sum(len(one["ranks"]) for one in replaced) >= len({one["rank"] for one in lost if one["rank"] < n})
    for one in replaced:
        assert len(one["ranks"]) == len(one["replaced"]) == len(one["places"]) and set(one["places"]) <= set(range(n))


ROOTED = ["bcast", "reduce", "gather", "scatter", "gatherv", "scatterv"]
UNROOTED = ["barrier", "allreduce", "allgather", "alltoall", "scan", "exscan", "reduce_scatter_block"]
UNROOTED += ["allgatherv", "alltoallv", "alltoallw", "reduce_scatter"]
BLOCKING = ROOTED + UNROOTED
NONBLOCKING = ["i" + call for call in BLOCKING]
COUNTS = [3, 6000]


def roots(call, n):
    return range(n) if call.removeprefix("i") in ROOTED else [0]


def matrix(draws, sizes, calls):
    """The last is a part of the victim's messages: at least the first third of them belongs to MPI_Init."""
    n = draws.choice(sizes)
    call = draws.choice(calls)
    return n, call, draws.choice(roots(call, n)), draws.choice(COUNTS), draws.randrange(n), draws.uniform(0.35, 1)


def strike_at_random(seed, sizes, calls, wanted, check):
    """Calls `check` with random calls and moments until so many ranks were killed after MPI_Init. Returns how those have
    ended."""
    draws, ends = random.Random(seed), []
    for _ in range(200):
        ends += filter(None, [check(*matrix(draws, sizes, calls))])
        if len(ends) == wanted:
            return ends
    raise AssertionError(f"only {len(ends)} of 200 ranks have left MPI_Init")
