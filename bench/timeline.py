# SPDX-License-Identifier: Apache-2.0
"""Which rank computed when on which node, from the events of a job on several nodes, as SVG.

    resurgo run --nodes 4 -ppn 2 -n 8 --protocol blocking --checkpoint-every 500ms --json-events events.json ./app
    python3 bench/timeline.py events.json nodes.svg
"""

import json
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from svg import for_dark_pages, line, linear_ticks, text

LEFT, RIGHT, TOP, BOTTOM, WIDTH = 70, 16, 46, 66, 720
LANE, GAP = 13, 12  # height of a rank, and between nodes
COLOURS = ("#2166ac", "#1b7837", "#b8860b", "#7b3294", "#01665e", "#d6604d", "#4d4d4d", "#999933")
RED = "#c1440e"


@dataclass
class Life:
    rank: int
    node: int
    began: float
    ended: float | None = None
    thrown_away: float | None = None  # what it has done since is done again


@dataclass
class Course:
    """What happened to a job, in seconds since all its ranks first ran."""

    lives: list
    waves: list  # when each could be returned to
    losses: dict  # node → when
    end: float


def read(events):
    lives, running, waves, losses = [], {}, {0: 0.0}, {}
    start = next(event["time"] for event in events if event["event"] == "started")
    end = max(event["time"] for event in events) - start

    def ends(rank, at):
        if life := running.pop(rank, None):
            life.ended = at

    for event in events:
        at, kind = event["time"] - start, event["event"]
        if kind == "started":
            ends(event["rank"], at)
            running[event["rank"]] = Life(event["rank"], int(event.get("node", 0)), at)
            lives.append(running[event["rank"]])
        elif kind in ("failed", "finished"):
            ends(event["rank"], at)
        elif kind == "node_lost":
            losses[event["node"]] = at
            for rank in list(running):
                ends(rank, at)
        elif kind == "returned":
            # From here on all ranks repeat what they had done since.
            for life in lives:
                if life.ended is not None and life.ended > waves[event["wave"]]:
                    life.thrown_away = max(life.began, waves[event["wave"]])
        elif kind == "wave_complete":
            waves[event["wave"]] = at
    for rank in list(running):
        ends(rank, end)
    return Course(lives, [at for number, at in waves.items() if number], losses, end)


def draw(path, title, course):
    """Nodes one below the other, and a lane for each rank that ever ran there."""
    lanes = defaultdict(list)
    for life in course.lives:
        if life.rank not in lanes[life.node]:
            lanes[life.node].append(life.rank)
    top, places, out = TOP, {}, []
    ticks = linear_ticks(course.end)
    scale = lambda at: LEFT + at / course.end * (WIDTH - LEFT - RIGHT)
    for node in sorted(lanes):
        ranks = sorted(lanes[node])
        height = len(ranks) * LANE
        until = course.losses.get(node, course.end)
        out.append(f'<rect x="{LEFT}" y="{top - 3}" width="{scale(until) - LEFT:.1f}" height="{height + 6}" fill="#f0f0f0"/>')
        out.append(text(LEFT - 8, top + height / 2 + 4, f"node {node}", "end", 12))
        places |= {(node, rank): top + i * LANE for i, rank in enumerate(ranks)}
        top += height + GAP
    bottom = top - GAP + 8
    out += [line(scale(at), TOP - 6, scale(at), bottom, "#888", 1, "2 3") for at in course.waves]
    for life in course.lives:
        out += bar(life, scale, places[life.node, life.rank])
    for node, at in course.losses.items():
        there = [y for (lane, _), y in places.items() if lane == node]
        out.append(line(scale(at), TOP - 6, scale(at), bottom, RED, 1.4))
        out.append(text(scale(at) + 6, sum(there) / len(there) + LANE / 2 + 4, f"node {node} is killed", "start", 12, fill=RED))
    out += axis(bottom, ticks, scale, course)
    height = bottom + BOTTOM
    head = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
            'font-family="sans-serif">', f'<rect width="{WIDTH}" height="{height}" fill="white"/>', text(WIDTH / 2, 22, title, size=14)]
    Path(path).write_text(for_dark_pages("\n".join([*head, *out, legend(bottom + 52), "</svg>", ""])))


def bar(life, scale, y):
    """A life of a rank, pale where its work was lost."""
    colour = COLOURS[life.rank % len(COLOURS)]
    left, right = scale(life.began), scale(life.ended)
    shape = lambda x, width, more: f'<rect x="{x:.1f}" y="{y + 1}" width="{max(width, 0.5):.1f}" height="{LANE - 2}" fill="{colour}"{more}/>'
    kept = right if life.thrown_away is None else scale(life.thrown_away)
    out = [f'<g id="rank-{life.rank}-{life.began:.2f}">', shape(left, kept - left, "")]
    if kept < right:
        out.append(shape(kept, right - kept, ' fill-opacity="0.3"'))
    if right - left > 50:
        out.append(text(left + 5, y + LANE - 3, f"rank {life.rank}", "start", 9, fill="#fff"))
    return [*out, "</g>"]


def axis(bottom, ticks, scale, course):
    out = [line(LEFT, bottom, WIDTH - RIGHT, bottom, "#444")]
    for tick in (tick for tick in ticks if tick <= course.end):
        out += [line(scale(tick), bottom, scale(tick), bottom + 4, "#444"), text(scale(tick), bottom + 17, f"{tick:g} s", size=11)]
    return out


def legend(y):
    dark = "#4d4d4d"
    box = lambda x, more: f'<rect x="{x}" y="{y - 9}" width="22" height="{LANE - 3}" fill="{dark}"{more}/>'
    return "\n".join([
        box(LEFT, ""), text(LEFT + 28, y, "computes", "start"),
        box(LEFT + 110, ' fill-opacity="0.3"'), text(LEFT + 138, y, "is done again", "start"),
        line(LEFT + 250, y - 11, LEFT + 250, y + 3, "#888", 1, "2 3"), text(LEFT + 258, y, "a wave of images is complete", "start"),
    ])


def main():
    if len(sys.argv) != 3:
        sys.exit(f"usage: {sys.argv[0]} EVENTS.json PICTURE.svg")
    events = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    course = read(events)
    nodes = len({life.node for life in course.lives})
    ranks = len({life.rank for life in course.lives})
    lost = {0: "", 1: ", one of them is killed"}.get(len(course.losses), f", {len(course.losses)} of them are killed")
    draw(sys.argv[2], f"{ranks} ranks on {nodes} nodes{lost}", course)


if __name__ == "__main__":
    main()
