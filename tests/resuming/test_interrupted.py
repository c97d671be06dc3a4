# SPDX-License-Identifier: Apache-2.0
"""Jobs whose launcher, agent or whole process tree is killed; they go on from the last wave in files."""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

import harness
from catalogue import BY_NAME, arguments
from chains import HEAT, INPUT, LONG_HEAT, SUSPENDED, interrupt, reach_recorded, ready, until_recorded
from harness import RESURGO, ROOT_ONLY, by_rank, slow
from settings import EVERY, WAVES
from survival import A_RANK_THAT_LEAVES


@pytest.mark.gate("auto-launcher", "blocking-everything")
@pytest.mark.parametrize("protocol, victim", [
    (protocol, victim) if (protocol, victim) in zip(WAVES, ("launcher", "everything", "agent")) else slow(protocol, victim)
    for protocol in WAVES for victim in ("launcher", "agent", "everything")
])
def test_it_goes_on_from_its_last_wave(jobs, chain, program, protocol, victim):
    calm = jobs.calm(2, *program("heat"), *HEAT)
    job = chain.start(2, *program("heat"), *HEAT, options=EVERY, protocol=protocol)
    reach_recorded(job, 2)
    wave = job.result(0).of("wave_recorded")[-1]["wave"]
    assert interrupt(job, victim)
    chain.resume()
    result = chain.end()
    begun = {event["image"] for event in result.of("started")}
    assert len(begun) == 1 and begun.pop() >= wave, result.describe()
    assert chain.out == calm.out


@pytest.mark.gate("auto", "chandy-lamport")
@pytest.mark.parametrize("protocol", ["auto", "blocking", "chandy-lamport", slow("group")])
def test_a_rank_that_has_finished_stays_so(jobs, chain, protocol):
    """Its end is part of the recorded wave."""
    go = jobs.directory / "go"
    command = [harness.PYTHON, "-c", A_RANK_THAT_LEAVES, go]
    job = chain.start(3, *command, protocol=protocol, options=EVERY)
    job.reach_event("finished", rank=2)
    for _ in range(2):
        # The next wave begins when this one is recorded, and may have begun before the rank had finished.
        job.reach_another("wave_recorded")
    assert interrupt(job, "launcher")
    for number in (30, 60, 90):
        Path(f"{go}{number}").touch()
    chain.resume()
    result = chain.end()
    assert {event["rank"] for event in result.of("started")} == {0, 1}, result.describe()
    assert by_rank(chain.out) == by_rank(jobs.calm(3, *command).out)


def test_without_a_wave_it_is_said_that_there_is_nothing(chain, program):
    job = chain.start(2, *program("heat"), *HEAT, protocol="pessimistic", options=EVERY)
    job.reach(lambda: len(list(chain.images.glob("*/rank-*.image-*"))) >= 2)
    told = chain.resurgo("resume", chain.images)
    assert told.code == 2 and "no job is suspended" in told.errors
    told = chain.resurgo("resume", chain.directory)
    assert told.code == 2 and "is running" in told.errors and told.errors.count("\n") == 1, told.describe()
    assert interrupt(job, "launcher")
    told = chain.resurgo("resume", chain.directory)
    reason = "under pessimistic each rank has images of its own moments, and what was under way between them"
    assert told.code == 2 and reason in told.errors and "--protocol auto" in told.errors, told.describe()
    assert told.errors.count("\n") == 1 and told.text == ""


def test_before_the_first_wave_it_is_said_so(chain, program):
    job = chain.start(2, *program("heat"), *HEAT, options=["--checkpoint-every", "20s"])
    ready(job)
    assert interrupt(job, "launcher")
    told = chain.resurgo("resume", chain.directory)
    assert told.code == 2 and "it was lost before its first images were complete" in told.errors, told.describe()
    assert told.errors.count("\n") == 1 and told.text == ""


