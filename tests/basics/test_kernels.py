# SPDX-License-Identifier: Apache-2.0
"""The kernels: one verification value for each class on any number of ranks. If they cannot run on a number, they say
so."""

import pytest

from catalogue import BY_NAME

KERNELS = ["bt", "cg", "ft", "lu"]


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.gate("cg")
def test_every_number_of_ranks_gives_the_same(jobs, program, name):
    sizes = [size for size in (1, 3, 4, 9, 16) if BY_NAME[name].accepts(size)]
    answers = {jobs.run(size, *program(name), "S", protocol="none").ok().text for size in sizes}
    assert len(answers) == 1 and f"{name} class=S" in answers.pop()


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_the_larger_class(jobs, program, plain, name):
    theirs = plain(4, *program(name), "W").text
    assert jobs.run(4, *program(name), "W", protocol="none").ok().text == theirs
    assert "verification=" in theirs


@pytest.mark.parametrize("name", KERNELS)
def test_no_such_class(jobs, program, name):
    result = jobs.run(2 if name != "bt" else 4, *program(name), "X")
    assert result.code == 2, result.describe()
    assert "no class X" in result.errors and f"{name} S|W|A" in result.errors.replace("[", "").replace("]", "")


ODD = [("bt", 3, "1, 4, 9 or 16"), ("bt", 25, "1, 4, 9 or 16"), ("ft", 17, "1 to 16")]


@pytest.mark.parametrize("name, size, accepts", ODD)
def test_a_number_of_ranks_that_it_does_not_run_on(jobs, program, name, size, accepts):
    result = jobs.run(size, *program(name), "S", protocol="none")
    assert result.code == 2, result.describe()
    assert f"{name}: {size} ranks; it runs on {accepts}" in result.errors, result.describe()
