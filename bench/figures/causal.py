# SPDX-License-Identifier: Apache-2.0
"""Bouteiller 2005, figures 6 to 8 and 10: causal message logging with and without an event logger. Model programs in the
simulator (`resurgo-sim study`) around the real protocol; also real processes where this binary offers causal."""

import math
from functools import cache, partial
from statistics import median

import machine
from contenders import NONE, PESSIMISTIC, Failed, Rounds, run, stats_of
from figures.common import CAUSAL, Figure, Result, simulated
from pingpong import half_round_trips, size_name
from report import number, spread
from svg import Panel

KERNELS = ("cg", "lu", "bt", "ft")
REDUCTIONS = ("vcausal", "manetho", "logon")
NUMBERS = (4, 16, 64)
REAL_NUMBERS, MOST = (4, 16), 16  # of real processes; on more they would only wait for the machine's cores
VICTIM = 1
SIZES = {1: 500, 64: 500, 1 << 10: 500, 16 << 10: 300, 256 << 10: 40, 1 << 20: 15, 8 << 20: 3}
THERE = ()  # costs: the simulator's own are those of the paper's cluster
# Points of a grid that class W of a kernel computes, over all steps; and, for a row of CG's matrix in the model, nonzeros to each here.
POINTS = {"cg": (512**2 * 600, 132 / 5), "lu": (48**3 * 150, 1), "bt": (32**3 * 40, 1), "ft": (64**3 * 40, 1)}
COST_NOTE = (
    "Simulated. The paper's cluster is modelled with 50 µs and 11.5 MB/s a link, an event logger that takes 30 µs for a frame, and processors "
    "of 400 million operations a second; LU of 16 ranks then brings the event logger to its limit, as in the paper."
)
REAL_NOTE = f"Measured: kernels of this project, medians, at most {MOST} ranks, which share the {machine.CORES} cores of this machine with the event logger."
# What the simulator's lines call it, and what the statistics of a real job do.
STATISTICS = {
    "messages": "piggybacks", "payload_bytes": "bytes", "piggyback_bytes": "piggyback_bytes", "events": "piggyback_events",
    "empty_messages": "empty_piggybacks", "most_kept": "largest_graph", "making_seconds": "prepare_seconds", "taking_in_seconds": "absorb_seconds",
}


@cache
def study(kernels, ranks, reductions=REDUCTIONS, loggers=(1, 0), messages=100_000, costs=THERE, memory=8):
    """The lines of `resurgo-sim study` as dictionaries; what is no name is a number."""
    lists = {"--kernels": kernels, "--ranks": ranks, "--reductions": reductions, "--event-loggers": loggers}
    words = [word for option, values in lists.items() for word in (option, ",".join(map(str, values)))]
    words += ["--messages", str(messages), "--memory", str(memory), *costs]
    return simulated("study", *words, names=("kernel", "reduction"))


def method(line):
    loggers = int(line["event_loggers"])
    return f"{line['reduction']}, {'no event logger' if loggers == 0 else 'an event logger' if loggers == 1 else f'{loggers} event loggers'}"


def share(line):
    """Per cent of the payload."""
    return 100 * line["piggyback_bytes"] / line["payload_bytes"]


def each(line, key):
    """For a message."""
    return line[key] / line["messages"]


def numbers(setting, kernel, usual=NUMBERS, quick=(4, 16)):
    """Of those that the figure wants, what the kernel runs on."""
    counts = [n for n in setting.counts(usual, quick) if n >= 2]
    if kernel == "bt":
        return tuple(n for n in counts if math.isqrt(n) ** 2 == n)
    return tuple(n for n in counts if kernel == "lu" or n & (n - 1) == 0)


def of_kernels(setting, costs=lambda kernel: THERE):
    lines = []
    for kernel in KERNELS:
        if counts := numbers(setting, kernel):
            lines += study((kernel,), counts, messages=20_000 if setting.quick else 100_000, costs=costs(kernel))
    if not lines:
        raise Failed("no kernel runs on these ranks: powers of two, for bt square numbers")
    return lines


