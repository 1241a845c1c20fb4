"""What a search was asked, checked, and made into a plan."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf
from pydantic import TypeAdapter, ValidationError

from lmab import checks
from lmab.data import cache
from lmab.lab import guard
from lmab.lab.jobs import plain
from lmab.lab.tuning import sampler, score, space
from lmab.lab.tuning.plan import Direction, Plan
from lmab.lab.tuning.search import place
from lmab.run import resolve
from lmab.store import signature
from lmab.types import BadInput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from omegaconf import DictConfig

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """`hydra.sweeper`, as conf/hydra/sweeper/optuna.yaml says it."""

    sampler: dict[str, Any]
    pruner: dict[str, Any] | None = None
    direction: Direction | list[Direction] = "minimize"
    storage: str | None = None
    study_name: str | None = None
    n_trials: int = 20
    n_jobs: int = 1
    max_failure_rate: float | None = None
    params: dict[str, Any] = field(default_factory=dict)
    custom_search_space: str | None = None
    metric: str | list[str] | None = None
    seeds: list[int] = field(default_factory=list)
    constraints: dict[str, float] = field(default_factory=dict)
    grace: float = 300.0


def read(given: dict[str, Any]) -> Settings:
    known = [*Settings.__dataclass_fields__]
    values = OmegaConf.to_container(OmegaConf.create(given), resolve=True)
    assert isinstance(values, dict)
    for key in values:
        if key not in known:
            raise BadInput(f"hydra.sweeper.{key} is not known: {checks.nearest(str(key), known)}")
    for key, nothing in (("pruner", None), ("constraints", {}), ("params", {}), ("seeds", [])):
        values[key] = values.get(key) or nothing
    try:
        settings = TypeAdapter(Settings).validate_python({str(key): value for key, value in values.items()})
    except ValidationError as error:
        problem = error.errors()[0]
        says = problem["msg"][:1].lower() + problem["msg"][1:]
        raise BadInput(f"hydra.sweeper.{problem['loc'][0]}={problem['input']!r} cannot work: {says}.") from error
    return settings


def planned(
    settings: Settings, where: space.Space, base: list[str], corners: Sequence[DictConfig], title: str = "study"
) -> Plan:
    """What is asked, for workers. corners: points of it, composed, that differ in every parameter. title: what a study
    without a name is called. BadInput: what does not go together."""
    for key in ("n_trials", "n_jobs"):
        if getattr(settings, key) < 1:
            raise BadInput(f"hydra.sweeper.{key}={getattr(settings, key)} does nothing: give at least 1.")
    if any(axis.name in ("seed", "store") for axis in where.axes):
        raise BadInput("A study has one store, and averages over seeds: give hydra.sweeper.seeds=[0,1] instead.")
    values = plain(corners[0])
    objectives = [name for name, node in values["objective"].items() if "_target_" in node]
    metrics = settings.metric or [f"val/{objectives[0]}_loss"]
    metrics = [metrics] if isinstance(metrics, str) else metrics
    directions: list[Direction] = [settings.direction] if isinstance(settings.direction, str) else settings.direction
    for metric in (*metrics, *settings.constraints):
        score.refuse(metric, objectives)
    if len(directions) != len(metrics):
        raise BadInput(
            f"hydra.sweeper.metric names {len(metrics)} figures and hydra.sweeper.direction {len(directions)}: give "
            f"one direction for each."
        )
    resolved = _resolved(corners)
    for metric in metrics:
        if metric.startswith("val/") and (keys := guard.redefined(metric, resolved)):
            raise BadInput(
                f"{metric} cannot tell which {', '.join(keys)} is best, since that changes what it measures: fix it on "
                f"held-out text, as in +evaluation.noise.mlm.rate=0.15, or tune by another metric."
            )
    if len(metrics) > 1 and settings.pruner is not None:
        raise BadInput("Trials of several metrics cannot be pruned: leave hydra/sweeper/pruner at none.")
    question = {
        "configuration": signature(values),
        "space": where.described(),
        "metric": metrics,
        "direction": directions,
        "seeds": settings.seeds,
        "constraints": settings.constraints,
        "custom_search_space": settings.custom_search_space,
    }
    if settings.study_name and (settings.study_name.startswith("/") or ".." in settings.study_name.split("/")):
        raise BadInput(f"hydra.sweeper.study_name={settings.study_name} leaves the store: give a name as in tune/lr.")
    # One that is named may go on with another sampler; where the name follows from what is asked, that is a part of it.
    asked = [question, settings.sampler, settings.pruner]
    name = settings.study_name or f"{title}-{cache.key(asked)[:8]}"
    trials = settings.n_trials
    if where.finite and not settings.custom_search_space and _counts(settings.sampler):
        trials = min(trials, math.prod(len(axis.values or ()) for axis in where.axes))
    plan = Plan(
        name=name,
        storage=settings.storage or str(place(values["store"], name) / "journal.log"),
        store=values["store"],
        base=base,
        space=where,
        metrics=metrics,
        directions=directions,
        trials=trials,
        sampler=settings.sampler,
        pruner=settings.pruner,
        seeds=settings.seeds,
        constraints=settings.constraints,
        custom=settings.custom_search_space,
        grace=settings.grace,
        question=question,
    )
    sampler.of_plan(plan)
    sampler.pruner_of(plan)
    return plan


def _resolved(corners: Sequence[DictConfig]) -> list[Mapping[str, Any]]:
    """Points that can be trained. One that cannot is no reason yet to refuse all, but what is wrong with all of them in
    the same words is."""
    found: list[Mapping[str, Any]] = []
    wrong: list[BadInput] = []
    for corner in corners:
        try:
            found.append(resolve(corner)[0])
        except BadInput as error:
            wrong.append(error)
    if not found and len({str(error) for error in wrong}) == 1:
        raise wrong[0]
    for error in wrong:
        log.warning("A point of the search cannot be trained, and trials like it will come to nothing: %s", error)
    return found


def _counts(node: dict[str, Any]) -> bool:
    """Does a sampler visit every point once, so that there are no more trials than points?"""
    return str(node.get("_target_", "")).endswith(("GridSampler", "BruteForceSampler"))