def test_it_is_listed_and_can_be_removed(chain, program):
    job = chain.start(2, *program("heat"), *HEAT, options=EVERY)
    reach_recorded(job)
    number, own = job.process.pid, chain.directory
    for name in (number, own):
        told = chain.resurgo("rm", name)
        assert told.code == 2 and "is running" in told.errors and told.errors.count("\n") == 1, told.describe()
    assert interrupt(job, "everything")
    row = chain.suspended()[number]
    assert re.search(r" 2 interrupted  auto +\d+\.\d m?s +0 +- +\d+\.\d m?s +\S+heat 400", row), row
    (shown,) = (job for job in json.loads(chain.resurgo("ps", "--json").ok().text) if job["job"] == number)
    assert (shown["job"], shown["state"]) == (number, "interrupted") and shown["wave"] > 0
    told = chain.resurgo("rm", number).ok()
    assert told.text == f"job {number}: its files in {own} have been removed\n"
    assert not list(chain.images.iterdir()) and chain.suspended() == {}
    for name in (number, own, chain.images):
        told = chain.resurgo("rm", name)
        assert told.code == 2 and told.errors.count("\n") == 1, told.describe()


@pytest.mark.parametrize("protocol", ["auto", slow("blocking"), slow("pessimistic")])
def test_sigterm_suspends(jobs, chain, program, protocol):
    calm = jobs.calm(2, *program("heat"), *HEAT)
    job = chain.start(2, *program("heat"), *HEAT, options=["--grace", "20s"], protocol=protocol)
    ready(job)
    time.sleep(0.3)
    job.process.terminate()
    assert job.wait(lets_go=False).code == SUSPENDED
    chain.resume()
    chain.end()
    assert chain.out == calm.out


