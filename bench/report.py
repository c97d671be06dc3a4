# SPDX-License-Identifier: Apache-2.0
"""Figures with their targets, tables of measurements, and the file with both."""

import json
import subprocess
import time
from dataclasses import asdict, dataclass, field
from statistics import median

import machine
from contenders import RESURGO, ROOT

OUT = ROOT / "bench/out"
ORDER = ("pingpong", "datatypes", "oversubscribed", "programs", "recovery", "launch", "memory", "kills", "images", "protocols", "nodes", "store", "trace")


def number(value):
    """Rounded to three significant digits."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.{2 if abs(value) >= 1 else 3}f}" if abs(value) < 10 else f"{value:.1f}"


def spread(values):
    """Median (smallest–largest)."""
    if not values:
        return "–"
    if len(values) == 1:
        return number(values[0])
    return f"{number(median(values))} ({number(min(values))}–{number(max(values))})"


def table(head, rows):
    """A table in Markdown."""
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows])


@dataclass
class Figure:
    """One line of the verdict: the subject, its target, and its value."""

    what: str
    target: str
    measured: str
    met: bool


@dataclass
class Section:
    name: str
    title: str
    quick: bool
    figures: list = field(default_factory=list)
    parts: list = field(default_factory=list)  # Markdown
    load: str = field(default_factory=machine.load)
    made: str = field(default_factory=lambda: time.strftime("%Y-%m-%d %H:%M"))
    note: str = ""

    def figure(self, what, target, measured, met):
        self.figures.append(Figure(what, target, measured, bool(met)))
        print(f"  {'met    ' if met else 'NOT MET'}  {what}: {measured} (target {target})", flush=True)

    def at_most(self, what, bound, subject, base, unit=""):
        """The median of `subject` over that of `base` should be at most `bound`."""
        ratio = median(subject) / median(base)
        self.figure(what, f"≤ {bound:.2f} ×", f"{ratio:.2f} ×{unit}", ratio <= bound)

    def at_least(self, what, bound, ratio):
        self.figure(what, f"≥ {bound:g} ×", f"{number(ratio)} ×", ratio >= bound)

    def table(self, head, rows):
        self.text(table(head, rows))

    def text(self, markdown):
        self.parts.append(markdown)

    def save(self):
        OUT.mkdir(parents=True, exist_ok=True)
        (OUT / f"{self.name}.json").write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False))


def version():
    told = subprocess.run([RESURGO, "--version"], capture_output=True, text=True, check=False).stdout.split("\n")[0]
    commit = subprocess.run(
        ["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return f"{told or 'resurgo'} ({commit})" if commit else told


def saved_sections():
    """The measurements of this run or of earlier ones."""
    sections = []
    for name in ORDER:
        path = OUT / f"{name}.json"
        if path.exists():
            saved = json.loads(path.read_text())
            saved["figures"] = [Figure(**figure) for figure in saved["figures"]]
            sections.append(Section(**saved))
    return sections


def write_results():
    lines = [
        "# Results",
        "",
        f"{version()} against MPICH 5.0.2. {machine.description()}.",
        "Medians; in brackets the smallest and the largest of the repetitions.",
        "",
    ]
    for section in saved_sections():
        lines += [f"## {section.title}", ""]
        lines.append(f"*{section.made}{', quick' if section.quick else ''}; load {section.load}; {section.note}.*")
        lines += ["", "| figure | target | measured | verdict |", "|---|---|---|---|"]
        lines += [
            f"| {figure.what} | {figure.target} | {figure.measured} | {'met' if figure.met else '**not met**'} |"
            for figure in section.figures
        ]
        for part in section.parts:
            lines += ["", part]
        lines.append("")
    (OUT / "results.md").write_text("\n".join(lines))


def summary():
    verdicts = [figure.met for section in saved_sections() for figure in section.figures]
    return f"{sum(verdicts)} of {len(verdicts)} targets met; written to {OUT / 'results.md'}"
