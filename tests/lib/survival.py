# SPDX-License-Identifier: Apache-2.0
"""Jobs under random kills, compared with the same job undisturbed; and helpers for tests of images."""

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from catalogue import BY_NAME, CATALOGUE, arguments
from harness import by_rank, came_about, slow, storm
from settings import MANY, every

PROGRAMS = [entry for entry in CATALOGUE if entry.name not in ("hello", "cg_abi")]

# Reads all of standard input, prints much in awkward pieces.
TEXT = b"".join(b"input line %d\n" % i for i in range(5000)) + b"no newline at the end"
# Arguments of crash: a ring that goes round for minutes and prints every 50th iteration.
LONG = ["99", "kill", "0", "always", "100000000"]
# Ways in which the program nondeterministic does not repeat what it did.
NONDETERMINISTIC = ["time", "random", "threads", "multiple", *map(slow, ("pid", "length", "tag", "destination"))]
# Results and files of undisturbed jobs, by size, length and program.
UNDISTURBED = {}

# Rank 1 waits for a file before it opens MPI, rank 0 for another near the end.
A_SLOW_START = """
import os, sys, time
def wait(path):
    while not os.path.exists(path):
        time.sleep(0.01)
if os.environ["PMI_RANK"] == "1":
    wait(sys.argv[1])
from mpi4py import MPI
world = MPI.COMM_WORLD
total = 0
for number in range(200):
    total += world.allreduce(number * world.rank)
    if number == 100 and world.rank == 0:
        wait(sys.argv[2])
print("rank", world.rank, total)
"""

# Rank 2 leaves, and the others go on for long: rank 0 waits for files.
A_RANK_THAT_LEAVES = """
import os, sys, time
from mpi4py import MPI
world = MPI.COMM_WORLD
others = world.Split(world.rank == 2)
total = 0
for number in range(50):
    total += world.allreduce(number * world.rank)
print("rank", world.rank, "has half of it:", total, flush=True)
for number in range(100 if world.rank < 2 else 0):
    total += others.allreduce(number + world.rank)
    if number in (30, 60, 90) and world.rank == 0:
        while not os.path.exists(sys.argv[1] + str(number)):
            time.sleep(0.01)
print("rank", world.rank, "has all:", total)
"""

# Ranks wait for files: rank 1 with an open socket before it closes that, rank 0 near the end.
A_SOCKET_FOR_A_WHILE = """
import os, socket, sys, time
from mpi4py import MPI
def wait(path):
    while not os.path.exists(path):
        time.sleep(0.01)
world = MPI.COMM_WORLD
held = socket.socket() if world.rank == 1 else None
total = 0
for number in range(400):
    total += world.allreduce(number * world.rank)
    if number == 100 and world.rank == 1:
        wait(sys.argv[1])
        held.close()
    if number == 300 and world.rank == 0:
        wait(sys.argv[2])
print("rank", world.rank, total)
"""


def feed(jobs, size, command, text, how, **more):
    """Starts a job with `text` as its standard input, through a file or a pipe."""
    if how == "file":
        path = jobs.directory / "input"
        path.write_bytes(text)
        with open(path, "rb") as stdin:
            return jobs.start(size, *command, stdin=stdin, **more)
    job = jobs.start(size, *command, stdin=subprocess.PIPE, **more)
    job.process.stdin.write(text)
    job.process.stdin.close()
    return job


def undisturbed(jobs, command, entry, size, longer=True):
    """The job without kills and without images: its result, and the file that it wrote."""
    file = jobs.directory / "result.undisturbed"
    key = (size, *map(str, command), *arguments(entry, longer, ""))
    if key not in UNDISTURBED:
        result = jobs.run(size, *command, *arguments(entry, longer, file)).ok()
        assert result.restarts == 0
        UNDISTURBED[key] = result, file.read_bytes() if entry.result else b""
    result, written = UNDISTURBED[key]
    file.write_bytes(written)
    return result, file


def compare(entry, result, file, expected):
    calm, calm_file = expected
    result.ok()
    assert by_rank(result.out) == by_rank(calm.out)
    if entry.result:
        assert file.read_bytes() == calm_file.read_bytes()
    return result


