# SPDX-License-Identifier: Apache-2.0
"""Ranks that start others while they run: MPI_Comm_spawn and MPI_Comm_spawn_multiple."""

import re

import pytest

import harness
from harness import came_about, storm
from settings import MANY, TOLERATE_NODE, every
from spawned import ARGUMENTS, lines


def calm_run(jobs, command, size, *options):
    result = jobs.run(size, *command, *ARGUMENTS, options=options).ok()
    assert result.restarts == 0
    return result


@pytest.mark.gate("3")
@pytest.mark.parametrize("size", [1, 2, 3])
def test_undisturbed(jobs, program, size):
    command = program("spawn")
    for protocol in ("none", "pessimistic"):
        result = jobs.run(size, *command, *ARGUMENTS, protocol=protocol).ok()
        assert result.errors == ""
        # Four rounds with two children, and two with three that have one each.
        assert result.of("spawned")[0]["ranks"] == [size, size + 1]
        assert sum(len(event["ranks"]) for event in result.of("spawned")) == 4 * 2 + 2 * (3 + 3)
        assert {event["rank"] for event in result.of("finished")} == set(range(size + 20))
        if protocol == "none":
            plain = lines(result)
        assert lines(result) == plain and len(plain) > 20


def test_as_under_plain_mpich(jobs, program):
    """MPICH itself sometimes hangs over TCP when several worlds connect, with one rank seldom: then it tries again."""
    ours = jobs.run(1, *program("spawn"), *ARGUMENTS).ok()
    for last in (False, False, True):
        try:
            theirs = jobs.mpiexec(1, *program("spawn"), *ARGUMENTS, timeout=30).ok()
            break
        except AssertionError as hung:
            if last or "did not end" not in str(hung):
                raise
    assert lines(ours) == lines(theirs)


@pytest.mark.parametrize(
    "protocol, options",
    [
        ("pessimistic", []),
        ("causal", ["--reduction", "vcausal"]),
        ("causal", ["--reduction", "manetho", "--event-loggers", "0"]),
        ("causal", ["--reduction", "logon", "--event-loggers", "2", "--clock-spread", "piggyback", *every("50ms")]),
    ],
)
@pytest.mark.gate("pessimistic-*", "causal-options2")
def test_when_a_node_may_be_lost(jobs, program, rng, kills, protocol, options):
    command = program("spawn")
    calm = calm_run(jobs, command, 2)
    job = jobs.start(2, *command, *ARGUMENTS, options=[*MANY, *TOLERATE_NODE, *options], protocol=protocol)
    storm(job, rng, kills or 5, max(0.5, calm.seconds))
    assert lines(job.wait().ok()) == lines(calm)


@pytest.mark.gate("1", "3")
@pytest.mark.parametrize("size", [1, 2, 3])
def test_random_kills(jobs, program, rng, kills, size):
    command = program("spawn")
    calm = calm_run(jobs, command, size)
    job = jobs.start(size, *command, *ARGUMENTS, options=MANY)
    struck = storm(job, rng, kills or 6, max(0.5, calm.seconds))
    print(f"struck {struck}")
    assert lines(job.wait().ok()) == lines(calm)


def test_random_kills_with_images(jobs, program, rng, kills):
    command = (*program("spawn"), "6", "2", "1000")
    calm = jobs.calm(2, *command)
    job = jobs.start(2, *command, options=[*MANY, "--checkpoint-every", "50ms"])
    struck = storm(job, rng, kills or 6, max(0.5, calm.seconds))
    print(f"struck {struck}")
    assert lines(job.wait().ok()) == lines(calm)


def test_kills_of_children_only(jobs, program, rng):
    command = program("spawn")
    calm = calm_run(jobs, command, 2)
    result = jobs.run(2, *command, *ARGUMENTS, options=[*MANY, "--fault", "rank=spawned,messages=20"]).ok()
    assert lines(result) == lines(calm)
    failed = {event["rank"] for event in result.of("failed")}
    assert len(failed) >= 14 and min(failed) >= 2
    assert "spawned by rank" in result.errors and "rank 2 restarted" in result.errors


def test_a_parent_killed_while_its_spawn_is_carried_out(jobs, program):
    """At every message around the first spawns, which are the parent's first actions."""
    command = program("spawn")
    calm = jobs.calm(1, *command, "2", "2", "3")
    for messages in (1, 2, 3, 4, 5, 6, 8, 11, 15, 20):
        result = jobs.run(1, *command, "2", "2", "3", options=["--fault", f"rank=0,messages={messages}"]).ok()
        assert lines(result) == lines(calm)
        assert result.restarts == 1 and len(result.of("spawned")) == 2


@pytest.mark.soak
@pytest.mark.parametrize("victim", ["0", "1", "spawned"])
def test_kills_at_every_message(jobs, program, victim):
    command = program("spawn")
    arguments = ("3", "1", "2")
    calm = jobs.calm(2, *command, *arguments)
    messages = 1
    while True:
        fault = f"rank={victim},messages={messages}"
        result = jobs.run(2, *command, *arguments, options=[*MANY, "--fault", fault]).ok()
        assert lines(result) == lines(calm), fault
        if result.restarts == 0:
            break
        messages += 1
    assert messages > 20


@pytest.mark.soak
@pytest.mark.parametrize("size", [1, 2, 4])
def test_many_random_kills(jobs, program, rng, kills, pytestconfig, size):
    command = program("spawn")
    calm = calm_run(jobs, command, size)
    for _ in range(10 * pytestconfig.option.rounds):
        job = jobs.start(size, *command, *ARGUMENTS, options=MANY)
        struck = storm(job, rng, kills or 10, max(0.5, calm.seconds))
        print(f"struck {struck}")
        assert lines(job.wait().ok()) == lines(calm)


