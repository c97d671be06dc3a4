# SPDX-License-Identifier: Apache-2.0
"""What the figures share: who takes part, and what a figure consists of."""

import csv
import subprocess
import time
from dataclasses import dataclass, field

import machine
import svg
from contenders import RESURGO, Contender, Failed, offered
from report import table, version

PAPERS = {
    "MPICH-V": "Bouteiller, Herault, Krawezik, Lemarinier, Cappello: MPICH-V Project: a Multiprotocol Automatic Fault "
    "Tolerant MPI (2006)",
    "causal": "Bouteiller, Collin, Herault, Lemarinier, Cappello: Impact of Event Logger on Causal Message Logging "
    "Protocols for Fault Tolerant MPI (2005)",
    "Gao": "Gao, Huang, Koop, Panda: Group-based Coordinated Checkpointing for MPI: A Case Study on InfiniBand (2007)",
    "Walters": "Walters, Chaudhary: A Scalable Asynchronous Replication-Based Strategy for Fault Tolerant MPI Applications (2007)",
    "FT-MPI": "Gabriel, Fagg, Bukovsky, Angskun, Dongarra: A Fault-Tolerant Communication Library for Grid Environments (2003)",
}
SIMULATOR = RESURGO.parent.parent / "lib/resurgo/resurgo-sim"
ENDURING = ("--max-restarts", "100000", "--max-restarts-per-rank", "100000")


@dataclass(frozen=True)
class Variant:
    """A protocol with the options that make it one of the papers'."""

    name: str
    paper: str  # the paper's name
    protocol: str
    options: tuple = ()
    images: bool = True  # is compared with images of its ranks

    def contender(self, *options):
        return Contender(self.name, (RESURGO, "run", "-q", "--protocol", self.protocol, *self.options, *options))

    @property
    def needs(self):
        return [option for option in self.options if option.startswith("--")]


def causal(reduction, loggers):
    options = ("--tolerate", "node", "--reduction", reduction, "--event-loggers", str(loggers))
    name = f"{reduction}, {'an' if loggers else 'no'} event logger"
    # Images would be kept on the node that is lost.
    return Variant(name, f"{reduction} {'with' if loggers else 'without'} EL", "causal", options, images=False)


CAUSAL = tuple(causal(reduction, loggers) for loggers in (1, 0) for reduction in ("vcausal", "manetho", "logon"))
VARIANTS = (
    Variant("none", "Vdummy", "none", images=False),
    Variant("pessimistic", "MPICH-V2 with determinants in the node's memory", "pessimistic"),
    Variant("pessimistic, node", "MPICH-V2", "pessimistic", ("--tolerate", "node"), images=False),
    *CAUSAL,
    Variant("chandy-lamport", "MPICH-Vcl", "chandy-lamport"),
    Variant("blocking", "Pcl", "blocking"),
    Variant("group", "group-based", "group"),
    Variant("hierarchical", "MPICH-V3", "hierarchical"),
    Variant("channel-memory", "MPICH-V1", "channel-memory"),
)
# The two versions of MPICH-Vcl of which Bouteiller 2006 compares the behaviour under faults. Files go below the job's own directory.
LOCAL = Variant("chandy-lamport, store and local copies", "MPICH-Vcl with local copies", "chandy-lamport", ("--checkpoint-dir", "images"))
STORE = Variant("chandy-lamport, store only", "MPICH-Vcl without local copies", "chandy-lamport",
                ("--checkpoint-dir", "images", "--local-copies", "off"))
STORED = (LOCAL, STORE)
LOGGING = ("pessimistic", "causal", "hierarchical")  # protocols that keep what is sent


