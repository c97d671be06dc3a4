# SPDX-License-Identifier: Apache-2.0
"""Images of programs below wrappers: the wrapper runs once, whatever happens to its program, and learns how that has ended."""

import os
import signal
import time
from pathlib import Path

import pytest

from flooding import FLOOD
from harness import PYTHON, has_come_to_mpi, marked_processes, slow
from settings import SMALL_LOG, every

# Ranks print, wait for a file near the end, and print again. What they do at the end comes as the second argument.
PROGRAM = """
import os, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: print("rank", world.rank, "has got it", flush=True))
from mpi4py import MPI
world = MPI.COMM_WORLD
total = 0
for number in range(200):
    total += world.allreduce(number * world.rank)
    if number == 100:
        print("rank", world.rank, "is half way:", total, flush=True)
        while not os.path.exists(sys.argv[1]):
            time.sleep(0.01)
print("rank", world.rank, "is through:", total, flush=True)
MPI.Finalize()
exec(sys.argv[2])
"""
SHELL = 'echo "rank $PMI_RANK begins"; "$@"; code=$?; echo "rank $PMI_RANK has ended with $code"; exit $code'
NESTED = f"""sh -c '{SHELL}' sh "$@"; exit $?"""
WITH_PYTHON = """
import os, subprocess, sys
rank = os.environ["PMI_RANK"]
print("rank", rank, "begins", flush=True)
code = subprocess.call(sys.argv[1:], close_fds=False)
print("rank", rank, "has ended with", code, flush=True)
"""
WRAPPERS = {
    "shell": ["sh", "-c", SHELL, "sh"],
    "nested": ["sh", "-c", NESTED, "sh"],
    "python": [PYTHON, "-c", WITH_PYTHON],
}
NOT_PROGRAMS = ("sh", "resurgo", "resurgo-image", "resurgo-hold")


def begin(jobs, wrapper=WRAPPERS["shell"], end="", reaches="half way", **more):
    """A job of two ranks, each half way; and the file that lets them end."""
    go = jobs.directory / "go"
    job = jobs.start(2, *wrapper, PYTHON, "-c", PROGRAM, go, end, **more)
    job.reach(lambda: job.out.read_bytes().count(reaches.encode()) == 2, what="the ranks to be half way")
    return job, go


def expected(rank, code=0):
    half, through = (sum(range(end)) for end in (101, 200))
    return [f"rank {rank} begins", f"rank {rank} is half way: {half}", f"rank {rank} is through: {through}", f"rank {rank} has ended with {code}"]


def lines_of(result, rank):
    return [line for line in result.text.splitlines() if line.startswith(f"rank {rank} ")]


def is_right(result, code=0):
    assert [lines_of(result, rank) for rank in range(2)] == [expected(rank, code) for rank in range(2)], result.describe()
    assert "has not repeated" not in result.errors and "other numbers" not in result.errors, result.describe()
    assert b"Killed" not in result.program_errors, result.describe()


def take_image(jobs, job):
    told = jobs.resurgo("checkpoint", job.process.pid)
    assert told.code == 0, told.describe()


def named(pid):
    return Path(f"/proc/{pid}/comm").read_text().strip()


def of_rank(job, rank):
    """The processes of a rank that show so, and their names."""
    found = {}
    for pid in marked_processes(job.marks):
        try:
            if f"RESURGO_RANK={rank}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found[pid] = named(pid)
        except OSError:
            continue
    return found


def program_of(job, rank):
    """The only process of a rank that is the program, below a shell: a snapshot gets its name when it wakes."""
    found = lambda: [pid for pid, name in of_rank(job, rank).items() if name not in NOT_PROGRAMS]
    job.reach(lambda: len(found()) == 1, what=f"the program of rank {rank}")
    return found()[0]


def holder_of(job, rank):
    (pid,) = [pid for pid, name in of_rank(job, rank).items() if name == "resurgo-hold"]
    return pid


