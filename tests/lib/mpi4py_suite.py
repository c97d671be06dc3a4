# SPDX-License-Identifier: Apache-2.0
"""mpi4py's own tests."""

import re

import pytest

import harness

SUITE = next(harness.DEPS.glob("mpi4py-*/test/main.py"), None)


def verdicts(result):
    """The failed tests, and how many ran. The ranks print one after the other, or mixed: sets and counts only."""
    failed = set(re.findall(r"^(?:FAIL|ERROR): (.*)$", result.errors, re.M))
    ran = set(re.findall(r"^Ran (\d+) tests", result.errors, re.M))
    return failed, ran


def run_suite(run, size, *options, **more):
    if SUITE is None:
        pytest.skip("the test suite of mpi4py is missing; run scripts/setup.sh")
    return run(size, harness.PYTHON, "-B", SUITE, "-q", "--no-builddir", *options, **more)


def as_under_plain_mpich(ours, theirs):
    """Nothing fails that does not fail there too. Now and then plain MPICH fails a test that passes here."""
    failed, ran = verdicts(ours)
    their_failed, their_ran = theirs
    assert ran and ran == their_ran, f"under plain MPICH: {their_ran}\n{ours.describe()}"
    assert failed <= their_failed, f"only here: {sorted(failed - their_failed)}\n{ours.describe()}"
