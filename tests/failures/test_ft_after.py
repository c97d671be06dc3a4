# SPDX-License-Identifier: Apache-2.0
"""Programs that deal with failures themselves, where a rank recovers some times before the others are told
(`resurgo run --ft --ft-after N`)."""

import random

import pytest

from settings import TOLERATE_NODE
from survival import refused

RANKS, STEPS = 4, 12
FINISHED = [f"rank {rank}: {rank} of {RANKS}, shrunk 0 times" for rank in range(RANKS)]
CALM = sorted([*(f"step {step}" for step in range(0, STEPS, 10)), *FINISHED])


def run(jobs, program, after, faults=(), more=(), options=("--ft",), name="ulfm_after"):
    faults = [word for rank, messages in faults for word in ("--fault", f"rank={rank},messages={messages}")]
    options = [*options, *(["--ft-after", after] if after else []), *faults]
    return jobs.run(RANKS, *program(name), STEPS, *more, options=options, timeout=60)


def check_untold(jobs, program, faults):
    """Nobody sees anything of these failures."""
    result = run(jobs, program, 3, faults)
    assert result.code == 0 and sorted(result.text.splitlines()) == CALM, (faults, result.describe())
    assert not result.of("lost"), (faults, result.describe())
    return result.restarts


def check_told(result, lost):
    left = [rank for rank in range(RANKS) if rank not in lost]
    lines = [line for line in result.text.splitlines() if line.startswith("rank ")]
    assert result.code == 0 and "WRONG" not in result.text, result.describe()
    ends = sorted(line.split(", shrunk")[0] for line in lines)
    assert ends == [f"rank {rank}: {at} of {len(left)}" for at, rank in enumerate(left)], result.describe()
    assert sorted(event["rank"] for event in result.of("lost")) == sorted(lost), result.describe()


def test_without_failures_it_is_as_without_the_option(jobs, program):
    for after in (None, 2):
        result = run(jobs, program, after)
        assert result.code == 0 and sorted(result.text.splitlines()) == CALM, result.describe()


@pytest.mark.gate("0", "3")
@pytest.mark.parametrize("rank", range(RANKS))
def test_nobody_is_told_of_a_rank_that_recovers(jobs, program, rank):
    """At some messages of every kind of call, with agreements before and behind."""
    for messages in range(1 + 3 * rank, 90, 17):
        assert check_untold(jobs, program, [(rank, messages)]) == 1, messages


@pytest.mark.soak
@pytest.mark.parametrize("rank", range(RANKS))
def test_nobody_is_told_at_any_message(jobs, program, rank):
    for messages in range(1, 90):
        check_untold(jobs, program, [(rank, messages)])


def test_ranks_recover_together_and_again_in_their_replay(jobs, program, seed):
    draw = random.Random(seed)
    for _ in range(6):
        faults = [(rank, draw.randint(1, 80)) for rank in range(RANKS) for _ in range(draw.randint(0, 3))]
        assert check_untold(jobs, program, faults) >= len({rank for rank, _ in faults}), faults


def test_after_so_many_restarts_the_others_are_told(jobs, program):
    result = run(jobs, program, 1, [(1, 40), (1, 60)])
    check_told(result, [1])
    assert result.restarts == 1


def test_a_failure_is_told_when_others_have_caught_up(jobs, program, seed):
    """Rank 1 is lost in its replay, while others are in theirs."""
    draw = random.Random(seed)
    for _ in range(6):
        faults = [(1, 60), (1, draw.randint(1, 60)), (2, draw.randint(40, 60)), (3, draw.randint(40, 60))]
        result = run(jobs, program, 1, faults)
        lost = {event["rank"] for event in result.of("lost")}
        assert 1 in lost, result.describe()
        check_told(result, lost)


def test_once_told_nobody_recovers(jobs, program):
    result = run(jobs, program, 1, [(1, 30), (1, 40), (2, 70)])
    check_told(result, [1, 2])
    assert result.restarts == 1