def survive(jobs, rng, command, entry, size, blows, expected, options=(), number=0, protocol=None, images=False, **how):
    """One job under a storm of kills, compared with the undisturbed run. `images`: there is one before the job is over."""
    calm, _ = expected
    file = jobs.directory / f"result{number}"
    job = jobs.start(size, *command, *arguments(entry, True, file), options=[*MANY, *options], protocol=protocol)
    struck = storm(job, rng, blows, max(0.3, calm.seconds), **how)
    print(f"{entry} on {size}: struck {struck}")
    if images:
        job.reach(lambda: job.of("checkpointed") or job.of("wave_complete"), what="an image")
    return compare(entry, job.wait(60 + 20 * calm.seconds + 2 * blows), file, expected)


def soak(jobs, program, rng, request, entry, size, blows, options=(), protocol=None):
    """Runs a program of the catalogue undisturbed, and then as many rounds under kills as the options ask for."""
    if not entry.accepts(size):
        pytest.skip(f"{entry} does not run on {size} ranks")
    command = program(entry.name)
    expected = undisturbed(jobs, command, entry, size)
    for number in range(request.config.option.rounds):
        survive(jobs, rng, command, entry, size, blows, expected, options, number, protocol=protocol)


def in_a_row(begin, calm, rng, size, blows, pauses):
    """Makes so many kills one after the other, in as many jobs as that takes; each job answers like the undisturbed
    one. `pauses`: the least and the most seconds between two kills."""
    struck = 0
    while struck < blows:
        job = begin()
        job.reach(lambda job=job: len(job.lives()) == size)
        while struck < blows and not job.over():
            time.sleep(rng.uniform(*pauses))
            struck += len(job.kill(rng.sample(range(size), rng.choice([1, 1, 1, 2, size]))))
        print(f"{struck} ranks struck")
        result = job.wait(600).ok()
        assert by_rank(result.out) == by_rank(calm.out)


def of_catalogue(program, name):
    return BY_NAME[name], program(name)


def ring(jobs, program, size, images, **more):
    """A ring of ranks that runs for minutes. Returns when each rank has an image (or there is a wave) and has gone
    on."""
    job = jobs.start(size, *program("crash"), *LONG, **more)
    if images == "wave_complete":
        job.reach_event(images)
    else:
        job.reach(lambda: {event["rank"] for event in job.events if event["event"] == images} == set(range(size)))
    return job


def began_from_images(result):
    """The lives that did not begin at the beginning of their program."""
    return [event for event in result.of("started") if event["image"] > 0]


def goes_on_from_newest_image(jobs, program, options=()):
    """Kills a rank after some images: it repeats only what came after the last. Returns the result, and the beginning
    of its next life."""
    job = ring(jobs, program, 3, "checkpointed", options=[*options, *every("100ms")])
    job.reach(lambda: len(job.of("checkpointed", rank=1)) >= 4, what="some images")
    newest = job.newest("checkpointed", rank=1)["image"]
    job.strike([1])
    job.reach_event("caught_up", rank=1)
    job.process.terminate()
    result = job.wait(10)
    (life,) = began_from_images(result)
    assert life["rank"] == 1 and life["image"] >= newest
    (failed,), (caught_up,) = result.of("failed"), result.of("caught_up")
    assert caught_up["deliveries"] < failed["deliveries"], result.describe()
    return result, life


def again_as_soon_as_back(jobs, program, rng, victims, length, options=()):
    """Kills `victims` several times in a row; they go on from images."""
    command = [*program("crash"), "99", "kill", "0", "always", length]
    calm = jobs.calm(3, *command)
    job = jobs.start(3, *command, options=[*MANY, *options, *every("50ms")])
    job.reach(lambda: {event["rank"] for event in job.events if event["event"] == "checkpointed"} == {0, 1, 2})
    for _ in range(4):
        before = job.lives()
        job.kill(victims)
        back = lambda: all(job.lives().get(rank, (0, 0))[1] > before.get(rank, (0, 0))[1] for rank in victims)
        if not job.until(back, what="the victims to be back"):
            break
        time.sleep(rng.choice([0, 0.005, 0.05]))
    result = job.wait().ok()
    assert by_rank(result.out) == by_rank(calm.out)
    came_about(began_from_images(result), result)


