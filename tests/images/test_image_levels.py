# SPDX-License-Identifier: Apache-2.0
"""What a job says at its start: which levels of images it has, and what each survives."""

import harness

from settings import TOLERATE_NODE


def levels_of(result):
    """What the job says of its levels at the start: the events, and the lines for people."""
    said = [(event["level"], event["what"], event["survives"]) for event in result.of("image_level")]
    lines = [line for line in result.errors.splitlines() if line.startswith("resurgo: images, level ")]
    assert lines in ([], [f"resurgo: images, level {number}: {what}; survives {survives}" for number, what, survives in said])
    return [(what, survives) for _, what, survives in said], bool(lines)


def test_a_job_says_what_its_levels_survive(jobs, program):
    """Where the user has named some, or wants to know more about several nodes; events have them wherever there are several."""
    images, place = jobs.directory / "images", jobs.directory / "place"
    run = lambda *options, protocol: levels_of(jobs.run(4, *program("hello"), options=options, protocol=protocol).ok())
    memory = ("memory of the rank's node", "a crashed rank")
    assert run(protocol="blocking") == ([], False)
    assert run("--store", "local", protocol="pessimistic") == ([memory], True)
    nodes = ["--nodes", "4", "-ppn", "1"]
    assert run(*nodes, protocol="blocking") == ([memory, ("another node", "the loss of any node")], False)
    assert run(*nodes, "-v", protocol="pessimistic") == ([memory], True)
    two = ("2 other nodes", "the loss of any 2 nodes at one moment")
    assert run(*nodes, "--store", "local,peers:2", *TOLERATE_NODE, protocol="causal") == ([memory, two], True)
    stored = ["--checkpoint-dir", images, "--store", f"dir:{place};every=3"]
    said, are_told = run(*nodes, *stored, protocol="auto")
    assert are_told and said[:1] == [memory] and said[1][0] == f"files in {images}, which all nodes see"
    assert said[2][0] == f"dir:{place}, one recorded wave in 3" and f"resume --from dir:{place}" in said[2][1]


def test_parity_and_servers_are_levels(jobs, program):
    """What parity survives follows from how many nodes there are. A server that the job starts outlives its nodes."""
    def run(nodes, *options):
        return levels_of(jobs.run(nodes, *program("hello"), options=["--nodes", nodes, "-ppn", 1, *options], protocol="blocking").ok())

    memory, images = ("memory of the rank's node", "a crashed rank"), jobs.directory / "images"
    for nodes, parity, losses in [(3, "2+1", "any node"), (4, "2+2", "any 2 nodes at one moment"), (2, "4+2", "any node")]:
        parity_there = (f"parity {parity} on other nodes", f"the loss of {losses}")
        assert run(nodes, "--store", f"local,parity:{parity}") == ([memory, parity_there], True)
    server = f"server:127.0.0.1:{harness.free_port()}"
    started = f"{server};start={jobs.directory}/servers"
    said, are_told = run(2, "--checkpoint-dir", images, "--store", f"local,peers:1,{started};every=2")
    assert are_told and said[0] == memory and said[1][0] == f"files in {images}, which all nodes see", said
    place = (f"{server}, which this job starts, one recorded wave in 2",
             f"the loss of all nodes with images, and, with servers started by hand and resurgo resume --from {server}, that of this launcher")
    assert said[-1] == place, said
