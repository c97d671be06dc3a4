# SPDX-License-Identifier: Apache-2.0
"""The command line, as people type it at mpiexec."""

import json
import os
import subprocess

import pytest

import harness
from harness import in_time, slow

SHOW = "import os, sys; from mpi4py import MPI; print('rank', MPI.COMM_WORLD.rank, 'of', MPI.COMM_WORLD.size, *{})"


def show(*expressions):
    return [harness.PYTHON, "-c", SHOW.format("[" + ", ".join(expressions) + "]")]


def lines(result):
    return sorted(result.ok().text.splitlines())


@pytest.mark.parametrize("option", ["-n", "-np", "--n", "--np"])
def test_number_of_ranks(jobs, program, option):
    result = jobs.resurgo("run", option, "3", *program("hello"))
    if option.startswith("--") and result.code == 2:
        pytest.skip(f"{option} is not known, as the help says")
    assert "3 ranks, sum 3" in result.ok().text


def test_one_rank_when_nothing_is_said(jobs, program):
    assert "1 ranks, sum 0" in jobs.resurgo("run", *program("hello")).ok().text


def test_harmless_options_of_mpiexec(jobs, program):
    """They choose among hosts and networks; here there is one of each."""
    (hosts := jobs.directory / "hosts").write_text("localhost:2 # this one\n")
    harmless = ["-hosts", "localhost", "-f", hosts, "-ppn", "2", "-launcher", "fork", "-rmk", "user", "-iface", "lo"]
    harmless += ["-usize", "8", "--oversubscribe", "-disable-auto-cleanup"]
    result = jobs.resurgo("run", *harmless, "-n2", *program("hello"))
    assert "2 ranks, sum 1" in result.ok().text and result.errors == ""


def test_kinds_of_memory_are_as_under_mpiexec(jobs):
    kinds = "print(MPI.COMM_WORLD.Get_info().Get('mpi_memory_alloc_kinds'))"
    command = ["-n", "1", harness.PYTHON, "-c", f"from mpi4py import MPI; {kinds}"]
    for wanted in ([], ["-memory-alloc-kinds", "system,mpi:alloc_mem"]):
        theirs = jobs.command([harness.MPICH / "bin/mpiexec", *wanted, *command]).wait().ok()
        assert jobs.resurgo("run", *wanted, *command).ok().out == theirs.out


def test_a_setting_with_which_mpich_crashes_is_left_out(jobs, program):
    env = harness.environment(MPIR_CVAR_CH4_OFI_ENABLE_AM="0")
    result = jobs.resurgo("run", "-n", "2", *program("rma_halo"), env=env).ok()
    assert result.errors.count("MPIR_CVAR_CH4_OFI_ENABLE_AM=0: left out") == 1


def test_exported_variables(jobs):
    wanted = show("os.environ.get('A')", "os.environ.get('SEEN')", "os.environ.get('UNSEEN')")
    env = harness.environment(SEEN="yes", UNSEEN="no")
    result = jobs.resurgo("run", "-genvnone", "-x", "A=1=2", "-x", "SEEN", "-n", "1", *wanted, env=env)
    assert lines(result) == ["rank 0 of 1 1=2 yes None"]


def test_programs_of_a_file(jobs, program):
    (hello,) = program("hello")
    file = jobs.directory / "programs"
    file.write_text(f"# two of them\n-n 1 {hello}\n-n 2 \\\n  {hello}\n")
    result = jobs.resurgo("run", "-l", "-configfile", file)
    assert "[0] 3 ranks, sum 3" in result.ok().text


def test_a_missing_value_does_not_eat_the_next_option(jobs, program, tmp_path):
    result = jobs.resurgo("run", "--json-events", "-n", "2", *program("hello"))
    assert (result.code, len(result.errors.splitlines())) == (2, 1)
    assert "--json-events needs a value, and -n is an option" in result.errors
    jobs.resurgo("run", "--json-events=-n", *program("hello"), cwd=tmp_path).ok()
    assert (tmp_path / "-n").read_text().startswith("{")


