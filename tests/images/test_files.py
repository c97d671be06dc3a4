# SPDX-License-Identifier: Apache-2.0
"""Files that ranks write. When a rank goes back to an image, bytes added since are cut off, and a file that it changes
in place has its old content again."""

import tempfile
import time

import pytest

import harness
from harness import PYTHON, by_rank, came_about, slow, storm
from image_files import calm_and_struck, kill_with_snapshots, reach_warm, warm
from settings import EVERY, MANY, WAVES, every
from survival import began_from_images

# Each rank has a file for each phase and one for all. What it writes differs from life to life, even in length. All
# ranks append to one more file.
WRITES = """
import os, random, sys, time
from mpi4py import MPI
world, directory, mode = MPI.COMM_WORLD, sys.argv[1], sys.argv[2]
random = random.SystemRandom()
def line(number):
    return f"{number} {'x' * random.randint(0, 400)}.\\n"
def settle():
    for _ in range(4):
        world.allreduce(1)
        time.sleep(0.012)
common = os.open(f"{directory}/common", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
with open(f"{directory}/own-{world.rank}", mode) as own:
    for phase in range(8):
        with open(f"{directory}/phase-{phase}-{world.rank}", "w") as file:
            for number in range(10):
                file.write(line(number))
                file.flush()
                own.write(line(10 * phase + number))
                own.flush()
                os.write(common, f"{world.rank} {phase} {number}\\n".encode())
                world.allreduce(1)
                time.sleep(0.006)
            settle()
settle()
print("rank", world.rank, "has written")
"""
PHASES, LINES = 8, 10


def start(jobs, directory, size, mode, **more):
    directory.mkdir(exist_ok=True)
    return jobs.start(size, harness.PYTHON, "-c", WRITES, directory, mode, **more)


def images(job, ranks):
    """How many images of each of so many ranks are complete."""
    waves = [event["event"] for event in job.events].count("wave_complete")
    alone = [event["rank"] for event in job.events if event["event"] == "checkpointed"]
    return [waves + alone.count(rank) for rank in range(ranks)]


def until_images(job, directory, ranks):
    """All ranks have images with their files open: a life from before would open a file for appending once more."""
    job.reach(lambda: all((directory / f"own-{rank}").exists() for rank in range(ranks)), what="files")
    before = images(job, ranks)
    return job.until(lambda: all(now > then + 1 for now, then in zip(images(job, ranks), before)), what="images")


def image_options(tmp_path, kept):
    files = ["--checkpoint-dir", tmp_path / "images", "--local-copies", "off"] if kept == "in files" else []
    return [*MANY, *every("30ms"), *files]


def struck(job, directory, tmp_path, kept, rng, kills):
    """Kills ranks of a job of two that has images, and waits for its end."""
    job.has_reached(until_images(job, directory, 2), "images")
    if kept == "in files":
        job.reach(lambda: len(list((tmp_path / "images").glob("*/rank-*.image-*"))) >= 2, what="files")
    print(storm(job, rng, kills or 5, 1.0))
    result = job.wait().ok()
    came_about(began_from_images(result), result)
    return result


def numbers(file):
    """The numbers in the lines of a file, all of which must be whole."""
    lines = file.read_text().splitlines(keepends=True)
    assert all(line.endswith(".\n") for line in lines), (file, [line for line in lines if not line.endswith(".\n")])
    return [int(line.split()[0]) for line in lines]


def check(directory, size):
    """Checks that nothing is there twice and nothing is missing; only the common file may repeat lines."""
    for rank in range(size):
        assert numbers(directory / f"own-{rank}") == list(range(PHASES * LINES))
        for phase in range(PHASES):
            assert numbers(directory / f"phase-{phase}-{rank}") == list(range(LINES)), (rank, phase)
    common = set((directory / "common").read_text().splitlines())
    assert common == {f"{rank} {phase} {number}" for rank in range(size) for phase in range(PHASES) for number in range(LINES)}


