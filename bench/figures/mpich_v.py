# SPDX-License-Identifier: Apache-2.0
"""Bouteiller 2006 (MPICH-V), figures 7 to 9: latency and bandwidth, kernels, and faults, by protocol."""

import math
import random
import time
from functools import partial
from statistics import median
from typing import NamedTuple

import machine
from contenders import DEFAULT, TCP, Failed, Job, Rounds, run
from figures.common import ENDURING, LOCAL, LOGGING, STORE, STORED, Figure, Result, nothing_to_compare, simulated
from kills import running
from pingpong import half_round_trips, size_name
from report import number, spread
from svg import Panel, around

# Bytes → round trips of a batch. What all batches of all sizes log fits into the memory that is touched before the first.
SIZES = {1: 500, 8: 500, 64: 500, 256: 500, 1 << 10: 500, 4 << 10: 500, 16 << 10: 300, 64 << 10: 100, 256 << 10: 40,
         1 << 20: 15, 4 << 20: 4, 8 << 20: 3}
QUICK_SIZES = {1: 200, 1 << 10: 200, 64 << 10: 50, 1 << 20: 10}
TOUCHED = ("--log-memory", "2G", "--log-prefault", "1G")
SMALL = 1 << 10  # bytes of a small message, at most
KERNELS = ("cg", "lu", "ft", "bt")
SQUARES = (1, 4, 9, 16)


def half_round_trips_of(result, setting, contenders, sizes, wide):
    """Measures messages of these `sizes` into `result`; those in `wide` also have a bandwidth. Returns the runs of each contender, and the
    median of each size."""
    rounds = Rounds(setting.quick)
    runs = rounds.go(contenders, 2 if setting.quick else 5, partial(half_round_trips, sizes=sizes, batches=5))
    times = {name: {size: median(one[size] for one in values) for size in sizes} for name, values in runs.items()}
    result.rows = [(name, size, f"{us:.4f}", f"{size / us:.3f}") for name, by in times.items() for size, us in by.items()]
    result.table(["half a round trip, µs", *times], [[size_name(size), *(number(by[size]) for by in times.values())] for size in sizes])
    result.table(["bandwidth, MB/s", *times], [[size_name(s), *(number(s / by[s]) for by in times.values())] for s in wide])
    result.note = rounds.note()
    return runs, times


def latency_and_bandwidth(setting):
    result = Result(("contender", "bytes", "half_round_trip_us", "megabytes_per_second"))
    sizes = QUICK_SIZES if setting.quick else SIZES
    variants = setting.variants(result)
    if not variants:
        nothing_to_compare("latency and bandwidth")
    contenders = [DEFAULT, TCP]
    contenders += [v.contender(*(TOUCHED if v.protocol in LOGGING else ())) for v in variants]
    runs, times = half_round_trips_of(result, setting, contenders, sizes, sizes)
    names = {name: [around(size_name(size), (one[size] for one in values)) for size in sizes] for name, values in runs.items()}
    fast = {name: [around(size_name(size), (size / one[size] for one in values)) for size in sizes] for name, values in runs.items()}
    result.panels = [Panel("latency", "bytes", "half a round trip, µs", names, True), Panel("bandwidth", "bytes", "MB/s", fast, True)]
    findings_of_latency(result, times, sizes)
    return result


def findings_of_latency(result, times, sizes):
    small = [size for size in sizes if size <= SMALL]

    def small_ratio(one, other):
        return median(times[one][size] / times[other][size] for size in small)

    largest = max(sizes)
    if "none" in times:
        framework = small_ratio("none", TCP.name)
        result.finding("the framework alone (Vdummy) costs 30 % of latency against MPICH's sockets", f"{framework - 1:+.0%}", framework > 1.1)
    if "none" in times and "pessimistic, node" in times:
        waits = small_ratio("pessimistic, node", "none")
        others = [small_ratio(name, "none") for name in times if name not in ("none", "pessimistic, node", DEFAULT.name, TCP.name)]
        result.finding("waiting for the event logger (V2) gives the highest latency of small messages", f"{waits:.2f} × none",
                       waits > 1.1 and all(waits > other for other in others))
    for name in ("vcausal, an event logger", "chandy-lamport", "blocking", "pessimistic"):
        if "none" in times and name in times:
            ratio = small_ratio(name, "none")
            result.finding(f"{name}: latency of small messages as without fault tolerance", f"{ratio:.2f} × none", ratio < 1.1)
    for name in times:
        if "none" in times and name not in ("none", DEFAULT.name, TCP.name):
            kept = times["none"][largest] / times[name][largest]
            result.finding(f"{name}: bandwidth of {size_name(largest)} close to that without fault tolerance", f"{kept:.2f} × none", kept > 0.85)


