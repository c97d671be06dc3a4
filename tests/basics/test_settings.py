# SPDX-License-Identifier: Apache-2.0
"""Unusual settings by shells, batch systems and parents. A job runs under them, with a kill and with images; or before
it starts, it names the one setting that is wrong."""

import pytest

import harness
from harness import RESURGO, slow
from settings import MANY

HEAT = ("100", "100", "800")


def in_shell(jobs, line, program, *words, options=(), env=None):
    """Runs a job from a shell with a setting: `line`, in which "$@" is the job."""
    options = [*MANY, "--fault", "rank=1,messages=300", "--checkpoint-every", "100ms", *options]
    job = [RESURGO, "run", "-n", "2", *options, program, *words]
    environment = {**harness.environment(), "TMPDIR": str(jobs.temporary), **(env or {})}
    return jobs.command(["bash", "-c", line, "bash", *job], env=environment).wait()


@pytest.mark.parametrize(
    "line",
    [
        "trap '' CHLD; \"$@\"",
        "env --ignore-signal=CHLD --ignore-signal=PIPE --ignore-signal=HUP --ignore-signal=USR2 --block-signal \"$@\"",
        'ulimit -d 100000; "$@"',
        'ulimit -n 80; ulimit -l 0; ulimit -c unlimited; ulimit -i 0; ulimit -q 0; "$@"',
        slow('ulimit -s 200; "$@"'),
        'ulimit -Sn 20; "$@"',
        'umask 777; "$@"',
        '"$@" <&-',
        slow('TMPDIR=/nonexistent "$@"'),
        slow('env -i "$@"'),
    ],
)
def test_a_job_runs(jobs, program, line):
    calm = jobs.calm(2, *program("heat"), *HEAT)
    result = in_shell(jobs, line, *program("heat"), *HEAT).ok()
    assert result.out == calm.out, result.describe()
    assert "rank 1 restarted" in result.errors


@pytest.mark.parametrize("line", ['"$@" >&-', '"$@" 2>&-', slow('"$@" <&- >&- 2>&-')])
def test_streams_that_are_closed(jobs, program, line):
    """Their output goes nowhere, and never into a file that has got the number."""
    calm = jobs.calm(2, *program("heat"), *HEAT)
    file = jobs.directory / "result"
    result = in_shell(jobs, line, *program("heat"), *HEAT, file).ok()
    assert result.out == (b"" if ">&- 2>" in line or line.endswith('" >&-') else calm.out), result.describe()
    assert ("rank 1 restarted" in result.errors) == ("2>&-" not in line)


def test_much_environment_and_many_words(jobs, program):
    calm = jobs.calm(2, *program("master_worker"), "200", "200")
    words = [str(number) for number in range(20000)]
    env = {f"MUCH{number}": "x" * 120_000 for number in range(4)}
    result = in_shell(jobs, '"$@"', *program("master_worker"), "200", "200", *words, env=env)
    assert result.ok().out == calm.out


def test_a_working_directory_that_is_gone(jobs, program):
    result = in_shell(jobs, 'mkdir gone && cd gone && rmdir ../gone && "$@"', *program("heat"), *HEAT)
    assert result.code == 2 and result.errors.count("\n") == 1, result.describe()
    assert "change to one that is there" in result.errors
