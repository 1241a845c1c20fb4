"""Which runs to put beside each other: chosen by conditions, grouped by keys, alike but for the seed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from lmab.checks import nearest
from lmab.lab import guard, tables
from lmab.types import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable

    from lmab.store import Record

DEFAULT = "test/mlm_loss"


def where(records: list[Record], condition: str) -> list[Record]:
    key, equals, wanted = condition.partition("=")
    if not equals:
        raise BadInput(f"--where {condition} is no condition: give key=value, as in --where budget.name=mini.")
    if len(leaves(records, key, expand=False)) != 1:
        raise BadInput(f"--where {condition}: {key} is a group of keys, so name one of them.")
    left = [r for r in records if _same(r.value(key), wanted)]
    if not left:
        there = sorted({tables.said(r.value(key)) for r in records})
        raise BadInput(f"No done run has {condition}: {nearest(wanted, there)}")
    return left


def _same(value: Any, wanted: str) -> bool:
    """Is a value what was typed? 3e-3 is 0.003."""
    if wanted in (tables.said(value), json.dumps(value)):
        return True
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and float(wanted) == value
    except ValueError:
        return False


def leaves(records: list[Record], key: str, *, expand: bool = True) -> list[str]:
    """The keys that a key stands for: itself, or those below it in which the runs differ."""
    known = dict.fromkeys(leaf for r in records for leaf, _ in guard.flat(r.config))
    if key in known:
        return [key]
    inside = [leaf for leaf in known if leaf.startswith(f"{key}.")]
    if not inside:
        raise BadInput(f"No run has a key {key}: {nearest(key, list(known))}")
    if not expand:
        return inside
    differing = [leaf for leaf in guard.differences(r.config for r in records) if leaf in inside]
    if not differing:
        raise BadInput(f"The runs do not differ in anything below {key}: choose another --by.")
    return differing


def metric(records: list[Record], asked: str | None) -> str:
    everywhere = [m for m in records[0].metrics if all(m in r.metrics for r in records)]
    anywhere = list(dict.fromkeys(m for r in records for m in r.metrics))
    if asked is None:
        if not everywhere:
            raise BadInput(f"These {len(records)} runs have no metric in common: narrow them with --where.")
        return DEFAULT if DEFAULT in everywhere else everywhere[0]
    if asked not in anywhere:
        raise BadInput(f"No run has a metric {asked}: {nearest(asked, anywhere)}")
    if asked not in everywhere:
        lacking = sum(asked not in r.metrics for r in records)
        raise BadInput(f"{lacking} of {len(records)} runs have no {asked}: leave them out with --where.")
    return asked


def groups(records: list[Record], by: list[str]) -> dict[str, dict[int, Record]]:
    """Label -> seed -> record, in the order of the values. Only seeds may differ inside a group."""
    if "seed" in by:
        raise BadInput("--by seed makes no groups: seeds are what a group is a mean over.")
    found: dict[str, list[Record]] = {}
    for record in sorted(records, key=_order(by)):
        label = ", ".join(f"{short(key)}={tables.varied(record, key)}" for key in by)
        found.setdefault(label, []).append(record)
    for label, group in found.items():
        keys = guard.differences(r.config for r in group)
        if mixed := [k for k in keys if k not in by and tables.tells(k)]:
            raise BadInput(
                f"The runs with {label} differ in {listed(mixed)} as well: choose among them with "
                f"--where {mixed[0]}=..., or tell them apart with --by {mixed[0]}."
            )
    return {label: {r.seed: r for r in group} for label, group in found.items()}


def _order(by: list[str]) -> Callable[[Record], Any]:
    """Numbers by size, then words, then nothing; inside a group by seed."""

    def key(record: Record) -> Any:
        values = [record.value(k) for k in by]
        numbers = [isinstance(v, int | float) and not isinstance(v, bool) for v in values]
        ranks = [(v is None, not n, v if n else 0, tables.said(v)) for v, n in zip(values, numbers, strict=True)]
        return *ranks, record.seed, record.signature

    return key


def short(key: str) -> str:
    """The last part of a key; of a class, the part that it is of."""
    return key.removesuffix("._target_").rpartition(".")[2]


def listed(keys: list[str]) -> str:
    return ", ".join(keys[:6]) + (f" and {len(keys) - 6} more" if len(keys) > 6 else "")
