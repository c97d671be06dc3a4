# SPDX-License-Identifier: Apache-2.0
"""Ways to use files by MPI-IO in which a rank reads what is overwritten, moved or removed later. What it computes depends on
each byte, and so does the file."""

import pytest

import harness
from harness import slow
from image_files import calm_and_struck, struck_behind_an_image
from settings import MANY, PROTOCOLS, every

MODES = """
import sys
import numpy as np
from mpi4py import MPI
world, directory, kind = MPI.COMM_WORLD, sys.argv[1], sys.argv[2]
rank, size, number, total = world.rank, world.size, 32, world.rank + 1
both = MPI.MODE_CREATE | MPI.MODE_RDWR
def opened(name, mode):
    return MPI.File.Open(world, f"{directory}/{name}", mode)
def talk(found):
    global total
    total = (31 * total + int(found)) % 1000003
    total = (31 * total + world.sendrecv(total, (rank + 1) % size)) % 1000003
def row():
    return total * 100 + np.arange(number, dtype="q")
def look(file, place):
    found = np.zeros(number, dtype="q")
    file.Read_at(place, found)
    return found.sum()
def look_beside(file):
    return look(file, 8 * number * ((rank + 1) % size))
def interleaved(file):
    file.Set_view(8 * rank, MPI.INT64_T, MPI.INT64_T.Create_vector(number, 1, size).Commit())
if kind == "atomic":
    # Ranks have every third place of the same block. They read and write whole blocks, under a lock.
    file = opened("atomic", both)
    file.Set_atomicity(True)
    interleaved(file)
    for step in range(250):
        file.Write_at(0, row())
        talk(look(file, 0))
    file.Close()
elif kind == "append":
    # ROMIO keeps a shared pointer meanwhile. Each step adds rows behind those that were there.
    for step in range(30):
        file = opened("append", both | MPI.MODE_APPEND)
        end = file.Get_position()
        file.Seek(8 * number * rank, MPI.SEEK_CUR)
        file.Write_all(row())
        file.Close()
        talk(end)
elif kind == "pointer":
    # Each rank waits for the one before: the order of the rows is certain.
    file = opened("pointer", both)
    for step in range(40):
        file.Write_ordered(row())
        world.barrier()
        talk(file.Get_position_shared())
        world.barrier()
    file.Close()
elif kind == "scratch":
    # Each step removes its file.
    for step in range(30):
        file = opened("scratch", both | MPI.MODE_DELETE_ON_CLOSE)
        file.Write_at(8 * number * rank, row())
        world.barrier()
        found = look_beside(file)
        file.Close()
        talk(found)
elif kind == "turns":
    # Two files in turn, as checkpoints are; each is opened again to read it, in different ways.
    for step in range(40):
        name = f"turn-{step % 2}"
        file = opened(name, both)
        file.Set_size(64 * (step // 2 + 1))
        interleaved(file)
        file.Write_all(row())
        file.Close()
        world.barrier()
        file = opened(name, MPI.MODE_RDONLY if step % 3 else MPI.MODE_RDWR)
        found = look_beside(file) + file.Get_size()
        file.Close()
        talk(found)
elif kind == "made":
    # One rank removes a file, and another one makes it anew.
    for step in range(60):
        name, maker = f"made-{step % 3}", step % size
        if rank == maker:
            file = MPI.File.Open(MPI.COMM_SELF, f"{directory}/{name}", both)
            file.Write_at(0, row())
            file.Close()
        talk(step)
        world.barrier()
        if rank == (maker + 1) % size and step < 57:
            MPI.File.Delete(f"{directory}/{name}")
        world.barrier()
elif kind == "new":
    # Each rank makes a file that must be new, reads it without waiting, and removes it.
    for step in range(250):
        name = f"{directory}/new-{rank}"
        file = MPI.File.Open(MPI.COMM_SELF, name, both | MPI.MODE_EXCL)
        file.Iwrite_at(0, row()).Wait()
        found = np.zeros(number, dtype="q")
        file.Iread_at(0, found).Wait()
        file.Iwrite_at(0, row() + 1).Wait()
        talk(found.sum())
        file.Close()
        MPI.File.Delete(name)
elif kind == "removed":
    # The file has no name any more, and ranks go on with it.
    file = opened("removed", both)
    world.barrier()
    if rank == 0:
        MPI.File.Delete(f"{directory}/removed")
    world.barrier()
    for step in range(100):
        file.Write_at(8 * number * rank, row())
        world.barrier()
        found = look_beside(file)
        world.barrier()
        talk(found)
    file.Close()
print("rank", rank, total)
"""
KINDS = ["atomic", "append", "pointer", "scratch", "turns", "made", "new"]