PROTOCOLS = ["pessimistic", "auto", "blocking", slow("causal"), slow("chandy-lamport"), slow("group"), slow("channel-memory")]


@pytest.mark.parametrize("protocol", PROTOCOLS[:-1])
def test_the_program_is_killed_and_goes_on_below_its_wrapper(jobs, protocol):
    """Twice: its life after the first kill has other connections than its wrapper."""
    job, go = begin(jobs, protocol=protocol)
    wrapper = job.lives()[1][0]
    take_image(jobs, job)
    for _ in range(2):
        assert job.hit(program_of(job, 1), signal.SIGKILL)
        job.reach_another("started", rank=1)
        assert job.newest("started", rank=1)["image"] > 0
        job.reach(lambda: holder_of(job, 1) and Path(f"/proc/{wrapper}").exists(), what="the wrapper")
    go.touch()
    result = job.wait().ok()
    is_right(result)


@pytest.mark.gate("pessimistic-*", "auto-all", "blocking-holder")
@pytest.mark.parametrize("victim", ["wrapper", "holder", "all"])
@pytest.mark.parametrize("protocol", ["pessimistic", "auto", "blocking", slow("causal"), slow("group")])
def test_the_wrapper_is_lost_and_begins_again(jobs, protocol, victim):
    job, go = begin(jobs, protocol=protocol)
    take_image(jobs, job)
    wrapper, holder, program = job.lives()[1][0], holder_of(job, 1), program_of(job, 1)
    for pid in {"wrapper": [wrapper], "holder": [holder], "all": [program, wrapper, holder]}[victim]:
        assert job.hit(pid, signal.SIGKILL) or victim == "all"
    job.reach(lambda: any(event["image"] == 0 for event in job.of("started", rank=1) if event["life"] > 1), what="a life from the beginning")
    go.touch()
    result = job.wait().ok()
    is_right(result)


@pytest.mark.gate("os._exit(3)-3-1", "os.kill*-139-1", "sys.exit(0)-0-0")
@pytest.mark.parametrize("kills", [0, 1])
@pytest.mark.parametrize(("end", "code"), [("os._exit(3)", 3), ("os.kill(os.getpid(), 11)", 139), ("sys.exit(0)", 0)])
def test_the_wrapper_learns_how_its_program_has_ended(jobs, end, code, kills):
    job, go = begin(jobs, end=end)
    take_image(jobs, job)
    for _ in range(kills):
        assert job.hit(program_of(job, 1), signal.SIGKILL)
        job.reach_another("started", rank=1)
    go.touch()
    result = job.wait()
    assert result.code == code, result.describe()
    is_right(result, code)


@pytest.mark.parametrize("wrapper", ["nested", "python"])
def test_other_wrappers(jobs, wrapper):
    job, go = begin(jobs, WRAPPERS[wrapper])
    take_image(jobs, job)
    holder = holder_of(job, 1)
    if wrapper == "python":
        # The wrapper is Python, too: the newest process is the program.
        victim = max(pid for pid, name in of_rank(job, 1).items() if name not in NOT_PROGRAMS and pid not in (holder, job.lives()[1][0]))
    else:
        victim = program_of(job, 1)
    assert job.hit(victim, signal.SIGKILL)
    job.reach_another("started", rank=1)
    go.touch()
    is_right(job.wait().ok())


# What comes behind the program goes on in the file where the program has left off.
INTO_FILES = {
    "program": '"$@" > {out}; code=$?; cat {out}',
    "both": '{{ echo before; "$@"; code=$?; echo after; }} > {out}; cat {out}',
    "appended": 'echo before > {out}; {{ "$@"; code=$?; echo after; }} >> {out}; cat {out}',
}


