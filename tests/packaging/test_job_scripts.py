# SPDX-License-Identifier: Apache-2.0
"""The job scripts in examples/jobs: their options exist, and those that this machine can run begin, suspend and go on."""

import json
import re
import shlex
import shutil
import subprocess
import sys

import pytest

import harness
from harness import RESURGO

JOBS = harness.ROOT / "examples/jobs"
SCRIPTS = sorted(JOBS.glob("*.sh"))
SERVER = harness.ROOT / "docs/operations/resurgo-checkpoint-server.service"
HEAT = ("400", "400", "4000")


def commands(file):
    """The command lines of resurgo in a file."""
    text = file.read_text()
    if file.suffix == ".yaml":
        return [json.loads(words) for words in re.findall(r"command: (\[.*?\])$", text, re.M | re.S)]
    lines = re.findall(r"^(?:ExecStart=\S*/)?(resurgo (?:run|join) .*?)(?: &)?$", text, re.M)
    return [shlex.split(line) for line in lines]


@pytest.mark.parametrize("file", sorted(JOBS.iterdir()), ids=lambda file: file.name)
def test_every_option_exists(file):
    """In the list of the command's help."""
    found = commands(file)
    assert found and all(words[0] == "resurgo" for words in found), found
    for _, verb, *words in found:
        told = subprocess.run([RESURGO, verb, "--help"], capture_output=True, text=True, check=True).stdout
        known = set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", told))
        unknown = {word for word in words if word.startswith("-")} - known
        assert not unknown, (verb, unknown)


@pytest.mark.parametrize("file", SCRIPTS, ids=lambda file: file.name)
def test_shells_understand_it(file):
    shell = file.read_text().split("\n", 1)[0].removeprefix("#!")
    assert subprocess.run([shell, "-n", file], capture_output=True, text=True).stderr == ""
    if shutil.which("shellcheck"):
        assert subprocess.run(["shellcheck", file], capture_output=True, text=True).stdout == ""


def test_the_manifest_is_that_of_the_guide():
    text = (JOBS / "kubernetes.yaml").read_text()
    guide = (harness.ROOT / "docs/guide/several-machines.md").read_text()
    [block] = re.findall(r"^```yaml\n(.*?)^```", guide, re.M | re.S)
    assert re.sub(r"^#.*\n", "", text, flags=re.M) == block


def test_the_manifest_is_yaml():
    read = "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(sys.stdin))))"
    for python in (sys.executable, "/usr/bin/python3"):
        with open(JOBS / "kubernetes.yaml") as file:
            done = subprocess.run([python, "-c", read], stdin=file, capture_output=True, text=True)
        if done.returncode == 0:
            break
    else:
        pytest.skip("no Python here has yaml")
    service, run, nodes = json.loads(done.stdout)
    assert [it["kind"] for it in (service, run, nodes)] == ["Service", "Job", "Job"]
    assert [container["command"] for it in (run, nodes) for container in it["spec"]["template"]["spec"]["containers"]] == commands(JOBS / "kubernetes.yaml")


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd")
@pytest.mark.parametrize("unit", [JOBS / "resurgo-app.service", SERVER], ids=lambda unit: unit.name)
def test_the_service_is_one(tmp_path, unit):
    """systemd knows all that it says."""
    own = tmp_path / unit.name
    own.write_text(unit.read_text().replace("/usr/local/bin/resurgo", str(RESURGO)))
    done = subprocess.run(["systemd-analyze", "verify", own], capture_output=True, text=True, timeout=60)
    assert unit.name not in done.stderr, done.stderr


