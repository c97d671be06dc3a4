# SPDX-License-Identifier: Apache-2.0
"""Whole programs: conjugate gradient and heat equation, from launch to end."""

from statistics import median

from contenders import AUTO, DEFAULT, NONE, PESSIMISTIC, TCP, Rounds, run
from report import Section, spread

PROGRAMS = {"cg": ("cg", 1024, 700), "heat": ("heat", 1024, 1024, 1800)}
QUICK = {"cg": ("cg", 512, 500), "heat": ("heat", 512, 512, 2000)}
CONTENDERS = (DEFAULT, TCP, NONE, PESSIMISTIC, AUTO)
SLOW = 2.0  # MPICH's slower mode is timed only once if it takes so many times as long as the other


def measure(quick):
    section = Section("programs", "Whole programs, wall time", quick)
    rounds = Rounds(quick)
    rows = []
    for name, line in (QUICK if quick else PROGRAMS).items():
        for ranks in (2, 4):
            times = {contender.name: [] for contender in CONTENDERS}
            answers = set()

            def seconds(contender, ranks=ranks, line=line, times=times, answers=answers):
                rivals = {DEFAULT: TCP, TCP: DEFAULT}
                if contender in rivals and times[contender.name] and times[rivals[contender].name]:
                    if min(times[contender.name]) > SLOW * max(times[rivals[contender].name]):
                        return None
                output, taken, others = run(contender, ranks, *line)
                answers.add(output.splitlines()[-1].split("=")[0])
                times[contender.name].append(taken)
                return taken, others

            kept = rounds.go(CONTENDERS, 2 if quick else 5, seconds)
            faster = min((DEFAULT, TCP), key=lambda contender: median(kept[contender.name]))
            base = median(kept[faster.name])
            for subject, bound in ((PESSIMISTIC, 1.0), (AUTO, 1.03)):
                ratio = median(kept[subject.name]) / base
                what = f"{name}, {ranks} ranks: {subject.name} against the faster mode ({faster.name})"
                section.figure(what, f"≤ {bound:.2f} ×", f"{ratio:.3f} ×", ratio <= bound)
            row = [spread(kept[contender.name]) for contender in CONTENDERS]
            rows.append([" ".join(map(str, line)), str(ranks), *row])
    section.table(["program", "ranks", *(f"{contender.name}, s" for contender in CONTENDERS)], rows)
    section.text(f"A mode of MPICH that takes more than {SLOW:g} × the other's time is run once.")
    section.note = rounds.note()
    return section