@pytest.mark.gate("program-1", "both-2", "appended-1", "appended-0")
@pytest.mark.parametrize("kills", [0, 1, 2])
@pytest.mark.parametrize("what", INTO_FILES)
def test_what_is_printed_goes_into_a_file(jobs, what, kills):
    out, go = jobs.directory / "out", jobs.directory / "go"
    into = INTO_FILES[what].format(out=f"{out}.$PMI_RANK")
    wrapper = f'echo "rank $PMI_RANK begins"; {into}; echo "rank $PMI_RANK has ended with $code"'
    job = jobs.start(2, "sh", "-c", wrapper, "sh", PYTHON, "-c", PROGRAM, go, "")
    job.reach(lambda: all(b"half way" in Path(f"{out}.{rank}").read_bytes() for rank in range(2)), what="the ranks to be half way")
    take_image(jobs, job)
    for _ in range(kills):
        assert job.hit(program_of(job, 1), signal.SIGKILL)
        job.reach_another("started", rank=1)
        assert job.newest("started", rank=1)["image"] > 0
    go.touch()
    result = job.wait().ok()
    is_right(result)
    for rank in range(2):
        inner = expected(rank)[1:3]
        whole = inner if what == "program" else ["before", *inner, "after"]
        assert Path(f"{out}.{rank}").read_text().splitlines() == whole, result.describe()


def test_a_pipe_to_another_process_is_no_part_of_an_image(jobs):
    job, go = begin(jobs, ["sh", "-c", '"$@" | cat; echo "rank $PMI_RANK has ended with $?"', "sh"])
    told = jobs.resurgo("checkpoint", job.process.pid)
    assert told.code != 0 and "a pipe leads from the program" in told.errors and "with exec in the wrapper" in told.errors, told.describe()
    go.touch()
    job.wait().ok()


def test_input_that_the_wrapper_may_read_is_none_of_an_image(jobs):
    reader, writer = os.pipe()
    job, go = begin(jobs, stdin=reader)
    told = jobs.resurgo("checkpoint", job.process.pid)
    assert told.code != 0 and "standard input of rank 0" in told.errors, told.describe()
    os.close(writer)
    os.close(reader)
    go.touch()
    is_right(job.wait().ok())


def test_input_from_a_file_goes_on_behind_the_program(jobs):
    """The program reads a part of it, and the wrapper what is left."""
    text = jobs.directory / "text"
    text.write_text("".join(f"line {number}\n" for number in range(4)))
    program = PROGRAM.replace("total = 0", "total = 0; line = os.read(0, 7).decode() if world.rank == 0 else ''; print(line, end='', flush=True)")
    end = "os.write(1, os.read(0, 7) if world_rank == 0 else b'')"
    go = jobs.directory / "go"
    wrapper = ["sh", "-c", '"$@"; [ $PMI_RANK = 1 ] || cat', "sh"]
    program = program.replace("MPI.Finalize()", "world_rank = world.rank; MPI.Finalize()")
    with open(text) as stdin:
        job = jobs.start(2, *wrapper, PYTHON, "-c", program, go, end, stdin=stdin)
    job.reach(lambda: job.out.read_bytes().count(b"half way") == 2, what="the ranks to be half way")
    take_image(jobs, job)
    assert job.hit(program_of(job, 0), signal.SIGKILL)
    job.reach_another("started", rank=0)
    go.touch()
    result = job.wait().ok()
    assert [line for line in result.text.splitlines() if line.startswith("line")] == text.read_text().splitlines(), result.describe()


@pytest.mark.parametrize("kills", [0, 1])
def test_a_signal_of_the_wrapper_comes_to_the_program(jobs, kills):
    kick = jobs.directory / "kick"
    wrapper = (
        'echo "rank $PMI_RANK begins"; "$@" & pid=$!; '
        f"while [ ! -e {kick} ]; do sleep 0.02; done; kill -USR1 $pid; "
        'wait $pid; echo "rank $PMI_RANK has ended with $?"'
    )
    job, go = begin(jobs, ["sh", "-c", wrapper, "sh"])
    take_image(jobs, job)
    for _ in range(kills):
        assert job.hit(next(pid for pid, name in of_rank(job, 1).items() if name.startswith("python")), signal.SIGKILL)
        job.reach_another("started", rank=1)
    kick.touch()
    job.reach(lambda: job.out.read_bytes().count(b"has got it") == 2, what="the signals")
    go.touch()
    result = job.wait().ok()
    for rank in range(2):
        begins, half, *rest = expected(rank)
        assert lines_of(result, rank) == [begins, half, f"rank {rank} has got it", *rest], result.describe()


