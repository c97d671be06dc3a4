# SPDX-License-Identifier: Apache-2.0
"""The argument of MPICH-V2 and MPICH-Vcausal for message logging: what the loss of a node costs, beside waves of all ranks."""

from statistics import median

from contenders import Failed, Rounds, run
from figures.common import Figure, Result, Variant
from kills import answer
from report import number, spread
from svg import Panel, around

NODES = 4
ON_NODES = ("--nodes", str(NODES), "-ppn", "2", "--checkpoint-every", "500ms")
RANKS = 2 * NODES
LOGS, WAVES, NEITHER = "logs", "waves", "neither"
NODE = ("--tolerate", "node")
MORE = (
    Variant("auto", "–", "auto"),
    Variant("causal, node", "MPICH-Vcausal", "causal", NODE),
    Variant("hierarchical, node", "MPICH-V3", "hierarchical", NODE),
)
# What each goes on from when a node is lost.
KINDS = {
    "auto": WAVES,
    "blocking": WAVES,
    "chandy-lamport": WAVES,
    "pessimistic, node": LOGS,
    "causal, node": LOGS,
    "hierarchical, node": LOGS,
    "channel-memory": LOGS,
    "pessimistic": NEITHER,
}
MOMENTS = (0.35, 0.5, 0.65, 0.8)  # of an undisturbed run


def lost(setting):
    result = Result(("contender", "goes_on_from", "moment_seconds", "seconds", "seconds_undisturbed", "lost_seconds"))
    variants = setting.variants(result, lambda variant: variant.name in KINDS, more=MORE)
    if not variants:
        raise Failed("of the protocols asked for, none goes on after the loss of a node")
    program = ("heat", 512, 512, 4000) if setting.quick else ("heat", 1024, 1024, 6000)
    moments = MOMENTS[1:2] if setting.quick else MOMENTS
    rounds, right = Rounds(setting.quick), set()
    contenders = [variant.contender(*ON_NODES) for variant in variants]

    def measure(contender):
        """Undisturbed, and with a node lost at each of the moments."""
        output, calm, others = run(contender, RANKS, *program)
        right.add(answer(output))
        found = []
        for part in moments:
            output, seconds, more = run(contender, RANKS, *program, options=("--fault", f"node=1,at={calm * part:.3f}s"))
            right.add(answer(output))
            others = max(others, more)
            found.append((calm * part, seconds, calm))
        return found, others

    values = rounds.go(contenders, 1 if setting.quick else 3, measure)
    if len(right) > 1:
        raise Failed(f"answers differ: {right}")
    extra, calm = {}, {}
    for name, repetitions in values.items():
        runs = [one for repetition in repetitions for one in repetition]
        extra[name] = [seconds - undisturbed for _, seconds, undisturbed in runs]
        calm[name] = median(undisturbed for _, _, undisturbed in runs)
        for moment, seconds, undisturbed in runs:
            result.rows.append((name, KINDS[name], *(f"{value:.3f}" for value in (moment, seconds, undisturbed, seconds - undisturbed))))
    result.panels = [
        Panel("with one node of four lost", "", "s lost", {"time lost": [around(name, these) for name, these in extra.items()]}),
        Panel("without a failure", "", "s", {"whole run": [(name, calm[name]) for name in extra]}),
    ]
    result.table(("", "goes on from", "s without a failure", "s lost with the node"),
                 [(name, KINDS[name], number(calm[name]), spread(these)) for name, these in extra.items()])
    compare(result, extra, calm)
    result.note = rounds.note()
    return result


def compare(result, extra, calm):
    def of(kind):
        return {name: median(these) for name, these in extra.items() if KINDS[name] == kind}

    logs, waves = of(LOGS), of(WAVES)
    claim = "after a failure only the failed ranks repeat work, so logging loses less time than a return of all"
    if logs and waves:
        best, least = min(logs, key=logs.get), min(waves, key=waves.get)
        result.finding(claim, f"{best} loses {number(logs[best])} s, {least} {number(waves[least])} s", logs[best] < waves[least])
        slow, fast = min(logs, key=calm.get), min(waves, key=calm.get)
        result.finding("without failures, coordinated checkpoints cost less than logging for the loss of a node",
                       f"{fast} takes {number(calm[fast])} s, {slow} {number(calm[slow])} s", calm[fast] < calm[slow])
    else:
        result.finding(claim, "only one kind took part", None)


FIGURES = (
    Figure(
        "node-loss", "MPICH-V", "its argument for message logging", "Time lost with a node, by protocol", lost,
        "Where messages are logged only the failed process begins again, from its own last checkpoint, while all others wait or go on. With coordinated checkpoints all processes return, "
        "and the work of all since the last wave is lost. The paper measures this by faults per minute (figure 9); MPICH-V2 and MPICH-Vcausal survive the loss of any number of nodes.",
        "All nodes are agents on one machine with few cores. So what the lost ranks repeat goes faster than it did at first, as the others stand still meanwhile: that is in favour of logging. "
        "A node is found to be lost at once, since its agent's process ends; a cut cable takes the lease (3 s) more, under all protocols alike. Images are taken every 500 ms.",
    ),
)
