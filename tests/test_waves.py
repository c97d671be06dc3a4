# SPDX-License-Identifier: Apache-2.0
"""Coordinated waves (--protocol blocking): ranks killed at any moment, also while all of them return to a wave."""

import contextlib
import os
import signal
import time

from catalogue import BY_NAME, arguments
from harness import MANY, by_rank, storm

WAVES = [*MANY, "--checkpoint-every", "20ms"]


def test_random_kills_between_waves(jobs, program, rng, kills):
    command = [*program("comm_churn"), *arguments(BY_NAME["comm_churn"], True, None)]
    calm = jobs.run(8, *command).ok()
    job = jobs.start(8, *command, protocol="blocking", options=WAVES)
    storm(job, rng, kills or 4, max(0.3, calm.seconds))
    result = job.wait().ok()
    assert by_rank(result.out) == by_rank(calm.out)


def strike_the_returning(job, rng, most):
    """Kills a rank when there is a wave, and then up to two that have begun to return to it: they do not know their new
    processes' groups yet, or wait for the others. Returns how many of these were hit."""
    hits, blows, struck = 0, 0, set()
    while not job.over() and hits < most:
        started, waves, wave, returned, failed = {}, 0, 0, 0, 0
        for index, event in enumerate(job.events):
            match event["event"]:
                case "started":
                    started[event["rank"]] = (index, event["pid"])
                case "wave_complete":
                    wave = index
                case "returned":
                    returned = index
                case "failed":
                    failed = index
        fresh = [life for life in started.values() if life[0] > failed and life not in struck]
        if failed > returned:
            if fresh and blows < 2:
                blows += 1
                hits += 1
                strike(struck, rng.choice(fresh))
        elif wave > returned and len(fresh) == len(started):
            blows = 0
            time.sleep(rng.uniform(0, 0.01))
            strike(struck, rng.choice(fresh))
        time.sleep(0.001)
    return hits


def strike(struck, life):
    struck.add(life)
    with contextlib.suppress(ProcessLookupError):
        os.kill(life[1], signal.SIGKILL)


def test_kills_while_all_ranks_return(jobs, program, rng, kills):
    command = program("heat")
    calm = jobs.run(8, *command, "256", "1500").ok()
    job = jobs.start(8, *command, "256", "1500", protocol="blocking", options=WAVES)
    hits = strike_the_returning(job, rng, kills or 30)
    result = job.wait().ok()
    assert by_rank(result.out) == by_rank(calm.out)
    assert hits > 0 and any(event["wave"] > 0 for event in result.of("returned"))
