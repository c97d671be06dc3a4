# SPDX-License-Identifier: Apache-2.0
"""Undisturbed programs print and write the same as under plain MPICH, byte for byte."""

import pytest

import harness
from catalogue import BY_NAME, CATALOGUE, arguments
from harness import by_rank, slow
from settings import TOLERATE_NODE

SIZES = {1: CATALOGUE, 2: CATALOGUE, 3: CATALOGUE, 4: CATALOGUE, 8: CATALOGUE, 16: CATALOGUE}
# Every program with 4 ranks; the other sizes take turns, so that the whole stays short.
TURNS = {1: 0, 2: 2, 3: 1, 8: 2, 16: 3}
QUICK = [
    (entry, size)
    for position, entry in enumerate(CATALOGUE)
    for size in SIZES
    if entry.accepts(size)
    and (size == 4 or position % 4 == TURNS[size] or entry.name in ("hello", "cg"))
]


def compare(jobs, plain, entry, size, command, protocol, options=()):
    file = jobs.directory / "result"
    theirs = jobs.directory / "result.plain"
    env = {"LD_LIBRARY_PATH": harness.LIBMPICH} if entry.debian else None
    expected = plain(size, *command, *arguments(entry, False, theirs), env=env)
    got = jobs.run(size, *command, *arguments(entry, False, file), protocol=protocol, options=options).ok()
    assert by_rank(got.out) == by_rank(expected.out)
    if entry.result:
        assert file.read_bytes() == theirs.read_bytes()
    assert got.restarts == 0
    return got


@pytest.mark.parametrize("protocol", [slow("none"), "pessimistic"])
@pytest.mark.parametrize("entry, size", QUICK, ids=lambda value: str(value))
@pytest.mark.gate("hello-1-*", "hello-16-*", "*-4-*")
def test_same_answer_as_plain_mpich(jobs, program, plain, entry, size, protocol):
    compare(jobs, plain, entry, size, program(entry.name), protocol)


@pytest.mark.soak
@pytest.mark.parametrize("protocol", ["none", "pessimistic"])
@pytest.mark.parametrize("size", [*range(1, 17), 24])
@pytest.mark.parametrize("entry", CATALOGUE, ids=str)
def test_every_number_of_ranks(jobs, program, plain, entry, size, protocol):
    if not entry.accepts(size):
        pytest.skip(f"{entry} does not run on {size} ranks")
    compare(jobs, plain, entry, size, program(entry.name), protocol)


@pytest.mark.gate("master_worker")
@pytest.mark.parametrize("entry", [BY_NAME[name] for name in ("cg", "heat", "master_worker")], ids=str)
def test_tolerating_the_loss_of_a_node(jobs, program, plain, entry):
    compare(jobs, plain, entry, 4, program(entry.name), "pessimistic", TOLERATE_NODE)


def test_threads_with_protocol_none(jobs, program, plain):
    command = program("threads") + ["3", "100"]
    for size in (2, 4):
        assert jobs.run(size, *command, protocol="none").ok().out == plain(size, *command).out


def test_threads_are_refused_by_pessimistic(jobs, program):
    """Threads that all call MPI do not replay: the job says so before any wrong answer."""
    result = jobs.run(2, *program("threads"), "4", "300", protocol="pessimistic")
    assert result.code != 0
    assert "thread" in result.errors, result.describe()
    assert "--protocol auto" in result.errors, f"the way out should be named\n{result.describe()}"


@pytest.mark.parametrize("protocol", [slow("none"), "pessimistic"])
def test_a_message_of_more_than_two_gigabytes(jobs, program, protocol):
    result = jobs.run(2, *program("big"), str(2**31 + 5), "count", protocol=protocol).ok()
    assert result.text == f"big bytes={2**31 + 5} ok\n"


@pytest.mark.soak
@pytest.mark.parametrize("protocol", ["none", "pessimistic"])
@pytest.mark.parametrize("how", ["count", "type"])
@pytest.mark.parametrize("size", [1, 2])
def test_a_message_of_more_than_four_gigabytes(jobs, program, protocol, how, size):
    """Both ends and the log hold it, so one message a job; the log's usual bound depends on the machine."""
    if harness.available_memory() < 14 * 2**30:
        pytest.skip("needs 14 GiB of memory")
    bytes_ = 2**32 + 2**20 + 5
    options = ["--log-memory", "5G"]
    result = jobs.run(size, *program("big"), str(bytes_), how, protocol=protocol, options=options, timeout=300).ok()
    assert result.text == f"big bytes={bytes_} ok\n"
