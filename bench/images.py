# SPDX-License-Identifier: Apache-2.0
"""Process images: how long a rank stands still for one, what they cost, and how soon a killed rank runs again."""

import mmap
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median

from contenders import PESSIMISTIC, RESURGO, Contender, Failed, Job, Rounds, about, run
from node_memory import NodeMemory
from report import Section, spread

MIB = 1024  # of a rank's heap, all written
# The share of memcpy's speed that plain read() reaches from /dev/shm into new memory of small pages. Seven tenths of
# that are wanted.
WAY_BACK = 0.7 * 1.8 / 12.5
OFTEN = PESSIMISTIC.with_options("an image every 300 ms", "--checkpoint-every", "300ms")
# Then threads of a woken rank have new numbers, and its memory is searched for the locks that they hold.
NO_RIGHTS = Contender("without rights", ("setpriv", "--bounding-set=-checkpoint_restore,-sys_admin", *OFTEN.launcher))
SELDOM = PESSIMISTIC.with_options("an image every 700 ms", "--checkpoint-every", "700ms")
USUAL = PESSIMISTIC.with_options("an image every 10 s", "--checkpoint-every", "10s")
# Runs differ by more than that costs: ten times as many cost ten times as much.
TENFOLD = PESSIMISTIC.with_options("an image every second", "--checkpoint-every", "1s")
# Files go below the job's own directory.
FILED, TENFOLD_FILED = (one.with_options(f"{one.name}, with files", "--checkpoint-dir", "images") for one in (USUAL, TENFOLD))
ALL = (PESSIMISTIC, USUAL, FILED, TENFOLD, TENFOLD_FILED)
# Long enough for two or three images of each rank.
PROGRAMS = {"heat, 4 ranks": ("heat", 1024, 1024, 30000), "cg, 4 ranks": ("cg", 1024, 12000)}
QUICK = {"heat, 4 ranks": ("heat", 512, 512, 2000), "cg, 4 ranks": ("cg", 512, 500)}


def stalls(quick):
    """Milliseconds that rank 0 stood still for images, and that its own forks took in the same run."""
    with Job(OFTEN, 2, "dirty", 256 if quick else MIB, 4 if quick else 12) as job:
        job.wait()
        images = [event["stall_seconds"] * 1e3 for event in job.of("checkpointed", rank=0)]
        return (images, [float(line) for line in job.output.split()]), job.others


def back(contender, victim, *program):
    """Milliseconds from SIGKILL to the new process, and to the woken rank's first delivery."""
    with Job(contender, 2, *program) as job:
        # At its first images the rank may still have been filling its memory.
        job.until(lambda: len(job.of("checkpointed", rank=victim)) > 4, "images")
        pid = job.of("started", rank=victim)[0]["pid"]
        with NodeMemory(pid) as memory:
            killed = time.monotonic_ns()
            job.kill(pid)
            again = job.until(
                lambda: (ns := memory.get(victim, "first_delivery_ns")) and ns > killed and ns, "a delivery", pause=0.0005
            )
        job.wait()
        opened = job.of("job_started")[0]["unix_time"] - (time.time() - time.monotonic())
        restarted = opened + job.of("started", rank=victim, life=2)[0]["time"]
        return (restarted * 1e3 - killed * 1e-6, (again - killed) * 1e-6), job.others


def files_of(job):
    """For each image file of rank 0: milliseconds of standstill, MiB written, and the seconds for that."""
    stood = {event["image"]: event["stall_seconds"] * 1e3 for event in job.of("checkpointed", rank=0)}
    files = [event for event in job.of("image_written", rank=0) if event["image"] in stood]
    return [(stood[event["image"]], event["written_bytes"] / 2**20, event["write_seconds"]) for event in files]


