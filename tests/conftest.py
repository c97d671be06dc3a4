# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests of whole programs. `pytest tests` runs the short ones, `pytest tests -m soak` the long ones."""

import fcntl
import fnmatch
import json
import linecache
import os
import random
import re
import signal
import subprocess

import pytest

import harness

pytest_plugins = ["shared_fixtures"]
pytest.register_assert_rewrite(*(path.stem for path in (harness.ROOT / "tests/lib").glob("*.py") if path.stem != "harness"))


def pytest_addoption(parser):
    group = parser.getgroup("resurgo")
    group.addoption("--seed", type=int, default=None, help="seed of the random kills (printed; default: random)")
    group.addoption("--kills", type=int, default=None, help="blows per job in tests with random kills")
    group.addoption("--rounds", type=int, default=1, help="how often soak tests repeat each job")
    group.addoption("--cases", type=int, default=None, help="of each soak test only so many cases, drawn at random")
    group.addoption("--outcomes", default=None, help="a file for the outcome of each test, a line of JSON each (gate.py)")
    group.addoption("--pass-number", type=int, default=1, help="of a repetition: other random numbers than before (gate.py)")


class Outcomes:
    """Writes down how each test ended, for gate.py."""

    def __init__(self, config):
        self.config, self.file = config, os.path.abspath(config.option.outcomes)

    def pytest_runtest_logreport(self, report):
        if report.when != "call" and report.outcome == "passed":
            return
        file, colons, name = report.nodeid.partition("::")
        test = os.path.relpath(self.config.rootpath / file) + colons + name
        told = {"test": test, "outcome": report.outcome, "seconds": round(report.duration, 2), **dict(report.user_properties)}
        if report.failed:
            last = (str(report.longrepr).splitlines() or [""])[-1]
            jobs = [text for name, text in report.sections if name == "job"]
            told = {"kind": "fault", "why": last[:200], **told, "report": str(report.longrepr), "jobs": jobs}
            shorten(report, told)
        with open(self.file, "a") as file:
            file.write(json.dumps(told) + "\n")


# Of what is printed of a failure: whoever looks for its reason may see the end of a long output only, or its beginning.
MOST_CHARACTERS = 3000


def shorten(report, told):
    """Leaves of a failure what fits on a page; the file of outcomes has all. What may be forgiven is told in a line."""
    line = f"{told['kind']}: {told['why']}"
    if told["kind"] in ("missed", "expired"):
        report.longrepr, report.sections = line, []
        return
    others = [(name, text) for name, text in report.sections if name != "job"]
    jobs = [(name, text) for name, text in report.sections if name == "job"]
    report.longrepr = f"{line}\n{shortened(str(report.longrepr))}"
    report.sections = [(name, shortened(text)) for name, text in others + jobs[-2:]]


def shortened(text):
    if len(text) <= MOST_CHARACTERS:
        return text
    return text[:1000] + "\n[... the file of outcomes has all ...]\n" + text[1000 - MOST_CHARACTERS :]


class Tally:
    """Counts what long runs have done, and says it at their end."""

    def __init__(self):
        self.counts = {"jobs": 0, "ranks lost": 0, "nodes lost": 0, "wrong answers": 0}

    def pytest_runtest_logreport(self, report):
        told = dict(report.user_properties)
        for name, count in told.get("tally", {}).items():
            self.counts[name] += count
        self.counts["wrong answers"] += report.failed and told.get("kind") == "wrong"

    def pytest_terminal_summary(self, terminalreporter):
        terminalreporter.write_line(", ".join(f"{count} {name}" for name, count in self.counts.items()))


def tally(jobs):
    """What the jobs of a test have been through."""
    kinds = [event["event"] for job in jobs for event in job.events]
    return {"jobs": len(jobs), "ranks lost": kinds.count("failed"), "nodes lost": kinds.count("node_lost")}


def pytest_configure(config):
    if harness.own_shared_memory():
        harness.open_to_others()
    if config.option.outcomes and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Outcomes(config))
    if "soak" in config.option.markexpr:
        harness.SHARE = "100%"
        if not hasattr(config, "workerinput"):
            config.pluginmanager.register(Tally())
    # A shell or nohup that starts the tests in the background makes them ignore these signals, and jobs would, too.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    if hasattr(config, "workerinput"):
        config.option.seed = config.workerinput["seed"]
    elif config.option.seed is None:
        config.option.seed = int.from_bytes(os.urandom(4), "little")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """Processes that share the tests draw the same cases."""
    node.workerinput["seed"] = node.config.option.seed


def pytest_report_header(config):
    return [f"resurgo: {harness.RESURGO}", f"seed of the kills: --seed {config.option.seed}"]


def pytest_collection_modifyitems(config, items):
    for item in items:
        if item.get_closest_marker("slow") or item.get_closest_marker("perf") or not kept_for_the_gate(item):
            item.add_marker(pytest.mark.soak)
        if item.get_closest_marker("intel") and not harness.IMPI.is_dir():
            item.add_marker(pytest.mark.skip(reason="no Intel MPI; run scripts/setup.sh"))
    if not any("::" in argument for argument in config.args):
        for_nothing(items)
    if not config.option.markexpr and not any("::" in argument for argument in config.args):
        soak = [item for item in items if item.get_closest_marker("soak")]
        items[:] = [item for item in items if item not in soak]
        config.hook.pytest_deselected(items=soak)
    elif config.option.cases:
        others = cases_not_drawn(items, config.option.cases, config.option.seed)
        items[:] = [item for item in items if item not in others]
        config.hook.pytest_deselected(items=list(others))