def input_and_output_exactly_once(jobs, program, rng, blows, how, options=()):
    """A program that reads all of its input and prints much, under kills and with images."""
    command = [*program("output"), "400", "1000"]
    calm = feed(jobs, 3, command, TEXT, how).wait().ok()
    job = feed(jobs, 3, command, TEXT, how, options=[*MANY, *options, *every("50ms")])
    print(storm(job, rng, blows, calm.seconds))
    result = job.wait().ok()
    assert by_rank(result.out) == by_rank(calm.out)
    assert by_rank(result.program_errors) == by_rank(calm.program_errors)
    came_about(result.of("checkpointed"), result)
    assert not result.of("output_differs") and not result.of("output_missing")


def agent_of(job, rank):
    """The process that is the rank's parent."""
    return Path(f"/proc/{job.lives()[rank][0]}/stat").read_text().rpartition(")")[2].split()[1]


def children_of(pid):
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def named(name, pids):
    """Those of the processes `pids` that have this name."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text() == f"{name}\n":
                found.append(int(pid))
    return found


def snapshots(job):
    """Processes that sleep as images."""
    return named("resurgo-image", job.processes())


def fillers(agent):
    """Processes that fill the memory of rebuilt ranks."""
    return named("resurgo-filler", children_of(agent))


def has_images_on_request(jobs, job, servers):
    """A ring of two ranks has images when asked. It cannot be suspended, as `servers` hold state that is in no file."""
    job.says(b"iteration 50 ")
    answer = jobs.resurgo("checkpoint", str(job.process.pid)).ok()
    assert "every rank has a new image" in answer.text, answer.describe()
    refused = jobs.resurgo("suspend", str(job.process.pid))
    assert refused.code != 0 and f"what its {servers} hold is in no file" in refused.errors, refused.describe()
    job.strike([1])
    job.reach_event("caught_up", rank=1)
    job.process.terminate()
    (life,) = began_from_images(job.wait(20))
    assert life["rank"] == 1


def has_images_when_a_server_goes_on(job, pid, why):
    """While a server stands still, a ring of two ranks can have no image. It goes on, and has one later."""
    os.kill(pid, signal.SIGSTOP)
    job.process.send_signal(signal.SIGUSR1)
    try:
        job.reach_event("not_checkpointed")
    finally:
        os.kill(pid, signal.SIGCONT)
    job.process.send_signal(signal.SIGUSR1)
    job.reach(lambda: {event["rank"] for event in job.events if event["event"] == "checkpointed"} == {0, 1})
    before = len(job.out.read_bytes())
    job.reach(lambda: len(job.out.read_bytes()) > before + 100, what="the ring to go on")
    job.process.terminate()
    assert why in [event["reason"] for event in job.wait(20).of("not_checkpointed")]


def without_the_one_or_the_other(jobs, program, who, images, options=(), **more):
    """Kills the agent or the dispatcher: nothing stays behind, not even sleeping images."""
    job = ring(jobs, program, 3, images, options=[*options, *every("50ms")], **more)
    job.reach(lambda: len(snapshots(job)) >= 3)
    (agent,) = named("resurgo agent", children_of(job.process.pid))
    if who == "dispatcher":
        job.process.kill()
    else:
        os.kill(agent, signal.SIGKILL)
    result = job.wait(20)
    if who == "agent":
        assert result.code == 1 and "the agent" in result.errors, result.describe()
    assert not job.leftovers(5)


def kill_snapshots(job, rank=None):
    """Kills the sleeping processes of all ranks, or of one; returns how many there were."""
    killed = 0
    for pid in snapshots(job):
        with contextlib.suppress(OSError):
            if rank is None or f"RESURGO_RANK={rank}\0".encode() in Path(f"/proc/{pid}/environ").read_bytes():
                os.kill(pid, signal.SIGKILL)
                killed += 1
    return killed


def moments(rng, count, span):
    """Waits for so many random moments, one after the other, within `span` seconds."""
    start = time.monotonic()
    for moment in sorted(rng.uniform(0, span) for _ in range(count)):
        time.sleep(max(0.0, start + moment - time.monotonic()))
        yield


def refused(result, *words, code=None):
    assert result.code != 0 and not result.out, result.describe()
    assert code is None or result.code == code, result.describe()
    assert "panicked" not in result.errors, result.describe()
    for word in words:
        assert word in result.errors, f"{word!r} should be there\n{result.describe()}"
    assert len(result.errors.strip().splitlines()) <= 3, result.describe()


def measured(jobs, size, *command, options=(), name="stats", **more):
    file = jobs.directory / name
    result = jobs.run(size, *command, options=[*options, "--stats-json", file], **more)
    return result, json.loads(file.read_text())
