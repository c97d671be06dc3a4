# SPDX-License-Identifier: Apache-2.0
"""More ranks than cores: does a waiting rank leave its core to ranks with work?"""

from statistics import median

import machine
from contenders import DEFAULT, NONE, PESSIMISTIC, TCP, Rounds, run
from report import Section, number, spread

# The program, and the longest batch: it bounds the logged volume.
OPERATIONS = {
    "allreduce:8": ("Allreduce 8 B", 20000),
    "allreduce:65536": ("Allreduce 64 KiB", 250),
    "alltoall:1024": ("Alltoall 1 KiB", 2000),
    "pingpong:8": ("ping-pong 8 B, the others in a barrier", 10000),
}
PREFAULTED = PESSIMISTIC.with_options("pessimistic", "--log-memory", "1G", "--log-prefault", "256M")
CONTENDERS = (DEFAULT, TCP, NONE, PREFAULTED)


def measure(quick):
    section = Section("oversubscribed", f"More ranks than cores ({machine.CORES} cores)", quick)
    rounds = Rounds(quick)
    rows = []
    for ranks in (4, 8):

        def operations(contender, ranks=ranks):
            words = [f"{name}:{most}" for name, (_, most) in OPERATIONS.items()]
            output, _, others = run(contender, ranks, "crowd", 0.1 if quick else 0.3, *words)
            lines = [line.split() for line in output.splitlines()]
            return {line[0].rpartition(":")[0]: float(line[1]) for line in lines}, others

        runs = rounds.go(CONTENDERS, 2 if quick else 7, operations)
        for operation, (what, _) in OPERATIONS.items():
            times = {name: [run[operation] for run in values] for name, values in runs.items()}
            middle = {name: median(values) for name, values in times.items()}
            for base, bound in ((DEFAULT, 10), (TCP, 2)):
                gains = {subject.name: middle[base.name] / middle[subject.name] for subject in (NONE, PREFAULTED)}
                measured = ", ".join(f"{name} {number(gain)} ×" for name, gain in gains.items())
                name = f"{ranks} ranks, {what}: faster than {base.name}"
                section.figure(name, f"≥ {bound} ×", measured, min(gains.values()) >= bound)
            rows.append([str(ranks), what, *(spread(times[contender.name]) for contender in CONTENDERS)])
    section.table(["ranks", "µs", *(contender.name for contender in CONTENDERS)], rows)
    section.note = rounds.note()
    return section
