# SPDX-License-Identifier: Apache-2.0
"""The blocks of command lines in the documentation, what a reader types of them, and where a test types it."""

import itertools
import os
import re
import shlex
import subprocess
from dataclasses import dataclass, field

import harness
from harness import RESURGO

ROOT = harness.ROOT
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("[!i]*/*.md")),  # not docs/internals, which is for developers
    ROOT / "examples/README.md",
    ROOT / "packaging/README.md",
]
BLOCK = re.compile(r"^([ ]*)```(\w*)\n(.*?)^[ ]*```", re.M | re.S)
SHELLS = ("", "sh", "bash", "console")
# A command ends where the shell begins another one, or sends its output elsewhere.
ENDS = re.compile(r"[();<>|&]+$")
JOB = "4711"  # as the documentation calls a job


@dataclass
class Shown:
    """Nothing to type: what a program prints, or a drawing."""


@dataclass
class Elsewhere:
    """Another test types it: `file::name` below `tests`."""

    test: str
    only: str = ""


@dataclass
class Parsed:
    """Nobody types it in a test, for this reason. Its command lines of resurgo are those that resurgo understands."""

    reason: str
    only: str = ""
    before: str = ""  # the block has only the rest of a command line


@dataclass
class Runs:
    """It is typed as it stands, with `small` in place of what is too large for a test."""

    small: dict = field(default_factory=dict)
    only: str = ""  # the lines that match
    job: bool = False  # there is a job that takes its time, as job 4711
    says: str = ""  # what it prints, as a regular expression
    codes: tuple = (0,)
    arguments: str = ""
    keeps: str = ""  # it is a file of this name
    takes: tuple = ()  # files that others blocks of the page have made
    variables: dict = field(default_factory=dict)


def blocks(page):
    """Each block that may have commands for a shell, without what it is indented by."""
    for indent, language, text in BLOCK.findall(page.read_text()):
        if language in SHELLS:
            yield re.sub(f"^{indent}", "", text, flags=re.M)


def typed(block):
    """The lines that a reader types, each whole: those with a prompt, if there are such."""
    lines = re.sub(r"\\\n\s*", "", block).splitlines()
    prompted = [found[1] for line in lines if (found := re.match(r"\s*(?:n\d)?\$ (.*)", line))]
    return prompted or [line for line in lines if line.strip()]


def command(line):
    """The words of a line that calls resurgo, or None."""
    line = line.strip().removeprefix("exec ")
    line = re.sub(r"^(?:[A-Z_]+=\S* )+", "", line)
    if not re.match(r"resurgo [a-z]", line):
        return None
    words = shlex.shlex(line, posix=True, punctuation_chars="();<>|&")
    words.whitespace_split = True
    return list(itertools.takewhile(lambda word: not ENDS.match(word), words))


# How a command ends that is understood, where nothing of what it names is there.
UNDERSTOOD = [
    (127, r"resurgo: .*: no such (file|program on the search path)$"),
    (2, rf"resurgo: there is no (suspended )?job {JOB};"),
    (2, r"resurgo: no job is suspended in "),
    (1, r"resurgo: (checkpoint-server: )?\S+: (there is no such place|access is refused)"),
    (2, r"resurgo: \S+: (there is no such place|access is refused)"),
    (2, r"resurgo: standard input: a token has 16 characters or more;"),
    (2, r"resurgo: trace: \S+: No such file or directory"),
    (0, r""),
]


def misunderstood(words, place):
    """What resurgo says of a command line if it does not understand it. There is none of the programs and jobs that it names."""
    env = harness.environment(HOME=place, PATH="/nowhere", XDG_CONFIG_HOME=None)
    done = subprocess.run(
        [RESURGO, *words[1:]], cwd=place, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=harness.patience(30)
    )
    said = (done.stderr or done.stdout).strip().splitlines()
    if any(done.returncode == code and re.search(how, said[0] if said else "") for code, how in UNDERSTOOD):
        return None
    return f"{shlex.join(words)}: {done.returncode}: {' '.join(said[:2])}"


