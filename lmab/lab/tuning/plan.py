"""What a study asks: written down once, so that every worker, on whichever machine, works on the same."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from optuna.distributions import distribution_to_json, json_to_distribution

from lmab.lab.tuning.space import Axis, Space
from lmab.store import write_whole

if TYPE_CHECKING:
    from pathlib import Path

Direction = Literal["minimize", "maximize"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """name: of the study. storage: where it is kept, a database's address or the path of a journal. store: where the
    runs lie. base: overrides that all trials share. seeds: of each trial, whose scores are averaged; none for the seed
    that the configuration has. metrics, directions: what is made low ("minimize") or high, and shown as several fronts
    where there is more than one. constraints: quantity -> at most so much. trials: in all, None for all points of a
    grid. sampler, pruner: nodes with `_target_`. custom: the dotted name of a function of configuration and trial that
    names more parameters. grace: seconds after which a worker that cannot be seen and says nothing is taken for dead.
    question: what makes it another study.
    """

    name: str
    storage: str
    store: str
    base: list[str]
    space: Space
    metrics: list[str]
    directions: list[Direction]
    trials: int
    sampler: dict[str, Any]
    pruner: dict[str, Any] | None = None
    seeds: list[int] = field(default_factory=list)
    constraints: dict[str, float] = field(default_factory=dict)
    custom: str | None = None
    grace: float = 300.0
    question: dict[str, Any] = field(default_factory=dict)

    @property
    def one(self) -> bool:
        """Is there a single objective, so that a trial can be pruned and one is the best?"""
        return len(self.metrics) == 1

    def write(self, path: Path) -> None:
        """Keep it in a file, whole or not at all."""
        values = asdict(self) | {"space": [_told(axis) for axis in self.space.axes]}
        write_whole(path, json.dumps(values, indent=1, ensure_ascii=False) + "\n")


def read(path: Path) -> Plan:
    """A plan that was written down."""
    values = json.loads(path.read_text(encoding="utf-8"))
    return Plan(**values | {"space": Space(tuple(_axis(axis) for axis in values["space"]))})


def _told(axis: Axis) -> dict[str, Any]:
    return {
        "key": axis.key,
        "distribution": distribution_to_json(axis.distribution),
        "values": axis.values,
        "written": [*axis.written.items()],  # pairs: the keys are numbers as well as words
    }


def _axis(told: dict[str, Any]) -> Axis:
    return Axis(
        told["key"],
        json_to_distribution(told["distribution"]),
        None if told["values"] is None else tuple(told["values"]),
        dict(told["written"]),
    )
