"""A search as a line: `python run.py -m hydra/sweeper=optuna ...`, or a file of sweeps/tune/.

It writes down what is asked, starts workers by whichever Hydra launcher was chosen, and reads what came of it from the
study.
"""

from __future__ import annotations

import logging
import math
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from omegaconf import OmegaConf
from optuna.trial import TrialState
from pydantic import TypeAdapter, ValidationError

from lmab import checks
from lmab.data import cache
from lmab.lab import display
from lmab.lab.sweeper import ROUNDS, Hydra, compose, plain
from lmab.lab.tuning import sampler, score, space, study
from lmab.lab.tuning.board import Board
from lmab.lab.tuning.plan import Direction, Plan
from lmab.lab.tuning.results import Found, found, say, write
from lmab.run import rehearse, resolve
from lmab.store import Store, signature
from lmab.types import BadInput

if TYPE_CHECKING:
    from pathlib import Path

    from omegaconf import DictConfig
    from optuna.study import Study


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


def sweep_study(hydra: Hydra, given: dict[str, Any], arguments: list[str]) -> Found:
    """Search until the study has its trials. Returns what was found; leaves with status 1 where nothing was."""
    settings = _settings(given)
    parser = OverridesParser.create(config_loader=hydra.hydra_context.config_loader)
    asked = [line for line in arguments if line.lstrip("+").split("=")[0] != "sweeps"]
    where, shared = space.read(parser, settings.params, asked)
    if any(axis.name in ("seed", "store") for axis in where.axes):
        raise BadInput("A study has one store, and averages over seeds: give hydra.sweeper.seeds=[0,1] instead.")
    base = [*_base(hydra), *shared]
    corner = compose(hydra, [*base, *where.corner()])
    plan = planned(settings, where, base, corner)
    _rehearsed(corner)
    known = search(hydra, plan, settings.n_jobs)
    result = found(plan, known)
    paths = write(Store(plan.store).root / "reports", result, [*_line(hydra, given), *arguments])
    say(result, paths)
    failed = sum(t.state == TrialState.FAIL for t in result.trials) / max(1, len(result.trials))
    if not result.best:
        print("lmab: No trial has a value.", file=sys.stderr)
        raise SystemExit(1)
    if settings.max_failure_rate is not None and failed > settings.max_failure_rate:
        print(
            f"lmab: {failed:.0%} of the trials failed, more than hydra.sweeper.max_failure_rate allows.",
            file=sys.stderr,
        )
        raise SystemExit(1)
    return result


def _settings(given: dict[str, Any]) -> Settings:
    known = [*Settings.__dataclass_fields__]
    values = OmegaConf.to_container(OmegaConf.create(given), resolve=True)
    assert isinstance(values, dict)
    for key in values:
        if key not in known:
            raise BadInput(f"hydra.sweeper.{key} is not known: {checks.nearest(str(key), known)}")
    if not values.get("pruner"):
        values["pruner"] = None
    try:
        settings = TypeAdapter(Settings).validate_python({str(key): value for key, value in values.items()})
    except ValidationError as error:
        problem = error.errors()[0]
        says = problem["msg"][:1].lower() + problem["msg"][1:]
        raise BadInput(f"hydra.sweeper.{problem['loc'][0]}={problem['input']!r} cannot work: {says}.") from error
    for key in ("n_trials", "n_jobs"):
        if getattr(settings, key) < 1:
            raise BadInput(f"hydra.sweeper.{key}={getattr(settings, key)} does nothing: give at least 1.")
    return settings


def _base(hydra: Hydra) -> list[str]:
    """What a file of sweeps/tune/ says that all its trials share."""
    return [str(line) for line in hydra.config.get("base") or []]


def _line(hydra: Hydra, given: dict[str, Any]) -> list[str]:
    """What was asked of the sweeper itself, so that a report can say the whole line."""
    return [str(line) for line in hydra.config.hydra.overrides.hydra if "hydra.mode" not in str(line)]


def planned(settings: Settings, where: space.Space, base: list[str], corner: DictConfig) -> Plan:
    """What is asked, for workers. corner: one of its points, composed. BadInput: what does not go together."""
    values = plain(corner)
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
    if len(metrics) > 1 and settings.pruner is not None:
        raise BadInput("Trials of several metrics cannot be pruned: leave hydra/sweeper/pruner at none.")
    question = {
        "configuration": signature(values),
        "space": where.described(),
        "metric": metrics,
        "direction": directions,
        "seeds": settings.seeds,
        "constraints": settings.constraints,
    }
    name = settings.study_name or f"study-{cache.key(question)[:8]}"
    trials = settings.n_trials
    if all(axis.values is not None for axis in where.axes) and _counts(settings.sampler):
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


def _counts(node: dict[str, Any]) -> bool:
    """Does a sampler visit every point once, so that there are no more trials than points?"""
    return str(node.get("_target_", "")).endswith(("GridSampler", "BruteForceSampler"))


def _rehearsed(corner: DictConfig) -> None:
    """Build one point without training it. A point that cannot be trained is not yet a reason to refuse all."""
    try:
        rehearse(resolve(corner)[0])
    except BadInput as error:
        log.warning("A point of the search cannot be trained, and trials like it will come to nothing: %s", error)


def search(hydra: Hydra, plan: Plan, workers: int) -> Study:
    """Work on a study until it has its trials. Returns it."""
    path = place(plan.store, plan.name) / "plan.json"
    plan.write(path)
    known = study.opened(plan)
    line = ["display=false", f"sweep={space.quoted(name=plan.name, plan=str(path))}"]
    launcher = None
    for _ in range(ROUNDS):
        if over(known, plan):
            break
        launcher = launcher or Plugins.instance().instantiate_launcher(
            hydra_context=hydra.hydra_context, task_function=hydra.task_function, config=hydra.config
        )
        with display.shown(Board(plan, known)):
            try:
                launcher.launch([[*line, f"store={plan.store}"]] * workers, initial_job_idx=0)
            except Exception as error:  # the launcher's own: what became of a trial is in the study
                log.warning("The launcher stopped (%s: %s).", type(error).__name__, error)
    return known


def over(known: Study, plan: Plan) -> bool:
    """Has a study all its trials?"""
    return len(study.counted(known)) >= plan.trials and not study.running(known)[: plan.trials]


def place(store: str, name: str) -> Path:
    """The folder of a study beside its runs."""
    return Store(store).root.absolute() / "studies" / name
