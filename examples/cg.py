# SPDX-License-Identifier: Apache-2.0
"""Conjugate gradients with checkpoints in memory; any rank may be lost at any moment, also rank 0.

    resurgo run --ft -n 4 python cg.py [N [STEPS]]

Solves the Laplace equation on N x N points. The matrix is not stored. The lines of the grid form 24 blocks. Each rank
has some neighbouring blocks; with fewer ranks each has more.

- Every 20 steps all ranks make a checkpoint: each keeps a copy of its blocks, and another rank has one, too.
- After a loss the ranks that are left share the blocks anew, and each asks for the numbers of its blocks. Those of a lost
  rank come from its partner. If both are lost, all begin again.
- Sums are made block by block, in the same order with any number of ranks. So the answer is the same, bit for bit.
"""

import os
import sys

import numpy as np
from mpi4py import MPI
from resurgo import ft

BLOCKS, EVERY = 24, 20

n, steps = [*map(int, sys.argv[1:]), *(480, 500)[len(sys.argv) - 1 :]]
lines = n // BLOCKS  # of a block
# A communicator of our own. Lost ranks leave messages that nobody receives; in MPI.COMM_WORLD these would make
# MPI_Finalize fail. Before this, the loss of a rank ends the job.
comm = ft.Intracomm(MPI.COMM_WORLD).Dup()


def say(words):
    if comm.rank == 0:
        print(f"cg: {words}", file=sys.stderr, flush=True)


# survive(), all_good() and shrink(): as in sweep.py, which explains them.


def survive(function, *arguments):
    try:
        function(*arguments)
        return True
    except MPI.Exception as error:
        if error.Get_error_class() not in ft.FAILURES:
            print(f"cg: {error}", file=sys.stderr, flush=True)
            MPI.COMM_WORLD.Abort(1)
        comm.Revoke()
        return False


def all_good(flag):
    if "libresurgo-ft" not in os.environ.get("LD_PRELOAD", ""):
        return comm.allreduce(flag, MPI.LAND)
    try:
        return comm.Agree(int(flag)) == 1
    except MPI.Exception:
        return False


def shrink():
    global comm
    fewer = comm.Shrink()
    comm.Free()
    comm = fewer


class Solver:
    def lines_of(self, block):
        begin = (block - self.mine[0]) * lines
        return slice(begin, begin + lines)

    def save(self):
        comm.Checkpoint(self.step)

    def restore(self):
        """Shares the blocks among the ranks and fills them: from the last checkpoint, or as they are at first."""
        self.mine = range(comm.rank * BLOCKS // comm.size, (comm.rank + 1) * BLOCKS // comm.size)
        self.x, self.r, self.q = (np.zeros((len(self.mine) * lines, n)) for _ in range(3))
        self.p = np.zeros((len(self.mine) * lines + 2, n))  # one more line above and below
        self.rho = np.zeros(1)
        # Each block of each vector has a number of its own, whichever rank it belongs to.
        ft.unprotect()
        for block in self.mine:
            for which, vector in enumerate((self.x, self.r, self.p[1:-1])):
                ft.protect(3 * block + which, vector[self.lines_of(block)])
        ft.protect(3 * BLOCKS, self.rho)
        try:
            step = comm.Restore()
        except ft.Lost:
            step = None
        self.step = step or 0
        say(f"{comm.size} ranks go on from step {self.step}")
        if step is None:
            self.r[:] = self.p[1:-1] = 1.0  # x is zero, so that r is the right side
            self.rho[0] = self.dot(self.r, self.r)

    def dot(self, a, b):
        """Every rank adds the same numbers in the same order: a sum for each block. Those of others are zero here."""
        sums = np.zeros(BLOCKS)
        for block in self.mine:
            at = self.lines_of(block)
            sums[block] = (a[at] * b[at]).sum()
        comm.Allreduce(MPI.IN_PLACE, sums, MPI.SUM)
        return sum(sums.tolist())

    def multiply(self):
        """q = A p, with lines of neighbours above and below. There is nothing (zero) around the grid."""
        p, q = self.p, self.q
        above = comm.rank - 1 if comm.rank > 0 else MPI.PROC_NULL
        below = comm.rank + 1 if comm.rank < comm.size - 1 else MPI.PROC_NULL
        comm.Sendrecv(p[1], above, 1, p[-1], below, 1)
        comm.Sendrecv(p[-2], below, 2, p[0], above, 2)
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
        self.norm = self.dot(self.x, self.x)


if n < BLOCKS or n % BLOCKS or comm.size > BLOCKS:
    say(f"N must be a multiple of {BLOCKS}, and there may be {BLOCKS} ranks")
    sys.exit(2)
# From now on failures are exceptions. Otherwise the first loss would end the job.
comm.Set_errhandler(MPI.ERRORS_RETURN)
solver = Solver()
fine = survive(solver.restore)
while True:
    fine = fine and survive(solver.save)
    if not all_good(fine):
        shrink()
        fine = survive(solver.restore)
        continue
    if solver.step >= steps:
        break
    if solver.step // EVERY % (steps // EVERY // 10 + 1) == 0:
        say(f"step {solver.step} of {steps} is saved")
    fine = survive(solver.iterate, min(solver.step + EVERY, steps))

# The lowest rank prints. If one is lost meanwhile, it may have been that one: then the next prints again.
while True:
    if comm.rank == 0:
        print(f"cg: {n} x {n}, {steps} steps, r*r {solver.rho[0]:.16e}, x*x {solver.norm:.16e}", flush=True)
    if all_good(True):
        break
    shrink()