def test_a_misspelt_variable_is_not_ignored(jobs, program):
    result = jobs.resurgo("run", *program("hello"), env=harness.environment(RESURGO_PROTCOL="none"))
    assert (result.code, result.text, len(result.errors.splitlines())) == (2, "", 1)
    assert "RESURGO_PROTCOL" in result.errors and "did you mean RESURGO_PROTOCOL?" in result.errors


def test_a_program_without_mpi_runs_as_under_mpiexec(jobs):
    result = jobs.resurgo("run", "-n", "3", "-outfile-pattern", jobs.directory / "name.%r", "hostname").ok()
    assert len({(jobs.directory / f"name.{rank}").read_text() for rank in range(3)}) == 1
    assert len(result.errors.splitlines()) == 1 and "is not an MPI program" in result.errors
    mixed = jobs.resurgo("run", "-n", "1", "ls", "/nowhere", ":", "-n", "1", "sleep", "0.3", ":", "echo", "said")
    assert (mixed.code, mixed.text) == (2, "said\n"), "the others are not ended"


def test_a_program_without_mpi_that_is_killed_ends_the_job(jobs):
    job = jobs.start(2, "sleep", "60")
    job.reach(lambda: len(job.lives()) == 2)
    job.strike([1])
    result = job.wait()
    assert result.code == 137 and len(result.of("failed")) == 1
    assert result.errors.count("rank 1 killed by SIGKILL") == 1, result.describe()


def test_a_failure_before_init_is_told_once(jobs, program):
    result = jobs.run(1, *program("crash"), "all", "exit3", "before-init", jobs.directory / "marker", "10")
    assert result.code == 3 and result.errors.count("rank 0 exited with code 3 before MPI_Init") == 1
    assert len(result.errors.splitlines()) == 1 and len(result.of("failed")) == 1, result.describe()


@pytest.mark.gate("-timeout")
@pytest.mark.parametrize("how", ["-timeout", "MPIEXEC_TIMEOUT"])
def test_timeout(jobs, program, how):
    env = harness.environment(**({} if how == "-timeout" else {how: "1"}))
    option = [how, "1"] if how == "-timeout" else []
    result = jobs.resurgo("run", *option, "-n", "2", *program("times"), "10000", env=env)
    assert result.code == 255, result.describe()
    in_time(result.seconds < 10, result.describe())
    assert "APPLICATION TIMED OUT, TIMEOUT = 1s" in result.errors and "rank 0 round" in result.text


def test_exit_codes_and_verbosity(jobs, program):
    options = ["-print-all-exitcodes", "-v"]
    result = jobs.run(2, *program("hello"), options=options).ok()
    assert "resurgo: exit codes: 0,0" in result.errors and "rank 1 runs as process" in result.errors
    assert "libmpi.so.12" in result.errors
    result = jobs.resurgo("run", "-print-all-exitcodes", "ls", "/nowhere", ":", "true")
    assert result.code == 2 and "resurgo: exit codes: 2,0" in result.errors


# The processors that every thread of each rank may use, printed again and again. Near the end rank 0 waits for the test.
BOUND = """
import os, time
from mpi4py import MPI
world = MPI.COMM_WORLD
for i in range(60):
    world.allreduce(i)
    time.sleep(0.01)
    while i == 50 and world.rank == 0 and not os.path.exists(os.environ["AWAITED"]):
        time.sleep(0.01)
    if i % 20 == 19:
        threads = {tuple(sorted(os.sched_getaffinity(int(thread)))) for thread in os.listdir("/proc/self/task")}
        print("rank", world.rank, "runs on", *threads, flush=True)
"""
AFFINITY = "import os; from mpi4py import MPI; print('rank', MPI.COMM_WORLD.rank, sorted(os.sched_getaffinity(0)))"


