# SPDX-License-Identifier: Apache-2.0
"""Gao 2007, figures 3 to 6: the effective delay of a coordinated checkpoint."""

import signal
import tempfile
import time
from functools import cache
from pathlib import Path
from statistics import mean, median

from contenders import Failed, Job, Rounds, offered
from figures.common import Figure, Result, nothing_to_compare, simulated
from report import number, spread
from svg import Panel

WAVES = ("blocking", "group")
GROUP_SIZE = "--group-size"
MIB = 180  # of a rank's memory (§6.1)
RUN = 4.0  # seconds that a model program should last, at least


def checkpointers(setting, result, ranks):
    """Contenders by the number of ranks that are checkpointed together."""
    variants = {v.protocol: v for v in setting.variants(result, lambda v: v.protocol in WAVES)}
    if not variants:
        nothing_to_compare("coordinated checkpoints")
    found = {ranks: variants["blocking"].contender()} if "blocking" in variants else {}
    if "group" in variants:
        if GROUP_SIZE in offered()[1]:
            sizes = [size for size in range(1, ranks) if ranks % size == 0]
            found |= {size: variants["group"].contender("--groups", "static", GROUP_SIZE, str(size)) for size in sizes}
        else:
            result.left_out.append(f"`--protocol group` by size: this binary has no `{GROUP_SIZE}`")
    return found


def timed(contender, ranks, program, moment, directory):
    """One run with an image of all ranks at `moment` seconds (None: none), written to files below `directory`:
    ((seconds, total and longest individual checkpoint time), share of others). Nothing in the place of the former when the run was over
    too soon."""
    with Job(contender, ranks, *program, options=("--checkpoint-dir", directory)) as job:
        if moment is not None:
            while time.monotonic() - job.started < moment and not job.over():
                time.sleep(0.001)
            job.process.send_signal(signal.SIGUSR1)
        job.wait()
        seconds = max(event["time"] for event in job.of("finished"))  # of the ranks: files may be written for longer
        waves = job.of("wave_complete")
        if moment is None:
            return (seconds, 0.0, 0.0), job.others
        if not waves:
            return None, job.others
        return (seconds, waves[0]["total_seconds"], waves[0]["stall_seconds"]), job.others


class Delays:
    """Runs with and without an image take turns; their difference is the effective delay (§5)."""

    def __init__(self, quick):
        self.rounds = Rounds(quick)
        self.repetitions = 2 if quick else 5

    def measure(self, contender, ranks, program, moments):
        """Seconds without an image; for each moment, and the moment, milliseconds of effective delay (several), of the total and of the
        individual checkpoint time."""
        with tempfile.TemporaryDirectory(prefix="resurgo-bench-", dir=Path.cwd()) as directory:
            runs = {moment: [] for moment in (None, *moments)}
            for _ in range(self.repetitions):
                for moment, values in runs.items():
                    values += self.rounds.go((contender,), 1, lambda c, m=moment: timed(c, ranks, program, m, directory))[contender.name]
        base = median(seconds for seconds, _, _ in runs.pop(None))
        measured = []
        for moment, values in runs.items():
            if values := [value for value in values if value]:
                delays = [1e3 * (seconds - base) for seconds, _, _ in values]
                measured.append((moment, (delays, *(1e3 * median(value[i] for value in values) for i in (1, 2)))))
        if not measured:
            raise Failed(f"no image of all ranks was complete: {' '.join(map(str, program))} on {ranks} ranks is over too soon")
        return base, measured


def lasting(contender, ranks, group, mib, period=0):
    """The model program with so many rounds that it lasts long enough."""
    def seconds(rounds):
        with Job(contender, ranks, "groups", group, rounds, mib) as job:
            return job.wait()

    rounds = 100
    while (took := seconds(rounds)) < RUN / 3:
        rounds *= 2
    each = took / rounds
    return ("groups", group, int(RUN / each), mib, *([max(1, int(period / each))] if period else []))


COLUMNS = ("where", "ranks", "communication_group", "checkpoint_group", "moment_s", "delay_ms", "total_ms", "individual_ms")
HEAD = ["ranks that communicate", "ranks checkpointed together", "asked for at, s", "effective delay, ms", "total, ms", "individual, ms"]


def add(result, table, ranks, group, size, moment, measured):
    delays, total, individual = measured
    result.rows += [("measured", ranks, group, size, f"{moment:.2f}", f"{delay:.2f}", f"{total:.2f}", f"{individual:.2f}") for delay in delays]
    table.append([group, size, number(moment), spread(delays), number(total), number(individual)])