def kernels(setting):
    result = Result(("kernel", "class", "ranks", "contender", "seconds"))
    size_class, repetitions = ("S", 2) if setting.quick else ("W", 5)
    variants = setting.variants(result)
    if not variants:
        nothing_to_compare("kernels")
    counts = setting.counts([4, 9, 16], [4])
    rounds = Rounds(setting.quick)
    base = "none" if any(variant.name == "none" for variant in variants) else TCP.name
    table, slower = [], {}
    for kernel in KERNELS:
        panel = {}
        for ranks in counts:
            if ranks > 16 or (kernel == "bt" and ranks not in SQUARES):
                continue
            references = [TCP] if ranks > machine.CORES else [DEFAULT, TCP]

            def seconds(contender, kernel=kernel, ranks=ranks):
                return run(contender, ranks, kernel, size_class)[1:]

            times = rounds.go([*references, *(v.contender() for v in variants)], repetitions, seconds)
            for name, values in times.items():
                result.rows += [(kernel, size_class, ranks, name, f"{value:.4f}") for value in values]
                ratio = median(values) / median(times[base])
                panel.setdefault(name, []).append(around(str(ranks), (value / median(times[base]) for value in values)))
                slower.setdefault(name, {})[kernel, ranks] = ratio
                table.append([f"{kernel} {size_class}", ranks, name, spread(values), f"{ratio:.2f}"])
        result.panels.append(Panel(f"{kernel} {size_class}", "ranks", f"time / {base}", panel))
    if not table:
        raise Failed(f"no kernel runs on {', '.join(map(str, counts))} ranks: 1 to 16, bt on 1, 4, 9 or 16")
    result.table(["kernel", "ranks", "", "s, launch to end", f"/ {base}"], table)
    findings_of_kernels(result, slower)
    result.note = rounds.note()
    return result


def findings_of_kernels(result, slower):
    def worst(name):
        (kernel, ranks), ratio = max(slower[name].items(), key=lambda item: item[1])
        return f"at worst {ratio:.2f} × ({kernel}, {ranks} ranks)", ratio

    if "pessimistic, node" in slower:
        text, _ = worst("pessimistic, node")
        by = {kernel: max(r for (k, _), r in slower["pessimistic, node"].items() if k == kernel) for kernel in KERNELS
              if any(k == kernel for k, _ in slower["pessimistic, node"])}
        result.finding("V2 loses most on LU, with its many small messages", text, by.get("lu") == max(by.values()) and by["lu"] > 1.1)
    for name in ("chandy-lamport", "vcausal, an event logger", "blocking", "pessimistic"):
        if name in slower:
            text, ratio = worst(name)
            result.finding(f"{name}: as fast as without fault tolerance", text, ratio < 1.1)


class UnderFaults(NamedTuple):
    """One run; the seconds are None when it had not come to its end by the limit."""

    seconds: float | None
    kills: int
    fetched: int  # returns for which images came from places


def own_copies(contender, _ranks, victim):
    """Where there is a store, a rank is killed with its image in memory, as if its node were lost."""
    return [victim] if contender.name in (variant.name for variant in STORED) else []


def under_faults(contender, ranks, program, interval, limit, seed, loses=own_copies, also=lambda lost: None):
    """A rank is killed `interval` seconds after the one before (None: never). `loses`: the ranks whose images in memory go with it;
    `also`: what else they lose. The run, and the share of others."""
    chance = random.Random(f"{seed} {interval}")
    with Job(contender, ranks, *program) as job:
        struck, due, victim = 0, interval or limit, chance.randrange(ranks)
        while not job.over():
            elapsed = time.monotonic() - job.started
            if elapsed > limit:
                return UnderFaults(None, struck, len(job.of("wave_comes"))), job.watch.others()
            if elapsed >= due and (pid := running(job, victim)):
                lost = loses(contender, ranks, victim)
                copies = [copy for rank in lost for copy in job.copies(rank)]
                if not job.kill(pid):
                    continue
                for copy in copies:
                    job.kill(copy)
                also(lost)
                struck += 1
                due, victim = elapsed + interval, chance.randrange(ranks)
            time.sleep(0.002)
        return UnderFaults(job.wait(), struck, len(job.of("wave_comes"))), job.others


