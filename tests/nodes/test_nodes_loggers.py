# SPDX-License-Identifier: Apache-2.0
"""Jobs on several nodes whose event loggers have the order of deliveries: only the ranks of a lost node go back."""

import os
import re
import signal

import pytest

import harness
from harness import slow
from on_nodes import agents, kill_together, lose, lose_all_images, spread, with_copies
from settings import MANY, REDUCTIONS, TOLERATE_NODE, every
from survival import LONG, PROGRAMS

# One rank takes what comes and prints it at once. It sends nothing: no other rank knows its deliveries.
PRINTS = """
import sys, time
from mpi4py import MPI
comm = MPI.COMM_WORLD
count = int(sys.argv[1])
if comm.rank == 0:
    status = MPI.Status()
    for _ in range(count * (comm.size - 1)):
        number = comm.recv(source=MPI.ANY_SOURCE, status=status)
        print(status.source, number, flush=True)
else:
    for number in range(count):
        comm.send(number, dest=0)
        time.sleep(0.001 * (1 + (number * comm.rank) % 5))
"""
# How many event loggers there are, and how little messages carry.
LOGGERS = [
    ("pessimistic", "1"),
    slow(("pessimistic", "2")),
    ("causal", "0", "--reduction", "vcausal"),
    ("causal", "1"),
    ("causal", "2", "--reduction", "logon"),
    *(slow(("causal", loggers, "--reduction", name)) for loggers in "013" for name in REDUCTIONS),
]


@pytest.mark.parametrize("protocol", ["pessimistic", "causal"])
def test_only_the_ranks_of_a_lost_node_begin_again(jobs, program, rng, protocol):
    """Also when that happens twice, and a rank is killed before and between."""
    options = ["--nodes", "3", "-ppn", "1", "--lease", "10s", *MANY, *TOLERATE_NODE]
    job = jobs.start(4, *program("crash"), *LONG, options=options, protocol=protocol)
    left = []
    for losses in (1, 2):
        job.reach(lambda: len(job.lives()) == 4)
        rank = rng.randrange(4)
        _, life = job.lives()[rank]
        # One that is about to become its program cannot be told from others yet.
        job.reach(lambda rank=rank: job.kill([rank]))
        job.reach(lambda rank=rank, life=life: job.lives().get(rank, (0, 0))[1] > life)
        before = job.lives()
        left = left or agents(job)
        os.kill(left.pop(rng.randrange(len(left))), signal.SIGKILL)
        job.reach(lambda losses=losses: told(job, "node_lost") == losses)
        lost = str(job.newest("node_lost")["node"])
        there = {rank for rank in range(4) if node_of(job, rank, before) == lost}
        job.reach(lambda there=there, before=before: all(job.lives()[rank][1] > before[rank][1] for rank in there))
        assert all(job.lives()[rank] == before[rank] for rank in set(range(4)) - there)
    job.process.terminate()
    assert not job.wait(20).of("returned")


def told(job, kind):
    return sum(event["event"] == kind for event in job.events)


def node_of(job, rank, lives):
    """Where this life of the rank began."""
    of_rank = [event for event in job.events if event["event"] == "started" and event["rank"] == rank]
    return next(event["node"] for event in of_rank if event["life"] == lives[rank][1])


def with_images(jobs, program, logging):
    """A job of four nodes with a rank each, of whose images all are on two nodes."""
    protocol, loggers, *reduction = logging
    options = ["--nodes", "4", "--lease", "10s", *MANY, *TOLERATE_NODE, *every("100ms"), "--event-loggers", loggers, *reduction]
    job = jobs.start(4, *program("crash"), *LONG, options=options, protocol=protocol)
    job.reach(lambda: len(job.lives()) == 4)
    spread(job, 4)
    return job


@pytest.mark.parametrize("logging", LOGGERS, ids=" ".join)
@pytest.mark.gate("pessimistic 1", "causal 0 *")
def test_ranks_of_a_lost_node_go_on_from_images(jobs, program, logging):
    """One node after the other; what the first had is copied again meanwhile."""
    job = with_images(jobs, program, logging)
    there = agents(job)
    for node in (2, 1):
        before = job.lives()
        lost = {rank for rank in range(4) if node_of(job, rank, before) == str(node)}
        os.kill(there[node], signal.SIGKILL)
        job.reach(lambda lost=lost, before=before: all(job.lives()[rank][1] > before[rank][1] for rank in lost))
        began = [event for event in job.events if event["event"] == "started" and event["life"] > 1]
        assert all(event["from_file"] and event["image"] > 0 for event in began), began
        has_caught_up = lambda rank: job.of("caught_up", rank=rank, life=job.lives()[rank][1])
        job.reach(lambda lost=lost: all(map(has_caught_up, lost)))
        assert all(job.lives()[rank] == before[rank] for rank in set(range(4)) - lost)
        spread(job, 4)
    job.process.terminate()
    assert not job.wait(20).of("returned")


@pytest.mark.gate("causal 0*", "pessimistic 1*")
@pytest.mark.parametrize(
    "logging", [("pessimistic", "1"), slow(("pessimistic", "2")), ("causal", "0"), slow(("causal", "1")), ("causal", "2")], ids=" ".join
)
def test_all_begin_again_when_all_images_of_a_rank_are_lost(jobs, program, logging):
    """Event loggers have forgotten what came before these images, and begin anew."""
    protocol, loggers = logging
    lose_all_images(jobs, program, protocol, "--event-loggers", loggers)


