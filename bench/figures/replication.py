# SPDX-License-Identifier: Apache-2.0
"""Walters 2007, figures 1 to 4: checkpoints on local disks, on a server, on shared storage, and replicas on other nodes."""

import contextlib
import json
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean, median

import cluster
from contenders import RESURGO, Contender, Failed, Job, Rounds, environment
from figures.common import Figure, Result
from report import number, spread
from svg import Panel, around

LINK = "1gbit"
LINK_BYTES = 117e6  # a second, that a program gets of it
COPIES = LINK_BYTES / 2  # of which copies to other nodes take so much
SAN_BYTES = 40e6  # a second, of the shared storage for all nodes together: its share of four links is that of the paper's SAN
RUN = 12.0  # seconds that a program should last, at least
PORT = 4717


@dataclass(frozen=True)
class Way:
    """Where images go besides the memory of their own node."""

    name: str
    options: tuple
    is_place: bool = False  # beyond the nodes: a wave counts when it is there


@cache
def offers_peers():
    told = subprocess.run([RESURGO, "run", "--help"], capture_output=True, text=True, check=False).stdout
    return "peers:" in told


def replicas(count):
    """The image of each node on so many others."""
    name = f"{count} replica{'s' * (count > 1)}"
    return Way(name, () if count == 1 else ("--store", f"peers:{count}"))


class Laboratory:
    """Nodes with a link each, one of them with a checkpoint server, and a directory that is the shared storage."""

    def __init__(self, nodes, link=LINK):
        self.nodes, self.link = nodes, link
        self.cluster = cluster.Cluster(nodes + 1)
        self.directory = tempfile.TemporaryDirectory(prefix="resurgo-bench-", dir=Path.cwd())

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            self.path = Path(stack.enter_context(self.directory)).resolve()
            stack.enter_context(self.cluster)
            for node in self.cluster.nodes:
                self.cluster.shape(node, self.link)
            server = self.nodes + 1
            command = ["ip", "netns", "exec", self.cluster.space(server), RESURGO, "checkpoint-server", "--directory", self.path / "server",
                       "--listen", f"{self.cluster.address(server)}:{PORT}"]
            self.server = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True)
            stack.callback(self.end)
            if not self.server.stdout.readline():
                raise Failed("the checkpoint server does not start")
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *_):
        self.stack.close()

    def end(self):
        self.server.kill()
        self.server.wait()
        self.server.stdout.close()

    @property
    def place(self):
        """The checkpoint server, as a place."""
        return f"server:{self.cluster.address(self.nodes + 1)}:{PORT};key={self.path}/server/keys"

    def on_nodes(self, name, protocol, *options):
        """A rank on each node."""
        hosts = ",".join(f"{self.cluster.address(node)}:1" for node in range(1, self.nodes + 1))
        launcher = (RESURGO, "run", "-q", "--protocol", protocol, "--launcher", "ssh", "-hosts", hosts)
        path = f"{self.cluster.bin}:{environment()['PATH']}"
        return Contender(name, (*launcher, *options), (("PATH", path),))

    def ways(self):
        # All nodes see one directory here, so images in it are not copied to other nodes.
        files = ("--checkpoint-dir", "images")
        share = int(SAN_BYTES / self.nodes)
        return {
            "server": Way("checkpoint server", (*files, "--store", self.place), True),
            "san": Way("shared storage", (*files, "--store", f"dir:{self.path}/san;rate={share}"), True),
        }

    def contender(self, way, every):
        """`every`: seconds between waves; none: no images."""
        images = () if every is None else ("--checkpoint-every", f"{1e3 * every:.0f}ms", *way.options)
        name = "none" if every is None else f"{way.name}, {every:g} s"
        return self.on_nodes(name, "blocking", *images)


@dataclass(frozen=True)
class Run:
    seconds: float
    waves: int  # complete: for replicas, with all copies
    stored: int  # in the place
    cost: float  # seconds that ranks stood still for a wave
    asked: float  # from its request until they stood still
    writing: float  # to write the file of one rank
    image: float  # bytes of a rank


