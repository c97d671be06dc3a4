# SPDX-License-Identifier: Apache-2.0
"""Programs that do not repeat themselves are found out: an error, never a silently wrong answer."""

import pytest

pytestmark = pytest.mark.protocol("pessimistic")


def run(jobs, program, variant, n=3, victim=1, **more):
    marker = jobs.directory / "marker"
    result = jobs.run(n, *program("nondeterministic"), variant, victim, "100", marker, "300", **more)
    assert marker.exists(), f"the victim has not died\n{result.describe()}"
    return result


@pytest.mark.parametrize("variant", ["time", "random", "pid", "length", "tag"])
def test_a_different_message_is_detected(jobs, program, variant):
    result = run(jobs, program, variant)
    assert result.code != 0 and "done" not in result.text, result.describe()
    for word in ("rank 1", "rank 2", "send number"):
        assert word in result.errors, f"{word!r} should be there\n{result.describe()}"
    if variant != "tag":
        assert "tag 1" in result.errors, result.describe()
    assert "--protocol auto" in result.errors and "find the source" in result.errors, result.describe()


@pytest.mark.parametrize("variant", ["random", "order"])
def test_under_causal_logging(jobs, program, variant):
    result = run(jobs, program, variant, protocol="causal")
    assert result.code != 0 and "done" not in result.text, result.describe()
    assert "rank 1" in result.errors and "--protocol auto" in result.errors, result.describe()


def test_other_destinations_are_detected(jobs, program):
    result = run(jobs, program, "destination", n=4)
    assert result.code != 0 and "done" not in result.text, result.describe()
    assert "rank 1" in result.errors, result.describe()


def test_a_wait_for_what_cannot_come_is_detected(jobs, program):
    """Nothing new is delivered before the last sends are repeated, and the victim does not repeat them before it has got something."""
    result = run(jobs, program, "order")
    assert result.code != 0 and "done" not in result.text, result.describe()
    assert "rank 1 waits for a message before it has repeated its last sends (1 of them)" in result.errors, result.describe()


@pytest.mark.parametrize("variant", ["threads", "multiple"])
def test_threads_are_detected_or_refused(jobs, program, variant):
    marker = jobs.directory / "marker"
    result = jobs.run(3, *program("nondeterministic"), variant, "1", "100", marker, "300")
    assert result.code != 0 and "done" not in result.text, result.describe()
    assert "thread" in result.errors and "--protocol auto" in result.errors, result.describe()


@pytest.mark.parametrize("variant", ["none", "address"])
def test_what_repeats_is_not_suspected(jobs, program, variant):
    """Addresses repeat when the memory layout is pinned."""
    result = run(jobs, program, variant).ok()
    assert result.text == f"nondeterministic {variant} iterations=300 done\n"


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_of_any_rank(jobs, program, victim):
    """Whichever rank it is."""
    result = run(jobs, program, "random", victim=victim)
    assert result.code != 0 and f"rank {victim}" in result.errors, result.describe()


def test_undisturbed_they_may_do_as_they_like(jobs, program):
    for variant in ("time", "random", "pid", "length", "tag", "destination"):
        marker = jobs.directory / f"marker.{variant}"
        marker.touch()
        jobs.run(3, *program("nondeterministic"), variant, "1", "100", marker, "300").ok()
