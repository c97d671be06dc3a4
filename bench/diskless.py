# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in memory of programs that deal with failures: beside a copy of the same data, and MPI_Sendrecv of it to
another rank, in the same job."""

from statistics import median

from contenders import RESURGO, Contender, Rounds, run
from report import Section, number

FT = Contender("--ft", (RESURGO, "run", "-q", "--ft"))
PARTNER, PARITY = 0, 1
SCHEMES = {"partner, 1": (PARTNER, 1), "partner, 2": (PARTNER, 2), "parity, 1": (PARITY, 1), "parity, 2": (PARITY, 2)}


def measure(quick):
    section = Section("diskless", "Checkpoints in memory", quick)
    rounds = Rounds(quick)
    rows = []
    for ranks, mib in [(4, 1), (4, 8)] if quick else [(4, 1), (4, 16), (4, 128), (8, 64)]:
        for name, (scheme, losses) in SCHEMES.items():
            answers = []

            def taken(contender, ranks=ranks, mib=mib, scheme=scheme, losses=losses, answers=answers):
                output, _, others = run(contender, ranks, "diskless", 3 if quick else 9, mib, scheme, losses)
                answers += [tuple(map(float, line.split())) for line in output.splitlines()]
                return 0.0, others

            rounds.go([FT], 1 if quick else 3, taken)
            plain, own = (median(answer[at] for answer in answers) for at in (0, 1))
            if name == "partner, 1":
                what = f"{ranks} ranks, {mib} MiB: a checkpoint against copy and MPI_Sendrecv"
                section.figure(what, "≤ 1.20 ×", f"{own / plain:.2f} ×", own <= 1.2 * plain)
            rows.append([str(ranks), str(mib), name, number(plain * 1e3), number(own * 1e3), f"{own / plain:.2f} ×"])
    section.table(["ranks", "MiB of a rank", "scheme", "copy and MPI_Sendrecv, ms", "checkpoint, ms", "ratio"], rows)
    section.note = rounds.note()
    return section
