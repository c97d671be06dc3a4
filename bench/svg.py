# SPDX-License-Identifier: Apache-2.0
"""Line charts as SVG, with nothing but the standard library."""

import math
from dataclasses import dataclass, field
from html import escape

COLOURS = ("#8a8a8a", "#c1440e", "#1b7837", "#2166ac", "#7b3294", "#b8860b", "#01665e", "#d6604d", "#4d4d4d", "#999933")
WIDTH, HEIGHT = 340, 240  # of a panel
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 30, 42
LEGEND = 17  # height of a line of it


@dataclass
class Panel:
    title: str
    x: str  # what the axis shows
    y: str
    series: dict  # name → [(x, y)]; x are numbers, or words at equal distances
    logarithmic: bool = False  # y
    marks: list = field(default_factory=list)  # (x, text): vertical lines


def tick_text(value):
    if value == 0:
        return "0"
    if abs(value) >= 1e6 or abs(value) < 1e-3:
        return f"{value:.0e}".replace("e+0", "e").replace("e-0", "e-")
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.4g}"


def linear_ticks(top):
    raw = top / 4
    step = 10 ** math.floor(math.log10(raw))
    step *= next(factor for factor in (1, 2, 5, 10) if factor * step >= raw)
    return [step * i for i in range(math.ceil(top / step - 1e-9) + 1)]


def decades(low, high):
    low, high = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return [10.0**power for power in range(low, max(high, low + 1) + 1)]


class Scale:
    """From values to places between `start` and `end`."""

    def __init__(self, values, start, end, logarithmic):
        self.logarithmic = logarithmic
        positive = [value for value in values if value > 0] or [1]
        self.ticks = decades(min(positive), max(positive)) if logarithmic else linear_ticks(max(positive))
        self.low, self.high = self.ticks[0], self.ticks[-1]
        self.start, self.end = start, end

    def __call__(self, value):
        if self.logarithmic:
            value = max(value, self.low)
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


def text(x, y, content, anchor="middle", size=11, turn=None, fill="#222"):
    turned = f' transform="rotate({turn} {x:.1f} {y:.1f})"' if turn else ""
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{fill}"{turned}>'
            f"{escape(str(content))}</text>")


def draw_panel(panel, colours):
    """The panel's elements, at the origin. `colours`: name of the series → colour."""
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    points = [point for series in panel.series.values() for point in series]
    places = list(dict.fromkeys(x for x, _ in points))
    if all(isinstance(x, (int, float)) for x in places):
        places.sort()
    step = (right - LEFT) / max(len(places), 1)
    at = {x: LEFT + (i + 0.5) * step for i, x in enumerate(places)}
    scale = Scale([y for _, y in points], bottom, TOP, panel.logarithmic)
    out = [text((LEFT + right) / 2, 16, panel.title, size=12)]
    for tick in scale.ticks:
        y = scale(tick)
        out.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#e4e4e4"/>')
        out.append(text(LEFT - 5, y + 3.5, tick_text(tick), "end", 10))
    every = max(1, math.ceil(len(places) / 9))
    for i, x in enumerate(places):
        if i % every == 0:
            out.append(text(at[x], bottom + 14, tick_text(x) if isinstance(x, float) else x, size=10))
    out.append(f'<path d="M{LEFT} {TOP}V{bottom}H{right}" fill="none" stroke="#444"/>')
    out.append(text((LEFT + right) / 2, HEIGHT - 8, panel.x))
    out.append(text(13, (TOP + bottom) / 2, panel.y, turn=-90))
    for x, what in panel.marks:
        if x in at:
            out.append(f'<line x1="{at[x]:.1f}" y1="{TOP}" x2="{at[x]:.1f}" y2="{bottom}" stroke="#555" stroke-dasharray="4 3"/>')
            out.append(text(at[x] + 3, TOP + 9, what, "start", 9))
    for name, series in panel.series.items():
        spots = [(at[x], scale(y)) for x, y in series]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
        out.append(f'<polyline points="{line}" fill="none" stroke="{colours[name]}" stroke-width="1.6"/>')
        out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{colours[name]}"/>' for x, y in spots]
    return out


def write(path, title, panels):
    """Panels beside one another, two in a row, and one legend for all."""
    panels = [panel for panel in panels if any(panel.series.values())]
    names = list(dict.fromkeys(name for panel in panels for name in panel.series))
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    across = min(2, max(1, len(panels)))
    rows = math.ceil(len(panels) / across)
    width, below = across * WIDTH, 28 + rows * HEIGHT
    height = below + LEGEND * math.ceil(len(names) / across) + 10
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
           'font-family="sans-serif">', f'<rect width="{width}" height="{height}" fill="white"/>',
           text(width / 2, 18, title, size=13)]
    for i, panel in enumerate(panels):
        x, y = i % across * WIDTH, 24 + i // across * HEIGHT
        out += [f'<g transform="translate({x} {y})">', *draw_panel(panel, colours), "</g>"]
    for i, name in enumerate(names):
        x, y = 20 + i % across * WIDTH, below + 8 + i // across * LEGEND
        out.append(f'<line x1="{x}" y1="{y}" x2="{x + 22}" y2="{y}" stroke="{colours[name]}" stroke-width="2"/>')
        out.append(text(x + 28, y + 4, name, "start"))
    path.write_text("\n".join([*out, "</svg>", ""]))
