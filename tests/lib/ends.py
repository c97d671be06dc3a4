# SPDX-License-Identifier: Apache-2.0
"""Programs of which one rank finishes long before the others."""

from pathlib import Path

import harness
from survival import A_RANK_THAT_LEAVES

THREE = ["--nodes", "3", "-ppn", "1", "--lease", "10s"]

# `wait`: until the file of this number is there.
WAITS = """
import os, sys, time, zlib
from mpi4py import MPI
world = MPI.COMM_WORLD
total = 0
def wait(number):
    while not os.path.exists(sys.argv[1] + str(number)):
        time.sleep(0.01)
"""

# Rank 2 sends much, and leaves. Rank 0 takes none of it before its first file is there.
MUCH_FROM_AN_END = WAITS + """
if world.rank == 2:
    for number in range(120):
        world.Send(bytes([number]) * (number * 97 + 1), dest=0)
elif world.rank == 0:
    for number in range(120):
        if number in (0, 60):
            world.send(number, dest=1)
            wait(number)
        data = bytearray(12000)
        status = MPI.Status()
        world.Recv(data, source=2, status=status)
        total = zlib.crc32(data[: status.Get_count()], total)
else:
    total = world.recv(source=0) + world.recv(source=0)
print("rank", world.rank, total)
"""

# Rank 2 leaves when it has got much, and the others send one another ten times as much as a log holds. With a name of
# files, rank 0 waits for the first when all is on its way to rank 2, and for the second in the middle.
MUCH_AFTER_AN_END = """
import os, sys, time, zlib
from mpi4py import MPI
world = MPI.COMM_WORLD
data, total = bytearray(1 << 20), 0
for number in range(640 if world.rank < 2 else 20):
    data[number] = number % 251
    if world.rank == 0 and number in (20, 300):
        while sys.argv[1:] and not os.path.exists(sys.argv[1] + str(number)):
            time.sleep(0.01)
    if world.rank == 2:
        total = zlib.crc32(world.recv(source=0), total)
    elif world.rank == 0:
        if number < 20:
            world.send(bytes(data), dest=2)
        world.send(bytes(data), dest=1)
    else:
        total = zlib.crc32(world.recv(source=0), total)
        if number % 4 == 0:
            world.send(number, dest=0)
    if world.rank == 0 and number % 4 == 0:
        total += world.recv(source=1)
print("rank", world.rank, total)
"""


# Rank 2 sends to both others, and leaves. Rank 0 takes nothing before its first file is there. Then the two go on.
TAKEN_AFTER_AN_END = WAITS + """
if world.rank == 2:
    for number in range(60):
        for to in (0, 1):
            world.Send(bytes([number + to]) * (number * 97 + 1), dest=to)
    print("rank 2 leaves")
    sys.exit()
if world.rank == 0:
    wait(0)
for number in range(60):
    data = bytearray(12000)
    status = MPI.Status()
    world.Recv(data, source=2, status=status)
    total = zlib.crc32(data[: status.Get_count()], total)
for number in range(1, 400):
    total = world.sendrecv(total, dest=1 - world.rank, source=1 - world.rank) * 31 + number
    total %= 1 << 61
    if number % 100 == 0:
        print("rank", world.rank, "has", number, total, flush=True)
    if number in (100, 200, 300) and world.rank == 0:
        wait(number)
print("rank", world.rank, total)
"""


def lives_of_the_end(*results):
    """The lives of rank 2, which finishes early."""
    return [event["life"] for result in results for event in result.of("started") if event["rank"] == 2]


def leaving(jobs):
    """A program of which rank 2 leaves early, what its rank 0 waits for, and its undisturbed run."""
    command = [harness.PYTHON, "-c", A_RANK_THAT_LEAVES, jobs.directory / "go"]
    calm = jobs.directory / "calm"
    for number in (30, 60, 90):
        Path(f"{calm}{number}").touch()

    def go(number):
        Path(f"{command[-1]}{number}").touch()

    return command, go, lambda: jobs.calm(3, *command[:-1], calm)
