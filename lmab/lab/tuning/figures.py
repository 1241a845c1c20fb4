"""Figures of a search: how its best value came down, what each parameter does to it, and which trials no other
surpasses."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState

from lmab.lab import tables
from lmab.lab.plots import ARMS, INK, Figure, figure, legend
from lmab.store import Store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

    from lmab.lab.tuning.found import Found

_HEIGHT = 2.6  # inches


def history(result: Found, place: int) -> Figure | None:
    """A metric over trials, and the best value so far. place: of the metric. None: no trial has a value."""
    plan, done = result.plan, result.complete
    if not done:
        return None
    best = np.minimum if plan.directions[place] == "minimize" else np.maximum
    numbers = [trial.number for trial in done]
    values = _values(result, place)

    def draw(canvas: Canvas) -> None:
        axes = canvas.subplots()
        axes.plot(numbers, values, "o", color=ARMS[0], markersize=4, alpha=0.7, markeredgewidth=0)
        ends = [*numbers, result.trials[-1].number]
        axes.step(ends, [*best.accumulate(values), best.reduce(values)], where="post", color=ARMS[1])
        _named(axes, "trial", plan.metrics[place])
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))

    caption = "A point is a trial that was trained to its end; the line is the best so far."
    return figure(f"{plan.metrics[place]} over trials", draw, _HEIGHT, caption)


def best_so_far(results: Mapping[str, Found]) -> Figure | None:
    """The best value over trials, a line for each of several searches by one metric. None: no trial has a value."""
    if not any(result.complete for result in results.values()):
        return None
    plan = next(iter(results.values())).plan
    best = np.minimum if plan.directions[0] == "minimize" else np.maximum

    def draw(canvas: Canvas) -> None:
        axes = canvas.subplots()
        for place, (name, result) in enumerate(results.items()):
            numbers, values = [trial.number for trial in result.complete], _values(result, 0)
            if not numbers:
                continue
            colour = ARMS[place % len(ARMS)]
            axes.plot(numbers, values, "o", color=colour, markersize=3, alpha=0.4, markeredgewidth=0)
            ends = [*numbers, result.trials[-1].number]
            axes.step(ends, [*best.accumulate(values), best.reduce(values)], where="post", color=colour, label=name)
        _named(axes, "trial", plan.metrics[0])
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        legend(canvas, results)

    caption = "A point is a trial; the line is the best so far."
    return figure(f"Tuning: best {plan.metrics[0]} over trials", draw, _HEIGHT, caption)


def slices(result: Found, name: str) -> Figure | None:
    """The first metric over one parameter; later trials are darker."""
    plan = result.plan
    done = [trial for trial in result.complete if name in trial.params]
    if not done:
        return None
    kind = done[0].distributions[name]
    words = [str(choice) for choice in kind.choices] if isinstance(kind, CategoricalDistribution) else []

    def draw(canvas: Canvas) -> None:
        axes = canvas.subplots()
        scale = tables.unit(plan.metrics[0])[1]
        for trial in done:
            value = trial.params[name]
            x = words.index(str(value)) if words else value
            shade = 0.25 + 0.75 * (trial.number + 1) / (result.trials[-1].number + 1)
            axes.plot(x, trial.values[0] / scale, "o", color=ARMS[0], alpha=shade, markersize=4, markeredgewidth=0)
        if isinstance(kind, FloatDistribution | IntDistribution) and kind.log:
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.xaxis.set_minor_formatter(NullFormatter())
        if words:
            axes.set_xticks(range(len(words)), words)
            axes.set_xlim(-0.5, len(words) - 0.5)
        _named(axes, name, plan.metrics[0])

    return figure(f"{plan.metrics[0]} over {name}", draw, _HEIGHT, "Later trials are darker.")


def front(result: Found) -> Figure | None:
    """The second metric over the first: all trials, and those that no other surpasses."""
    plan, done = result.plan, result.complete
    if not done:
        return None
    x, y = plan.metrics[:2]
    chosen = {trial.number for trial in result.best}
    points = [*zip(_values(result, 1), _values(result, 0), (trial.number for trial in done), strict=True)]
    best = sorted(point for point in points if point[2] in chosen)
    others = [point[:2] for point in points if point[2] not in chosen]

    def draw(canvas: Canvas) -> None:
        axes = canvas.subplots()
        if others:
            axes.plot(*zip(*others, strict=True), "o", color=INK, alpha=0.35, markersize=4, markeredgewidth=0)
        if best:
            axes.plot(*zip(*(point[:2] for point in best), strict=True), "D-", color=ARMS[1], markersize=5)
        for point, same in itertools.groupby(best, key=lambda point: point[:2]):
            numbers = ", ".join(str(number) for _, _, number in same)
            axes.annotate(numbers, point, (4, 4), textcoords="offset points")
        axes.xaxis.set_major_locator(MaxNLocator(6))
        axes.xaxis.set_major_formatter(FuncFormatter(_tick))
        _named(axes, y, x)

    caption = "Diamonds are the trials that no other surpasses in both, with their numbers."
    return figure(f"{x} against {y}", draw, _HEIGHT + 0.6, caption)


def curves(result: Found) -> Figure | None:
    """The metric over steps, of every trial: of its first run, as far as it was trained."""
    plan, store = result.plan, Store(result.plan.store)
    lines = []
    for trial in result.trials:
        names = trial.user_attrs.get("runs", [])
        record = store.find(names[0]) if names else None
        if record is not None and (points := record.curves.get(plan.metrics[0])):
            lines.append((trial, [p for p in points if math.isfinite(p[1])]))
    if not lines:
        return None

    def draw(canvas: Canvas) -> None:
        axes = canvas.subplots()
        for trial, points in lines:
            steps, values = zip(*points, strict=True) if points else ((), ())
            chosen = trial in result.best
            pruned = trial.state == TrialState.PRUNED
            axes.plot(
                steps,
                values,
                "--" if pruned else "-",
                marker="x" if pruned else None,
                markevery=[-1] if pruned and points else None,
                color=ARMS[1] if chosen else INK,
                alpha=1.0 if chosen else 0.4,
                linewidth=1.8 if chosen else 0.9,
                zorder=3 if chosen else 2,
            )
        _named(axes, "optimiser step", plan.metrics[0])

    caption = "The best trial stands out; dashed ones were pruned at the cross."
    return figure(f"{plan.metrics[0]} over steps", draw, _HEIGHT, caption)


def _values(result: Found, place: int) -> list[float]:
    """Of a metric in all trials that have one, in the unit of the axis."""
    scale = tables.unit(result.plan.metrics[place])[1]
    return [trial.values[place] / scale for trial in result.complete]


def _named(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(tables.unit(x)[0])
    axes.set_ylabel(tables.unit(y)[0])
    axes.yaxis.set_major_formatter(FuncFormatter(_tick))


def _tick(value: float, _: object) -> str:
    return f"{value:.4g}" if abs(value) < 10_000 else tables.compact(value)