def test_a_program_that_its_wrapper_ends(jobs):
    """Its death by the wrapper's signal is what the wrapper wants, and no failure of the program alone."""
    wrapper = 'echo "rank $PMI_RANK begins"; "$@" & wait $!; echo "rank $PMI_RANK has ended with $?"; exit 0'
    job, _ = begin(jobs, ["sh", "-c", wrapper, "sh"], options=["--max-restarts", "0"])
    take_image(jobs, job)
    os.kill(holder_of(job, 1), signal.SIGTERM)
    result = job.wait()
    # As without images: the program has not left MPI, so the rank has failed when its wrapper ends.
    assert result.code != 0 and "rank 1" in result.errors, result.describe()


def test_a_second_program_of_the_wrapper(jobs):
    """The first one was restored, so its connections were others than the second one's."""
    wrapper = f'{SHELL.replace("exit $code", "true")}; {SHELL}'
    job, go = begin(jobs, ["sh", "-c", wrapper, "sh"])
    take_image(jobs, job)
    assert job.hit(program_of(job, 1), signal.SIGKILL)
    job.reach_another("started", rank=1)
    go.touch()
    result = job.wait().ok()
    assert [lines_of(result, rank) for rank in range(2)] == [expected(0) * 2, expected(1) * 2], result.describe()


@pytest.mark.gate("pessimistic-wrapper", "auto-program")
@pytest.mark.parametrize("victim", ["program", "wrapper"])
@pytest.mark.parametrize("protocol", ["pessimistic", "auto", slow("causal")])
def test_a_full_log_has_images(jobs, protocol, victim):
    """It does not end the job, nor does what is forgotten then."""
    command = [*WRAPPERS["shell"], PYTHON, "-c", FLOOD]
    there, go = jobs.directory / "there", jobs.directory / "go"
    there.touch()
    calm = sorted(jobs.run(2, *command, there, protocol="none").ok().text.splitlines())
    job = jobs.start(2, *command, go, protocol=protocol, options=SMALL_LOG)
    job.reach(lambda: job.out.read_bytes().count(b"half way") == 2, what="the ranks to be half way")
    assert job.hit(program_of(job, 1) if victim == "program" else job.lives()[1][0], signal.SIGKILL)
    go.touch()
    result = job.wait().ok()
    assert sorted(result.text.splitlines()) == calm and not result.of("logs_let_go"), result.describe()


@pytest.mark.soak
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_kills_at_any_moment(jobs, rng, request, protocol):
    """Of any process of a rank, while images come one after the other."""
    command = [*WRAPPERS["shell"], PYTHON, "-c", PROGRAM.replace("range(200)", "range(3000)")]
    there = jobs.directory / "there"
    there.touch()
    calm = sorted(jobs.run(2, *command, there, "", protocol="none").ok().text.splitlines())
    for number in range(request.config.option.rounds):
        go = jobs.directory / f"go{number}"
        job = jobs.start(2, *command, go, "", protocol=protocol, options=every("20ms"))
        for _ in range(rng.randrange(4)):
            time.sleep(rng.uniform(0.05, 0.6))
            found = sorted(of_rank(job, rng.randrange(2)).items())
            victim, name = rng.choice(found) if found else (0, "")
            # Nobody can know whether a wrapper's program has died before MPI_Init has done its first work.
            if name in NOT_PROGRAMS or victim and has_come_to_mpi((victim, None)):
                time.sleep(0 if name in NOT_PROGRAMS else 0.1)
                job.hit(victim, signal.SIGKILL)
        go.touch()
        result = job.wait().ok()
        assert sorted(result.text.splitlines()) == calm, result.describe()
