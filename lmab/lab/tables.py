"""What runs recorded, as tables of words: the same cells for a page, a terminal, Markdown and CSV.

Groups are the arms of a claim, or whatever `compare` puts together: label -> seed -> record.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from lmab.lab import guard
from lmab.store import OUTSIDE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lmab.lab.stats import Interval
    from lmab.store import Record

    Groups = Mapping[str, Mapping[int, Record]]

NOTHING = "–"  # noqa: RUF001  (a dash in a cell: there is no value)

_FIRST = "start.config."  # the configuration of the run that a run starts from

UNBOUNDED = "unbounded"  # an interval of too few seeds

# What a record says of cost -> the head of its column, and how many of the recorded units make one there.
_COST: dict[str, tuple[str, float]] = {
    "seconds": ("seconds", 1),
    "tokens": ("tokens read", 1),
    "tokens_a_second": ("tokens/s", 1),
    "parameters": ("parameters, each once", 1),
    "flops_a_token": ("FLOPs a token", 1),
    "latency_1": ("ms a row", 1e-3),
    "latency_32": ("ms for 32 rows", 1e-3),
    "peak_memory": ("MiB at most", 2**20),
}


_LETTERS = {1e12: "T", 1e9: "G", 1e6: "M", 1e3: "K"}


@dataclass(frozen=True)
class Table:
    """Cells as words; the first column names the row. name: of the table, for those who do not see it."""

    name: str
    head: list[str]
    rows: list[list[str]]
    note: str = ""

    def __bool__(self) -> bool:
        return bool(self.rows)

    def right(self, column: int) -> bool:
        """Is this a column of numbers? They stand flush right."""
        cells = [row[column] for row in self.rows if row[column] not in ("", NOTHING, UNBOUNDED)]
        return column > 0 and bool(cells) and all(re.fullmatch(r"[-+\[\]\d.,∞e %]+", cell) for cell in cells)

    def markdown(self) -> str:
        """As GitHub reads it."""

        def line(cells: Iterable[str]) -> str:
            safe = (re.sub(r"([|\\<])", r"\\\1", cell).replace("\n", "<br>") for cell in cells)
            return f"| {' | '.join(safe)} |"

        rule = ["---:" if self.right(i) else "---" for i in range(len(self.head))]
        return "\n".join([line(self.head), line(rule), *map(line, self.rows)]) + "\n"

    def rich(self) -> RichTable:
        """For a terminal. What does not fit is folded, since a number cut short is another number."""
        table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
        for i, name in enumerate(self.head):
            table.add_column(Text(name), justify="right" if self.right(i) else "left", overflow="fold")
        for row in self.rows:
            table.add_row(*(Text(cell) for cell in row))  # Text: brackets of an interval are no markup
        return table


def as_csv(rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows with named values, every digit of a number kept; columns in the order of first appearance."""
    rows = list(rows)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def number(value: Any) -> str:
    """A fact or a cost: four digits are enough, thousands are set apart."""
    if value is None or isinstance(value, bool) or not isinstance(value, int | float):
        return NOTHING if value is None else said(value)
    if not math.isfinite(value):
        return score(value)
    if abs(value) >= 1e9:
        return f"{value:.3e}"
    return f"{value:,.0f}" if isinstance(value, int) or abs(value) >= 1000 else f"{value:#.4g}"


def unit(metric: str) -> tuple[str, float]:
    """How a metric stands at the head of a column, and how many of its units make one there: costs have one of their
    own."""
    return _COST.get(metric.removeprefix("cost/"), (metric, 1)) if metric.startswith("cost/") else (metric, 1)


def compact(value: float) -> str:
    """Three digits and a letter, as papers print counts: 17.7M."""
    digits = float(f"{value:.3g}")
    for scale, letter in _LETTERS.items():
        if abs(digits) >= scale:
            return f"{digits / scale:g}{letter}"
    return f"{digits:g}"


