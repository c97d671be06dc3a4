# SPDX-License-Identifier: Apache-2.0
"""Every block of commands in the README and the guides is typed here as it stands, or `BLOCKS` says why not; then resurgo
understands its command lines."""

import functools
import itertools
import json
import re
import subprocess

import pytest

import documented
import harness
from documented import JOB, PAGES, Elsewhere, Parsed, Runs, Shown
from harness import RESURGO

FEW = {"-n 64": "-n 4", "-n 16": "-n 4", "-n 8": "-n 4"}
SOON = {"mean=3s": "mean=150ms", "mean=2s": "mean=150ms", "mean=10s": "mean=150ms", "mean=30s": "mean=150ms", "at=5s": "at=150ms",
        "at=3s": "at=150ms", "--checkpoint-every 1s": "--checkpoint-every 100ms", "seed=1 ": "seed=1,count=2 "}  # fmt: skip
PROTOCOLS = "pessimistic causal channel-memory blocking chandy-lamport group hierarchical auto"
GOES_ON = {"resurgo resume": "touch go; resurgo resume"}
NETWORK = "needs packages of a registry; packaging/test_newcomer.py has the same commands"
LONG = "takes minutes or hours; the makefile's targets are what is tested here"
NEWCOMER = "packaging/test_newcomer.py::test_the_guide_leads_to_a_killed_rank"
INSTALLED = "packaging/test_install.py::test_installed_with_a_narrow_umask_and_a_space"
BENCH = "tools/test_bench.py::test_a_figure_of_real_processes"
WEB = "serves until it is interrupted; watching/test_web.py"

