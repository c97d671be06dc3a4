# SPDX-License-Identifier: Apache-2.0
"""Line charts as SVG: by matplotlib where it is installed, otherwise with nothing but the standard library.

    bench/svg.py PICTURE.svg...        gives pictures the colours of dark pages, too
"""

import colorsys
import math
import re
import sys
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from statistics import median

COLOURS = ("#8a8a8a", "#c1440e", "#1b7837", "#2166ac", "#7b3294", "#b8860b", "#01665e", "#d6604d", "#4d4d4d", "#999933")
DASHES = ("", "7 3", "2 2", "9 3 2 3")  # a line shows through the gaps of one that covers it
MARKERS = "osv^D"  # as matplotlib calls them
WIDTH, HEIGHT = 340, 240  # of a panel
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 30, 42
LEGEND = 17  # height of a line of it


@dataclass
class Panel:
    title: str
    x: str  # what the axis shows
    y: str
    series: dict  # name → [(x, y)] or [(x, y, least, most)]; x are numbers, or words at equal distances
    logarithmic: bool = False  # y
    marks: list = field(default_factory=list)  # (x, text): vertical lines


    def places(self):
        """The values of the x axis, in order: they are drawn at equal distances."""
        places = list(dict.fromkeys(point[0] for series in self.series.values() for point in series))
        return sorted(places) if all(isinstance(x, (int, float)) for x in places) else places

    def aside(self, i):
        """How far the points of series `i` are drawn beside their places, in distances between places: ranges would
        cover one another."""
        has_ranges = any(len(point) > 2 for series in self.series.values() for point in series)
        return (i - (len(self.series) - 1) / 2) * min(0.08, 0.6 / len(self.series)) if has_ranges else 0.0

    def every(self):
        """Of so many values, one has its name at the axis."""
        return max(1, math.ceil(len(self.places()) / 9))


def around(x, values):
    """A point of a series: the median of the measurements, and their range."""
    values = list(values)
    return (x, median(values), min(values), max(values)) if len(values) > 1 else (x, *values)


@dataclass(frozen=True)
class Style:
    """The look of a line."""

    colour: str
    dash: str  # lengths of lines and gaps; none: it has no gaps
    marker: str


