# SPDX-License-Identifier: Apache-2.0
"""The first minutes of somebody who has the wheel, no rights and no MPI library: the commands of the guide, as they stand
there, from `pip install` to a killed rank."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import harness
from own_program import APP

GUIDE = harness.ROOT / "docs/guide/getting-started.md"
STRANGER = 65534
PYTHON = "/usr/bin/python3"


def commands(text, title):
    """What a section has the reader type."""
    section = re.search(rf"^## {title}\n(.*?)^## ", text, re.M | re.S)[1]
    for block in re.findall(r"^```\n(.*?)^```", section, re.M | re.S):
        typed = [line[2:] for line in block.splitlines() if line.startswith("$ ")]
        yield "\n".join(typed or block.splitlines())


@pytest.fixture
def home():
    """A directory of the newcomer's, which only needs to be reached."""
    place = Path(tempfile.mkdtemp(prefix="newcomer-"))
    if os.geteuid() == 0:
        os.chown(place, STRANGER, STRANGER)
    yield place
    shutil.rmtree(place)


@pytest.mark.soak
@pytest.mark.skipif(os.geteuid() == 0 and not shutil.which("setpriv"), reason="needs setpriv to be somebody without rights")
def test_the_guide_leads_to_a_killed_rank(jobs, home):
    if subprocess.run([PYTHON, "-c", "import venv, ensurepip"], capture_output=True).returncode:
        pytest.skip(f"{PYTHON} makes no environments: Debian's python3-venv is missing")
    wheel = subprocess.run([sys.executable, harness.ROOT / "scripts/wheel.py", "--to", home], check=True, capture_output=True, text=True).stdout.strip()
    os.chmod(wheel, 0o644)
    text = GUIDE.read_text()
    install, first = next(commands(text, "Install")), list(commands(text, "The first run"))
    assert "pip install" in install and any("--fault" in block for block in first), first
    install, names = re.subn(r"'resurgo-.*\.whl\[mpich\]'", f"'{wheel}[mpich]'", install)
    assert names == 1
    (home / "app.c").write_text(APP)
    script = "\n".join(["set -e", install, "resurgo demo", *first]).replace("mpicc -o app app.c", "mpicc -o app ../app.c")
    rights = ["setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups", "--inh-caps=-all"] if os.geteuid() == 0 else []
    kept = {name: value for name, value in os.environ.items() if name.startswith("PIP_") or name.lower().endswith("_proxy")}
    env = {**kept, "HOME": str(home), "PATH": "/usr/local/bin:/usr/bin:/bin", "TMPDIR": str(home)}
    result = jobs.command([*rights, "sh", "-c", script], env=env, cwd=home).wait(timeout=600)
    if "could not install" in result.errors or "No matching distribution" in result.errors:
        pytest.skip(f"MPICH cannot be had: {result.errors.strip().splitlines()[-1]}")
    result.ok()
    demo, _, own = result.text.partition("What it cost: ")
    answers = re.findall(r"^heat 512x512 steps=20000 .*", own, re.M)
    assert "All runs that finished gave the same result" in demo and len(answers) == 2 and len(set(answers)) == 1, result.describe()
    assert re.findall("^protected +yes", own, re.M) and len(re.findall(r"^an app's rank [0-3]$", own, re.M)) == 4, result.describe()
    if "rank 2 killed by SIGKILL" not in result.errors:
        raise harness.Missed(result.describe())
    assert "rank 2 restarted on this node (life 2)" in result.errors and re.search(r"rank 2 replayed [\d,]+ deliveries", result.errors)
