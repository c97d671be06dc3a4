# SPDX-License-Identifier: Apache-2.0
"""A parameter sweep in rounds; any rank may be lost at any moment, also rank 0.

    resurgo run --ft -n 4 python sweep.py [ROUNDS [STEPS]]

A ball is thrown with drag. Each round has more drag, and tries 64 angles around the best angle of the round before. The
ranks share the angles. STEPS is the number of time steps for one second of flight. Put your own work into compute().

After each round the ranks agree whether all of them have its results. If not, those that are left shrink the
communicator and repeat the round. All ranks know all results, so that a lost rank takes nothing with it but its part of
one round. The answer does not depend on the number of ranks, bit for bit.
"""

import math
import os
import sys

import numpy as np
from mpi4py import MPI
from resurgo import ft

ANGLES = 64

rounds, steps = [*map(int, sys.argv[1:]), *(100, 100)[len(sys.argv) - 1 :]]
# A communicator of our own. Lost ranks leave messages that nobody receives; in MPI.COMM_WORLD these would make
# MPI_Finalize fail. Before this, the loss of a rank ends the job.
comm = ft.Intracomm(MPI.COMM_WORLD).Dup()


def say(words):
    if comm.rank == 0:
        print(f"sweep: {words}", file=sys.stderr, flush=True)


def survive(function, *arguments):
    """Calls a function; returns whether it has succeeded. If a process is lost, this rank revokes the communicator:
    others may be waiting in it for this rank. Any other error is a mistake in the program."""
    try:
        function(*arguments)
        return True
    except MPI.Exception as error:
        if error.Get_error_class() not in ft.FAILURES:
            print(f"sweep: {error}", file=sys.stderr, flush=True)
            MPI.COMM_WORLD.Abort(1)
        comm.Revoke()
        return False


def all_good(flag):
    """Whether all ranks say that all is well, and nobody is lost. Every rank gets the same answer, although others may
    be lost in the middle of it. No other call promises that."""
    if "libresurgo-ft" not in os.environ.get("LD_PRELOAD", ""):  # resurgo run --ft names its library there
        # Under another launcher a loss ends the job, and MPICH alone has no agreement.
        return comm.allreduce(flag, MPI.LAND)
    try:
        return comm.Agree(int(flag)) == 1
    except MPI.Exception:
        return False


def shrink():
    """A communicator of the ranks that are left."""
    global comm
    fewer = comm.Shrink()
    comm.Free()
    comm = fewer


def compute(angle, drag):
    """How far a ball flies that is thrown at this angle (in degrees), with this drag."""
    radians, step = angle * (math.pi / 180.0), 1.0 / steps
    x, y, across, up = 0.0, 0.0, 30.0 * math.cos(radians), 30.0 * math.sin(radians)
    while y >= 0.0:
        slower = drag * math.sqrt(across * across + up * up)
        across = across - step * (slower * across)
        up = up - step * (slower * up + 9.81)
        x = x + step * across
        y = y + step * up
    return x


# From now on failures are exceptions. Otherwise the first loss would end the job.
comm.Set_errhandler(MPI.ERRORS_RETURN)
best, total = 45.0, 0.0  # the best angle so far; the ranges of the best throws
number = 0
while number < rounds:
    drag = 0.05 * (number + 1) / rounds
    angles = [best + 0.05 * (at - ANGLES // 2) for at in range(ANGLES)]
    ranges = np.zeros(ANGLES)
    for at in range(comm.rank, ANGLES, comm.size):  # the others are zero here, so that the sum is exact
        ranges[at] = compute(angles[at], drag)
    done = survive(comm.Allreduce, MPI.IN_PLACE, ranges, MPI.SUM)
    if not all_good(done):
        shrink()
        say(f"a rank is lost; round {number} begins again with {comm.size} ranks")
        continue
    # Now every rank has the results, and knows that all others have them.
    most = int(np.argmax(ranges))
    best = angles[most]
    total = total + float(ranges[most])
    if number % (rounds // 10 + 1) == 0:
        say(f"round {number} of {rounds} is done by {comm.size} ranks")
    number += 1

# The lowest rank prints. If one is lost meanwhile, it may have been that one: then the next prints again.
while True:
    if comm.rank == 0:
        print(f"sweep: {rounds} rounds, best angle {best:.16e}, sum {total:.16e}", flush=True)
    if all_good(True):
        break
    shrink()