@pytest.mark.parametrize(
    "protocol, mode, kept",
    [
        ("blocking", "a", "in memory"),
        ("blocking", "w", "in files"),
        ("chandy-lamport", "w", "in memory"),
        ("chandy-lamport", "a", "in files"),
        slow("blocking", "w", "in memory"),
        slow("blocking", "a", "in files"),
        slow("chandy-lamport", "a", "in memory"),
        slow("chandy-lamport", "w", "in files"),
    ],
)
def test_what_has_been_written_since_an_image_is_cut_off(jobs, tmp_path, rng, kills, protocol, mode, kept):
    directory = tmp_path / "out"
    job = start(jobs, directory, 2, mode, protocol=protocol, options=image_options(tmp_path, kept))
    result = struck(job, directory, tmp_path, kept, rng, kills)
    assert all(event["wave"] > 0 for event in result.of("returned")), result.describe()
    check(directory, 2)


def test_a_rank_that_goes_back_alone_leaves_the_common_file(jobs, tmp_path, rng):
    """The rank cuts off its own files, which it will write again. What others appended to the common file stays."""
    directory = tmp_path / "out"
    job = start(jobs, directory, 3, "a", options=[*MANY, *every("100ms")], protocol="pessimistic")
    for _ in range(3):
        if until_images(job, directory, 3):
            time.sleep(rng.uniform(0, 0.1))
            job.kill([rng.randrange(3)])
    result = job.wait().ok()
    assert result.restarts == len(began_from_images(result)), result.describe()
    came_about(began_from_images(result), result)
    check(directory, 3)


# Each rank has a small database: a file that it reads, changes in place, and makes longer and shorter. It knows what
# every record must contain. One more database is common: each rank has a record there, which it writes and does not
# read.
CHANGES = """
import os, struct, sys, time
from mpi4py import MPI
world, directory, seen = MPI.COMM_WORLD, sys.argv[1], 0
steps, ballast = int(sys.argv[2]), b"x" * (int(sys.argv[3]) << 20)
own = open(f"{directory}/own-{world.rank}", "w+b", buffering=0)
common = os.open(f"{directory}/common", os.O_RDWR | os.O_CREAT)
records = []
for step in range(steps):
    where = step * 7 % (len(records) + 1)
    if step % 40 == 39:
        del records[where:]
        own.truncate(8 * where)
    elif where == len(records):
        records.append(step)
    own.seek(8 * where)
    found = own.read(8)
    if where < len(records):
        before = struct.unpack("q", found)[0] if found else step
        if before != records[where]:
            print(f"rank {world.rank}, step {step}: record {where} has {before}, not {records[where]}")
            world.Abort(7)
        seen = (31 * seen + before) % 2**61
        records[where] += world.allreduce(step)
        own.seek(8 * where)
        own.write(struct.pack("q", records[where]))
    os.pwrite(common, struct.pack("q", step), 8 * world.rank)
    world.barrier()
    time.sleep(0.006)
own.seek(0)
print("rank", world.rank, [number for (number,) in struct.iter_unpack("q", own.read())] == records, seen)
"""


@pytest.mark.gate("blocking-in files")
@pytest.mark.parametrize(
    "protocol, kept",
    [
        ("pessimistic", "in memory"),
        ("blocking", "in memory"),
        ("blocking", "in files"),
        slow("auto", "in files"),
        slow("pessimistic", "in files"),
        slow("chandy-lamport", "in memory"),
        slow("chandy-lamport", "in files"),
        slow("causal", "in memory"),
        slow("auto", "in memory"),
    ],
)
def test_a_file_that_is_changed_in_place_holds_what_it_held(jobs, tmp_path, rng, kills, protocol, kept):
    def run(name, **more):
        directory = tmp_path / name
        directory.mkdir()
        return directory, jobs.start(2, harness.PYTHON, "-c", CHANGES, directory, 160, 0, **more)

    calm = run("calm", protocol="none")[1].wait().ok().text
    assert calm.count("True") == 2
    directory, job = run("killed", protocol=protocol, options=image_options(tmp_path, kept))
    result = struck(job, directory, tmp_path, kept, rng, kills)
    assert sorted(result.text.splitlines()) == sorted(calm.splitlines()), result.describe()
    assert (directory / "common").read_bytes() == (159).to_bytes(8, "little") * 2


