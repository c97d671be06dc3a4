# SPDX-License-Identifier: Apache-2.0
"""Many ways to use files and to call MPI, on one machine and on several nodes, with ranks and nodes killed at random moments: output and
files are those of an undisturbed run."""

import re

import pytest

from harness import SOURCES, by_rank, storm
from on_nodes import strike
from settings import LOGGING, MANY, PROTOCOLS, TOGETHER, TOLERANT, TOLERATE_NODE, every
from survival import feed

pytestmark = pytest.mark.soak


def ways_of(name):
    """The ways of a program, as its table has them."""
    _, _, table = (SOURCES / f"{name}.c").read_text().partition("#define WAY(name)")
    return [(name, way) for way in re.findall(r"WAY\((\w+)\)", table)]


WAYS = ways_of("file_ways") + ways_of("call_ways")
# Nobody reads by MPI-IO what is overwritten later.
WRITES_ONCE = ["io_subarray", "io_darray", "io_sieve"]
# Ends that the guide announces: for ways that begin so, under these protocols.
ANNOUNCED = [
    ("th_", LOGGING, "calls MPI from several threads"),
    ("dp_spawn", [*TOGETHER, "hierarchical"], "ranks cannot spawn others under --protocol"),
    *[
        (way, TOGETHER, text)
        for way in ("io_turns", "io_ordered", "io_append", "io_scratch")
        for text in ("or used a shared file pointer", "had been removed or renamed by a former life", "have removed or replaced it since")
    ],
]
TEXT = b"".join(b"input line %d %s\n" % (number, b"x" * (number % 50)) for number in range(2000)) + b"no newline at the end"
STEPS = 100
# Output and files of undisturbed jobs, by size and way.
UNDISTURBED = {}


def contents(directory):
    """What the ranks have left. Of a log of all ranks its lines, which may be there twice."""
    found = {}
    for path in directory.rglob("*"):
        name = str(path.relative_to(directory))
        if path.suffix == ".set":
            found[name] = set(path.read_bytes().splitlines())
        elif path.name[0] != ".":  # an old file of a shared pointer may stay
            found[name] = path.read_bytes() if path.is_file() else None
    return found


def start(jobs, program, size, way, how, **more):
    name, kind = way
    directory = jobs.directory / f"files{jobs.number + 1}"
    directory.mkdir()
    command = [*program(name), kind, directory, STEPS]
    begin = feed(jobs, size, command, TEXT, how, **more) if kind.startswith("in_") else jobs.start(size, *command, **more)
    return begin, directory


def undisturbed(jobs, program, size, way):
    if (size, way) not in UNDISTURBED:
        job, directory = start(jobs, program, size, way, "file")
        result = job.wait().ok()
        assert result.restarts == 0
        UNDISTURBED[size, way] = result, contents(directory)
    return UNDISTURBED[size, way]


def compare(result, directory, way, protocol, expected, more=()):
    calm, files = expected
    announced = [text for which, those, text in [*ANNOUNCED, *more] if way[1].startswith(which) and protocol in those]
    if result.code != 0 and any(text in result.errors for text in announced):
        return
    assert by_rank(result.ok().out) == by_rank(calm.out), result.describe()
    assert by_rank(result.program_errors) == by_rank(calm.program_errors), result.describe()
    left = contents(directory)
    assert left.keys() == files.keys(), (sorted(left), result.describe())
    other = [name for name in files if left[name] != files[name]]
    assert not other, (other, result.describe())


def images(jobs, rng, in_files):
    """Options for images, and where they are kept."""
    if rng.random() < 0.25:
        return []
    kept = ["--checkpoint-dir", jobs.directory / "images", "--local-copies", "off"] if in_files and rng.random() < 0.25 else []
    return [*every(rng.choice(["30ms", "60ms", "100ms"])), *kept]


def can_be_repeated(way, protocol):
    """`hierarchical` does not notice that others overwrite what a rank has read by MPI-IO."""
    return protocol != "hierarchical" or not way[1].startswith("io_") or way[1] in WRITES_ONCE


CASES = [(way, protocol) for way in WAYS for protocol in PROTOCOLS if can_be_repeated(way, protocol)]


@pytest.mark.parametrize("way, protocol", CASES, ids=[f"{way[1]}-{protocol}" for way, protocol in CASES])
def test_on_one_machine(jobs, program, rng, kills, request, way, protocol):
    expected = undisturbed(jobs, program, 3, way)
    for _ in range(request.config.option.rounds):
        options = [*MANY, *images(jobs, rng, True)]
        job, directory = start(jobs, program, 3, way, rng.choice(["file", "pipe"]), options=options, protocol=protocol)
        print(f"{way[1]} {protocol} {options}: struck {storm(job, rng, kills or 3, expected[0].seconds)}")
        compare(job.wait(), directory, way, protocol, expected)


# Where all return, each node undoes what its own ranks have overwritten: no rank overwrites what those of other nodes do. What a rank
# has read by MPI-IO, and where files ended, is lost with its node.
ON_NODES = [way for way in WAYS if way[1] in WRITES_ONCE or way[1].startswith(("px_", "rma_", "mp_", "out_", "in_"))]
ON_NODES = [(way, protocol) for way in ON_NODES for protocol in PROTOCOLS]
ON_NODES += [(way, protocol) for way in WAYS if way[1] in ("io_own", "io_numbered") for protocol in ["auto", *TOGETHER]]
READS_LOST = [("io_", [*LOGGING, "auto"], "or used a shared file pointer")]


@pytest.mark.parametrize("way, protocol", ON_NODES, ids=[f"{way[1]}-{protocol}" for way, protocol in ON_NODES])
def test_on_several_nodes(jobs, program, rng, kills, request, way, protocol):
    expected = undisturbed(jobs, program, 4, way)
    for _ in range(request.config.option.rounds):
        tolerates = protocol in TOLERANT and rng.random() < 0.75
        options = ["--nodes", 3, "--lease", "2s", *MANY, *TOLERATE_NODE * tolerates, *images(jobs, rng, False)]
        job, directory = start(jobs, program, 4, way, rng.choice(["file", "pipe"]), options=options, protocol=protocol)
        job.reach(lambda job=job: len(job.lives()) == 4)
        print(f"{way[1]} {protocol} {options}")
        are_alone = "--checkpoint-every" in options and (protocol == "channel-memory" or tolerates)
        strike(job, rng, kills or 3, 4, are_alone)
        compare(job.wait(), directory, way, protocol, expected, READS_LOST)