def by_frequency(result, rounds, contenders, intervals, calm, base, strike, more=lambda run: (), beside=lambda runs: ""):
    """Strikes all contenders at growing rates, until each makes no progress. `calm`: how often runs without faults are repeated; under faults a
    run has many of them, and takes long. `more`: further columns of a run; `beside`: what a cell of the table says of runs besides their
    seconds. ({contender: faults a minute at which it stopped}, the panel)."""
    stopped, panel, table = {}, {}, {}
    for interval in intervals:
        going = [contender for contender in contenders if contender.name not in stopped]
        frequency = 60 / interval if interval else 0
        for name, runs in rounds.go(going, 1 if interval else calm, lambda contender, i=interval: strike(contender, i)).items():
            for run in runs:
                slow = "" if run.seconds is None else f"{100 * (run.seconds / base - 1):.1f}"
                seconds = "" if run.seconds is None else f"{run.seconds:.3f}"
                result.rows.append(("measured", name, f"{frequency:g}", seconds, slow, run.kills, *more(run)))
            ended = [run.seconds for run in runs if run.seconds is not None]
            if len(ended) * 2 <= len(runs):
                stopped[name] = frequency
            else:
                panel.setdefault(name, []).append(around(f"{frequency:g}", (100 * (seconds / base - 1) for seconds in ended)))
            table.setdefault(f"{frequency:g}", {})[name] = spread(ended) + (" †" if len(ended) < len(runs) else "") + beside(runs)
    names = [contender.name for contender in contenders]
    result.table(["faults a minute", *(f"{name}, s" for name in names)], [[f, *(by.get(name, "") for name in names)] for f, by in table.items()])
    return stopped, panel


def fault_frequency(setting):
    result = Result(("where", "contender", "faults_per_minute", "seconds", "slowdown_percent", "kills_that_struck"))
    program = ("bt", "W") if setting.quick else ("bt", "A")
    ranks = setting.counts([4], [4])[0]
    if ranks not in SQUARES:
        raise Failed(f"bt does not run on {ranks} ranks: 1, 4, 9 or 16")
    variants = setting.variants(result, lambda variant: variant.images, STORED)
    if not variants:
        nothing_to_compare("faults")
    contenders = [v.contender(*ENDURING, "--checkpoint-every", "100ms") for v in variants]
    rounds = Rounds(setting.quick)
    reference = next((contender for contender in contenders if contender.name == "chandy-lamport"), contenders[-1])
    base = median(under_faults(reference, ranks, program, None, 600, 0)[0].seconds for _ in range(1 if setting.quick else 3))
    limit = 5 * base
    intervals = [None, 0.5, 0.1] if setting.quick else [None, 4, 1, 0.5, 0.35, 0.25, 0.12, 0.06, 0.03]
    strike = lambda contender, interval: under_faults(contender, ranks, program, interval, limit, 1)
    stopped, panel = by_frequency(result, rounds, contenders, intervals, 1 if setting.quick else 3, base, strike)
    result.panels = [Panel(f"{' '.join(program)}, {ranks} ranks", "faults a minute", "slowdown, %", panel)]
    names = [contender.name for contender in contenders]
    result.tables.append(f"† not at its end after {number(limit)} s, five times the undisturbed run of {reference.name}. Images, or waves, every 100 ms. A fault is "
                         "SIGKILL to a random rank, so long after the one before; where there is a store (image files), also to the rank's image in memory. "
                         "A protocol that has stopped is not tried with more.")
    logging = [name for name in names if any(name.startswith(v.name) for v in variants if v.protocol in (*LOGGING, "channel-memory"))]
    findings_of_faults(result, "measured", 60 / intervals[-1], logging, stopped, panel)
    on_their_cluster(result, setting.quick)
    result.note = rounds.note()
    return result