def test_an_image_that_is_copied_into_a_buffer_has_the_files_contents(jobs, tmp_path):
    """The process that writes it has hardly anything open, and does not count as another user of the files."""
    with tempfile.TemporaryDirectory(prefix="resurgo-test-", dir="/dev/shm") as images:
        options = ["--checkpoint-dir", images, "--local-copies", "off", *every("60ms")]
        job = jobs.start(2, harness.PYTHON, "-c", CHANGES, tmp_path, 1000, 300, options=options, protocol="pessimistic")
        reach_warm(job, 2)
        kill_with_snapshots(job, 0)
        result = job.wait().ok()
    assert result.text.count("True") == 2, result.describe()
    begun = began_from_images(result)
    # The newest one may have been forked.
    came_about(begun and begun[-1]["image"] in warm(job), result, "a life from an image that was copied")


# All ranks write one file for the whole run, which they cut off at the beginning, and a new one every few steps, which
# they delete first. Rank 0 does the cutting and deleting. With a view, parts of blocks are read and written back (data
# sieving).
TOGETHER = """
import sys, time
import numpy as np
from mpi4py import MPI
world, directory = MPI.COMM_WORLD, sys.argv[1]
def opened(name):
    return MPI.File.Open(world, f"{directory}/{name}", MPI.MODE_CREATE | MPI.MODE_RDWR)
common, total = opened("common"), 0
common.Set_size(0)
for step in range(120):
    total = world.allreduce(31 * total + step * world.rank + 1) % 1000003
    row = np.full(64, 10 * total + world.rank, dtype="q")
    common.Write_at((step * world.size + world.rank) * row.nbytes, row)
    if step % 20 == 10:
        name = f"step-{step}"
        if world.rank == 0:
            try:
                MPI.File.Delete(f"{directory}/{name}")
            except MPI.Exception:
                pass
        world.barrier()
        own = opened(name)
        own.Set_size(0)
        column = MPI.INT64_T.Create_vector(64, 1, world.size).Commit()
        own.Set_view(8 * world.rank, MPI.INT64_T, column)
        own.Write(row)
        own.Write_all(row + 1)
        own.Close()
        column.Free()
    time.sleep(0.005)
common.Close()
print("rank", world.rank, total)
"""


@pytest.mark.gate("auto*")
@pytest.mark.parametrize(
    "protocol, images",
    [
        ("pessimistic", []),
        ("auto", every("100ms")),
        ("hierarchical", every("100ms")),
        slow("pessimistic", every("60ms")),
        slow("auto", []),
        slow("causal", []),
        slow("causal", every("60ms")),
        slow("channel-memory", []),
        slow("blocking", every("60ms")),
        slow("group", every("60ms")),
    ],
)
def test_a_file_that_all_write_is_whole_although_one_of_them_repeats_what_it_did(jobs, tmp_path, rng, kills, protocol, images):
    def run(name, **more):
        directory = tmp_path / name
        directory.mkdir()
        return directory, jobs.start(3, harness.PYTHON, "-c", TOGETHER, directory, **more)

    calm, job = run("calm", protocol="none")
    expected = job.wait().ok()
    directory, job = run("killed", protocol=protocol, options=[*MANY, *images])
    job.reach(lambda: (directory / "step-10").exists(), what="a file")
    job.kill([0])
    print(storm(job, rng, kills or 3, 0.8))
    result = job.wait().ok()
    assert sorted(result.text.splitlines()) == sorted(expected.text.splitlines()), result.describe()
    for file in sorted(calm.iterdir()):
        assert (directory / file.name).read_bytes() == file.read_bytes(), (file.name, result.describe())
    assert sorted(path.name for path in directory.iterdir()) == sorted(path.name for path in calm.iterdir())


