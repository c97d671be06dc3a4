# SPDX-License-Identifier: Apache-2.0
"""A lock and a counter of Python's multiprocessing, made at the beginning: semaphores and files in memory without names. Now and then
child processes count under the lock; the rest of the time this process does."""

import multiprocessing
import sys
import time

from mpi4py import MPI

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 60
fork = multiprocessing.get_context("fork")
lock = fork.RLock()
counter = fork.Value("q", 0)
done = fork.Semaphore(0)


def count(number):
    for _ in range(number):
        with lock:
            counter.value += 1
    done.release()


comm = MPI.COMM_WORLD
hashed = 0
for i in range(ROUNDS):
    if i % 10 == 5:
        children = [fork.Process(target=count, args=(50,)) for _ in range(2)]
        for child in children:
            child.start()
        for child in children:
            done.acquire()
            child.join()
            assert child.exitcode == 0
            child.close()
    else:
        count(100)
        done.acquire()
    assert counter.value == 100 * (i + 1), (i, counter.value)
    hashed = comm.allreduce((hashed * 31 + counter.value + comm.rank) % 1000003)
    end = time.monotonic() + 0.03
    while time.monotonic() < end:
        pass
if comm.rank == 0:
    print("counted", counter.value, hashed)
