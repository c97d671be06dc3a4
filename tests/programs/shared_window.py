# SPDX-License-Identifier: Apache-2.0
"""Who shares a node, by MPI; a window in shared memory of those who do, and one of all, which may be an error."""

import numpy
from mpi4py import MPI

world = MPI.COMM_WORLD
node = world.Split_type(MPI.COMM_TYPE_SHARED)
window = MPI.Win.Allocate_shared(8 * 1000 if node.rank == 0 else 0, 8, comm=node)
memory, _ = window.Shared_query(0)
numbers = numpy.ndarray(buffer=memory, dtype="i8", shape=(1000,))
if node.rank == 0:
    numbers[:] = 0
window.Fence()
for round in range(200):
    numbers[node.rank :: node.size] += round + world.allreduce(world.rank)
    window.Fence()
sums = world.gather(int(numbers.sum()) if node.rank == 0 else 0)
if world.rank == 0:
    print(f"node of {node.size} of {world.size}, sums {sums}", flush=True)
window.Free()
try:
    MPI.Win.Allocate_shared(8, 8, comm=world).Free()
    error = "none"
except MPI.Exception as exception:
    error = exception.error_string.splitlines()[-1]
print(f"rank {world.rank}: window of all: {error}", flush=True)
