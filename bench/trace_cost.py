# SPDX-License-Identifier: Apache-2.0
"""What a trace costs (`--trace`): the same jobs with and without, in turn."""

from statistics import median

from contenders import AUTO, Job, Rounds
from pingpong import PREFAULTED, half_round_trips, size_name
from report import Section, spread

SIZES = {8: 20000, 1024: 20000, 4096: 20000, 64 << 10: 200}
KERNELS = {"cg": ("cg", 1024, 700), "heat": ("heat", 1024, 1024, 1800)}
QUICK = {"cg": ("cg", 512, 500), "heat": ("heat", 512, 512, 2000)}
TRACE = ("--trace", "trace.pftrace")


def pair(contender):
    return contender, contender.with_options(f"{contender.name}, traced", *TRACE)


def until_finished(contender, line):
    """Seconds until the last rank has finished: the file is written afterwards."""
    with Job(contender, 2, *line) as job:
        job.wait()
        return max(event["time"] for event in job.of("finished")), job.others


def ratios(values, names):
    """Of each pair of runs, one after the other, the ratio of the traced one."""
    return [traced / plain for plain, traced in zip(values[names[0]], values[names[1]])]


def measure(quick):
    section = Section("trace", "Cost of a trace", quick)
    rounds = Rounds(quick)
    contenders = pair(PREFAULTED)
    names = [contender.name for contender in contenders]
    runs = rounds.go(contenders, 4 if quick else 12, lambda contender: half_round_trips(contender, SIZES))
    rows = []
    for size in SIZES:
        times = {name: [one[size] for one in runs[name]] for name in names}
        cost = median(ratios(times, names)) - 1
        section.figure(f"ping-pong of {size_name(size)}", "≤ 3 %", f"{cost:.1%}", cost <= 0.03)
        more = 1e3 * (median(times[names[1]]) - median(times[names[0]]))
        rows.append([size_name(size), *(spread(times[name]) for name in names), f"{more:.0f}", f"{cost:.1%}"])
    section.table(["half round trip, µs", *names, "more, ns", "cost"], rows)
    contenders = pair(AUTO)
    names = [contender.name for contender in contenders]
    rows = []
    for name, line in (QUICK if quick else KERNELS).items():
        runs = rounds.go(contenders, 4 if quick else 10, lambda contender, line=line: until_finished(contender, line))
        cost = median(ratios(runs, names)) - 1
        section.figure(f"{name}, 2 ranks", "≤ 1 %", f"{cost:.1%}", cost <= 0.01)
        rows.append([" ".join(map(str, line)), *(spread(runs[name]) for name in names), f"{cost:.1%}"])
    section.table(["until all ranks have finished, s", *names, "cost"], rows)
    section.text("Each run without a trace is followed, or preceded, by one with; the cost is the median of their ratios.")
    section.note = rounds.note()
    return section
