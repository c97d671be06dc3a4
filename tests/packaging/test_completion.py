# SPDX-License-Identifier: Apache-2.0
"""Completion in real shells, as someone who types gets it; and man pages."""

import os
import pty
import re
import select
import shutil
import subprocess
import time

import pytest

import harness
from harness import RESURGO

START = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
    "fish": ["fish", "--no-config", "-i"],
}
SOURCE = {
    "bash": "bind 'set bell-style none'; bind 'set show-all-if-ambiguous on'; bind 'set page-completions off'; source <(resurgo completion bash)",
    "zsh": "autoload -Uz compinit; compinit -u -D; source <(resurgo completion zsh)",
    "fish": "resurgo completion fish | source",
}


class Shell:
    """An interactive shell on a terminal, with the completion of resurgo."""

    def __init__(self, name, directory):
        self.name = name
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            env = harness.environment(TERM="dumb", PS1="> ", HOME=directory, COLUMNS="200", LINES="60")
            env["PATH"] = f"{RESURGO.parent}:{env['PATH']}"
            os.chdir(directory)
            os.execvpe(START[name][0], START[name], env)
        self.type(SOURCE[name] + "; echo rea''dy\n")
        self.until("ready")

    def type(self, text):
        os.write(self.terminal, text.encode())

    def until(self, wanted, seconds=20):
        """What the terminal shows until that is `wanted`."""
        shown, end = "", time.monotonic() + harness.patience(seconds)
        while wanted not in shown:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.terminal], [], [], left)[0]:
                raise harness.Expired(f"{wanted!r} is not in {shown!r}")
            shown += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[=>]|[\x07\r]", "", os.read(self.terminal, 65536).decode(errors="replace"))
        return shown

    def completed(self, words, wanted):
        """Types words and a tab, waits for what comes of it, and clears the line."""
        self.type(words + "\t")
        shown = self.until(wanted)
        self.type("\x15")
        return shown

    def close(self):
        os.close(self.terminal)
        os.waitpid(self.pid, 0)


@pytest.fixture(params=list(START))
def shell(request, tmp_path):
    if not shutil.which(request.param):
        pytest.skip(f"there is no {request.param}")
    (tmp_path / "images of mine").mkdir()
    (tmp_path / "statistics.json").touch()
    shell = Shell(request.param, tmp_path)
    yield shell
    shell.close()


def test_words_are_completed(shell):
    shell.completed("resurgo checkpoint-", "resurgo checkpoint-server")
    shell.completed("resurgo run --checkpoint-ev", "resurgo run --checkpoint-every")
    shell.completed("resurgo run --protocol bl", "--protocol blocking")
    shell.completed("resurgo run --protocol=bl", "--protocol=blocking")
    shell.completed("resurgo run -n 4 --tolerate=node --stats-json stat", "--stats-json statistics.json")
    shell.completed("resurgo run -n 1 ./a : --proto", ": --protocol")
    shell.completed("resurgo run --log-m", "run --log-memory")
    if shell.name != "fish":  # which shows several only on a better terminal than this one
        assert "--local-copies" in shell.completed("resurgo run --lo", "--log-memory")


def test_names_with_blanks(shell):
    assert re.search(r"images\\ of\\ mine|'images of mine", shell.completed("resurgo run --checkpoint-dir ima", "mine"))


def test_jobs_are_completed(shell, jobs, program):
    job = jobs.start(2, *program("heat"), "100", "100", "200000")
    job.reach_event("started")
    number = str(job.process.pid)
    # Other jobs on this machine may have numbers that begin so.
    shell.completed(f"resurgo kill {number[:-1]}", number)
    job.destroy()


def test_every_command_has_a_man_page(tmp_path):
    subprocess.run([RESURGO, "pages", tmp_path], check=True)
    listed = subprocess.run([RESURGO, "--help"], capture_output=True, text=True).stdout
    verbs = set(re.findall(r"^  resurgo ([a-z-]+)", listed, re.MULTILINE))
    pages = {page.name for page in (tmp_path / "man/man1").iterdir()}
    assert pages == {f"resurgo-{verb}.1" for verb in verbs} | {"resurgo.1"}
    if shutil.which("groff"):
        for page in (tmp_path / "man/man1").iterdir():
            command = ["groff", "-man", "-Tutf8", "-ww", "-b", page]
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0 and done.stderr == "" and "RESURGO" in done.stdout, (page, done.stderr)