@pytest.mark.parametrize(
    "binding",
    [
        ["-bind-to", "core"],
        ["-bind-to", "socket"],
        slow(["-bind-to", "core", "-map-by", "socket"]),
        slow(["-bind-to", "hwthread"]),
        slow(["-bind-to", "numa"]),
        slow(["-bind-to", "core:2"]),
        slow(["-bind-to", "rr"]),
        slow(["-bind-to", "user:0+1,1"]),
        slow(["-bind-to", "none", "-map-by", "core"]),
        slow(["-map-by", "core"]),
    ],
)
def test_ranks_are_bound_as_by_mpiexec(jobs, binding):
    command = [harness.PYTHON, "-c", AFFINITY]
    assert lines(jobs.run(3, *command, options=binding)) == lines(jobs.mpiexec(3, *binding, *command))


@pytest.mark.gate("files1")
@pytest.mark.parametrize("files", [[], ["--local-copies", "off"]])
def test_later_lives_are_bound_as_the_first(jobs, files):
    """A life from the beginning, one from an image in memory, and one that is rebuilt from a file."""
    files = [*files, "--checkpoint-dir", jobs.directory / "images"] if files else []
    at = ["--fault", "rank=0,messages=10", "--checkpoint-at", "rank=1,messages=40"]
    cpus = sorted(os.sched_getaffinity(0))
    own = [cpus[-1], cpus[0]]
    options = [*at, *files, "-bind-to", f"user:{own[0]},{own[1]}"]
    job = jobs.start(2, harness.PYTHON, "-c", BOUND, options=options, protocol="pessimistic")
    job.reach_event("caught_up", rank=0)
    job.reach_event("image_written" if files else "checkpointed", rank=1)
    job.strike([1])
    job.reach_another("started", rank=1)
    result = job.wait().ok()
    assert lines(result) == [f"rank {rank} runs on ({own[rank]},)" for rank in range(2) for _ in range(3)]
    begun = {(event["rank"], event["image"], event["from_file"]) for event in result.of("started") if event["life"] > 1}
    assert begun == {(0, 0, False), (1, 1, bool(files))}, result.describe()


def test_what_cannot_be_bound_to_is_refused(jobs, program):
    for unit, why in [("user:4000", "cpu 4000 is none of those"), ("cores", "write none, core, socket")]:
        result = jobs.resurgo("run", "-bind-to", unit, *program("hello"))
        assert (result.code, result.text, len(result.errors.splitlines())) == (2, "", 1) and why in result.errors


def test_env(jobs):
    wanted = show("os.environ.get('A')", "os.environ.get('B')", "os.environ.get('C')")
    result = jobs.resurgo(
        "run", "-genv", "A", "1", "-n", "1", "-env", "B", "2", *wanted, ":", "-n", "1", "-env", "C", "3", *wanted
    )
    assert lines(result) == ["rank 0 of 2 1 2 None", "rank 1 of 2 1 None 3"]


def test_envnone_and_envlist(jobs):
    wanted = show("os.environ.get('SEEN')", "os.environ.get('UNSEEN')")
    env = harness.environment(SEEN="yes", UNSEEN="no")
    result = jobs.resurgo("run", "-n", "1", "-envlist", "SEEN,PATH", *wanted, env=env)
    assert lines(result) == ["rank 0 of 1 yes None"]
    result = jobs.resurgo("run", "-n", "1", "-envall", *wanted, env=env)
    assert lines(result) == ["rank 0 of 1 yes no"]
    result = jobs.resurgo("run", "-n", "1", "-envnone", "-env", "SEEN", "set", *wanted, env=env)
    assert lines(result) == ["rank 0 of 1 set None"]


def test_wdir(jobs, tmp_path):
    result = jobs.resurgo("run", "-n", "2", "-wdir", tmp_path, *show("os.getcwd()"))
    assert lines(result) == [f"rank {rank} of 2 {tmp_path}" for rank in range(2)]


def test_several_programs(jobs, program):
    command = program("hello")
    result = jobs.resurgo("run", "-n", "1", *command, ":", "-n", "2", *command, ":", *command)
    assert lines(result) == sorted([f"hello from rank {rank} of 4" for rank in range(4)] + ["4 ranks, sum 6"])


