# SPDX-License-Identifier: Apache-2.0
"""The other protocols: ping-pong and kernels without faults, and the cost of one late crash."""

import json
import math
from functools import partial
from statistics import median

import kills
import machine
from contenders import AUTO, DEFAULT, RESURGO, TCP, Contender, Failed, Job, Rounds, run, stats_of
from pingpong import BANDWIDTH, LATENCY, ROOM, half_round_trips, size_name
from report import Section, number, spread

SLOW, WITHIN = 2.0, 60.0  # times the faster mode; seconds
LATENCY_BOUND, BANDWIDTH_BOUND, KERNEL_BOUND, LATE_BOUND, PIGGYBACK_BOUND = 1.15, 0.9, 1.03, 0.1, 0.03
KERNELS = (("cg", 2), ("cg", 4), ("lu", 2), ("lu", 4), ("ft", 2), ("ft", 4), ("bt", 4))
# A rank is killed when nine tenths of this are done, half a minute: the life repeats what came after the last image.
LATE = ("cg", 2048, 3000)
QUICK_LATE = ("cg", 512, 4000)
RANKS, VICTIM = 4, 1
MANY_RANKS = 16


def contender(protocol, *options, name=None):
    return Contender(name or protocol, (RESURGO, "run", "-q", "--protocol", protocol, *options))


PROTOCOLS = (
    contender("causal"),
    contender("causal", "--tolerate", "node", name="causal, node"),
    contender("chandy-lamport"),
    contender("group"),
    contender("hierarchical"),
    AUTO,
)
LOGGING = ("causal", "causal, node", "hierarchical", "auto")


def measure(quick):
    section = Section("protocols", "The other protocols", quick)
    rounds = Rounds(quick)
    pingpong(section, rounds, 2 if quick else 7)
    kernels(section, rounds, ("S", 2) if quick else ("W", 5))
    piggybacks(section, rounds, ("S", 1) if quick else ("W", 3))
    late(section, rounds, QUICK_LATE if quick else LATE, "500ms" if quick else "5s", 1 if quick else 3)
    section.note = rounds.note()
    return section


def pingpong(section, rounds, repetitions):
    contenders = [DEFAULT, *(one.with_options(one.name, *ROOM) if one.name in LOGGING else one for one in PROTOCOLS)]
    runs = rounds.go(contenders, repetitions, half_round_trips)
    sizes = LATENCY | BANDWIDTH
    times = {name: {size: median(one[size] for one in values) for size in sizes} for name, values in runs.items()}
    ratios = {name: {size: by[size] / times[DEFAULT.name][size] for size in sizes} for name, by in times.items()}
    for name, by in ratios.items():
        if name == DEFAULT.name:
            continue
        worst = max(LATENCY, key=by.get)
        section.figure(f"{name}: latency up to 4 KiB (worst: {size_name(worst)})", f"≤ {LATENCY_BOUND:.2f} ×",
                       f"{by[worst]:.2f} ×", by[worst] <= LATENCY_BOUND)
        worst = max(BANDWIDTH, key=by.get)
        section.figure(f"{name}: bandwidth from 64 KiB (worst: {size_name(worst)})", f"≥ {BANDWIDTH_BOUND:.2f} ×",
                       f"{1 / by[worst]:.2f} ×", 1 / by[worst] >= BANDWIDTH_BOUND)
    names = [one.name for one in contenders]
    head = ["half round trip, µs", names[0], *(f"{name} / {names[0]}" for name in names[1:])]
    rows = [[size_name(size), number(times[names[0]][size]), *(f"{ratios[name][size]:.2f}" for name in names[1:])] for size in LATENCY]
    section.table(head, rows)
    head = ["bandwidth, GB/s", *head[1:]]
    rows = [[size_name(size), number(size / 1e3 / times[names[0]][size]), *(f"{1 / ratios[name][size]:.2f}" for name in names[1:])]
            for size in BANDWIDTH]
    section.table(head, rows)
    section.text("Logs in memory that the ranks have touched before (`--log-prefault`).")


def kernels(section, rounds, how):
    size_class, repetitions = how
    rows = []
    for kernel, ranks in KERNELS:
        def seconds(contender, kernel=kernel, ranks=ranks):
            return run(contender, ranks, kernel, size_class)[1:]

        modes = {mode: once(mode, ranks, kernel, size_class) for mode in (DEFAULT, TCP)}
        rivals = [mode for mode, taken in modes.items() if taken <= SLOW * min(modes.values())]
        times = rounds.go((*rivals, *PROTOCOLS), repetitions, seconds)
        base = min((mode.name for mode in rivals), key=lambda name: median(times[name]))
        row = [f"{kernel} {size_class}", ranks, *(spread(times[mode.name]) if mode in rivals else number(modes[mode]) for mode in modes)]
        for one in PROTOCOLS:
            section.at_most(f"{kernel} {size_class}, {ranks} ranks: {one.name} against {base}", KERNEL_BOUND, times[one.name], times[base])
            row.append(f"{median(times[one.name]) / median(times[base]):.3f}")
        rows.append(row)
    section.table(["kernel", "ranks", f"{DEFAULT.name}, s", f"{TCP.name}, s", *(f"{one.name} / faster" for one in PROTOCOLS)], rows)
    section.text(f"From launch to end. A mode of MPICH that takes more than {SLOW:g} × the other's time is run once; inf: not finished after {WITHIN:g} s.")


