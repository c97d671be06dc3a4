# SPDX-License-Identifier: Apache-2.0
"""Bouteiller 2006 (MPICH-V), figure 9, with nodes that have disks of their own and a checkpoint server behind a network."""

import contextlib
import os
from statistics import median

from contenders import Rounds
from figures.common import ENDURING, LOCAL, STORE, Figure, Result
from figures.mpich_v import by_frequency, findings_of_copies, under_faults
from figures.replication import Laboratory, lasting, needs_root
from report import number
from svg import Panel

LINK = "100mbit"
NODES = 4


class Nodes(Laboratory):
    """Nodes with Fast Ethernet and a disk each, beside the checkpoint server."""

    def __init__(self):
        super().__init__(NODES, LINK)

    def __enter__(self):
        super().__enter__()
        self.disks, self.images = self.path / "disks", self.path / "images"
        for directory in (self.disks, self.images):
            directory.mkdir()
        self.cluster.give_disks(self.disks, self.images)
        return self

    def contender(self, name, *options):
        images = ("--checkpoint-dir", self.images, "--checkpoint-every", "500ms", "--store", f"peers:0,{self.place}")
        return self.on_nodes(name, "chandy-lamport", *ENDURING, *images, *options)

    def lose(self, ranks):
        """These ranks' images are on no node any more."""
        for rank in ranks:
            for file in self.disks.glob(f"*/*/rank-{rank}.image-*"):
                with contextlib.suppress(OSError):
                    os.unlink(file)


def lost_images(contender, ranks, victim):
    """With the store alone the images of all ranks go, and otherwise those of the one that is killed."""
    return range(ranks) if contender.name == STORE.name else [victim]


def local_copies(setting):
    needs_root()
    result = Result(("where", "contender", "faults_per_minute", "seconds", "slowdown_percent", "kills_that_struck", "returns_from_server"))
    intervals = [None, 2.5] if setting.quick else [None, 20, 10, 5, 3, 2]
    rounds = Rounds(setting.quick)
    with Nodes() as nodes:
        contenders = [nodes.contender(LOCAL.name), nodes.contender(STORE.name, "--local-copies", "off")]
        # Quick, too, there is time for a fault.
        program = lasting(contenders[0], NODES, 8, 4) if setting.quick else ("bt", "A")
        strike = lambda contender, interval, limit: under_faults(contender, NODES, program, interval, limit, "remote", lost_images, nodes.lose)
        base = strike(contenders[0], None, 600)[0].seconds
        limit = 5 * base
        stopped, panel = by_frequency(
            result, rounds, contenders, intervals, 1 if setting.quick else 3, base, lambda contender, interval: strike(contender, interval, limit),
            more=lambda run: (run.fetched,), beside=lambda runs: f" ({median(run.fetched for run in runs):g})")
    result.panels = [Panel(f"{' '.join(map(str, program))}, {NODES} nodes", "faults a minute", "slowdown, %", panel)]
    result.tables.append(f"In brackets: returns for which images came from the server. † not at its end after {number(limit)} s. Waves each 500 ms; {NODES} nodes and the server have a link of "
                         f"{LINK} each. A fault is SIGKILL to a random rank, so long after the one before, and its images are removed from its node; with the store alone, all images from all nodes.")
    last = {contender.name: stopped.get(contender.name, float("inf")) for contender in contenders}
    findings_of_copies(result, "measured", last, panel)
    result.note = rounds.note()
    return result


FIGURES = (
    Figure(
        "mpich-v-9-server", "MPICH-V", "figure 9, its two Chandy-Lamport versions", "Local copies beside a checkpoint server", local_copies,
        "With copies of images on the ranks' local disks only the failed rank read the checkpoint server after a failure. Without them all ranks read it, the server became the bottleneck, "
        "and the program made no progress from a lower fault rate on.",
        "Four nodes are network namespaces of one machine, with links of 100 Mbit/s and directories of their own; the paper had 25. Images go to the server compressed, in chunks that it has not got "
        "yet, and a wave goes there when the one before has: so a return goes further back with fewer waves there, and what is read may be less than the image.",
    ),
)
