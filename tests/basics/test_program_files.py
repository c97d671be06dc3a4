# SPDX-License-Identifier: Apache-2.0
"""The files of a program are replaced while the job runs. A rank goes on with the files that it began with, or the job
says why not."""

import os
import re
import shutil
from pathlib import Path

import pytest

import harness

HEAT = ("400", "400", "6000")


def replace(path, by):
    """Like `mv`: processes that run it keep the old file."""
    shutil.copy(by, f"{path}.new")
    os.replace(f"{path}.new", path)


@pytest.mark.parametrize("protocol", ["pessimistic", pytest.param("blocking", marks=pytest.mark.soak)])
@pytest.mark.parametrize("how", ["replaced", pytest.param("removed", marks=pytest.mark.soak)])
def test_a_rank_is_restarted_from_the_file_it_began_with(jobs, program, tmp_path, protocol, how):
    calm = jobs.calm(2, *program("heat"), *HEAT)
    app = shutil.copy(program("heat")[0], tmp_path / "app")
    job = jobs.start(2, app, *HEAT, protocol=protocol)
    job.says(b"step 500 ")
    replace(app, program("hello")[0]) if how == "replaced" else os.unlink(app)
    for life in (1, 2):
        job.reach(lambda life=life: job.lives().get(1, (0, 0))[1] == life)
        job.opens_mpi()
        job.strike([1])
    result = job.wait().ok()
    assert result.out == calm.out, result.describe()
    assert len(result.of("program_replaced")) == 1 and "has been replaced since the job began" in result.errors


@pytest.mark.parametrize("words", [(), pytest.param(("sh",), marks=pytest.mark.soak)])
def test_a_script_that_was_edited_ends_the_job(jobs, program, tmp_path, words):
    script = tmp_path / "run.sh"
    script.write_text(f"#!/bin/sh\nexec {program('heat')[0]} {' '.join(HEAT)}\n")
    script.chmod(0o755)
    text = script.read_text()
    job = jobs.start(2, *words, script, protocol="pessimistic")
    job.says(b"step 500 ")
    replace(script, script)  # the same words in another file
    assert job.kill([1]) and job.reach_another("caught_up")
    script.write_text(f"{text}# edited\n")
    script.chmod(0o755)
    job.strike([1])
    result = job.wait()
    assert result.code == 1 and f"cannot start rank 1 again: {script} has changed" in result.errors, result.describe()


def test_a_program_that_a_script_starts_is_compared(jobs, program, tmp_path):
    app = shutil.copy(program("heat")[0], tmp_path / "app")
    job = jobs.start(2, "sh", "-c", f"exec {app} {' '.join(HEAT)}", protocol="pessimistic")
    job.says(b"step 500 ")
    replace(app, program("hello")[0])
    job.strike([1])
    result = job.wait()
    assert result.code == 1 and f"rank 1 cannot go on: {app} has changed" in result.errors, result.describe()


def test_a_library_that_was_replaced_ends_the_job_and_one_installed_again_does_not(jobs, program, tmp_path):
    libm = Path(re.search(r" (/\S*/libm[.-]\S*)", Path("/proc/self/maps").read_text())[1])
    library = shutil.copy(libm, tmp_path / "libm.so.6")
    env = harness.environment(LD_PRELOAD=library)
    job = jobs.start(2, *program("heat"), *HEAT, protocol="pessimistic", env=env)
    job.says(b"step 500 ")
    replace(library, libm)
    assert job.kill([1]) and job.reach_another("caught_up")
    code = bytearray(libm.read_bytes())
    code[code.index(b"\x03\0\0\0GNU\0") + 8] ^= 1  # the first byte of its build id: another library
    (tmp_path / "other").write_bytes(code)
    replace(library, tmp_path / "other")
    job.strike([1])
    result = job.wait()
    assert result.code == 1 and f"rank 1 cannot go on: {library} has changed" in result.errors, result.describe()
