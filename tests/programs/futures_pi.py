# SPDX-License-Identifier: Apache-2.0
"""Pi by mpi4py.futures: one rank hands out work, the others are its pool.

    futures_pi.py [TASKS=200]      (needs two ranks or more)
"""
import sys

from linger import linger
from mpi4py import MPI
from mpi4py.futures import MPICommExecutor

STEPS = 2000


def piece(task, tasks):
    """The integral of 4 / (1 + x^2) over one of `tasks` equal parts of [0, 1]."""
    linger(task, tasks)
    width = 1.0 / (tasks * STEPS)
    return sum(4.0 / (1.0 + ((task * STEPS + k + 0.5) * width) ** 2) for k in range(STEPS)) * width


def main():
    tasks = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    with MPICommExecutor(MPI.COMM_WORLD, root=0) as executor:
        if executor is not None:
            # map keeps the order of its arguments, so the sum does not depend on who was first
            pi = sum(executor.map(piece, range(tasks), [tasks] * tasks))
            assert abs(pi - 3.141592653589793) < 1e-9, pi
            print(f"futures_pi tasks={tasks} pi={pi!r}")


if __name__ == "__main__":
    main()
