# SPDX-License-Identifier: Apache-2.0
"""Data with gaps, and one-sided communication, between two ranks."""

from statistics import median

from contenders import AUTO, NONE, PESSIMISTIC, TCP, Rounds, run
from report import Section, spread

BATCHES = 5
# Name in the table → pattern of the program, without the number of iterations, and that number.
PATTERNS = {
    "vector of 1 MiB, blocks of 8 B": ("vector:8:131072", 20),
    "vector of 16 MiB, blocks of 8 B": ("vector:8:2097152", 3),
    "vector of 1 MiB, blocks of 1 KiB": ("vector:1024:1024", 20),
    "vector of 16 MiB, blocks of 1 KiB": ("vector:1024:16384", 3),
    "vector of 64 KiB, 16 blocks": ("vector:4096:16", 200),
    "vector of 1 MiB, 16 blocks": ("vector:65536:16", 20),
    "vector of 1 MiB, 4 blocks": ("vector:262144:4", 20),
    "65536 structs": ("struct:65536", 20),
    "subarray of 4 MiB": ("subarray:82", 5),
    "1000 puts of 8 B, fences": ("fence:8", 1000),
    "1000 puts of 8 B, lock and flush": ("flush:8", 1000),
    "1000 puts of 4 KiB, fences": ("fence:4096", 1000),
    "1000 puts of 4 KiB, lock and flush": ("flush:4096", 1000),
    "200 puts of 64 KiB, lock and flush": ("flush:65536", 200),
}
# The log of `pessimistic` grows with each message; here it lies in memory that the ranks have touched before.
ROOM = ("--log-memory", "3G", "--log-prefault", "1G")
CONTENDERS = (TCP, NONE, AUTO, PESSIMISTIC.with_options("pessimistic, log prefaulted", *ROOM))


def times(contender, batches=BATCHES):
    """Name → microseconds, the median of the batches."""
    lines = [f"{pattern}:{iterations}" for pattern, iterations in PATTERNS.values()]
    output, _, others = run(contender, 2, "datatypes", batches, *lines)
    printed = {line.split()[0]: median(map(float, line.split()[1:])) for line in output.splitlines()}
    return {name: printed[f"{pattern}:{iterations}"] for name, (pattern, iterations) in PATTERNS.items()}, others


def measure(quick):
    section = Section("datatypes", "Derived datatypes and puts, 2 ranks", quick)
    rounds = Rounds(quick)
    runs = rounds.go(CONTENDERS, 3 if quick else 7, times)
    taken = {name: {pattern: [one[pattern] for one in values] for pattern in PATTERNS} for name, values in runs.items()}

    def ratio(name, pattern):
        return median(taken[name][pattern]) / median(taken[TCP.name][pattern])

    for kind in ("vector", "puts"):
        some = [pattern for pattern in PATTERNS if kind in pattern]
        worst = max(some, key=lambda pattern: ratio(NONE.name, pattern))
        value = ratio(NONE.name, worst)
        section.figure(f"{NONE.name}: {kind} (worst: {worst})", "≤ 1.00 ×", f"{value:.2f} ×", value <= 1.0)
    names = [contender.name for contender in CONTENDERS]
    rows = []
    for pattern in PATTERNS:
        row = [spread(taken[name][pattern]) for name in names]
        rows.append([pattern, *row, *(f"{ratio(name, pattern):.2f}" for name in names[1:])])
    section.table(["µs for one message or put", *names, *(f"{name} / {TCP.name}" for name in names[1:])], rows)
    section.note = rounds.note()
    return section
