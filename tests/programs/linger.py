# SPDX-License-Identifier: Apache-2.0
"""For the programs in Python: they wait for their test as those in C do (`linger` in check.h)."""
import os
import time

SECONDS = 30


def linger(done, steps):
    """Takes its time in the last quarter of its steps while the test that has named the file AWAITED has not made it: messages and output
    are the same, and the job is not over before the test has done what it wants."""
    awaited = os.environ.get("AWAITED")
    if not awaited or 4 * done < 3 * steps:
        return
    end = time.monotonic() + SECONDS / max(1, steps / 4)
    while time.monotonic() < end and not os.path.exists(awaited):
        time.sleep(0.01)
