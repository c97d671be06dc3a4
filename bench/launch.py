# SPDX-License-Identifier: Apache-2.0
"""Launch and end of a job that does next to nothing."""

from contenders import DEFAULT, NONE, PESSIMISTIC, TCP, Rounds, run
from report import Section, spread

CONTENDERS = (DEFAULT, TCP, NONE, PESSIMISTIC)


def measure(quick):
    section = Section("launch", "Launch and end of a 4-rank hello", quick)
    rounds = Rounds(quick)

    def milliseconds(contender):
        _, seconds, others = run(contender, 4, "hello")
        return seconds * 1e3, others

    times = rounds.go(CONTENDERS, 7 if quick else 25, milliseconds)
    for subject in (NONE, PESSIMISTIC):
        section.at_most(f"{subject.name} against mpiexec", 1.2, times[subject.name], times[DEFAULT.name])
    section.table(
        ["", *(contender.name for contender in CONTENDERS)],
        [["ms", *(spread(times[contender.name]) for contender in CONTENDERS)]],
    )
    section.note = rounds.note()
    return section