@cache
def undisturbed(quick, counts, variants):
    """Real runs of the kernels, as lines like those of `study`, and a note. `counts`: pairs of a kernel and a number of ranks."""
    rounds, lines = Rounds(quick), []
    size_class, repetitions = ("S", 1) if quick else ("W", 3)
    for kernel, ranks in counts:
        runs = rounds.go([v.contender() for v in variants], repetitions, lambda c, k=kernel, n=ranks: stats_of(c, n, k, size_class))
        for variant in variants:
            values = runs[variant.name]
            chosen = dict(zip(variant.options[::2], variant.options[1::2]))
            line = {"kernel": kernel, "ranks": ranks, "reduction": chosen["--reduction"], "event_loggers": int(chosen["--event-loggers"])}
            line |= {key: median(stats["total"][name] for stats in values) for key, name in STATISTICS.items()}
            lines.append(line | {"wall_seconds": median(stats["wall_seconds"] for stats in values)})
    return lines, rounds.note()


def real_numbers(setting):
    """Kernels, each with a number of ranks, of real runs."""
    return tuple((kernel, n) for kernel in KERNELS for n in numbers(setting, kernel, REAL_NUMBERS, (4,)) if n <= MOST)


def really(setting, result):
    """The lines of real runs, as far as this binary offers causal; what disturbed them is told in the note of `result`."""
    variants = setting.variants(result, lambda variant: variant in CAUSAL)
    counts = real_numbers(setting)
    if not variants or not counts:
        return []
    lines, note = undisturbed(setting.quick, counts, tuple(variants))
    result.note = f"simulated: {result.note}; measured: {note}"
    return lines


def panels(lines, y, value, where="simulated", logarithmic=True):
    found = []
    for kernel in KERNELS:
        series = {}
        for line in lines:
            if line["kernel"] == kernel:
                series.setdefault(method(line), []).append((int(line["ranks"]), value(line)))
        if series:
            found.append(Panel(f"{kernel}, {where}", "ranks", y, series, logarithmic))
    return found


def by_method(lines, kernel, ranks):
    return {(line["reduction"], int(line["event_loggers"])): line for line in lines if line["kernel"] == kernel and line["ranks"] == ranks}


def each_at(lines, ranks=16):
    """The kernels that were run on so many ranks, by method."""
    found = {kernel: by_method(lines, kernel, ranks) for kernel in KERNELS}
    return {kernel: by for kernel, by in found.items() if by}


def here(kernel, quick):
    """Costs as on this machine, from real runs: latency and bandwidth without fault tolerance, the round trip to the event logger, and the
    time for a point of the kernel's grid on one rank."""
    latency, bandwidth, logger = network(quick)
    points, nonzeros = POINTS[kernel]
    seconds = median(run(NONE, 1, kernel, "W")[1] for _ in range(1 if quick else 3))
    start = median(run(NONE, 1, "hello")[1] for _ in range(1 if quick else 3))
    point = max(1.0, 1e9 * (seconds - start) / points * nonzeros)
    return ("--latency", f"{latency:.3f}", "--bandwidth", f"{bandwidth:.1f}", "--logger", f"{logger:.3f}", "--point", f"{point:.1f}")


@cache
def network(quick):
    repetitions = 1 if quick else 3
    sizes = {8: 500, 1 << 20: 15}
    plain = [half_round_trips(NONE, sizes, 5)[0] for _ in range(repetitions)]
    node = PESSIMISTIC.with_options("node", "--tolerate", "node")
    waits = [half_round_trips(node, {8: 500}, 5)[0] for _ in range(repetitions)]
    small, large = (median(one[size] for one in plain) for size in sizes)
    return small, (1 << 20) / large, max(0.1, median(one[8] for one in waits) - small)


