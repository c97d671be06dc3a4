# SPDX-License-Identifier: Apache-2.0
"""`--local-copies`. With `off` no image sleeps once its file exists, and every returning rank reads its own file. With
`on` only a rank whose image is lost reads one."""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from harness import ROOT_ONLY, by_rank, came_about, slow
from returns import files, strike_the_returning
from settings import MANY, PROTOCOLS, TOGETHER, every
from survival import LONG, kill_snapshots, of_catalogue, snapshots, survive, undisturbed

# Ranks that have not failed return as well; under the others a failed rank goes on from its image alone.
with_returns = pytest.mark.parametrize("protocol", [*TOGETHER, "hierarchical"])
with_all = pytest.mark.parametrize("protocol", PROTOCOLS)


def ring_of_crash(program, protocol):
    """A ring that waits for the test near its end."""
    rounds = "40000" if protocol == "channel-memory" else "100000"
    return [*program("crash"), "99", "kill", "0", "always", rounds]


def copies(jobs, protocol, what="off", size=3):
    """Options; all ranks are one group, except where groups return alone: then four ranks have several."""
    groups = ["--group-size", "2" if size > 3 else "3"] if protocol == "hierarchical" else []
    return [*groups, "--checkpoint-dir", jobs.directory / "images", "--local-copies", what]


def crash(jobs, command, protocol, options):
    """The ring on three ranks, as soon as it is under way."""
    job = jobs.start(3, *command, options=[*MANY, *options], protocol=protocol)
    job.says(b"iteration 50 ")
    return job


def one_image(job, count=1):
    """Makes every rank take an image, and waits until all are in files."""
    for _ in range(count):
        before = [event["event"] for event in job.events].count("image_written")
        job.process.send_signal(signal.SIGUSR1)
        job.reach(lambda: [event["event"] for event in job.events].count("image_written") >= before + 3, what="the files")


def no_copy_sleeps(job):
    return job.reach(lambda: not snapshots(job), 5, "the end of the copies")


def after_failure(result):
    """The lives that began after the last failure."""
    last = max(index for index, event in enumerate(result.events) if event["event"] == "failed")
    return [event for event in result.events[last:] if event["event"] == "started"]


@pytest.mark.parametrize("name", ["heat", slow("cg"), slow("transpose"), slow("ft")])
@pytest.mark.parametrize("protocol", ["pessimistic", "channel-memory", "auto", "group",
                                      *map(slow, ("causal", "blocking", "chandy-lamport", "hierarchical"))])
@pytest.mark.gate("pessimistic-*", "auto-*")
def test_random_kills(jobs, program, rng, kills, name, protocol):
    entry, command = of_catalogue(program, name)
    expected = undisturbed(jobs, command, entry, 4)
    options = [*every(rng.choice(["30ms", "100ms"])), *copies(jobs, protocol, size=4)]
    survive(jobs, rng, command, entry, 4, kills or 4, expected, options, protocol=protocol)
    assert not list((jobs.directory / "images").iterdir())


@pytest.mark.gate("pessimistic", "channel-memory", "auto", "blocking", "hierarchical")
@with_all
def test_no_image_sleeps_once_it_is_in_files(jobs, program, protocol):
    job = crash(jobs, [*program("crash"), *LONG], protocol, copies(jobs, protocol))
    for _ in range(3):
        one_image(job)
        no_copy_sleeps(job)
    job.process.terminate()
    job.wait(10)


@pytest.mark.gate("chandy-lamport", "hierarchical")
@with_returns
def test_otherwise_every_rank_has_one(jobs, program, protocol):
    job = crash(jobs, [*program("crash"), *LONG], protocol, copies(jobs, protocol, "on"))
    one_image(job, 2)
    job.reach(lambda: len(snapshots(job)) == 3, what="the end of the older ones")
    time.sleep(0.2)
    assert len(snapshots(job)) == 3
    job.process.terminate()
    job.wait(10)


