# SPDX-License-Identifier: Apache-2.0
"""The programs in examples/, which people copy: with ranks killed from outside at random moments they give the answer
of an undisturbed run under plain MPICH, bit for bit."""

import itertools
import json
import shutil
import signal
import subprocess
import time

import pytest

import harness
from settings import MANY

EXAMPLES = harness.ROOT / "examples"
FORTRAN = {"FC": "mpifort.mpich"}  # Debian's
# The sizes take a second or two; the line on standard error says that the ranks have begun.
SIZES = {
    "master_worker": ((800, 100000), (300, 4000), "tasks for"),
    "sweep": ((120, 2000), (30, 60), "round 0 of"),
    "cg": ((288, 600), (96, 300), "step 0 of"),
    "ensemble": ((480, 60), (64, 20), "cycle 0 of"),
}
# By FT-MPI's rules: the same as those with ULFM's functions, in these modes.
FTMPI = {"ftmpi_master_worker": "blank,cont", "ftmpi_sweep": "shrink", "ftmpi_cg": "rebuild"}
LANGUAGES = ["c", "fortran", "python"]
ALL = [(name, language) for name in SIZES for language in LANGUAGES]
ALL_FTMPI = [(name, language) for name in FTMPI for language in LANGUAGES]


@pytest.fixture(scope="session")
def example(tmp_path_factory):
    """The command line of an example; languages that cannot be built here are skipped."""
    built = tmp_path_factory.mktemp("examples")
    made = {}

    def make(language):
        if language == "fortran" and not (shutil.which("gfortran") and shutil.which(FORTRAN["FC"])):
            return None
        settings = {"MPICC": harness.MPICH / "bin/mpicc", "BUILD": built, "RESURGO": harness.RESURGO.parent.parent, **FORTRAN}
        words = ["make", "-s", "-C", EXAMPLES, language, *(f"{name}={value}" for name, value in settings.items())]
        done = subprocess.run(list(map(str, words)), env=harness.environment(), capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
        return built

    def find(name, language):
        c, python, begun = SIZES[name.removeprefix("ftmpi_")]
        if language == "python":
            return [harness.PYTHON, str(EXAMPLES / f"{name}.py"), *map(str, python)], begun
        if language not in made:
            made[language] = make(language)
        if made[language] is None:
            pytest.skip("no gfortran or no libmpich-dev: Fortran examples are left out")
        return [str(made[language] / (name + "_f08" * (language == "fortran"))), *map(str, c)], begun

    return find


def answer_of(plain, command):
    """Of an undisturbed run under plain MPICH. Fortran programs find its library, and Python programs our package."""
    env = {"LD_LIBRARY_PATH": str(harness.LIBMPICH), "PYTHONPATH": str(harness.ROOT / "python")}
    return plain(2, *command, env=env).text


def answer_after(result):
    """What the program has printed after a loss."""
    harness.came_about(result.of("lost"), result, "a loss")
    # A rank that is lost just after it has printed may have printed for nothing.
    lines = set(result.text.splitlines(keepends=True))
    assert result.code == 0 and len(lines) == 1, result.describe()
    return lines.pop()


def messages_of(jobs, n, command, options):
    """Of each rank of an undisturbed job: the messages that it sends and receives. And the job."""
    file = jobs.directory / "undisturbed"
    calm = jobs.run(n, *command, options=[*options, "--stats-json", file]).ok()
    return [rank["messages"] + rank["deliveries"] for rank in json.loads(file.read_text())["ranks"]], calm


def answer_of_survivors(jobs, rng, command, n, kills, lowest, options=("--ft",)):
    """The same where `kills` ranks are killed at some of the messages that they have in an undisturbed run."""
    messages, _ = messages_of(jobs, n, command, options)
    at = lambda rank: int(messages[rank] * rng.uniform(0.3, 0.6))
    faults = [f"rank={rank},messages={at(rank)}" for rank in rng.sample(range(lowest, n), kills)]
    print("struck", faults)
    faults = [word for fault in faults for word in ("--fault", fault)]
    return answer_after(jobs.run(n, *command, options=[*options, *faults], timeout=60))


def survivors_answer(jobs, rng, command, begun, n, kills, lowest, options=("--ft",)):
    """The same where they are killed at random moments, one after the other or together."""
    job = jobs.start(n, *command, options=options)
    job.reach(lambda: begun in job.err.read_text(errors="replace"), what="the beginning")
    began, span = time.monotonic(), rng.choice([0.01, 0.1, 0.6])
    victims = rng.sample(range(lowest, n), kills)
    for moment, rank in sorted((rng.uniform(0, span) * rng.choice([0, 1]), rank) for rank in victims):
        time.sleep(max(0.0, began + moment - time.monotonic()))
        job.kill([rank])
    return answer_after(job.wait(60))


@pytest.mark.parametrize("name, language", ALL)
@pytest.mark.gate("master_worker-c", "cg-python")
def test_undisturbed(jobs, plain, example, name, language):
    command, _ = example(name, language)
    result = jobs.run(3, *command, options=["--ft"])
    assert result.code == 0 and result.text == answer_of(plain, command) and result.text.startswith(name), result.describe()


@pytest.mark.parametrize("name, language", ALL)
@pytest.mark.gate("master_worker-c", "sweep-fortran", "cg-python", "ensemble-c")
def test_ranks_are_lost(jobs, plain, example, rng, name, language):
    command, _ = example(name, language)
    n, kills = rng.randint(4, 6), rng.randint(1, 3)
    answer = answer_of_survivors(jobs, rng, command, n, kills, name == "master_worker")
    assert answer == answer_of(plain, command)


@pytest.mark.soak
@pytest.mark.parametrize("round", range(30))
@pytest.mark.parametrize("name, language", ALL)
def test_ranks_are_lost_each_time(jobs, plain, example, rng, name, language, round):
    command, begun = example(name, language)
    n = 3 + round % 7
    kills = rng.randint(1, min(n - 1, 5))
    answer = survivors_answer(jobs, rng, command, begun, n, kills, name == "master_worker")
    assert answer == answer_of(plain, command)


@pytest.mark.parametrize("name, language", ALL_FTMPI)
@pytest.mark.gate("ftmpi_master_worker-c", "ftmpi_sweep-python", "ftmpi_cg-fortran")
def test_ranks_are_lost_by_ftmpis_rules(jobs, plain, example, rng, name, language):
    command, _ = example(name, language)
    n, kills, options = rng.randint(4, 6), rng.randint(1, 3), ["--ft-mode", FTMPI[name], *MANY]
    answer = answer_of_survivors(jobs, rng, command, n, kills, name == "ftmpi_master_worker", options)
    assert answer == answer_of(plain, command) and answer.startswith(name)


@pytest.mark.soak
@pytest.mark.parametrize("round", range(30))
@pytest.mark.parametrize("name, language", ALL_FTMPI)
def test_ranks_are_lost_by_ftmpis_rules_each_time(jobs, plain, example, rng, name, language, round):
    command, begun = example(name, language)
    n, options = 3 + round % 7, ["--ft-mode", FTMPI[name], *MANY]
    answer = survivors_answer(jobs, rng, command, begun, n, rng.randint(1, min(n - 1, 4)), name == "ftmpi_master_worker", options)
    assert answer == answer_of(plain, command)


# A short run of each program that goes on without any of its ranks, and how many of its last messages belong to the end.
SHORT = {"ftmpi_sweep": ([2, 20], 16), "ftmpi_cg": ([48, 4], 24)}


def check_the_end(jobs, example, name, language, numbers):
    """A rank is killed at one of its last messages: some have seen the last round end well by then, others not."""
    command, _ = example(name, language)
    sizes, last = SHORT[name]
    command = [*command[:-2], *sizes]
    options = ["--ft-mode", FTMPI[name]]
    messages, calm = messages_of(jobs, 4, command, options)
    lost = []
    for victim, place in numbers(4, last):
        fault = f"rank={victim},messages={messages[victim] - place}"
        result = jobs.run(4, *command, options=[*options, "--fault", fault], timeout=60)
        assert result.code == 0 and set(result.text.splitlines()) == set(calm.text.splitlines()), (fault, result.describe())
        lost += result.of("lost")
    assert lost, f"of {len(numbers(4, last))} ranks none was lost"


@pytest.mark.parametrize("name, language", [(name, language) for name in SHORT for language in LANGUAGES])
@pytest.mark.gate("ftmpi_sweep-fortran", "ftmpi_cg-c")
def test_a_rank_is_lost_at_the_end(jobs, example, rng, name, language):
    check_the_end(jobs, example, name, language, lambda n, last: [(rng.randrange(n), rng.randrange(last)) for _ in range(6)])


@pytest.mark.soak
@pytest.mark.parametrize("name, language", [(name, language) for name in SHORT for language in LANGUAGES])
def test_a_rank_is_lost_at_each_message_of_the_end(jobs, example, name, language):
    check_the_end(jobs, example, name, language, lambda n, last: list(itertools.product(range(n), range(last))))


@pytest.mark.parametrize("name, language", ALL_FTMPI)
@pytest.mark.gate("ftmpi_master_worker-c", "ftmpi_sweep-fortran", "ftmpi_cg-python")
def test_by_ftmpis_rules_the_answer_is_the_same(plain, example, name, language):
    """As that of the example with ULFM's functions."""
    command, _ = example(name, language)
    other, _ = example(name.removeprefix("ftmpi_"), language)
    assert answer_of(plain, command).removeprefix("ftmpi_") == answer_of(plain, other)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.gate("python")
def test_a_rank_and_its_partner_are_replaced(jobs, plain, example, language):
    """New ranks come for a rank and the one with its copy, and all begin again."""
    command, _ = example("ftmpi_cg", language)
    job = jobs.start(4, *command, options=["--ft-mode", "rebuild", *MANY])
    job.reach(lambda: "is saved" in job.err.read_text().partition("step 0 of")[2], what="a checkpoint")
    job.strike([1, 3], signal.SIGSTOP)
    job.strike([1, 3])
    result = job.wait(60)
    assert result.code == 0 and result.text == answer_of(plain, command), result.describe()
    assert result.errors.count("ftmpi_cg: 4 ranks go on from step 0\n") == 2, result.describe()
    assert {"ftmpi_cg: rank 1 is new", "ftmpi_cg: rank 3 is new"} <= set(result.errors.splitlines()), result.describe()


@pytest.mark.gate("cg", "ensemble")
@pytest.mark.parametrize("name", SIZES)
def test_without_ft_lost_ranks_begin_again(jobs, plain, example, name):
    """The same program under transparent recovery."""
    command, begun = example(name, "c")
    job = jobs.start(4, *command)
    job.reach(lambda: begun in job.err.read_text(), what="the beginning")
    job.strike([1])
    result = job.wait()
    assert result.code == 0 and result.text == answer_of(plain, command) and result.restarts == 1, result.describe()


@pytest.mark.gate("master_worker", "sweep", "cg")
@pytest.mark.parametrize("name", [*SIZES, *FTMPI])
def test_all_languages_give_the_same(plain, example, name):
    """Compared as Fortran writes it, and with sizes that suit Python."""
    answers = {}
    for language in LANGUAGES:
        command, _ = example(name, language)
        if language != "python":
            command = [command[0], *map(str, SIZES[name.removeprefix("ftmpi_")][1])]
        answers[language] = answer_of(plain, command).lower().split()
    if name in ("cg", "ftmpi_cg"):  # NumPy sums in another order
        answers.pop("python")
    assert len(set(map(tuple, answers.values()))) == 1, answers


OF_MASTERS = {"master_worker": ["--ft"], "ftmpi_master_worker": ["--ft-mode", "blank,cont"]}
MASTERS = [(name, language) for name in OF_MASTERS for language in LANGUAGES]


@pytest.mark.gate("master_worker-c", "ftmpi_master_worker-fortran", "master_worker-python")
@pytest.mark.parametrize("name, language", MASTERS)
def test_without_workers_the_master_computes(jobs, plain, example, name, language):
    command, begun = example(name, language)
    job = jobs.start(3, *command, options=OF_MASTERS[name])
    job.reach(lambda: begun in job.err.read_text(), what="the beginning")
    job.strike([1, 2])
    result = job.wait()
    assert result.code == 0 and result.text == answer_of(plain, command), result.describe()
    assert "is lost; 0 are left" in result.errors, result.describe()


@pytest.mark.gate("master_worker-python", "ftmpi_master_worker-c")
@pytest.mark.parametrize("name, language", MASTERS)
def test_without_the_master_the_job_ends(jobs, example, name, language):
    command, begun = example(name, language)
    job = jobs.start(3, *command, options=OF_MASTERS[name])
    job.reach(lambda: begun in job.err.read_text(), what="the beginning")
    job.strike([0])
    result = job.wait()
    assert result.code != 0 and "the master is lost, and all results with it; the job ends" in result.errors, result.describe()


@pytest.mark.gate("c")
@pytest.mark.parametrize("language", LANGUAGES)
def test_a_rank_and_its_partner_are_lost(jobs, plain, example, language):
    """In the first moments after a checkpoint, when a rank and the one with its copy are killed, all begin again."""
    command, _ = example("cg", language)
    job = jobs.start(4, *command, options=["--ft"])
    job.reach(lambda: "is saved" in job.err.read_text().partition("step 0 of")[2], what="a checkpoint")
    # The partner is half of all ranks away. The others must not go on without the first before the second is lost.
    job.strike([1, 3], signal.SIGSTOP)
    job.strike([1, 3])
    result = job.wait()
    assert result.code == 0 and result.text == answer_of(plain, command), result.describe()
    assert "cg: 2 ranks go on from step 0\n" in result.errors, result.describe()