def between(result, measured, base):
    """The paper's bounds of the effective delay (§5, 3c)."""
    delay, total, individual = (median(values) for values in zip(*((median(d), t, i) for d, t, i in measured)))
    result.finding("the effective delay lies between the individual and the total checkpoint time",
                   f"delay {number(delay)} ms of a run of {number(base)} s; individual {number(individual)} ms, total {number(total)} ms",
                   individual * 0.8 <= delay <= total * 1.2)


ALONE = "only checkpoint groups of all ranks were measured"


def halved(result, delays, ranks, where="measured"):
    """`delays`: milliseconds by communication and checkpoint group. Compares groups that match with one of all ranks."""
    finding = f"the delay is halved with the checkpoint group, down to the communication group ({where})"
    pairs = {group: (delays[group, group], delays[group, ranks]) for group, size in delays if group == size < ranks and (group, ranks) in delays}
    if not pairs:
        result.finding(finding, ALONE, None)
        return
    text = "; ".join(f"groups of {group}: {number(own)} ms, all together {number(whole)} ms" for group, (own, whole) in sorted(pairs.items()))
    result.finding(finding, text, all(own <= whole * 0.5 for own, whole in pairs.values()))


def on_their_cluster(result, program, *words):
    """Checkpoints on the paper's cluster, simulated: (ranks that communicate, ranks checkpointed together, seconds when it is asked for,
    milliseconds of effective delay)."""
    lines = simulated("delay", "--program", program, *words, names=("program",))
    found, table = [], []
    for line in lines:
        group, size = (int(line[key]) for key in ("communication_group", "checkpoint_group"))
        moment, delay, total, individual = (line[f"{key}_seconds"] for key in ("moment", "delay", "total", "individual"))
        result.rows.append(("simulated", int(line["ranks"]), group, size, f"{moment:.2f}", *(f"{1e3 * time:.2f}" for time in (delay, total, individual))))
        table.append([group, size, *map(number, (moment, delay, total, individual))])
        found.append((group, size, moment, 1e3 * delay))
    result.tables.append(CLUSTER)
    result.table([head.replace(", ms", ", s") for head in HEAD], table)
    return found


def draw(result, title, x, points):
    """`points`: (series, x, milliseconds)."""
    panel = {}
    for series, at, delay in points:
        panel.setdefault(series, []).append((at, delay / 1e3))
    result.panels.append(Panel(title, x, "effective delay, s", panel))


def linpack(result):
    return on_their_cluster(result, "linpack", "--groups", "32,16,8,4,2,1", "--moments", "15,35,55,75,95,115,135,155")


def group_sizes(setting):
    result = Result(COLUMNS)
    ranks = setting.counts([4], [2])[0]
    contenders = checkpointers(setting, result, ranks)
    delays, table, panel, all_measured = Delays(setting.quick), [], {}, []
    mib = 16 if setting.quick else MIB
    base, by_groups = 0.0, {}
    for group in [size for size in range(ranks, 0, -1) if ranks % size == 0]:
        program = lasting(next(iter(contenders.values())), ranks, group, mib)
        for size, contender in sorted(contenders.items()):
            base, [(_, measured)] = delays.measure(contender, ranks, program, [RUN / 2])
            add(result, table, ranks, group, size, RUN / 2, measured)
            panel.setdefault(f"communication in groups of {group}", []).append((size, max(0.0, median(measured[0]))))
            all_measured.append(measured)
            by_groups[group, size] = median(measured[0])
    result.panels = [Panel(f"{ranks} ranks of {mib} MiB", "ranks checkpointed together", "effective delay, ms", panel)]
    result.table(HEAD, table)
    between(result, all_measured, base)
    halved(result, by_groups, ranks)
    lines = on_their_cluster(result, "groups", "--communication", "16,8,4,2,1", "--groups", "32,16,8,4,2,1")
    by_groups = {(group, size): delay for group, size, _, delay in lines}
    halved(result, by_groups, 32, "simulated")
    draw(result, "simulated", "ranks checkpointed together", [(f"communication in groups of {group}", size, delay) for group, size, _, delay in lines])
    result.note = delays.rounds.note()
    return result