# Of each page: how a block begins, and what becomes of it; of a list, each line of the block has one.
BLOCKS = {
    "README.md": {
        "resurgo run -n 4 ./app ": Runs(says="rank 3 has"),
        "make wheel": Elsewhere(NEWCOMER),
        "make install": Elsewhere(INSTALLED),
        "make demo": Elsewhere("packaging/test_install.py::test_the_demo_in_c"),
        "2. Plain MPICH": Shown(),
        "resurgo run -n 8 -hosts": Runs({"-n 8": "-n 4", ":2": "", "./heat": "./heat 100 100 400", **SOON}, says="heat 100x100"),
        "resurgo run -n 8 ./app input.dat": [
            Runs({**FEW, **SOON}, only="resurgo run|resurgo ps", says="rank 3 has(.*\n)*the sum is 6"),
            Runs(GOES_ON, only="resurgo (suspend|resume) 4711", job=True, says="rank 1 has"),
            Runs(only="resurgo (top|console) 4711", job=True, says="RANK"),
            Parsed(WEB, only="resurgo web"),
            Parsed("there must have been a disaster; store/test_levels_resumed.py", only="resurgo resume --from"),
        ],
        "make test": Parsed(LONG),
    },
    "docs/guide/benchmarks.md": {"make bench": Parsed(LONG)},
    "docs/guide/checkpointing.md": {
        "resurgo run -n 64 --checkpoint-every 5m ./program": Runs(FEW, says="rank 3 has"),
        "resurgo: ": Shown(),
        "$ resurgo advise": Runs(says="24.0 h of work on 64 nodes"),
        "resurgo run -n 64 --checkpoint-every 5m --checkpoint-dir /scratch/me ./program": Runs(FEW, says="rank 3 has"),
        "$ resurgo run -f hosts": Parsed("needs a bucket; store/test_levels.py"),
        "$ resurgo suspend": Runs(GOES_ON, job=True, says=r"job \d+: is suspended after (.*\n)*.*suspended (.*\n)*rank 1 has"),
        "$ resurgo ps": Parsed("the launcher must have been killed; resuming/test_interrupted.py"),
        "resurgo run -n 64 --checkpoint-every 5m --checkpoint-dir /scratch/$USER/app": Parsed("needs a server; store/test_levels.py"),
        "#!/bin/bash\n#SBATCH": Runs(FEW, says="rank 3 has", variables=documented.slurm()),
    },
    "docs/guide/cookbook.md": {
        "#!/bin/bash\n# bash survive.sh": Runs(SOON, arguments="./app short.in", codes=(0, 1), says="ranks: status 0\nnode: status 0"),
        "#!/bin/bash\n#SBATCH": Runs(says="rank 1 has", variables=documented.slurm()),
        "cp ~/.local/share": Runs(),
        "resurgo run -f hosts -n 16 --spares": Parsed("needs the page of a cloud; nodes/test_nodes_come_and_go.py"),
        "sh spot.sh": Runs(says="rank 1 has", variables={"PAUSE": 1, "RANKS": 2}),
        "#!/bin/sh\n# gpu.sh": Runs(keeps="gpu.sh"),
        "resurgo run -n 4 -bind-to numa": Runs({"user:0+1,2+3,8+9,10+11": "user:0,1"}, takes=("gpu.sh",), says="rank 3 has"),
        "resurgo run -n 16 --checkpoint-every 5m ./writer": Runs(FEW, says="rank 3 has"),
        "resurgo run -n 4 ./writer": Runs(SOON, says="rank 3 has"),
        "python3 -m venv": [
            Parsed(NETWORK, only="python3 -m venv|pip install"),
            Runs(only="activate|resurgo", says="protected +yes(.*\n)*the sum is 6"),
        ],
    },
    "docs/guide/failures.md": {
        "$ mpicc": Runs(FEW, says="rank 3 has"),
        "$ resurgo run --ft": Runs(FEW, says="rank 3 has"),
        "$ mpifort": Runs(),
    },
    "docs/guide/getting-started.md": {
        "python3 -m venv ~/resurgo": Elsewhere(NEWCOMER),
        "git clone": Elsewhere(INSTALLED),
        "python3 -m venv ~/mpi": Parsed(NETWORK),
        "$ resurgo doctor": Runs(says="program .*/hello\n(.*\n)*MPI library (.*\n)*protected +yes: resurgo run -n 4 ./hello"),
        "cp -r": Runs({"20000": "500"}, says="heat 512x512 steps=500"),
        "$ resurgo run -n 4 --fault": Runs({"20000": "500", "at=1s": "at=100ms"}, says="heat 512x512 steps=500"),
        "mpicc": Runs(says="protected +yes(.*\n)*rank 3 has"),
        ". ~/mpi/bin/activate\npip": [Parsed(NETWORK, only="pip"), Runs(only="activate|resurgo", says="the sum is 6")],
        "#!/bin/sh\n#SBATCH": Runs(says="rank 1 has", variables=documented.slurm()),
        "#SBATCH": Runs(FEW, says="rank 3 has"),
    },
    "docs/guide/is-it-for-me.md": {"resurgo doctor": Runs(SOON, says="protected +yes(.*\n)*rank 3 has")},
    "docs/guide/papers.md": {
        "resurgo bench": [
            Runs(only=r"resurgo bench( *#|$)", says="mpich-v-7(.*\n)*.*gao-3"),
            Elsewhere(BENCH, only="resurgo bench paper"),
        ],
    },
    "docs/guide/quick-start-administrators.md": {
        "make install": Parsed("writes below /opt and needs sudo; packaging/test_install.py, packaging/test_wheel.py"),
        "mkdir -p /opt/modulefiles": [
            Elsewhere("packaging/test_packaging.py::test_the_module_finds_the_program", only="mkdir|module"),
            Runs(only="resurgo doctor", says="n3"),
        ],
    },
    "docs/guide/quick-start-researchers.md": {
        "#!/bin/bash\n# bash compare.sh": Runs({**SOON, PROTOCOLS: "pessimistic blocking auto"}, arguments="cg S", says="^cg class=S.*\n.*\tblocking|auto\t"),
        "resurgo bench": [
            Runs(only=r"resurgo bench *#", says="mpich-v-7(.*\n)*.*gao-3"),
            Elsewhere(BENCH, only="resurgo bench paper"),
        ],
        "resurgo-sim": Runs(
            {"1000 ": "20 ", "--ranks 64": "--ranks 4 --messages 2000", "16,8,4": "4 --ranks 4", "600,300": "600 --ranks 4 --rounds 200",
             "64,2048": "8 --trials 10"},
            says="seed 42(.*\n)*kernel",
        ),
    },  # fmt: skip
    "docs/guide/recovery.md": {
        "resurgo: ": Shown(),
        "resurgo run -n 3 --protocol channel-memory": Parsed("needs a network namespace and its address; nodes/test_networks.py"),
        "resurgo run -n 4 ./app short.in": Runs(SOON),
        "--fault rank=all": Parsed("the rest of a command line", before="resurgo run -n 4 "),
    },
    "docs/guide/several-machines.md": {
        "resurgo run -hosts n1:4,n2:4": Runs({"n1:4,n2:4": "n1:2,n2:2", **FEW}, says="rank 3 has"),
        "resurgo run --protocol channel-memory": Runs(says="rank 1 has"),
        "resurgo run -f hosts --checkpoint-every 5m --store peers": Runs(says="rank 2 has"),
        "resurgo run -f hosts --checkpoint-every 5m --store parity": Parsed("needs eleven hosts; nodes/test_nodes_parity.py"),
        "resurgo run -f hosts --checkpoint-every 5m --checkpoint-dir": [
            Runs(only="resurgo run", says="rank 2 has"),
            Parsed("the machines must have been lost; nodes/test_nodes_suspended.py", only="resurgo resume"),
        ],
        "resurgo run -launcher join -n 8": Parsed("takes several terminals; nodes/test_nodes_come_and_go.py"),
        "resurgo run -launcher join --join-port": Parsed("takes several terminals; nodes/test_nodes_come_and_go.py"),
    },
    "docs/guide/testing.md": {
        "make test": Parsed(LONG),
        ".deps/mpich/bin/python": Parsed(LONG),
        "make -C tests/programs": [
            Parsed("the makefile's target programs has done it before these tests", only="make"),
            Runs({"3000": "300", "2000 ": "200 ", "20000": "500"}, only="resurgo", says="heat 400x400"),
        ],
    },
    "docs/operations/README.md": {
        "make install": Elsewhere(INSTALLED),
        "/opt/resurgo/bin/resurgo": Shown(),
        "docker run": Parsed("needs Docker; images/test_containers.py"),
    },
    "docs/operations/checkpoint-server.md": {
        "umask": Parsed("serves until it is interrupted; store/test_store.py"),
        "resurgo store ls": Parsed("needs a server on another machine; store/test_store.py"),
        "resurgo run -f hosts": Parsed("needs other machines; store/test_store_servers.py"),
        "n8$": Parsed("needs other machines; store/test_store_servers.py"),
    },
    "docs/operations/monitoring.md": {
        "resurgo run --notify": Runs(FEW, says="rank 3 has"),
        "journalctl": Parsed("needs systemd's journal; watching/test_journal.py"),
    },
    "docs/operations/tracing.md": {
        "resurgo run -n 64 --trace": Runs(FEW, says="rank 3 has", keeps="job.pftrace"),
        "python -m resurgo.otf2": Elsewhere("watching/test_otf2.py::test_an_archive_has_what_the_trace_has"),
        "0.2 s of 3 ranks": Shown(),
        "resurgo trace report": Runs(takes=("job.pftrace",), says="load balance"),
    },
    "docs/reference/configuration.md": {"$ resurgo config": Runs(says='protocol = "auto" +# default')},
    "docs/reference/options.md": {
        "resurgo run [options]": Shown(),
        "$ resurgo web": Parsed(WEB),
        "echo ranks": Runs(job=True, says="RANK"),
    },
    "docs/reference/statistics.md": {"resurgo: statistics": Shown()},
    "examples/README.md": {
        "$ . ~/mpi": Elsewhere("packaging/test_install.py::test_installed_examples_find_what_is_installed"),
        "$ resurgo run --ft": Elsewhere("libraries/test_examples.py::test_ranks_are_lost"),
        "$ make heat": Parsed("is that of Getting started, and sbatch"),
        "$ mpiexec": Elsewhere("libraries/test_examples.py::test_undisturbed"),
    },
    "packaging/README.md": {"eb ": Parsed("needs EasyBuild and its repository; packaging/test_linters.py")},
}