# A program of one's own. Its arguments are input files and an output file, which ends with .dat.
APP = """
#include <stdlib.h>
#include <string.h>
#include "check.h"
#define STEPS 300
int main(int argc, char **argv)
{
    int rank, size;
    long sum = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (long step = 0; step < STEPS; step++) {
        long mine = (rank + 1) * step + sum % 7, all, left;
        MPI_Sendrecv(&mine, 1, MPI_LONG, (rank + 1) % size, 0, &left, 1, MPI_LONG, (rank + size - 1) % size, 0, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        mine += left;
        MPI_Allreduce(&mine, &all, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
        sum = (sum + all) % 1000003;
        linger(step, STEPS);
    }
    if (argc > 1 && strstr(argv[1], ".dat") && strcmp(argv[1], "input.dat") != 0) {
        MPI_File file;
        MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_WRONLY, MPI_INFO_NULL, &file);
        MPI_File_write_at_all(file, rank * sizeof sum, &sum, 1, MPI_LONG, MPI_STATUS_IGNORE);
        MPI_File_close(&file);
    }
    printf("rank %d has %ld\\n", rank, sum);
    return MPI_Finalize();
}
"""
APP_FORTRAN = """
program app
    use mpi_f08
    use mpi_ext
    call MPI_Init()
    call MPI_Finalize()
end program
"""
APP_PYTHON = """
from mpi4py import MPI
print("the sum is", MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.rank))
"""

# Commands of other places: each writes down how it was called.
NOTED = '#!/bin/sh\necho "$(basename "$0") $*" >> "$CALLS"\n'
STAND_INS = {
    # Its hosts have a name of their own, and are this machine.
    "ssh": f'#!/bin/sh\n{harness.APART}shift 6; exec sh -c "$*"\n',
    "kubectl": NOTED,
    "mail": NOTED + "cat >> \"$CALLS\"\n",
    "scontrol": NOTED,
    "journalctl": NOTED,
    "sbatch": NOTED + 'for script; do :; done\nexec sh -c "$script"\n',
    "curl": "#!/bin/sh\nexit 22\n",  # there is no notice
}


def furnish(place, built):
    """A home and a working directory in which the documentation's commands can be typed. `built` has the programs."""
    home, bin, work = place / "home", place / "bin", place / "work"
    for directory in (home / ".local/share", bin, work, *(place / name for name in ("scratch/me", "project/app", "shared/images"))):
        directory.mkdir(parents=True)
    (home / "mpi").symlink_to(harness.MPICH)
    prefix = RESURGO.parents[1]
    (home / "resurgo").symlink_to(prefix)
    (home / ".local/share/resurgo").symlink_to(prefix / "share/resurgo")
    for name, text in STAND_INS.items():
        (bin / name).write_text(text)
        (bin / name).chmod(0o755)
    for name in ("app", "program", "hello", "writer", "a", "b"):
        (work / name).symlink_to(built / "app")
    (work / "heat").symlink_to(harness.PROGRAMS / "heat")
    (work / "build").symlink_to(ROOT / "build")
    (work / "jobs").symlink_to(ROOT / "examples/jobs")
    (work / "spot.sh").symlink_to(ROOT / "examples/jobs/spot.sh")
    for name, text in {"app.c": APP, "app.f90": APP_FORTRAN, "simulation.py": APP_PYTHON, "input.dat": "", "short.in": ""}.items():
        (work / name).write_text(text)
    (work / "hosts").write_text("n1\nn2\nn3\n")
    (work / "volunteers").write_text("v1\nv2\n")
    (work / "token").write_text("0123456789abcdef\n")
    return work


def environment(place, **more):
    """As a reader has it there."""
    prefix = RESURGO.parents[1]
    path = [place / "bin", prefix / "bin", prefix / "lib/resurgo", harness.MPICH / "bin", "/usr/bin", "/bin"]
    own = {"PATH": ":".join(map(str, path)), "HOME": place / "home", "USER": "me", "SCRATCH": place / "scratch/me"}
    # Nothing answers there in this machine's tests, and mpicc of the stand-ins needs what the tests' programs include.
    return harness.environment(**own, CALLS=place / "calls", AWAITED=None, CPATH=harness.SOURCES, **more)


def at(place, text):
    """Directories that a reader has are those of `place`."""
    return re.sub(r"(?<![\w.~-])/(scratch|project|shared)\b", rf"{place}/\1", text).replace("/usr/local/", f"{place / 'home/resurgo'}/")


def slurm():
    """What Slurm tells a script on one node."""
    here = os.uname().nodename
    return {
        "SLURM_JOB_NAME": "app", "SLURM_JOB_ID": 77, "SLURM_JOB_END_TIME": 1 << 33, "SLURM_JOB_NODELIST": here,
        "SLURM_NODELIST": here, "SLURM_TASKS_PER_NODE": 2,
    }  # fmt: skip
