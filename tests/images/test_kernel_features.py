# SPDX-License-Identifier: Apache-2.0
"""One program for each feature of the kernel that an image must hold: undisturbed, with kills, from files alone, and
suspended."""

import os
import re
import shutil
import time

import pytest

import harness
from chains import Chain, ready
from harness import came_about, in_time, slow
from image_files import from_files, kill_with_snapshots, start, until_written, written
from settings import MANY

pytestmark = pytest.mark.protocol("pessimistic")

# Robust and priority-inheriting mutexes have their owner in the lock word itself.
LOCKS = ["recursive", "errorcheck", "robust", "pi", "rwlock", "condition"]
MORE_LOCKS = ["normal", "recursive_robust", "errorcheck_robust", "recursive_pi", "errorcheck_pi", "robust_pi",
              "recursive_robust_pi", "shared", "recursive_shared", "condition_timed", "semaphore", "barrier", "spin"]
WAITS = ["poll", *map(slow, ("nanosleep", "sem_timedwait", "epoll", "ppoll", "select", "pselect", "nanosleep_rest", "clock_nanosleep", "usleep",
                              "sigtimedwait", "futex"))]
PROGRAMS = [
    *("files signals altstack place threads_kept churn openmp memory changed registers children users guards shared".split()),
    *(f"timers {kind}" for kind in ("interval", "posix", "posix_thread")),
    *(f"events {kind}" for kind in ("eventfd", "pipe", "epoll", "timerfd", "signalfd")),
    *(f"locks {kind}" for kind in LOCKS),
    *(slow(f"locks {kind}") for kind in MORE_LOCKS),
]
# Needs rights: old numbers for new threads.
RIGHTS = ["setpriv", "--bounding-set=-checkpoint_restore,-sys_admin"]


def command(words):
    if isinstance(words, list):
        return words
    name, *arguments = words.split()
    return [harness.PROGRAMS / "image" / name, *arguments]


def survive(jobs, rng, words, every, count, before=()):
    """Runs the program under kills; returns the result and how many lives began from an image."""
    fault = f"random,seed={rng.randrange(1 << 30)},mean=350ms,count={count}"
    events = jobs.directory / f"killed{jobs.number + 1}.json"
    line = [*before, harness.RESURGO, "run", "-n", 2, "--json-events", events, *MANY, "--checkpoint-every", f"{every}ms",
            "--fault", fault, *command(words)]
    result = jobs.command(line, events=events).wait().ok()
    return result, sum(event["image"] > 0 for event in result.of("started"))


def survives(jobs, rng, words, kills, before=()):
    calm = jobs.calm(2, *command(words))
    for _ in range(3):
        result, from_images = survive(jobs, rng, words, rng.choice([30, 50, 100]), kills or 4, before)
        assert result.out == calm.out and result.program_errors == b"", result.describe()
        if from_images:
            return
    came_about(False, result, "a life from an image")


# The features that short runs take from files alone, and not also from sleeping copies.
FROM_FILES = ["files", "place", "memory", "guards", "shared", "timers posix", "events epoll"]

# The features of which short runs have a test of threads with new numbers.
NEW_NUMBERS = [f"locks {kind}" for kind in LOCKS[3:]]


@pytest.mark.parametrize("words", [slow(words) if words in FROM_FILES + NEW_NUMBERS else words for words in PROGRAMS])
@pytest.mark.gate("signals", "openmp", "events pipe", "timers posix_thread")
def test_feature(jobs, rng, kills, words):
    survives(jobs, rng, words, kills)


@pytest.mark.parametrize("words", [words if words in FROM_FILES or not isinstance(words, str) else slow(words) for words in PROGRAMS])
@pytest.mark.gate("files", "memory")
def test_feature_from_files(jobs, rng, tmp_path, words):
    calm = jobs.calm(2, *command(words))
    job = start(jobs, tmp_path / "images", 2, *command(words), every=f"{rng.choice([30, 50])}ms")
    for _ in range(4):
        rank = rng.randrange(2)
        # It may have ended meanwhile.
        if until_written(job, rank, len(written(job, rank)) + rng.randint(2, 4)) and rank in (lives := job.lives()):
            life = lives[rank][1]
            kill_with_snapshots(job, rank)
            job.reach(lambda rank=rank, life=life: job.lives().get(rank, (0, 0))[1] > life, what="the next life")
    result = job.wait().ok()
    assert result.out == calm.out and result.program_errors == b"", result.describe()
    came_about(from_files(result), result)


