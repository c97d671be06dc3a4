# SPDX-License-Identifier: Apache-2.0
"""MPICH's own tests of messages, one-sided communication and datatypes, under each of MPICH's settings that changes the
way of a message. What fails under plain MPICH with the same setting is not ours.

`scripts/setup.sh mpich-tests` brings them.
"""

import pytest

import harness
import mpich_tests
from mpich_tests import WAYS, as_under_plain_mpich, cases, telling

# Settings that change the way of a message much, of which short runs take a look.
OFTEN = ["default", "early-pipeline", "early-read", "early-write", "am-pipeline", "no-tagged", "no-rma", "multirecv"]


@pytest.fixture(scope="module", autouse=True)
def programs():
    mpich_tests.build()


@pytest.fixture
def theirs(tmp_path_factory):
    """Runs a program under plain MPICH."""
    launcher = harness.Launcher(tmp_path_factory.mktemp("plain"))
    try:
        yield launcher.mpiexec
    finally:
        for job in launcher.jobs:
            job.destroy()
            job.destroyed = True  # plain MPICH leaves shared memory behind when tests fail
        launcher.close()


@pytest.mark.parametrize("way", OFTEN)
@pytest.mark.parametrize("protocol", ["none", "pessimistic"])
@pytest.mark.gate("none-early-write", "none-no-tagged", "pessimistic-default", "pessimistic-am-pipeline")
def test_telling_ones(jobs, theirs, protocol, way):
    as_under_plain_mpich(jobs, theirs, telling(), way, protocol)


@pytest.mark.parametrize("protocol", ["pessimistic", "auto"])
@pytest.mark.parametrize("way", ["default", "early-write"])
@pytest.mark.gate("default-pessimistic", "early-write-auto")
def test_a_rank_is_killed(jobs, protocol, way):
    """Tests that do the same in every run."""
    env = harness.environment(**WAYS[way])
    for case in telling(mpich_tests.REPEATED):
        calm = jobs.run(case.size, *case.command, env=env).ok()
        messages = sum(event["messages"] for event in calm.of("job_ended")) // case.size
        options = ["--fault", f"rank={case.size - 1},messages={max(3, messages // 2)}"]
        result = jobs.run(case.size, *case.command, env=env, protocol=protocol, options=options)
        assert mpich_tests.passed(result) and result.restarts > 0, f"{case.words}\n{result.describe()}"


@pytest.mark.soak
@pytest.mark.parametrize("folder", mpich_tests.FOLDERS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("protocol", ["none", "pessimistic"])
def test_all(jobs, theirs, protocol, way, folder):
    as_under_plain_mpich(jobs, theirs, cases(folder), way, protocol)
