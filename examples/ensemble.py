# SPDX-License-Identifier: Apache-2.0
"""An ensemble of simulations in teams of two ranks; any rank may be lost at any moment, also rank 0.

    resurgo run --ft -n 4 python ensemble.py [N [CYCLES]]

12 members compute the weather on a ring of N points (Lorenz 1996), from slightly different beginnings. A team has some
of the members, and shares the points of each. After 20 steps all teams meet: the members' mean draws each of them a
little, as observations would. Put your own model into slopes().

- Each team has a communicator of its own. Whoever sees a loss revokes both: its team, and all teams together.
- Every cycle begins with a checkpoint in memory. After a loss the ranks that are left form teams anew, and share members
  and points anew; those of a lost rank come from its partner. If both are lost, all begin again.
- The answer is the same, bit for bit, with any number of ranks and teams.
"""

import math
import os
import sys

import numpy as np
from mpi4py import MPI
from resurgo import ft

MEMBERS, BLOCKS, EVERY, TEAM, EDGE = 12, 8, 20, 2, 2

n, cycles = [*map(int, sys.argv[1:]), *(240, 200)[len(sys.argv) - 1 :]]
block = n // BLOCKS
# A communicator of our own. Lost ranks leave messages that nobody receives; in MPI.COMM_WORLD these would make
# MPI_Finalize fail. Before this, the loss of a rank ends the job.
comm = ft.Intracomm(MPI.COMM_WORLD).Dup()
team = None


def say(words):
    if comm.rank == 0:
        print(f"ensemble: {words}", file=sys.stderr, flush=True)


# survive(), all_good() and shrink(): as in sweep.py, which explains them.


def survive(function, *arguments):
    try:
        function(*arguments)
        return True
    except MPI.Exception as error:
        if error.Get_error_class() not in ft.FAILURES:
            print(f"ensemble: {error}", file=sys.stderr, flush=True)
            MPI.COMM_WORLD.Abort(1)
        comm.Revoke()
        if team:
            team.Revoke()
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


class Ensemble:
    def split(self):
        global team
        team = ft.Intracomm(comm.Split(self.team, comm.rank))

    def form_teams(self):
        """A communicator counts when all ranks agree that it is there: a loss may leave some with it and others without."""
        global team
        while True:
            if team:
                team.Free()
            team = None
            self.teams = max(1, comm.size // TEAM)
            self.team = comm.rank * self.teams // comm.size
            if all_good(survive(self.split)):
                return
            shrink()

    def save(self):
        comm.Checkpoint(self.cycle)

    def restore(self):
        """Shares members and points, and fills them: from the last checkpoint, or as they are at first."""
        self.members = range(self.team * MEMBERS // self.teams, (self.team + 1) * MEMBERS // self.teams)
        self.blocks = range(team.rank * BLOCKS // team.size, (team.rank + 1) * BLOCKS // team.size)
        self.points = slice(self.blocks.start * block, self.blocks.stop * block)
        # With EDGE more points on the left, and one more on the right.
        self.x = {member: np.zeros(EDGE + len(self.blocks) * block + 1) for member in self.members}
        # Each block of each member has a number of its own, whichever rank it belongs to.
        ft.unprotect()
        for member, x in self.x.items():
            for at in self.blocks:
                begin = EDGE + (at - self.blocks.start) * block
                ft.protect(member * BLOCKS + at, x[begin : begin + block])
        try:
            cycle = comm.Restore()
        except ft.Lost:
            cycle = None
        self.cycle = cycle or 0
        say(f"{comm.size} ranks in {self.teams} teams go on from cycle {self.cycle}")
        if cycle is None:
            for member, x in self.x.items():
                x[EDGE:-1] = 8.0 + 0.01 * ((7 * np.arange(n)[self.points] + 13 * member) % 17)

    def slopes(self, x):
        """How fast each point changes; it depends on neighbours, also of the next ranks on the ring."""
        left, right = (team.rank - 1) % team.size, (team.rank + 1) % team.size
        team.Sendrecv(x[-1 - EDGE : -1], right, 1, x[:EDGE], left, 1)
        team.Sendrecv(x[EDGE : EDGE + 1], left, 2, x[-1:], right, 2)
        return (x[EDGE + 1 :] - x[: -1 - EDGE]) * x[EDGE - 1 : -2] - x[EDGE:-1] + 8.0

    def forecast(self, x):
        following = np.zeros_like(x)
        for _ in range(EVERY):
            k1 = self.slopes(x)
            following[EDGE:-1] = x[EDGE:-1] + 0.01 * k1
            k2 = self.slopes(following)
            x[EDGE:-1] += 0.005 * (k1 + k2)

    def meet(self):
        """All members meet. What other ranks have is zero here, so that the sums are exact."""
        everything = np.zeros((MEMBERS, n))
        for member, x in self.x.items():
            everything[member, self.points] = x[EDGE:-1]
        comm.Allreduce(MPI.IN_PLACE, everything, MPI.SUM)
        mean, squares = np.zeros(n), np.zeros(n)
        for member in everything:
            mean += member
        mean /= MEMBERS
        for member in everything:
            squares += (member - mean) * (member - mean)
        for x in self.x.values():
            x[EDGE:-1] += 0.1 * (mean[self.points] - x[EDGE:-1])
        # One after the other, as the other languages add them; Python's own sum is more exact.
        self.mean, self.spread = (np.add.accumulate(values)[-1] for values in (mean, squares))
        self.mean, self.spread = self.mean / n, math.sqrt(self.spread / (MEMBERS * n))

    def run_cycle(self):
        for x in self.x.values():
            self.forecast(x)
        self.cycle += 1
        self.meet()


if n < EDGE * BLOCKS or n % BLOCKS or comm.size > TEAM * MEMBERS:
    say(f"N must be a multiple of {BLOCKS}, from {EDGE * BLOCKS} on, and there may be {TEAM * MEMBERS} ranks")
    sys.exit(2)
# From now on failures are exceptions. Otherwise the first loss would end the job. Teams get this from `comm`.
comm.Set_errhandler(MPI.ERRORS_RETURN)
ensemble = Ensemble()
ensemble.form_teams()
fine = survive(ensemble.restore)
while True:
    fine = fine and survive(ensemble.save)
    if not all_good(fine):
        shrink()
        ensemble.form_teams()
        fine = survive(ensemble.restore)
        continue
    if ensemble.cycle >= cycles:
        break
    if ensemble.cycle % (cycles // 10 + 1) == 0:
        say(f"cycle {ensemble.cycle} of {cycles} is saved")
    fine = survive(ensemble.run_cycle)

# The lowest rank prints. If one is lost meanwhile, it may have been that one: then the next prints again.
while True:
    if comm.rank == 0:
        said = f"{MEMBERS} members, {n} points, {cycles} cycles, mean {ensemble.mean:.16e}, spread {ensemble.spread:.16e}"
        print(f"ensemble: {said}", flush=True)
    if all_good(True):
        break
    shrink()
