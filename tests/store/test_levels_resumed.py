# SPDX-License-Identifier: Apache-2.0
"""Places as a source of a job that goes on: what earlier runs of it have stored there is nearer than the beginning."""

import os
import shutil
import time

import pytest

import places
from chains import interrupt, reach_recorded
from harness import slow
from on_nodes import agents
from places import LONG, damage
from settings import WAVES

# No wave of its own comes between.
RARELY = ["--checkpoint-every", "1h"]
HOSTS = ["-hosts", ",".join(f"{host}.invalid:2" for host in places.HOSTS), "-ppn", "1", "--lease", "5s"]


class Levels(places.Levels):
    """The same, and its later runs."""

    def is_back(self, job):
        """All nodes are there, and the ranks run."""
        self.runs.append(job) if job not in self.runs else None
        job.reach(lambda: len(agents(job)) == len(places.HOSTS) and all(map(self.host_of, agents(job))), what="agents")
        self.hosts = {self.host_of(pid): pid for pid in agents(job)}
        job.reach(lambda: len(job.lives()) == 4)
        return job

    def go_on_from_files(self):
        return self.is_back(self.resume(self.directory, options=[*HOSTS, *self.launcher, *RARELY]))

    def loses_all_disks(self):
        """Everything is killed, and nothing is left but the place. False: the job was over before."""
        if not interrupt(self.last, "everything"):
            return False
        for path in [*self.disks.iterdir(), *self.images.iterdir()]:
            shutil.rmtree(path)
        return True

    def go_on(self, *words, options=()):
        return self.is_back(super().go_on(*words, options=[*HOSTS, *self.launcher, *options]))


@pytest.fixture
def levels(jobs, own_disks):
    return Levels(jobs, own_disks)


@pytest.mark.parametrize("protocol", [WAVES[1], slow(WAVES[0]), *map(slow, WAVES[2:])])
def test_nodes_are_lost_before_the_run_has_stored_anything(jobs, levels, program, rng, protocol):
    """The waves in the place are those of the run before."""
    calm = jobs.calm(4, *program("heat"), *LONG)
    levels.start(4, *program("heat"), *LONG, options=places.NO_COPIES, protocol=protocol)
    levels.reach_stored(rng.randint(1, 3))
    time.sleep(rng.uniform(0, 0.2))
    stored = levels.stored()[-1]
    assert interrupt(levels.last, "everything")
    job = levels.go_on_from_files()
    levels.lose(*levels.some(rng))
    assert job.reach_event("returned") and job.reach_event("wave_comes")
    result = job.wait().ok()
    assert levels.is_complete(calm), result.describe()
    assert levels.returned()[-1] >= stored, result.describe()
    assert not list(levels.place.iterdir())


@pytest.mark.parametrize("protocol", [slow(WAVES[0]), WAVES[1], *map(slow, WAVES[2:])])
def test_nodes_with_disks_of_their_own_get_all_from_the_place(jobs, levels, program, rng, protocol):
    """Twice. Then some are lost."""
    calm = jobs.calm(4, *program("heat"), *LONG)
    levels.start(4, *program("heat"), *LONG, options=places.NO_COPIES, protocol=protocol)
    for number in range(2):
        levels.reach_stored(rng.randint(1, 2))
        time.sleep(rng.uniform(0, 0.2))
        last = levels.stored()[-1]
        assert levels.loses_all_disks()
        job = levels.go_on(options=["--checkpoint-every", "100ms" if number == 0 else "1h"])
        begun = {event["image"] for event in job.result(0).of("started")}
        assert begun and min(begun) >= last, job.result(0).describe()
    levels.lose(*levels.some(rng))
    job.reach_event("returned")
    result = job.wait().ok()
    assert levels.is_complete(calm), result.describe()
    assert min(levels.returned()) >= last, result.describe()
    assert not list(levels.place.iterdir())


def test_what_no_node_and_no_place_has_is_named(jobs, levels, program):
    levels.start(4, *program("heat"), *LONG, options=places.NO_COPIES, protocol="blocking")
    levels.reach_stored()
    assert interrupt(levels.last, "everything")
    directory = levels.directory
    for path in [*levels.disks.iterdir(), levels.place]:
        shutil.rmtree(path)
    os.mkdir(levels.place, 0o700)
    told = levels.resurgo("resume", *HOSTS, *levels.launcher, directory)
    assert told.code == 1 and "which none of these nodes has" in told.errors, told.describe()
    levels.resurgo("rm", directory).ok()


@pytest.mark.parametrize("protocol", ["blocking", slow("auto"), slow("chandy-lamport")])
def test_an_older_wave_in_the_place_does_if_all_files_are_damaged(jobs, stored, program, rng, protocol):
    """It is older than the wave that the run has gone on from."""
    calm = jobs.calm(2, *program("heat"), *LONG)
    options = ["--local-copies", "off"]
    job = stored.start(2, *program("heat"), *LONG, options=options, more_of_it=";every=4", protocol=protocol)
    stored.reach_stored()
    count = len(job.result(0).of("wave_recorded"))
    reach_recorded(job, count + 2)
    newest = stored.stored()[-1]
    assert interrupt(job, "everything")
    job = stored.resume(stored.directory, options=RARELY)
    job.reach(lambda: len(job.lives()) == 2)
    for path in stored.directory.glob("rank-*.image-*"):
        damage(path)
    job.kill([rng.randrange(2)])
    result = job.wait().ok()
    assert stored.is_complete(calm), result.describe()
    assert [event["wave"] for event in result.of("wave_comes")][-1:] >= [newest], result.describe()
    assert all(event["image"] > 0 for event in result.of("started"))


def test_waves_of_earlier_runs_go_as_those_of_this_one(jobs, stored, program):
    """`keep` counts them all."""
    generations = lambda: {path.name for own in stored.place.iterdir() for path in (own / "generations").iterdir()}
    stored.start(2, *program("heat"), *LONG, protocol="blocking", more_of_it=";keep=3")
    stored.reach_stored(4)
    assert interrupt(stored.last, "everything")
    before = generations()
    assert 3 <= len(before) <= 4
    stored.resume(stored.directory)
    stored.reach_stored()
    assert stored.last.reach(lambda: before - generations()) and before & generations()
    stored.reach_stored(6)
    stored.last.reach(lambda: not before & generations())
    assert len(generations()) <= 4
    stored.end()
    assert not list(stored.place.iterdir())