# Each rank writes a place of a file, its own or all ranks', talks to others, and reads the place. The next step writes the
# same place, or a new one, or behind the end of the file; or the file's shared pointer says where. Or it reads what another
# rank writes in each step, perhaps from a file that is open for reading only; or it reads the place, talks to others, and
# writes it back.
READS_BACK = """
import sys
import numpy as np
from mpi4py import MPI
world, directory, kind = MPI.COMM_WORLD, sys.argv[1], sys.argv[2]
alone = kind in ("same", "new", "end", "large", "late")
name, mode = f"{directory}/{kind}-{world.rank if alone else 0}", MPI.MODE_CREATE | MPI.MODE_RDWR
file = reader = MPI.File.Open(MPI.COMM_SELF if alone else world, name, mode)
if kind == "watched":
    reader = MPI.File.Open(world, name, MPI.MODE_RDONLY)
total, row = world.rank + 1, np.zeros(5 << 20 if kind == "large" else 64, dtype="q")
rank, beside = world.rank, (world.rank + 1) % world.size
def look(place):
    row[:] = 0
    reader.Read_at(place, row)
    return (31 * total + int(row.sum()) + place) % 1000003
def talk():
    found = total
    for _ in range(10):
        found = (31 * found + world.sendrecv(found, beside)) % 1000003
    return found
for step in range(60):
    place = file.Get_size() if kind == "end" else 512 * {"new": step, "shared": rank, "others": rank, "watched": rank}.get(kind, 0)
    if kind == "late":
        total = look(place)
        total = talk()
    row[:] = (total + step) * (0x10203040506 if kind == "large" else 1)
    if kind == "pointer":
        file.Write_shared(row)
    else:
        file.Write_at(place, row)
    total = talk()
    if kind in ("others", "watched"):
        world.Barrier()
        total = look(512 * beside)
        world.Barrier()
    elif kind not in ("pointer", "late"):
        total = look(place)
file.Close()
print("rank", world.rank, total)
"""


def read_back(jobs, kind, protocol, images):
    return calm_and_struck(jobs, READS_BACK, kind, protocol, [*images, "--fault", "rank=1,messages=700"])


IMAGES = pytest.mark.parametrize("images", [[], every("20ms")], ids=["none", "images"])


@pytest.mark.gate(
    "auto-same-none", "auto-new-images", "auto-shared-none", "auto-end-images", "auto-others-none", "auto-late-images",
    "blocking-pointer-images", "*-lamport-shared-images", "group-end-images",
)
@IMAGES
@pytest.mark.parametrize("kind", ["same", "new", "shared", "end", "pointer", "others", "late"])
@pytest.mark.parametrize("protocol", WAVES)
def test_what_mpi_io_overwrites_is_undone_where_all_return(jobs, protocol, kind, images):
    calm, result = read_back(jobs, kind, protocol, images)
    assert by_rank(result.ok().out) == by_rank(calm.out), result.describe()


@pytest.mark.slow
def test_more_than_a_rank_can_undo_ends_the_job_rather_than_be_wrong(jobs):
    calm, result = read_back(jobs, "large", "blocking", every("20ms"))
    if result.code == 0:
        assert by_rank(result.out) == by_rank(calm.out)
    else:
        assert result.code == 1 and "what it has overwritten since" in result.errors, result.describe()


