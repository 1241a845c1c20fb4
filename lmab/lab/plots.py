"""Figures of runs as inline SVG, in the colours of the page that holds them.

A figure is drawn with stand-in colours, which become the page's CSS variables afterwards, and with real text
in the page's own font: so it follows light and dark, and can be read and searched. Nothing here depends on
the clock or on pyplot's global state; the same records give the same bytes.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import matplotlib.style
import numpy as np
from markupsafe import Markup, escape
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from lmab.lab.stats import Interval
    from lmab.lab.tables import Groups

INK, _LINE = "#010203", "#040506"
ARMS = tuple(f"#0a0b{i:02x}" for i in range(8))
# The page's colours on white, for a figure that stands alone.
_PALETTE = {"ink": "#1d1f21", "line": "#dcdcd6", "arm0": "#0b62a4", "arm1": "#c2410c", "arm2": "#0f7b5f"}
_PALETTE |= {"arm3": "#963a8c", "arm4": "#846700", "arm5": "#4b5563", "arm6": "#b4233f", "arm7": "#2b7290"}
_MARKERS = "os^vPX<>"  # shape tells arms apart where colour cannot
_DASHES = ("-", "--", "-.", ":")
_WIDTH = 5.2  # inches; 374 units, so that type of 9 is legible on a telephone too

_STYLE = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # an arm's name is no formula
    "font.size": 9,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": _LINE,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
}


@dataclass(frozen=True)
class Figure:
    """svg: markup, ready for a page. label: what it shows, for those who do not see it."""

    svg: Markup
    label: str
    caption: str

    def alone(self) -> str:
        """The figure as a file of its own, on white."""
        svg = re.sub(r"var\(--(\w+)\)", lambda found: _PALETTE[found[1]], self.svg)
        spaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
        paper = '<rect width="100%" height="100%" fill="#ffffff"/>'
        return re.sub(r"<svg ([^>]*)>", rf'<svg {spaces} font-family="sans-serif" \1>{paper}', svg, count=1) + "\n"


@dataclass(frozen=True)
class Row:
    """One line of a figure: a value for every seed, the interval of their centre, and a rule's margins.

    tone: which arm's colour and marker, the row's own place if None.
    """

    label: str
    values: Sequence[float]
    interval: Interval | None
    margins: Sequence[float] = ()
    tone: int | None = None


def rows(title: str, drawn: Sequence[Row], axis: str, *, zero: bool = False) -> Figure:
    """Every seed as a point, its group's mean and interval beside it. zero: mark it, for differences."""

    def draw(canvas: Canvas) -> None:
        axes = canvas.subplots()
        axes.grid(visible=False, axis="y")
        if zero:
            axes.axvline(0, color=INK, linewidth=0.8)
        for place, row in enumerate(drawn):
            _row(axes, place, row)
        axes.set_yticks(range(len(drawn)), [textwrap.fill(r.label, 24) for r in drawn])
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(len(drawn) - 0.5, -0.5)
        axes.xaxis.set_major_locator(MaxNLocator(6))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:+.4g}" if zero and x else f"{x:.5g}"))
        axes.set_xlabel(axis)

    caption = "A point is a seed; the diamond is their mean, the bar its interval"
    caption += " (none is drawn where the seeds are too few for one)" if any(map(_unbounded, drawn)) else ""
    caption += "; the dashed line is the margin of the rule." if any(r.margins for r in drawn) else "."
    return figure(title, draw, 0.75 + 0.62 * max(1, len(drawn)), caption)


def _unbounded(row: Row) -> bool:
    return row.interval is None or not (math.isfinite(row.interval.low) and math.isfinite(row.interval.high))


def _row(axes: Axes, place: int, row: Row) -> None:
    tone = place if row.tone is None else row.tone
    colour, marker = ARMS[tone % len(ARMS)], _MARKERS[tone % len(_MARKERS)]
    values = [v for v in row.values if math.isfinite(v)]
    # Seeds a little apart and beneath the bar, so that equal scores can be counted.
    below = place + 0.18 + 0.16 * (np.arange(len(values)) % 3 - 1) * (len(values) > 1)
    axes.plot(values, below, marker, color=colour, markersize=5, alpha=0.75, markeredgewidth=0)
    if row.interval is not None and math.isfinite(row.interval.estimate):
        if not _unbounded(row):
            ends = [row.interval.low, row.interval.high]
            axes.plot(ends, [place - 0.2] * 2, "|-", color=colour, linewidth=2.2, markersize=8)
        axes.plot(row.interval.estimate, place - 0.2, "D", color=colour, markersize=6, markeredgewidth=0)
    for margin in row.margins:
        axes.plot([margin] * 2, [place - 0.45, place + 0.45], "--", color=INK, linewidth=1)


