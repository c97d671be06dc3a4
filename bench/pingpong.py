# SPDX-License-Identifier: Apache-2.0
"""Latency and bandwidth between two ranks."""

from statistics import median

from contenders import AUTO, DEFAULT, NONE, PESSIMISTIC, TCP, Rounds, run
from report import Section, spread

LATENCY = {1: 2000, 8: 2000, 64: 2000, 256: 2000, 1024: 2000, 2048: 2000, 4096: 2000}
BANDWIDTH = {64 << 10: 200, 256 << 10: 50, 1 << 20: 15, 4 << 20: 4}
BATCHES = 10
# All messages of a run fit into memory that the ranks have touched before the first.
ROOM = ("--log-memory", "2G", "--log-prefault", "1G")
PREFAULTED = PESSIMISTIC.with_options("pessimistic, log prefaulted", *ROOM)
AUTO_PREFAULTED = AUTO.with_options("auto, log prefaulted", *ROOM)
CONTENDERS = (DEFAULT, TCP, NONE, PREFAULTED, AUTO_PREFAULTED, PESSIMISTIC)


def size_name(size):
    for unit, bytes_ in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= bytes_:
            return f"{size // bytes_} {unit}"
    return f"{size} B"


def half_round_trips(contender, sizes=LATENCY | BANDWIDTH, batches=BATCHES):
    """Bytes → microseconds, the median of the batches. `sizes`: bytes → round trips of a batch."""
    sizes = [f"{size}:{iterations}" for size, iterations in sizes.items()]
    output, _, others = run(contender, 2, "pingpong", batches, *sizes)
    lines = [line.split() for line in output.splitlines()]
    return {int(line[0]): median(map(float, line[1:])) for line in lines}, others


def measure(quick):
    section = Section("pingpong", "Ping-pong, 2 ranks", quick)
    rounds = Rounds(quick)
    runs = rounds.go(CONTENDERS, 3 if quick else 9, half_round_trips)
    sizes = LATENCY | BANDWIDTH
    times = {name: {size: [one[size] for one in values] for size in sizes} for name, values in runs.items()}

    def ratio(name, size):
        return median(times[name][size]) / median(times["MPICH"][size])

    for contender, bound in ((NONE, 1.10), (PREFAULTED, 1.15), (AUTO_PREFAULTED, 1.15)):
        worst = max(LATENCY, key=lambda size: ratio(contender.name, size))
        value = ratio(contender.name, worst)
        what = f"{contender.name}: latency up to 4 KiB (worst: {size_name(worst)})"
        section.figure(what, f"≤ {bound:.2f} ×", f"{value:.2f} ×", value <= bound)
    for contender, bound in ((NONE, 1.0), (PREFAULTED, 0.9), (AUTO_PREFAULTED, 0.9), (PESSIMISTIC, 0.9)):
        worst = max(BANDWIDTH, key=lambda size: ratio(contender.name, size))
        value = 1 / ratio(contender.name, worst)
        fresh = ", log in fresh memory" if contender is PESSIMISTIC else ""
        what = f"{contender.name}{fresh}: bandwidth from 64 KiB (worst: {size_name(worst)})"
        section.figure(what, f"≥ {bound:.2f} ×", f"{value:.2f} ×", value >= bound)

    names = [contender.name for contender in CONTENDERS]
    names[-1] = "pessimistic, log in fresh memory"
    head = ["half round trip, µs", *names, *(f"{name} / MPICH" for name in names[2:])]
    rows = []
    for size in LATENCY:
        row = [spread(times[contender.name][size]) for contender in CONTENDERS]
        row += [f"{ratio(contender.name, size):.2f}" for contender in CONTENDERS[2:]]
        rows.append([size_name(size), *row])
    section.table(head, rows)
    rows = []
    for size in BANDWIDTH:
        row = [spread([size / 1e3 / value for value in times[contender.name][size]]) for contender in CONTENDERS]
        row += [f"{1 / ratio(contender.name, size):.2f}" for contender in CONTENDERS[2:]]
        rows.append([size_name(size), *row])
    section.table(["bandwidth, GB/s", *head[1:]], rows)
    section.text(
        "The log of `pessimistic` grows with every message. Memory that a rank has touched before (`--log-prefault`, "
        "here 1 GiB) costs nothing more; fresh memory costs the kernel's work for new pages, which the last column has."
    )
    section.note = rounds.note()
    return section
