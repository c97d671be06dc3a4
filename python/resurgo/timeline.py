# SPDX-License-Identifier: Apache-2.0
"""The course of a job, drawn from its events as SVG: no script, nothing to load, and the reader's own text colour."""

from __future__ import annotations

import html
import re
from typing import Any, Dict, List, Optional, Sequence, Tuple

WIDTH, LEFT, RIGHT, TOP, LANE, BELOW = 760, 64, 12, 30, 16, 46
#: Most ranks with a lane of their own: those that have failed come first.
MOST_LANES = 64
# They can be told from one another, and from a light and a dark page.
COMPUTES, FAILS, IMAGE = "#3d85c6", "#e5484d", "#e69a28"

#: What happens to a job, as a line for a reader.
WORDS = {
    "job_started": "{ranks} ranks begin, protocol {protocol}",
    "failed": "rank {rank} failed: {cause}",
    "lost": "rank {rank} is lost; {left} others go on",
    "caught_up": "rank {rank} has caught up",
    "wave_complete": "wave {wave} of images is complete",
    "returned": "ranks go on from wave {wave}",
    "spawned": "rank {rank} has started ranks {ranks}",
    "aborted": "rank {rank} called MPI_Abort",
    "node_came": "node {name} has come",
    "node_leaves": "node {name} leaves: {reason}",
    "node_lost": "{reason}",
    "suspended": "the job is suspended",
    "resumed": "the job goes on from {directory}",
    "error": "{reason}",
    "job_ended": "the job has ended with status {exit_code}",
}


def words(event: Dict[str, Any]) -> Optional[str]:
    """A line about an event; None for one of which a reader need not know."""
    if event["event"] == "started" and event["life"] > 1:
        image = f"its image {event['image']}" if event["image"] else "the beginning"
        return f"rank {event['rank']} begins its life {event['life']}, from {image}"
    template = WORDS.get(event["event"])
    return template and template.format_map(event)


class Life:
    """One process that was a rank."""

    def __init__(self, event: Dict[str, Any]) -> None:
        self.rank, self.number, self.node = event["rank"], event["life"], event.get("node")
        self.began, self.ended = event["time"], None  # type: float, Optional[float]
        self.how = "runs"
        self.repeats_until, self.repeated = self.began, ""

    def title(self, end: float) -> str:
        node = "" if self.node is None else f" on node {self.node}"
        lived = f"{self.began:.2f} s to {self.ended or end:.2f} s, {self.how}"
        return f"rank {self.rank}, life {self.number}{node}: {lived}{self.repeated}"