def once(contender, ranks, program, options=()):
    """One run, and what others used of the machine meanwhile."""
    with tempfile.TemporaryDirectory(prefix="resurgo-bench-", dir=Path.cwd()) as directory:
        with Job(contender, ranks, *program, options=(*options, "--stats-json", "stats"), directory=directory) as job:
            job.wait(300)
            seconds = max(event["time"] for event in job.of("finished"))
            stats = json.loads((job.directory / "stats").read_text())
            others = job.others
    each = stats["checkpoints"]["each"]
    of = lambda values: mean(values) if values else 0.0
    standing = of([one["individual_seconds"] for one in each])
    sizes = [one["bytes"] / one["files"] for one in each if one["bytes"] and one["files"]]
    written = [one["write_seconds"] for one in each if one["write_seconds"]]
    return Run(seconds, stats["checkpoints"]["waves"], sum(place["waves"] for place in stats["places"]), standing,
               of([one["total_seconds"] for one in each]) - standing, of(written), of(sizes)), others


def lasting(contender, ranks, mib, length):
    """The model program with artificial memory and so many rounds that it lasts long enough; all ranks talk to one another."""
    def seconds(rounds):
        return once(contender, ranks, ("groups", ranks, rounds, mib))[0].seconds

    # Without the time that the memory is filled in.
    few, rounds = seconds(1), 200
    while (took := max(seconds(rounds) - few, length / 100)) < 0.7 * length:
        rounds = int(rounds * min(10, 1.1 * length / took))
    return ("groups", ranks, rounds, mib)


def programs(contender, ranks, quick, kernels=("lu",)):
    """By name: kernels with the memory that they have, and the model program with more, all of which it writes to."""
    if quick:
        return {"8 MiB a rank": lasting(contender, ranks, 8, 3)}
    return {f"{kernel} A": (kernel, "A") for kernel in kernels} | {"64 MiB a rank": lasting(contender, ranks, 64, RUN)}


def needs_root():
    if not cluster.is_possible():
        raise Failed("the emulated nodes need root, ip(8) and tc(8)")


def overhead(values, base):
    return [100 * (run.seconds / base - 1) for run in values]


def local_disks(setting):
    result = Result(("program", "every_s", "seconds", "overhead_percent", "waves", "coordination_ms", "standstill_ms", "writing_ms", "image_bytes"))
    ranks, repetitions = (2, 1) if setting.quick else (4, 2)
    rounds = Rounds(setting.quick)
    launcher = (RESURGO, "run", "-q", "--protocol", "blocking")
    plain = Contender("none", launcher)
    intervals = (0.5,) if setting.quick else (1, 2, 4, 8)
    split, slow, times = [], [], {}
    for name, program in programs(plain, ranks, setting.quick, ("lu", "bt")).items():
        with tempfile.TemporaryDirectory(prefix="resurgo-bench-", dir=Path.cwd()) as directory:
            every = lambda seconds, d=directory: ("--checkpoint-every", f"{1e3 * seconds:.0f}ms", "--checkpoint-dir", d)
            contenders = [plain, *(Contender(f"{seconds:g} s", (*launcher, *every(seconds))) for seconds in intervals)]
            runs = rounds.go(contenders, repetitions, lambda c, p=program: once(c, ranks, p))
        base = median(run.seconds for run in runs["none"])
        result.rows.append((name, "", f"{base:.3f}", "", 0, "", "", "", ""))
        for contender in contenders[1:]:
            for run in runs[contender.name]:
                result.rows.append((name, contender.name.removesuffix(" s"), f"{run.seconds:.3f}", f"{100 * (run.seconds / base - 1):.2f}", run.waves,
                                    f"{1e3 * run.asked:.2f}", f"{1e3 * run.cost:.2f}", f"{1e3 * run.writing:.2f}", f"{run.image:.0f}"))
        last = [run for contender in contenders[1:] for run in runs[contender.name]]
        parts = [1e3 * mean(values) for values in zip(*((run.asked, run.cost, run.writing) for run in last))]
        split.append([name, number(mean(run.image for run in last) / 2**20), *map(number, parts)])
        times[name] = parts
        slow.append([name, number(base), *(spread(overhead(runs[c.name], base)) for c in contenders[1:])])
        result.panels.append(Panel(name, "seconds between waves", "overhead, %",
                                   {"blocking, local disk": [around(c.name.removesuffix(" s"), overhead(runs[c.name], base)) for c in contenders[1:]]}))
    result.tables.append("One wave: from its request until ranks stand still (they compute on), how long they stand still, and how long a rank's file is written, "
                         "in the background.")
    result.table(["program", "MiB a rank", "coordination, ms", "standstill, ms", "writing, ms"], split)
    result.tables.append("Overhead by the time between waves; the paper's minutes are seconds here.")
    result.table(["program", "without images, s", *(f"each {seconds:g} s, %" for seconds in intervals)], slow)
    dwarfed = all(writing > standing for _, standing, writing in times.values())
    result.finding("writing the file is the largest part and dwarfs the coordination",
                   "; ".join(f"{name}: writing {number(w)} ms, standstill {number(s)} ms" for name, (_, s, w) in times.items()), dwarfed)
    result.finding("the program waits for the file", "it stands still for the copy of its memory only", False)
    result.note = rounds.note()
    return result


