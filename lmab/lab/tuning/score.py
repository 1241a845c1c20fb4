"""What a trial is scored by: a figure of validation, or of cost, averaged over its seeds."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING

from lmab.checks import nearest
from lmab.cost import sizes
from lmab.types import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from lmab.store import Record

BEFORE = ("cost/parameters", "cost/encoder_parameters", "cost/flops_a_token")  # known of a configuration alone
_MEASURED = ("latency_1", "latency_32", "tokens_a_second", "peak_memory", "seconds")


def before(metric: str) -> bool:
    """Is a figure known before anything is trained?"""
    return metric in BEFORE


def refuse(metric: str, objectives: Iterable[str]) -> None:
    """BadInput: no figure of this name can be tuned by."""
    if metric.startswith("test/"):
        raise BadInput(
            f"hydra.sweeper.metric={metric} is of held-out text that what was tuned is judged by: give "
            f"val/{metric.removeprefix('test/')}."
        )
    costs = [*BEFORE, *(f"cost/{name}" for name in _MEASURED)]
    if metric.startswith("val/"):
        known = [f"val/{name}_loss" for name in objectives]
        if not any(metric.startswith(f"val/{name}_") for name in objectives):
            raise BadInput(f"hydra.sweeper.metric={metric} is of no objective here: {nearest(metric, known)}")
    elif metric not in costs:
        raise BadInput(f"There is no hydra.sweeper.metric={metric}: {nearest(metric, costs)}")


def score(records: Iterable[Record], metric: str) -> float:
    """The mean over a trial's runs, NaN where one has no such figure."""
    return statistics.fmean(_of_run(record, metric) for record in records)


def _of_run(record: Record, metric: str) -> float:
    """Of its last validation, or, where the best checkpoint is the one that counts, of the validation it comes from."""
    if metric.startswith("cost/"):
        if metric in BEFORE:
            return sizes(record.config)[metric]
        return record.cost.get(metric.removeprefix("cost/"), math.nan)
    points = record.curves.get(metric)
    if not points:
        return math.nan
    if record.config["evaluation"]["checkpoint"] == "best":
        losses = (record.curves.get(f"val/{name}_loss") for name in record.config["objective"])
        at = min(next(loss for loss in losses if loss), key=lambda point: point[1])[0]
        return dict(points)[at]
    return points[-1][1]


def over(limits: Mapping[str, float], figure: Callable[[str], float]) -> dict[str, float]:
    """Figure -> by how much it is above what is allowed, as a share of that; below it, a negative number."""
    return {metric: (figure(metric) - most) / abs(most or 1.0) for metric, most in limits.items()}
