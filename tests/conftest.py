# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests of whole programs. `pytest tests` runs the short ones, `pytest tests -m soak` the long ones."""

import os
import random
import signal
import subprocess

import pytest

import harness


def pytest_addoption(parser):
    group = parser.getgroup("resurgo")
    group.addoption("--seed", type=int, default=None, help="seed of the random kills (printed; default: random)")
    group.addoption("--kills", type=int, default=None, help="blows per job in tests with random kills")
    group.addoption("--rounds", type=int, default=1, help="how often soak tests repeat each job")


def pytest_configure(config):
    harness.own_shared_memory()
    # Whoever starts the tests in the background has them ignore these (a shell, nohup), and jobs would, too.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    if config.option.seed is None:
        config.option.seed = int.from_bytes(os.urandom(4), "little")


def pytest_report_header(config):
    return [f"resurgo: {harness.RESURGO}", f"seed of the kills: --seed {config.option.seed}"]


def pytest_collection_modifyitems(config, items):
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.soak)
        if item.get_closest_marker("intel") and not harness.IMPI.is_dir():
            item.add_marker(pytest.mark.skip(reason="no Intel MPI; run scripts/setup.sh"))
    if not config.option.markexpr and not any("::" in argument for argument in config.args):
        soak = [item for item in items if item.get_closest_marker("soak")]
        items[:] = [item for item in items if item not in soak]
        config.hook.pytest_deselected(items=soak)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    setattr(item, f"report_{report.when}", report)
    return report


@pytest.fixture(scope="session", autouse=True)
def built():
    """Everything the tests need is there; the test programs are built."""
    assert harness.RESURGO.is_file(), f"{harness.RESURGO} is missing: build it (make), or name it in RESURGO"
    assert (harness.MPICH / "bin/mpiexec").is_file(), f"{harness.MPICH} is missing: run scripts/setup.sh"
    command = ["make", "-s", "-C", harness.SOURCES, f"BUILD={harness.PROGRAMS}", f"DEPS={harness.DEPS}"]
    made = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    assert made.returncode == 0, made.stdout + made.stderr


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    """Jobs that can be resumed are not listed among the user's own, nor among those of other tests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def jobs(tmp_path, request):
    """A launcher; nothing may be left of its jobs when the test is over. The mark `protocol` names the protocol of jobs that are
    given none."""
    launcher = harness.Launcher(tmp_path)
    mark = request.node.get_closest_marker("protocol")
    launcher.protocol = mark and mark.args[0]
    yield launcher
    launcher.close()


@pytest.fixture
def seed(request):
    return request.config.option.seed


@pytest.fixture
def rng(request, seed):
    """Random numbers of this test; the same for the same --seed."""
    return random.Random(f"{seed} {request.node.name}")


@pytest.fixture
def kills(request):
    return request.config.option.kills


@pytest.fixture
def program():
    """The path of a test program; a test is skipped when it could not be built here."""

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
    """What a program prints under plain MPICH; asked once for the same command line."""
    answers = {}

    def ask(n, *command, env=None, timeout=harness.TIMEOUT, cwd=None):
        key = (n, tuple(map(str, command)), tuple(sorted((env or {}).items())))
        if key not in answers:
            launcher = harness.Launcher(tmp_path_factory.mktemp("plain"))
            try:
                answers[key] = launcher.mpiexec(n, *command, env=env, timeout=timeout, cwd=cwd).ok()
            finally:  # also when the tests are interrupted meanwhile
                for job in launcher.jobs:
                    job.destroy()
        return answers[key]

    return ask
