# SPDX-License-Identifier: Apache-2.0
"""Tasks of an event loop that work in threads, between messages: asyncio has a pair of sockets that threads wake the loop with.

    asyncio_sums.py [ROUNDS=100]
"""
import asyncio
import sys

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 100


def work(task, number):
    values = np.arange(20000.0) * (task + 1) + number
    return float(np.sum(values % 97))


async def main():
    loop = asyncio.get_running_loop()
    total = 0.0
    for number in range(rounds):
        tasks = [loop.run_in_executor(None, work, task, comm.rank + number) for task in range(4)]
        ticks = asyncio.create_task(asyncio.sleep(0.001, number))
        mine = sum(await asyncio.gather(*tasks))
        assert await ticks == number
        total = (total * 3 + comm.allreduce(mine)) % 1e9
    return total


total = asyncio.run(main())
assert comm.allreduce(total, MPI.MAX) == comm.allreduce(total, MPI.MIN) == total
if comm.rank == 0:
    print(f"asyncio_sums rounds={rounds} total={total!r}")
