# SPDX-License-Identifier: Apache-2.0
"""The heat equation on a plate, cut into rows: what `resurgo demo` runs where there is no C compiler for MPI. The plate
at the end is the same, bit for bit, for any number of ranks.

    heat.py [NX=256] [NY=256] [STEPS=500] [RESULT_FILE]
"""

import sys
from array import array

from mpi4py import MPI


def main():
    words = sys.argv[1:]
    nx, ny, steps = (int(word) for word in words[:3] + ["256", "256", "500"][len(words[:3]):])
    world = MPI.COMM_WORLD
    rank, size = world.rank, world.size
    top, end = nx * rank // size, nx * (rank + 1) // size
    above = rank - 1 if rank > 0 else MPI.PROC_NULL
    below = rank + 1 if rank + 1 < size else MPI.PROC_NULL
    # Rows with a cold margin of one element on each side, and a row of the neighbours' at both ends.
    margin = array("d", bytes(8 * (ny + 2)))
    seed = lambda i, j: (i * 2654435761 + j * 40503) % 1048576 / 1048576
    rows = [array("d", [0.0, *(seed(i, j) for j in range(ny)), 0.0]) for i in range(top, end)]
    rows = [margin[:], *rows, margin[:]]
    for step in range(1, steps + 1):
        world.Sendrecv([rows[-2], MPI.DOUBLE], below, recvbuf=[rows[0], MPI.DOUBLE], source=above)
        world.Sendrecv([rows[1], MPI.DOUBLE], above, recvbuf=[rows[-1], MPI.DOUBLE], source=below)
        new = []
        for north, row, south in zip(rows, rows[1:], rows[2:]):
            around = zip(row, row[1:], row[2:], north[1:], south[1:])
            inner = [c + 0.2 * ((n + s) + (w + e) - 4 * c) for w, c, e, n, s in around]
            new.append(array("d", [0.0, *inner, 0.0]))
        rows[1:-1] = new
        if step % 500 == 0:
            peak = world.allreduce(max(map(max, rows[1:-1])), MPI.MAX)
            if rank == 0:
                print(f"step {step} peak {peak!r}", flush=True)
    parts = world.gather([row[1:-1] for row in rows[1:-1]])
    if rank == 0:
        plate = [row for part in parts for row in part]
        print(f"heat {nx}x{ny} steps={steps} sum={sum(map(sum, plate))!r}")
        if len(words) > 3:
            with open(words[3], "wb") as file:
                for row in plate:
                    row.tofile(file)


main()