def name_of(page):
    return page.relative_to(documented.ROOT).as_posix()


BLOCKS_OF = {name_of(page): list(documented.blocks(page)) for page in PAGES}


def entry(page, block):
    """What becomes of a block, as a list."""
    found = [entry for start, entry in BLOCKS.get(page, {}).items() if block.startswith(start)]
    assert len(found) == 1, f"{page}: BLOCKS has {len(found)} entries for the block\n{block}"
    return found[0] if isinstance(found[0], list) else found


def cases(kind):
    """(page, block, entry, lines) for each that is of this kind."""
    found = []
    for page in map(name_of, PAGES):
        for block in BLOCKS_OF[page]:
            entries = [one for start, one in BLOCKS.get(page, {}).items() if block.startswith(start)]
            for one in entries[0] if entries and isinstance(entries[0], list) else entries:
                if isinstance(one, kind):
                    lines = [line for line in documented.typed(block) if re.search(one.only, line)]
                    told = f"{page}: {(lines or ['?'])[0].strip()[:60]}"
                    found.append(pytest.param(page, block, one, lines, id=re.sub(r"[^\w./: -]+", "_", told)))
    return found


def test_every_block_has_its_entry():
    assert set(BLOCKS) <= set(BLOCKS_OF)
    for page, here in BLOCKS_OF.items():
        unused = [start for start in BLOCKS.get(page, {}) if not any(block.startswith(start) for block in here)]
        assert not unused, (page, unused)
        for block in here:
            entries = entry(page, block)
            left = [line for line in documented.typed(block) if len(entries) > 1 and not any(re.search(one.only, line) for one in entries)]
            assert not left, (page, left)