def writes_at_rest(quick, directory):
    """See `files_of`: the program writes all of the heap between two images, but nothing while a file is written."""
    rounds = 8
    options = ["--checkpoint-dir", directory]
    with Job(PESSIMISTIC, 2, "dirty", 256 if quick else MIB, rounds, 1, 50, options=options) as job:
        for count in range(1, rounds + 1):
            job.until(lambda count=count: job.output.count("\n") >= count, "a heap that is written")
            subprocess.run([RESURGO, "checkpoint", str(job.process.pid)], check=True, stdout=subprocess.DEVNULL)
        job.wait()
        # The first three are new files, and perhaps there was no heap yet.
        return files_of(job)[3:], job.others


def writes(quick, directory, every):
    """See `files_of`: the program writes one page of EVERY between two images, and meanwhile."""
    options = ["--checkpoint-dir", directory]
    with Job(SELDOM, 2, "dirty", 256 if quick else MIB, 16 if quick else 24, every, options=options) as job:
        job.wait()
        # The first three are written in full, and perhaps there was no heap yet.
        return files_of(job)[6:], job.others


def rebuilt(quick, directory):
    """For rank 0, which has written all of its heap: the size of an image file. Also seconds from SIGKILL, with its
    snapshot gone, until it runs again from that file, and until all of its memory is there."""
    options = ["--checkpoint-dir", directory]
    with Job(SELDOM, 2, "dirty", 256 if quick else MIB, 16, options=options) as job:
        job.until(lambda: len(job.of("image_written", rank=0)) > 2, "image files", timeout=60)
        pid = job.of("started", rank=0)[0]["pid"]
        agent = about(pid)[1]
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.3)  # an image that was being taken has become a snapshot, or none
        for child in Path(f"/proc/{agent}/task/{agent}/children").read_text().split():
            if Path(f"/proc/{child}/comm").read_text() == "resurgo-image\n":
                os.kill(int(child), signal.SIGKILL)
        time.sleep(0.3)
        killed = time.monotonic()
        job.kill(pid)
        again = job.until(lambda: job.of("started", rank=0, life=2), "the next life", timeout=60)[0]
        took = time.monotonic() - killed
        if not again["from_file"]:
            raise Failed(f"rank 0 was not rebuilt from a file: {job.describe()}")
        job.wait()
        read = job.of("memory_read", rank=0)
        whole = took + max((event["time"] - again["time"] for event in read), default=0)
        bytes_of = {event["image"]: event["bytes"] for event in job.of("image_written", rank=0)}
        return (bytes_of[again["image"]] / 2**20, took, whole), job.others


def seconds_of_processor(quick):
    """Processor seconds of the processes that write image files of rank 0 to the disk, for each GiB. The program writes
    all of its heap between two images."""
    count = 4 if quick else 10
    with tempfile.TemporaryDirectory(prefix="resurgo-bench-") as directory:
        options = ["--checkpoint-dir", directory]
        with Job(SELDOM, 2, "dirty", 256 if quick else MIB, 16 if quick else 24, options=options) as job:
            agent = about(job.until(lambda: job.of("started", rank=0), "the rank")[0]["pid"])[1]
            files = job.until(lambda: len(job.of("image_written", rank=0)) > count and job.of("image_written", rank=0),
                              "image files", timeout=60)
            # Those of ended children: all before the newest have ended.
            spent = sum(map(int, about(agent)[13:15])) / os.sysconf("SC_CLK_TCK")
            job.wait()
            return spent / sum(file["written_bytes"] / 2**30 for file in files[:count]), job.others


def seconds_to_copy(mib):
    """Seconds to copy as many bytes from memory to memory."""
    source, target = bytearray(b"x" * (mib << 20)), bytearray(mib << 20)
    times = []
    for _ in range(3):
        start = time.monotonic()
        memoryview(target)[:] = source
        times.append(time.monotonic() - start)
    return min(times)


