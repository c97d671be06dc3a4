# SPDX-License-Identifier: Apache-2.0
"""Images with `--tolerate node`. A killed rank collects what it had delivered since its newest image from event loggers
and from the ranks that depend on it. Senders, event loggers and antecedence graphs forget what images cover."""

import json
import os
import time

import pytest

from catalogue import arguments
from harness import by_rank, came_about, in_time, slow
from image_files import survives_by_files, survives_damage, survives_without_two_files
from servers import SPREADS, WAYS, journal_of, logger_of, node, strike_logger
from settings import MANY, REDUCTIONS, TOLERATE_NODE, every
from survival import (
    LONG, PROGRAMS, again_as_soon_as_back, goes_on_from_newest_image, has_images_on_request,
    has_images_when_a_server_goes_on, input_and_output_exactly_once, of_catalogue, ring, soak, survive, undisturbed,
    without_the_one_or_the_other,
)

PESSIMISTIC = ["--protocol", "pessimistic", *TOLERATE_NODE]
# All reductions and numbers of event loggers, with the ways to spread clocks among several.
ALL = [
    PESSIMISTIC,
    [*PESSIMISTIC, "--event-loggers", "2"],
    *(node(reduction, loggers) for reduction in REDUCTIONS for loggers in (0, 1)),
    *(node("manetho", 2, spread) for spread in SPREADS),
]
TWO = [PESSIMISTIC, node("manetho", 1)]
THREE = [*TWO, node("logon", 0)]


def short(options):
    """An id for a test."""
    return "-".join(str(option) for option in options if not option.startswith("--") and option != "node")


def in_ways(ways):
    return pytest.mark.parametrize("way", ways, ids=short)


@pytest.mark.gate("manetho*")
@pytest.mark.parametrize("reduction, loggers, name", [*WAYS[::3], *(slow(*way) for number, way in enumerate(WAYS) if number % 3), slow("pessimistic", 1, "rma_halo"),
                                                      slow("pessimistic", 2, "master_worker")])
def test_random_kills(jobs, program, rng, kills, reduction, loggers, name):
    entry, command = of_catalogue(program, name)
    expected = undisturbed(jobs, command, entry, 4)
    way = PESSIMISTIC if reduction == "pessimistic" else node(reduction, loggers)
    survive(jobs, rng, command, entry, 4, kills or 4, expected, [*way, *every("60ms")], images=True)


@pytest.mark.gate("cg-causal-manetho-1")
@in_ways([slow(PESSIMISTIC), node("vcausal", 0), node("manetho", 1)])
@pytest.mark.parametrize("name", ["cg", slow("lu"), slow("mpiio"), slow("futures_pi.py")])
def test_kills_while_images_are_taken(jobs, program, rng, kills, way, name):
    """Images are so frequent that most kills fall into one."""
    entry, command = of_catalogue(program, name)
    expected = undisturbed(jobs, command, entry, 3)
    survive(jobs, rng, command, entry, 3, kills or 8, expected, [*way, *every("20ms")], images=True)


@in_ways(THREE)
def test_a_rank_goes_on_from_its_newest_image(jobs, program, way):
    goes_on_from_newest_image(jobs, program, way)


@in_ways([slow(PESSIMISTIC), node("vcausal", 0), slow(node("logon", 1))])
@pytest.mark.parametrize("victims", [slow([1]), [0, 1, 2]], ids=["one", "all"])
def test_again_as_soon_as_they_are_back(jobs, program, rng, way, victims):
    """Also all at once: even what only the images of the dead know is known."""
    again_as_soon_as_back(jobs, program, rng, victims, "30000", way)


@pytest.mark.gate("causal-*")
@in_ways(TWO)
def test_input_and_output_exactly_once(jobs, program, rng, kills, way):
    input_and_output_exactly_once(jobs, program, rng, kills or 4, "pipe", way)


@pytest.mark.perf
def test_images_keep_graphs_small(jobs, program):
    """Without event loggers nothing else does."""
    file = jobs.directory / "stats"
    kept = {}
    for images in ([], every("50ms")):
        options = [*node("manetho", 0), *images, "--stats-json", file]
        jobs.run(4, *program("crash"), "99", "kill", "0", "always", "20000", options=options).ok()
        total = json.loads(file.read_text())["total"]
        kept[bool(images)] = total["largest_graph"] / total["deliveries"]
    assert kept[False] > 0.9, kept
    # How soon images come depends on what else the machine does.
    in_time(kept[True] < 0.5, kept)