COLUMNS = ("where", "nodes", "program", "way", "every_s", "seconds", "overhead_percent", "waves", "stored", "standstill_ms", "image_bytes", "counts_after_s")


def compare(result, laboratory, ways, named, intervals, repetitions, rounds):
    """Runs without images and with each way and interval: {(program, way, interval): runs}, {program: seconds without}."""
    runs, bases, ranks = {}, {}, laboratory.nodes
    for name, program in named.items():
        contenders = {(None, None): laboratory.contender(None, None)}
        contenders |= {(way.name, every): laboratory.contender(way, every) for way in ways for every in intervals}
        found = rounds.go(list(contenders.values()), repetitions, lambda c, p=program: once(c, ranks, p))
        bases[name] = base = median(run.seconds for run in found["none"])
        result.rows.append(("measured", ranks, name, "no images", "", f"{base:.3f}", "", 0, 0, "", "", ""))
        for (way, every), contender in contenders.items():
            if way is None:
                continue
            runs[name, way, every] = found[contender.name]
            result.rows += [("measured", ranks, name, way, every, f"{run.seconds:.3f}", f"{100 * (run.seconds / base - 1):.2f}", run.waves, run.stored,
                             f"{1e3 * run.cost:.2f}", f"{run.image:.0f}", "") for run in runs[name, way, every]]
    return runs, bases


def waves_of(run, way):
    """Waves that count: in the place, or with all copies on other nodes."""
    return run.stored if way.is_place else run.waves


def show(result, runs, bases, ways, intervals):
    rows = []
    for name, base in bases.items():
        panel = {}
        for way in ways:
            cells = []
            for every in intervals:
                these = runs[name, way.name, every]
                cells += [spread(overhead(these, base)), number(median(run.seconds / max(1, waves_of(run, way)) for run in these))]
                panel.setdefault(way.name, []).append(around(f"{every:g}", overhead(these, base)))
            rows.append([name, number(base), way.name, *cells])
        result.panels.append(Panel(name, "seconds between waves", "overhead, %", panel))
    head = [cell for every in intervals for cell in (f"each {every:g} s: overhead, %", "a wave each, s")]
    result.tables.append("Overhead against no images, and after how many seconds there was one more wave that counts: in the place, or with all copies. The program does not wait "
                         "for these: where storage is slow there are fewer.")
    result.table(["program", "without, s", "images go to", *head], rows)


def total(runs, bases, way, every):
    """Over all programs: overhead in per cent, and seconds for one more wave that counts."""
    these = [(median(overhead(runs[name, way.name, every], base)), median(run.seconds / max(1, waves_of(run, way)) for run in runs[name, way.name, every]))
             for name, base in bases.items()]
    return tuple(mean(values) for values in zip(*these))


def server_against_storage(setting):
    return centralized(setting, ("server", "san"))


def one_replica(setting):
    return centralized(setting, ("replica", "server"))


