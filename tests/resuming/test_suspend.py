# SPDX-License-Identifier: Apache-2.0
"""`resurgo suspend` and `resume`, `--resume-if-any` and `--time-limit`: all runs of a job together print the same as
one undisturbed run."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

import harness
from catalogue import BY_NAME, arguments
from chains import HEAT, INPUT, LONG_HEAT, SUSPENDED, ready
from harness import RESURGO, ROOT_ONLY, by_rank, came_about, slow
from settings import SMALL_LOG
from survival import A_RANK_THAT_LEAVES


def undisturbed(tmp_path_factory, words):
    """One undisturbed run of heat."""
    launcher = harness.Launcher(tmp_path_factory.mktemp("calm"))
    result = launcher.run(2, harness.PROGRAMS / "heat", *words).ok()
    launcher.close()
    return result


@pytest.mark.gate("auto", "chandy-lamport")
@pytest.mark.parametrize("protocol", ["auto", "blocking", "chandy-lamport", slow("group")])
def test_a_rank_that_has_finished_stays_so(jobs, chain, protocol):
    """Its end is part of the wave at which the job is suspended."""
    go = jobs.directory / "go"
    command = [harness.PYTHON, "-c", A_RANK_THAT_LEAVES, go]
    job = chain.start(3, *command, protocol=protocol, options=["--checkpoint-every", "100ms"])
    job.reach_event("finished", rank=2)
    job.reach_another("wave_complete")
    assert chain.suspend()
    for number in (30, 60, 90):
        Path(f"{go}{number}").touch()
    chain.resume()
    result = chain.end()
    assert {event["rank"] for event in result.of("started")} == {0, 1}, result.describe()
    assert by_rank(chain.out) == by_rank(jobs.calm(3, *command).out)


def test_a_file_of_ranks_that_is_gone_is_told(chain, program):
    file = chain.jobs.directory / "out"
    chain.start(2, *program("times"), "400", "5000", options=["-outfile-pattern", file])
    chain.last.reach(lambda: file.exists() and file.stat().st_size > 1000)
    assert chain.suspend()
    file.unlink()
    chain.resume()
    assert f"warning: {file} has changed since the job was suspended" in chain.end().errors
    assert file.read_bytes().endswith(b"has ended\n")


def test_files_of_ranks_go_on(chain, program):
    """The rank's output before and after is in its file once, even if a run in between was ended and undone."""
    pattern = chain.jobs.directory / "out.%r"
    size = lambda: sum(file.stat().st_size for file in chain.jobs.directory.glob("out.*"))
    chain.start(2, *program("times"), "300", "5000", options=["-outfile-pattern", pattern])
    chain.last.reach(lambda: size() > 5000)
    assert chain.suspend()
    directory, before = chain.directory, size()
    job = chain.resume()
    job.reach(lambda: size() > before + 3000)
    job.process.send_signal(signal.SIGINT)
    assert job.wait().code == 130
    chain.resume(directory)
    ended = chain.end()
    assert ended.out == b"" and "has changed since the job was suspended" not in ended.errors
    for rank in range(2):
        expected = []
        for i in range(300):
            expected += [b"rank %d round %d took\n" % (rank, i), b"rank %d round %d has %d\n" % (rank, i, 2 * i)]
        expected.append(b"rank %d has ended\n" % rank)
        text = (chain.jobs.directory / f"out.{rank}").read_bytes()
        assert re.sub(rb" took [0-9. ]*s?\n", b" took\n", text).splitlines(keepends=True) == expected


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    return undisturbed(tmp_path_factory, HEAT)


