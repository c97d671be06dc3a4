# SPDX-License-Identifier: Apache-2.0
"""Gabriel, Fagg et al. (FT-MPI), figure 3 and tables 1 and 2: messages between two ranks, and Linpack by block size."""

from statistics import median

import machine
from contenders import DEFAULT, RESURGO, TCP, Contender, Failed, Rounds, offered, run
from figures.common import LOGGING, Figure, Result, Variant
from figures.mpich_v import TOUCHED, half_round_trips_of
from pingpong import size_name
from report import spread
from svg import Panel, around

FT = Contender("--ft", (RESURGO, "run", "-q", "--ft"))
SHORT = 1 << 10
MEDIUM = 128 << 10
# Bytes → round trips of a batch.
SIZES = {0: 500, 8: 500, 64: 500, 256: 500, 512: 500, 1 << 10: 500, 4 << 10: 500, 16 << 10: 300, 32 << 10: 200, 64 << 10: 100,
         128 << 10: 60, 256 << 10: 40, 512 << 10: 20, 1 << 20: 15, 2 << 20: 8}
QUICK_SIZES = {0: 200, 1 << 10: 200, 64 << 10: 50, 1 << 20: 10}
RANKS = 4
BLOCKS = (16, 32, 48, 80, 128, 160, 240)
MODES = ("shrink", "blank", "rebuild")
# Of MPI_Allreduce: bytes → the most of them in a batch.
REDUCED = {8: 20000, 64: 20000, 1 << 10: 5000, 64 << 10: 250}
KINDS = ("up to 4 KiB", "above 20 KB", "above 100 KB", "above 1 MB")
AUTO = Variant("auto", "–", "auto")
WANTED = ("none", "pessimistic", "blocking", "auto")
# Seconds of the paper's table 1: block size → FT-MPI, MPICH 1.2.5, LAM 6.5.9, MPICH2 0.9.3.
PAPER = {16: (25.25, 28.84, 25.78, 24.97), 32: (20.51, 20.61, 20.78, 19.90), 48: (28.00, 28.16, 28.31, 27.43), 80: (18.18, 18.18, 18.50, 17.41),
         128: (22.96, 22.86, 23.03, 22.07), 160: (18.97, 18.89, 19.24, 18.03), 240: (20.05, 19.88, 20.28, 19.09)}


def contenders(setting, result, references, *options):
    """MPICH, programs that deal with failures themselves, and transparent protocols."""
    if "--ft" not in offered()[1]:
        raise Failed("this binary has no --ft")
    variants = setting.variants(result, lambda variant: variant.name in WANTED, more=(AUTO,))
    log = (*LOGGING, "auto")
    return [*references, FT, *(v.contender(*(options if v.protocol in log else ())) for v in variants)]


def messages(setting):
    result = Result(("contender", "bytes", "half_round_trip_us", "megabytes_per_second"))
    sizes = QUICK_SIZES if setting.quick else SIZES
    taking_part = contenders(setting, result, (DEFAULT, TCP), *TOUCHED)
    runs, times = half_round_trips_of(result, setting, taking_part, sizes, [size for size in sizes if size > MEDIUM])
    for title, which, unit in (("short messages", lambda s: s <= SHORT, False), ("medium messages", lambda s: 0 < s <= MEDIUM, True), ("long messages", lambda s: s > 0, True)):
        lines = {name: [around(size_name(s), ((s / one[s] if unit else one[s]) for one in values)) for s in sizes if which(s)] for name, values in runs.items()}
        result.panels.append(Panel(title, "bytes", "MB/s" if unit else "half a round trip, µs", lines, True))

    def ratio(one, other, which):
        return median(times[one][size] / times[other][size] for size in sizes if which(size))

    short = ratio(FT.name, DEFAULT.name, lambda size: size <= SHORT)
    result.finding("short messages: FT-MPI lies between MPICH2 and MPICH 1.2.5", f"{short:.2f} × MPICH's time", short > 1)
    largest = max(sizes)
    kept = times[DEFAULT.name][largest] / times[FT.name][largest]
    result.finding("long messages: FT-MPI and MPICH2 have the highest bandwidth (67 and 65 MB/s)", f"{kept:.2f} × MPICH's", kept > 0.97)
    if "none" in times:
        layer = ratio(FT.name, "none", lambda size: size <= SHORT)
        result.finding("(not in the paper) the layer above MPI costs at most 3 % of short messages' latency", f"{layer - 1:+.1%}", layer < 1.03)
    reductions(setting, result)
    return result