@pytest.mark.gate(
    "pessimistic-same-images", "pessimistic-others-none", "pessimistic-watched-images", "pessimistic-pointer-none",
    "causal-late-images",
)
@IMAGES
@pytest.mark.parametrize("kind", ["same", "new", "shared", "end", "pointer", "others", "watched", "late"])
@pytest.mark.parametrize("protocol", ["auto", "pessimistic", "causal", "channel-memory"])
def test_a_rank_that_repeats_alone_reads_what_it_has_read_by_mpi_io(jobs, protocol, kind, images):
    calm, result = read_back(jobs, kind, protocol, images)
    assert by_rank(result.ok().out) == by_rank(calm.out), result.describe()
    assert not result.of("returned"), result.describe()


# Each rank holds a file, and removes it after its image. A later file has the same name, and often the same inode.
REMOVES = """
import os, sys, time
from mpi4py import MPI
world, go, end = MPI.COMM_WORLD, sys.argv[1], sys.argv[2]
name = f"{go}-{world.rank}"
def wait(path):
    while not world.bcast(os.path.exists(path)):
        time.sleep(0.005)
held = open(name, "w+")
held.write("first")
held.flush()
wait(go)
held.seek(0)
found = held.read()
held.close()
os.remove(name)
held = open(name, "w+")
held.write("later")
held.flush()
wait(end)
print("rank", world.rank, found)
"""


@pytest.mark.parametrize("protocol", ["blocking", slow("pessimistic")])
def test_a_later_file_with_the_number_of_a_former_one_is_another(jobs, tmp_path, protocol):
    """A rank that is rebuilt does not take it for the one that it had open."""
    go, end = tmp_path / "go", tmp_path / "end"
    options = ["--checkpoint-dir", tmp_path / "images", "--local-copies", "off", *every("50ms")]
    job = jobs.start(2, harness.PYTHON, "-c", REMOVES, go, end, options=options, protocol=protocol)
    job.reach(lambda: all(len(job.of("image_written", rank=rank)) > 1 for rank in range(2)), what="files of images")
    go.touch()
    job.reach(lambda: all((tmp_path / f"go-{rank}").read_text() == "later" for rank in range(2)), what="later files")
    job.kill([1])
    job.reach_event("failed", rank=1)
    end.touch()
    result = job.wait()
    if result.code == 0:
        assert sorted(result.text.splitlines()) == ["rank 0 first", "rank 1 first"], result.describe()
    else:
        assert "is another file than it was" in result.errors, result.describe()


# One stream of a directory is read over and over. There is an image in the middle of it.
READS_A_DIRECTORY = """
import ctypes, os, sys, time
from mpi4py import MPI
libc = ctypes.CDLL(None)
libc.opendir.restype = libc.readdir.restype = ctypes.c_void_p
libc.readdir.argtypes = libc.rewinddir.argtypes = [ctypes.c_void_p]
os.mkdir("many")
for number in range(20):
    open(f"many/{number}", "w").close()
stream, found = libc.opendir(b"many"), []
for step in range(3):
    count = 0
    while libc.readdir(stream):
        count += 1
        if (step, count) == (0, 5):
            open("ready", "w").close()
            while not os.path.exists("go"):
                time.sleep(0.01)
    found.append(count)
    MPI.COMM_WORLD.barrier()
    libc.rewinddir(stream)
print(found, flush=True)
"""


@pytest.mark.parametrize("options", [[], ["--local-copies", "off"]])
def test_an_open_directory_can_be_read_again(jobs, options):
    if options:
        options = [*options, "--checkpoint-dir", jobs.directory / "images"]
    job = jobs.start(1, PYTHON, "-c", READS_A_DIRECTORY, protocol="pessimistic", options=[*EVERY, *options])
    job.reach((job.directory / "ready").exists)
    job.reach_another("image_written" if options else "checkpointed")
    job.strike([0])
    (job.directory / "go").touch()
    result = job.wait().ok()
    assert result.out == b"[22, 22, 22]\n" and result.of("started")[-1]["image"] > 0, result.describe()