@pytest.mark.slow
@pytest.mark.parametrize("protocol, options", [("pessimistic", ["--checkpoint-compress", "zstd"]), ("blocking", []), ("auto", [])])
@pytest.mark.parametrize("words", PROGRAMS)
def test_feature_suspended(jobs, rng, words, protocol, options):
    calm = jobs.calm(2, *command(words))
    chain = Chain(jobs)
    chain.start(2, *command(words), options=options, protocol=protocol)
    going = True
    while going:
        ready(chain.last)
        time.sleep(rng.uniform(0, 0.6))
        going = chain.suspend() and chain.resume()
    result = chain.end()
    assert chain.out == calm.out and len(chain.runs) > 1, result.describe()
    assert all(run.result(0).program_errors == b"" for run in chain.runs), result.describe()


@pytest.mark.parametrize("words", ["threads_kept", "guards", "timers posix_thread", *(f"locks {kind}" for kind in LOCKS),
                                   *(slow(f"locks {kind}") for kind in MORE_LOCKS)])
@pytest.mark.gate("threads_kept")
def test_threads_with_new_numbers(jobs, rng, kills, words):
    """Without rights the threads of a woken rank have other numbers, and locks know their owner by the number."""
    if os.geteuid() == 0 and not shutil.which("setpriv"):
        pytest.skip("there is no setpriv to drop rights with")
    survives(jobs, rng, words, kills, RIGHTS if os.geteuid() == 0 else ())


@pytest.mark.parametrize("kind", WAITS)
def test_waiting(jobs, rng, kills, kind):
    """A wait of 150 ms ends on time, whatever happens to the process. One that began anew with each image would not end."""
    calm = jobs.calm(2, *command(f"waits {kind} 3000"))
    result = jobs.run(2, *command(f"waits {kind} 3000"), options=["--checkpoint-every", "25ms"])
    in_time(not re.search(r"it took \d+ ms$", result.errors, re.MULTILINE), result.describe())
    assert result.ok().out == calm.out, result.describe()
    came_about(len(result.of("checkpointed")) > 20, result)
    survives(jobs, rng, f"waits {kind}", kills)


REFUSED = {
    "socket": "it has an open socket: descriptor",
    "socketpair": "it has an open socket: descriptor",
    "inotify": "it watches files (inotify): descriptor",
    "fifo": "it has an open descriptor of an unknown kind: descriptor",
    "dontfork": "some of its memory is not copied (MADV_DONTFORK)",
    "guarded": "it has guard pages in shared memory (MADV_GUARD_INSTALL)",
    "shared_file": "it shares writable memory with a file, a device or other processes",
    "named": "it shares writable memory with a file, a device or other processes",
    "linked": "it shares writable memory with a file, a device or other processes",
    "of_others": "it shares writable memory with a file, a device or other processes",
    "beyond": "it has mapped more than there is of a file in memory",
    "sysv": "it shares writable memory with a file, a device or other processes",
    "child": "it has started other processes that still run",
    "zombie": "it has started other processes that still run",
    "file_lock": "it holds a lock on a part of a file: descriptor",
    "queue": "it has an open message queue: descriptor",
    "queued": "real-time signals wait for it",
    "robust_wait": "a thread waits for a mutex that is robust or inherits priority",
    "pi_wait": "a thread waits for a mutex that is robust or inherits priority",
}


# One of several features that are refused in the same way.
OFTEN = ["socket", "shared_file", "of_others", "child", "file_lock", "queued", "robust_wait"]