@pytest.mark.parametrize("what, lost", [slow("on", "process"), ("on", "process and copy"), slow("off", "process"), slow("off", "process and copy")])
@with_returns
@pytest.mark.gate("hierarchical*")
def test_who_reads_a_file(jobs, program, protocol, what, lost):
    """A process and its copy are lost, as with a node."""
    command = ring_of_crash(program, protocol)
    calm = jobs.calm(3, *command)
    job = crash(jobs, command, protocol, copies(jobs, protocol, what))
    one_image(job)
    if what == "off":
        no_copy_sleeps(job)
    job.kill([1], signal.SIGSTOP)  # no other wave comes
    if lost != "process":
        assert kill_snapshots(job, 1) == (what == "on")
    job.kill([1])
    result = job.wait().ok()
    assert by_rank(result.out) == by_rank(calm.out)
    read = {event["rank"] for event in after_failure(result) if event["from_file"]}
    assert read == ({0, 1, 2} if what == "off" else {1} if lost != "process" else set()), result.describe()
    assert {event["image"] for event in after_failure(result)} == {1}, result.describe()
    lost = {(event["rank"], event["image"]) for event in result.of("image_lost")}
    assert lost <= {(1, 1)}, "what others have is as good as before"


@pytest.mark.parametrize("protocol", ["pessimistic", slow("channel-memory"), slow("causal"), slow("auto")])
def test_a_rank_that_returns_alone_reads_its_own(jobs, program, protocol):
    command = ring_of_crash(program, protocol)
    calm = jobs.calm(3, *command)
    job = crash(jobs, command, protocol, copies(jobs, protocol))
    one_image(job, 2)
    no_copy_sleeps(job)
    job.kill([1])
    result = job.wait().ok()
    assert by_rank(result.out) == by_rank(calm.out)
    assert [(event["rank"], event["from_file"]) for event in after_failure(result)] == [(1, True)], result.describe()
    assert not result.of("image_lost")


@pytest.mark.gate("group-on")
@pytest.mark.parametrize("protocol, what", [slow("blocking", "on"), ("chandy-lamport", "off"), ("group", "on"), slow("blocking", "off"), slow("chandy-lamport", "on"), slow("group", "off")])
def test_kills_of_nodes(jobs, program, rng, kills, protocol, what):
    """A rank and its copy are killed at any moment: while a wave is taken or written, in the middle of a return."""
    command = [*program("heat"), "400", "400", "6000"]
    calm = jobs.calm(4, *command)
    options = [*MANY, *every("50ms"), *copies(jobs, protocol, what)]
    job = jobs.start(4, *command, protocol=protocol, options=options)
    for _ in range(kills or 8):
        written = [event["event"] for event in job.events].count("image_written")
        job.reach(lambda: [event["event"] for event in job.events].count("image_written") >= written + 4, what="some files")  # noqa: B023
        time.sleep(rng.uniform(0, 0.1))
        if job.over():
            break
        rank = rng.randrange(4)
        for strike in rng.sample([lambda: kill_snapshots(job, rank), lambda: job.kill([rank])], 2):  # noqa: B023
            strike()
    result = job.wait().ok()
    assert by_rank(result.out) == by_rank(calm.out)
    came_about(any(event["from_file"] for event in result.of("started")), result)


@pytest.mark.parametrize("protocol", [slow("blocking"), "chandy-lamport", slow("group")])
def test_kills_of_rebuilt_processes_while_all_return(jobs, program, rng, kills, protocol):
    command = [*program("heat"), "400", "400", "6000"]
    calm = jobs.calm(4, *command)
    options = [*MANY, *every("50ms"), *copies(jobs, protocol)]
    job = jobs.start(4, *command, protocol=protocol, options=options)
    hits = strike_the_returning(job, rng, kills or 12, written=4)
    result = job.wait().ok()
    assert by_rank(result.out) == by_rank(calm.out)
    came_about(hits > 0 and any(event["from_file"] for event in result.of("started")), result)


def children(pid):
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            yield from map(int, (thread / "children").read_text().split())


def being_rebuilt(job, known):
    """The agent's children that are not known as ranks yet, nor as images."""
    for agent in children(job.process.pid):
        for pid in children(agent):
            with contextlib.suppress(OSError):
                if pid not in known and Path(f"/proc/{pid}/comm").read_text() != "resurgo-image\n":
                    yield pid


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["blocking", "hierarchical", "group", "chandy-lamport"])
def test_kills_of_processes_that_are_being_rebuilt(jobs, program, rng, protocol):
    """Before anybody knows of them: half of the memory is there, or nothing."""
    command = [*program("crash"), "99", "kill", "0", "always", "100000"]
    calm = jobs.calm(3, *command)
    job = crash(jobs, command, protocol, copies(jobs, protocol))
    hits = 0
    for _ in range(4):
        one_image(job)
        known = {pid for pid, _ in job.lives().values()}
        returns = len(returned(job))
        job.kill([rng.randrange(3)])
        for _ in range(3):
            hits += kill_one_that_is_being_rebuilt(job, rng, known)
        if not job.until(lambda: len(returned(job)) > returns, what="the return"):  # noqa: B023
            break
    result = job.wait().ok()
    assert by_rank(result.out) == by_rank(calm.out)
    came_about(hits > 0 and any(event["from_file"] for event in result.of("started")), result)


