# SPDX-License-Identifier: Apache-2.0
"""Programs that ranks start: an MPI job inside a rank is a job of its own, and sees nothing of the outer one."""

import pytest

import harness

INNER = {
    "mpiexec": f"{harness.MPICH}/bin/mpiexec -n 2",
    "resurgo": f"{harness.RESURGO} run -q -n 2",
    "protected": f"{harness.RESURGO} run -q -n 2 --protocol causal --tolerate node",
    "alone": "",
}


@pytest.mark.parametrize("protocol", ["pessimistic", pytest.param("blocking", marks=pytest.mark.soak)])
@pytest.mark.parametrize(
    "how", ["mpiexec", "resurgo", *(pytest.param(how, marks=pytest.mark.soak) for how in ("protected", "alone"))]
)
def test_a_job_inside_a_rank(jobs, program, plain, how, protocol):
    nested = program("nested")
    inside = f"{INNER[how]} {nested[0]}"
    expected = sorted(plain(2, *nested, f"{INNER['mpiexec']} {nested[0]}").text.splitlines())
    if how == "alone":  # plain MPICH hangs: the program takes itself for the rank that has started it
        expected.remove("inner rank 1 of 2 received 99")
    result = jobs.run(2, *nested, inside, protocol=protocol).ok()
    assert sorted(result.text.splitlines()) == expected, result.describe()
    assert result.errors == ""


def test_both_lives_of_a_rank_start_one(jobs, program):
    """The rank that started the inner job is killed, and starts it again in its replay. The inner job's output appears
    once."""
    nested = program("nested")
    done, go = jobs.directory / "done", jobs.directory / "go"
    inside = f"{INNER['mpiexec']} {nested[0]}; touch {done}; while ! [ -e {go} ]; do sleep 0.05; done"
    job = jobs.start(3, *nested, inside, protocol="pessimistic")
    job.reach(done.exists, what="the inner job")
    assert job.kill([0]) and job.reach_another("started", rank=0)
    go.touch()
    result = job.wait().ok()
    assert sorted(result.text.splitlines()) == [
        "command: status 0",
        "inner rank 1 of 2 received 99",
        "outer rank 1 of 3 received 1",
        "outer rank 2 of 3 received 1",
    ]


def test_children_find_neither_variables_nor_descriptors_of_the_job(jobs, program):
    result = jobs.run(2, *program("nested"), "env; ls -l /proc/self/fd").ok()
    names = {line.partition("=")[0] for line in result.text.splitlines() if "=" in line}
    assert not names & {"PMI_FD", "FI_PROVIDER", "FI_PROVIDER_PATH", "MPIR_CVAR_CH4_NETMOD", "MPIR_CVAR_NOLOCAL"}
    assert {"PMI_RANK", "PMI_SIZE", "RESURGO_RANK", "PATH"} <= names
    descriptors = {line.split(" -> ")[0].split()[-1] for line in result.text.splitlines() if " -> " in line}
    assert not descriptors & {"30", "31", "32", "33"}, result.text


def test_what_a_wrapper_starts_before_the_program_is_refused_with_what_to_do(jobs, program):
    """The wrapper must pass the rank's variables and descriptors on to the program, and so passes them to others,
    too. What a failing process says goes to a file, as mpiexec sometimes loses it."""
    nested, said = program("nested")[0], jobs.directory / "said"
    before = f"{harness.MPICH}/bin/mpiexec -n 2 sh -c 'exec {nested} 2>> {said}'"
    result = jobs.run(1, "sh", "-c", f"{before} || exec {nested} 'true'", timeout=30).ok()
    assert "is not that rank, but has its variables; to run MPI of its own there" in said.read_text()
    assert "env -u FI_PROVIDER" in said.read_text() and result.text == "command: status 0\n"
    result = jobs.run(1, "sh", "-c", f"{nested} 'sleep 2' & sleep 0.5; {nested} 'true'; wait", timeout=30)
    assert "command: status 0" in result.text, result.describe()