def seconds_to_write(mib, directory):
    """Seconds to write as many bytes by plain write(): into a new file in memory, and into an existing one."""
    source, times = memoryview(bytearray(b"x" * (mib << 20))), ([], [])
    for _ in range(3):
        with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
            for kind in times:
                start = time.monotonic()
                if os.pwrite(file.fileno(), source, 0) != len(source):
                    raise OSError("written in part")
                kind.append(time.monotonic() - start)
    return [min(kind) for kind in times]


def seconds_to_read(mib, directory):
    """Seconds to read as many bytes by plain read(), from a file in memory into new memory of small pages."""
    times = []
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        os.pwrite(file.fileno(), b"x" * (mib << 20), 0)
        for _ in range(3):
            with mmap.mmap(-1, mib << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as target:
                start = time.monotonic()
                os.preadv(file.fileno(), [target], 0)
                times.append(time.monotonic() - start)
    return min(times)


def seconds_of_dd(mib, directory):
    """Seconds to write as many bytes, from nowhere to an existing file, around the cache."""
    with tempfile.NamedTemporaryFile(dir=directory) as file:
        command = ["dd", "if=/dev/zero", f"of={file.name}", "bs=8M", f"count={mib // 8}", "conv=notrunc", "oflag=direct"]
        times = []
        for _ in range(3):
            start = time.monotonic()
            subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
            times.append(time.monotonic() - start)
        return min(times[1:])


def measure_files(section, rounds, quick):
    """Image files in memory and on the disk, for a rank that writes all of its heap, or 1 % of it, between two
    images."""
    mib, rows = 256 if quick else MIB, []
    places = [("/dev/shm", "memcpy", 0.7, lambda _: seconds_to_copy(mib)),
              (tempfile.gettempdir(), "dd oflag=direct", 0.8, lambda directory: seconds_of_dd(mib, directory))]
    for place, reference, bound, seconds in places:
        with tempfile.TemporaryDirectory(prefix="resurgo-bench-", dir=place) as directory:
            def at_rest(_, directory=directory, seconds=seconds):
                files, others = writes_at_rest(quick, Path(directory) / "rest")
                return (seconds(directory), files), others

            pairs = rounds.go((PESSIMISTIC,), 1 if quick else 3, at_rest)[PESSIMISTIC.name]
            runs = {
                every: rounds.go((SELDOM,), 1, lambda _, every=every: writes(quick, Path(directory) / str(every), every))
                for every in (1, 100)
            }
        ratio = median(best / median(took for _, _, took in files) for best, files in pairs)
        section.at_least(f"image file to {place}, all of {mib} MiB, against {reference}", bound, ratio)
        best, rest = spread([best for best, _ in pairs]), [file for _, files in pairs for file in files]
        full, part = ([file for files in run[SELDOM.name] for file in files] for run in runs.values())
        less = median(written for _, written, _ in part) / median(written for _, written, _ in full)
        section.figure(f"bytes written to {place} with 1 % changed between images, against all", "≤ 0.05 ×", f"{less:.3f} ×",
                       less <= 0.05)
        for name, files in (("all, while the rank waits", rest), ("all, while it writes to all", full), ("1 % written", part)):
            columns = [spread([file[index] for file in files]) for index in (1, 2, 0)]
            rows.append([f"{place}, {name}", *columns, f"{best} ({reference})"])
        stood = median(stall for stall, _, _ in part)
        section.figure(f"stall for an image with a file in {place}, 1 % of {mib} MiB written", "≤ 10 ms", f"{stood:.1f} ms", stood <= 10)
    spent = median(rounds.go((SELDOM,), 1 if quick else 3, lambda _: seconds_of_processor(quick))[SELDOM.name])
    section.figure(f"processor time for image files in {tempfile.gettempdir()}", "≤ 0.1 s for a GiB", f"{spent:.2f} s for a GiB",
                   spent <= 0.1)
    section.table(["files", "MiB", "s", "stall, ms", "the same bytes, s"], rows)
    measure_restart(section, rounds, quick)


def measure_restart(section, rounds, quick):
    """A restart from an image file in memory, and the time of plain system calls for as many bytes."""
    mib = 256 if quick else MIB
    with tempfile.TemporaryDirectory(prefix="resurgo-bench-", dir="/dev/shm") as directory:
        copied, (new, again), read = seconds_to_copy(mib), seconds_to_write(mib, directory), seconds_to_read(mib, directory)
        runs = rounds.go((SELDOM,), 1 if quick else 3, lambda _: rebuilt(quick, Path(directory) / "rebuilt"))[SELDOM.name]
    sizes, took, whole = ([run[part] for run in runs] for part in range(3))
    section.at_least(f"rank of {mib} MiB rebuilt from a file in /dev/shm, from SIGKILL to all of its memory, against memcpy",
                     WAY_BACK, copied / median(whole))
    section.table(
        [f"{mib} MiB in /dev/shm", "s"],
        [["memcpy, to memory that is there", f"{copied:.2f}"], ["write() to a new file", f"{new:.2f}"],
         ["write() to a file that is there", f"{again:.2f}"], ["read() to new memory", f"{read:.2f}"],
         [f"from SIGKILL to running again ({median(sizes):.0f} MiB)", spread(took)],
         ["from SIGKILL to all of its memory", spread(whole)]],
    )


def measure(quick):
    section = Section("images", "Process images", quick)
    # A heap, the memory that only the two newest images hold of it, and two of three files: `have_memory_at_hand` takes
    # as much of 24 GiB.
    rounds = Rounds(quick, 5 * MIB)
    measured = rounds.go((OFTEN,), 1 if quick else 3, lambda _: stalls(quick))[OFTEN.name]
    images = [stall for stood, _ in measured for stall in stood]
    forks = [fork for _, forked in measured for fork in forked]
    size = f"{256 if quick else MIB} MiB, all written"
    section.at_most(f"stall for an image, {size}, against a bare fork of the same process", 1.3, images, forks)
    rows = [[f"stall for an image, {size}", spread(images)], [f"bare fork, {size}", spread(forks)]]
    large = ("dirty", 256 if quick else MIB, 1, 1, 150)
    woken = [("", OFTEN, 1, ("heat", 512, 512, 12000)), (f", {size}", OFTEN, 0, large)]
    if os.geteuid() == 0 and shutil.which("setpriv"):
        woken.append((f", {size}, without rights", NO_RIGHTS, 0, large))
    for what, contender, victim, program in woken:
        kills = rounds.go((contender,), 3 if quick else 9, lambda one, victim=victim, program=program: back(one, victim, *program))
        started, running = ([kill[part] for kill in kills[contender.name]] for part in (0, 1))
        section.figure(f"SIGKILL to running again from a sleeping snapshot{what}", "< 50 ms", f"{median(running):.1f} ms",
                       median(running) < 50)
        rows += [[f"SIGKILL to the new process{what}", spread(started)], [f"SIGKILL to its first delivery{what}", spread(running)]]
    section.table(["ms", ""], rows)
    measure_files(section, rounds, quick)
    rows = []
    for name, program in (QUICK if quick else PROGRAMS).items():
        def seconds(contender, program=program):
            _, took, others = run(contender, 4, *program)
            return took, others

        times = rounds.go(ALL, 1 if quick else 5, seconds)
        without = times[PESSIMISTIC.name]
        for contender in (USUAL, FILED):
            section.at_most(f"{name}: {contender.name}", 1.02, times[contender.name], without)
        for contender in (TENFOLD, TENFOLD_FILED):
            tenth = (median(times[contender.name]) / median(without) - 1) / 10
            section.figure(f"{name}: a tenth of what costs {contender.name}", "≤ 2 %", f"{100 * tenth:.1f} %", tenth <= 0.02)
        rows.append([name, *(spread(times[contender.name]) for contender in ALL)])
    section.table(["s", *(contender.name for contender in ALL)], rows)
    section.note = rounds.note()
    return section
