# SPDX-License-Identifier: Apache-2.0
"""One program for each thing of the kernel that an image must hold: undisturbed, with images, and with images and kills."""

import pytest

import harness
from harness import MANY

LOCKS = ["normal", "recursive", "errorcheck", "robust", "pi", "recursive_robust", "errorcheck_robust", "recursive_pi",
         "errorcheck_pi", "robust_pi", "recursive_robust_pi", "shared", "recursive_shared", "rwlock", "condition",
         "condition_timed", "semaphore", "barrier", "spin"]
WAITS = ["poll", "ppoll", "select", "pselect", "epoll", "nanosleep", "nanosleep_rest", "clock_nanosleep", "usleep",
         "sem_timedwait", "sigtimedwait", "futex"]
PROGRAMS = [
    *("files signals altstack place threads_kept churn openmp memory registers children users".split()),
    *(f"timers {kind}" for kind in ("interval", "posix", "posix_thread")),
    *(f"events {kind}" for kind in ("eventfd", "pipe", "epoll", "timerfd", "signalfd")),
    *(f"locks {kind}" for kind in LOCKS),
]


def command(words):
    name, *arguments = words.split()
    return [harness.PROGRAMS / "image" / name, *arguments]


def survive(jobs, rng, words, every, count, mean=0.4):
    """The program under kills; returns how many lives began from an image."""
    seed = rng.randrange(1 << 30)
    result = jobs.run(2, *command(words), options=[
        *MANY, "--checkpoint-every", f"{every}ms", "--fault", f"random,seed={seed},mean={int(mean * 1000)}ms,count={count}",
    ]).ok()
    started = [event for event in result.of("started") if event["life"] > 1]
    return result, sum(event["image"] > 0 for event in started)


@pytest.mark.parametrize("words", PROGRAMS)
def test_feature(jobs, rng, kills, words):
    calm = jobs.run(2, *command(words)).ok()
    for attempt in range(3):
        result, from_images = survive(jobs, rng, words, rng.choice([30, 50, 100]), kills or 6)
        assert result.out == calm.out and result.program_errors == b"", result.describe()
        if from_images:
            return
    pytest.fail(f"no life began from an image: {result.describe()}")


@pytest.mark.parametrize("kind", WAITS)
def test_waiting(jobs, rng, kills, kind):
    """A wait of 150 ms ends on time, whatever is done to the process."""
    calm = jobs.run(2, *command(f"waits {kind} 300")).ok()
    result = jobs.run(2, *command(f"waits {kind} 300"), options=["--checkpoint-every", "25ms"]).ok()
    assert result.out == calm.out and len(result.of("checkpointed")) > 20, result.describe()
    result, from_images = survive(jobs, rng, f"waits {kind}", 30, kills or 4)
    assert result.out == calm.out and result.program_errors == b"", result.describe()
    assert from_images, result.describe()


REFUSED = {
    "socket": "it has an open socket: descriptor",
    "socketpair": "it has an open socket: descriptor",
    "inotify": "it watches files (inotify): descriptor",
    "fifo": "it has an open descriptor of an unknown kind: descriptor",
    "dontfork": "some of its memory is not copied (MADV_DONTFORK)",
    "shared_file": "it shares writable memory with a file, a device or other processes",
    "memfd": "it shares writable memory with a file, a device or other processes",
    "sysv": "it shares writable memory with a file, a device or other processes",
    "child": "it has started other processes that still run",
    "zombie": "it has started other processes that still run",
    "file_lock": "it holds a lock on a part of a file: descriptor",
    "queued": "real-time signals wait for it",
    "robust_wait": "a thread waits for a mutex that is robust or inherits priority",
    "pi_wait": "a thread waits for a mutex that is robust or inherits priority",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_refused(jobs, kind):
    """No image as long as the thing is there; the program does not notice, and has images afterwards."""
    calm = jobs.run(2, *command(f"refused {kind}")).ok()
    result = jobs.run(2, *command(f"refused {kind}"), options=["--checkpoint-every", "20ms"]).ok()
    assert result.out == calm.out and result.program_errors == b"", result.describe()
    for rank in range(2):
        refused = [event["reason"] for event in result.of("not_checkpointed") if event["rank"] == rank]
        assert any(reason.startswith(REFUSED[kind]) for reason in refused), refused
        last = max(event["time"] for event in result.of("not_checkpointed") if event["reason"].startswith(REFUSED[kind]))
        taken = [event["time"] for event in result.of("checkpointed") if event["rank"] == rank]
        assert taken and taken[-1] > last
        first = min(event["time"] for event in result.of("not_checkpointed") if event["reason"].startswith(REFUSED[kind]))
        assert not [time for time in taken if first < time < last - 0.2], "an image was taken all the same"


def test_the_user_is_told_once_why_there_are_no_images(jobs):
    result = jobs.run(2, *command("refused socket 1200"), options=["--checkpoint-every", "300ms"]).ok()
    for rank in range(2):
        warning = f"resurgo: warning: no image of rank {rank} can be taken: it has an open socket: descriptor "
        assert result.errors.count(warning) == 1, result.describe()
    result = jobs.run(2, *command("refused socket"), options=["--checkpoint-every", "50ms"]).ok()
    assert "warning" not in result.errors, result.describe()