def waits_for(pid, number):
    """Whether this signal has been sent to the process and not been taken yet: a second one would be lost."""
    pending = re.findall(r"^(?:SigPnd|ShdPnd):\s+(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return any(int(mask, 16) >> number - 1 & 1 for mask in pending)


def test_a_second_sigterm_ends_the_job(chain, program):
    """Also if the job could not be suspended at once, as it had to write an image first."""
    job = chain.start(2, *program("heat"), *LONG_HEAT)
    ready(job)
    job.kill([1], signal.SIGSTOP)
    job.process.terminate()
    job.reach(lambda: not waits_for(job.process.pid, signal.SIGTERM), what="the first SIGTERM")
    assert not job.over()
    job.process.terminate()
    job.kill([1], signal.SIGCONT)
    assert job.wait(10).code == 143


@pytest.mark.parametrize("protocol", ["auto", slow("blocking"), slow("chandy-lamport"), slow("group")])
@pytest.mark.parametrize("name", ["master_worker", slow("cg"), slow("heat"), slow("messages"), slow("numpy_cg.py"), slow("heat_f08")])
def test_killed_again_and_again(jobs, chain, program, rng, name, protocol):
    """Launcher, agent, everything or a rank, at random moments: the whole output is that of an undisturbed job."""
    entry = BY_NAME[name]
    calm_file, file = jobs.directory / "calm", jobs.directory / "result"
    calm = jobs.calm(3, *program(name), *arguments(entry, True, calm_file))
    job = chain.start(3, *program(name), *arguments(entry, True, file), options=["--checkpoint-every", "50ms"], protocol=protocol)
    for number in range(6):
        if not until_recorded(job):
            break
        time.sleep(rng.uniform(0, 0.3))
        if rng.random() < 0.3:
            job.kill([rng.randrange(3)])
        if not interrupt(job, rng.choice(["launcher", "agent", "everything"])):
            break
        job = chain.resume(chain.directory)
    result = job.wait().ok()
    assert by_rank(chain.out) == by_rank(calm.out), result.describe()
    assert not entry.result or file.read_bytes() == calm_file.read_bytes()
    assert not list(chain.images.iterdir())


PRINTS = """
import os
import sys
import time
from mpi4py import MPI
world = MPI.COMM_WORLD
numbers, awaited = int(sys.argv[1]), os.environ.get("AWAITED")
for number in range(numbers):
    total = world.allreduce(number)
    # As fast as it can at first; the rest waits for the test.
    if awaited and not os.path.exists(awaited):
        time.sleep(0.05 if number > 0.9 * numbers else 0.01 * (number % 10 == 0))
    sys.stdout.write(f"rank {world.rank} number {number} " + "x" * (number % 90) + ("\\n" if number % 5 else ""))
    if number % 3 == 0:
        sys.stdout.flush()
        sys.stderr.write(f"rank {world.rank} error {number}\\n")
"""


def without_repeated_writes(out, kills):
    """`out`, without what was written again after a kill. Each of `kills` is the length of `out` then."""
    whole = b""
    for begin, end in zip([0, *kills], [*kills, len(out)]):
        part = out[begin:end]
        lengths = (length for length in range(min(len(part), len(whole)), 0, -1) if part.startswith(whole[-length:]))
        # A line that goes on may look like its own beginning.
        again = next((length for length in lengths if b"rank" in part[:length]), 0)
        whole += part[again:]
    return whole


@pytest.mark.parametrize("to, kills", [("file", 8), slow("file", 300), slow("pipe", 100)])
def test_output_goes_on_to_the_byte(jobs, chain, rng, to, kills):
    """All runs append to one file, as in a user's script. Nothing shows how much of the last write a pipe took, if the
    launcher is killed before it notes that; then this write comes again."""
    words = [harness.PYTHON, "-c", PRINTS, str(1500 * kills)]
    calm = jobs.calm(2, *words)
    chain.env["AWAITED"] = str(jobs.directory / "awaited")
    out, events, lengths = jobs.directory / "all", [], []
    run = [RESURGO, "run", "-n", 2, *EVERY, "--checkpoint-dir", chain.images, *words]
    for number in range(kills + 1):
        events.append(jobs.directory / f"events-{number}")
        command = [*run[:2], "--json-events", events[-1], *run[2:]] if number == 0 else [RESURGO, "resume", "--json-events", events[-1], chain.directory]
        after = {"file": ">> " + str(out), "pipe": "| cat >> " + str(out)}[to]
        script = " ".join(map(shlex.quote, map(str, command))) + f" {after}"
        job = jobs.command(["bash", "-o", "pipefail", "-c", "exec " * (to == "file") + script], env=chain.env, events=events[-1])
        for other in jobs.jobs[-2:-1] if number else []:
            job.goes_on_from(other)
        if number == 0:
            reach_recorded(job)
        else:
            job.reach(lambda: job.lives(), what="its ranks")
        time.sleep(rng.uniform(0, 0.4))
        if job.over() or number == kills:
            break
        for pid in job.processes():
            with contextlib.suppress(OSError):  # it may be gone
                if Path(f"/proc/{pid}/comm").read_text() not in ("cat\n", "bash\n"):
                    os.kill(pid, signal.SIGKILL)
        job.process.wait()
        assert not job.leftovers()
        lengths.append(out.stat().st_size)
    job.wait(600).ok()
    printed = out.read_bytes() if to == "file" else without_repeated_writes(out.read_bytes(), lengths)
    assert by_rank(printed) == by_rank(calm.out)


@pytest.mark.parametrize("protocol", ["auto", slow("blocking")])
def test_standard_input_from_a_pipe(chain, protocol):
    """Input from before the last wave is in the wave's file; the later run's input follows."""
    lines = [b"line %d\n" % i for i in range(301)]
    given = b"".join(lines[:150]) + lines[150][:3]
    words = [harness.PYTHON, "-c", INPUT, len(lines)]
    job = chain.start(2, *words, stdin=subprocess.PIPE, options=EVERY, protocol=protocol)
    job.process.stdin.write(given)
    job.process.stdin.flush()
    job.says(b"[0 20]")
    reach_recorded(job, 2 + sum(event["event"] == "wave_recorded" for event in job.events))
    assert interrupt(job, "everything")
    job.process.stdin.close()
    assert b"[0 150]" not in chain.out
    rest = chain.jobs.directory / "rest"
    rest.write_bytes(b"".join(lines)[len(given) :])
    with open(rest, "rb") as stdin:
        chain.resume(chain.directory, stdin=stdin)
    chain.end()
    for rank in range(2):
        own = [int(i) for i in re.findall(rb"\[%d (\d+)\]" % rank, chain.out)]
        assert own == list(range(len(lines))), rank


@ROOT_ONLY
@pytest.mark.parametrize("protocol", ["auto", slow("blocking")])
def test_a_full_disk_while_a_wave_is_written_down(jobs, chain, program, protocol):
    """The user is told of waves that cannot be written down. The job goes on, and is resumed from the last one that
    was."""
    calm = jobs.calm(2, *program("heat"), *HEAT)
    chain.images.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", chain.images], check=True)
    try:
        job = chain.start(2, *program("heat"), *HEAT, options=EVERY, protocol=protocol)
        reach_recorded(job, 3)
        job.kill([0, 1], signal.SIGSTOP)
        full = chain.images / "full"
        with contextlib.suppress(OSError), open(full, "wb") as file:
            while True:
                file.write(bytes(1 << 16))
        job.kill([0, 1], signal.SIGCONT)
        lacking = ("wave_not_recorded", "image_not_written")
        why = lambda: [event["reason"] for event in job.events if event["event"] in lacking]
        job.reach(lambda: any("No space left on device" in reason for reason in why()), what="a full disk")
        wave = job.result(0).of("wave_recorded")[-1]["wave"]
        assert interrupt(job, "everything")
        full.unlink()
        chain.resume(chain.directory)
        result = chain.last.wait().ok()
        begun = {event["image"] for event in result.of("started")}
        assert len(begun) == 1 and begun.pop() >= wave, result.describe()
    finally:
        subprocess.run(["umount", "-l", chain.images], check=True)
    # If the disk had no room for it in the journal of output, it is printed again.
    assert chain.out == calm.out or job.result(0).of("output_not_kept")
    assert calm.out.startswith(job.out.read_bytes()) and calm.out.endswith(result.out)


def cut(path, to, rng):
    """Leaves a file as after a power cut while it was written: some of the beginning, and perhaps zeros."""
    whole = path.read_bytes()
    at = rng.randrange(len(whole.rstrip(b"\0")))  # or nothing would be missing
    to.write_bytes(whole[:at] + bytes(rng.choice([0, len(whole) - at])))


@pytest.mark.parametrize("protocol", ["auto", slow("blocking")])
def test_a_power_cut_while_a_wave_is_written_down(jobs, chain, program, rng, protocol):
    """The record being written is cut off anywhere: the wave before is whole, and the job goes on from it."""
    calm = jobs.calm(2, *program("heat"), *HEAT)
    job = chain.start(2, *program("heat"), *HEAT, options=EVERY, protocol=protocol)
    for _ in range(4):
        if not until_recorded(job):
            break
        if not interrupt(job, "everything"):
            break
        own = chain.directory
        cut(own / "suspended", own / "wave.new", rng)
        for rank in range(2):
            image = next(own.glob(f"rank-{rank}.image-*"))
            cut(image, own / f"rank-{rank}.new", rng)
        job = chain.resume(own)
    chain.last.wait().ok()
    assert chain.out == calm.out and not list(chain.images.iterdir())


def test_a_file_of_a_wave_that_is_not_whole_is_refused(chain, program, rng):
    """A disk lost what it claimed to have: nothing begins. With the right file the job goes on."""
    job = chain.start(2, *program("heat"), *HEAT, options=EVERY)
    reach_recorded(job)
    assert interrupt(job, "everything")
    own, aside = chain.directory, chain.jobs.directory / "aside"
    shutil.copy(own / "suspended", aside)
    for _ in range(12):
        cut(aside, own / "suspended", rng)
        if (own / "suspended").read_bytes() == aside.read_bytes():
            continue
        told = chain.resurgo("resume", own)
        assert told.code in (1, 2) and told.text == "" and str(own) in told.errors, told.describe()
        assert "shorter than it should be" in told.errors or "damaged" in told.errors or "no file of a" in told.errors, told.describe()
    shutil.copy(aside, own / "suspended")
    chain.resume(own)
    chain.end()


@pytest.mark.gate("blocking-image")
@pytest.mark.parametrize("protocol, damaged", [("blocking", "image"), slow("group", "image"), slow("auto", "image"), ("auto", "log")])
def test_images_of_a_wave_that_are_not_whole(jobs, chain, program, rng, protocol, damaged):
    """The file names two waves: all ranks go on from the older one."""
    calm = jobs.calm(2, *program("heat"), *HEAT)
    job = chain.start(2, *program("heat"), *HEAT, options=EVERY, protocol=protocol)
    reach_recorded(job, 3)
    assert interrupt(job, "everything")
    own = chain.directory
    (shown,) = (other for other in json.loads(chain.resurgo("ps", "--json").ok().text) if other["job"] == job.process.pid)
    # There may be files of one more wave, which is not recorded yet.
    images = {int(path.name.rpartition("-")[2]): path for path in own.glob(f"rank-1.{damaged}-*")}
    older, newest = (images[wave] for wave in [wave for wave in sorted(images) if wave <= shown["wave"]][-2:])
    cut(newest, newest, rng)
    chain.resume(own)
    result = chain.last.wait().ok()
    assert result.of("image_lost")[0]["image"] == int(newest.name.rpartition("-")[2]), result.describe()
    assert result.of("returned")[0]["wave"] == int(older.name.rpartition("-")[2]), result.describe()
    assert chain.out == calm.out


def two_waves(job, chain):
    """Takes two waves that are both written down. Returns their files, by number."""
    ready(job)
    for count in (1, 2):
        chain.resurgo("checkpoint", job.process.pid).ok()
        reach_recorded(job, count)
    return sorted({int(path.name.rpartition("-")[2]) for path in chain.directory.glob("rank-1.image-*")})


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [slow(()), ("--nodes", "2")], ids=["one", "two"])
@pytest.mark.parametrize("protocol", ["blocking", slow("chandy-lamport"), slow("group"), slow("auto")])
def test_a_wave_that_the_job_has_left_is_gone_on_from_by_nobody(jobs, chain, program, rng, protocol, nodes):
    """The newest wave cannot be read, all go on from the one before, and everything is killed. Then it can be read again."""
    calm = jobs.calm(2, *program("heat"), *LONG_HEAT)
    job = chain.start(2, *program("heat"), *LONG_HEAT, options=nodes, protocol=protocol)
    older, newest = two_waves(job, chain)
    assert interrupt(job, "everything")
    own = chain.directory
    whole = {path: path.read_bytes() for path in own.glob(f"*-{newest}") if path.name != f"printed-{newest}"}
    image = own / f"rank-1.image-{newest}"
    cut(image, image, rng)
    job = chain.resume(own)
    reach_recorded(job)
    assert [event["wave"] for event in job.events if event["event"] == "wave_recorded"] == [older]
    assert interrupt(job, "everything")
    for path, content in whole.items():
        path.write_bytes(content)
    chain.resume(own)
    result = chain.end()
    assert {event["image"] for event in result.of("started")} == {older}, result.describe()
    assert chain.out == calm.out


@pytest.mark.parametrize("nodes", [(), slow(("--nodes", "2"))], ids=["one", "two"])
def test_a_job_that_has_begun_again_is_gone_on_with_from_no_wave(chain, program, rng, nodes):
    """No wave can be read when a rank has failed: all begin at the beginning, and everything is killed."""
    job = chain.start(2, *program("heat"), *LONG_HEAT, options=["--local-copies", "off", *nodes], protocol="blocking")
    two_waves(job, chain)
    own = chain.directory
    images = {path: path.read_bytes() for path in own.glob("rank-*.image-*")}
    for image in own.glob("rank-1.image-*"):
        cut(image, image, rng)
    job.kill([1])
    job.reach_event("returned", wave=0)
    job.reach(lambda: not (own / "suspended").exists(), what="the end of the record")
    assert interrupt(job, "everything")
    for path, content in images.items():
        path.write_bytes(content)
    told = chain.resurgo("resume", own)
    assert told.code == 2 and "no wave of its images was written down" in told.errors, told.describe()