def score(value: float, sign: str = "") -> str:
    """A metric, or with sign "+" a difference of two."""
    if not math.isfinite(value):
        return NOTHING if math.isnan(value) else f"{value:{sign}}".replace("inf", "∞")
    return f"{value:{sign}.4f}" if abs(value) < 1000 else f"{value:{sign}.5g}"


def bounds(interval: Interval, sign: str = "") -> str:
    """Two infinite ends say that the seeds are too few for any bound."""
    if not (math.isfinite(interval.low) or math.isfinite(interval.high)):
        return UNBOUNDED if interval.n else NOTHING
    return f"[{score(interval.low, sign)}, {score(interval.high, sign)}]"


def effect(value: float) -> str:
    """d_z; there is none for seeds that all gain the same."""
    return f"{value:.2f}" if math.isfinite(value) else NOTHING


def mean(scores: Mapping[int, float]) -> float:
    """Over seeds; nan where there are none."""
    return math.fsum(scores.values()) / len(scores) if scores else math.nan


def scored(record: Record, metric: str) -> float:
    """A run's score: the metric it recorded, else the mean over documents that makes it; nan if neither."""
    if metric in record.metrics or metric not in record.scores:
        return record.metrics.get(metric, math.nan)
    pairs = [p for p in zip(record.weights[metric], record.scores[metric], strict=True) if p[0] > 0]
    return math.fsum(w * v for w, v in pairs) / math.fsum(w for w, _ in pairs)


def said(value: Any) -> str:
    """A value of a configuration, as one would give it on the command line."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def together(values: Iterable[Any]) -> Any:
    """What several seeds say of one thing: the mean of numbers, else every value that occurs."""
    given = [v for v in values if v is not None]
    if not given:
        return None
    if all(isinstance(v, int | float) and not isinstance(v, bool) for v in given):
        return given[0] if len(set(given)) == 1 else math.fsum(given) / len(given)
    return ", ".join(dict.fromkeys(map(said, given)))


def cost(groups: Groups) -> Table:
    """What a group took, by means over its seeds."""
    rows = [
        [label, str(len(runs)), *(_spent(runs.values(), key, unit) for key, (_, unit) in _COST.items())]
        for label, runs in groups.items()
    ]
    note = (
        "Means over seeds. Times and memory are of this machine and of what else it did; the other figures are counts. "
        "Rows are read in one forward pass; memory is that of the whole process."
    )
    return Table("Cost", ["arm", "n", *(head for head, _ in _COST.values())], rows, note)


def _spent(records: Iterable[Record], key: str, unit: float) -> str:
    mean = together(record.cost.get(key) for record in records)
    return number(mean if mean is None else mean / unit)


def noise(groups: Groups) -> list[Table]:
    """What each objective's noise did to the training text, one table an objective."""
    names = dict.fromkeys(
        name
        for runs in groups.values()
        for record in runs.values()
        for name in record.config.get("objective", {})
        if isinstance(record.facts.get(name), dict)
    )
    tables = []
    for name in names:
        found = {label: [r.facts.get(name) or {} for r in runs.values()] for label, runs in groups.items()}
        keys = list(dict.fromkeys(key for facts in found.values() for fact in facts for key in fact))
        rows = [
            [label, *(number(together(fact.get(key) for fact in facts)) for key in keys)]
            for label, facts in found.items()
        ]
        note = f"Counted on training rows; {NOTHING} where a knob is null. Means over seeds."
        tables.append(Table(f"Noise of {name}", ["arm", *keys], rows, note))
    return tables


