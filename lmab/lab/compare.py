"""Any runs of a store beside each other: grouped by what they differ in, paired by seed, with intervals.

No rule judges here, so nothing is called better: a table, and the same kind of page as a claim's.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from rich.text import Text

from lmab.lab import grouping, guard, plots, stats, students, tables
from lmab.lab.page import Page, Section, console, folder
from lmab.lab.plots import Row
from lmab.lab.report import reproduced
from lmab.lab.tables import NOTHING, Table
from lmab.rng import derive
from lmab.store import write_whole
from lmab.types import BadInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from lmab.lab.stats import Interval
    from lmab.store import Record, Store

LEVEL = 0.95


class Paths(NamedTuple):
    """What a comparison wrote."""

    html: Path
    markdown: Path
    csv: Path


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Groups of runs and what can be said of them.

    groups: label -> seed -> record. differences: label -> the paired difference from the first group; empty
    where the metric cannot be compared, because of the keys in `redefined`. also: keys in which groups differ
    beside those asked for, so that a difference cannot be put down to either.
    """

    metric: str
    by: list[str]
    where: list[str]
    groups: dict[str, dict[int, Record]] = field(repr=False)
    intervals: dict[str, Interval]
    differences: dict[str, Interval]
    redefined: list[str]
    also: list[str]

    @property
    def sentence(self) -> str:
        """What has to be known before the figures are read; empty if nothing."""
        if self.redefined:
            return (
                f"{self.metric} cannot be compared between them: the groups differ in "
                f"{grouping.listed(self.redefined)}, which changes what it measures."
            )
        if self.also:
            listed = grouping.listed(self.also)
            return f"The groups differ in {listed} as well: a difference may be owed to that."
        return ""


def compare(store: Store, by: list[str], metric: str | None = None, where: list[str] | None = None) -> Compared:
    """Group the done runs of a store. by: dotted keys; a group of keys stands for all in it that differ.
    where: key=value, which all must meet. metric: the first that every run has, if None.

    BadInput: nothing is left, a key or metric that is not there, or groups that are not of one kind.
    """
    records = sorted((r for r in store if r.state == "done"), key=lambda r: r.signature)
    if not records:
        raise BadInput(f"No run in {store.root} is done: there is nothing to compare.")
    for condition in where or []:
        records = grouping.where(records, condition)
    by = [leaf for key in by for leaf in grouping.leaves(records, key)]
    metric = grouping.metric(records, metric)
    groups = grouping.groups(records, by)
    first: list[Mapping[str, Any]] = [next(iter(runs.values())).config for runs in groups.values()]
    also = [k for k in guard.differences(first) if k not in by and tables.tells(k)]
    redefined = guard.redefined(metric, first)
    base, *others = groups
    return Compared(
        metric=metric,
        by=by,
        where=where or [],
        groups=groups,
        intervals={label: _interval(list(runs.values()), metric, label) for label, runs in groups.items()},
        differences={}
        if redefined
        else {label: _difference(groups[label], groups[base], metric, label) for label in others},
        redefined=redefined,
        also=also,
    )


def write(root: Path, compared: Compared, command: str) -> Paths:
    """Write page and tables to a folder of their own below `root`. command: the line that was given."""
    records = [r for runs in compared.groups.values() for r in runs.values()]
    by = " ".join(compared.by)
    place = root / folder(["compare", *compared.by], [compared.metric, *(r.signature for r in records)])
    paths = Paths(*(place / name for name in ("report.html", "table.md", "table.csv")))
    table, configs = _table(compared), {g: next(iter(r.values())).config for g, r in compared.groups.items()}
    page = Page(
        title=f"{compared.metric} by {by}",
        words=f"{compared.metric} of {len(records)} runs, grouped by {', '.join(compared.by)}.",
        source=f"where {', '.join(compared.where)}" if compared.where else "",
        sentence=compared.sentence,
        sections=[
            Section("Groups", tables=[table], figures=_figures(compared)),
            # Curves side by side compare by eye what cannot be compared.
            Section(
                "Learning curves",
                figures=[] if compared.redefined else plots.learning(compared.groups, compared.metric),
            ),
            Section("Students beside their teachers", tables=students.beside(compared.groups)),
            Section("Cost", tables=[tables.cost(compared.groups)]),
            Section("What the noise really did", tables=tables.noise(compared.groups)),
            Section("Data", tables=[tables.data(compared.groups)]),
            Section("Where the groups differ", tables=[tables.configuration(configs)]),
            reproduced([(r.code, r.versions) for r in records], command),
            Section("Runs", tables=tables.runs(records, compared.by, [compared.metric])[:1]),
        ],
    )
    write_whole(paths.html, page.html())
    words = [f"# {page.title}", compared.sentence, table.markdown()]
    write_whole(paths.markdown, "\n\n".join(filter(None, words)))
    write_whole(paths.csv, tables.as_csv(_rows(compared)))
    return paths