def centralized(setting, which):
    needs_root()
    result = Result(COLUMNS)
    nodes, repetitions, intervals = (2, 1, (0.5,)) if setting.quick else (4, 2, (2, 4))
    rounds = Rounds(setting.quick)
    with Laboratory(nodes) as laboratory:
        all_ways = laboratory.ways() | {"replica": replicas(1)}
        ways = [all_ways[name] for name in which]
        named = programs(laboratory.contender(None, None), nodes, setting.quick)
        runs, bases = compare(result, laboratory, ways, named, intervals, repetitions, rounds)
    show(result, runs, bases, ways, intervals)
    every = intervals[0]
    first, second = (total(runs, bases, way, every) for way in ways)
    told = "; ".join(f"{way.name} {slow:+.1f} %, a wave each {number(each)} s" for way, (slow, each) in zip(ways, (first, second)))
    if which == ("server", "san"):
        result.finding("streaming to a server costs less than writing to shared storage", f"each {every:g} s: {told}",
                       first[0] < second[0] + 1 and first[1] <= second[1] * 1.1)
    else:
        result.finding("a replica on another node costs at most half of what one server for all does", f"each {every:g} s: {told}",
                       first[0] <= max(second[0] / 2, 1) or first[1] < second[1] * 0.75)
    result.note = rounds.note()
    return result


def scaling(setting):
    needs_root()
    result = Result(COLUMNS)
    counts, repetitions, mib, every = ((3,), 1, 8, 0.5) if setting.quick else (setting.ranks or (3, 5, 8), 1, 64, 3)
    rounds = Rounds(setting.quick)
    rows, panel, costs = [], {}, []
    for nodes in counts:
        with Laboratory(nodes) as laboratory:
            most = min(4 if offers_peers() else 1, nodes - 1)
            ways = [*(replicas(count) for count in range(1, most + 1)), *laboratory.ways().values()]
            program = lasting(laboratory.contender(None, None), nodes, mib, 3 if setting.quick else RUN)
            runs, bases = compare(result, laboratory, ways, {f"{mib} MiB a rank": program}, (every,), repetitions, rounds)
        for (name, way, _), these in runs.items():
            slow = overhead(these, bases[name])
            kind = next(one for one in ways if one.name == way)
            each = median(run.seconds / max(1, waves_of(run, kind)) for run in these)
            rows.append([nodes, way, number(bases[name]), spread(slow), number(each)])
            panel.setdefault(way, []).append(around(nodes, slow))
            costs.append((kind, nodes, median(slow) / 100, bases[name], these[0]))
    if not offers_peers():
        result.left_out.append("2 to 4 replicas: this binary has no `--store peers:N`")
    result.tables.append(f"Measured: nodes with {mib} MiB each, all of it written to meanwhile, and a wave each {every:g} s.")
    result.table(["nodes", "images go to", "without, s", "overhead, %", "a wave that counts each, s"], rows)
    result.panels = [Panel("measured", "nodes", "overhead, %", panel)]
    on_larger_clusters(result, costs)
    result.note = rounds.note()
    return result


# Figure 4: 1 GB a node, an image each 16 minutes; per cent at 64, 128 and 256 nodes, where the text gives them.
PAPER = {"1 replica": {64: 3, 256: 6}, "4 replicas": {128: 15.4, 256: 18.7}, "shared storage": {128: 37.5, 256: 55}}
IMAGE, EVERY = 1e9, 960.0
# Bytes a second of the paper's parallel file system: 256 GB in 55 % of a run of 1000 s.
STORAGE = 465e6


def slowdown(costs):
    """The part of its time that a program lost while images travelled, in the mean over the measured runs with replicas."""
    shares = []
    for way, _, slow, base, run in costs:
        if not way.is_place and run.waves:
            sending = run.waves * int(way.name.split()[0]) * (run.image or 64 * 2**20) / COPIES
            shares.append(min(1.0, max(0.0, (slow * base - run.waves * run.cost) / max(sending, 1e-9))))
    return median(shares) if shares else 0.1