def placement(setting):
    result = Result(COLUMNS)
    ranks = setting.counts([4], [2])[0]
    contenders = checkpointers(setting, result, ranks)
    delays, table, panel, all_measured = Delays(setting.quick), [], {}, []
    mib, period, group = 16 if setting.quick else MIB, 1.0, max(1, ranks // 2)
    shares = (0.2, 0.8) if setting.quick else (0.1, 0.3, 0.5, 0.7, 0.9)
    moments = [1 + share * period for share in shares]
    base, by_moment = 0.0, {}
    for size, contender in sorted(contenders.items()):
        program = lasting(contender, ranks, group, mib, period)
        base, measured = delays.measure(contender, ranks, program, moments)
        for moment, one in measured:
            add(result, table, ranks, group, size, moment, one)
            panel.setdefault(f"{size} checkpointed together", []).append((round(moment - 1, 2), max(0.0, median(one[0]))))
            if size < ranks:
                by_moment.setdefault(moment, []).append(median(one[0]))
        all_measured += [one for _, one in measured]
    result.panels = [Panel(f"{ranks} ranks, all meet every {period:g} s", "s after all have met", "effective delay, ms", panel)]
    result.table(HEAD, table)
    between(result, all_measured, base)
    finding = "the delay grows when the checkpoint is close before the barrier"
    if len(by_moment) > 1:
        early, late = (mean(by_moment[moment]) for moment in (min(by_moment), max(by_moment)))
        text = f"{number(early)} ms at {min(by_moment) - 1:.1f} s after the last one, {number(late)} ms at {max(by_moment) - 1:.1f} s"
        result.finding(finding, text, late > early)
    else:
        result.finding(finding, ALONE, None)
    moments = ",".join(str(minute) for minute in range(5, 60, 5))
    lines = on_their_cluster(result, "groups", "--communication", 8, "--groups", "32,8", "--barrier", 60, "--moments", moments)
    of_groups = [(moment, delay) for _, size, moment, delay in lines if size == 8]
    early, late = of_groups[0], of_groups[-1]
    result.finding(f"{finding} (simulated)", f"{number(early[1])} ms at {early[0]:g} s, {number(late[1])} ms at {late[0]:g} s", late[1] > early[1])
    draw(result, "simulated, all meet every 60 s", "s after all have met", [(f"{size} checkpointed together", moment, delay) for _, size, moment, delay in lines])
    result.note = delays.rounds.note()
    return result


@cache
def of_the_solver(quick, ranks, sizes, chosen):
    """LU in the place of HPL: {ranks checkpointed together: (seconds undisturbed, [(moment, measured)])}, and a note."""
    delays, found = Delays(quick), {}
    program = ("lu", "W") if quick else ("lu", "A")
    for size, contender in zip(sizes, chosen):
        seconds = timed_alone(contender, ranks, program)
        count = 3 if quick else 8
        found[size] = delays.measure(contender, ranks, program, [seconds * (i + 0.5) / count for i in range(count)])
    return found, delays.rounds.note()


def timed_alone(contender, ranks, program):
    with Job(contender, ranks, *program) as job:
        return job.wait()


def solver(setting, result):
    ranks = setting.counts([4], [4])[0]
    contenders = checkpointers(setting, result, ranks)
    found, result.note = of_the_solver(setting.quick, ranks, tuple(contenders), tuple(contenders.values()))
    return ranks, found


def time_points(setting):
    result = Result(COLUMNS)
    ranks, found = solver(setting, result)
    table, panel = [], {}
    for size, (_, measured) in found.items():
        for moment, one in measured:
            add(result, table, ranks, ranks, size, moment, one)
            panel.setdefault(f"{size} checkpointed together", []).append((f"{moment:.1f}", max(0.0, median(one[0]))))
    result.panels = [Panel(f"lu, {ranks} ranks", "checkpoint asked for at, s", "effective delay, ms", panel)]
    result.table(HEAD, table)
    base = median(base for base, _ in found.values())
    between(result, [one for _, measured in found.values() for _, one in measured], base)
    lines = linpack(result)
    draw(result, "linpack, simulated", "checkpoint asked for at, s", [(f"{size} checkpointed together", moment, delay) for _, size, moment, delay in lines])
    whole = {moment: delay for _, size, moment, delay in lines if size == 32}
    saved, size, moment = max((1 - delay / whole[moment], size, moment) for _, size, moment, delay in lines)
    result.finding("up to 78 % less delay with groups of 4 (simulated)", f"up to {saved:.0%} with groups of {size}, at {moment:g} s", saved > 0.5)
    return result


def averages(setting):
    result = Result(("where", "ranks", "checkpoint_group", "mean_delay_ms", "least_ms", "most_ms"))
    ranks, found = solver(setting, result)
    measured = {size: [median(one[0]) for _, one in measured] for size, (_, measured) in found.items()}
    average(result, f"lu, {ranks} ranks, measured", measured, ranks)
    modelled = {}
    for _, size, _, delay in linpack(Result(COLUMNS)):
        modelled.setdefault(size, []).append(delay)
    average(result, "linpack, 32 ranks, simulated", modelled, 32)
    return result


def average(result, title, delays, ranks):
    """`delays`: milliseconds by the number of ranks that are checkpointed together."""
    head = ("mean", "least", "most")
    values = {size: (mean(these), min(these), max(these)) for size, these in sorted(delays.items())}
    where = title.rpartition(" ")[2]
    result.rows += [(where, ranks, size, *(f"{value:.2f}" for value in these)) for size, these in values.items()]
    result.table([f"{title}: checkpointed together", *(f"{name} delay, ms" for name in head)], [[size, *map(number, these)] for size, these in values.items()])
    panel = {name: [(size, max(0.0, these[i])) for size, these in values.items()] for i, name in enumerate(head)}
    result.panels.append(Panel(title, "ranks checkpointed together", "effective delay, ms", panel))
    finding = f"groups as large as those that communicate have the least delay ({where})"
    if len(values) > 1:
        least = min(these[0] for these in values.values())
        best = max(size for size, these in values.items() if these[0] <= 1.01 * least)
        result.finding(finding, f"groups of {best}: {number(values[best][0])} ms; all together {number(values[max(values)][0])} ms", best < ranks)
    else:
        result.finding(finding, ALONE, None)


CLUSTER = (
    "On the paper's cluster, **simulated**: 32 ranks, a store of 140 MB/s of which one rank alone reaches 90 (assumed), images of 180 MB, and ranks that stand still until "
    "theirs are stored. The protocol is the real one."
)
WHY = (
    "Their images were written to a file system that all ranks shared, 140 MB/s in all, while the ranks stood still: the delay was the time of "
    "storage. Here a rank is copied in memory, which takes milliseconds, and the copy is written to the file while the rank goes on. What delays the program is the "
    "copy, pages that are written for the first time after it, and the cores and the disk that the writing takes. That is why the effective delay can be "
    "longer than the time for which ranks stood still, and why checkpointing group after group has little left to gain: a group's turn lasts for milliseconds, not "
    "until its files are written. The files of one group are written after those of the other, and the ranks run meanwhile. "
    "With their store, and ranks that stand still, the same protocol comes to their figures: that is what the simulated runs show."
)
LINPACK = (
    "LU of this project stands in the place of HPL in the measured runs. The simulated ones have Linpack on 8 × 4 ranks, of order 30,000 with panels of 2,048 columns: what is gained is what the other groups can compute before they need "
    "rows from one that stands still, at most one step of the factorization. With panels of 256 columns, a step of 5 s and less, groups save 5 %: all have to wait for each. "
)
FIGURES = (
    Figure("gao-3", "Gao", 3, "Effective checkpoint delay by checkpoint and communication group", group_sizes,
           "As long as a checkpoint group held one or more communication groups, halving it halved the delay; smaller ones gained nothing, and groups of one or two "
           "lost, because they did not use the storage fully. (32 ranks of 180 MB.)", WHY),
    Figure("gao-4", "Gao", 4, "Effective checkpoint delay by the moment of the checkpoint", placement,
           "With groups, the delay lay between the individual and the total checkpoint time, and grew the closer the checkpoint came before a barrier of all: "
           "who is done early has to wait there.", WHY),
    Figure("gao-5", "Gao", 5, "Effective checkpoint delay of a solver at eight moments", time_points,
           "HPL on 8 × 4 ranks: groups of 2 to 16 had noticeably less delay than all 32 together, by up to 78 % (groups of 4, at 50 s), on average 35 to 46 %; groups of one "
           "hardly gained.", LINPACK + WHY),
    Figure("gao-6", "Gao", 6, "Mean effective checkpoint delay of a solver by checkpoint group", averages,
           "Groups of 4 and 8 had the least mean delay, as fits HPL's 8 × 4 ranks.", LINPACK + WHY),
)