@pytest.mark.parametrize("kind", [kind if kind in OFTEN else slow(kind) for kind in REFUSED])
@pytest.mark.gate("socket")
def test_refused(jobs, kind):
    """There is no image while the feature is in use. The program does not notice, and has images afterwards."""
    if kind == "guarded" and tuple(map(int, os.uname().release.split(".")[:2])) < (6, 15):
        pytest.skip("before Linux 6.15 only private memory has guard pages")
    calm = jobs.calm(2, *command(f"refused {kind}"))
    result = jobs.run(2, *command(f"refused {kind}"), options=["--checkpoint-every", "20ms"]).ok()
    assert result.out == calm.out and result.program_errors == b"", result.describe()
    for rank in range(2):
        refused = [event for event in result.of("not_checkpointed") if event["rank"] == rank]
        times = [event["time"] for event in refused if event["reason"].startswith(REFUSED[kind])]
        assert times, refused
        taken = [event["time"] for event in result.of("checkpointed") if event["rank"] == rank]
        assert not [time for time in taken if times[0] < time < times[-1]], "an image was taken all the same"
        came_about(taken and taken[-1] > times[-1], result, "an image after that")


@pytest.mark.parametrize("protocol", ["auto", slow("pessimistic"), "blocking", slow("chandy-lamport"), slow("group")])
@pytest.mark.parametrize("kind", [kind if kind in OFTEN else slow(kind) for kind in REFUSED])
@pytest.mark.gate("child-auto", "of_others-blocking")
def test_no_loss_is_larger_for_images_that_are_refused(jobs, kind, protocol):
    """A rank is lost while it can have no image: as many ranks begin again as without --checkpoint-every. Images come by
    themselves when they can be taken."""
    if kind == "guarded" and tuple(map(int, os.uname().release.split(".")[:2])) < (6, 15):
        pytest.skip("before Linux 6.15 only private memory has guard pages")
    calm = jobs.calm(2, *command(f"refused {kind}"))
    job = jobs.start(2, *command(f"refused {kind}"), options=["--checkpoint-every", "20ms"], protocol=protocol)
    refused = lambda event: event["rank"] == 1 and event["reason"].startswith(REFUSED[kind])
    job.reach(lambda: any(map(refused, job.of("not_checkpointed"))), what="a refusal")
    job.kill([1])
    result = job.wait().ok()
    assert result.out == calm.out and result.program_errors == b"", result.describe()
    begun = sorted(event["rank"] for event in result.of("started") if event["life"] > 1)
    assert begun == ([1] if protocol in ("auto", "pessimistic") else [0, 1]), result.describe()
    last = max(event["time"] for event in result.of("not_checkpointed") if refused(event))
    of_all = "checkpointed" if protocol == "pessimistic" else "wave_complete"
    came_about(any(event["time"] > last for event in result.of(of_all)), result, "images after that")


def test_an_event_loop_of_python_begins_again(jobs, program):
    """It looks at its process number, which would be another one, and has a pair of sockets."""
    command = [*program("asyncio_sums.py"), "400"]
    calm = jobs.calm(2, *command)
    job = jobs.start(2, *command, options=["--checkpoint-every", "50ms"])
    job.reach(lambda: {event["rank"] for event in job.events if event["event"] == "not_checkpointed"} == {0, 1})
    job.kill([1])
    result = job.wait().ok()
    assert result.out == calm.out and result.restarts == 1, result.describe()
    came_about(any(event["reason"].startswith(REFUSED["socket"]) for event in result.of("not_checkpointed")), result)


def test_locks_of_python_that_children_take_later(jobs, rng, kills, program):
    """tqdm has such a lock, too: a named semaphore that is removed at once."""
    survives(jobs, rng, program("shared_counter.py"), kills)


@pytest.mark.slow
def test_the_user_is_told_once_why_there_are_no_images(jobs):
    result = jobs.run(2, *command("refused socket 1200"), options=["--checkpoint-every", "300ms"]).ok()
    for rank in range(2):
        warning = f"resurgo: warning: no image of rank {rank} can be taken: it has an open socket: descriptor "
        assert result.errors.count(warning) == 1, result.describe()
    result = jobs.run(2, *command("refused socket"), options=["--checkpoint-every", "50ms"]).ok()
    assert "warning" not in result.errors, result.describe()