def styles(names):
    """Each of forty styles has its own look, by colour and dashes together."""
    count = len(COLOURS)
    return {name: Style(COLOURS[i % count], DASHES[(i + i // count) % len(DASHES)], MARKERS[i % len(MARKERS)]) for i, name in enumerate(names)}


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


def line(x1, y1, x2, y2, colour, width=1.0, dash=""):
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="{width}"{dashed}/>'


def point(x, y, style):
    shapes = {"s": "m-2.4 -2.4h4.8v4.8h-4.8z", "v": "m-3 -2.2h6l-3 5.2z", "^": "m-3 2.2h6l-3 -5.2z", "D": "m0 -3.2l3.2 3.2l-3.2 3.2l-3.2 -3.2z"}
    if style.marker == "o":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{style.colour}"/>'
    return f'<path d="M{x:.1f} {y:.1f}{shapes[style.marker]}" fill="{style.colour}"/>'


def draw_panel(panel, looks, number):
    """The panel's elements, at the origin. `looks`: name of the series → style."""
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    points = [point for series in panel.series.values() for point in series]
    places = panel.places()
    step = (right - LEFT) / max(len(places), 1)
    at = {x: LEFT + (i + 0.5) * step for i, x in enumerate(places)}
    scale = Scale([y for _, *ys in points for y in ys], bottom, TOP, panel.logarithmic)
    out = [text((LEFT + right) / 2, 16, panel.title, size=12)]
    for tick in scale.ticks:
        y = scale(tick)
        out.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#e4e4e4"/>')
        out.append(text(LEFT - 5, y + 3.5, tick_text(tick), "end", 10))
    every = panel.every()
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
    for i, (name, series) in enumerate(panel.series.items()):
        look = looks[name]
        spots = [(at[x] + panel.aside(i) * step, *map(scale, ys)) for x, *ys in series]
        out.append(f'<g id="series-{number}-{i}">')
        dashed = f' stroke-dasharray="{look.dash}"' if look.dash else ""
        corners = " ".join(f"{x:.1f},{y:.1f}" for x, y, *_ in spots)
        out.append(f'<polyline points="{corners}" fill="none" stroke="{look.colour}" stroke-width="1.6"{dashed}/>')
        for x, y, *ends in spots:
            if ends:
                out.append(line(x, ends[0], x, ends[1], look.colour))
                out += [line(x - 3, end, x + 3, end, look.colour) for end in ends]
            out.append(point(x, y, look))
        out.append("</g>")
    return out


def write(path, title, panels):
    """Panels beside one another, two in a row, and one legend for all."""
    panels = [panel for panel in panels if any(panel.series.values())]
    looks = styles(dict.fromkeys(name for panel in panels for name in panel.series))
    try:
        import plot
    except Exception:  # not installed, or not fit for this Python: figures that took hours are drawn all the same
        draw(path, title, panels, looks)
    else:
        plot.draw(path, title, panels, looks)
    path.write_text(for_dark_pages(path.read_text()))


def by_night(colour):
    """The colour on a dark page: as much darker or lighter than the page, and of the same hue."""
    digits = {"white": "fff", "black": "000"}.get(colour, colour.lstrip("#"))
    digits = "".join(digit * 2 for digit in digits) if len(digits) == 3 else digits
    hue, lightness, saturation = colorsys.rgb_to_hls(*(int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)))
    return "#" + "".join(f"{round(part * 255):02x}" for part in colorsys.hls_to_rgb(hue, 0.93 - 0.86 * lightness, 0.7 * saturation))


def for_dark_pages(picture):
    """The picture with a second set of colours, which browsers take where the user has dark pages."""
    picture = re.sub(r'<style id="by-night">.*?</style>\n', "", picture, flags=re.S)
    colours = r"(#[0-9a-fA-F]{6}|#[0-9a-fA-F]{3}|white|black)"
    attributes = sorted(set(re.findall(rf'\b(fill|stroke)="{colours}"', picture)))
    inline = sorted(set(re.findall(rf"\b(fill|stroke): {colours}\b", picture)))
    rules = [f"svg{{fill:{by_night('black')}}}"]  # what names no colour is black
    rules += [f'[{what}="{colour}"]{{{what}:{by_night(colour)}}}' for what, colour in attributes]
    rules += [f'[style*="{what}: {colour}"]{{{what}:{by_night(colour)}!important}}' for what, colour in inline]
    style = '<style id="by-night">@media (prefers-color-scheme: dark) {\n' + "\n".join(rules) + "\n}</style>\n"
    begin = picture.index(">", picture.index("<svg")) + 1
    return picture[:begin] + "\n" + style + picture[begin:].removeprefix("\n")


def draw(path, title, panels, looks):
    across = min(2, max(1, len(panels)))
    rows = math.ceil(len(panels) / across)
    width, below = across * WIDTH, 28 + rows * HEIGHT
    height = below + LEGEND * math.ceil(len(looks) / across) + 10
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
           'font-family="sans-serif">', f'<rect width="{width}" height="{height}" fill="white"/>',
           text(width / 2, 18, title, size=13)]
    for i, panel in enumerate(panels):
        x, y = i % across * WIDTH, 24 + i // across * HEIGHT
        out += [f'<g transform="translate({x} {y})">', *draw_panel(panel, looks, i), "</g>"]
    for i, (name, look) in enumerate(looks.items()):
        x, y = 20 + i % across * WIDTH, below + 8 + i // across * LEGEND
        out += [line(x, y, x + 30, y, look.colour, 2, look.dash), point(x + 15, y, look), text(x + 36, y + 4, name, "start")]
    path.write_text("\n".join([*out, "</svg>", ""]))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        Path(name).write_text(for_dark_pages(Path(name).read_text()))
