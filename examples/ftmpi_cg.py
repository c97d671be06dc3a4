# SPDX-License-Identifier: Apache-2.0
"""The conjugate gradients of cg.py by FT-MPI's rules (mode REBUILD): new ranks come for lost ones.

    resurgo run --ft-mode rebuild -n 4 python ftmpi_cg.py [N [STEPS]]

Solves the Laplace equation on N x N points. The matrix is not stored. The lines of the grid form 24 blocks, and each
rank has some neighbouring ones.

- Every 20 steps all ranks make a checkpoint: each keeps a copy of its blocks, and another rank has one, too.
- When a rank is lost, the next call raises an exception at every rank, whatever it waits for. Dup starts a new rank in
  its place, which begins the program from its start. Then all ranks get their blocks of the last checkpoint, the new
  one those of the lost rank. If that and its partner are lost, all begin again.
"""

import os
import sys

import numpy as np
from mpi4py import MPI
from resurgo import ft

BLOCKS, EVERY = 24, 20

n, steps = [*map(int, sys.argv[1:]), *(480, 500)[len(sys.argv) - 1 :]]
lines = n // BLOCKS  # of a block
world = ft.Intracomm(MPI.COMM_WORLD)


def say(words):
    if world.rank == 0:
        print(f"ftmpi_cg: {words}", file=sys.stderr, flush=True)


# survive() and closing(): as in ftmpi_sweep.py, which explains them.


def survive(function):
    try:
        function()
        return True
    except MPI.Exception as error:
        if error.Get_error_class() != MPI.ERR_OTHER:
            print(f"ftmpi_cg: {error}", file=sys.stderr, flush=True)
            MPI.COMM_WORLD.Abort(1)
        return False


def closing(mode):
    if "libresurgo-ft" in os.environ.get("LD_PRELOAD", ""):
        world.Set_attr(ft.FTMPI_COLL_MODE, mode)


class Solver:
    def __init__(self):
        """Memory for my blocks, of which checkpoints keep three vectors and a number."""
        self.mine = range(world.rank * BLOCKS // world.size, (world.rank + 1) * BLOCKS // world.size)
        self.x, self.r, self.q = (np.zeros((len(self.mine) * lines, n)) for _ in range(3))
        self.p = np.zeros((len(self.mine) * lines + 2, n))  # one more line above and below
        self.rho = np.zeros(1)
        for number, vector in enumerate((self.x, self.r, self.p[1:-1], self.rho)):
            ft.protect(number, vector)

    def lines_of(self, block):
        begin = (block - self.mine[0]) * lines
        return slice(begin, begin + lines)

    def restore(self):
        """My blocks as they were at the last checkpoint, or at first."""
        closing(ft.FTMPI_COLL_MODE_LOOSE)
        try:
            step = world.Restore()
        except ft.Lost:
            step = None
        self.step = step or 0
        say(f"{world.size} ranks go on from step {self.step}")
        if step is None:
            self.x[:] = 0.0
            self.r[:] = self.p[1:-1] = 1.0  # x is zero, so that r is the right side
            self.rho[0] = self.dot(self.r, self.r)

    def run(self):
        self.restore()
        while self.step < steps:
            world.Checkpoint(self.step)
            if self.step // EVERY % (steps // EVERY // 10 + 1) == 0:
                say(f"step {self.step} of {steps} is saved")
            self.iterate(min(self.step + EVERY, steps))
        norm = self.dot(self.x, self.x)

        # Rank 0 prints. If one is lost before the end of the barrier, all go on from the last checkpoint, and it prints
        # again.
        closing(ft.FTMPI_COLL_MODE_STRICT)
        if world.rank == 0:
            print(f"ftmpi_cg: {n} x {n}, {steps} steps, r*r {self.rho[0]:.16e}, x*x {norm:.16e}", flush=True)
        world.Barrier()

    def dot(self, a, b):
        """Every rank adds the same numbers in the same order: a sum for each block. Those of others are zero here."""
        sums = np.zeros(BLOCKS)
        for block in self.mine:
            at = self.lines_of(block)
            sums[block] = (a[at] * b[at]).sum()
        world.Allreduce(MPI.IN_PLACE, sums, MPI.SUM)
        return sum(sums.tolist())

    def multiply(self):
        """q = A p, with lines of neighbours above and below. There is nothing (zero) around the grid."""
        p, q = self.p, self.q
        above = world.rank - 1 if world.rank > 0 else MPI.PROC_NULL
        below = world.rank + 1 if world.rank < world.size - 1 else MPI.PROC_NULL
        world.Sendrecv(p[1], above, 1, p[-1], below, 1)
        world.Sendrecv(p[-2], below, 2, p[0], above, 2)
        np.multiply(p[1:-1], 4.0, out=q)
        q[:, 1:] -= p[1:-1, :-1]
        q[:, :-1] -= p[1:-1, 1:]
        q -= p[:-2]
        q -= p[2:]

    def iterate(self, until):
        p = self.p[1:-1]
        while self.step < until:
            self.multiply()
            alpha = self.rho[0] / self.dot(p, self.q)
            self.x += alpha * p
            self.r -= alpha * self.q
            following = self.dot(self.r, self.r)
            p[:] = self.r + following / self.rho[0] * p
            self.rho[0] = following
            self.step += 1


if n < BLOCKS or n % BLOCKS or world.size > BLOCKS:
    say(f"N must be a multiple of {BLOCKS}, and there may be {BLOCKS} ranks")
    sys.exit(2)
# From now on failures are exceptions. Otherwise the first loss would end the job.
world.Set_errhandler(MPI.ERRORS_RETURN)
if ft.init_status() == ft.INIT_RESTARTED_NODE:
    print(f"ftmpi_cg: rank {world.rank} is new", file=sys.stderr, flush=True)
solver = Solver()
while not survive(solver.run):
    while not survive(world.Dup):  # all places are taken again; new ranks come from MPI_Init
        pass
# Who is lost from here on has done its part.