def reductions(setting, result):
    """MPI_Allreduce with the library, without it on the same provider, and under MPICH."""
    none = [variant.contender() for variant in setting.variants(result, lambda variant: variant.name == "none")]
    rounds, rows, layers = Rounds(setting.quick), [], []
    for ranks in (2,) if setting.quick else (2, 4):
        # With more ranks than cores, those of MPICH that share memory take the cores while they wait.
        taking_part = [*((DEFAULT,) if machine.CORES >= ranks else ()), TCP, *none, FT]

        def times(contender, ranks=ranks):
            output, _, others = run(contender, ranks, "crowd", 0.1 if setting.quick else 0.3, *(f"allreduce:{size}:{most}" for size, most in REDUCED.items()))
            return [float(line.split()[1]) for line in output.splitlines()], others

        runs = rounds.go(taking_part, 2 if setting.quick else 7, times)
        for at, size in enumerate(REDUCED):
            by = {name: [values[at] for values in all_of] for name, all_of in runs.items()}
            rows.append([ranks, size_name(size), *(spread(by[one.name]) if one.name in by else "–" for one in (DEFAULT, TCP, *none, FT))])
            layers += [median(by[FT.name]) / median(by[one.name]) for one in none]
            result.finding(f"(not in the paper) MPI_Allreduce, {ranks} ranks, {size_name(size)}: as fast as {taking_part[0].name}",
                           f"{median(by[FT.name]) / median(by[taking_part[0].name]):.2f} ×", median(by[FT.name]) < 1.03 * median(by[taking_part[0].name]))
    if layers:
        result.finding("(not in the paper) the layer above MPI costs at most 3 % of MPI_Allreduce", f"{median(layers) - 1:+.1%}, median", median(layers) < 1.03)
    result.table(["ranks; µs of MPI_Allreduce", "bytes", *(one.name for one in (DEFAULT, TCP, *none, FT))], rows)


def linpack(setting):
    result = Result(("block", "contender", "seconds"))
    n, repetitions = (400, 1) if setting.quick else (2000, 5)
    blocks = (16, 80, 240) if setting.quick else BLOCKS
    # With more ranks than cores, those of MPICH that share memory take the cores while they wait.
    reference = DEFAULT if machine.CORES >= RANKS else TCP
    taking_part = contenders(setting, result, (reference,))
    rounds = Rounds(setting.quick)
    table, sent, slower, lines = [], [], {}, {}
    for block in blocks:
        solutions = set()

        def seconds(contender, block=block, solutions=solutions):
            output, _, others = run(contender, RANKS, "linpack", n, block)
            words = output.split()
            solutions.add(tuple(words[1:]))
            return float(words[0]), others

        times = rounds.go(taking_part, repetitions, seconds)
        if len(solutions) != 1:
            raise Failed(f"block size {block}: the solutions differ: {solutions}")
        base = median(times[reference.name])
        table.append([block, *(spread(values) for values in times.values())])
        sent.append([block, *solutions.pop()[1:]])
        for name, values in times.items():
            result.rows += [(block, name, f"{value:.4f}") for value in values]
            slower.setdefault(name, {})[block] = median(values) / base
            lines.setdefault(name, []).append(around(str(block), (value / base for value in values)))
    result.table([f"block size; seconds for {n} unknowns", *slower], table)
    result.table([f"block size; time / {reference.name}", *slower], [[block, *(f"{by[block]:.3f}" for by in slower.values())] for block in blocks])
    result.table(["block size; messages of a process", *KINDS], sent)
    result.table(["the paper's seconds for 6000 unknowns", "FT-MPI", "MPICH 1.2.5", "LAM", "MPICH2"],
                 [[block, *(f"{seconds:.2f}" for seconds in PAPER[block])] for block in blocks])
    result.panels = [Panel(f"Linpack, {RANKS} ranks", "block size", f"time / {reference.name}", lines)]
    cost = median(slower[FT.name].values())
    result.finding("FT-MPI is 2 to 5 % slower than the fastest library", f"{cost - 1:+.1%} against {reference.name}, median of the block sizes", 1.02 <= cost <= 1.05)
    if "none" in slower:
        layer = median(slower[FT.name][block] / slower["none"][block] for block in blocks)
        result.finding("(not in the paper) the layer above MPI costs at most 3 %", f"{layer - 1:+.1%}, median of the block sizes", layer < 1.03)
    large = [sum(map(int, row[2:])) for row in sent]
    longest = [(int(row[4]) > 0, int(row[3]) + int(row[4]) > int(row[2])) for row in (sent[0], sent[-1])]
    result.finding("with larger blocks there are fewer messages above 20 KB, and they are longer", f"{', '.join(map(str, large))} of a process",
                   large[-1] < large[0] and longest[-1] >= longest[0])
    for name in WANTED:
        if name in slower:
            worst = max(slower[name], key=slower[name].get)
            result.finding(f"(not in the paper) {name}: as fast as {reference.name}", f"at worst {slower[name][worst]:.2f} × (block size {worst})", slower[name][worst] < 1.03)
    recovery(setting, result)
    result.note = rounds.note()
    return result


