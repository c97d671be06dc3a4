# SPDX-License-Identifier: Apache-2.0
"""The gate turns red when `resurgo run` has a bug, even one that shows only in a part of its runs."""

import shutil
import sys

import pytest

import harness
from planted import gate_of

WRAPPER = """#!{python}
import os, random, signal, subprocess, sys, time
from pathlib import Path
command = ["{resurgo}", *sys.argv[1:]]
random.seed()
if sys.argv[1:2] != ["run"] or "99" in sys.argv or random.random() > 1 / 3:
    os.execv(command[0], command)
def once():
    try:
        return os.open("{once}", os.O_CREAT | os.O_EXCL) >= 0
    except FileExistsError:
        return False
def run():
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    out = process.stdout.read()
    return out, process.wait()
def end(out, code):
    sys.stdout.buffer.write(out)
    sys.stdout.flush()
    sys.exit(code)
{bug}
os.execv(command[0], command)
"""
BUGS = {
    "a wrong byte": "out, code = run()\nat = random.randrange(len(out) or 1)\nend(out[:at] + b'#' + out[at + 1:], code)",
    "a lost line": "out, code = run()\nend(b''.join(out.splitlines(True)[1:]), code)",
    "a line twice": "out, code = run()\nend(b''.join(line * 2 for line in out.splitlines(True)), code)",
    "output that is cut off": "out, code = run()\nend(out[: len(out) // 2], code)",
    "a false exit status": "out, code = run()\nend(out, code or 3)",
    "a panic": "out, code = run()\nprint(\"thread 'main' panicked at crates/cli/src/main.rs:1:1:\", file=sys.stderr)\nend(out, 101)",
    # Not before the end: resurgo ends all children that it finds.
    "a process left behind": "out, code = run()\nsubprocess.Popen(['sleep', '60'], stdout=2)\nend(out, code)",
    "shared memory left behind": "Path(f'/dev/shm/resurgo-planted-{os.getpid()}').touch()",
    "a file left behind": "Path(os.environ['TMPDIR'], 'planted').touch()",
    "a hang": "if once():\n    time.sleep(1000)",
}


def gate_with(directory, bug):
    wrapper = directory / "resurgo"
    wrapper.write_text(WRAPPER.format(python=sys.executable, resurgo=harness.RESURGO, once=directory / "once", bug=bug))
    wrapper.chmod(0o755)
    return gate_of(directory, None, others=["basics/test_kills.py"], RESURGO=wrapper)


@pytest.mark.soak
@pytest.mark.parametrize("bug", BUGS)
def test_the_gate_sees_a_bug(tmp_path, bug):
    try:
        ended = gate_with(tmp_path, BUGS[bug])
        assert ended.returncode == 1 and "gate: failed" in ended.stdout, ended.stdout
    finally:
        for file in harness.Path("/dev/shm").glob("resurgo-planted-*"):
            file.unlink()
        shutil.rmtree(tmp_path / "tests")


@pytest.mark.soak
def test_the_gate_is_green_without_one(tmp_path):
    ended = gate_with(tmp_path, "")
    assert ended.returncode == 0, ended.stdout
