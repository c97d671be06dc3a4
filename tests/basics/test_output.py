# SPDX-License-Identifier: Apache-2.0
"""Standard input, output and error."""

import os
import re

import pytest

import harness
from harness import by_rank, slow, storm
from settings import MANY, every
from survival import TEXT, feed


@pytest.mark.gate("file-none", "pipe-pessimistic")
@pytest.mark.parametrize("protocol", ["none", "pessimistic"])
@pytest.mark.parametrize("how", ["file", "pipe"])
def test_stdin_goes_to_rank_0(jobs, program, protocol, how):
    result = feed(jobs, 3, program("output") + ["20"], TEXT, how, protocol=protocol).wait().ok()
    echoed = [line for line in result.text.splitlines() if line.startswith("rank 0 stdin ")]
    assert len(echoed) == 5001
    assert echoed[0] == "rank 0 stdin 1: input line 0" and echoed[-1] == "rank 0 stdin 5001: no newline at the end"


@pytest.mark.parametrize("protocol", ["none", "pessimistic"])
def test_lines_are_never_torn(jobs, program, protocol):
    result = jobs.run(4, *program("output"), "400", protocol=protocol).ok()
    for line in result.text.splitlines():
        assert line.startswith("rank ") and line.count("rank ") == 1, line[:200]
    for line in result.program_errors.splitlines():
        assert line.startswith(b"rank ") and line.count(b"rank ") == 1, line[:200]
    assert result.text.endswith("without a newline") or "without a newline\n" in result.text


def test_labels(jobs, program):
    result = jobs.run(3, *program("hello"), options=["-l"]).ok()
    assert sorted(result.text.splitlines()) == sorted(
        [f"[{rank}] hello from rank {rank} of 3" for rank in range(3)] + ["[0] 3 ranks, sum 3"]
    )


def test_patterns_before_lines(jobs, program):
    result = jobs.run(2, *program("hello"), options=["-prepend-pattern", "%g.%p.%r 100%%> "]).ok()
    assert sorted(result.text.splitlines()) == sorted(
        [f"0.0.{rank} 100%> hello from rank {rank} of 2" for rank in range(2)] + ["0.0.0 100%> 2 ranks, sum 1"]
    )


@pytest.mark.parametrize("protocol, options", [("pessimistic", []), slow("blocking", every("50ms"))])
def test_a_file_for_each_rank(jobs, program, rng, kills, tmp_path, protocol, options):
    """The rank's files contain its output exactly once, even after kills, and nothing else does."""
    command = program("output") + ["400", "1000"]
    calm = feed(jobs, 3, command, TEXT, "file", protocol=protocol).wait().ok()
    (tmp_path / "out.1").write_text("of an earlier job")
    files = ["-outfile-pattern", tmp_path / "out.%r", "-errfile-pattern", tmp_path / "err.%r.%g"]
    job = feed(jobs, 3, command, TEXT, "file", options=[*MANY, *files, *options], protocol=protocol)
    print(storm(job, rng, kills or 4, calm.seconds))
    result = job.wait().ok()
    assert (result.out, result.program_errors) == (b"", b"")
    for rank in range(3):
        assert (tmp_path / f"out.{rank}").read_bytes() == b"".join(by_rank(calm.out)[rank])
        assert (tmp_path / f"err.{rank}.0").read_bytes() == b"".join(by_rank(calm.program_errors)[rank])