@pytest.mark.parametrize(
    "name, protocol",
    [
        ("heat", "pessimistic"),
        slow("cg", "pessimistic"),
        ("master_worker", "pessimistic"),
        slow("rma_halo", "pessimistic"),
        slow("comm_churn", "pessimistic"),
        ("pickles.py", "pessimistic"),
        slow("numpy_cg.py", "pessimistic"),
        ("heat", "blocking"),
        slow("cg", "blocking"),
        slow("messages", "blocking"),
        slow("numpy_cg.py", "blocking"),
        slow("heat", "auto"),
        slow("master_worker", "auto"),
        slow("messages", "auto"),
        slow("heat", "chandy-lamport"),
        ("messages", "chandy-lamport"),
        slow("master_worker", "chandy-lamport"),
        slow("messages", "group"),
        ("master_worker", "hierarchical"),
    ],
)
@pytest.mark.gate("heat-pessimistic", "master_worker-hierarchical")
def test_again_and_again(jobs, chain, program, rng, name, protocol):
    """Suspended at random moments, with ranks killed before and after."""
    entry = BY_NAME[name]
    calm_file, file = jobs.directory / "calm", jobs.directory / "result"
    calm = jobs.calm(3, *program(name), *arguments(entry, True, calm_file))
    every = [] if rng.random() < 0.5 else ["--checkpoint-every", "100ms"]
    job = chain.start(3, *program(name), *arguments(entry, True, file), options=every, protocol=protocol)
    went_on = 0
    for _ in range(3):
        ready(job)
        time.sleep(rng.uniform(0, min(calm.seconds, 0.5) / 4))
        if rng.random() < 0.6:
            job.kill([rng.randrange(3)])
        if not chain.suspend():
            break
        job = chain.resume()
        went_on += 1
        if rng.random() < 0.5 and job.until(job.is_in_mpi, what="MPI_Init"):
            time.sleep(rng.uniform(0, 0.2))
            job.kill([rng.randrange(3)])
    result = chain.end()
    assert by_rank(chain.out) == by_rank(calm.out), result.describe()
    came_about(went_on or calm.seconds < 1, result, "a suspension")
    assert not entry.result or file.read_bytes() == calm_file.read_bytes()


@pytest.mark.parametrize(
    "name, words, protocol",
    [slow("heat", LONG_HEAT, "pessimistic"), slow("heat", LONG_HEAT, "blocking"), slow("numpy_cg.py", ("400", "4000"), "pessimistic")],
)
def test_from_compressed_files(jobs, chain, program, rng, name, words, protocol):
    calm = jobs.calm(2, *program(name), *words)
    options = ["--checkpoint-compress", rng.choice(["zstd", "zstd:5"]), "--checkpoint-every", "100ms"]
    job = chain.start(2, *program(name), *words, options=options, protocol=protocol)
    for _ in range(2):
        ready(job)
        time.sleep(rng.uniform(0, 0.3))
        job.kill([rng.randrange(2)])
        if not chain.suspend():
            break
        job = chain.resume()
    result = chain.end()
    assert by_rank(chain.out) == by_rank(calm.out), result.describe()
    came_about(any(event["from_file"] for event in result.of("started")), result)


def test_after_a_reboot(jobs, chain, program, calm):
    """Only the files are left, in another place now. The program runs in another terminal, with another environment."""
    job = chain.start(2, *program("heat"), *HEAT)
    ready(job)
    time.sleep(0.5)
    assert chain.suspend()
    assert set(os.listdir("/dev/shm")) <= jobs.shared_memory
    shutil.rmtree(jobs.directory / "cache")
    chain.images = chain.images.rename(jobs.directory / "moved")
    chain.env = {"PATH": "/nowhere", "XDG_CACHE_HOME": str(jobs.directory / "cache")}
    chain.resume(chain.images)
    result = chain.end()
    assert chain.out == calm.out
    assert [(event["image"] > 0, event["from_file"]) for event in result.of("started")] == [(True, True)] * 2
    assert "2 ranks go on from the files in" in result.errors
    assert f"; the job is number {chain.last.process.pid} now\n" in result.errors


# Goes on until a file is there.
SLEEPS = """
import os, sys, time
from mpi4py import MPI
world, last, step = MPI.COMM_WORLD, time.monotonic(), 0
while not world.bcast(os.path.exists(sys.argv[1])):
    step += 1
    time.sleep(0.01)
    assert time.monotonic() >= last + 0.01, "time runs backwards"
    last = time.monotonic()
    if step == 20 and world.rank == 0:
        print("sleeps", flush=True)
print("rank", world.rank, "done")
"""