def ping_pong(setting):
    result = Result(("where", "contender", "bytes", "half_round_trip_us", "messages_without_events_percent", "piggyback_bytes_per_message"))
    lines = study(("pingpong",), (2,), messages=10_000)
    model = study(("pingpong",), (2,), ("none",), messages=10_000)[0]
    latency = {}
    table = []
    for line in [model, *lines]:
        name = "nothing piggybacked" if line["reduction"] == "none" else method(line)
        us = 1e6 * line["model_seconds"] / line["messages"]
        latency[name] = us
        without, extra = 100 * line["empty_messages"] / line["messages"], line["piggyback_bytes"] / line["messages"]
        result.rows.append(("simulated", name, 1, f"{us:.3f}", f"{without:.1f}", f"{extra:.2f}"))
        table.append([name, f"{us:.2f}", f"{100 * (us / latency['nothing piggybacked'] - 1):+.1f} %", f"{without:.0f} %", f"{extra:.1f}"])
    result.table(["simulated, 1 byte", "half a round trip, µs", "", "messages without events", "bytes piggybacked, each"], table)
    result.tables.append(COST_NOTE)
    result.note = "no time of this machine in it"
    result.panels = [Panel("simulated, 1 byte", "", "half a round trip, µs", {name: [(1, us)] for name, us in latency.items()})]
    with_logger, without = by_method(lines, "pingpong", 2)["vcausal", 1], by_method(lines, "pingpong", 2)["vcausal", 0]
    result.finding("with an event logger half of the messages carry no events", f"{100 * with_logger['empty_messages'] / with_logger['messages']:.0f} % (simulated)",
                   with_logger["empty_messages"] > 0.4 * with_logger["messages"])
    result.finding("without one every message carries one event", f"{without['events'] / without['messages']:.2f} each (simulated)", abs(without["events"] / without["messages"] - 1) < 0.05)
    slower = latency["vcausal, no event logger"] / latency["vcausal, an event logger"]
    result.finding("no event logger: 5.2 % more latency with vcausal", f"{slower - 1:+.1%} (simulated)", slower > 1.02)
    real(setting, result)
    return result


def real(setting, result):
    """On real processes, as far as this binary offers causal."""
    variants = setting.variants(result, lambda variant: variant in CAUSAL)
    if not variants:
        return
    rounds = Rounds(setting.quick)
    contenders = [NONE, *(variant.contender() for variant in variants)]
    runs = rounds.go(contenders, 2 if setting.quick else 5, partial(half_round_trips, sizes=SIZES, batches=5))
    times = {name: {size: median(one[size] for one in values) for size in SIZES} for name, values in runs.items()}
    result.rows += [("measured", name, size, f"{us:.3f}", "", "") for name, by in times.items() for size, us in by.items()]
    result.table(["measured, half a round trip, µs", *times], [[size_name(size), *(number(by[size]) for by in times.values())] for size in SIZES])
    result.panels.append(Panel("measured", "bytes", "half a round trip, µs", {n: [(size_name(s), us) for s, us in by.items()] for n, by in times.items()}, True))
    result.note = rounds.note()


def volume(setting):
    result = Result(("where", "kernel", "reduction", "event_loggers", "ranks", "messages", "payload_bytes", "piggyback_bytes", "events", "empty_messages", "most_kept"))
    result.note = "no time of this machine in it"
    lines = of_kernels(setting)
    large = [] if setting.quick or setting.ranks else scale()
    measured = really(setting, result)
    for where, these in (("simulated", lines + large), ("measured", measured)):
        result.rows += [(where, *(line[key] if isinstance(line[key], str) else int(line[key]) for key in result.columns[1:])) for line in these]

    def rows(lines):
        return [[line["kernel"], int(line["ranks"]), method(line), f"{share(line):.3f}", f"{each(line, 'events'):.2f}", f"{each(line, 'piggyback_bytes'):.1f}",
                 f"{line['most_kept']:,.0f}"] for line in lines]

    head = ["ranks", "", "piggybacked, % of payload", "events a message", "bytes a message", "most events kept by a rank"]
    result.table(["simulated", *head], rows(lines))
    result.tables.append(COST_NOTE)
    if large:
        result.table(["simulated", *head], rows(large))
        result.tables.append("Larger jobs, simulated with a network of today (2 µs, 12.5 GB/s, an event logger that takes 0.5 µs for a frame), the first 40,000 deliveries (FT: 80,000), each rank with as much "
                             "work as in class A on 16.")
    result.panels = panels(lines, "piggybacked, % of payload", share)
    finding = "an event logger cuts what vcausal piggybacks by at least 70 %"
    for kernel, by in each_at(lines).items():
        cut, events = saved_by_logger(by)
        result.finding(f"{kernel}, 16 ranks: {finding} (simulated)", f"{cut:.0%} of the bytes, {events:.0%} of the events", cut >= 0.7)
    if measured:
        empty = [f"{100 * each(line, 'empty_messages'):.1f}" for line in measured]
        result.table(["measured", *head, "messages without events, %"], [[*row, one] for row, one in zip(rows(measured), empty)])
        result.tables.append(REAL_NOTE)
        result.panels += panels(measured, "piggybacked, % of payload", share, "measured")
    for kernel, by in each_at(measured).items():
        cut, events = saved_by_logger(by)
        result.finding(f"{kernel}, 16 ranks: {finding} (measured)", f"{cut:.0%} of the bytes, {events:.0%} of the events", min(cut, events) >= 0.7)
    for kernel, by in each_at(lines).items():
        carried = {reduction: by[reduction, 0] for reduction in REDUCTIONS}
        told = ", ".join(f"{name} {each(line, 'events'):.1f}" for name, line in carried.items())
        result.finding(f"{kernel}, 16 ranks, no event logger: graphs carry fewer events than sequences (simulated)", f"{told} a message",
                       max(carried["manetho"]["events"], carried["logon"]["events"]) < 0.99 * carried["vcausal"]["events"])
        result.finding(f"{kernel}, 16 ranks, no event logger: logon's form takes more bytes for the same events (simulated)", f"{carried['logon']['piggyback_bytes'] / carried['manetho']['piggyback_bytes']:.2f} × manetho",
                       carried["logon"]["piggyback_bytes"] > carried["manetho"]["piggyback_bytes"])
    return result