def test_after_a_revocation_nobody_recovers(jobs, program):
    result = run(jobs, program, 5, [(2, 70)], more=["revoke", 4])
    check_told(result, [2])
    assert result.restarts == 0
    result = run(jobs, program, 5, [(2, 30)], more=["revoke", 9])
    check_told(result, [])
    assert result.restarts == 1


def test_a_rank_that_does_not_repeat_itself_is_told(jobs, program):
    result = run(jobs, program, 3, [(1, 50)], more=["differ", 1])
    check_told(result, [1])
    assert result.restarts == 1 and "not piecewise deterministic" in result.errors, result.describe()


LANGUAGES = {"fortran": ("ulfm_sums", 60), "python": ("ulfm_sums.py", 1, 60, 0, 1)}


def run_in(jobs, program, language, *options):
    name, *words = LANGUAGES[language]
    result = jobs.run(RANKS, *program(name), *words, options=["--ft", *options], timeout=60)
    assert result.code == 0 and "WRONG" not in result.text, result.describe()
    return result


@pytest.mark.parametrize("language", LANGUAGES)
def test_nobody_is_told_in_other_languages(jobs, program, language, seed):
    calm = sorted(run_in(jobs, program, language).text.splitlines())
    assert calm == sorted(["they compute", *(f"rank {rank}: done, {RANKS}" for rank in range(RANKS))])
    draw = random.Random(seed)
    for victim in range(RANKS):
        faults = [(victim, draw.randint(20, 120)), ((victim + 1) % RANKS, draw.randint(20, 120))]
        words = [word for rank, messages in faults for word in ("--fault", f"rank={rank},messages={messages}")]
        result = run_in(jobs, program, language, "--ft-after", 2, *words)
        assert sorted(result.text.splitlines()) == calm and not result.of("lost"), (faults, result.describe())
        assert result.restarts == 2, (faults, result.describe())


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_others_are_told_in_other_languages(jobs, program, language):
    faults = ["--fault", "rank=1,messages=60", "--fault", "rank=1,messages=90"]
    result = run_in(jobs, program, language, "--ft-after", 1, *faults)
    left = [f"rank {rank}: done, {RANKS - 1}" for rank in range(RANKS) if rank != 1]
    assert sorted(result.text.splitlines()) == sorted(["they compute", *left]), result.describe()
    assert [event["rank"] for event in result.of("lost")] == [1] and result.restarts == 1, result.describe()


@pytest.mark.gate("blank,cont", "rebuild,nop", "shrink,nop,strict")
@pytest.mark.parametrize("mode", ["shrink,nop", "blank,cont", "rebuild,nop", "shrink,nop,strict"])
def test_by_the_rules_of_ftmpi(jobs, program, mode):
    """The first failure of rank 2 is not told; of others, as ever."""
    seen = []
    for faults in ([], ["--ft-after", 1, "--fault", "rank=2,messages=40"]):
        result = jobs.run(5, *program("ftmpi_waits"), options=["--ft-mode", mode, *faults], timeout=60)
        assert result.code == 0 and "WRONG" not in result.text, result.describe()
        seen.append(sorted(result.text.splitlines()))
    assert seen[0] == seen[1]


def test_options_that_do_not_go_together(jobs, program):
    def refuses(options, *words):
        refused(jobs.run(2, *program("ulfm_after"), 1, options=options), *words)

    refuses(["--ft-after", 1], "--ft-after", "add --ft or --ft-mode")
    ft = ["--ft", "--ft-after", 1]
    refuses([*ft, "--protocol", "blocking"], "--ft-after and --protocol blocking cannot be combined")
    refuses([*ft, *TOLERATE_NODE], "--ft-after and --tolerate node")
    refuses([*ft, "--checkpoint-every", "1s"], "--ft-after and --checkpoint-every", "no images")
    refuses([*ft, "--checkpoint-dir", jobs.directory], "--ft-after and --checkpoint-dir")
    refuses([*ft, "--nodes", 2], "--ft-after is for jobs on one node")
    refuses(["--ft", "--protocol", "auto"], "add --ft-after N")
