# SPDX-License-Identifier: Apache-2.0
"""A program whose messages fill a small log."""

# Ranks send in turn, far more than a log holds. They wait for a file half way, and a rank that is told to wait for nothing computes on.
FLOOD = """
import os, sys, time
from mpi4py import MPI
import numpy
world = MPI.COMM_WORLD
buffer, total = numpy.zeros(32768), 0
for number in range(400):
    if number % 2 == world.rank:
        buffer[:] = (total * 31 + number) % 1000003
        world.Send(buffer, 1 - world.rank)
    else:
        world.Recv(buffer, 1 - world.rank)
    total = (total + int(buffer[number])) % 1000003
    if number == 200:
        print("rank", world.rank, "is half way:", total, flush=True)
        while not os.path.exists(sys.argv[1]):
            time.sleep(0.01)
print("rank", world.rank, "is through:", total, flush=True)
"""