@in_ways(TWO)
def test_a_new_event_logger_is_not_told_what_images_cover(jobs, program, way):
    """The new logger begins empty, as its file is lost. A rank is killed when all ranks have told the logger."""
    job = ring(jobs, program, 3, "checkpointed", options=[*MANY, *way, *every("100ms")])
    time.sleep(0.5)
    before = logger_of(job)
    os.truncate(journal_of(job), 0)
    strike_logger(job)
    job.reach(lambda: logger_of(job) != before, what="another event logger")
    # Until all ranks have told it what it lacks, losing a rank ends the job.
    before = len(job.out.read_bytes())
    time.sleep(1)
    job.reach(lambda: len(job.out.read_bytes()) > before + 1000, what="the ring to go on")
    for victims in ([1], [0, 2]):
        job.kill(victims)
        for rank in victims:
            job.reach_event("caught_up", rank=rank)
    job.process.terminate()
    result = job.wait(20)
    assert "restarted, empty" in result.errors, result.describe()
    assert {event["rank"] for event in result.of("started") if event["image"] > 0} == {0, 1, 2}, result.describe()


@pytest.mark.slow
def test_what_images_cover_takes_no_room_in_an_event_loggers_file(jobs, program):
    """The logger has appended everything once more, and the file is whole."""
    job = jobs.start(2, *program("crash"), "99", "kill", "0", "always", "700000", options=[*MANY, *node("manetho", 1), *every("100ms")])
    job.reach_event("event_logger_started")
    logger, file = logger_of(job), journal_of(job)
    job.reach(lambda: os.stat(file).st_size > 24 << 20, what="a long journal", timeout=60)
    job.reach(lambda: os.stat(file).st_blocks * 512 < 20 << 20, what="a file that takes less room", timeout=10)
    strike_logger(job)
    job.reach(lambda: logger_of(job) != logger, what="another event logger")
    job.kill([0, 1])
    result = job.wait(60).ok()
    assert "empty" not in result.errors, result.describe()


@pytest.mark.gate("causal*")
@in_ways(TWO)
def test_event_loggers_and_ranks_are_killed(jobs, program, rng, way):
    entry, command = of_catalogue(program, "master_worker")
    calm, _ = undisturbed(jobs, command, entry, 4)
    job = jobs.start(4, *command, *arguments(entry, True, None), options=[*MANY, *way, *every("60ms")])
    for _ in range(3):
        time.sleep(rng.uniform(0.05, calm.seconds / 3))
        if job.over():  # and its event logger with it
            break
        before = logger_of(job)
        strike_logger(job)
        job.kill([rng.randrange(4)])
        if not job.until(lambda before=before: logger_of(job) != before, what="another event logger"):
            break
    result = job.wait().ok()
    assert by_rank(result.out) == by_rank(calm.out), result.describe()
    came_about(result.of("event_logger_lost"), result)


@pytest.mark.gate("causal*")
@in_ways(TWO)
def test_a_damaged_file_is_passed_over(jobs, program, tmp_path, way):
    survives_damage(jobs, program, tmp_path / "images", way)


@pytest.mark.gate("causal-*")
@in_ways(TWO)
def test_before_two_files_the_program_begins_again(jobs, program, tmp_path, way):
    survives_without_two_files(jobs, program, tmp_path / "images", way)


@pytest.mark.gate("*logon-0")
@in_ways([slow(THREE[0]), *THREE[1:]])
@pytest.mark.parametrize("name", ["master_worker", slow("messages"), slow("numpy_cg.py")])
def test_ranks_are_rebuilt_from_files(jobs, program, tmp_path, way, name):
    survives_by_files(jobs, program, tmp_path, name, way)


def test_an_event_logger_that_stands_still_stops_no_rank_for_long(jobs, program):
    """A rank's deliveries do not become stable."""
    job = jobs.start(2, *program("crash"), *LONG, options=PESSIMISTIC)
    job.says(b"iteration 50 ")
    has_images_when_a_server_goes_on(job, logger_of(job), "an event logger does not answer")


@in_ways(TWO)
def test_images_on_request(jobs, program, way):
    has_images_on_request(jobs, jobs.start(2, *program("crash"), *LONG, options=way), "event loggers")


@pytest.mark.gate("causal-*")
@in_ways(TWO)
def test_without_the_dispatcher(jobs, program, way):
    """Nothing stays behind, not even sleeping images and event loggers (the fixture checks that)."""
    without_the_one_or_the_other(jobs, program, "dispatcher", "checkpointed", options=way)


@pytest.mark.soak
@pytest.mark.parametrize("period", ["50ms", "300ms"])
@in_ways(ALL)
@pytest.mark.parametrize("size", [3, 8])
@pytest.mark.parametrize("entry", PROGRAMS, ids=str)
def test_soak(jobs, program, rng, kills, request, entry, size, way, period):
    soak(jobs, program, rng, request, entry, size, kills or 8, [*way, *every(period)])