def test_other_tests_are_there():
    tests = harness.ROOT / "tests"
    told = [one for page in BLOCKS.values() for one in page.values() for one in (one if isinstance(one, list) else [one])]
    for one in told:
        if isinstance(one, Elsewhere):
            file, _, name = one.test.partition("::")
            assert re.search(rf"^def {name}\(", (tests / file).read_text(), re.M), one.test
        if isinstance(one, Parsed):
            for file in re.findall(r"\w+/test_\w+\.py", one.reason):
                assert (tests / file).exists(), file


@pytest.mark.parametrize("page, block, one, lines", cases((Parsed, Elsewhere)))
def test_it_is_understood(tmp_path, page, block, one, lines):
    for name, text in {"hosts": "n1\nn2\n", "token": "0123456789abcdef\n"}.items():
        (tmp_path / name).write_text(text)
    if isinstance(one, Parsed) and one.before:
        lines = [f"{one.before}{line.split('#')[0]} ./app" for line in lines]
    commands = [words for words in map(documented.command, lines) if words]
    for words in commands:
        if words[1:3] == ["bench", "paper"]:
            known = {*figures(), "all"}
            assert known.issuperset(itertools.takewhile(lambda word: word[0] not in "-#", words[3:])), words
        elif words[1] != "demo":
            wrong = documented.misunderstood(words, tmp_path)
            assert not wrong, wrong


@functools.cache
def figures():
    """Those that resurgo bench can repeat."""
    told = subprocess.run([RESURGO, "bench"], capture_output=True, text=True, check=True, env=harness.environment()).stdout
    return set(re.findall(r"^ *([a-z-]+-\d+\S*)", told, re.M))


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The program of the reader's own."""
    place = tmp_path_factory.mktemp("built")
    (place / "app.c").write_text(documented.APP)
    command = [harness.MPICH / "bin/mpicc", "-O1", "-I", harness.SOURCES, "-o", place / "app", place / "app.c"]
    subprocess.run(command, check=True, env=harness.environment())
    return place


def begun(jobs, place, work):
    """A job that takes its time until the file `go` is there, and its number."""
    env = documented.environment(place) | {"AWAITED": str(work / "go")}
    job = jobs.command([RESURGO, "run", "-n", 2, "--checkpoint-dir", place / "scratch/me", "./app"], env=env, cwd=work)
    number = []

    def has_an_image():
        told = json.loads(subprocess.run([RESURGO, "ps", "--json"], capture_output=True, text=True).stdout)
        number[:] = [other["job"] for other in told if other["state"] == "running" and other["job"] in job.processes()]
        return number and subprocess.run([RESURGO, "checkpoint", str(number[0])], capture_output=True).returncode == 0

    job.reach(has_an_image, what="the job's first image")
    return job, number[0]


@pytest.mark.parametrize("page, block, one, lines", cases(Runs))
def test_it_runs(jobs, built, tmp_path, page, block, one, lines):
    place = tmp_path / "place"
    work = documented.furnish(place, built)
    text = block if block.startswith("#!") and not one.only else "\n".join(lines)
    for large, small in one.small.items():
        text = text.replace(large, small)
    text = documented.at(place, text)
    env = documented.environment(place, **one.variables)
    for file in one.takes:
        take(jobs, built, page, file, work)
    if one.keeps and block.startswith("#!"):
        assert subprocess.run(["sh", "-n"], input=text, text=True, capture_output=True).stderr == ""
        return
    shell = text.split("\n", 1)[0].removeprefix("#!") if text.startswith("#!") else "/bin/bash"
    options = [] if text.startswith("#!") else ["-e"]
    job = None
    if one.job:
        job, number = begun(jobs, place, work)
        text = text.replace(JOB, str(number)) if JOB in text else text
    script = tmp_path / "script"
    script.write_text(text + "\n")
    typed = jobs.command([shell, *options, script, *one.arguments.split()], env=env, cwd=work)
    if job:
        typed.goes_on_from(job)
    result = typed.wait(lets_go=False)
    if job:
        assert job.wait().code in (0, 75)
    assert result.code in one.codes and re.search(one.says, result.text), result.describe()


def take(jobs, built, page, file, work):
    """Another block's file."""
    for param in cases(Runs):
        other, block, one, lines = param.values
        if other == page and one.keeps == file:
            break
    if block.startswith("#!"):
        (work / file).write_text(block)
        return
    jobs.resurgo("run", "-n", 2, "--trace", work / file, built / "app", cwd=work).ok()
