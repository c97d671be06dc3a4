# SPDX-License-Identifier: Apache-2.0
"""Walters 2009, table 1: how many nodes a job can lose at once."""

from figures.common import Figure, Result, simulated
from svg import Panel

CHANCES = (0.9, 0.99, 0.999)
# Nodes → most failures with 90, 99 and 99.9 %, for 1 to 4 replicas.
TABLE_1 = {
    8: (1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4),
    16: (1, 1, 1, 2, 2, 2, 5, 4, 3, 7, 5, 4),
    32: (2, 1, 1, 5, 3, 2, 8, 5, 4, 11, 8, 6),
    64: (3, 1, 1, 8, 4, 2, 14, 8, 4, 19, 12, 8),
    128: (4, 1, 1, 12, 6, 3, 22, 13, 8, 32, 21, 14),
    256: (5, 2, 1, 19, 9, 5, 37, 21, 13, 55, 35, 23),
    512: (7, 2, 1, 31, 14, 7, 62, 35, 20, 95, 60, 38),
    1024: (10, 3, 1, 48, 22, 11, 104, 58, 33, 165, 103, 67),
    2048: (15, 5, 2, 76, 35, 17, 174, 97, 55, 285, 178, 111),
}
PAPER = {(nodes, 1 + i // 3, CHANCES[i % 3]): most for nodes, row in TABLE_1.items() for i, most in enumerate(row)}
COLUMNS = ("where", "lost", "placement", "copies", "nodes", "racks", "wanted", "most", "chance", "drawn", "paper")
RACKS = 8


def restarts(setting):
    result = Result(COLUMNS)
    nodes = [n for n in TABLE_1 if not setting.quick or n <= 128]
    trials = 200 if setting.quick else 2000
    lines = simulated("restarts", "--nodes", ",".join(map(str, nodes)), "--racks", RACKS, "--trials", trials,
                      names=("lost", "placement", "copies", "racks"))
    most = {}
    for line in lines:
        lost, placement, copies, of, wanted = line["lost"], line["placement"], line["copies"], int(line["nodes"]), line["wanted"]
        most[lost, placement, copies, of, wanted] = int(line["most"])
        paper = PAPER.get((of, int(copies), wanted), "") if (lost, placement) == ("nodes", "random") else ""
        where = "simulated" if (lost, placement) == ("nodes", "apart") else "counted"
        result.rows.append((where, lost, placement, copies, of, line["racks"], wanted, int(line["most"]), f"{line['chance']:.6f}", f"{line['drawn']:.4f}", paper))
    the_table(result, most, nodes)
    other_placements(result, most, nodes)
    findings(result, most, nodes, lines, trials)
    for wanted in CHANCES:
        series = {f"{k} replica{'s' * (k > 1)}": [(n, most["nodes", "random", str(k), n, wanted]) for n in nodes if k < n] for k in range(1, 5)}
        series |= {f"{k}, paper": [(n, PAPER[n, k, wanted]) for n in nodes] for k in range(1, 5)}
        result.panels.append(Panel(f"{100 * wanted:g} %", "nodes", "most lost at once", series, True))
    result.note = "beside each counted chance in the CSV is the same, drawn"
    return result


def the_table(result, most, nodes):
    head = ["nodes", *(f"{k} replica{'s' * (k > 1)}, {100 * wanted:g} %" for k in range(1, 5) for wanted in CHANCES)]
    rows = []
    for n in nodes:
        both = [(most["nodes", "random", str(k), n, wanted], PAPER[n, k, wanted]) for k in range(1, 5) for wanted in CHANCES]
        rows.append([n, *(str(ours) if ours == theirs else f"**{ours}** (paper {theirs})" for ours, theirs in both)])
    result.tables.append("Nodes that can be lost at once, so that the job goes on with that chance; replicas on other nodes, at random. Where the paper has another "
                         "number it stands beside.")
    result.table(head, rows)


def other_placements(result, most, nodes):
    kinds = [("next node (one partner)", "nodes", "ring", "1"), ("random", "nodes", "random", "1"), ("random", "nodes", "random", "2"),
             ("next two nodes", "nodes", "ring", "2"), (f"random, in {RACKS} racks apart", "nodes", "apart", "2"),
             ("8 + 1 with parity", "nodes", "parity", "8+1"), ("8 + 2 with parity", "nodes", "parity", "8+2"),
             (f"whole racks of {RACKS}: random", "racks", "random", "2"), (f"whole racks of {RACKS}: apart", "racks", "apart", "2")]
    copied = {"1": "1", "2": "2", "8+1": "1/8", "8+2": "1/4"}
    rows = []
    for name, lost, placement, copies in kinds:
        rows.append([name, copied[copies], *(most.get((lost, placement, copies, n, 0.99), "–") for n in nodes)])
    result.tables.append("The same at 99 % for other placements: nodes that can be lost at once; in the last two lines racks.")
    result.table(["placement", "copied, images", *(f"{n} nodes" for n in nodes)], rows)


def findings(result, most, nodes, lines, trials):
    both = [(most["nodes", "random", str(k), n, wanted], PAPER[n, k, wanted]) for n in nodes for k in range(1, 5) for wanted in CHANCES]
    same, apart = sum(ours == theirs for ours, theirs in both), max(abs(ours - theirs) for ours, theirs in both)
    result.finding("its simulator's numbers", f"{same} of {len(both)} are the same, none is further away than {apart}", same >= 0.9 * len(both))
    largest = max(nodes)
    share = {k: most["nodes", "random", str(k), largest, 0.999] / largest for k in (1, 4)}
    result.finding("few replicas give a high probability of restart: with 4, and 2048 nodes, 111 can fail at 99.9 %",
                   f"{most['nodes', 'random', '4', largest, 0.999]} of {largest} ({share[4]:.1%}); with one {most['nodes', 'random', '1', largest, 0.999]}",
                   share[4] > 4 * share[1])
    # Five standard deviations of what is drawn.
    within = lambda chance: 5 * (max(chance * (1 - chance), 0.01) / trials) ** 0.5
    wrong = [line for line in lines if abs(line["chance"] - line["drawn"]) > within(line["chance"])]
    result.finding("what is counted is what is drawn", f"{len(lines) - len(wrong)} of {len(lines)} within five standard deviations", not wrong)
    ring, random = (most["nodes", placement, "1", largest, 0.9] for placement in ("ring", "random"))
    result.finding("random replicas survive more than those on neighbours, as neighbours fail together",
                   f"independent nodes: {ring} on the next node, {random} at random; racks of {largest // RACKS}: "
                   f"{most['racks', 'random', '2', largest, 0.99]} at random, {most['racks', 'apart', '2', largest, 0.99]} in racks of their own", None)


FIGURES = (
    Figure(
        "walters-table-1", "Walters", "table 1", "Nodes that can be lost at once", restarts,
        "A simulator of node failures gave the most simultaneous failures of a cluster with a probability of restart of 90, 99 and 99.9 %, for 8 to 2,048 nodes and 1 to 4 "
        "replicas on random nodes. With 4 replicas and 2,048 nodes, 111 failures leave at least 99.9 %.",
        "The chance can be counted: an image is lost with its node and all `k` nodes of its replicas, and what one node has drawn says nothing about another's. So with `f` of `n` "
        "nodes lost it is (1 − C(f−1, k) / C(n−1, k))^f. The paper drew it: its numbers differ by one or two where the chance of the next number is within a thousandth of the wanted "
        "one, both ways. One cannot be such a deviation: 16 nodes with 2 replicas lose 3 nodes with 97.2 %, not less than 90 %. Whole racks "
        "go on for as many as there are replicas if these are in racks of their own; replicas at random mostly do not survive two racks of eight, although the paper chose them for "
        "switches that fail. Parity copies an eighth or a fourth of the images, and survives fewer lost nodes than as many replicas: two in one group of 8 + 1 end the job.",
    ),
)
