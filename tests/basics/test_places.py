# SPDX-License-Identifier: Apache-2.0
"""Limits and settings that decide where the kernel places a program's memory, and how much there may be: `ulimit -s`,
`setarch -L`, `ulimit -v`. Jobs under them give the same answer as a job without them."""

import re
import time

import pytest

import harness
from catalogue import BY_NAME, Entry, arguments
from chains import ready
from harness import by_rank, came_about, slow
from settings import MANY, TOLERATE_NODE
from survival import survive, undisturbed

UNLIMITED = ["prlimit", "--stack=unlimited", "--"]
LEGACY = ["setarch", "-L"]
FILES = ("--checkpoint-dir", "images", "--local-copies", "off")
FEW = ["prlimit", "--as=8000000000", "--"]
LAYOUTS = {
    "unlimited stack": UNLIMITED,
    "huge stack": ["prlimit", "--stack=40000000000000:unlimited", "--"],
    "legacy": LEGACY,
    "legacy, unlimited stack": [*LEGACY, *UNLIMITED],
    "few addresses": FEW,
}


def under(*values):
    """Some of the layouts, by name, in every run."""
    return pytest.mark.parametrize("before", [pytest.param(LAYOUTS[name], id=name) for name in values])


@pytest.mark.gate("few addresses", "legacy, unlimited stack", "huge stack")
@under(*LAYOUTS)
def test_undisturbed(jobs, program, before):
    entry = BY_NAME["heat_f08"]
    files = [jobs.directory / name for name in ("usual", "limited")]
    usual = jobs.run(2, *program("heat_f08"), *arguments(entry, False, files[0])).ok()
    jobs.before = before
    for protocol in ("pessimistic", "none"):
        result = jobs.run(2, *program("heat_f08"), *arguments(entry, False, files[1]), protocol=protocol).ok()
        assert result.out == usual.out and result.errors == usual.errors
        assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize(
    "name, before, options",
    [
        ("heat_f08", UNLIMITED, ()),
        ("heat_f08", [*LEGACY, *UNLIMITED], ("--checkpoint-every", "150ms")),
        slow("heat_f08", LEGACY, ("--checkpoint-every", "150ms", "--protocol", "blocking")),
        ("heat_f08", FEW, ("--checkpoint-every", "150ms", *FILES)),
        slow("heat_f08", [*LEGACY, *UNLIMITED], (*TOLERATE_NODE, "--protocol", "causal")),
        slow("mpiio", UNLIMITED, ("--protocol", "channel-memory")),
    ],
)
def test_kills(jobs, program, rng, name, before, options):
    entry, command = BY_NAME[name], program(name)
    expected = undisturbed(jobs, command, entry, 2)
    jobs.before = before
    survive(jobs, rng, command, entry, 2, 2, expected, options)


@pytest.mark.parametrize(
    "before, options",
    [
        (UNLIMITED, FILES),
        slow(FEW, ()),
        slow(LEGACY, ()),
        slow(FEW, FILES),
        slow([*LEGACY, *UNLIMITED], (*TOLERATE_NODE, "--protocol", "causal")),
    ],
)
def test_kills_of_python(jobs, program, rng, before, options):
    """Python has some hundred mappings, and takes much of the address space."""
    entry = Entry("numpy_cg.py", longer=("200", "300"))
    calm = jobs.calm(2, *program("numpy_cg.py"), *entry.longer)
    jobs.before = before
    options = ["--checkpoint-every", "200ms", *options]
    survive(jobs, rng, program("numpy_cg.py"), entry, 2, 2, (calm, None), options)


@pytest.mark.parametrize(
    "before, options",
    [(UNLIMITED, FILES), slow(UNLIMITED, ()), slow([*LEGACY, *UNLIMITED], FILES), slow([*LEGACY, *UNLIMITED], ())],
)
def test_a_stack_that_grows(jobs, program, rng, before, options):
    """Beyond the room of other programs, even in a rebuilt rank."""
    entry = Entry("stack", longer=("8",))
    jobs.before = before
    calm = jobs.run(2, *program("stack"), *entry.longer).ok()
    options = ["--checkpoint-every", "300ms", *options]
    survive(jobs, rng, program("stack"), entry, 2, 2, (calm, None), options)


