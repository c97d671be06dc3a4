# SPDX-License-Identifier: Apache-2.0
"""Image files: if a rank's process and snapshot are both gone, it is rebuilt from its newest good file."""

import contextlib
import datetime
import os
import re
import shutil
import signal
import stat
import subprocess
import time
from functools import partial
from pathlib import Path

import pytest

import harness
from catalogue import BY_NAME, arguments
from harness import ROOT_ONLY, by_rank, came_about, slow
from image_files import (
    HEAT, damage_bit, damage_end, files, flip, from_files, kill_with_snapshots, of_rank, passes_over, reach_written,
    start, survives_without_two_files, until_written, written,
)
from sealing import change_note, change_suspended, from_another_kernel, of_format_7
from settings import MANY
from survival import agent_of, fillers, snapshots

pytestmark = pytest.mark.protocol("pessimistic")
ZSTD = ("--checkpoint-compress", "zstd")
LONG = ("400", "400", "9000")


def lives(job, rank):
    return of_rank(job, "started", rank)


def of_the_writer(job, rank):
    """What a rank has open that is not its own: image files, and pipes besides its standard ones. Empty when it has
    ended."""
    found = {}
    with contextlib.suppress(FileNotFoundError):
        for entry in Path(f"/proc/{lives(job, rank)[-1]['pid']}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                found[int(entry.name)] = os.readlink(entry)
    return {number: what for number, what in found.items() if number > 2 and re.match(r"pipe:|.*/rank-\d+\.", what)}


def is_complete(path):
    with open(path, "rb") as file:
        return file.read(8) == b"resurgoI"


@pytest.mark.parametrize(
    "name, options",
    [
        ("master_worker", ()),
        *(slow(name, ()) for name in ("messages", "heat", "comm_churn", "pickles.py", "numpy_cg.py", "cg", "transpose", "heat_f08")),
        *(slow(name, ZSTD) for name in ("numpy_cg.py", "heat", "messages", "cg", "pickles.py")),
    ],
)
def test_answers_are_the_same(jobs, program, tmp_path, name, options):
    entry = BY_NAME[name]
    calm_file, file = tmp_path / "calm", tmp_path / "disturbed"
    calm = jobs.calm(3, *program(name), *arguments(entry, True, calm_file))
    job = start(jobs, tmp_path / "images", 3, *program(name), *arguments(entry, True, file), every="50ms", options=options)
    for rank in (0, 2):
        if until_written(job, rank):
            kill_with_snapshots(job, rank)
            job.reach(lambda rank=rank: job.lives().get(rank, (0, 0))[1] > 1, what="the next life")
    result = job.wait().ok()
    assert sorted(result.out.splitlines()) == sorted(calm.out.splitlines())
    assert not entry.result or file.read_bytes() == calm_file.read_bytes()
    assert result.restarts == 0 or from_files(result), result.describe()


@pytest.mark.parametrize("options", [slow(()), ZSTD])
def test_a_rebuilt_rank_is_rebuilt_again(jobs, program, tmp_path, options):
    calm = jobs.calm(2, *program("heat"), *HEAT)
    job = start(jobs, tmp_path / "images", 2, *program("heat"), *HEAT, every="50ms", options=options)
    for life in range(1, 4):
        before = len(written(job, 1))
        if not until_written(job, 1, before + 2):
            break
        kill_with_snapshots(job, 1)
        job.reach(lambda life=life: job.lives().get(1, (0, 0))[1] > life, what="the next life")
    result = job.wait().ok()
    assert result.out == calm.out
    assert len(from_files(result)) >= 2, result.describe()


def oom_scores(pids):
    """Scores of the processes that still exist."""
    scores = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            scores.add(int(Path(f"/proc/{pid}/oom_score_adj").read_text()))
    return scores


def test_images_go_first_when_memory_is_used_up(jobs, program, tmp_path):
    """The kernel kills a sleeping image before a rank. A process that was an image is a rank like others again."""
    jobs.before = ["sh", "-c", 'echo 300 > /proc/self/oom_score_adj && exec "$@"', "sh"]
    calm = jobs.calm(2, *program("heat"), *LONG)
    job = start(jobs, tmp_path / "images", 2, *program("heat"), *LONG)

    def sleeps():
        newest = of_rank(job, "checkpointed", 1)[-1]
        return newest["copy"] == "forked" and newest["image"] == written(job, 1)[-1]["image"]

    for life, kill in ((2, job.kill), (3, lambda ranks: kill_with_snapshots(job, *ranks))):
        reach_written(job, 1, 2 * life)
        job.reach(sleeps, what="a newest image that sleeps")
        # A process that writes a file from a warm buffer shares its rank's memory, and so its score, until it has done.
        job.reach(lambda: oom_scores(snapshots(job)) == {1000}, what="the scores of images")
        kill([1])
        job.reach(lambda life=life: job.lives().get(1, (0, 0))[1] >= life, what="the next life")
        # It begins as an image, and becomes a rank at once.
        job.reach(lambda: oom_scores(pid for pid, _ in job.lives().values()) == {300}, what="the scores of ranks")
    result = job.wait().ok()
    assert result.out == calm.out
    first, second = (event["from_file"] for event in result.of("started") if event["life"] > 1)
    assert second, result.describe()
    # The next image may have been copied just before the kill, which leaves none that sleeps.
    came_about(not first, result, "a life from a sleeping image")


CHANGED = harness.PROGRAMS / "image" / "changed"


def killed_after_changes(jobs, rng, directory, kills=3, before=(), options=(), images=(5, 8)):
    """Kills ranks and their snapshots when their lives have written over some files. Returns the result, and for each
    kill whether the newest file received only a part of its bytes."""
    events = jobs.directory / f"changed{jobs.number + 1}.json"
    options = ["--checkpoint-every", f"{rng.choice([20, 30, 50])}ms", "--checkpoint-dir", directory, "--json-events", events, *options]
    command = [harness.RESURGO, "run", "-n", 2, "--protocol", "pessimistic", *MANY, *options, CHANGED]
    job = jobs.command([*before, *command], events=events, env=jobs.unhurried())
    partly = []
    for _ in range(kills):
        rank, count = rng.randrange(2), rng.randint(*images)
        if not until_written(job, rank, len(written(job, rank)) + count):
            break
        newest = written(job, rank)[-1]
        number = job.lives()[rank][1]
        kill_with_snapshots(job, rank)
        partly.append(newest["written_bytes"] < newest["bytes"] / 2)
        job.reach(lambda rank=rank, number=number: job.lives().get(rank, (0, 0))[1] > number, what="the next life")
    return job.wait().ok(), partly


def test_what_has_not_changed_is_not_written_again(jobs, rng, tmp_path):
    calm = jobs.calm(2, CHANGED)
    result, partly = killed_after_changes(jobs, rng, tmp_path / "images")
    assert result.out == calm.out and result.program_errors == b"", result.describe()
    assert any(partly) and len(from_files(result)) >= 2, result.describe()


@pytest.mark.parametrize("level", ["", slow(":3")])
def test_compressed_files_are_written_in_full(jobs, rng, tmp_path, level):
    calm = jobs.calm(2, CHANGED)
    options = ["--checkpoint-compress", f"zstd{level}"]
    result, partly = killed_after_changes(jobs, rng, tmp_path / "images", options=options, images=(2, 4))
    assert result.out == calm.out and result.program_errors == b"", result.describe()
    assert partly and not any(partly), result.describe()
    came_about(from_files(result), result)


HELD = harness.PROGRAMS / "image" / "held"


@pytest.mark.parametrize("mib", ["8", slow("200")])
def test_locks_know_their_owner_wherever_they_lie(jobs, tmp_path, mib):
    """The main thread of a rebuilt process has a new number."""
    calm = jobs.calm(2, HELD, mib)
    job = start(jobs, tmp_path / "images", 2, HELD, mib)
    reach_written(job, 0, 3)
    kill_with_snapshots(job, 0)
    result = job.wait().ok()
    assert result.out == calm.out, result.describe()
    came_about(from_files(result), result)


def test_compressed_files_are_small(jobs, program, tmp_path):
    """docs/guide/checkpointing.md has their sizes for C and for Python."""
    for name, most in (("heat", 5e6), ("numpy_cg.py", 10e6)):
        sizes = []
        for options in ((), ZSTD):
            directory = tmp_path / f"{name}{len(options)}"
            options = [*options, "--checkpoint-keep", "--checkpoint-at", "rank=all,messages=50"]
            command = [*program(name), *arguments(BY_NAME[name], True, tmp_path / "file")]
            jobs.start(2, *command, options=["--checkpoint-dir", directory, *options]).wait().ok()
            sizes.append(files(directory, 0)[-1].stat().st_size)
        assert sizes[1] < most and 2 * sizes[1] < sizes[0], sizes
        assert name != "heat" or sizes[0] < most, "of a fresh C rank also without compression"
        shown = jobs.resurgo("image", "show", files(directory, 0)[-1]).ok().text
        assert re.search(r"\ncompressed [\d.]+ [KM]iB, by zstd\n", shown), shown


@pytest.mark.gate("scan")
@pytest.mark.parametrize("what", ["userfaultfd", "scan"])
def test_a_kernel_that_keeps_no_track_gets_whole_files(jobs, rng, tmp_path, what):
    calm = jobs.calm(2, CHANGED)
    result, partly = killed_after_changes(jobs, rng, tmp_path / "images", before=[harness.PROGRAMS / "denied", what])
    assert result.out == calm.out and result.program_errors == b"", result.describe()
    assert partly and not any(partly), result.describe()
    came_about(from_files(result), result)
    assert all(event["written_bytes"] >= event["bytes"] - 4096 for event in result.of("image_written"))


def damage_header(path):
    flip(path, 100)


def damage_note(path):
    flip(path, 4100)


def damage_tables(path):
    flip(path, path.stat().st_size - 8000)


def damage_version(path):
    with open(path, "r+b") as file:
        file.seek(8)
        file.write(b"\x63")


def never_reached_the_disk(path):
    """The file has its length, but the file system had written only some of it."""
    size = path.stat().st_size
    os.truncate(path, size // 3)
    os.truncate(path, size)


def write_nothing(path):
    os.truncate(path, 0)


def old_pages(path):
    """Some pages are those of the image before."""
    before = sorted(path.parent.glob(path.name.rpartition("-")[0] + "-*"), key=lambda path: path.stat().st_mtime)[0]
    with open(path, "r+b") as file, open(before, "rb") as other:
        for at in range(8192, path.stat().st_size // 2, 4096):
            other.seek(at)
            file.seek(at)
            file.write(other.read(4096))


def of_another_rank(path):
    number = path.name.rpartition("-")[2]
    shutil.copy(next(path.parent.glob(f"rank-1.image-{number}"), None) or sorted(path.parent.glob("rank-1.image-*"))[0], path)


def newer_note(path):
    change_note(path, lambda note: note | {"version": 3})


def note_of_another_image(path):
    change_note(path, lambda note: note | {"image": note["image"] + 1})


def note_of_another_job(path):
    change_note(path, lambda note: note | {"job": "another"})


def no_note(path):
    change_note(path, lambda note: [note])


@pytest.mark.gate("damage_bit*")
@pytest.mark.parametrize(
    "damage, why, options",
    [
        (damage_bit, "the checksum of its memory is wrong", ()),
        slow(damage_bit, "the checksum of its memory is wrong", ZSTD),
        slow(damage_header, "the checksum of its header is wrong (bytes 0 to 4096)", ()),
        slow(damage_note, "the checksum of its note is wrong (bytes 4096 to 8192)", ()),
        slow(damage_tables, "the checksum of its tables is wrong", ZSTD),
        slow(damage_end, "bytes instead of", ()),
        slow(damage_end, "bytes instead of", ZSTD),
        slow(damage_version, "it has format 99", ()),
        slow(never_reached_the_disk, "the checksum of its tables is wrong", ZSTD),
        slow(write_nothing, "this is no image file", ()),
        slow(old_pages, "the checksum of its memory is wrong", ()),
        slow(old_pages, "the checksum of its memory is wrong", ZSTD),
        slow(of_another_rank, "of rank 1 of job", ()),
        (newer_note, "its note is of version 3, and this resurgo knows 2", ()),
        slow(note_of_another_image, "it is image", ()),
        slow(note_of_another_job, "of rank 0 of job another", ()),
        slow(no_note, "its note cannot be read", ()),
        (from_another_kernel, "not the image that this job has written there", ()),
        slow(os.remove, "No such file", ()),
    ],
)
def test_a_damaged_file_is_passed_over(jobs, program, tmp_path, damage, why, options):
    calm = jobs.calm(2, *program("heat"), *LONG)
    directory = tmp_path / "images"
    job = start(jobs, directory, 2, *program("heat"), *LONG, every="400ms", options=options)
    reach_written(job, 0)
    reach_written(job, 1)
    assert passes_over(job, directory, damage, why).out == calm.out


def kill_filler(agent, patience=10):
    """Kills the process that fills the memory of one being rebuilt, as soon as it exists; returns whether it did."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        for pid in fillers(agent):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                return True
    return False


@pytest.mark.slow
def test_when_the_memory_cannot_be_filled_the_older_file_is_taken(jobs, program, tmp_path):
    large = ("1500", "1500", "1200")
    calm = jobs.calm(2, *program("heat"), *large)
    job = start(jobs, tmp_path / "images", 2, *program("heat"), *large, every="200ms")
    reach_written(job, 0)
    agent = agent_of(job, 0)
    kill_with_snapshots(job, 0)
    if not kill_filler(agent):
        raise harness.Missed("the filler was gone before it was seen")
    result = job.wait().ok()
    assert result.out == calm.out, result.describe()
    # It may have said just before that the memory is filled.
    came_about(result.of("image_lost"), result, "a filler that is missed")
    # The filler is missed when it should get the memory, or when it should say that the memory is filled.
    lost = [event for event in result.of("image_lost") if re.search(r"\(system call (46|0)\)", event["reason"])]
    assert [event["rank"] for event in lost] == [0], result.describe()
    assert 0 < from_files(result)[0]["image"] < lost[0]["image"], result.describe()


def test_without_any_good_file_all_begin_again_and_the_reason_is_told(jobs, program, tmp_path):
    directory = tmp_path / "images"
    calm = jobs.calm(2, *program("heat"), *LONG)
    job = start(jobs, directory, 2, *program("heat"), *LONG, every="400ms")
    reach_written(job, 0)
    kill_with_snapshots(job, 0, lambda: [damage_end(path) for path in files(directory, 0)])
    result = job.wait().ok()
    assert result.out == calm.out and "bytes instead of" in result.errors, result.describe()
    assert "all ranks begin again: there are no images that they could go on from" in result.errors, result.describe()


def test_before_two_files_the_program_begins_again(jobs, program, tmp_path):
    survives_without_two_files(jobs, program, tmp_path / "images", length=LONG)


# Asks the kernel's own code for the time as often as possible.
CLOCKS = """
import sys, time
from mpi4py import MPI
world, last, total = MPI.COMM_WORLD, time.time(), 0
for number in range(int(sys.argv[1])):
    for _ in range(100):
        now = time.time()
        assert last <= now < last + 20
        last = now
    total = world.allreduce(total + world.rank + number) % 1000003
print("rank", world.rank, "total", total)
"""


def suspended_under_another_kernel(jobs, directory, options=(), threads=0):
    """A job that goes on from files of another kernel: the code that it gives to its processes is not this one's.
    Returns its output so far, and the job that goes on."""
    command = [harness.PYTHON, "-c", CLOCKS, "25000"]
    job = start(jobs, directory, 2, *command, every="150ms", options=options, protocol="blocking")
    reach_written(job, 0)
    jobs.resurgo("suspend", job.process.pid).ok()
    assert job.wait().code == 75
    (own,) = directory.iterdir()
    change_suspended(own, partial(from_another_kernel, threads=threads))
    events = jobs.directory / "events-after"
    resume = [harness.RESURGO, "resume", "--json-events", events, own]
    resumed = jobs.command(resume, events=events, env=jobs.unhurried())
    resumed.goes_on_from(job)
    return job.out.read_bytes(), resumed


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), slow(*[ZSTD])], ids=["plain", "zstd"])
def test_under_another_kernel(jobs, tmp_path, options):
    """An image of such a life is good, too."""
    calm = jobs.calm(2, harness.PYTHON, "-c", CLOCKS, "25000")
    before, job = suspended_under_another_kernel(jobs, tmp_path / "images", options)
    life = 0
    for kills in (True, True, False):
        job.reach(lambda: job.lives().get(0, (0, 0))[1] > life, what="the next life")  # noqa: B023
        (pid, life), known = job.lives()[0], len(written(job, 0))
        own = lambda: Path(f"/proc/{pid}/maps").read_text()  # noqa: B023
        job.reach(lambda: not re.search(r"\[vdso\]|\[vvar", own()), what="only the code of the other kernel")  # noqa: B023
        if kills:
            job.reach(lambda: len(written(job, 0)) >= known + 2, what="two files")  # noqa: B023
            kill_with_snapshots(job, 0)
    result = job.wait().ok()
    assert by_rank(before + result.out) == by_rank(calm.out)
    assert [event["from_file"] for event in result.of("started") if event["rank"] == 0] == [True] * 3, result.describe()


def test_inside_of_another_kernels_code(jobs, tmp_path):
    """A thread was inside, and nothing can replace that."""
    _, job = suspended_under_another_kernel(jobs, tmp_path / "images", threads=1)
    result = job.wait()
    assert result.code == 1 and "while a thread was in that one's own code" in result.errors, result.describe()


def test_a_changed_program_is_named(jobs, program, tmp_path):
    copy = tmp_path / "program"
    shutil.copy(program("heat")[0], copy)
    job = start(jobs, tmp_path / "images", 2, copy, *LONG, every="300ms")
    reach_written(job, 0)
    # An image that is taken later knows the program as it is then.
    kill_with_snapshots(job, 0, lambda: os.utime(copy))
    result = job.wait()
    assert result.code == 1 and f"{copy}, which the program had mapped, has changed since" in result.errors


def test_files_come_and_go(jobs, program, tmp_path):
    directory = tmp_path / "images"
    job = start(jobs, directory, 2, *program("heat"), *HEAT, every="50ms")
    reach_written(job, 0, 5)
    (own,) = directory.iterdir()
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    for path in own.iterdir():
        with contextlib.suppress(FileNotFoundError):  # removed, or renamed
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for _ in range(20):
        assert len(files(directory, 0)) <= 3  # briefly, between a new file and the end of the oldest
        time.sleep(0.01)
    job.wait().ok()
    assert not list(directory.iterdir())


def test_files_can_be_kept_and_shown(jobs, program, tmp_path):
    directory = tmp_path / "images"
    job = start(jobs, directory, 2, *program("heat"), *HEAT, every="100ms", options=["--checkpoint-keep"])
    for rank in range(2):
        reach_written(job, rank)
    job.wait().ok()
    (own,) = directory.iterdir()
    assert {path.name.partition(".")[2].partition("-")[0] for path in own.iterdir()} == {"image"}
    file = files(directory, 1)[-1]
    assert len(files(directory, 1)) == 2
    shown = jobs.resurgo("image", "show", file, env=harness.environment(TZ="XYZ-5:30")).ok().text
    written = re.search(r"\nwritten    (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+]0530)\n", shown)[1]
    age = time.time() - datetime.datetime.strptime(written, "%Y-%m-%d %H:%M:%S %z").timestamp()
    assert 0 <= age < 60 and re.search(r"\nmemory     [\d.]+ [KM]iB stored of [\d.]+ [MGT]iB mapped, in ", shown), shown
    number = file.name.rpartition("-")[2]
    assert shown.startswith(f"image {number} (format ")
    assert f"\nnote       image {number} of rank 1 of job {own.name}\n" in shown and "node memory" in shown, shown
    assert re.search(r"\d+ threads\n +\d+ heat \(main\)", shown) and "standard output" in shown
    damage_bit(file)
    refused = jobs.resurgo("image", "show", file)
    assert refused.code == 1 and "checksum" in refused.errors


TALK = """
from mpi4py import MPI
world = MPI.COMM_WORLD
other = 1 - world.rank
for step in range(int({steps})):
    if world.rank == 0:
        print("step", step, end={end!r}, flush=True)
        world.send(step, other)
        world.recv(source=other)
    else:
        world.send(world.recv(source=other), other)
"""


def note_length(file):
    with contextlib.suppress(FileNotFoundError), open(file, "rb") as opened:
        opened.seek(4096)
        return int.from_bytes(opened.read(4), "little")
    return 0


def shown_note(jobs, file):
    """The content of an image's note: bytes printed, deliveries, and messages sent to and delivered from the other
    rank."""
    shown = jobs.resurgo("image", "show", file).ok().text
    assert re.search(r"\nPMI        initialised; [1-9]\d* barriers, [1-9]\d* puts, [1-9]\d* gets, 0 commands", shown), shown
    printed = re.search(r"\nprinted    ([\d,]+) bytes on standard output, 0 bytes on standard error\n", shown)[1]
    deliveries = re.search(r"\ncovers     ([\d,]+) deliveries, of channels with 1 ranks\n", shown)[1]
    counts = re.search(r"\n  rank    [01]: (\d+) sent to it, (\d+) delivered from it, its log read from segment \d+\n", shown)
    return int(printed.replace(",", "")), int(deliveries.replace(",", "")), int(counts[1]), int(counts[2])


@pytest.mark.gate("short")
@pytest.mark.parametrize("end", ["\n", " "], ids=["short", "long"])
def test_a_note_says_where_the_rank_was(jobs, tmp_path, end):
    """The line being printed is part of the note, so the note may be longer than its page."""
    command = [harness.PYTHON, "-c", TALK.format(steps=20000, end=end)]
    calm = jobs.calm(2, *command)
    directory = tmp_path / "images"
    job = start(jobs, directory, 2, *command, every="300ms", options=["--checkpoint-keep"])
    reach_written(job, 0)
    reach_written(job, 1)
    if end == " ":
        job.reach(lambda: any(note_length(file) > 4096 for file in files(directory, 0)), what="a long note")
    notes = []

    def look():
        notes.append(shown_note(jobs, files(directory, 0)[-1]))

    kill_with_snapshots(job, 0, look)
    result = job.wait().ok()
    assert result.out == calm.out, result.describe()
    came_about(from_files(result), result)
    printed, deliveries, sent, delivered = notes[0]
    # The program prints a step first; then it sends its number and gets it back. MPI's own start has a few messages
    # more.
    steps = calm.out[:printed].count(b"step")
    assert calm.out[:printed].endswith(end.encode()) and delivered == deliveries, notes
    assert delivered <= sent <= delivered + 1 and steps - 1 <= sent <= steps + 10, notes


def test_files_of_the_format_before_are_read(jobs, program, tmp_path):
    calm = jobs.calm(2, *program("heat"), *LONG)
    directory = tmp_path / "images"
    job = start(jobs, directory, 2, *program("heat"), *LONG, every="150ms", protocol="blocking")
    reach_written(job, 0)
    jobs.resurgo("suspend", job.process.pid).ok()
    assert job.wait().code == 75
    (own,) = directory.iterdir()
    before = job.out.read_bytes()
    change_suspended(own, of_format_7)
    shown = jobs.resurgo("image", "show", files(directory, 1)[-1]).ok().text
    assert "(format 7)" in shown and " of rank 1 of job " in shown, shown
    events = jobs.directory / "events-after"
    resumed = jobs.command([harness.RESURGO, "resume", "--json-events", events, own], events=events, env=jobs.unhurried())
    resumed.goes_on_from(job)
    result = resumed.wait().ok()
    assert before + result.out == calm.out and not result.of("image_lost"), result.describe()


def test_a_snapshot_that_dies_while_it_writes_leaves_the_older_files(jobs, program, tmp_path):
    calm = jobs.calm(2, *program("heat"), *HEAT)
    directory = tmp_path / "images"
    job = start(jobs, directory, 2, *program("heat"), *HEAT, every="50ms")
    reach_written(job, 0)
    (own,) = directory.iterdir()
    for _ in range(5):
        job.reach(lambda: (own / "rank-0.new").exists(), what="a file being written")
        kill_with_snapshots(job, 1 if job.over() else 0)
        time.sleep(0.1)
    result = job.wait().ok()
    assert result.out == calm.out, result.describe()
    came_about(from_files(result), result)


@pytest.mark.slow
def test_a_rank_woken_while_its_file_is_written_has_nothing_of_the_writer(jobs, program, tmp_path):
    """It has neither the file nor the pipe through which pages go to the disk."""
    directory = tmp_path / "images"
    job = start(jobs, directory, 2, *program("heat"), "3000", "3000", "150", every="50ms")
    reach_written(job, 0, 1)
    (own,) = directory.iterdir()
    woken = 0
    for _ in range(5):
        job.reach((own / "rank-0.new").exists, what="a file being written")
        if job.over():
            break
        count = len(lives(job, 0))
        job.kill([0])
        half_written = (own / "rank-0.new").exists()
        if not job.until(lambda count=count: len(lives(job, 0)) > count, what="the next life"):
            break
        woken += half_written and not lives(job, 0)[-1]["from_file"]
        # It has some for a moment while its own next image is taken.
        job.reach(lambda: not of_the_writer(job, 0), timeout=5, what="only its own descriptors")
    result = job.wait().ok()
    came_about(woken, result, "a life that began while its image was being written")


@ROOT_ONLY
def test_a_full_disk_costs_no_more_than_the_file(jobs, program, tmp_path):
    calm = jobs.calm(2, *program("heat"), *HEAT)
    directory = tmp_path / "full"
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", directory], check=True)
    try:
        job = start(jobs, directory, 2, *program("heat"), *HEAT, every="100ms")
        job.reach_event("image_not_written")
        job.kill([0])
        result = job.wait().ok()
    finally:
        subprocess.run(["umount", "-l", directory], check=True)
    assert result.out == calm.out
    assert "No space left on device" in result.of("image_not_written")[0]["reason"]
    assert result.errors.count("could not be written") == 1, result.describe()


def test_a_directory_that_vanishes_costs_no_more_than_the_files(jobs, program, tmp_path):
    calm = jobs.calm(2, *program("heat"), *HEAT)
    directory = tmp_path / "images"
    job = start(jobs, directory, 2, *program("heat"), *HEAT, every="100ms")
    reach_written(job, 0, 1)
    # Files may be made in it meanwhile.
    job.reach(lambda: shutil.rmtree(directory, ignore_errors=True) or not directory.exists(), what="the end of the directory")
    job.reach_event("image_not_written")
    job.kill([0])  # its snapshot exists
    result = job.wait().ok()
    assert result.out == calm.out


def test_a_directory_that_cannot_be_made_is_told_at_once(jobs, program, tmp_path):
    (tmp_path / "file").write_text("")
    result = start(jobs, tmp_path / "file" / "below", 2, *program("hello")).wait()
    assert result.code == 1 and "cannot make a directory for image files" in result.errors


NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"]
NAMESPACE = ["unshare", "--user", "--map-root-user"]


@pytest.mark.gate("nobody")
@ROOT_ONLY
@pytest.mark.parametrize("user", [NOBODY, NAMESPACE, [*NOBODY, *NAMESPACE]], ids=["nobody", "namespace", "nobody's namespace"])
def test_as_an_ordinary_user(jobs, program, user):
    """Also as the user that containers without root rights call root."""
    if subprocess.run([*user, "true"]).returncode != 0:
        pytest.skip("this machine allows no user namespaces")
    place = Path(subprocess.check_output(["mktemp", "-d", "/tmp/resurgo-user-XXXXXX"], text=True).strip())
    try:
        place.chmod(0o1777)
        shutil.copy(program("heat")[0], place / "heat")
        calm = jobs.calm(2, place / "heat", *HEAT)
        events = place / "events"
        options = ["--checkpoint-every", "100ms", "--checkpoint-dir", place / "images", "--json-events", events]
        env = harness.environment(TMPDIR=place, HOME=place)
        command = [*user, harness.RESURGO, "run", "-n", 2, *options, place / "heat", *HEAT]
        if subprocess.run([*user, "test", "-x", harness.RESURGO]).returncode != 0:
            pytest.skip("another user cannot reach the build")
        job = jobs.command(command, env=env, events=events, cwd=place)
        reach_written(job, 1)
        kill_with_snapshots(job, 1)
        result = job.wait().ok()
        assert result.out == calm.out, result.describe()
        came_about(from_files(result), result)
    finally:
        shutil.rmtree(place)