def on_larger_clusters(result, costs):
    """The paper's sizes, with measured costs: what a program loses while images travel, and how long it stands still for one."""
    share = slowdown(costs)
    standing = median(run.cost for *_, run in costs) + IMAGE * 20e-3 / 2**30
    rows, panel, waits, rate = [], {}, {}, {"checkpoint server": LINK_BYTES, "shared storage": STORAGE}
    for nodes in (8, 16, 32, 64, 128, 256, 512, 1024):
        sending = {replicas(k).name: k * IMAGE / COPIES for k in range(1, 5)} | {place: nodes * IMAGE / bytes for place, bytes in rate.items()}
        for way, seconds in sending.items():
            # Waves are no closer than they are copied.
            every = max(EVERY, seconds)
            slow, waits[way, nodes] = 100 * (standing + share * seconds) / every, 100 * (standing + seconds) / EVERY
            rows.append([nodes, way, number(seconds), number(every), number(slow), number(waits[way, nodes]), PAPER.get(way, {}).get(nodes, "")])
            panel.setdefault(way, []).append((nodes, seconds))
            result.rows.append(("modelled", nodes, "1 GB a node", way, f"{every:.0f}", "", f"{slow:.4f}", "", "", f"{1e3 * standing:.2f}", int(IMAGE), f"{seconds:.2f}"))
    result.tables.append(f"Modelled with measured costs: 1 GB a node, a wave each 16 minutes. Links have {LINK_BYTES / 1e6:.0f} MB/s, of which copies to other nodes take half; one server has such "
                         f"a link; shared storage has {STORAGE / 1e6:.0f} MB/s, as the paper's parallel file system. While images travel the program loses {share:.0%} of its time (measured above), "
                         f"and it stands still for {number(1e3 * standing)} ms. Beside it the overhead if ranks waited, as in the paper; and the paper's, where its text has one.")
    result.table(["nodes", "images go to", "a wave counts after, s", "a wave each, s", "overhead, %", "if ranks waited, %", "paper, %"], rows)
    result.panels.append(Panel("1 GB a node, modelled", "nodes", "until a wave counts, s", panel, True))
    begins = [f"{replicas(k).name}: {', '.join(f'{place} from {int(k * bytes / COPIES) + 1} nodes on' for place, bytes in rate.items())}" for k in range(1, 5)]
    result.finding("replicas are there earlier than central storage has all images, the more the larger the cluster is", "they beat, " + "; ".join(begins), True)
    result.finding("4 replicas on 256 nodes cost 18.7 %, the parallel file system 55 %",
                   f"if ranks waited: {waits['4 replicas', 256]:.1f} % and {waits['shared storage', 256]:.1f} %", waits["4 replicas", 256] < waits["shared storage", 256])


WHY = ("Here no rank waits for its file: a copy of its memory is written or sent while it goes on. So slow storage shows as waves that are fewer, not as a program that stands still. "
       "What sending costs is processor time, on 2 cores that all nodes share, and the links' bandwidth. The nodes are network namespaces with links of 1 Gbit/s, the shared storage is a directory "
       "that takes 40 MB/s of all nodes together. Images are smaller and closer together than the paper's, both by about 16 to 60.")

FIGURES = (
    Figure(
        "walters-1", "Walters", 1, "Checkpoints on local disks", local_disks,
        "LAM/MPI wrote images of 106 to 797 MB to local disks each 1 to 8 minutes. The time to write the file was nearly all of the overhead, and dwarfed the coordination before it and "
        "the barrier after it. Ranks waited for all of it.",
        "Ranks stand still while their memory is copied by the kernel (20 ms for a GiB, later by page); the file is written by the copy. So coordination and standstill are the cost, and writing "
        "takes a processor and the disk only. There is no barrier after it. On 2 cores the writing copies and the ranks share processors.",
    ),
    Figure(
        "walters-2", "Walters", 2, "One checkpoint server against shared storage", server_against_storage,
        "Each 4 minutes LU lost 6 % to a server and 14 % to the SAN, SP 25 % to the SAN, and BT (500 MB) 38 % to the server and 134 % to the SAN. Each 8 minutes SP lost 4 % and BT 16 % to the "
        "server. The server was overwhelmed as images grew.",
        WHY,
    ),
    Figure(
        "walters-3", "Walters", 3, "One replica on another node", one_replica,
        "Against one server the overhead fell by at least half: BT lost 9 % each 4 minutes and 5.5 % each 8 minutes, instead of 38 % and 16 %. HPL with 797 MB lost 2.2 % with one checkpoint.",
        WHY,
    ),
    Figure(
        "walters-4", "Walters", 4, "Replicas by the number of nodes", scaling,
        "HPL with 1 GB a node on 64 to 256 nodes and a checkpoint each 16 minutes: one replica cost 3 % on 64 nodes and 6 % on 256, four replicas 15.4 % on 128 and 18.7 % on 256. The parallel file "
        "system cost 37.5 % and 55 %, the SAN far more.",
        WHY + " The machine carries eight nodes at most; larger clusters are modelled.",
    ),
)
