# SPDX-License-Identifier: Apache-2.0
"""Ranks that finish long before the others: their ends are part of the waves in places."""

import shutil

import pytest

from ends import THREE, leaving, lives_of_the_end
from harness import by_rank, slow
from places import NO_COPIES
from settings import WAVES


def is_whole(stored, calm):
    """All lines have been printed, those of the rank that had finished once: a run may print others again."""
    seen = stored.out.splitlines()
    assert set(seen) == set(calm.out.splitlines()), (seen, calm.out)
    assert sum(line.startswith(b"rank 2 ") for line in seen) == 2, seen


def store_again(stored, job):
    """Waits for a wave in the place that was asked for after now: one may be under way, and one on its way."""
    stored.reach_stored(len(stored.stored()) + 3)
    assert not job.of("waves_given_up")


@pytest.mark.gate("auto-nodes0", "blocking-nodes5", "chandy-lamport-nodes6")
@pytest.mark.parametrize(("protocol", "nodes"), [
    ("auto", []), ("blocking", []), ("chandy-lamport", []), slow("group", []),
    ("auto", THREE), ("blocking", THREE), ("chandy-lamport", THREE), slow("group", THREE),
])
def test_a_job_goes_on_from_a_place_without_ranks_that_had_finished(jobs, stored, protocol, nodes):
    """Twice; the second time from a wave of a run in which the rank had not begun."""
    command, go, calm = leaving(jobs)
    job = stored.start(3, *command, options=nodes, protocol=protocol)
    job.reach_event("finished", rank=2)
    store_again(stored, job)
    ended = []
    for number in (30, 60):
        last = stored.stored()[-1]
        assert stored.loses_all()
        ended.append(stored.last.result(0))
        job = stored.go_on(options=["--nodes", "2"] if nodes else [])
        job.reach_event("returned")
        assert job.of("returned")[0]["wave"] >= last
        go(number)
        store_again(stored, job)
    job.strike([0])
    job.reach_another("started", rank=0)
    go(90)
    result = stored.end()
    assert lives_of_the_end(result, *ended[1:]) == [] and lives_of_the_end(ended[0]) == [1], result.describe()
    is_whole(stored, calm())
    assert not list(stored.place.iterdir())


@pytest.mark.parametrize("protocol", ["auto", slow("blocking")])
def test_a_suspended_job_is_in_its_place_with_its_ends(jobs, stored, protocol):
    command, go, calm = leaving(jobs)
    job = stored.start(3, *command, protocol=protocol, more_of_it=";every=1000")
    job.reach_event("finished", rank=2)
    job.reach_another("wave_recorded")
    assert stored.suspend() and len(stored.stored()) == 1
    first = stored.last.result(75)
    shutil.rmtree(stored.images)
    job = stored.go_on()
    for number in (30, 60, 90):
        go(number)
    result = stored.end()
    assert lives_of_the_end(first, result) == [1], result.describe()
    assert by_rank(stored.out) == by_rank(calm().out) and not list(stored.place.iterdir())


@pytest.mark.gate("blocking")
@pytest.mark.parametrize("protocol", WAVES[:2] + [slow(protocol) for protocol in WAVES[2:]])
def test_images_come_back_from_a_place_without_that_of_an_end(jobs, levels, protocol):
    """Hosts are lost with all copies of images: first that of a rank that runs, then that of the end."""
    command, go, calm = leaving(jobs)
    job = levels.start(3, *command, options=NO_COPIES, protocol=protocol)
    job.reach_event("finished", rank=2)
    store_again(levels, job)
    levels.lose("b")
    assert job.reach_event("returned") and job.reach_event("wave_comes")
    go(30)
    store_again(levels, job)
    node = job.of("started", rank=1)[-1]["node"]
    levels.lose("c")
    # Where nothing is logged, nobody returns for an end.
    job.reach_another("returned" if protocol == "auto" or node == "c.invalid" else "node_lost")
    go(60)
    store_again(levels, job)
    job.strike([0])
    job.reach_another("started", rank=0)
    go(90)
    result = job.wait().ok()
    assert lives_of_the_end(result) == [1], result.describe()
    assert all(event["wave"] > 0 for event in result.of("returned")), result.describe()
    assert by_rank(result.out) == by_rank(calm().out)
