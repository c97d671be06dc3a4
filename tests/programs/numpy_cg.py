# SPDX-License-Identifier: Apache-2.0
"""Conjugate gradient on numpy arrays, sent as buffers.

    numpy_cg.py [N=200] [ITERATIONS=150]
"""
import sys

import numpy as np
from linger import linger
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
n = int(sys.argv[1]) if len(sys.argv) > 1 else 200
iterations = int(sys.argv[2]) if len(sys.argv) > 2 else 150
first, last = n * rank // size, n * (rank + 1) // size
rows = last - first
up = rank - 1 if rank > 0 else MPI.PROC_NULL
down = rank + 1 if rank < size - 1 else MPI.PROC_NULL


def dot(a, b):
    mine = np.array([np.sum(a * b)])
    total = np.empty(1)
    comm.Allreduce(mine, total)
    return total[0]


def apply(v):
    requests = [
        comm.Irecv(v[0], up, 1),
        comm.Irecv(v[-1], down, 2),
        comm.Isend(v[1], up, 2),
        comm.Isend(v[-2], down, 1),
    ]
    MPI.Request.Waitall(requests)
    out = 4 * v[1:-1] - v[:-2] - v[2:]
    out[:, 1:] -= v[1:-1, :-1]
    out[:, :-1] -= v[1:-1, 1:]
    return out


i, j = np.meshgrid(np.arange(first, last), np.arange(n), indexing="ij")
b = ((i * 7919 + j * 104729) % 1000) / 1000 - 0.5
x, p = np.zeros((rows + 2, n)), np.zeros((rows + 2, n))
r = b.copy()
p[1:-1] = r
start = rho = dot(r, r)
for k in range(iterations):
    linger(k, iterations)
    q = apply(p)
    alpha = rho / dot(p[1:-1], q)
    x[1:-1] += alpha * p[1:-1]
    r -= alpha * q
    rho, beta = (new := dot(r, r)), new / rho
    p[1:-1] = r + beta * p[1:-1]
rest = b - apply(x)
residual, carried = np.sqrt(dot(rest, rest) / start), np.sqrt(rho / start)
assert abs(residual - carried) <= 1e-6 * carried + 1e-12, (residual, carried)
norm = np.sqrt(dot(x[1:-1], x[1:-1]))
if rank == 0:
    print(f"numpy_cg n={n} iterations={iterations} residual={float(carried)!r} norm={float(norm)!r}")
