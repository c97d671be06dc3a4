# SPDX-License-Identifier: Apache-2.0
"""Images of waves, and kills of ranks that return to one."""

import contextlib
import os
import signal
import time

PATIENCE = 60.0  # seconds for striking: a job that hangs must not keep its test from saying so


def strike_the_returning(job, rng, most, written=0):
    """Kills a rank when there is a wave, and so many files have been written since the last return. Then it kills up to
    two ranks that have begun to return: they do not know their new processes' groups yet, or wait for the others.
    Returns how many of these were hit."""
    hits, blows, struck = 0, 0, set()
    end = time.monotonic() + PATIENCE
    while not job.over() and hits < most and time.monotonic() < end:
        started, files, wave, returned, failed = {}, 0, 0, 0, 0
        for index, event in enumerate(job.events):
            match event["event"]:
                case "started":
                    started[event["rank"]] = (index, event["pid"])
                case "wave_complete":
                    wave = index
                case "image_written":
                    files += 1
                case "returned":
                    returned, files = index, 0
                case "failed":
                    failed = index
        fresh = [life for life in started.values() if life[0] > failed and life not in struck]
        if failed > returned:
            if fresh and blows < 2:
                blows += 1
                hits += 1
                strike(struck, rng.choice(fresh))
        elif wave > returned and files >= written and len(fresh) == len(started):
            blows = 0
            time.sleep(rng.uniform(0, 0.01))
            strike(struck, rng.choice(fresh))
        time.sleep(0.001)
    return hits


def strike(struck, life):
    struck.add(life)
    with contextlib.suppress(ProcessLookupError):
        os.kill(life[1], signal.SIGKILL)


def files(directory):
    """The image files of all ranks by the numbers of their waves."""
    waves = {}
    for path in sorted(directory.glob("*/rank-*.image-*")):
        waves.setdefault(int(path.name.rpartition("-")[2]), []).append(path)
    return waves
