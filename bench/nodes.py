# SPDX-License-Identifier: Apache-2.0
"""Two and four nodes: network namespaces on one bridge, against plain MPICH's ofi/tcp across the same ones. Needs root."""

from statistics import median

import cluster
import pingpong
import programs
from contenders import MPICH, RESURGO, Contender, Failed, Rounds, environment, run
from report import Section, spread

LATENCY = {8: 1000, 4096: 1000}
BANDWIDTH = {64 << 10: 200, 1 << 20: 30}
PROTOCOLS = ("none", "pessimistic", "auto")
# (µs, MB/s): how the half round trip and the bandwidth should compare with MPICH's.
BOUNDS = {"none": (0.8, 0.95), "pessimistic": (1.0, 0.95), "auto": (1.0, 0.95)}


def mpich(nodes):
    """MPICH's mpiexec across the nodes, by the same ssh."""
    launcher = (MPICH / "bin/mpiexec", "-launcher", "ssh", "-launcher-exec", nodes.bin / "ssh",
                "-localhost", nodes.address(0), "-iface", nodes.bridge, "-hosts", nodes.hosts(1))
    return Contender("MPICH ofi/tcp", launcher, (("MPIR_CVAR_CH4_NETMOD", "ofi"), ("FI_PROVIDER", "tcp")))


def resurgo(nodes, protocol):
    launcher = (RESURGO, "run", "-q", "--protocol", protocol, "--launcher", "ssh", "-hosts", nodes.hosts(1))
    return Contender(protocol, launcher, (("PATH", f"{nodes.bin}:{environment()['PATH']}"),))


def messages(section, rounds, quick):
    sizes = LATENCY | BANDWIDTH
    with cluster.Cluster(2) as nodes:
        contenders = [mpich(nodes), *(resurgo(nodes, protocol) for protocol in PROTOCOLS)]
        runs = rounds.go(contenders, 3 if quick else 9, lambda one: pingpong.half_round_trips(one, sizes))
    base = contenders[0].name
    times = {name: {size: [one[size] for one in values] for size in sizes} for name, values in runs.items()}
    for name in PROTOCOLS:
        slowest, fastest = BOUNDS[name]
        ratio = {size: median(times[name][size]) / median(times[base][size]) for size in sizes}
        for size in LATENCY:
            what = f"{name}: latency of {pingpong.size_name(size)} between two nodes"
            section.figure(what, f"≤ {slowest:.2f} ×", f"{ratio[size]:.2f} ×", ratio[size] <= slowest)
        for size in BANDWIDTH:
            what = f"{name}: bandwidth at {pingpong.size_name(size)} between two nodes"
            section.figure(what, f"≥ {fastest:.2f} ×", f"{1 / ratio[size]:.2f} ×", 1 / ratio[size] >= fastest)
    names = [contender.name for contender in contenders]
    rows = [[pingpong.size_name(size), *(spread(times[name][size]) for name in names)] for size in sizes]
    section.table(["half round trip, µs", *names], rows)


def whole_programs(section, rounds, quick):
    with cluster.Cluster(4) as nodes:
        contenders = [mpich(nodes), *(resurgo(nodes, protocol) for protocol in PROTOCOLS)]
        rows = []
        for name, line in (programs.QUICK if quick else programs.PROGRAMS).items():

            def seconds(contender, line=line):
                _, taken, others = run(contender, 4, *line)
                return taken, others

            times = rounds.go(contenders, 2 if quick else 5, seconds)
            for protocol, bound in (("none", 1.0), ("auto", 1.05)):
                section.at_most(f"{name} on four nodes: {protocol}", bound, times[protocol], times[contenders[0].name])
            rows.append([name, *(spread(times[contender.name]) for contender in contenders)])
    section.table(["program, s", *(contender.name for contender in contenders)], rows)


def measure(quick):
    if not cluster.is_possible():
        raise Failed("the emulated nodes need root, ip(8) and tc(8)")
    section = Section("nodes", "Several nodes", quick)
    rounds = Rounds(quick)
    messages(section, rounds, quick)
    whole_programs(section, rounds, quick)
    section.text("Each node is a network namespace with an own address; a bridge joins them. All use TCP's congestion control cubic.")
    section.note = rounds.note()
    return section
