# SPDX-License-Identifier: Apache-2.0
"""What programs in Python make, rename and remove: it fails where something is there that should be new, or is not there."""

import os
import shutil
import sys
import time
from pathlib import Path

from mpi4py import MPI

world = MPI.COMM_WORLD
rounds, pause = (int(word) for word in sys.argv[1:3])
if world.rank == 0:
    os.mkdir("out.d")
world.barrier()
value = world.rank
for i in range(rounds):
    value = (31 * value + i + world.allreduce(value)) % (1 << 60)
    name = f"{world.rank}.{i}"
    with open(f"new.{name}", "x") as file:
        print(i, file=file)
    Path(f"dir.{name}/in/it").mkdir(parents=True)
    os.symlink(f"new.{name}", f"symlink.{name}")
    with open("state.new", "w") if world.rank == 0 else open(os.devnull, "w") as file:
        print(i, file=file)
    if world.rank == 0:
        os.replace("state.new", "state")
    if i % 2:
        os.unlink(f"new.{name}")
        shutil.rmtree(f"dir.{name}")
    time.sleep(pause / 1e6)
total = world.reduce(value)
if world.rank == 0:
    print("result", total)
