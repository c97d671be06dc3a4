# SPDX-License-Identifier: Apache-2.0
"""The parameter sweep of sweep.py by FT-MPI's rules (mode SHRINK); any rank may be lost at any moment, also rank 0.

    resurgo run --ft-mode shrink -n 4 python ftmpi_sweep.py [ROUNDS [STEPS]]

A ball is thrown with drag. Each round has more drag, and tries 64 angles around the best angle of the round before. The
ranks share the angles. STEPS is the number of time steps for one second of flight. Put your own work into compute().

When a rank is lost, the next call raises an exception at every rank, whatever it waits for. Dup makes MPI.COMM_WORLD
whole again, without the lost ranks, and the others agree on the round from which they go on. The answer does not depend
on the number of ranks, bit for bit.
"""

import math
import os
import sys

import numpy as np
from mpi4py import MPI
from resurgo import ft

ANGLES = 64

rounds, steps = [*map(int, sys.argv[1:]), *(100, 100)[len(sys.argv) - 1 :]]
world = ft.Intracomm(MPI.COMM_WORLD)


def say(words):
    if world.rank == 0:
        print(f"ftmpi_sweep: {words}", file=sys.stderr, flush=True)


def survive(function):
    """Calls a function; returns whether it has succeeded. If not, a process is lost. Any other error is a mistake in
    the program."""
    try:
        function()
        return True
    except MPI.Exception as error:
        if error.Get_error_class() != MPI.ERR_OTHER:
            print(f"ftmpi_sweep: {error}", file=sys.stderr, flush=True)
            MPI.COMM_WORLD.Abort(1)
        return False


def closing(mode):
    """Whether collective calls have a closing barrier: they end well for all ranks, or for none. It takes time, and so
    is only for the end. Under another launcher there is none, and a loss ends the job."""
    if "libresurgo-ft" in os.environ.get("LD_PRELOAD", ""):  # resurgo run --ft-mode names its library there
        world.Set_attr(ft.FTMPI_COLL_MODE, mode)


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


class Sweep:
    def __init__(self):
        # Rounds that are done, the best angle, the ranges of the best throws: now, and before the last round.
        self.now = self.before = 0, 45.0, 0.0

    def run(self):
        while self.now[0] < rounds:
            number, best, total = self.now
            drag = 0.05 * (number + 1) / rounds
            angles = [best + 0.05 * (at - ANGLES // 2) for at in range(ANGLES)]
            ranges = np.zeros(ANGLES)
            for at in range(world.rank, ANGLES, world.size):  # the others are zero here, so that the sum is exact
                ranges[at] = compute(angles[at], drag)
            world.Allreduce(MPI.IN_PLACE, ranges, MPI.SUM)
            most = int(np.argmax(ranges))
            self.before = self.now
            self.now = number + 1, angles[most], total + float(ranges[most])
            if number % (rounds // 10 + 1) == 0:
                say(f"round {number} of {rounds} is done by {world.size} ranks")

        # Rank 0 prints. If one is lost before the end of the barrier, it may have been that one: then all go on, and
        # the next rank 0 prints again.
        closing(ft.FTMPI_COLL_MODE_STRICT)
        if world.rank == 0:
            _, best, total = self.now
            print(f"ftmpi_sweep: {rounds} rounds, best angle {best:.16e}, sum {total:.16e}", flush=True)
        world.Barrier()

    def recover(self):
        """The survivors rebuild MPI.COMM_WORLD. If another rank is lost meanwhile, they begin again."""
        world.Dup()  # from now on MPI.COMM_WORLD is the ranks that are left
        closing(ft.FTMPI_COLL_MODE_LOOSE)  # some may have come from the end, others from the last round
        least = np.array(self.now[0])
        world.Allreduce(MPI.IN_PLACE, least, MPI.MIN)
        if least < self.now[0]:  # some rank lacks the results of the last round: nobody is two rounds ahead
            self.now = self.before
        say(f"a rank is lost; {world.size} ranks go on with round {self.now[0]}")


# From now on failures are exceptions. Otherwise the first loss would end the job.
world.Set_errhandler(MPI.ERRORS_RETURN)
sweep = Sweep()
while not survive(sweep.run):
    while not survive(sweep.recover):
        pass
# Who is lost from here on has done its part.
