# SPDX-License-Identifier: Apache-2.0
"""Image files of a job, and ranks that have nothing else to go on from."""

import contextlib
import os
import signal
import time
from pathlib import Path

import harness
from catalogue import BY_NAME, arguments
from harness import states
from settings import MANY
from survival import agent_of, children_of, named, snapshots

HEAT = ("400", "400", "6000")


def start(jobs, directory, n, *program, every="100ms", options=(), **more):
    options = ["--checkpoint-every", every, "--checkpoint-dir", directory, "--max-restarts", "100", *options]
    return jobs.start(n, *program, options=options, **more)


def calm_and_struck(jobs, program, kind, protocol, options):
    """The results of an undisturbed job of three ranks, and of one in which a rank fails. Each has a directory of its own
    for its files."""
    directories = [jobs.directory / name for name in ("calm", "struck")]
    for directory in directories:
        directory.mkdir()
    program = [harness.PYTHON, "-c", program]
    calm = jobs.calm(3, *program, directories[0], kind)
    result = jobs.run(3, *program, directories[1], kind, protocol=protocol, options=options)
    assert result.of("failed"), result.describe()
    return calm, result


def struck_behind_an_image(jobs, job, ready):
    """The job has an image when `ready` is there, comes to `late`, and loses rank 0. The program waits for `taken` and `killed`."""
    job.reach((job.directory / ready).exists)
    job.reach(lambda: jobs.resurgo("checkpoint", str(job.process.pid)).code == 0, what="an image")
    (job.directory / "taken").touch()
    job.reach((job.directory / "late").exists)
    job.strike([0])
    (job.directory / "killed").touch()
    return job.wait()


def files(directory, rank):
    """The image files of a rank, the oldest first."""
    return sorted(Path(directory).glob(f"*/rank-{rank}.image-*"), key=lambda path: int(path.name.rpartition("-")[2]))


def of_rank(job, kind, rank):
    return [event for event in job.events if event["event"] == kind and event["rank"] == rank]


def written(job, rank):
    return of_rank(job, "image_written", rank)


def soon(condition):
    """Waits for what a process does as soon as it has a processor."""
    end = time.monotonic() + 3 * harness.SLOWNESS
    while not condition() and time.monotonic() < end:
        time.sleep(0.001)


def without_name(job, pids):
    """Those of the processes `pids`, children of an agent, that are no ranks and are about to have a name of their own."""
    known = {pid for pid, _ in job.lives().values()} | {pid for name in ("image", "filler") for pid in named(f"resurgo-{name}", pids)}
    return [pid for pid in pids if int(pid) not in known and states(pid)]


def kill_with_snapshots(job, rank, before=lambda: None):
    """Kills a rank with everything in memory that it could go on from. Calls `before` when no more image files will
    come."""
    job.kill([rank], signal.SIGSTOP)  # so that no other snapshot of it appears meanwhile
    with contextlib.suppress(harness.Absent, OSError):
        agent = agent_of(job, rank)
        children = children_of(agent)
        soon(lambda: not without_name(job, children))
        killed = snapshots(job)
        for pid in killed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        soon(lambda: not any(map(states, killed)))
        # The agent gives a file its name when it hears that all of it is written.
        soon(lambda: states(agent) <= {"S"})
    before()
    job.kill([rank])


def from_files(result):
    return [event for event in result.of("started") if event["from_file"]]


def until_written(job, rank, count=2):
    return job.until(lambda: len(written(job, rank)) >= count, what=f"{count} image files of rank {rank}")


def reach_written(job, rank, count=2):
    job.has_reached(until_written(job, rank, count), "image files")


def passes_over(job, directory, damage, why):
    """Damages the newest file of rank 0 before its death: the rank goes on from the one before. Returns the result."""
    newest = []

    def damage_newest():
        newest.append(files(directory, 0)[-1])
        damage(newest[0])

    kill_with_snapshots(job, 0, damage_newest)
    result = job.wait().ok()
    number = int(newest[0].name.rpartition("-")[2])
    lost = [event for event in result.of("image_lost") if why in event["reason"]]
    assert [event["image"] for event in lost] == [number], result.describe()
    assert 0 < from_files(result)[0]["image"] < number
    return result


def begins_again(job, directory):
    """Damages the only file of rank 0 before its death: the rank begins at the beginning. Returns the result."""
    reach_written(job, 0, 1)

    def damage_only():
        present = files(directory, 0)
        if len(present) > 1:
            raise harness.Missed(f"there was one more by then: {present}")
        damage_end(present[0])

    kill_with_snapshots(job, 0, damage_only)
    result = job.wait().ok()
    assert [event["image"] for event in result.of("started") if event["life"] == 2] == [0]
    return result


def survives_damage(jobs, program, directory, options):
    """The file before the newest is still good: messages since then have not been forgotten."""
    long = ("400", "400", "6000")
    calm = jobs.calm(2, *program("heat"), *long)
    job = start(jobs, directory, 2, *program("heat"), *long, every="200ms", options=options)
    reach_written(job, 0, 3)
    assert passes_over(job, directory, damage_bit, "checksum of its memory").out == calm.out


def survives_without_two_files(jobs, program, directory, options=(), length=HEAT):
    """Nothing has been forgotten yet."""
    calm = jobs.calm(2, *program("heat"), *length)
    job = start(jobs, directory, 2, *program("heat"), *length, every="900ms", options=options)
    assert begins_again(job, directory).out == calm.out


def survives_by_files(jobs, program, tmp_path, name, options):
    """Ranks die with all of their snapshots."""
    entry = BY_NAME[name]
    calm_file, file = tmp_path / "calm", tmp_path / "disturbed"
    calm = jobs.calm(3, *program(name), *arguments(entry, True, calm_file))
    options = [*MANY, *options, "--checkpoint-every", "50ms", "--checkpoint-dir", tmp_path / "images"]
    job = jobs.start(3, *program(name), *arguments(entry, True, file), options=options)
    for rank in (0, 2, 0):
        before = job.lives().get(rank, (0, 1))[1]
        if until_written(job, rank):
            kill_with_snapshots(job, rank)
            job.reach(lambda rank=rank, before=before: job.lives().get(rank, (0, 0))[1] > before, what="the next life")
    result = job.wait().ok()
    assert sorted(result.out.splitlines()) == sorted(calm.out.splitlines())
    assert not entry.result or file.read_bytes() == calm_file.read_bytes()
    assert result.restarts == 0 or from_files(result), result.describe()


def flip(path, at):
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 8]))


def damage_bit(path):
    flip(path, path.stat().st_size // 2)


def damage_end(path):
    os.truncate(path, path.stat().st_size - 4096)


def warm(job, rank=0):
    """The images of a rank that were copied into a buffer and are complete."""
    copied = {event["image"] for event in job.events
              if event["event"] == "checkpointed" and event["rank"] == rank and event["copy"] == "warm_buffer"}
    return [event["image"] for event in written(job, rank) if event["image"] in copied]


def until_warm(job, count=1):
    """Waits for `count` more; False when the job is over first."""
    before = len(warm(job))
    return job.until(lambda: len(warm(job)) >= before + count, what=f"{count} images from a buffer", timeout=60)


def reach_warm(job, count=1):
    job.has_reached(until_warm(job, count), "images from a buffer")