def recovery(setting, result):
    """What a failure costs a program that deals with it itself."""
    ranks = 4 if setting.quick else 16
    found = {}
    for _ in range(1 if setting.quick else 7):
        output, _, _ = run(FT, ranks, "lost")
        for line in output.splitlines():
            size, *times = map(float, line.split())
            found.setdefault(int(size), []).append(times)
    rows = [[size, *(spread([one[at] / 1e3 for one in times]) for at in range(3))] for size, times in sorted(found.items())]
    result.table(["ranks; ms from the death of one", "all know of it", "they have a smaller communicator (ULFM)", "and have used it"], rows)
    rows = []
    for mode in MODES:
        contender = Contender(f"--ft-mode {mode}", (RESURGO, "run", "-q", "--ft-mode", mode))
        for size in (4,) if setting.quick else (4, 16):
            output, _, _ = run(contender, size, "lost_ftmpi", 1 if setting.quick else 3)
            times = [[float(word) for word in line.split()] for line in output.splitlines()]
            rows.append([mode, size, *(spread([one[at] / 1e3 for one in times]) for at in range(3))])
    result.table(["FT-MPI's mode", "ranks; ms from the death of one", "all know of it", "they have MPI_COMM_WORLD again", "and have used it"], rows)


FIGURES = [
    Figure("ft-mpi-3", "FT-MPI", 3, "Messages of 0 to 2 MiB with a library for programs that deal with failures", messages,
           "16 nodes with Gigabit Ethernet. Short messages: LAM is the fastest, then MPICH2; FT-MPI lies between MPICH2 and MPICH 1.2.5. From 20 KB on LAM "
           "and MPICH 1.2.5 are 10 % slower than MPICH2 and FT-MPI, which reach 65 and 67 MB/s.",
           "FT-MPI was an MPI of its own; here a library stands above an unmodified MPICH, and Resurgo's provider below it. All ranks share one machine, so "
           "latencies are those of shared memory. `MPICH ofi/tcp` sends through sockets, as all libraries of the paper did."),
    Figure("ft-mpi-table-1", "FT-MPI", "tables 1 and 2", "A dense system of linear equations, as in Linpack, by block size", linpack,
           "6000 unknowns on 4 processes: FT-MPI takes 2 to 5 % longer than the fastest library, MPICH2. Up to blocks of 80 it is second, for larger ones "
           "equal to MPICH 1.2.5. With larger blocks messages are fewer and longer.",
           "The program is a small one of this project, with the algorithm of HPL but without its look-ahead and without BLAS, and with fewer unknowns. With "
           "more ranks than cores these take turns, and whoever waits without using a core is ahead. The times after a death are those of ULFM's calls."),
]