class Batch:
    """A batch system that has only its commands: they write down how they were called."""

    def __init__(self, jobs, program, directory, **variables):
        self.jobs, self.directory, self.calls = jobs, directory, directory / "calls"
        bin = directory / "bin"
        bin.mkdir()
        (bin / "resurgo").symlink_to(RESURGO)
        for name in ("scontrol", "qsub", "curl"):
            (bin / name).write_text(f'#!/bin/sh\n[ -e {directory}/no-{name} ] && exit 22\necho {name} "$@" >> {self.calls}\n')
            (bin / name).chmod(0o755)
        (directory / "app").symlink_to(program("heat")[0])
        path = f"{bin}:{harness.environment()['PATH']}"
        self.env = harness.environment(PATH=path, SCRATCH=directory, AWAITED=directory / "go", **variables)

    def start(self, *command):
        return self.jobs.command(command, env=self.env, cwd=self.directory)

    def called(self):
        return self.calls.read_text().splitlines() if self.calls.exists() else []


def running(job):
    """Waits until the job has an image, so that it can be suspended; returns its number."""
    seen = []

    def is_there():
        told = subprocess.run([RESURGO, "ps", "--json"], capture_output=True, text=True).stdout
        own = [other["job"] for other in json.loads(told) if other["state"] == "running" and other["job"] in job.processes()]
        seen[:] = own
        return own and subprocess.run([RESURGO, "checkpoint", str(own[0])], capture_output=True).returncode == 0

    job.reach(is_there, what="the job")
    return seen[0]


def gone_on(batch, first, again, ranks):
    """The job that was suspended in the run `first` goes on in the run `again`."""
    again.goes_on_from(first)
    second = again.wait().ok()
    assert " on from the files in " in second.errors, second.describe()
    calm = batch.jobs.calm(ranks, batch.directory / "app", *HEAT)
    assert first.out.read_bytes() + second.out == calm.out


def test_slurm(jobs, program, tmp_path):
    """Slurm's signal goes to the shell, as `--signal=B:` asks for."""
    here = subprocess.run(["hostname"], capture_output=True, text=True, check=True).stdout.strip()
    end = 1 << 33
    batch = Batch(jobs, program, tmp_path, SLURM_JOB_NAME="app", SLURM_JOB_ID=77, SLURM_JOB_END_TIME=end,
                  SLURM_JOB_NODELIST=here, SLURM_NODELIST=here, SLURM_TASKS_PER_NODE=2)
    job = batch.start(JOBS / "slurm.sh", "./app", *HEAT)
    running(job)
    job.process.terminate()
    ended = job.wait(lets_go=False)
    assert ended.code == 75 and batch.called() == ["scontrol requeue 77"], ended.describe()
    gone_on(batch, job, batch.start(JOBS / "slurm.sh", "./app", *HEAT), 2)
    assert batch.called() == ["scontrol requeue 77"] and list((tmp_path / "app.images").iterdir()) == []


def test_pbs(jobs, program, tmp_path):
    """A job that is suspended is queued once more."""
    (tmp_path / "short.sh").write_text(f"#!/bin/sh\nexec ./app {' '.join(HEAT)}\n")
    (tmp_path / "short.sh").chmod(0o755)
    batch = Batch(jobs, program, tmp_path, PBS_JOBNAME="app", PBS_O_WORKDIR=tmp_path, APP="./short.sh")
    job = batch.start(JOBS / "pbs.sh")
    jobs.resurgo("suspend", running(job)).ok()
    ended = job.wait(lets_go=False)
    assert ended.code == 75 and batch.called() == ["qsub -v APP=./short.sh pbs.sh"], ended.describe()
    gone_on(batch, job, batch.start(JOBS / "pbs.sh"), 1)
    assert len(batch.called()) == 1


def test_a_spot_instance(jobs, program, tmp_path):
    """The page comes when the instance is about to go."""
    batch = Batch(jobs, program, tmp_path, RANKS=2, PAUSE="0.05", NOTICE="http://169.254.169.254/notice")
    (tmp_path / "no-curl").touch()
    command = [JOBS / "spot.sh", tmp_path / "images", "./app", *HEAT]
    job = batch.start(*command)
    running(job)
    (tmp_path / "no-curl").unlink()
    ended = job.wait(lets_go=False)
    assert ended.code == 75 and batch.called()[-1].endswith(" http://169.254.169.254/notice"), ended.describe()
    (tmp_path / "no-curl").touch()
    gone_on(batch, job, batch.start(*command), 2)