def data(groups: Groups) -> Table:
    """Sizes, passes over the text and the unigram entropy. Groups that agree in everything are one column."""
    leaves = {
        label: [
            {k: v for k, v in guard.flat(r.facts) if k.split(".")[0] not in r.config.get("objective", {})}
            for r in runs.values()
        ]
        for label, runs in groups.items()
        if runs
    }
    keys = dict.fromkeys(key for facts in leaves.values() for fact in facts for key in fact)
    rows = {key: [number(together(fact.get(key) for fact in facts)) for facts in leaves.values()] for key in keys}
    same = all(len(set(cells)) == 1 for cells in rows.values())
    head = ["all arms"] if same else list(leaves)
    body = [[key.replace(".", " ").replace("_", " "), *cells[: len(head)]] for key, cells in rows.items()]
    return Table("Data", ["", *head], body)


def configuration(configs: Mapping[str, Mapping[str, Any]]) -> Table:
    """The keys in which groups differ, less seeds and those that cannot change a result."""
    found = guard.differences(configs.values())
    rows = [[key, *map(said, values)] for key, values in found.items() if tells(key)]
    return Table("Differences of configuration", ["key", *configs], rows)


def tells(key: str) -> bool:
    """Does a difference in a dotted key make two runs of different groups? What stands outside the signature does not,
    nor does a seed. Runs that others start from are told apart by their own keys, not by their names."""
    while key.startswith(_FIRST):
        key = key.removeprefix(_FIRST)
    if key in ("seed", "start.run"):
        return False
    return not any(key == path or key.startswith(f"{path}.") for path in OUTSIDE)


def reported(given: Mapping[str, Any], ours: Mapping[str, str], metric: str, note: str) -> Table | None:
    """The paper's own figures beside ours. given: `columns`, and arm -> values, a value, or name -> value."""
    arms = {arm: row for arm, row in given.items() if arm != "columns"}
    columns = [str(c) for c in given.get("columns") or []]
    for row in arms.values():
        if isinstance(row, dict):
            columns += [str(c) for c in row if str(c) not in columns]
    width = max((len(row) for row in arms.values() if isinstance(row, list)), default=1 if arms else 0)
    columns += [""] * (width - len(columns))
    if not arms:
        return None
    rows = []
    for arm in dict.fromkeys([*arms, *ours]):
        row = arms.get(arm)
        if isinstance(row, dict):
            row = [{str(k): v for k, v in row.items()}.get(c) for c in columns]
        cells = row if isinstance(row, list) else [row]
        cells = [NOTHING if v is None else said(v) for v in cells]
        rows.append([arm, *cells, *[NOTHING] * (len(columns) - len(cells)), ours.get(arm, NOTHING)])
    return Table("The paper's figures", ["arm", *columns, f"here: {metric}"], rows, note)


def runs(records: list[Record], by: list[str], metrics: list[str]) -> list[Table]:
    """A line a run; and where seeds share all that was varied, a line of means over those that are done."""
    rows, groups = [], {}
    for record in records:
        label = [varied(record, key) for key in by]
        scores = [score(scored(record, metric)) for metric in metrics]
        done = f"{record.step}/{record.steps}"
        rows.append([record.signature, *label, str(record.seed), record.state, done, *scores])
        if record.state == "done":
            groups.setdefault(tuple(label), {})[record.signature] = record
    tables = [Table("Runs", ["run", *by, "seed", "state", "step", *metrics], rows)]
    if any(len(group) > 1 for group in groups.values()):
        means = [
            [*label, str(len(group))]
            + [score(mean({r.seed: scored(r, metric) for r in group.values()})) for metric in metrics]
            for label, group in groups.items()
        ]
        tables.append(Table("Means over seeds", [*by, "n", *(f"mean {metric}" for metric in metrics)], means))
    return tables


def varied(record: Record, key: str) -> str:
    """What a run had at a key: its value, the class of a group, or else what was asked for."""
    value = record.value(key)
    if isinstance(value, dict):
        value = value["_target_"].rpartition(".")[2] if "_target_" in value else "+".join(value)
    asked = [line.partition("=")[2] for line in record.overrides if line.lstrip("+~").startswith(f"{key}=")]
    return said(asked[-1] if value is None and asked else value)
