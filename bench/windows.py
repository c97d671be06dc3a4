# SPDX-License-Identifier: Apache-2.0
"""Windows of messages from one buffer, and ping-pong, as usual benchmarks measure them: each run is a job of its own."""

from statistics import median

from contenders import AUTO, DEFAULT, NONE, PESSIMISTIC, Rounds, run
from pingpong import size_name
from report import Section, spread

SIZES = {8: 500, 4096: 200, 64 << 10: 20, 1 << 20: 2}  # bytes → windows in each part
PARTS = 5
CONTENDERS = (DEFAULT, NONE, PESSIMISTIC, AUTO)
LATENCY = {8: 0.95, 4096: 1.0}
BANDWIDTH = {"none": 1.5, "auto": 0.9}


def both(contender):
    """Bytes → (megabytes a second, µs): medians of the parts of one job for each size."""
    found, most = {}, 0
    for size, rounds in SIZES.items():
        output, _, others = run(contender, 2, "window", size, rounds, PARTS)
        parts = [tuple(map(float, line.split())) for line in output.splitlines()]
        found[size] = tuple(median(values) for values in zip(*parts))
        most = max(most, others)
    return found, most


def slow(values):
    """How many runs take at least twice as long as the quickest: with one core for both ranks, say."""
    return sum(value > 2 * min(values) for value in values)


def measure(quick):
    section = Section("windows", "Windows and ping-pong, a job for each run", quick)
    rounds = Rounds(quick)
    runs = rounds.go(CONTENDERS, 4 if quick else 12, both)
    wide = {name: {size: [one[size][0] for one in values] for size in SIZES} for name, values in runs.items()}
    late = {name: {size: [one[size][1] for one in values] for size in SIZES} for name, values in runs.items()}
    base = CONTENDERS[0].name
    for name in ("none", "auto"):
        for size, bound in LATENCY.items():
            ratio = median(late[name][size]) / median(late[base][size])
            section.figure(f"{name}: half round trip of {size_name(size)}", f"≤ {bound:.2f} ×", f"{ratio:.2f} ×", ratio <= bound)
        for size in (64 << 10, 1 << 20):
            ratio, bound = median(wide[name][size]) / median(wide[base][size]), BANDWIDTH[name]
            section.figure(f"{name}: windows of {size_name(size)}", f"≥ {bound:.1f} ×", f"{ratio:.2f} ×", ratio >= bound)
        count = slow(late[name][8])
        section.figure(f"{name}: runs twice as slow as the quickest, 8 B", "0", str(count), count == 0)
    names = [contender.name for contender in CONTENDERS]
    for title, table in (("half round trip, µs", late), ("windows, MB/s", wide)):
        section.table([title, *names], [[size_name(size), *(spread(table[name][size]) for name in names)] for size in SIZES])
    section.note = rounds.note()
    return section
