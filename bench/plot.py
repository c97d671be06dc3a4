# SPDX-License-Identifier: Apache-2.0
"""The charts of svg.py, drawn by matplotlib."""

import math

import matplotlib
from matplotlib.figure import Figure

SETTINGS = {
    "font.size": 8,
    "svg.fonttype": "none",  # letters stay letters
    "svg.hashsalt": "resurgo",  # the same numbers give the same file
    "axes.spines.top": False,
    "axes.spines.right": False,
}
WIDTH, HEIGHT, LINE = 3.6, 2.6, 0.19  # inches: of a panel, and the height of a line of the legend


def draw(path, title, panels, looks):
    """`looks`: name of the series → svg.Style."""
    across = min(2, max(1, len(panels)))
    rows, lines = math.ceil(len(panels) / across), math.ceil(len(looks) / across)
    legend, head = LINE * lines + 0.15, 0.35
    height = rows * HEIGHT + legend + head
    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(across * WIDTH, height), layout="constrained")
        figure.get_layout_engine().set(rect=(0, legend / height, 1, 1 - (legend + head) / height))
        figure.suptitle(title, fontsize=9.5, y=1 - 0.1 / height, va="top")
        handles = {}
        for i, panel in enumerate(panels):
            handles |= draw_panel(figure.add_subplot(rows, across, i + 1), panel, looks, i)
        names = [name for name in looks if name in handles]
        figure.legend([handles[name] for name in names], names, loc="lower center", ncols=across, frameon=False, handlelength=4)
        figure.savefig(path, format="svg", metadata={"Date": None})


def draw_panel(axes, panel, looks, number):
    """Returns the legend's symbol for each series."""
    places = panel.places()
    at = {x: i for i, x in enumerate(places)}
    handles = {}
    for i, (name, series) in enumerate(panel.series.items()):
        look = looks[name]
        dash = tuple(float(length) / 1.6 for length in look.dash.split())
        xs, ys = [at[x] + panel.aside(i) for x, *_ in series], [y for _, y, *_ in series]
        ends = [(x, y, *ends) for x, (_, y, *ends) in zip(xs, series) if ends]
        if ends:
            spread = [[y - least for _, y, least, _ in ends], [most - y for _, y, _, most in ends]]
            axes.errorbar([x for x, *_ in ends], [y for _, y, *_ in ends], spread, fmt="none", ecolor=look.colour, elinewidth=0.9, capsize=2.5)
        [handles[name]] = axes.plot(xs, ys, color=look.colour, linestyle=(0, dash) if dash else "-", linewidth=1.3, marker=look.marker,
                                    markersize=3.5, gid=f"series-{number}-{i}")
    if panel.logarithmic:
        axes.set_yscale("log", nonpositive="clip")
    else:
        axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
    for x, what in panel.marks:
        if x in at:
            axes.axvline(at[x], color="#555", linestyle="--", linewidth=0.8)
            axes.text(at[x], 1, f" {what}", transform=axes.get_xaxis_transform(), va="top", fontsize=7)
    every = panel.every()
    axes.set_xticks([at[x] for x in places[::every]], [f"{x:g}" if isinstance(x, float) else str(x) for x in places[::every]])
    axes.set_xlim(-0.5, len(places) - 0.5)
    axes.set_title(panel.title, fontsize=8.5)
    axes.set_xlabel(panel.x)
    axes.set_ylabel(panel.y)
    axes.grid(axis="y", color="#e4e4e4")
    axes.set_axisbelow(True)
    return handles
