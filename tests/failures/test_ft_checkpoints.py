# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in the memory of ranks: after losses, at any moment, survivors and newcomers have the data of the last one,
bit for bit, as long as no more is lost than it covers."""

import random
import re

import pytest

import harness

OPTIONS = {
    "shrink": ["--ft"],
    "respawn": ["--ft"],
    "dup": ["--ft-mode", "shrink"],
    "jump": ["--ft-mode", "shrink,cont"],
    "gaps": ["--ft-mode", "blank"],
}


def check(jobs, program, seed, n, scheme, losses, how, kills, words=2000, steps=1000, span=150):
    command = [*program("ft_checkpoints"), seed % 10**6, steps, kills, span, scheme, losses]
    result = jobs.run(n, *command, "dup" if how == "gaps" else how, words, options=OPTIONS[how], timeout=120)
    assert result.code == 0 and "WRONG" not in result.text, result.describe()
    done = re.findall(r"rank (\d+) of (\d+): right, (\d+) recoveries, (\d+) times anew", result.text)
    assert len(done) >= n - (0 if how == "respawn" else kills), result.describe()
    anew = max(int(times) for *_, times in done)
    assert anew == 0 or kills > losses, result.describe()
    return anew, result


CASES = [
    (4, "partner", 1, "shrink", 1),
    (5, "parity", 1, "shrink", 1),
    (6, "parity", 2, "shrink", 2),
    (5, "partner", 2, "respawn", 2),
    (4, "parity", 1, "respawn", 1),
    (5, "parity", 2, "respawn", 2),
    (5, "partner", 1, "dup", 1),
    (5, "parity", 1, "jump", 1),
    (6, "parity", 2, "gaps", 2),
    (6, "partner", 1, "shrink", 3),
]


@pytest.mark.gate(
    "4-partner-1-shrink-1", "5-partner-2-respawn-2", "5-partner-1-dup-1", "5-parity-2-respawn-2", "5-parity-1-jump-1",
    "6-parity-2-gaps-2",
)
@pytest.mark.parametrize("n, scheme, losses, how, kills", CASES)
def test_survivors_and_newcomers_have_the_last_checkpoint(jobs, program, seed, n, scheme, losses, how, kills):
    _, result = check(jobs, program, seed, n, scheme, losses, how, kills)
    harness.came_about(len(result.of("lost")) >= kills, result, "the losses")


@pytest.mark.parametrize("scheme", ["partner", "parity"])
def test_two_at_once_are_covered(jobs, program, seed, scheme):
    check(jobs, program, seed, 6, scheme, 2, "shrink", 2, span=0)


@pytest.mark.parametrize("scheme", ["partner", "parity"])
def test_more_than_is_covered_is_told_to_all(jobs, program, seed, scheme):
    """Both ranks of a pair, or two of a set of parity: all begin anew, at the same time, and are right in the end."""
    for round in range(20):
        anew, result = check(jobs, program, seed + round, 4, scheme, 1, "shrink", 3, span=20)
        if anew:
            return
    raise AssertionError("nothing was lost")


def test_much_data(jobs, program, seed):
    """Regions that go in pieces."""
    for scheme in ["partner", "parity"]:
        check(jobs, program, seed, 3, scheme, 1, "respawn", 1, words=3_000_000, steps=3, span=800)


def test_without_ft_there_are_none(jobs, program, plain):
    """The program computes right, under plain MPICH and with ranks that begin again."""
    command = [*program("ft_checkpoints"), 1, 20, 0, 100, "partner", 1, "none", 2000]
    env = {"LD_LIBRARY_PATH": f"{harness.RESURGO.parent.parent / 'lib/resurgo'}:{harness.LIBMPICH}"}
    text = plain(3, *command, env=env).text
    assert text.count("right, 0 recoveries") == 3, text
    result = jobs.run(3, *command, options=["--fault", "rank=1,messages=100"], env=env)
    assert result.code == 0 and result.text.count("right, 0 recoveries") == 3, result.describe()


@pytest.mark.soak
@pytest.mark.parametrize("round", range(150))
def test_survivors_and_newcomers_have_it_each_time(jobs, program, seed, round):
    draws = random.Random(seed + round)
    n, how = draws.randint(2, 9), draws.choice(list(OPTIONS))
    losses = draws.randint(1, 3)
    kills = draws.randint(1, min(n - 1, losses + 1))
    scheme, words = draws.choice(["partner", "parity"]), draws.choice([50, 2000, 40000])
    check(jobs, program, seed + round, n, scheme, losses, how, kills, words, span=draws.choice([3, 30, 150]))