def returned(job):
    return [event for event in job.events if event["event"] in ("returned", "group_returned")]


def kill_one_that_is_being_rebuilt(job, rng, known):
    """Kills the next such process that is not in `known`, and adds it; returns whether there was one within 0.5 s."""
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        for pid in being_rebuilt(job, known):
            known.add(pid)
            time.sleep(rng.uniform(0, 0.005))
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            return True
    return False


@with_returns
@pytest.mark.gate("blocking")
def test_a_damaged_file_takes_all_to_the_wave_before(jobs, program, protocol):
    command = ring_of_crash(program, protocol)
    calm = jobs.calm(3, *command)
    job = crash(jobs, command, protocol, copies(jobs, protocol))
    one_image(job, 2)
    no_copy_sleeps(job)
    job.kill([0], signal.SIGSTOP)  # no other wave comes
    waves = files(jobs.directory / "images")
    assert sorted(waves) == [1, 2] and all(len(paths) == 3 for paths in waves.values()), waves
    os.truncate(waves[2][1], 8192)
    job.kill([0])
    result = job.wait().ok()
    assert by_rank(result.out) == by_rank(calm.out)
    assert (1, 2) in {(event["rank"], event["image"]) for event in result.of("image_lost")}
    assert {(event["rank"], event["image"], event["from_file"]) for event in after_failure(result)} >= {(rank, 1, True) for rank in range(3)}


@ROOT_ONLY
@pytest.mark.parametrize("protocol", ["group", *map(slow, ("channel-memory", "blocking", "pessimistic", "chandy-lamport", "hierarchical", "causal", "auto"))])
def test_a_full_disk_leaves_the_images_asleep(jobs, program, protocol):
    """Images that are not in files cannot be read from there."""
    command = ring_of_crash(program, protocol)
    calm = jobs.calm(3, *command)
    directory = jobs.directory / "images"
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", directory], check=True)
    try:
        job = crash(jobs, command, protocol, copies(jobs, protocol))
        job.process.send_signal(signal.SIGUSR1)
        job.reach(lambda: sum(e["event"] in ("image_written", "image_not_written") for e in job.events) >= 3)
        (failed, *_) = [event["rank"] for event in job.events if event["event"] == "image_not_written"]
        job.kill([failed])
        result = job.wait().ok()
    finally:
        subprocess.run(["umount", "-l", directory], check=True)
    assert by_rank(result.out) == by_rank(calm.out)
    assert {(event["image"], event["from_file"]) for event in after_failure(result)} == {(1, False)}, result.describe()


@pytest.mark.gate("pessimistic")
@pytest.mark.parametrize("protocol", ["chandy-lamport", "pessimistic"])
def test_a_resumed_job_keeps_to_it(chain, program, rng, protocol):
    calm = chain.jobs.calm(3, *program("heat"), "400", "400", "6000")
    options = ["--local-copies", "off"]
    job = chain.start(3, *program("heat"), "400", "400", "6000", options=options, protocol=protocol)
    job.opens_mpi()
    assert chain.suspend()
    job = chain.resume(options=MANY)
    job.opens_mpi()
    one_image(job)
    os.kill(job.lives()[rng.randrange(3)][0], signal.SIGKILL)  # it has the environment, and so the mark, of the first run
    result = chain.end()
    assert by_rank(chain.out) == by_rank(calm.out)
    assert result.of("failed") and all(event["from_file"] for event in result.of("started")), result.describe()


def test_it_cannot_be_changed_when_a_job_is_resumed(chain, program):
    job = chain.start(2, *program("crash"), *LONG, protocol="blocking")
    job.opens_mpi()
    assert chain.suspend()
    result = chain.resume(options=["--local-copies", "off"]).wait()
    assert result.code == 2 and "--local-copies cannot be changed for a resumed job" in result.errors
    chain.resurgo("kill", job.process.pid).ok()