def saved_by_logger(by):
    """The shares of vcausal's bytes and events that an event logger saves. `by`: lines by method."""
    return (1 - by["vcausal", 1][key] / by["vcausal", 0][key] for key in ("piggyback_bytes", "events"))


def scale():
    today = ("--latency", "2", "--bandwidth", "12500", "--logger", "0.5")
    lines = []
    for kernel in ("cg", "lu", "bt"):
        lines += study((kernel,), (256, 1024, 4096), ("vcausal",), (1, 16), 40_000, today)
    return lines + study(("ft",), (256,), ("vcausal",), (1, 16), 80_000, today)


def computing(setting):
    result = Result(("where", "kernel", "reduction", "event_loggers", "ranks", "messages", "making_us", "taking_in_us", "percent_of_run"))
    result.note = "times of this machine"
    lines = of_kernels(setting, lambda kernel: here(kernel, setting.quick))
    add_times(result, lines, "simulated", "both, % of the modelled run", lambda line: line["ranks"] * line["model_seconds"])
    costs = "; ".join(f"{kernel}: `{' '.join(here(kernel, setting.quick))}`" for kernel in KERNELS)
    result.tables.append(f"The time is that of the real code on this machine; the run around it is simulated, with costs from real runs on this machine: {costs}.")
    if measured := really(setting, result):
        # With more ranks than cores a rank's own time is mostly waiting for a core: a share of that would flatter.
        add_times(result, measured, "measured", "both, % of the processors' time", lambda line: min(line["ranks"], machine.CORES) * line["wall_seconds"])
        result.tables.append(f"{REAL_NOTE} One piggyback in 17 is timed. The processors' time is that from launch to end on as many cores as there are ranks, at most {machine.CORES}.")
    return result


def add_times(result, lines, where, of_what, whole):
    """`whole`: the seconds of which making and taking in are a share, named `of_what`."""
    def both(line):
        return line["making_seconds"] + line["taking_in_seconds"]

    table = []
    for line in lines:
        values = (1e6 * each(line, "making_seconds"), 1e6 * each(line, "taking_in_seconds"), 100 * both(line) / whole(line))
        result.rows.append((where, line["kernel"], line["reduction"], int(line["event_loggers"]), int(line["ranks"]), int(line["messages"]), *(f"{value:.4f}" for value in values)))
        table.append([line["kernel"], int(line["ranks"]), method(line), *map(number, values)])
    result.table([where, "ranks", "", "making, µs a message", "taking in, µs a message", of_what], table)
    result.panels += panels(lines, "µs a message", lambda line: 1e6 * both(line) / line["messages"], where)
    for kernel, by in each_at(lines).items():
        times = {key: both(line) for key, line in by.items()}
        told = ", ".join(f"{name} {1e6 * times[name, 0] / by[name, 0]['messages']:.2f}" for name in REDUCTIONS)
        result.finding(f"{kernel}, 16 ranks, no event logger: graphs take longer than sequences ({where})", f"{told} µs a message", min(times["manetho", 0], times["logon", 0]) > times["vcausal", 0])
        result.finding(f"{kernel}, 16 ranks: an event logger saves time with every method ({where})", ", ".join(f"{name} {times[name, 0] / times[name, 1]:.1f} ×" for name in REDUCTIONS),
                       all(times[name, 1] < times[name, 0] for name in REDUCTIONS))


