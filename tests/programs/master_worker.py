# SPDX-License-Identifier: Apache-2.0
"""A master and its workers in Python; what chance decides goes into the messages, and both sides compare at the end.

    master_worker.py [TASKS=400]

The same idea as master_worker.c: a rank that was restarted and did not take the same decisions again cannot pass.
"""
import hashlib
import sys
from collections import defaultdict

from linger import linger
from mpi4py import MPI

TASK, RESULT, STOP = 1, 2, 3
comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
tasks = int(sys.argv[1]) if len(sys.argv) > 1 else 400
sent, received = defaultdict(hashlib.sha256), defaultdict(hashlib.sha256)
chance = hashlib.sha256()
idle = 0


def send(to, tag, what):
    comm.send(what, dest=to, tag=tag)
    sent[to].update(repr((tag, what)).encode())


def receive():
    """The next message of anybody, waited for by probing; the misses are counted."""
    global idle
    status = MPI.Status()
    while not comm.iprobe(source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG, status=status):
        idle += 1
    source, tag = status.source, status.tag
    what = comm.recv(source=source, tag=tag)
    received[source].update(repr((tag, what)).encode())
    chance.update(repr((source, idle, what)).encode())
    return source, tag, what


total = 0
if rank == 0:
    following, active = 0, size - 1
    for worker in range(1, size):
        send(worker, TASK, {"task": following, "chance": chance.hexdigest()})
        following += 1
    while active:
        worker, _, result = receive()
        total += result["value"]
        if following < tasks:
            send(worker, TASK, {"task": following, "chance": chance.hexdigest(), "idle": idle})
            following += 1
        else:
            send(worker, STOP, chance.hexdigest())
            active -= 1
else:
    while True:
        _, tag, order = receive()
        if tag == STOP:
            break
        value = order["task"]
        linger(value, tasks)
        for i in range(500 + value % 7 * 100):
            value = (value * 6364136223846793005 + i) % 2**61
        send(0, RESULT, {"value": value, "idle": idle, "chance": chance.hexdigest()})

theirs = comm.alltoall([sent[other].hexdigest() for other in range(size)])
for other in range(size):
    assert theirs[other] == received[other].hexdigest(), f"rank {rank}: rank {other} sent something else"
if rank == 0:
    print(f"master_worker tasks={tasks} total={total}, all histories agree")