def test_end_of_options(jobs, program):
    assert "2 ranks, sum 1" in jobs.resurgo("run", "-n", "2", "--", *program("hello")).ok().text


def test_arguments_of_the_program_are_its_own(jobs):
    result = jobs.resurgo("run", "-n", "1", *show("sys.argv[1:]"), "-n", "9", "--protocol", "--", "", "a b")
    assert lines(result) == ["rank 0 of 1 ['-n', '9', '--protocol', '--', '', 'a b']"]


def test_program_on_the_search_path(jobs, program):
    env = harness.environment()
    env["PATH"] = f"{harness.PROGRAMS}:{env['PATH']}"
    program("hello")
    assert "2 ranks, sum 1" in jobs.resurgo("run", "-n", "2", "hello", env=env).ok().text


def test_options_from_the_environment(jobs, program, tmp_path):
    events = tmp_path / "events.json"
    env = harness.environment(RESURGO_PROTOCOL="none", RESURGO_JSON_EVENTS=events)
    jobs.resurgo("run", "-n", "2", *program("hello"), env=env).ok()
    first = json.loads(events.read_text().splitlines()[0])
    assert first["event"] == "job_started" and first["protocol"] == "none" and first["ranks"] == 2
    jobs.resurgo("run", "-n", "2", "--protocol", "pessimistic", *program("hello"), env=env).ok()
    first = json.loads(events.read_text().splitlines()[0])
    assert first["protocol"] == "pessimistic", "the command line wins"


def test_variables_of_another_launcher_are_not_passed_on(jobs):
    """As when resurgo is started inside another launcher's job."""
    env = harness.environment(PMI_RANK="5", PMI_SIZE="9", PMIX_RANK="5", PMI_FD="77", HYDI_CONTROL_FD="7")
    result = jobs.resurgo("run", "-n", "2", *show("'PMIX_RANK' in os.environ"), env=env)
    assert lines(result) == ["rank 0 of 2 False", "rank 1 of 2 False"]


def test_help_and_version(jobs):
    for arguments in (["run", "--help"], ["--help"], ["run", "-h"]):
        result = jobs.resurgo(*arguments).ok()
        assert "--protocol" in result.text and "-n" in result.text
    told = jobs.resurgo("--version").ok().text
    version = json.loads(jobs.resurgo("version", "--json").ok().text)
    assert told.splitlines()[0] == f"resurgo {version['version']}" == jobs.resurgo("run", "--version").ok().text.splitlines()[0]
    elf = subprocess.run(["readelf", "-n", harness.RESURGO], capture_output=True, text=True).stdout
    assert f"Build ID: {version['build']}\n" in elf and version["build"] in told
    assert "pessimistic" in version["protocols"] and "chandy-lamport" in told
    usable = [library for library in version["libraries"] if library["usable"]]
    assert any(library["library"].startswith(str(harness.MPICH)) for library in usable), version
    result = jobs.resurgo("version", "--all")
    assert (result.code, result.errors) == (2, "resurgo: version takes no arguments but --json, not \"--all\"\n")


def test_two_jobs_at_the_same_time(jobs, program):
    running = [jobs.start(3, *program("cg"), "256", "200") for _ in range(3)]
    answers = {job.wait().ok().out for job in running}
    assert len(answers) == 1


def test_from_any_directory_and_by_any_name(jobs, program, tmp_path):
    """A link to resurgo finds the provider library; so does a call without a path."""
    link = tmp_path / "r"
    link.symlink_to(harness.RESURGO)
    assert "2 ranks" in jobs.command([link, "run", "-n", "2", *program("hello")]).wait().ok().text
    env = harness.environment()
    env["PATH"] = f"{harness.RESURGO.parent}:{env['PATH']}"
    assert "2 ranks" in jobs.command(["resurgo", "run", "-n", "2", *program("hello")], env=env).wait().ok().text