def collection(setting):
    result = Result(("where", "kernel", "event_loggers", "ranks", "bytes", "events", "network_ms", "taking_in_ms", "together_ms"))
    lines = []
    for kernel in KERNELS:
        if counts := numbers(setting, kernel):
            lines += study((kernel,), counts, ("vcausal",), (1, 0), 20_000 if setting.quick else 100_000)
    if not lines:
        raise Failed("no kernel runs on these ranks: powers of two, for bt square numbers")

    def network_time(line):
        return 1e3 * line["collection_model_seconds"]

    def total(line):
        return network_time(line) + 1e3 * line["collection_taking_in_seconds"]

    table = []
    for line in lines:
        taking = 1e3 * line["collection_taking_in_seconds"]
        result.rows.append(("simulated", line["kernel"], int(line["event_loggers"]), int(line["ranks"]), int(line["collected_bytes"]), int(line["collected_events"]),
                            *(f"{value:.4f}" for value in (network_time(line), taking, total(line)))))
        table.append([line["kernel"], int(line["ranks"]), method(line), f"{line['collected_bytes']:,.0f}", f"{line['collected_events']:,.0f}", number(network_time(line)), number(taking), number(total(line))])
    result.table(["simulated", "ranks", "", "bytes", "events", "network, ms", "taking in, ms (this machine)", "both, ms"], table)
    result.tables.append(COST_NOTE + " Rank 0 is lost after so many deliveries of all ranks together.")
    result.panels = panels(lines, "time to collect, ms", total)
    faster(result, lines, total, "simulated")
    result.note = "times of this machine for taking in only"
    collected(setting, result)
    return result


def faster(result, lines, time, where):
    for kernel, by in each_at(lines).items():
        ratio = time(by["vcausal", 0]) / time(by["vcausal", 1])
        result.finding(f"{kernel}, 16 ranks: collecting with an event logger is at least five times faster ({where})", f"{ratio:.1f} ×", ratio >= 5)


def collected(setting, result):
    """On real processes, as far as this binary offers causal: a rank is killed when it has made half of its sends and deliveries."""
    variants = setting.variants(result, lambda variant: variant in CAUSAL and "vcausal" in variant.options)
    counts = real_numbers(setting)
    if not variants or not counts:
        return
    rounds, lines, table = Rounds(setting.quick), [], []
    size_class, repetitions = ("S", 1) if setting.quick else ("W", 5)
    for kernel, ranks in counts:
        stats, _ = stats_of(variants[0].contender(), ranks, kernel, size_class)
        half = sum(stats["ranks"][VICTIM][what] for what in ("messages", "deliveries")) // 2
        runs = rounds.go([v.contender() for v in variants], repetitions, partial(collecting, ranks=ranks, program=(kernel, size_class), moment=half))
        for variant in variants:
            line = {"kernel": kernel, "ranks": ranks, "reduction": "vcausal", "event_loggers": int(variant.options[-1])}
            lines.append(line | {"together": median(runs[variant.name])})
            result.rows.append(("measured", kernel, line["event_loggers"], ranks, "", "", "", "", f"{lines[-1]['together']:.4f}"))
            table.append([kernel, ranks, method(line), spread(runs[variant.name])])
    result.table(["measured", "ranks", "", "collecting, ms"], table)
    result.tables.append(f"{REAL_NOTE} Rank {VICTIM} is killed when it has made half of its sends and deliveries.")
    result.panels += panels(lines, "time to collect, ms", lambda line: line["together"], "measured")
    faster(result, lines, lambda line: line["together"], "measured")
    result.note = f"simulated: {result.note}; measured: {rounds.note()}"


def collecting(contender, ranks, program, moment):
    """Milliseconds that a rank took to collect that was killed after `moment` sends and deliveries, and the share of others."""
    stats, others = stats_of(contender, ranks, *program, options=("--fault", f"rank={VICTIM},messages={moment}"))
    times = [life["collect_seconds"] for life in stats["recoveries"]["each"] if life["collect_seconds"] is not None]
    if not times:
        raise Failed(f"{contender.name}: rank {VICTIM} of {' '.join(program)} on {ranks} ranks has not collected anything")
    return 1e3 * median(times), others


