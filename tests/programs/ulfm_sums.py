# SPDX-License-Identifier: Apache-2.0
"""Sums of which every rank knows the answer, in Python. Ranks are killed at random moments; the others go on.

    python ulfm_sums.py SEED STEPS KILLS MILLISECONDS
"""

import array
import os
import random
import signal
import sys
import threading

from mpi4py import MPI
from resurgo import ft

seed, steps, kills, most = map(int, sys.argv[1:])
world = ft.Intracomm(MPI.COMM_WORLD)
world.Set_errhandler(MPI.ERRORS_RETURN)
comm = world.Dup()
comm.Set_errhandler(MPI.ERRORS_RETURN)
try:
    comm.Barrier()  # nobody dies before all have come here
except MPI.Exception:  # others have left it, and one of them is lost
    pass
chance = random.Random(seed)
victims = chance.sample(range(comm.size), kills)
times = [chance.uniform(0, most / 1000) for _ in victims]
if comm.rank in victims:
    timer = threading.Timer(times[victims.index(comm.rank)], os.kill, [os.getpid(), signal.SIGKILL])
    timer.daemon = True
    timer.start()


def wrong(what, step, got):
    print(f"WRONG: rank {world.rank} ({comm.rank} of {comm.size}): {what} in step {step}: {got}", flush=True)
    MPI.COMM_WORLD.Abort(3)


def sums(step):
    got = comm.allreduce(comm.rank + step)
    if got != comm.size * (comm.size - 1) // 2 + comm.size * step:
        wrong("sum", step, got)


def words(step):
    got = comm.bcast([step] * 5000 if comm.rank == step % comm.size else None, root=step % comm.size)
    if got != [step] * 5000:
        wrong("words", step, got[:3])


def ring(step):
    got = comm.sendrecv((comm.rank, step), dest=(comm.rank + 1) % comm.size, source=(comm.rank - 1) % comm.size)
    if got != ((comm.rank - 1) % comm.size, step):
        wrong("ring", step, got)


step = 0
while step < steps:
    good = True
    try:
        (sums, words, ring)[step % 3](step)
    except MPI.Exception as error:
        if error.Get_error_class() not in ft.FAILURES:
            wrong("class", step, error.Get_error_class())
        comm.Revoke()
        good = False
    try:
        if step % 2:
            good = comm.Agree(int(good)) == 1
        else:
            bits = array.array("i", [good])
            comm.Iagree(bits).Wait()
            good = bits[0] == 1
    except MPI.Exception:
        good = False
    if good:
        step += 1
        if step == 10 and comm.rank == 0:
            print("they compute", flush=True)
        continue
    failed = comm.Get_failed()
    if comm.Ack_failed() < failed.size:
        wrong("acknowledged", step, failed.size)
    failed.Free()
    if comm.size % 2:
        fewer = comm.Shrink()
    else:
        fewer, request = comm.Ishrink()
        request.Wait()
    comm.Free()
    comm = fewer
print(f"rank {world.rank}: done, {comm.size}", flush=True)
