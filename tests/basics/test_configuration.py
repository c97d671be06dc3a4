# SPDX-License-Identifier: Apache-2.0
"""Configuration files: which are read, what wins, and what is said about a wrong one."""

import json
import os
import shutil

import pytest

import harness
from harness import RESURGO


class Settings:
    """A user's file, an installation of its own with a file, and the environment in which both are read."""

    def __init__(self, jobs, top):
        self.jobs = jobs
        self.prefix = top / "prefix"
        (self.prefix / "bin").mkdir(parents=True)
        shutil.copy(RESURGO, self.prefix / "bin/resurgo")
        (self.prefix / "lib").mkdir()
        (self.prefix / "lib/resurgo").symlink_to(RESURGO.parent.parent / "lib/resurgo")
        self.own = top / "home/resurgo/config.toml"
        self.site = self.prefix / "etc/resurgo/config.toml"
        for file in (self.own, self.site):
            file.parent.mkdir(parents=True)
        self.env = harness.environment(RESURGO_NO_CONFIG=None, RESURGO_CHECKPOINT_SHARE=None, XDG_CONFIG_HOME=top / "home")

    def run(self, *words, **more):
        command = [self.prefix / "bin/resurgo", *words]
        return self.jobs.command(command, env=self.env | {name: str(value) for name, value in more.items()}).wait()

    def config(self, *words, **more):
        found = json.loads(self.run("config", "--json", *words, **more).ok().text)
        return {option["option"]: (option["value"], option["place"] or option["from"]) for option in found["options"]}


@pytest.fixture
def settings(jobs, tmp_path):
    return Settings(jobs, tmp_path)


def test_the_later_one_wins(settings, program, tmp_path):
    events = tmp_path / "events.json"
    settings.site.write_text('protocol = "causal"\ngrace = "7s"\nquiet = true\n')
    settings.own.write_text(f'# mine\nprotocol = "none"\n\nquiet = false\njson-events = "{events}"\n')
    job = ["-n", "2", *program("hello")]
    protocol = lambda: json.loads(events.read_text().splitlines()[0])["protocol"]
    assert settings.run("run", *job).ok().errors == "" and protocol() == "none"
    settings.run("run", *job, RESURGO_PROTOCOL="blocking").ok()
    assert protocol() == "blocking"
    settings.run("run", "--protocol", "pessimistic", *job, RESURGO_PROTOCOL="blocking").ok()
    assert protocol() == "pessimistic"

    found = settings.config(RESURGO_SPIN="20")
    assert found["protocol"] == ("none", f"{settings.own}:2") and found["grace"] == ("7s", f"{settings.site}:2")
    assert found["quiet"] == (False, f"{settings.own}:4") and found["max-restarts"] == ("64", "default")
    assert found["spin"] == ("20", "RESURGO_SPIN") and "mtbf" not in found
    assert settings.config("--no-config")["grace"] == ("2s", "default")
    assert settings.config(RESURGO_NO_CONFIG="1")["protocol"] == ("auto", "default")
    events.unlink()
    settings.run("run", "--no-config", *job).ok()
    assert not events.exists()

    # What is printed is a file that says the same.
    text = settings.run("config", RESURGO_STORE="dir:/a,dir:/b", RESURGO_FAULT="rank=0,at=1s;rank=1,at=2s").ok().text
    assert f"# {settings.own}: read\n" in text and "# /etc/resurgo/config.toml: " in text
    settings.own.write_text(text)
    found = settings.config()
    assert (found["protocol"][0], found["store"][0]) == ("none", ["dir:/a,dir:/b"])
    assert found["fault"][0] == ["rank=0,at=1s", "rank=1,at=2s"]


@pytest.mark.parametrize(
    "text, wanted",
    [
        ('checkpoint-evry = "5m"\n', ":1: unknown option checkpoint-evry; did you mean checkpoint-every?"),
        ('\ngrace = "2s"\nprotocol = "casual"\n', ':3: protocol: there is no protocol "casual"; did you mean causal?'),
        ("checkpoint-every = 0.001\n", ":1: checkpoint-every 0.001: must be at least 10ms"),
        ("quiet = 1\n", ":1: quiet: write true or false"),
        ('np = 4\n', ":1: -n belongs on the command line"),
        ('quiet = true\nquiet = true\n', ":2: duplicate key"),
        ('[run]\nquiet = true\n', ":1: options stand in no table: write run = VALUE"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(settings, program, text, wanted):
    settings.own.write_text(text)
    for words in (["run", "-n", "2", *program("hello")], ["config"]):
        result = settings.run(*words)
        assert (result.code, result.text) == (2, "") and result.errors == f"resurgo: {settings.own}{wanted}\n", result.errors
    settings.run("run", "--help").ok()
    settings.run("run", "--no-config", *program("hello")).ok()


def test_options_that_do_not_go_together(settings, program):
    settings.own.write_text('checkpoint-every = "5m"\n')
    result = settings.run("run", "--protocol", "none", *program("hello"))
    assert result.code == 2 and result.errors.endswith(f"({settings.own}:1 has checkpoint-every)\n"), result.errors
    result = settings.run("run", "--protocol", "none", "--checkpoint-every", "1s", *program("hello"))
    assert result.code == 2 and "config.toml" not in result.errors, result.errors


def test_whose_files_are_read(settings, program):
    job = ["run", "-n", "1", *program("hello")]
    settings.own.write_text('protocol = "nothing"\n')
    settings.own.chmod(0o666)
    result = settings.run(*job)
    assert result.code == 2 and "all users may write to it; chmod o-w it; --no-config leaves it out" in result.errors
    settings.own.chmod(0o600)
    settings.own.write_text("")
    settings.run(*job).ok()
    if os.geteuid() == 0:
        for file in (settings.own, settings.site):
            file.write_text("")
            os.chown(file, 12345, 0)
            result = settings.run(*job)
            assert result.code == 2 and f"{file}: it belongs to user 12345, and not to user 0" in result.errors, result.errors
            settings.run(*job, RESURGO_NO_CONFIG="1").ok()
            file.unlink()
    settings.own.unlink(missing_ok=True)
    settings.own.mkdir()
    assert "config.toml: it is a directory; --no-config leaves it out" in settings.run(*job).errors


def test_a_job_keeps_what_files_said_when_it_began(settings, jobs, program, tmp_path):
    """Also when the file has changed, or is wrong by now."""
    images, file = tmp_path / "images", tmp_path / "plate"
    calm = jobs.calm(2, *program("heat"), "100", "100", "4000")
    settings.own.write_text(f'checkpoint-dir = "{images}"\nprotocol = "blocking"\nlabel = false\n')
    command = [settings.prefix / "bin/resurgo", "run", "-n", "2", *program("heat"), "100", "100", "4000", file]
    go = tmp_path / "go"
    job = jobs.command(command, env={**settings.env, "AWAITED": str(go)})
    job.says(b"step")
    settings.own.write_text("wrong")
    settings.run("suspend", str(job.process.pid)).ok()
    first = job.wait(lets_go=False)
    assert first.code == 75
    go.touch()
    resumed = settings.run("resume", str(images)).ok()
    assert first.out + resumed.out == calm.out and not list(images.glob("*/suspended"))