@pytest.mark.gate("few addresses")
@under("legacy, unlimited stack", "few addresses")
def test_spawned_ranks(jobs, program, before):
    command = [*program("spawn"), "2", "2", "20"]
    usual = jobs.calm(1, *command)
    jobs.before = before
    result = jobs.run(1, *command, options=[*MANY, "--fault", "rank=spawned,messages=12"]).ok()
    assert sorted(result.out.splitlines()) == sorted(usual.out.splitlines())
    came_about(result.restarts > 0, result)


@pytest.mark.parametrize(
    "first, then",
    [
        (UNLIMITED, []),
        ([], [*LEGACY, *UNLIMITED]),
        slow(LEGACY, UNLIMITED),
        slow(UNLIMITED, LEGACY),
        slow(FEW, []),
    ],
)
@pytest.mark.parametrize("name", ["heat_f08", slow("numpy_cg.py")])
def test_resumed_under_other_limits(jobs, chain, program, name, first, then):
    """The ranks get back the limit and the layout that the job was started with."""
    entry = BY_NAME[name]
    files = [jobs.directory / each for each in ("usual", "resumed")]
    usual = jobs.calm(2, *program(name), *arguments(entry, True, files[0]))
    # Within these limits an image of some 100 MB is possible; otherwise the log takes its room.
    options = ["--log-memory", "512M"] if FEW in (first, then) else []
    jobs.before = first
    job = chain.start(2, *program(name), *arguments(entry, True, files[1]), options=options)
    ready(job)
    time.sleep(0.1)
    assert chain.suspend()
    jobs.before = then
    job = chain.resume()
    ready(job)
    time.sleep(0.05)
    job.kill([1])
    result = chain.end()
    assert by_rank(chain.out) == by_rank(usual.out), result.describe()
    assert not entry.result or files[0].read_bytes() == files[1].read_bytes()


def test_resumed_where_the_stack_may_not_be_as_large(jobs, chain, program):
    jobs.before = UNLIMITED
    job = chain.start(2, *program("heat"), "400", "400", "12000")
    ready(job)
    assert chain.suspend()
    jobs.before = ["prlimit", "--stack=8000000:8000000", "--"]
    refused = chain.resurgo("resume", chain.directory)
    assert refused.code == 1 and refused.errors.count("\n") == 1, refused.describe()
    assert "a stack of unlimited" in refused.errors and "ulimit -Hs" in refused.errors
    # It can still be resumed elsewhere.
    assert len(chain.suspended()) == 1
    assert chain.resurgo("kill", chain.directory).code == 0


def test_resumed_where_there_are_fewer_addresses(jobs, chain, program):
    job = chain.start(2, *program("heat"), "400", "400", "12000")
    ready(job)
    assert chain.suspend()
    jobs.before = FEW
    refused = chain.resurgo("resume", chain.directory)
    assert refused.code == 2 and refused.errors.count("\n") == 1, refused.describe()
    assert "Raise the limit (ulimit -v" in refused.errors and "--log-memory" not in refused.errors
    assert chain.resurgo("kill", chain.directory).code == 0


SEES_LIMITS = """
import resource
from mpi4py import MPI
print([resource.getrlimit(what)[0] for what in (resource.RLIMIT_STACK, resource.RLIMIT_AS)])
"""


def test_ranks_keep_the_users_limits(jobs):
    for before, expected in (([], None), (UNLIMITED, "[-1, -1]"), (FEW, ", 8000000000]")):
        jobs.before = before
        result = jobs.run(1, harness.PYTHON, "-c", SEES_LIMITS).ok()
        assert expected is None or expected in result.text, result.describe()


def test_what_is_needed_is_said(jobs, program):
    """The number in the error is enough, and less is not."""
    jobs.before = ["prlimit", "--as=100000000", "--"]
    refused = jobs.run(4, *program("hello"))
    assert refused.code == 2 and refused.errors.count("\n") == 1, refused.describe()
    needed = int(re.search(r"ulimit -v (\d+)\)", refused.errors)[1])
    jobs.before = ["prlimit", f"--as={needed * 1024}", "--"]
    jobs.run(4, *program("hello")).ok()
    jobs.before = ["prlimit", f"--as={(needed - 1) * 1024}", "--"]
    assert jobs.run(4, *program("hello")).code == 2
    # With as much log memory as the user asks for.
    jobs.before = FEW
    refused = jobs.run(4, *program("hello"), options=["--log-memory", "4G"])
    assert refused.code == 2 and "lower --log-memory" in refused.errors