def kept_for_the_gate(item):
    """Whether the mark `gate` of the test's function keeps this case, if it has that mark."""
    mark = item.get_closest_marker("gate")
    return mark is None or any(fnmatch.fnmatchcase(item.callspec.id, pattern) for pattern in mark.args)


def for_nothing(items):
    """Refuses patterns of the mark `gate` that fit no case: their functions would have fewer cases than was meant."""
    cases = {}
    for item in items:
        if mark := item.get_closest_marker("gate"):
            cases.setdefault((item.path.name, item.originalname, mark.args), []).append(item.callspec.id)
    for (file, name, patterns), ids in cases.items():
        for pattern in patterns:
            if not fnmatch.filter(ids, pattern):
                raise pytest.UsageError(f"{file}::{name}: no case fits {pattern!r} of its mark `gate`; there are {ids}")


def cases_not_drawn(items, most, seed):
    """Draws `most` cases of each soak test, with the same seed the same ones, and returns the others."""
    functions = {}
    for item in items:
        if item.get_closest_marker("soak"):
            functions.setdefault((item.path, item.originalname), []).append(item)
    others = set()
    for (path, name), cases in functions.items():
        few = max(0, len(cases) - most)
        others.update(random.Random(f"{seed} {path.name} {name}").sample(cases, few))
    return others


# An assertion that compares what a program has said, or left in its files, with what is right.
COMPARES = re.compile(r"assert .*\b(out|text|printed|read_bytes|read_text|by_rank|answers?)\b.*==")


def kind_of(error, jobs):
    """Why a test failed: missed, expired (both may be forgiven), wrong (an answer) or fault (anything else). A file or process that a
    test has looked for in vain beside a running job is missed: it comes and goes with the job."""
    if error.errisinstance(harness.Expired):
        return "expired"
    gone = error.errisinstance((FileNotFoundError, ProcessLookupError))
    if error.errisinstance(harness.Missed) or gone and not all(job.over() for job in jobs):
        return "missed"
    place = error.traceback[-1]
    line = linecache.getline(str(place.path), place.lineno + 1)
    return "wrong" if error.errisinstance(AssertionError) and COMPARES.search(line) else "fault"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    setattr(item, f"report_{report.when}", report)
    jobs = getattr(item.funcargs.get("jobs"), "jobs", [])
    if report.when == "call" and "soak" in item.config.option.markexpr:
        report.user_properties.append(("tally", tally(jobs)))
    if report.failed:
        report.user_properties.append(("kind", kind_of(call.excinfo, jobs)))
        report.user_properties.append(("why", call.excinfo.exconly().splitlines()[0][:200]))
        again = f"{harness.PYTHON} -m pytest 'tests/{item.nodeid}' --seed {item.config.option.seed}"
        report.sections.append(("once more", again + f"\nload {harness.pressure()}, slowness {harness.SLOWNESS:.1f}"))
        for job in jobs[-8:]:
            report.sections.append(("job", job.tell()))
    return report


@pytest.fixture(scope="session", autouse=True)
def built():
    """Checks that everything the tests need is there, and builds the test programs."""
    assert harness.RESURGO.is_file(), f"{harness.RESURGO} is missing: build it (make), or name it in RESURGO"
    assert (harness.MPICH / "bin/mpiexec").is_file(), f"{harness.MPICH} is missing: run scripts/setup.sh"
    command = ["make", "-s", "-C", harness.SOURCES, f"BUILD={harness.PROGRAMS}", f"DEPS={harness.DEPS}"]
    with open(harness.SOURCES / "Makefile") as one_at_a_time:
        fcntl.flock(one_at_a_time, fcntl.LOCK_EX)
        made = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    assert made.returncode == 0, made.stdout + made.stderr
    harness.measure()


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    """Keeps resumable jobs out of the user's own list, and out of other tests' lists."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def jobs(tmp_path, request):
    """A launcher; when the test is over, nothing may be left of its jobs. The mark `protocol` names the protocol for
    jobs that name none."""
    launcher = harness.Launcher(tmp_path)
    mark = request.node.get_closest_marker("protocol")
    launcher.protocol = mark and mark.args[0]
    yield launcher
    report = getattr(request.node, "report_call", None)
    if report is not None and report.failed:
        launcher.abandon()
    else:
        launcher.close()


@pytest.fixture
def seed(request):
    return request.config.option.seed


@pytest.fixture
def rng(request, seed):
    """Random numbers of this test; the same for the same --seed, others when the gate repeats the test."""
    repeated = request.config.option.pass_number - 1
    return random.Random(f"{seed} {request.node.name}" + f" {repeated}" * bool(repeated))


@pytest.fixture
def kills(request):
    return request.config.option.kills


@pytest.fixture
def program():
    """The path of a test program. The test is skipped if the program could not be built here."""

    def find(name):
        if name.endswith(".py"):
            return [harness.PYTHON, str(harness.SOURCES / name)]
        path = harness.PROGRAMS / name
        if not path.exists():
            pytest.skip(f"{name} could not be built here")
        return [str(path)]

    return find


@pytest.fixture(scope="session")
def plain(tmp_path_factory):
    """The output of a program under plain MPICH; each command line runs once."""
    answers = {}

    def ask(n, *command, env=None, timeout=harness.TIMEOUT, cwd=None):
        key = (n, tuple(map(str, command)), tuple(sorted((env or {}).items())))
        if key not in answers:
            launcher = harness.Launcher(tmp_path_factory.mktemp("plain"))
            try:
                answers[key] = launcher.mpiexec(n, *command, env=env, timeout=timeout, cwd=cwd).ok()
            finally:  # even if the tests are interrupted meanwhile
                for job in launcher.jobs:
                    job.destroy()
        return answers[key]

    return ask