@pytest.mark.gate(
    "1-*-pessimistic-none-atomic", "1-*-pessimistic-none-append", "1-*-pessimistic-none-made",
    "1-*-auto-images-pointer", "1-*-auto-images-new", "1-*-auto-images-turns", "1-*-causal-images-atomic",
    "1-*-blocking-images-append", "1-*-lamport-images-scratch",
)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("images", [[], every("20ms")], ids=["none", "images"])
@pytest.mark.parametrize("protocol", [protocol for protocol in PROTOCOLS if protocol != "hierarchical"])
@pytest.mark.parametrize("rank, messages", [(1, 300), slow(0, 150), slow(0, 450), slow(2, 400)])
def test_a_failure_changes_neither_answers_nor_files(jobs, protocol, images, kind, rank, messages):
    calm, result = calm_and_struck(jobs, MODES, kind, protocol, [*images, "--fault", f"rank={rank},messages={messages}"])
    assert harness.by_rank(result.ok().out) == harness.by_rank(calm.out), result.describe()
    # Where all return, a file of a shared pointer may stay.
    contents = [
        {file.name: file.read_bytes() for file in (jobs.directory / name).iterdir() if file.name[0] != "."} for name in ("calm", "struck")
    ]
    assert contents[0].keys() == contents[1].keys() and contents[0] == contents[1], (contents[0].keys(), contents[1].keys())


@pytest.mark.parametrize("protocol", ["pessimistic", "auto"])
def test_a_file_that_is_removed_while_it_is_open_is_not_replaced_by_another(jobs, protocol):
    """A rank that begins again has no way to what the others have open."""
    calm, result = calm_and_struck(jobs, MODES, "removed", protocol, ["--fault", "rank=1,messages=300"])
    if protocol == "auto":
        assert harness.by_rank(result.ok().out) == harness.by_rank(calm.out) and result.of("returned"), result.describe()
    else:
        assert result.code == 119 and "was removed meanwhile" in result.errors, result.describe()


# Rank 1 opens what rank 0 has made. Between both are the images. Then rank 0 removes it, and makes another one.
REPLACED = """
import os, sys, time
import numpy as np
from mpi4py import MPI
world, kind, left = MPI.COMM_WORLD, sys.argv[1], sys.argv[2]
rank, number = world.rank, 64
def opened(mode):
    return MPI.File.Open(MPI.COMM_SELF, "scratch", mode)
def wait_for(name):
    while not os.path.exists(name):
        time.sleep(0.01)
def row(step):
    return np.arange(number, dtype="q") + 1000 * step + 100 * rank
def look(file, rank):
    found = np.zeros(number, dtype="q")
    file.Read_at(8 * number * rank, found)
    return int(found.sum())
both, total = MPI.MODE_CREATE | MPI.MODE_RDWR, 0
for step in range(2):
    if rank == 0:
        file = opened(both)
        if kind != "empty":
            file.Write_at(0, row(step))
        if kind != "held":
            file.Close()
        if step == 1:
            if left == "gone":
                MPI.File.Delete("scratch")
            open("late", "w").close()
            wait_for("killed")
            if left == "gone":
                break
    world.barrier()
    if rank == 1:
        if step == 0:
            open("waits", "w").close()
            wait_for("taken")
        file = opened(MPI.MODE_RDWR)
        if kind != "empty":
            total += look(file, 0)
        file.Write_at(8 * number, row(step))
        file.Close()
    world.barrier()
    if rank == 0:
        if kind != "held":
            file = opened(MPI.MODE_RDWR)
        total += look(file, 1)
        file.Close()
        MPI.File.Delete("scratch")
    world.barrier()
    if left == "gone" and rank == 1:
        break
print("rank", rank, total, flush=True)
"""
WAVES = ["chandy-lamport", "blocking", slow("group"), slow("auto")]


@pytest.mark.parametrize("left", ["there", "gone"])
@pytest.mark.parametrize("kind", ["held", "closed", "empty"])
@pytest.mark.parametrize("protocol", WAVES)
def test_a_file_that_is_replaced_after_the_images_is_found_again_or_the_job_ends(jobs, protocol, kind, left):
    options = [*MANY, *every("1h")]
    job = jobs.start(2, harness.PYTHON, "-c", REPLACED, kind, left, protocol=protocol, options=options)
    result = struck_behind_an_image(jobs, job, "waits")
    # What rank 1 reads has no name any more, and nobody has it. Under `auto` rank 0 goes on alone.
    if kind == "closed" and protocol != "auto":
        assert result.code == 119 and "has opened" in result.errors and "by MPI-IO" in result.errors, result.describe()
        return
    result.ok()
    assert protocol == "auto" or result.of("returned"), result.describe()
    steps = 1 if left == "gone" else 2
    of = [sum(range(64)) * steps + 64 * (1000 * (steps * (steps - 1) // 2) + 100 * rank * steps) for rank in range(2)]
    expected = {0: [f"rank 0 {of[1]}\n".encode()], 1: [f"rank 1 {0 if kind == 'empty' else of[0]}\n".encode()]}
    assert harness.by_rank(result.out) == expected, result.describe()
