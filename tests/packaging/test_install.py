# SPDX-License-Identifier: Apache-2.0
"""`make install` and `make uninstall`; and what the set-up asks for on machines that lack things. Nothing is built
here."""

import os
import re
import resource
import shutil
import signal
import stat
import subprocess
import time

import pytest

import harness
from own_program import APP, APP_PYTHON

NEEDED = "sh env cat cmp cp chmod dirname grep id ls make mkdir mktemp mv rm rmdir sed sort stat python3 cc as ld".split()
# Directories of an installation that other programs use, too.
OF_ALL = {"share/man", "share/man/man1", "share/bash-completion", "share/bash-completion/completions", "share/zsh"}
OF_ALL |= {"share/zsh/site-functions", "share/fish", "share/fish/vendor_completions.d"}


def make(*words, **more):
    """Runs make so that what is built stays as it is."""
    command = ["make", "-s", "-o", "build", *map(str, words)]
    kept = {name: value for name, value in os.environ.items() if name not in ("PREFIX", "DESTDIR", "MAKEFLAGS")}
    return subprocess.run(command, cwd=harness.ROOT, env=kept, capture_output=True, text=True, timeout=harness.patience(30), **more)


def modes(top):
    """The mode of every file and directory."""
    return {path: stat.S_IMODE(path.lstat().st_mode) for path in [top, *top.rglob("*")]}


def test_installed_with_a_narrow_umask_and_a_space(jobs, program, tmp_path):
    """Everybody can read it, it works, a second installation changes nothing, and then it is removed."""
    prefix = tmp_path / "it's a pre fix"
    done = make("install", f"PREFIX={prefix}", umask=0o077)
    assert (done.returncode, done.stderr) == (0, "") and f"{prefix}/bin/resurgo" in done.stdout, done
    found = modes(prefix)
    programs = ["bin/resurgo", "lib/resurgo/libresurgo-fi.so", "lib/resurgo/libresurgo-ft.so"]
    programs += ["lib/resurgo/libresurgo-pmpi.so", "lib/resurgo/resurgo-sim"]
    programs += [f"share/resurgo/examples/jobs/{name}.sh" for name in ("pbs", "slurm", "spot")]
    for path, mode in found.items():
        wanted = 0o755 if path.is_dir() or str(path.relative_to(prefix)) in programs else 0o644
        assert mode == wanted, (path, oct(mode))
    assert (prefix / "share/resurgo/bench/paper.py").is_file()
    assert "checkpoint\\-every" in (prefix / "share/man/man1/resurgo-run.1").read_text()
    assert (prefix / "share/fish/vendor_completions.d/resurgo.fish").is_file()
    assert jobs.command([prefix / "bin/resurgo", "run", "-n", "2", *program("hello")]).wait().ok().errors == ""
    python = [prefix / "bin/resurgo", "run", "--ft", "-n", "2", harness.PYTHON, "-c", "from mpi4py import MPI; from resurgo import ft; print(ft.is_revoked(MPI.COMM_WORLD))"]
    assert jobs.command(python).wait().ok().text == "False\n" * 2
    env = harness.environment(PYTHONPATH=prefix / "lib/resurgo/python", PATH="/nowhere")
    assert jobs.command([harness.PYTHON, "-c", "import resurgo; resurgo.run('/bin/true', n=2).wait()"], env=env).wait().ok().errors
    assert (prefix / "include/resurgo/mpi_ext.F90").is_file()
    assert "gao-3" in jobs.command([prefix / "bin/resurgo", "bench"]).wait().ok().text

    # Again: only what is wrong is touched.
    found = {path: mode for path, mode in modes(prefix).items() if "__pycache__" not in path.parts}
    places = {path: path.stat().st_ino for path in found}
    (prefix / "LICENSE of another").touch()
    (prefix / "bin/resurgo").chmod(0o700)
    (prefix / "lib/resurgo").chmod(0o700)
    assert make("install", f"PREFIX={prefix}", umask=0o077).returncode == 0
    assert {path: path.stat().st_ino for path in found} == places and modes(prefix).items() >= found.items()

    (prefix / "lib/resurgo/mine").touch()
    done = make("uninstall", f"PREFIX={prefix}")
    assert done.returncode == 0 and done.stderr == f"install: {prefix}/lib/resurgo stays: something else is in it\n", done
    left = {str(path.relative_to(prefix)) for path in prefix.rglob("*")}
    assert left == {"LICENSE of another", "bin", "include", "lib", "lib/resurgo", "lib/resurgo/mine", "share", "share/doc"} | OF_ALL
    done = make("uninstall", f"PREFIX={prefix}")
    assert done.returncode != 0 and "nothing is installed in" in done.stderr, done


