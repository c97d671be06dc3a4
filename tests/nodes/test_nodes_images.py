# SPDX-License-Identifier: Apache-2.0
"""Images that leave their node: a node is lost, and its ranks go on from copies that other nodes have."""

import json
import os
import signal

import pytest

import harness
from harness import in_time, slow
from on_nodes import agents, images_of, last_lives, on_three, waves
from settings import every
from survival import LONG


def run_with_losses(jobs, program, rng, protocol, number, losses):
    """A job on three nodes that loses some, each when a wave is on two nodes; and that has the same result as without."""
    job, result_after = on_three(jobs, program, protocol)
    for loss in range(losses):
        before = waves(job)
        job.reach(lambda: waves(job) >= before + 2)  # noqa: B023
        os.kill(rng.choice(agents(job)), number)
        job.reach(lambda: len([event for event in job.events if event["event"] == "returned"]) > loss)  # noqa: B023
    return result_after(90)


@pytest.mark.gate("auto-9")
@pytest.mark.parametrize(
    "protocol,number", [("blocking", signal.SIGKILL), slow("blocking", signal.SIGSTOP), ("auto", signal.SIGKILL)]
)
def test_ranks_of_a_lost_node_begin_from_copies_elsewhere(jobs, program, rng, protocol, number):
    result = run_with_losses(jobs, program, rng, protocol, number, 1)
    assert len(result.of("node_lost")) == 1 and result.of("returned")[0]["wave"] > 0, result.describe()
    moved = [event for event in result.of("started") if event["from_file"] and event["image"] > 0]
    assert {event["rank"] for event in moved} <= set(last_lives(result)), result.describe()


@pytest.mark.parametrize("protocol", [slow("blocking"), "auto"])
def test_nodes_are_lost_one_after_the_other(jobs, program, rng, protocol):
    """What was begun from a copy is copied again, as long as there is another node."""
    result = run_with_losses(jobs, program, rng, protocol, signal.SIGKILL, 2)
    assert [event["wave"] > 0 for event in result.of("returned")] == [True, True], result.describe()


def holders(job, wave):
    """The nodes that have each rank's image of a wave, of those that are there."""
    node, found = {}, {}
    for event in job.events:
        if event["event"] == "started":
            node[event["rank"]] = int(event["node"])
        elif event["event"] == "image_written" and event["image"] == wave:
            found.setdefault(event["rank"], set()).add(node[event["rank"]])
        elif event["event"] == "image_replicated" and event["image"] == wave:
            found.setdefault(event["rank"], set()).add(event["node"])
        elif event["event"] == "node_lost":
            found = {rank: nodes - {int(event["node"])} for rank, nodes in found.items()}
    return found


@pytest.mark.parametrize("protocol", [slow("blocking"), "auto"])
def test_what_one_node_has_left_is_copied_again(jobs, program, rng, protocol):
    """After a loss, each image of the wave before it is on two nodes again, or of the next, for which a loss is the
    occasion: a second loss takes nothing but time."""
    job = jobs.start(4, *program("crash"), *LONG, options=["--nodes", "3", "-ppn", "1", "--lease", "2s"], protocol=protocol)
    job.reach(lambda: len(job.lives()) == 4)
    job.reach(lambda: jobs.resurgo("checkpoint", str(job.process.pid)).code == 0)

    def are_safe():
        of_waves = (holders(job, event["wave"]).values() for event in job.of("wave_complete"))
        return any(len(nodes) == 4 and all(len(of) > 1 for of in nodes) for nodes in of_waves)

    job.reach(are_safe)
    (taken,) = [event["wave"] for event in job.of("wave_complete")]
    for loss in (1, 2):
        os.kill(rng.choice(agents(job)), signal.SIGKILL)
        job.reach(lambda: len(job.of("returned")) == loss)  # noqa: B023
        if loss == 1:
            job.reach(are_safe)
    job.process.send_signal(signal.SIGINT)
    result = job.wait(20)
    first, second = [event["wave"] for event in result.of("returned")]
    assert first == taken and second >= taken, result.describe()


@pytest.mark.parametrize("protocol", ["blocking", slow("auto")])
def test_memory_holds_one_whole_wave_and_the_next_while_it_comes(jobs, program, protocol):
    """A rank writes its images by turns into the same two places. Its partner has the one, and the next as it comes."""
    job = jobs.start(4, *program("crash"), *LONG, options=["--nodes", "2", "-ppn", "2", "--lease", "5s"], protocol=protocol)
    job.reach(lambda: len(job.lives()) == 4)
    both, most = agents(job), 0

    def held():
        nonlocal most
        images = [len(images_of(agent)) for agent in both]
        most = max(most, *images)
        return images

    for wave in range(1, 6):
        job.reach(lambda: jobs.resurgo("checkpoint", str(job.process.pid)).code == 0)
        job.reach(lambda: waves(job) >= wave and held() == ([4, 4] if wave == 1 else [6, 6]))  # noqa: B023
    assert most <= 8, most
    job.process.send_signal(signal.SIGINT)
    job.wait(20)


# Rank 0 sends many long messages, which rank 1 receives when the test lets it.
LONG_MESSAGES = """
import os, sys, time
import numpy
from mpi4py import MPI

comm, count, go, words = MPI.COMM_WORLD, int(sys.argv[1]), sys.argv[2], 2 << 20
message = lambda number: numpy.arange(words, dtype="int64") * (number + 1)
if comm.rank == 0:
    messages = [message(number) for number in range(count)]
    requests = [comm.Isend(messages[number], 1, number) for number in range(count)]
    print("sent", flush=True)
    while not os.path.exists(go):
        MPI.Request.Testall(requests)
        time.sleep(0.01)
    MPI.Request.Waitall(requests)
else:
    while not os.path.exists(go):
        comm.iprobe()
        time.sleep(0.01)
    room = numpy.empty(words, dtype="int64")
    for number in range(count):
        comm.Recv(room, 0, number)
        print(number, numpy.array_equal(room, message(number)), flush=True)
"""


@pytest.mark.parametrize("count", [12, slow(64)])
def test_no_node_is_lost_while_much_is_under_way(jobs, tmp_path, count):
    """Images need all of the long messages in the log. Reading 64 of them takes longer than the lease lasts, and several
    GiB of memory."""
    go, statistics = tmp_path / "go", tmp_path / "statistics"
    lease = 1 if count > 12 else 3
    options = ["--nodes", "2", "--lease", f"{lease}s", "--stats-json", statistics, *every("200ms")]
    job = jobs.start(2, harness.PYTHON, "-c", LONG_MESSAGES, count, go, options=options, protocol="auto")
    job.reach(lambda: b"sent" in job.out.read_bytes(), 60)
    # The log of the next image has been read when that is written.
    before = waves(job)
    job.reach(lambda: waves(job) > before, 90)
    job.reach_another("image_written", 90, rank=0)
    go.touch()
    result = job.wait(90).ok()
    assert not result.of("node_lost") and result.restarts == 0, result.describe()
    lines = sorted(result.text.split("\n"))
    assert lines == sorted(["", "sent", *(f"{number} True" for number in range(count))])
    told = json.loads(statistics.read_text())
    nodes = told["nodes"]
    assert len(nodes) == 2 and all(node["longest_silence_seconds"] < lease for node in nodes), nodes
    # What takes long is not done by those who must answer.
    turns = [node[name] for node in nodes for name in ("longest_turn_seconds", "longest_mover_turn_seconds")]
    longest = max(*turns, told["longest_turn_seconds"])
    assert longest > 0
    in_time(longest < 0.25, f"turns of {turns}, of the dispatcher {told['longest_turn_seconds']}")