@pytest.mark.parametrize("protocol, steps", [("pessimistic", "6000"), ("causal", "20000")])
@pytest.mark.perf
def test_images_on_two_nodes_shorten_logs(jobs, program, protocol, steps):
    def kept(*options):
        """Of the bytes that have been sent, the part that logs hold in the end."""
        options = ["--nodes", "2", "--stats", *TOLERATE_NODE, *options]
        result = jobs.run(4, *program("heat"), "256", "256", steps, options=options, protocol=protocol)
        row = re.search(r" all +0 +[\d,]+ +([\d.]+) MiB +[\d,]+ +([\d.]+) MiB", result.ok().errors)
        sent, held = map(float, row.groups())
        return held / sent

    assert kept() > 1
    # How long ago the last images were at the end depends on what else the machine does.
    harness.in_time(kept(*every("100ms")) < 0.5, "images that shorten logs")


@pytest.mark.parametrize("name, images", [("master_worker", []), slow("cg", []), ("cg", every("100ms")), slow("master_worker", every("100ms"))])
@pytest.mark.parametrize("logging", LOGGERS, ids=" ".join)
@pytest.mark.gate("causal 0*-cg-images2", "pessimistic 1-master_worker-images0")
def test_ranks_and_nodes_are_killed(jobs, program, rng, kills, name, images, logging):
    protocol, loggers, *reduction = logging
    lose(jobs, program, rng, kills, name, protocol, 3, [*TOLERATE_NODE, "--event-loggers", loggers, *reduction, *images])


@pytest.mark.parametrize("images", [[], every("200ms")], ids=["begin", "images"])
@pytest.mark.parametrize("nodes", [2, 4])
@pytest.mark.parametrize("protocol", ["pessimistic", "causal"])
@pytest.mark.parametrize("name", [slow(entry.name) for entry in PROGRAMS])
def test_the_catalogue(jobs, program, rng, kills, name, protocol, nodes, images):
    lose(jobs, program, rng, kills, name, protocol, nodes, [*TOLERATE_NODE, *images])


@pytest.mark.gate("0-begin")
@pytest.mark.parametrize("images", [[], every("200ms")], ids=["begin", "images"])
@pytest.mark.parametrize("loggers", ["0", slow("1")])
def test_what_was_printed_stays_true(jobs, rng, loggers, images):
    """Which message comes first is decided anew, but for what the user has read."""
    options = ["--nodes", "4", "-ppn", "1", "--lease", "10s", *MANY, *TOLERATE_NODE, "--event-loggers", loggers, *images]
    job = jobs.start(4, harness.PYTHON, "-c", PRINTS, "2000", options=options, protocol="causal")
    left = []
    printed = lambda: job.out.read_bytes().count(b"\n")
    # Images are on two nodes, of which one may be lost.
    blows = 1 if images else 3
    for _ in range(blows):
        before = printed()
        job.reach(lambda before=before: printed() > before + (600 if images else 100))
        # The node of the rank that prints is the first.
        first, left = not left, left or agents(job)
        os.kill(left.pop(0 if first else rng.randrange(len(left))), signal.SIGKILL)
    result = job.wait(120).ok()
    assert len(result.of("node_lost")) == blows and not result.of("output_differs"), result.describe()
    lines = [tuple(map(int, line.split())) for line in result.text.splitlines()]
    assert all([number for source, number in lines if source == rank] == list(range(2000)) for rank in (1, 2, 3))


@pytest.mark.parametrize("protocol", ["pessimistic", "causal"])
def test_a_lost_logger_and_then_a_lost_node(jobs, program, protocol):
    """The journal has what the logger had."""
    job = jobs.start(4, *program("crash"), *LONG, options=["--nodes", "2", *MANY, *TOLERATE_NODE], protocol=protocol)
    job.reach(lambda: len(job.lives()) == 4)
    os.kill(job.newest("event_logger_started")["pid"], signal.SIGKILL)
    job.reach(lambda: told(job, "event_logger_started") == 2)
    os.kill(agents(job)[0], signal.SIGKILL)
    job.reach(lambda: told(job, "started") == 6)
    job.reach(lambda: told(job, "caught_up") == 2)
    job.process.terminate()
    assert job.wait(20).of("node_lost")


@pytest.mark.gate("causal")
@pytest.mark.parametrize("protocol", ["pessimistic", "causal", "hierarchical"])
def test_the_older_image_is_enough(jobs, program, protocol):
    """Nodes are killed that have a rank's newest image; another one has the one before."""
    while True:
        job, copies = with_copies(jobs, [*program("crash"), *LONG], protocol, 3)
        is_left = lambda rank, lost: any({rank, node} - lost for node in copies[rank][1:])  # noqa: B023
        fits = lambda rank: (
            copies[rank][1] != copies[rank][2] and all(is_left(other, {rank, copies[rank][2]}) for other in range(4))  # noqa: B023
        )
        if found := [rank for rank in range(4) if fits(rank)]:
            break
        # By chance the loss of two nodes takes all images of some rank.
        job.process.terminate()
        job.wait(20)
    rank, there = found[0], agents(job)
    # A rank that could not have an image at first has left out a number.
    _, older, _ = [event["image"] for event in job.of("image_replicated", rank=rank)]
    kill_together([there[node] for node in (rank, copies[rank][2])])
    job.reach(lambda: any(event["event"] == "caught_up" and event["rank"] == rank for event in job.events))
    begun = [event["image"] for event in job.events if event["event"] == "started" and event["rank"] == rank]
    assert begun[-1] == older, (begun, older, job.result(None).describe())
    job.process.terminate()
    job.wait(20)