# Contenders of `resurgo-sim faults`.
SIMULATED = {"pessimistic": "pessimistic", "local-copies": LOCAL.name, "store-only": STORE.name}


def on_their_cluster(result, quick):
    """The same on the paper's cluster, simulated."""
    lines = simulated("faults", *(("--rounds", 1000, "--intervals", "400,100") if quick else ()), names=("protocol",))
    stopped, panel, table = {}, {}, {}
    for line in lines:
        name, frequency, seconds = SIMULATED[line["protocol"]], f"{60 / line['interval_seconds']:.3g}", line["run_seconds"]
        ends = math.isfinite(seconds)
        slow = 100 * (seconds / line["undisturbed_seconds"] - 1)
        result.rows.append(("simulated", name, frequency, *((f"{seconds:.3f}", f"{slow:.1f}") if ends else ("", "")), int(line["faults"])))
        table.setdefault(frequency, {})[name] = f"{number(seconds)} ({slow:+.0f} %)" if ends else "†"
        if ends:
            panel.setdefault(name, []).append((frequency, slow))
        else:
            stopped.setdefault(name, float(frequency))
    names = list(SIMULATED.values())
    result.tables.append("On the paper's cluster, simulated: 25 ranks of bt, class B, in a network of 11.5 MB/s; images of 50 MB go to one server, which takes 8.7 MB/s "
                         "(the paper's 25 GB in 48 minutes), and are read from a rank's own disk with 40 MB/s. Waves begin 15 s after the end of the one before, or of a return. "
                         "A fault takes a node with its disk. Slowdown against no faults; †: not at its end after ten times as long.")
    result.table(["faults a minute", *(f"{name}, s" for name in names)], [[f, *(by[name] for name in names)] for f, by in table.items()])
    result.panels.append(Panel("bt, 25 ranks, simulated", "faults a minute", "slowdown, %", panel))
    findings_of_faults(result, "simulated", float(frequency), ["pessimistic"], stopped, panel)


def findings_of_faults(result, where, most, logging, stopped, panel):
    """`most`: faults a minute that were tried at most. `logging`: contenders that log messages; `stopped`: faults a minute at which a contender
    made no progress; `panel`: slowdown in per cent of all, by faults a minute."""
    names = list(panel)
    last = {name: stopped.get(name, float("inf")) for name in names}
    logging, waves = [name for name in names if name in logging], [name for name in names if name not in logging]
    if logging and waves:
        told = "; ".join(f"{name}: {f'no stop up to {most:g}' if end == float('inf') else f'stops at {end:g} a minute'}" for name, end in last.items())
        ends = max(last[name] for name in waves)
        earlier = None if ends == float("inf") else ends < max(last[name] for name in logging)
        result.finding(f"coordinated checkpoints stop making progress at lower fault rates than message logging ({where})", told, earlier)
        calm = {name: panel[name][0][1] for name in names}
        result.finding(f"without faults coordinated checkpoints are as fast as message logging, or faster ({where})",
                       "; ".join(f"{name} {calm[name]:+.1f} %" for name in names), min(calm[n] for n in waves) <= min(calm[n] for n in logging) + 3)
        common, slowed = at_common_rate(panel)
        told = f"{common} a minute: " + "; ".join(f"{name} {slow:+.0f} %" for name, slow in slowed.items())
        result.finding(f"at the highest rate that all survive, message logging is slowed down less ({where})", told,
                       None if common == "0" else least(slowed, logging) < least(slowed, waves))
    if {LOCAL.name, STORE.name} <= set(panel):
        findings_of_copies(result, where, last, panel)


def findings_of_copies(result, where, last, panel):
    """What images on the ranks' own nodes are worth beside those in the store."""
    ends = [last[variant.name] for variant in STORED]
    told = "; ".join(f"{variant.name}: {'no stop' if end == float('inf') else f'stops at {end:g} a minute'}" for variant, end in zip(STORED, ends))
    result.finding(f"with local copies Chandy-Lamport makes progress at higher fault rates than with the store alone ({where})", told,
                   None if ends[0] == ends[1] else ends[0] > ends[1])
    local, store = (slowdowns(panel[variant.name]) for variant in STORED)
    frequency = [frequency for frequency in local if frequency in store][-1]
    result.finding(f"and is slowed down less ({where})", f"{frequency} a minute: {local[frequency]:+.0f} % with local copies, {store[frequency]:+.0f} % without",
                   local[frequency] < store[frequency] if frequency != "0" else None)


