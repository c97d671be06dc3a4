# SPDX-License-Identifier: Apache-2.0
"""Programs that look for messages between pieces of work are not put to sleep for that."""

import pytest

from harness import in_time


@pytest.mark.parametrize("protocol", ["none", "pessimistic", "channel-memory"])
@pytest.mark.perf
def test_calls_that_find_nothing(jobs, program, protocol):
    """A call takes at most as long as the work between two calls, however often it is made; here twice that, for slow
    machines."""
    result = jobs.run(2, *program("polls"), protocol=protocol).ok()
    times = {name: float(time) for name, time in map(str.split, result.text.splitlines())}
    assert times.keys() == {"probe", "test", "flush"}
    in_time(max(times.values()) < 4, result.describe())