class Course:
    """What has happened until now."""

    def __init__(self, events: Sequence[Dict[str, Any]], now: Optional[float]) -> None:
        self.lives: List[Life] = []
        self.images: List[Tuple[int, float, str]] = []  # rank, when, what it is
        self.waves: List[Tuple[float, str]] = []
        self.failures: List[Tuple[int, float, str]] = []
        self.nodes: List[Tuple[float, str]] = []
        self.end = max([event["time"] for event in events] + [now or 0.0])
        self._living: Dict[int, Life] = {}
        for event in events:
            take = getattr(self, f"_{event['event']}", None)
            if take:
                take(event)

    def _started(self, event: Dict[str, Any]) -> None:
        self._ends(event, "returns")
        self._living[event["rank"]] = Life(event)
        self.lives.append(self._living[event["rank"]])

    def _failed(self, event: Dict[str, Any]) -> None:
        self._ends(event, f"failed: {event['cause']}")
        self.failures.append((event["rank"], event["time"], event["cause"]))

    def _finished(self, event: Dict[str, Any]) -> None:
        self._ends(event, "finished")

    def _ends(self, event: Dict[str, Any], how: str) -> None:
        life = self._living.pop(event["rank"], None)
        if life:
            life.ended, life.how = event["time"], how

    def _caught_up(self, event: Dict[str, Any]) -> None:
        life = self._living.get(event["rank"])
        if life:
            life.repeats_until = event["time"]
            life.repeated = f"; repeated {event['deliveries']:,} deliveries until {event['time']:.2f} s"

    def _returned(self, event: Dict[str, Any]) -> None:
        """All ranks repeat what they had done since the wave. Ranks of a group say themselves when they have caught up."""
        wave = f"wave {event['wave']}" if event["wave"] else "the beginning"
        for life in self._living.values() if "ranks" not in event else ():
            life.repeats_until = event["time"] + event["lost_seconds"]
            life.repeated = f"; repeats {event['lost_seconds']:.2f} s since {wave}"

    def _checkpointed(self, event: Dict[str, Any]) -> None:
        self._image(event["rank"], event["time"], f"image {event['image']}")

    def _wave_complete(self, event: Dict[str, Any]) -> None:
        for rank in event.get("ranks", ()):
            self._image(rank, event["time"], f"image of wave {event['wave']}")
        if "ranks" not in event:
            self.waves.append((event["time"], f"wave {event['wave']} at {event['time']:.2f} s"))

    def _image(self, rank: int, when: float, what: str) -> None:
        self.images.append((rank, when, f"rank {rank}, {what} at {when:.2f} s"))

    def _node_lost(self, event: Dict[str, Any]) -> None:
        self.nodes.append((event["time"], event["reason"]))
        for rank, life in list(self._living.items()):
            if life.node is not None and f"node {life.node} " in event["reason"]:
                self._ends({"rank": rank, "time": event["time"]}, "lost with its node")

    def _job_ended(self, event: Dict[str, Any]) -> None:
        for rank in list(self._living):
            self._ends({"rank": rank, "time": event["time"]}, "ended with the job")

    def lanes(self) -> List[int]:
        """The ranks that are drawn."""
        ranks, failed = {life.rank for life in self.lives}, {rank for rank, _, _ in self.failures}
        return sorted(sorted(ranks, key=lambda rank: (rank not in failed, rank))[:MOST_LANES])