FIGURES = (
    Figure(
        "causal-6", "causal", 6, "Ping-pong under causal logging, with and without an event logger", ping_pong,
        "With an event logger about half of the messages carried no events (2397 of 4999), and all methods had the same latency. Without one, every message carried the one event that "
        "the other side did not know; latency was 5.2 % higher with vcausal, and 10.4 % with the graphs, which grew with every message.",
        "The modelled ping-pong answers as soon as a message has come, and the acknowledgement of the event logger is a round trip away: it never comes before the answer leaves, which therefore always carries its one event. In the "
        "paper a daemon, a pipe and the process stood between message and answer, and the acknowledgement had about even odds. What the rank sends to the logger leaves before the answer through the same interface, which costs latency where the model has a logger. In this implementation a graph that grows costs nothing when it is not walked: what both ends know already is not crossed again. A piggyback without events is 3 to 5 bytes.",
    ),
    Figure(
        "causal-7", "causal", 7, "What is piggybacked, by kernel, ranks and method", volume,
        "On 16 nodes vcausal without an event logger added 7 % to the data of BT, 12 % to that of CG and 51 % to that of LU; the graphs added 7 to 11 % to that of LU. With an event logger CG fell to 4 % of that volume with "
        "vcausal, 14 % with Manetho and 6 % with LogOn; LU, where one event logger could not keep up any more, by 70 % with vcausal and by at least half with the graphs. LogOn took more bytes than "
        "Manetho for the same events, because it cannot name a receiver once for many.",
        "An event takes 4 to 6 bytes here (theirs were of fixed size, and larger), and an empty piggyback 3 to 5. So shares of the "
        "payload are smaller. The saving in bytes is less than that in events, because fewer events share the head that names their receiver. The model knows the order of messages and their sizes, not the noise of a real machine. In the wave front of LU, and in CG's exchanges between pairs, "
        "nothing comes back from a receiver before its neighbours have sent as well; a graph can then know no more about it than the sequences do, so the methods differ less than in the paper. Larger jobs show the "
        "limit of one event logger: its acknowledgements name all ranks, so that its work grows with their number twice over. "
        "Measured, classes are smaller and so are their messages, of which piggybacks are a larger share; and ranks share the cores with the event logger, "
        "so that it may have to wait for one while they send on, and what it has not acknowledged is piggybacked.",
    ),
    Figure(
        "causal-8", "causal", 8, "Time for piggybacks, by kernel, ranks and method", computing,
        "Vcausal took least time with an event logger as well as without: 18 % of CG and 26 % of LU on 16 nodes without one, against 26 and 30 % with Manetho and 26 and 42 % with LogOn. An event logger lowered that to 2.4 and 10.6 % (vcausal). "
        "Manetho spent more in taking in, LogOn in making.",
        "Here the time follows the number of events that are carried, whatever the method: the graph is crossed only from what has become known since the last message, not as a whole for each message, so that the graphs' advantage in volume is one in time as well. "
        "The processor is some ten times faster than theirs and messages are far more frequent in the modelled run, so shares of the run say little across fifteen years; the ratios between methods do. "
        "Measured, ranks share cores and caches with one another and the event logger: a piggyback that is timed while its rank loses its core takes as long as others have it. "
        "The share is of the processors' time, not of the ranks', which wait for a core most of the time when there are more ranks than cores.",
    ),
    Figure(
        "causal-10", "causal", 10, "Time to collect determinants, with and without an event logger", collection,
        "With an event logger it took 17 % of the time without (BT, 9 processes), 12 % (16) and 10 % (25). On CG, from 1 to 15 other nodes, it grew by 19 % with an event logger and more than ninefold without.",
        "A life here takes in all that others know, of all ranks, and not only its own deliveries, because its replay will depend on it; it asks everybody even where there is an event logger. With one, the others have little left to tell. Without "
        "one each tells the whole history, so the time grows with ranks times history, more steeply than in the paper. "
        "Measured, nothing crosses a network: ranks share a node, and a life that begins again reads what the others know where they have written it, in shared memory; without an event logger it exchanges no messages with all. "
        "What is left is reading and taking in, and with an event logger its answer through a socket; the ranks that go on, and the event logger, want the same cores meanwhile. So an event logger can save less than in the paper, the less the shorter the run is.",
    ),
)