def test_installed_examples_find_what_is_installed(jobs, tmp_path):
    prefix, built = tmp_path / "prefix", tmp_path / "built"
    assert make("install", f"PREFIX={prefix}").returncode == 0
    examples = prefix / "share/resurgo/examples"
    command = ["make", "-s", "-C", examples, "c", f"MPICC={harness.MPICH / 'bin/mpicc'}", f"BUILD={built}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=harness.patience(60))
    assert (done.returncode, done.stderr) == (0, ""), done
    for sweep in ([built / "sweep"], [harness.PYTHON, examples / "sweep.py"]):
        command = [prefix / "bin/resurgo", "run", "--ft", "-n", "2", *sweep, "5", "50"]
        assert jobs.command(command).wait().ok().text.startswith("sweep: 5 rounds")


def test_the_program_of_the_demo_is_an_example(jobs, program, tmp_path):
    """Also in a copy of the examples that says where Resurgo is, or takes the one in PATH, to which a link may lead."""
    prefix, copy = tmp_path / "prefix", tmp_path / "copy"
    assert make("install", f"PREFIX={prefix}").returncode == 0
    shutil.copytree(prefix / "share/resurgo/examples", copy)
    command = ["make", "-s", "-C", copy, "heat", f"MPICC={harness.MPICH / 'bin/mpicc'}", f"RESURGO={prefix}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=harness.patience(60))
    assert (done.returncode, done.stderr) == (0, ""), done
    (copy / "heat").unlink()
    (tmp_path / "links").mkdir()
    (tmp_path / "links/resurgo").symlink_to(prefix / "bin/resurgo")
    env = {**os.environ, "PATH": f"{tmp_path / 'links'}:{os.environ['PATH']}"}
    again = subprocess.run(command[:-1], env=env, capture_output=True, text=True, timeout=harness.patience(60))
    assert (again.returncode, again.stderr) == (0, "") and (copy / "heat").is_file(), again
    killed = jobs.command([prefix / "bin/resurgo", "run", "-n", "2", "--fault", "rank=1,messages=100", copy / "heat", "64", "64", "500"]).wait().ok()
    assert killed.text == jobs.calm(2, *program("heat"), "64", "64", "500").text and "rank 1 killed by SIGKILL" in killed.errors


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    prefix = tmp_path_factory.mktemp("demo") / "prefix"
    assert make("install", f"PREFIX={prefix}").returncode == 0
    return prefix


def demo(jobs, prefix, *words, **env):
    """Runs the demonstration as a user of that installation would."""
    result = jobs.command([prefix / "bin/resurgo", "demo", *words], env=harness.environment(**env)).wait(timeout=300)
    if "the job was over before" in result.errors:
        raise harness.Missed(result.describe())
    return result


def killed(text):
    assert len(re.findall(r"^    \$ kill -9 \d+ +# rank 2, after ", text, re.MULTILINE)) == 2, text
    assert "the job has ended with exit code 9; no result" in text and "resurgo: rank 2 restarted" in text
    assert re.search(r"result, byte for byte:\n    plain.plate\n(    tcp.plate\n)?    calm.plate\n    killed.plate\n", text), text
    assert "What it cost: plain MPICH took " in text and "rank 2 was away for " in text


def leads_on(jobs, prefix, text, directory, source, **env):
    """What the demonstration has the user type at its end does what it says."""
    directory.mkdir()
    name, program = source
    (directory / name).write_text(program)
    _, _, after = text.partition("\nNext, your own program, as it is:\n")
    typed = re.findall(r"^    \$ (.*?) +# ", after, re.M)
    assert "resurgo doctor" in after and "--fault" in after and "man resurgo-run" in after, text
    assert re.search(r"^Examples, .*: (.*)$", after, re.M)[1] == f"{prefix}/share/resurgo/examples", text
    env = harness.environment(**env)
    env["PATH"] = f"{prefix}/bin:{env['PATH']}"
    result = jobs.command(["sh", "-ec", "\n".join(typed)], env=env, cwd=directory).wait(timeout=120).ok()
    assert "protected" in result.text and len(re.findall(r"^an app's rank [0-3]$", result.text, re.M)) == 8, result.describe()


def test_the_demo_in_c(jobs, installed, tmp_path):
    result = demo(jobs, installed, "--steps", "4000").ok()
    assert "512 x 512, 4000 steps" in result.text and f"in C, built with {harness.MPICH}/bin/mpicc" in result.text
    killed(result.text)
    leads_on(jobs, installed, result.text, tmp_path / "own", ("app.c", APP))


def without_compiler(top, *programs):
    """Of the environment with MPICH and mpi4py all but the compiler, and only these programs."""
    venv = top / "venv"
    (venv / "bin").mkdir(parents=True)
    for name in ("lib", "pyvenv.cfg", "bin/python3", *programs):
        (venv / name).symlink_to(harness.MPICH / name)
    tools = top / "tools"
    tools.mkdir()
    for name in ("sh", "hostname"):
        (tools / name).symlink_to(shutil.which(name))
    return {"PATH": f"{venv}/bin:{tools}", "VIRTUAL_ENV": venv}


def test_the_demo_in_python(jobs, installed, tmp_path):
    env = without_compiler(tmp_path, "bin/mpiexec", "bin/hydra_pmi_proxy")
    result = demo(jobs, installed, "--steps", "1000", **env).ok()
    assert f"in Python, run by {env['VIRTUAL_ENV']}/bin/python3" in result.text
    killed(result.text)
    leads_on(jobs, installed, result.text, tmp_path / "own", ("app.py", APP_PYTHON), **env)


def test_a_demo_without_mpi(jobs, installed, tmp_path):
    result = demo(jobs, installed, PATH=tmp_path, VIRTUAL_ENV=None)
    why = "resurgo: demo: there is no mpicc on the search path; there is no python3; pip install mpich, in an active virtual environment, gives one\n"
    assert (result.code, result.text, result.errors) == (1, "", why)
    result = demo(jobs, installed, "--steps", "many")
    assert (result.code, result.errors) == (2, "resurgo: demo: --steps must be a number from 1000 to 10000000\n")


def test_a_demo_that_is_interrupted(jobs, installed, tmp_path):
    """Without mpiexec it begins with Resurgo."""
    env = harness.environment(**without_compiler(tmp_path))
    job = jobs.command([installed / "bin/resurgo", "demo", "--steps", "100000"], env=env)
    job.reach(lambda: b"runs under plain MPICH are left out" in job.out.read_bytes() and b"$ resurgo run" in job.out.read_bytes(), what="the first run")
    time.sleep(0.5)
    job.process.send_signal(signal.SIGINT)
    result = job.wait()
    assert (result.code, result.errors) == (1, "resurgo: demo: interrupted\n")


def test_installed_for_a_package(tmp_path):
    top = tmp_path / "a package"
    done = make("install", f"DESTDIR={top}", "PREFIX=/usr")
    assert done.returncode == 0 and (top / "usr/bin/resurgo").is_file(), done
    done = make("uninstall", f"DESTDIR={top}", "PREFIX=/usr")
    assert done.returncode == 0 and not [path for path in top.rglob("*") if path.is_file()], done


@pytest.mark.parametrize(
    "prefix, words", [("/proc/resurgo", "cannot install into /proc/resurgo: "), ("~/x", "the shell has left the ~ as it is")]
)
def test_a_prefix_that_cannot_be(prefix, words):
    done = make("install", f"PREFIX={prefix}")
    assert done.returncode != 0 and words in done.stderr and done.stdout == "", done


def small_files():
    """Like a full disk: a program that writes gets an error instead of being killed."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))


def test_a_full_disk_leaves_nothing_half_done(tmp_path):
    """A later version's file replaces the former one as a whole or not at all."""
    prefix = tmp_path / "prefix"
    (prefix / "lib/resurgo").mkdir(parents=True)
    former = prefix / "lib/resurgo/libresurgo-fi.so"
    former.write_text("former")
    done = make("install", f"PREFIX={prefix}", preexec_fn=small_files)
    assert done.returncode != 0 and "cannot install into" in done.stderr, done
    assert [path for path in prefix.rglob("*") if path.is_file()] == [former] and former.read_text() == "former"


class Machine:
    """A machine with only some programs, an empty home, and the Python environments of this one."""

    def __init__(self, top):
        self.bin, self.home = top / "bin", top / "home"
        self.bin.mkdir()
        self.home.mkdir()
        for name in NEEDED:
            (self.bin / name).symlink_to(shutil.which(name))

    def cargo(self, version, place=None):
        place = place or self.bin
        place.mkdir(parents=True, exist_ok=True)
        (place / "cargo").write_text(f"#!/bin/sh\n[ \"$*\" = --version ] && echo 'cargo {version} (0123456 2026-01-01)'\n")
        (place / "cargo").chmod(0o755)

    def run(self, *command):
        env = {"PATH": str(self.bin), "HOME": str(self.home), "RESURGO_DEPS": str(harness.DEPS)}
        done = subprocess.run(command, cwd=harness.ROOT, env=env, capture_output=True, text=True, timeout=harness.patience(30))
        return done.returncode, done.stdout, [line for line in done.stderr.splitlines() if not line.startswith("make")]


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


@pytest.mark.parametrize("target", ["install", "demo", "build"])
def test_rust_that_is_missing_or_old_is_one_sentence(machine, target):
    needs = "Resurgo is built with Rust 1.95 or later; this brings it: "
    rustup = "curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh"
    run = lambda: machine.run("make", "-s", target, f"PREFIX={machine.home}/prefix")
    code, out, errors = run()
    assert code != 0 and out == "" and errors == [f"setup: Rust is missing: {needs}{rustup}"], errors
    machine.cargo("1.63.0")
    code, out, errors = run()
    assert errors == [f"setup: cargo 1.63.0 (0123456 2026-01-01) is too old: {needs}{rustup}"], errors
    # rustup has brought a new one, which comes after it in the path.
    machine.cargo("2.0.0", machine.home / ".cargo/bin")
    code, out, errors = run()
    assert code != 0 and errors[0].endswith("this brings it: export PATH=$HOME/.cargo/bin:$PATH"), errors
    assert not (machine.home / "prefix").exists()


def test_the_demo_needs_no_fortran(machine):
    """It needs nothing of Debian's either; the tests do."""
    machine.cargo("1.95.1")
    assert machine.run("scripts/setup.sh", "demo") == (0, f"setup: ready: {harness.DEPS}\n", [])
    assert machine.run("scripts/setup.sh", "toolchain") == (0, "", [])
    code, _, errors = machine.run("scripts/setup.sh")
    assert code != 0 and "gfortran" in errors[0] and "gcc" not in errors[0], errors
    code, out, errors = machine.run("make", "-s", "-n", "-C", "tests/programs", f"BUILD={machine.home}", f"{machine.home}/heat")
    assert code == 0 and "Fortran" not in out and errors == [], (out, errors)
    # Without its headers, no program can be built for it.
    (machine.bin / "cc").unlink()
    code, _, errors = machine.run("scripts/setup.sh", "demo")
    assert code != 0 and errors[0].endswith("(Debian's names): gcc libc6-dev"), errors