SPAWN_BY_NAME = """
import sys
from mpi4py import MPI
info = MPI.Info.Create(dict(pair.split("=") for pair in sys.argv[2:]))
try:
    others = MPI.COMM_WORLD.Spawn(sys.argv[1], ["a b", ""], 1, info)
except MPI.Exception as error:
    print("refused", MPI.COMM_WORLD.allreduce(1))
else:
    print("started", others.recv(source=0) if MPI.COMM_WORLD.rank == 0 else "")
    others.Disconnect()
"""
CHILD = """#!{python}
import os, sys
from mpi4py import MPI
parent = MPI.Comm.Get_parent()
parent.send((os.getcwd(), sys.argv[1:], sys.stdin.read(), os.environ["RESURGO_RANK"], os.environ["PMI_RANK"]), dest=0)
parent.Disconnect()
"""


def spawn_by_name(jobs, name, *info, size=2, **more):
    return jobs.run(size, harness.PYTHON, "-c", SPAWN_BY_NAME, name, *info, **more).ok()


@pytest.mark.gate("nothing-of-the-kind", "/bin/ls")
@pytest.mark.parametrize("name", ["./nothing", "nothing-of-the-kind", "/bin/ls", "/etc/passwd"])
def test_what_cannot_be_started_is_an_error_in_the_program(jobs, name):
    result = spawn_by_name(jobs, name)
    assert sorted(result.text.splitlines()) == ["refused 2", "refused 2"]
    assert "rank 0 could not spawn" in result.errors and name.removeprefix("./") in result.errors
    assert not result.of("spawned")
    came_about(result.of("spawn_failed"), result)


def test_a_refusal_is_repeated_to_a_later_life(jobs):
    result = spawn_by_name(jobs, "./nothing", options=["--fault", "rank=0,messages=6"])
    assert sorted(result.text.splitlines()) == ["refused 2", "refused 2"]
    assert result.restarts == 1 and len(result.of("spawn_failed")) == 1


@pytest.fixture
def child(tmp_path):
    place = tmp_path / "programs"
    place.mkdir()
    (place / "child").write_text(CHILD.format(python=harness.PYTHON))
    (place / "child").chmod(0o755)
    return place


@pytest.mark.parametrize("how", ["path", "wdir", "PATH"])
def test_where_programs_are_looked_for(jobs, child, how):
    if how == "path":
        result = spawn_by_name(jobs, "child", f"path={child}", "host=elsewhere", "unknown=key")
    elif how == "wdir":
        result = spawn_by_name(jobs, "./child", f"wdir={child}")
    else:
        env = harness.environment()
        result = spawn_by_name(jobs, "child", env=env | {"PATH": f"{child}:{env['PATH']}"})
    directory = child if how == "wdir" else jobs.jobs[-1].directory
    expected = (str(directory), ["a b", ""], "", "2", "0")
    assert f"started {expected}" in result.text.splitlines()


def test_a_line_break_in_an_argument_is_refused(jobs):
    """PMI cannot carry it; mpiexec breaks down."""
    script = "from mpi4py import MPI\ntry: MPI.COMM_SELF.Spawn('sh', ['-c', 'two\\nlines'])\n" \
             "except MPI.Exception: print('refused')"
    result = jobs.run(1, harness.PYTHON, "-c", script).ok()
    assert result.text == "refused\n" and "line breaks" in result.errors


def test_no_more_ranks_than_there_is_room_for(jobs):
    script = "import sys; from mpi4py import MPI\ntry: MPI.COMM_SELF.Spawn(sys.executable, ['-c', ''], 5000)\n" \
             "except MPI.Exception: print('refused')"
    result = jobs.run(1, harness.PYTHON, "-c", script).ok()
    assert result.text == "refused\n" and "5000 more ranks" in result.errors


@pytest.mark.parametrize("protocol", ["blocking", "chandy-lamport"])
def test_all_ranks_cannot_return_to_a_wave_that_some_are_not_in(jobs, protocol):
    result = spawn_by_name(jobs, harness.PYTHON, protocol=protocol)
    assert sorted(result.text.splitlines()) == ["refused 2", "refused 2"] and f"--protocol {protocol}" in result.errors


def test_a_child_that_fails_ends_the_job_without_a_protocol(jobs, program):
    result = jobs.run(1, *program("spawn"), *ARGUMENTS, protocol="none", options=["--fault", "rank=spawned,messages=9"])
    assert result.code == 137 and re.search(r"rank [12] killed by SIGKILL .*spawned by rank 0", result.errors)


EXITS = """
import sys
from mpi4py import MPI
if len(sys.argv) > 1:
    MPI.Comm.Get_parent().Disconnect()
    sys.exit(7)
MPI.COMM_WORLD.Spawn(sys.executable, [sys.argv[0], "child"]).Disconnect()
"""


def test_the_exit_code_of_a_child_counts(jobs):
    file = jobs.directory / "exits.py"
    file.write_text(EXITS)
    result = jobs.run(2, harness.PYTHON, file)
    assert result.code == 7, result.describe()


POOL = """
from mpi4py.futures import MPIPoolExecutor
def work(number): return number ** 3
if __name__ == "__main__":
    for workers in (1, 3):
        with MPIPoolExecutor(workers) as pool:
            print(sum(pool.map(work, range(200), chunksize=5)))
"""


def test_a_pool_of_spawned_workers(jobs):
    """The manager calls MPI from a thread of its own."""
    file = jobs.directory / "pool.py"
    file.write_text(POOL)
    result = jobs.run(1, harness.PYTHON, file, protocol="none").ok()
    assert result.text == f"{sum(n ** 3 for n in range(200))}\n" * 2
    assert [len(event["ranks"]) for event in result.of("spawned")] == [1, 3]