def test_files_that_cannot_be_written(jobs, program, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for file in (tmp_path / "no/out.%r", tmp_path / "fifo", tmp_path):
        result = jobs.run(2, *program("hello"), options=["-outfile-pattern", file])
        assert (result.code, result.text, len(result.errors.splitlines())) == (1, "", 1), result.describe()
        assert f"cannot write output of ranks to {str(file).replace('%r', '0')}" in result.errors
    result = jobs.run(2, *program("hello"), options=["-outfile-pattern", "/dev/full"])
    assert result.code == 1 and "cannot write /dev/full: No space left" in result.errors


def test_as_plain_mpich(jobs, program, plain):
    """With one rank only: plain MPICH mixes the pieces of several."""
    assert jobs.run(1, *program("output"), "400").ok().out == plain(1, *program("output"), "400").out


@pytest.mark.parametrize("how", ["file", "pipe"])
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.gate("3-file")
def test_kills_while_reading_and_writing(jobs, program, rng, kills, how, size):
    command = program("output") + ["400", "1000"]
    calm = feed(jobs, size, command, TEXT, how).wait().ok()
    job = feed(jobs, size, command, TEXT, how, options=MANY)
    print(storm(job, rng, kills or 4, calm.seconds))
    result = job.wait().ok()
    assert by_rank(result.out) == by_rank(calm.out)
    assert by_rank(result.program_errors) == by_rank(calm.program_errors)


@pytest.mark.parametrize("protocol, options", [("pessimistic", []), ("blocking", every("50ms")), ("auto", every("100ms"))])
def test_lines_stay_whole_where_times_are_printed(jobs, program, rng, kills, protocol, options):
    """Every life prints other times, of other lengths. What was printed first stands; no line is missing, doubled or
    torn."""
    job = jobs.start(3, *program("times"), "200", "3000", options=[*MANY, *options], protocol=protocol)
    print(storm(job, rng, kills or 4, 1))
    result = job.wait().ok()
    expected = {rank: [] for rank in range(3)}
    for rank, lines in expected.items():
        for i in range(200):
            lines += [b"rank %d round %d took\n" % (rank, i), b"rank %d round %d has %d\n" % (rank, i, 3 * i)]
        lines.append(b"rank %d has ended\n" % rank)
    assert by_rank(re.sub(rb" took [0-9. ]*s?\n", b" took\n", result.out)) == expected


OWN = [("auto", []), ("blocking", []), slow("auto", every("50ms")), slow("blocking", every("50ms")), slow("hierarchical", [])]


@pytest.mark.parametrize("protocol, options", OWN)
def test_a_program_that_goes_on_from_its_own_checkpoints(jobs, program, plain, rng, kills, protocol, options):
    """It prints less than before, and other lines. Equal lines appear once, and all the rest is there, up to the
    result."""
    expected = plain(2, *program("own_checkpoints")).text.splitlines()
    job = jobs.start(2, *program("own_checkpoints"), options=[*MANY, *options], protocol=protocol)
    print(storm(job, rng, kills or 2, 0.5))
    result = job.wait()
    lines = result.text.splitlines()
    if protocol == "hierarchical" and result.code:
        assert result.code == 119 and expected[-1] not in lines, result.describe()
        return
    assert result.code == 0 and lines[-1] == expected[-1], result.describe()
    ways = [i for i, line in enumerate(lines) if line.startswith(("a new run", "going on"))]
    assert len(ways) == 1 + sum(event["anew"] for event in result.of("output_differs")), result.describe()
    for begin, end in zip(ways, [*ways[1:], len(lines)]):
        way = lines[begin + 1 : end]
        first = expected.index(way[0]) if way else 0
        assert way == expected[first : first + len(way)], result.describe()


def test_a_result_that_is_not_printed_is_no_success(jobs, program, plain):
    """A rank that recovers alone reads its former life's checkpoint: the job ends, and the next run goes on from
    there."""
    expected = plain(2, *program("own_checkpoints")).text.splitlines()
    # Steps so long that the rank is killed well before the next checkpoint.
    job = jobs.start(2, *program("own_checkpoints"), "30", "150000", options=MANY, protocol="pessimistic")
    job.says(b"step 12")
    job.kill([1])
    result = job.wait()
    assert result.code == 119 and "not piecewise deterministic" in result.errors, result.describe()
    again = jobs.run(2, *program("own_checkpoints"), protocol="pessimistic", cwd=job.directory).ok()
    assert again.text.splitlines() == ["going on from step 10", *expected[11:]]


def test_megabytes(jobs):
    """A flood of output through the agent and the dispatcher."""
    script = "from mpi4py import MPI\nfor i in range(200000): print('rank %d line %d' % (MPI.COMM_WORLD.rank, i))"
    result = jobs.run(3, harness.PYTHON, "-c", script).ok()
    for rank, lines in by_rank(result.out).items():
        assert lines == [b"rank %d line %d\n" % (rank, i) for i in range(200000)]


def test_stderr_stays_stderr(jobs):
    script = "import sys; from mpi4py import MPI; print('one'); print('two', file=sys.stderr)"
    result = jobs.run(1, harness.PYTHON, "-c", script, options=["-q"]).ok()
    assert result.text == "one\n" and result.errors == "two\n"


# Rank 0 makes a long pause between its lines, and there is a message before the last line, which waits for the test.
PAUSES = """
import os, time
from mpi4py import MPI
world = MPI.COMM_WORLD
def say(text):
    if world.rank == 0:
        print(text, flush=True)
for _ in range(40):
    world.allreduce(1)
say("begun")
if world.rank == 0:
    time.sleep(2.6)
say("computed")
world.barrier()
say("agreed")
while not os.path.exists(os.environ["AWAITED"]):
    time.sleep(0.01)
world.barrier()
say("done")
"""


@pytest.mark.parametrize("protocol, victim", [slow("blocking", 0), ("pessimistic", 0)])
def test_what_is_printed_after_a_pause_is_printed_once(jobs, protocol, victim):
    """The next life computes as long as the first one before it prints the same."""
    image = ["--checkpoint-at", "rank=0,messages=20"]
    job = jobs.start(2, harness.PYTHON, "-c", PAUSES, options=image, protocol=protocol)
    job.says(b"agreed")
    job.reach_event("checkpointed" if protocol == "pessimistic" else "wave_complete")
    job.strike([victim])
    result = job.wait().ok()
    assert result.text.splitlines() == ["begun", "computed", "agreed", "done"], result.describe()
    assert result.of("job_ended")[0]["restarts"] >= 1 and "not repeated" not in result.errors, result.describe()