def slowdowns(points):
    """{faults a minute: slowdown}; a point of several runs also has the least and the most."""
    return {point[0]: point[1] for point in points}


def least(slowed, names):
    return min((slowed[name] for name in names if name in slowed), default=float("inf"))


def at_common_rate(panel):
    """The highest rate of faults at which all still end, and how much each is slowed down there."""
    by = {name: slowdowns(points) for name, points in panel.items()}
    common = [frequency for frequency in next(iter(by.values())) if all(frequency in points for points in by.values())][-1]
    return common, {name: points[common] for name, points in by.items()}


FIGURES = (
    Figure(
        "mpich-v-7", "MPICH-V", 7, "Latency and bandwidth of the protocols", latency_and_bandwidth,
        "On Fast Ethernet the framework without fault tolerance had 30 % more latency than MPICH-P4. MPICH-V2, which waits for the event logger "
        "before it sends, had the highest latency of small messages after MPICH-V1; causal logging did not have it. From 32 KiB "
        "on all but MPICH-V1 kept the bandwidth of the reference; causal logging lost a little to its piggybacks, MPICH-V1 half, because "
        "each message crosses the network twice.",
        "Here ranks share a machine: messages go through shared memory and take a microsecond, where theirs took a hundred. There is no daemon "
        "between a rank and its messages, so that there is no framework to pay for. What the event logger costs is a round trip "
        "through a socket and a thread, which is many times a message here, and was about one message there. Keeping a copy of each message is "
        "a second copy in memory; theirs was hidden behind a network of 12 MB/s. So a protocol that logs loses bandwidth here that "
        "it did not lose there. The log's memory is touched before the first message (`--log-prefault`); in fresh memory "
        "bandwidth is lower ([benchmarks](benchmarks.md)).",
    ),
    Figure(
        "mpich-v-8", "MPICH-V", 8, "Kernels under the protocols, without faults", kernels,
        "Causal logging and Chandy-Lamport waves ran all NAS kernels as fast as the framework without fault tolerance. MPICH-V2 was "
        "much slower where messages are small and many (LU). MPICH-V1 was slower everywhere and ran out of memory on most.",
        "The kernels are written new and smaller; with more ranks than cores the cores are the bottleneck, not the network, and a wait for the event "
        "logger is time that another rank computes in. The event logger's threads need the same cores. Keeping the log costs "
        "memory that is touched for the first time, which shows in FT. Times are from launch to end and contain some 50 ms of launch.",
    ),
    Figure(
        "mpich-v-9", "MPICH-V", 9, "Slowdown by the frequency of faults", fault_frequency,
        "BT class B on 25 nodes, images on one server: coordinated checkpoints were as good as message logging, or better, up to a fault every three "
        "minutes. Beyond that they were overtaken, and they stopped making progress at lower fault rates than message logging, "
        "because all images together take n times as long to store as one. V2 and causal logging behaved alike. Chandy-Lamport waves were tried with copies "
        "of the images on the ranks' local disks, so that only the failed rank had to read the server, and without: then all read it, it became the bottleneck, and "
        "the point at which nothing progressed any more came at a lower fault rate.",
        "An image here is a copy of the process in memory, made in milliseconds while the rank goes on, and there is no server that all have to pass. "
        "So rates are a thousand times higher, and images of all ranks take hardly longer than one. What is left of the paper's reason is that a "
        "return ends and starts n processes instead of one, and loses the work of all since the last complete wave. The store is a directory of this "
        "machine: with the store alone a return rebuilds n processes from files instead of one, which costs processor time and the disk's bandwidth, but no "
        "network that is a hundred times slower than memory; so what local copies are worth is less here. They are copies in memory, not on a disk: a rank that writes to a page "
        "of one has to wait until the kernel has copied that page, which costs more than reading a file that is still in the kernel's cache. "
        "On the paper's cluster, simulated, it comes out as in the paper.",
    ),
)