class Figure:
    """The picture of a job as it was at one moment. A notebook shows it; `str` of it is SVG."""

    def __init__(self, svg: str) -> None:
        self._svg = svg

    def save(self, path: Any) -> None:
        """Writes it into a file, which browsers and text processors show."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(self._svg)

    def __str__(self) -> str:
        return self._svg

    def _repr_html_(self) -> str:
        return self._svg


def draw(events: Sequence[Dict[str, Any]], title: str, state: str, now: Optional[float] = None) -> str:
    """The picture of a job; `now` is how long it has run, if it runs."""
    course = Course(events, now)
    lanes = {rank: TOP + i * LANE for i, rank in enumerate(course.lanes())}
    bottom = TOP + len(lanes) * LANE
    span = max(course.end, 1e-3)
    at = lambda seconds: LEFT + seconds / span * (WIDTH - LEFT - RIGHT)
    out = [_text(LEFT, 16, f"{_short(title)}: {state} after {course.end:.1f} s" + _count(course), 13)]
    out += [_text(LEFT - 8, y + LANE - 4, f"rank {rank}", 11, "end") for rank, y in lanes.items()]
    for life in course.lives:
        if life.rank in lanes:
            out += _bar(life, lanes[life.rank], at, course.end)
    for x, title in _apart((at(when), title) for when, title in course.waves):
        out.append(_told(_line(x, TOP - 2, bottom + 2, "currentColor", ' stroke-dasharray="2 3" stroke-opacity="0.7"'), title))
    for rank, y in lanes.items():
        for x, title in _apart((at(when), title) for of, when, title in course.images if of == rank):
            out.append(_told(_line(x, y + 2, y + LANE - 2, IMAGE, ' stroke-width="2"'), title))
    for when, reason in course.nodes:
        out.append(_told(_line(at(when), TOP - 2, bottom + 2, FAILS), reason))
    for rank, when, cause in course.failures:
        if rank in lanes:
            out.append(_cross(at(when), lanes[rank] + LANE / 2, f"rank {rank} at {when:.2f} s: {cause}"))
    ranks = len({life.rank for life in course.lives})
    out += _axis(bottom + 4, span, at)
    out += _legend(bottom + 38, "" if len(lanes) == ranks else f"{len(lanes)} of {ranks} ranks are shown")
    height = bottom + BELOW
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
            'style="max-width: 100%; height: auto" font-family="sans-serif" fill="currentColor">')
    return "\n".join([head, *out, "</svg>"])


def _count(course: Course) -> str:
    counts = [(len(course.failures), "failure"), (len(course.waves), "wave"), (len(course.images), "image")]
    return "".join(f", {count:,} {name}{'s' * (count != 1)}" for count, name in counts if count)


def _bar(life: Life, y: float, at: Any, end: float) -> List[str]:
    """A life, pale while it repeats what was lost."""
    left, right = at(life.began), at(end if life.ended is None else life.ended)
    middle = min(right, at(min(life.repeats_until, end)))
    parts = []
    for x, until, opacity in ((left, middle, 0.4), (middle, right, 1)):
        if until > x or (opacity == 1 and right == left):
            width = max(until - x, 0.8)
            parts.append(f'<rect x="{x:.1f}" y="{y + 2}" width="{width:.1f}" height="{LANE - 4}" fill="{COMPUTES}" fill-opacity="{opacity}"/>')
    return [_told("".join(parts), life.title(end))]


def _cross(x: float, y: float, title: str) -> str:
    path = f"M{x - 4:.1f} {y - 4}l8 8m0 -8l-8 8"
    return _told(f'<path d="{path}" stroke="{FAILS}" stroke-width="2.5" fill="none"/>', title)


def _told(marks: str, title: str) -> str:
    """Marks, with what they mean for the pointer."""
    return f"<g>{marks}<title>{_escape(title)}</title></g>"


def _axis(y: float, span: float, at: Any) -> List[str]:
    step = 10.0 ** int(f"{span:e}".split("e")[1])
    step = next(step * factor for factor in (0.1, 0.2, 0.5, 1.0) if span / (step * factor) <= 8 or factor == 1.0)
    out = [f'<path d="M{LEFT} {y}H{WIDTH - RIGHT}" stroke="currentColor" stroke-opacity="0.5"/>']
    for i in range(int(span / step) + 1):
        anchor = "middle" if at(i * step) < WIDTH - 30 else "end"
        out += [_line(at(i * step), y, y + 4, "currentColor", ' stroke-opacity="0.5"'), _text(at(i * step), y + 15, f"{i * step:g} s", 10, anchor)]
    return out


def _legend(y: float, more: str) -> List[str]:
    box = lambda x, opacity: f'<rect x="{x}" y="{y - 9}" width="20" height="10" fill="{COMPUTES}" fill-opacity="{opacity}"/>'
    return [
        box(LEFT, 1), _text(LEFT + 26, y, "computes", 10),
        box(LEFT + 90, 0.4), _text(LEFT + 116, y, "repeats what was lost", 10),
        _cross(LEFT + 240, y - 4, "a failure"), _text(LEFT + 250, y, "fails", 10),
        _line(LEFT + 290, y - 10, y + 2, IMAGE, ' stroke-width="2"'), _text(LEFT + 296, y, "image", 10),
        _line(LEFT + 340, y - 10, y + 2, "currentColor", ' stroke-dasharray="2 3"'), _text(LEFT + 346, y, "wave of images", 10),
        _text(LEFT + 440, y, more, 10),
    ]


def _line(x: float, top: float, bottom: float, colour: str, more: str = "") -> str:
    return f'<path d="M{x:.1f} {top}V{bottom}" stroke="{colour}"{more}/>'


def _text(x: float, y: float, words: str, size: int, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y}" font-size="{size}" text-anchor="{anchor}">{_escape(words)}</text>'


def _apart(marks: Any) -> List[Tuple[float, str]]:
    """Of marks less than two pixels apart only the first."""
    kept: List[Tuple[float, str]] = []
    for x, title in sorted(marks):
        if not kept or x - kept[-1][0] >= 2:
            kept.append((x, title))
    return kept


def _short(words: str) -> str:
    return words if len(words) <= 60 else words[:57] + "..."


def _escape(words: str) -> str:
    """As XML: without characters that it cannot have."""
    return html.escape(re.sub(r"[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "?", words))