def piggybacks(section, rounds, how):
    """The share of processor time for making and taking in piggybacks, with an event logger (Bouteiller 2005, figure
    8). With more ranks than cores, a rank's own time is mostly waiting for a core: a share of that would flatter."""
    size_class, repetitions = how
    rows = []
    for kernel in sorted({kernel for kernel, _ in KERNELS}):
        def shares(one, kernel=kernel):
            stats, others = stats_of(one, MANY_RANKS, kernel, size_class)
            processors = stats["wall_seconds"] * min(MANY_RANKS, machine.CORES)
            return [stats["total"][way] / processors for way in ("prepare_seconds", "absorb_seconds")], others

        reductions = [contender("causal", "--tolerate", "node", "--reduction", way, name=way) for way in ("vcausal", "manetho", "logon")]
        for name, values in rounds.go(reductions, repetitions, shares).items():
            prepare, absorb = (median(value[way] for value in values) for way in (0, 1))
            rows.append([f"{kernel} {size_class}", name, f"{prepare:.2%}", f"{absorb:.2%}"])
            section.figure(f"{kernel} {size_class}, {MANY_RANKS} ranks, {name}: piggybacks' share of the processors' time", f"≤ {PIGGYBACK_BOUND:.0%}",
                           f"{prepare + absorb:.2%}", prepare + absorb <= PIGGYBACK_BOUND)
    section.table(["kernel", "reduction", "prepare, of the processors' time", "absorb"], rows)


def once(contender, ranks, *program):
    with Job(contender, ranks, *program) as job:
        try:
            return job.wait(WITHIN)
        except Failed:
            return math.inf


def late(section, rounds, program, period, repetitions):
    """The cost of a crash. For plain MPICH: the time to solution with a crash less that without. Here: less the time
    that the same job would have taken at its speed until then, as other jobs are seconds faster or slower anyway."""
    auto = AUTO.with_options("auto", *kills.ENDURING, "--checkpoint-every", period)
    modes = rounds.go((DEFAULT, TCP), 1, lambda one: run(one, RANKS, *program)[1:])
    plain = min((DEFAULT, TCP), key=lambda one: median(modes[one.name]))
    calm = rounds.go((plain, auto), repetitions, lambda one: run(one, RANKS, *program)[1:])
    answers = set()

    def by_hand(due):
        seconds, struck, answer, others = kills.by_hand(plain, program, [(due, VICTIM)])
        answers.add(answer)
        return struck and ((seconds, seconds - median(calm[plain.name])), others)

    def with_auto(due):
        with Job(auto, RANKS, *program, options=["--stats-json", "stats"]) as job:
            struck = kills.strike(job, due, VICTIM, job.started, partial(kills.running, job))
            seconds = job.wait()
            answers.add(kills.answer(job.output))
            if not struck:
                return None
            (failed,) = job.of("failed")
            deliveries = json.loads((job.directory / "stats").read_text())["ranks"][VICTIM]["deliveries"]
            return (seconds, seconds - failed["time"] * deliveries / failed["deliveries"]), job.others

    def solution(one):
        for _ in range(5):
            if found := (with_auto if one is auto else by_hand)(0.9 * median(calm[one.name])):
                return found
        raise Failed(f"{one.name}: it is over before the kill, which comes after nine tenths of its usual time")

    struck = rounds.go((plain, auto), repetitions, solution)
    assert len(answers) == 1, f"different answers: {answers}"
    cost = {name: [cost for _, cost in values] for name, values in struck.items()}
    ratio = median(cost[auto.name]) / median(cost[plain.name])
    line = " ".join(map(str, program))
    section.figure(f"{line}, {RANKS} ranks, one killed at 90 %, images every {period}: auto's cost against {plain.name} from scratch",
                   f"≤ {LATE_BOUND:g} ×", f"{ratio:.3f} ×", ratio <= LATE_BOUND)
    head = [f"{line}, {RANKS} ranks", "undisturbed, s", "one rank killed at 90 %, s", "cost of the crash, s"]
    rows = [[name, spread(calm[name]), spread([seconds for seconds, _ in values]), spread(cost[name])] for name, values in struck.items()]
    section.table(head, rows)