def test_the_clock_does_not_go_backwards_after_a_reboot(jobs):
    """The clock counts from the start of the machine. A program that sleeps until a moment of it must not sleep for as
    long as the machine had run before."""
    later = ["unshare", "--time", "--monotonic", "1000000", "--boottime", "1000000", "--fork"]
    if subprocess.run([*later, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("no time namespace can be had")
    images, go = jobs.directory / "images", jobs.directory / "go"
    words = ["--protocol", "blocking", "--checkpoint-dir", images, harness.PYTHON, "-c", SLEEPS, go]
    job = jobs.command([*later, harness.RESURGO, "run", "-n", "2", *words])
    job.says(b"sleeps")
    pid = job.process.pid
    (number,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    jobs.resurgo("suspend", number).ok()
    job.wait(20)
    resumed = jobs.command([harness.RESURGO, "resume", "--checkpoint-every", "200ms", "--fault", "rank=1,at=500ms", images])
    resumed.goes_on_from(job)
    resumed.reach(lambda: b"killed by SIGKILL" in resumed.err.read_bytes(), what="the kill")
    go.touch()
    result = resumed.wait(60).ok()
    assert sorted(result.text.splitlines()) == ["rank 0 done", "rank 1 done"], result.describe()
    assert "warning" not in result.errors and "killed by SIGKILL" in result.errors, result.describe()


def test_it_is_shown_and_can_be_removed(chain, program):
    job = chain.start(2, *program("heat"), *HEAT)
    ready(job)
    assert chain.suspend()
    number = job.process.pid
    row = chain.suspended()[number]
    assert re.search(r" 2 suspended  auto +\d+\.\d m?s +0 +- +\d+\.\d m?s +\S+heat 400", row), row
    told = chain.resurgo("kill", number)
    assert told.code == 0 and "its files in" in told.text
    assert not list(chain.images.iterdir()) and chain.suspended() == {}
    told = chain.resurgo("resume", number)
    assert told.code == 2 and f"there is no suspended job {number}" in told.errors


def test_the_first_suspension_can_be_resumed_until_there_is_another(jobs, chain, program, calm):
    """If a run is lost, what it began from stays."""
    job = chain.start(2, *program("heat"), *HEAT)
    ready(job)
    time.sleep(0.3)
    assert chain.suspend()
    number = job.process.pid
    for _ in range(2):
        lost = chain.resume(number)
        ready(lost)
        for verb in ("kill", "suspend", "resume"):
            told = chain.resurgo(verb, number)
            assert told.code == 2 and f"job {number} has been resumed" in told.errors, told.describe()
        time.sleep(0.5)  # images come and go
        os.kill(lost.process.pid, signal.SIGKILL)
        lost.process.wait()
        assert not lost.leftovers()
    chain.resume(number)
    chain.end()
    assert chain.out == calm.out


@pytest.mark.parametrize(
    "victim, protocol",
    [("dispatcher", "pessimistic"), slow("agent", "pessimistic"), slow("user", "pessimistic"), slow("user", "blocking")],
)
def test_whatever_dies_in_the_middle(jobs, chain, program, calm, rng, victim, protocol):
    """During a second suspension: the job is as it was at the first one, or at the second. Or it goes on."""
    job = chain.start(2, *program("heat"), *HEAT, protocol=protocol)
    ready(job)
    time.sleep(0.3)
    assert chain.suspend()
    for moment in (0.01, 0.04, 0.07, rng.uniform(0, 0.2)):
        before = os.stat(chain.directory / "suspended").st_ino
        job = chain.resume(chain.directory)
        ready(job)
        time.sleep(0.1)
        children = f"/proc/{job.process.pid}/task/{job.process.pid}/children"
        asking = jobs.command([RESURGO, "suspend", job.process.pid], env=chain.env)
        time.sleep(moment)
        with contextlib.suppress(OSError, IndexError):  # it may be over
            if victim == "agent":
                with open(children) as file:
                    os.kill(int(file.read().split()[0]), signal.SIGKILL)
            else:
                os.kill(job.process.pid, signal.SIGKILL if victim == "dispatcher" else signal.SIGTERM)
        ended = job.wait(lets_go=False)
        asking.wait(5)
        assert not job.leftovers()
        assert ended.code in {"dispatcher": (SUSPENDED, -9), "agent": (SUSPENDED, 1), "user": (SUSPENDED, 143)}[victim]
        if os.stat(chain.directory / "suspended").st_ino == before:
            assert ended.code != SUSPENDED, ended.describe()
        assert (chain.directory / "suspended").exists()
    chain.resume(chain.directory)
    chain.end()
    assert chain.out == calm.out


@ROOT_ONLY
@pytest.mark.parametrize(
    "size, why, protocol",
    [("5m", "the image of rank", "pessimistic"), slow("7m", "images/", "pessimistic"), slow("5m", "the image of rank", "blocking")],
)
def test_a_full_disk(jobs, chain, program, calm, size, why, protocol):
    """There is no room for the images, or only for them. The job goes on."""
    chain.images.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", chain.images], check=True)
    try:
        job = chain.start(2, *program("heat"), *HEAT, protocol=protocol)
        ready(job)
        time.sleep(0.3)
        told = chain.resurgo("suspend", job.process.pid)
        assert told.code == 1 and "could not be suspended and goes on" in told.errors, told.describe()
        assert why in told.errors and "No space left on device" in told.errors, told.describe()
        assert "suspended.new" not in os.listdir(chain.directory)
        if why == "images/" or protocol == "blocking":
            # The ranks had already ended, and begin again from what sleeps.
            job.reach(lambda: job.lives()[1][1] == 2, what="the next life")
        assert job.kill([1])
        result = chain.end()
    finally:
        subprocess.run(["umount", "-l", chain.images], check=True)
    assert result.out == calm.out and result.restarts == 1, result.describe()
    assert len(result.of("not_suspended")) == 1


def flip(path, at):
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def test_damaged_files(jobs, chain, program):
    """Unusable files are named, and stay as they are; once they are put right, they can be used."""
    job = chain.start(2, *program("heat"), *HEAT, options=["--checkpoint-every", "100ms"])
    ready(job)
    job.reach(lambda: sum(event["event"] == "image_written" for event in job.events) > 5, what="images")
    assert chain.suspend()
    own = chain.directory
    state = own / "suspended"
    size = state.stat().st_size

    def refused(words):
        result = chain.resurgo("resume", own)
        assert result.code in (1, 2) and words in result.errors and result.text == "", result.describe()
        assert "agent" not in result.errors

    for at, words in [
        (0, "it is no file of a suspended job"),
        (9, "another version of resurgo"),
        (12, "another version of resurgo"),
        (500, "the checksum of its description is wrong"),
        (size // 2, "its checksum is wrong"),
        (size - 1, "its checksum is wrong"),
    ]:
        flip(state, at)
        refused(words)
        flip(state, at)
    os.truncate(state, size - 40)
    refused("it is shorter than it should be")
    os.truncate(state, 20)
    refused("it is shorter than it should be")
    state.unlink()
    refused("no wave of its images was written down before it was lost")


@pytest.mark.gate("blocking*")
@pytest.mark.parametrize(
    "protocol, why",
    [
        ("pessimistic", "cannot start rank 1 again: its last image is lost"),
        ("blocking", "there is no wave whose images can all be used"),
        ("auto", "there is no wave whose images can all be used"),
    ],
)
def test_damaged_images(jobs, chain, program, calm, protocol, why):
    job = chain.start(2, *program("heat"), *HEAT, options=["--checkpoint-every", "100ms"], protocol=protocol)
    ready(job)
    job.reach(lambda: sum(event["event"] == "image_written" for event in job.events) > 5, what="images")
    assert chain.suspend()
    files = sorted(chain.directory.glob("rank-1.image-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    assert len(files) == 2
    for path in files:
        flip(path, path.stat().st_size // 2)
    lost = chain.resume()
    result = lost.wait()
    assert result.code == 1 and "the checksum of its memory is wrong" in result.errors, result.describe()
    # The other rank may have gone on, and may have had an image: a summary follows then.
    (error,) = (line for line in result.errors.splitlines() if why in line)
    assert re.search(r"; image \d+ of rank \d cannot be used: .*checksum", error), result.describe()
    (end,) = (line for line in result.errors.splitlines() if "stays suspended" in line)
    assert end.endswith("fix that, then resume it again"), result.describe()
    chain.runs.pop()
    flip(files[0], files[0].stat().st_size // 2)
    chain.resume()  # the older one is as good
    result = chain.end()
    assert chain.out == calm.out
    assert [event["rank"] for event in result.of("image_lost")] == [1]


def test_a_changed_program(jobs, chain, program, calm):
    copy = jobs.directory / "program"
    shutil.copy(program("heat")[0], copy)
    job = chain.start(2, copy, *HEAT)
    ready(job)
    time.sleep(0.3)
    assert chain.suspend()
    times = copy.stat().st_atime_ns, copy.stat().st_mtime_ns
    os.utime(copy)
    result = chain.resurgo("resume", chain.directory)
    assert result.code == 1 and f"{copy}, which the program had mapped, has changed since" in result.errors
    os.utime(copy, ns=times)
    chain.resume()
    chain.end()
    assert chain.out == calm.out


def test_not_twice_at_once(jobs, chain, program, calm):
    job = chain.start(2, *program("heat"), *HEAT)
    ready(job)
    time.sleep(0.2)
    assert chain.suspend()
    several = [jobs.command([RESURGO, "resume", chain.directory], env=chain.env) for _ in range(3)]
    for one in several:
        one.goes_on_from(job)
    results = [one.wait() for one in several]
    done = [result for result in results if result.code == 0]
    assert len(done) == 1 and job.out.read_bytes() + done[0].out == calm.out
    for result in results:
        if result.code != 0:
            assert result.code == 2 and result.text == "" and result.errors.count("\n") == 1, result.describe()
            assert "is running" in result.errors or "no job is suspended in" in result.errors, result.describe()


def test_several_of_one_command_line(jobs, chain, program):
    """The message says how to choose one of them."""
    for _ in range(2):
        job = chain.start(2, *program("heat"), *HEAT, cwd=jobs.directory)
        ready(job)
        assert chain.suspend()
    other = chain.start(2, *program("heat"), *HEAT, cwd=jobs.directory, options=["--resume-if-any"]).wait()
    first, second = sorted(chain.images.iterdir())
    assert other.code == 2 and f"are suspended, in {first} and {second}: " in other.errors, other.describe()
    assert f"resurgo resume {first}" in other.errors and f"resurgo kill {first}" in other.errors
    chain.resurgo("kill", first).ok()
    chain.resurgo("kill", second).ok()


@ROOT_ONLY
def test_somebody_elses_job(chain, program):
    job = chain.start(2, *program("heat"), *HEAT)
    ready(job)
    assert chain.suspend()
    user = {"user": 65534, "group": 65534, "extra_groups": []}
    command = [RESURGO, "resume", str(chain.directory)]
    if subprocess.run([RESURGO, "--version"], **user, capture_output=True).returncode == 0:
        result = subprocess.run(command, **user, capture_output=True, text=True)
        assert result.returncode == 2 and "Permission denied" in result.stderr
    os.chown(chain.directory / "suspended", 65534, 65534)
    result = chain.resurgo("resume", chain.directory)
    assert result.code == 2 and "belongs to user 65534: only that user can resume the job" in result.errors


def test_an_image_after_so_many_messages(jobs, program):
    """Of one rank, and of all; in a wave."""
    words = [*program("heat"), "200", "200", "12000"]
    result = jobs.run(2, *words, options=["--checkpoint-at", "rank=1,messages=2000"], protocol="pessimistic").ok()
    assert [event["rank"] for event in result.of("checkpointed")] == [1]
    # So much later that the image is there, however slow the machine is.
    options = ["--checkpoint-at", "rank=all,messages=1000", "--fault", "rank=0,messages=20000"]
    result = jobs.run(2, *words, options=options, protocol="pessimistic")
    assert sorted(event["rank"] for event in result.ok().of("checkpointed")) == [0, 1]
    assert [event["image"] for event in result.of("started")] == [0, 0, 1]
    at = ["--checkpoint-at", "rank=0,messages=500"]
    assert len(jobs.run(2, *words, options=at, protocol="blocking").ok().of("wave_complete")) == 1
    for wrong in ("rank=2,messages=5", "rank=0,at=3s", "messages=5", "rank=spawned,messages=5", "soon"):
        result = jobs.run(2, *words, options=["--checkpoint-at", wrong])
        assert result.code == 2 and "rank=N,messages=COUNT" in result.errors


def test_what_cannot_be_suspended_is_said(jobs, chain, program):
    job = jobs.start(2, *program("heat"), *HEAT)
    ready(job)
    told = jobs.resurgo("suspend", job.process.pid)
    assert told.code == 1 and "start it with --checkpoint-dir DIR to be able to suspend it" in told.errors
    job.process.terminate()
    job.wait(10)
    script = (
        "import socket, time; from mpi4py import MPI; s = socket.create_server(('127.0.0.1', 0)); "
        "c = socket.create_connection(s.getsockname()); print('ready', flush=True); time.sleep(100)"
    )
    job = chain.start(1, harness.PYTHON, "-c", script)
    job.says(b"ready")
    told = chain.resurgo("suspend", job.process.pid, timeout=20)
    assert told.code == 1 and "goes on: no image can be taken: rank 0: " in told.errors and "socket" in told.errors
    assert not job.over()
    job.process.terminate()
    job.wait(10)


@pytest.mark.gate("pipe-pessimistic", "file-blocking")
@pytest.mark.parametrize("protocol", ["pessimistic", "blocking"])
@pytest.mark.parametrize("how", ["pipe", "file"])
def test_input_and_unfinished_lines(chain, how, protocol):
    """Input already sent to rank 0 comes from the files; the later run's input follows. A file is opened again."""
    lines = [b"line %d\n" % i for i in range(301)]
    path = chain.jobs.directory / "input"
    path.write_bytes(b"".join(lines))
    words = [harness.PYTHON, "-c", INPUT, len(lines)]
    if how == "file":
        with open(path, "rb") as stdin:
            job = chain.start(2, *words, stdin=stdin, options=["-l"], protocol=protocol)
    else:
        job = chain.start(2, *words, stdin=subprocess.PIPE, options=["-l"], protocol=protocol)
        job.process.stdin.write(b"".join(lines[:150]) + lines[150][:3])
        job.process.stdin.flush()
    job.says(b"[0 20]")
    assert chain.suspend()
    if how == "file":
        chain.resume()
    else:
        job.process.stdin.close()
        assert b"[0 150]" not in chain.out
        with open(path, "rb") as rest:
            rest.seek(len(b"".join(lines[:150])) + 3)
            chain.resume(stdin=rest)
    chain.end()
    for rank in range(2):
        own = [int(i) for i in re.findall(rb"\[%d (\d+)\]" % rank, chain.out)]
        assert own == list(range(len(lines)))
    # No line of any rank is torn.
    whole = rb"\[0\] (\[0 \d+\]){7}|\[1\] (\[1 \d+\]){7}"
    assert all(re.fullmatch(whole, line) for line in chain.out.splitlines()), chain.out


def test_a_log_that_has_been_written_to_a_file(jobs, chain, program):
    spill = jobs.directory / "spill"
    spill.mkdir()
    words = [*program("transpose"), "64", "400"]
    calm = jobs.calm(3, *words)
    job = chain.start(3, *words, options=[*SMALL_LOG, "--spill-dir", spill])
    ready(job)
    time.sleep(calm.seconds / 4)
    assert chain.suspend()
    job = chain.resume()
    ready(job)
    job.kill([1])
    assert chain.end().of("job_ended")[0]["spilled_segments"] > 0
    assert by_rank(chain.out) == by_rank(calm.out) and not list(spill.iterdir())


def test_spawned_ranks(jobs, chain, program):
    """They are suspended like all others; other ranks can be spawned when the job goes on."""
    words = ("20", "2", "60")
    calm = jobs.calm(2, *program("spawn"), *words)
    job = chain.start(2, *program("spawn"), *words)
    job.reach_event("spawned")
    for _ in range(3):
        time.sleep(0.2)
        if not chain.suspend():
            break
        job = chain.resume()
        # Spawned ranks may have ended meanwhile, and not all have come to MPI.
        job.until(lambda: {0, 1} <= set(job.lives()))
    chain.end()
    assert len(chain.runs) > 1 and sorted(chain.out.splitlines()) == sorted(calm.out.splitlines())


@pytest.mark.slow
def test_as_a_script_does_that_is_started_again(jobs, chain, program):
    """The same command each time: it begins, goes on and ends; then it begins again."""
    words = [*program("heat"), "400", "400", "24000"]
    calm = jobs.calm(2, *words)
    options = ["--resume-if-any", "--time-limit", "1.4"]
    codes = []
    while codes[-1:] in ([], [SUSPENDED]) and len(codes) < 20:
        codes.append(chain.start(2, *words, cwd=jobs.directory, options=options).wait().code)
    assert codes[-1] == 0 and len(codes) > 1, codes
    assert chain.out == calm.out and not list(chain.images.iterdir())
    chain.runs.clear()
    job = chain.start(2, *words, cwd=jobs.directory, options=["--resume-if-any"])
    ready(job)
    assert chain.suspend() and not job.result(0).of("resumed")
    other = chain.start(3, *words, cwd=jobs.directory, options=["--resume-if-any"]).wait()
    assert other.code == 2 and "has 2 ranks, and 3 are asked for now" in other.errors, other.describe()
    other = chain.start(2, *program("heat"), "128", "128", "500", cwd=jobs.directory, options=["--resume-if-any"]).wait().ok()
    assert not other.of("resumed"), "another command is another job"
    other = chain.start(2, *words, options=["--resume-if-any"]).wait().ok()
    assert not other.of("resumed") and "was started in" in other.errors, "so is one in another directory"
    options = ["--resume-if-any", "--checkpoint-every", "50ms"]
    first = chain.start(2, *words, cwd=jobs.directory, options=options)
    ready(first)
    second = chain.start(2, *words, cwd=jobs.directory, options=options).wait()
    assert second.code == 2 and "is running" in second.errors, second.describe()
    chain.start(1, *program("heat"), "128", "128", "500", cwd=jobs.directory, options=options).wait().ok()
    same = first.wait().ok()
    came_about(same.of("resumed") and same.of("wave_complete"), same)


def test_the_limit_of_slurm(chain, program):
    """From its environment, or, if that lacks it, from squeue."""
    tools = chain.jobs.directory / "tools"
    tools.mkdir()
    (tools / "squeue").write_text("#!/bin/sh\n[ \"$*\" = '-h -o %L -j 77' ] && echo 0:02\n")
    (tools / "squeue").chmod(0o755)
    env = chain.env
    chain.env = env | {"SLURM_JOB_END_TIME": str(int(time.time()) + 3)}
    job = chain.start(2, *program("crash"), "99", "kill", "0", "always", "100000000", options=["--time-limit", "slurm"])
    assert job.wait(4).code == SUSPENDED
    chain.env = env | {"SLURM_JOB_ID": "77", "PATH": f"{tools}:{env['PATH']}"}
    assert chain.resume(options=["--time-limit", "slurm"]).wait(4).code == SUSPENDED
    chain.env = env
    told = chain.resurgo("resume", "--time-limit", "slurm", chain.last.process.pid)
    assert told.code == 2 and "this is no job of Slurm" in told.errors
    chain.resurgo("kill", chain.last.process.pid).ok()


@pytest.mark.parametrize(
    "words, said",
    [
        ("resume", "no job given"),
        ("resume a b", "one job"),
        ("resume /nowhere", "no job is suspended in /nowhere"),
        ("resume 1", "there is no suspended job 1"),
        ("resume -n 4 1", "cannot be changed for a resumed job"),
        ("resume --protocol none 1", "cannot be changed for a resumed job"),
        ("resume --time-limit soon 1", "not a duration"),
        ("suspend 1", "there is no job 1"),
        ("suspend 1 2", "the number of one job"),
        ("run --resume-if-any x", "needs --checkpoint-dir"),
        ("run --time-limit 1h x", "needs --checkpoint-dir"),
        ("run --time-limit 1h --checkpoint-dir x --protocol none x", "--protocol none has no images"),
    ],
)
def test_wrong_words(chain, words, said):
    result = chain.resurgo(*words.split())
    assert result.code == 2 and said in result.errors and result.text == "" and "panicked" not in result.errors
