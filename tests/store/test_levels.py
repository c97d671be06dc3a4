# SPDX-License-Identifier: Apache-2.0
"""Places as a source while the job runs: nodes get back what no node has any more, and the job goes on by itself."""

import contextlib
import time

import pytest

from catalogue import BY_NAME, arguments
from harness import came_about, slow
from places import LONG, NO_COPIES, damage, serving
from settings import EVERY, WAVES


@pytest.mark.gate("auto-dir")
@pytest.mark.parametrize("kind", ["dir", slow("server")])
@pytest.mark.parametrize("protocol", [WAVES[0], WAVES[1], *map(slow, WAVES[2:])])
def test_nodes_are_lost_with_all_copies_of_their_images(jobs, levels, program, rng, tmp_path, protocol, kind):
    """At any moment, one or two at once. The wave that the place has is nearer than the beginning."""
    calm = jobs.calm(4, *program("heat"), *LONG)
    with contextlib.ExitStack() as stack:
        if kind == "server":
            levels.shown = stack.enter_context(serving(tmp_path / "server")).place
        job = levels.start(4, *program("heat"), *LONG, options=NO_COPIES, protocol=protocol)
        levels.reach_stored(rng.randint(1, 3))
        time.sleep(rng.uniform(0, 0.3))
        least = levels.stored()[-1]
        levels.lose(*levels.some(rng))
        assert job.reach_event("returned") and job.reach_event("wave_comes")
        result = job.wait().ok()
    assert result.out == calm.out, result.describe()
    assert levels.returned()[0] >= least - 2 and levels.returned()[0] > 0, result.describe()
    assert "what is missing comes from" in result.errors
    assert kind == "server" or not list(levels.place.iterdir())


def test_a_damaged_chunk_comes_from_the_next_place(jobs, levels, program, rng, tmp_path):
    other = tmp_path / "other"
    calm = jobs.calm(4, *program("heat"), *LONG)
    job = levels.start(4, *program("heat"), *LONG, options=[*NO_COPIES, "--store", f"dir:{other}"], protocol="blocking")
    both = lambda: {event["place"] for event in job.events if event["event"] == "wave_flushed"}  # noqa: E731
    job.reach(lambda: len(both()) == 2 and levels.stored().count(levels.stored()[-1]) == 2, what="both places")
    (own,) = levels.place.iterdir()
    for chunk in (own / "chunks").iterdir():
        with contextlib.suppress(OSError):
            damage(chunk)
    levels.lose(*levels.some(rng))
    job.reach_event("returned")
    result = job.wait().ok()
    assert result.out == calm.out and levels.returned()[0] > 0, result.describe()


@pytest.mark.gate("blocking")
@pytest.mark.parametrize("protocol", ["blocking", "auto", slow("chandy-lamport")])
def test_damaged_files_of_one_machine_come_back(jobs, stored, program, rng, protocol):
    """Without copies in memory, with all files of it damaged."""
    calm = jobs.calm(2, *program("heat"), *LONG)
    options = ["--local-copies", "off", "--checkpoint-every", "1h"]
    job = stored.start(2, *program("heat"), *LONG, options=options, protocol=protocol)
    job.reach(lambda: len(job.lives()) == 2)
    for number in (1, 2):
        job.reach(lambda: stored.resurgo("checkpoint", job.process.pid).code == 0, what="a wave")
        stored.reach_stored(number)
    for path in stored.directory.glob("rank-*.image-*"):
        damage(path)
    job.kill([rng.randrange(2)])
    result = job.wait().ok()
    assert result.out == calm.out, result.describe()
    started = [event["image"] for event in result.of("started") if event["life"] > 1]
    assert started and 0 not in started, result.describe()
    came_about(result.of("wave_comes"), result)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["master_worker", "messages", "cg", "numpy_cg.py"])
@pytest.mark.parametrize("protocol", WAVES)
def test_programs_survive_losses_of_all_copies(jobs, levels, program, rng, tmp_path, kills, protocol, name):
    """One or two hosts at random moments. Some images are on no other one then."""
    entry = BY_NAME[name]
    files = [tmp_path / "calm", tmp_path / "disturbed"]
    calm = jobs.calm(4, *program(name), *arguments(entry, True, files[0]))
    job = levels.start(4, *program(name), *arguments(entry, True, files[1]), options=EVERY, protocol=protocol)
    if levels.until_stored(rng.randint(1, 4)):
        time.sleep(rng.uniform(0, 0.5))
        levels.lose(*levels.some(rng))
    result = job.wait().ok()
    assert set(result.out.splitlines()) == set(calm.out.splitlines())
    assert not entry.result or files[0].read_bytes() == files[1].read_bytes()