def say(compared: Compared, paths: Paths) -> None:
    """Print the table, what has to be known of it, and where the page is."""
    out = console()
    out.print(_table(compared).rich())
    if compared.sentence:
        out.print(Text(compared.sentence, style="bold"))
    out.print(Text(str(paths.html)), soft_wrap=True)


def line(store: Store, by: Iterable[str], metric: str | None, where: Iterable[str]) -> str:
    """The command that makes a comparison."""
    words = [*(w for key in by for w in ("--by", key)), *(["--metric", metric] if metric else [])]
    words += [w for condition in where for w in ("--where", condition)]
    return f"python -m lmab --store {shlex.quote(str(store.root))} compare {shlex.join(words)}"


def _matrix(records: list[Record], metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Scores [S, D] and weights [D]; a metric that is not kept for every document is one document."""
    if all(metric in r.scores for r in records):
        return np.array([r.scores[metric] for r in records]), np.array(records[0].weights[metric])
    return np.array([[r.metrics[metric]] for r in records]), np.ones(1)


def _generator(*parts: str) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=derive("compare", *parts)))


def _interval(records: list[Record], metric: str, label: str) -> Interval:
    return stats.interval(*_matrix(records, metric), LEVEL, rng=_generator(metric, label))


def _difference(ours: dict[int, Record], base: dict[int, Record], metric: str, label: str) -> Interval:
    """Ours less the base's, at the seeds that both have."""
    seeds = [seed for seed in ours if seed in base]
    if not seeds:
        return stats.Interval(estimate=np.nan, low=-np.inf, high=np.inf, n=0)
    mine, weights = _matrix([ours[seed] for seed in seeds], metric)
    theirs, _ = _matrix([base[seed] for seed in seeds], metric)
    return stats.interval(mine - theirs, weights, LEVEL, rng=_generator(metric, label, "difference"))


def _scores(compared: Compared) -> dict[str, dict[int, float]]:
    return {
        label: {seed: tables.scored(r, compared.metric) for seed, r in runs.items()}
        for label, runs in compared.groups.items()
    }


def _values(compared: Compared, label: str) -> list[str]:
    """What a group has at the keys that it was made by."""
    some = next(iter(compared.groups[label].values()))
    return [tables.varied(some, key) for key in compared.by]


def _table(compared: Compared) -> Table:
    rows = []
    base = next(iter(compared.groups))
    for label, scores in _scores(compared).items():
        interval = compared.intervals[label]
        row = [
            *_values(compared, label),
            str(len(scores)),
            tables.score(tables.mean(scores)),
            tables.bounds(interval),
        ]
        if compared.differences:
            d = compared.differences.get(label)
            row += [tables.score(d.estimate, "+"), tables.bounds(d, "+"), str(d.n)] if d else [NOTHING] * 3
        rows.append(row)
    head = [*compared.by, "n", compared.metric, "95% interval"]
    note = f"Means over n seeds. An interval is {tables.UNBOUNDED} where the seeds are too few for its level."
    if compared.differences:
        head += [f"less {base}", "95% interval", "pairs"]
        note += f" Differences are paired by seed; intervals hold for each by itself. The first group is {base}."
    return Table("Groups", head, rows, note)


def _figures(compared: Compared) -> list[plots.Figure]:
    """None where the metric cannot be compared: points on one axis are a comparison."""
    if compared.redefined:
        return []
    scores = _scores(compared)
    drawn = [Row(label, list(s.values()), compared.intervals[label]) for label, s in scores.items()]
    found = [plots.rows(f"{compared.metric} of every seed", drawn, compared.metric)]
    base = next(iter(scores))
    away = [
        Row(
            label,
            [s - scores[base][seed] for seed, s in scores[label].items() if seed in scores[base]],
            d,
            (),
            i,
        )
        for i, (label, d) in enumerate(compared.differences.items(), start=1)
    ]
    if any(row.values for row in away):
        axis = f"{compared.metric}, less that of {base}"
        found.append(plots.rows("Paired differences, seed by seed", away, axis, zero=True))
    return found


def _rows(compared: Compared) -> Iterator[dict[str, Any]]:
    """table.csv: a line a group, every digit kept."""
    seeds = sorted({seed for runs in compared.groups.values() for seed in runs})
    for label, scores in _scores(compared).items():
        interval, d = compared.intervals[label], compared.differences.get(label)
        row: dict[str, Any] = dict(zip(compared.by, _values(compared, label), strict=True))
        row |= {"n": len(scores), "mean": tables.mean(scores), "low": interval.low, "high": interval.high}
        if compared.differences:
            values = (d.estimate, d.low, d.high, d.n) if d else ("",) * 4
            row |= dict(zip(("difference", "difference low", "difference high", "pairs"), values, strict=True))
        yield row | {f"seed {seed}": scores.get(seed, "") for seed in seeds}