def curves(title: str, groups: Groups, metric: str, blind: Sequence[float] = ()) -> Figure | None:
    """A metric over steps: means of seeds, and a band from the lowest seed to the highest. None: none has it.

    blind: what a model without context loses, in nats, drawn as dashed lines.
    """
    lines = {label: _over_steps([r.curves.get(metric, []) for r in runs.values()]) for label, runs in groups.items()}
    if not any(len(steps) for steps, _ in lines.values()):
        return None

    def draw(canvas: Canvas) -> None:
        axes = canvas.subplots()
        for i, (label, (steps, band)) in enumerate(lines.items()):
            if not len(steps):
                continue
            colour, dash = ARMS[i % len(ARMS)], _DASHES[i % len(_DASHES)]
            axes.fill_between(steps, band[0], band[2], color=colour, alpha=0.18, linewidth=0)
            few = _MARKERS[i % len(_MARKERS)] if len(steps) < 8 else ""
            axes.plot(steps, band[1], dash, marker=few, markersize=3.5, color=colour, label=textwrap.fill(label, 52))
        for nats in blind:
            axes.axhline(nats, color=INK, linestyle=(0, (5, 3)), linewidth=0.9)
        values = np.concatenate([band.ravel() for _, band in lines.values()] + [np.array(blind)])
        _scale(axes, values[np.isfinite(values)])
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
        axes.set_xlabel("step")
        axes.set_ylabel(metric)
        legend(canvas, lines)

    caption = "Means over seeds; the band goes from the lowest seed to the highest."
    caption += " The dashed line is what a model without context loses." if blind else ""
    return figure(title, draw, 3.1, caption)


def learning(groups: Groups, metric: str) -> list[Figure | None]:
    """Curves of a test metric, `test/objective_quantity`, on held-out and on training text."""
    name = metric.partition("/")[2]
    objective, _, quantity = name.rpartition("_")
    records = [record for runs in groups.values() for record in runs.values()]
    known = [r.facts.get("blind_nats", {}).get(objective, {}) for r in records] if quantity == "loss" else []
    blind = sorted({round(nats["validation"], 6) for nats in known if "validation" in nats})
    held_out = curves(f"On held-out text: val/{name}", groups, f"val/{name}", blind)
    own = f"train/{name}" if any(f"train/{name}" in r.curves for r in records) else f"train/{objective}_loss"
    return [
        held_out,
        curves(f"On training text: {own}", groups, own, blind if own.endswith("_loss") else ()),
    ]


def _over_steps(seeds: Sequence[Sequence[tuple[int, float]]]) -> tuple[np.ndarray, np.ndarray]:
    """Curves of several seeds to steps [T] and lowest, mean and highest [3, T], where a value is finite."""
    points: dict[int, list[float]] = {}
    for curve in seeds:
        for step, value in curve:
            if math.isfinite(value):
                points.setdefault(step, []).append(value)
    steps = np.array(sorted(points))
    band = [(min(points[s]), math.fsum(points[s]) / len(points[s]), max(points[s])) for s in steps]
    return steps, np.array(band, dtype=float).reshape(-1, 3).T


def _scale(axes: Axes, values: np.ndarray) -> None:
    """Losses that begin at 17 nats and end at 1 would leave nothing to see below: then it is logarithmic."""
    low, high = float(values.min()), float(values.max())
    if low > 0 and high / low > 2.5:
        axes.set_yscale("log")
        grid = [m * 10.0**e for e in range(-6, 7) for m in (1, 1.5, 2, 3, 4, 5, 6, 8)]
        axes.yaxis.set_major_locator(FixedLocator([g for g in grid if low / 1.1 <= g <= high * 1.1]))
        axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:.4g}"))


def legend(canvas: Canvas, labels: Collection[str]) -> None:
    """Above the axes, in as many columns as there is room for."""
    longest = max(map(len, labels))
    columns = max(1, min(len(labels), int(_WIDTH / (0.7 + 0.08 * longest))))  # inches: the line, and a letter
    canvas.legend(loc="outside upper left", ncols=columns, handlelength=2.6)


def figure(title: str, draw: Callable[[Canvas], None], height: float, caption: str) -> Figure:
    """Draw under our own style, whatever the user's matplotlibrc says."""
    style: list[str | Path | dict[str, Any]] = ["default", {**_STYLE, "svg.hashsalt": title}]
    with matplotlib.style.context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the page's font has it
        canvas = Canvas(figsize=(_WIDTH, height), layout="constrained")
        draw(canvas)
        text = io.StringIO()
        canvas.savefig(text, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return Figure(_inline(text.getvalue(), title), title, caption)


def _inline(svg: str, label: str) -> Markup:
    """A file of matplotlib's as a part of a page: no prolog, no names that two figures would share."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    box = re.search(r'viewBox="[^"]*"', svg)
    assert box is not None
    head = f'<svg {box[0]} role="img" aria-label="{escape(label)}">'
    svg = re.sub(r"<svg[^>]*>", lambda _: head, svg, count=1)
    svg = re.sub(r"<style.*?</style>", "", svg, flags=re.DOTALL)  # it would hold for the whole page
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg))
    svg = re.sub(r' id="([^"]*)"', lambda m: m[0] if m[1] in used else "", svg)
    svg = re.sub(r"font-family: [^;\"]*; ?", "", svg)
    names = {INK: "ink", _LINE: "line"} | {colour: f"arm{i}" for i, colour in enumerate(ARMS)}
    for colour, name in names.items():
        svg = svg.replace(colour, f"var(--{name})")
    return Markup(svg)
