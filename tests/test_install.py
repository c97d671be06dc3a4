# SPDX-License-Identifier: Apache-2.0
"""`make install` and `make uninstall`; what the set-up asks for, on machines that lack things. Nothing is built here."""

import os
import resource
import shutil
import signal
import stat
import subprocess

import pytest

import harness

NEEDED = "sh env cat cmp cp chmod dirname grep id ls make mkdir mktemp mv rm rmdir sed sort stat python3 cc as ld".split()


def make(*words, **more):
    """What has been built stays as it is."""
    command = ["make", "-s", "-o", "build", *map(str, words)]
    kept = {name: value for name, value in os.environ.items() if name not in ("PREFIX", "DESTDIR", "MAKEFLAGS")}
    return subprocess.run(command, cwd=harness.ROOT, env=kept, capture_output=True, text=True, timeout=30, **more)


def modes(top):
    """Of every file and directory."""
    return {path: stat.S_IMODE(path.lstat().st_mode) for path in [top, *top.rglob("*")]}


def test_installed_with_a_narrow_umask_and_a_space(jobs, program, tmp_path):
    """Everybody can read it, it works, it is the same when installed again, and then it is gone."""
    prefix = tmp_path / "it's a pre fix"
    done = make("install", f"PREFIX={prefix}", umask=0o077)
    assert (done.returncode, done.stderr) == (0, "") and f"{prefix}/bin/resurgo" in done.stdout, done
    found = modes(prefix)
    programs = ["bin/resurgo", "lib/resurgo/libresurgo-fi.so", "lib/resurgo/resurgo-sim"]
    for path, mode in found.items():
        wanted = 0o755 if path.is_dir() or str(path.relative_to(prefix)) in programs else 0o644
        assert mode == wanted, (path, oct(mode))
    assert (prefix / "share/resurgo/bench/paper.py").is_file()
    assert jobs.command([prefix / "bin/resurgo", "run", "-n", "2", *program("hello")]).wait().ok().errors == ""
    assert "gao-3" in jobs.command([prefix / "bin/resurgo", "bench"]).wait().ok().text

    # Again: only what is not as it should be is touched.
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
    assert left == {"LICENSE of another", "bin", "lib", "lib/resurgo", "lib/resurgo/mine", "share", "share/doc"}
    done = make("uninstall", f"PREFIX={prefix}")
    assert done.returncode != 0 and "nothing is installed in" in done.stderr, done


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
    """As a full disk, for what writes without asking; it is told so instead of being killed."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))


def test_a_full_disk_leaves_nothing_half_done(tmp_path):
    """A file of a later version replaces the former one as a whole or not at all."""
    prefix = tmp_path / "prefix"
    (prefix / "lib/resurgo").mkdir(parents=True)
    former = prefix / "lib/resurgo/libresurgo-fi.so"
    former.write_text("former")
    done = make("install", f"PREFIX={prefix}", preexec_fn=small_files)
    assert done.returncode != 0 and "cannot install into" in done.stderr, done
    assert [path for path in prefix.rglob("*") if path.is_file()] == [former] and former.read_text() == "former"


class Machine:
    """One with only some programs, a home that is empty, and the Python environments that are here."""

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
        done = subprocess.run(command, cwd=harness.ROOT, env=env, capture_output=True, text=True, timeout=30)
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
    # rustup has brought a new one, which comes after it.
    machine.cargo("2.0.0", machine.home / ".cargo/bin")
    code, out, errors = run()
    assert code != 0 and errors[0].endswith("this brings it: export PATH=$HOME/.cargo/bin:$PATH"), errors
    assert not (machine.home / "prefix").exists()


def test_the_demo_needs_no_fortran(machine):
    """Nor anything of Debian's; the tests do."""
    machine.cargo("1.95.1")
    assert machine.run("scripts/setup.sh", "demo") == (0, f"setup: ready: {harness.DEPS}\n", [])
    assert machine.run("scripts/setup.sh", "toolchain") == (0, "", [])
    code, _, errors = machine.run("scripts/setup.sh")
    assert code != 0 and "gfortran" in errors[0] and "gcc" not in errors[0], errors
    code, out, errors = machine.run("make", "-s", "-n", "-C", "tests/programs", f"BUILD={machine.home}", f"{machine.home}/heat")
    assert code == 0 and "Fortran" not in out and errors == [], (out, errors)
    # Without headers it cannot be built.
    (machine.bin / "cc").unlink()
    code, _, errors = machine.run("scripts/setup.sh", "demo")
    assert code != 0 and errors[0].endswith("(Debian's names): gcc libc6-dev"), errors