@dataclass
class Setting:
    """What was asked for."""

    quick: bool = False
    protocols: list | None = None  # those wanted; None: all
    ranks: list | None = None  # numbers of them; None: the figure's own
    patience: float = 20.0  # seconds to wait for a quiet machine

    def counts(self, usual, quick):
        return self.ranks or (quick if self.quick else usual)

    def variants(self, result, where=lambda variant: True, more=()):
        """Those of all and of `more` that are wanted and that this binary offers; what it does not is noted in `result`."""
        protocols, options = offered()
        wanted = [v for v in (*VARIANTS, *more) if where(v) and (not self.protocols or v.protocol in self.protocols)]
        taken, missing = [], {}
        for variant in wanted:
            unknown = [option for option in variant.needs if option not in options]
            if variant.protocol not in protocols:
                missing[variant.protocol] = f"`--protocol {variant.protocol}`"
            elif unknown:
                missing[variant.name] = f"{variant.name}: this binary has no `{unknown[0]}`"
            else:
                taken.append(variant)
        result.left_out += [what for what in missing.values() if what not in result.left_out]
        return taken


@dataclass
class Result:
    """One figure as it came out."""

    columns: tuple  # of the CSV
    rows: list = field(default_factory=list)
    tables: list = field(default_factory=list)  # Markdown
    panels: list = field(default_factory=list)
    findings: list = field(default_factory=list)  # (what the paper found, what was measured here, seen here?)
    left_out: list = field(default_factory=list)
    note: str = ""

    @property
    def where(self):
        """What its numbers are: "counted", "simulated", "modelled", "measured" or several, as in the first column, if that tells it."""
        return list(dict.fromkeys(row[0] for row in self.rows)) if self.columns[0] == "where" else ["measured"]

    def table(self, head, rows):
        self.tables.append(table(head, rows))

    def finding(self, claim, measured, seen):
        """`seen`: None when it cannot be told here."""
        self.findings.append((claim, measured, {True: "yes", False: "**no**", None: "–"}[seen]))


HOW = {"counted": "counted, not measured", "simulated": "simulated, with costs as given below", "modelled": "modelled for larger clusters", "measured": "measured on this machine"}


@dataclass(frozen=True)
class Figure:
    name: str
    paper: str  # key of PAPERS
    number: object  # of the figure, or what else it is, in words
    title: str
    measure: object  # Setting → Result
    saw: str  # what the paper saw
    why: str  # why here it is different

    def write(self, result, setting, out):
        """The table, its numbers and the picture."""
        with open(out / f"{self.name}.csv", "w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(result.columns)
            writer.writerows(result.rows)
        title = f"{self.title}{' (simulated)' if result.where == ['simulated'] else ''}"
        svg.write(out / f"{self.name}.svg", title, result.panels)
        how = "; also ".join(HOW[where] for where in result.where)
        place = f"figure {self.number}" if isinstance(self.number, int) else self.number
        lines = [f"# {self.title}", "", f"After {place} of {PAPERS[self.paper]}; **{how}**.", ""]
        quick = "; **quick: shows that it works, no more**" if setting.quick else ""
        lines += [f"{version()}. {machine.description()}. {time.strftime('%Y-%m-%d %H:%M')}, load {machine.load()}; {result.note}{quick}."]
        lines += ["", f"![{title}]({self.name}.svg)", ""]
        lines += [part for text in result.tables for part in (text, "")]
        lines += ["## What the paper saw", "", self.saw, "", "## What is seen here", ""]
        if result.findings:
            lines += [table(("the paper's finding", "here", "seen"), result.findings), ""]
        if result.left_out:
            lines += ["Left out, because this `resurgo` does not offer it: " + "; ".join(result.left_out) + ".", ""]
        lines += ["## Why it differs", "", self.why, ""]
        (out / f"{self.name}.md").write_text("\n".join(lines))


def nothing_to_compare(what):
    raise Failed(f"{what}: of the protocols asked for, this binary offers none that this figure can use")


def simulated(*words, names):
    """The lines of `resurgo-sim`, with `words`, as dictionaries; what is not in `names` is a number."""
    if not SIMULATOR.exists():
        raise Failed(f"{SIMULATOR} is missing: build it, or install Resurgo again")
    done = subprocess.run([SIMULATOR, *map(str, words)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failed(done.stderr.strip())
    return [{key: value if key in names else float(value) for key, value in line.items()} for line in csv.DictReader(done.stdout.splitlines())]
