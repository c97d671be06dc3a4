# SPDX-License-Identifier: Apache-2.0
"""Intel's benchmarks."""

import re

import pytest

import harness

FIXED = ["-iter", "10", "-iter_policy", "off"]
SHORT = {
    "IMB-MPI1": ["-msglog", "0:17"],
    "IMB-NBC": ["-msglog", "3:14"],
    "IMB-RMA": ["-msglog", "3:16"],
    "IMB-P2P": ["-msglog", "3:10", "PingPong", "Sendrecv_Replace", "Unirandom", "Corandom"],
}


def command(name, size, *more):
    program = harness.IMPI / "bin" / name
    if not program.exists():
        pytest.skip(f"{name} is not there")
    options = ["-npmin", size, *FIXED] if name != "IMB-P2P" else FIXED
    return [program, *options, *(more or SHORT[name])]


def shape(text):
    """The tables without their numbers: the benchmarks, the sizes, and the number of lines."""
    lines = []
    for line in text.splitlines():
        if re.match(r"\s+\d", line):
            lines.append(line.split()[0] + " " + str(len(line.split())))
        elif line.startswith(("# Benchmarking", "# All processes")):
            lines.append(line.strip())
    return lines
