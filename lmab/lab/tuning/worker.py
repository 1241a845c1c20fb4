"""A worker: asks a study for a point, trains it, tells what came of it, and begins anew until all is done.

Workers know nothing of each other but what the study says, so one that is free never waits for one that is slow, and
those on other machines join by the same line.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import threading
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from hydra.utils import get_method
from optuna.trial import TrialState

from lmab.cost import sizes
from lmab.lab.jobs import quoted
from lmab.lab.tuning import plan as plans
from lmab.lab.tuning import sampler, study
from lmab.lab.tuning.score import before, over, score
from lmab.run import resolve, run
from lmab.starting import composed
from lmab.types import BadInput, Failed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from omegaconf import DictConfig
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial

    from lmab.lab.tuning.plan import Plan
    from lmab.store import Record

log = logging.getLogger(__name__)

_POLL = 0.5  # seconds between two looks at trials that others run
_BEAT = 20.0  # seconds between two signs of life
_GLANCE = 0.05  # at what others draw
_DRAWS = 6  # of points that another worker is at; of the last, its outcome is waited for


class Unfit(Exception):  # noqa: N818  (an outcome of a trial)
    """A point that cannot be trained, or came to nothing: said of the trial, and no reason to stop."""


def work(path: str | Path) -> None:
    """Work on a study until it has as many trials as it is to have. path: of its plan."""
    path = Path(path)
    plan = plans.read(path)
    known = study.opened(plan, sampler.of_plan(plan), sampler.pruner_of(plan))
    workers = study.Workers(path.parent / "workers")
    name = uuid.uuid4().hex
    with workers.lock(name):
        while not study.over(known, plan.trials):
            if not _one(known, plan, workers, name):
                time.sleep(_POLL)  # a worker may die, and its point is then this one's


def _one(known: Study, plan: Plan, workers: study.Workers, worker: str) -> bool:
    """Ask for a point and see to it. False: all are begun."""
    study.reap(known, workers, plan.grace, plan.space.distributions)
    for left in reversed(range(_DRAWS)):
        trial = study.ask(known, workers, worker, plan.trials)
        if trial is None:
            return False
        with _beating(trial):
            if _outcome(known, plan, workers, trial, patient=not left):
                break
    return True


def _outcome(known: Study, plan: Plan, workers: study.Workers, trial: Trial, *, patient: bool) -> bool:
    """Draw the parameters of a trial and tell what comes of it. False: another worker is at this point, and not
    `patient`, so the trial was given up."""
    try:
        for name, kind in plan.space.distributions.items():
            trial._suggest(name, kind)  # as Optuna's own ask() has it
        while other := _before(known, plan, trial):
            if other.params == trial.params and (other.state != TrialState.RUNNING or not patient):
                study.give_up(known, trial, study.SURPLUS, "another worker is at this point")
                return False
            time.sleep(_GLANCE)
            study.reap(known, workers, plan.grace, plan.space.distributions)
        if plan.custom is None and (earlier := study.twin(known, trial, [TrialState.COMPLETE])) is not None:
            _copied(known, trial, earlier)
        else:
            _tell(known, trial, *_values(known, trial, plan))
    except Exception as error:
        if getattr(error, "errno", None) == errno.ENOSPC:
            raise  # of the machine, and the next point has no more room
        said = isinstance(error, Unfit | BadInput | Failed)
        why = str(error) if said else f"{type(error).__name__}: {error}"
        log.warning("Trial %s came to nothing: %s", trial.number, why)
        study.fail(known, trial, why)
    _released()
    return True


def _before(known: Study, plan: Plan, trial: Trial) -> FrozenTrial | None:
    """Another trial that has this point, or may yet draw it."""
    if plan.custom is not None:  # parameters are still to come
        return None
    once = isinstance(known.sampler, sampler.Seeded) and known.sampler.once
    states = [*TrialState] if once else [TrialState.RUNNING]
    return study.drawing(known, trial, plan.space.distributions) or study.twin(known, trial, states)


def _copied(known: Study, trial: Trial, earlier: FrozenTrial) -> None:
    trial.set_user_attr(study.RUNS, earlier.user_attrs.get(study.RUNS, []))
    for metric, value in earlier.constraints.items():
        trial.set_constraint(metric, value)
    _tell(known, trial, TrialState.COMPLETE, list(earlier.values))


def _tell(known: Study, trial: Trial, state: TrialState, values: list[float] | None) -> None:
    try:
        known.tell(trial, values, state=state)
    except (ValueError, RuntimeError) as error:  # it was taken for dead meanwhile, and another worker has the point
        log.warning("Trial %s is told too late: %s", trial.number, error)


def _values(known: Study, trial: Trial, plan: Plan) -> tuple[TrialState, list[float] | None]:
    """Train a point with every seed. Returns what is to be told. Unfit: it came to nothing."""
    lines = [*plan.base, *plan.space.lines(trial.params), "display=false"]
    lines.append(f"sweep={quoted(name=plan.name, arm=f'trial {trial.number}')}")
    asked = [[*lines, f"seed={seed}"] for seed in plan.seeds] or [lines]
    records: list[Record] = []
    for index, overrides in enumerate(asked):
        cfg = _composed(overrides, trial, plan)
        config, name = resolve(cfg)
        if index == 0 and (state := _refused(trial, plan, sizes(config))):
            return state, None
        trial.set_user_attr(study.RUNS, [*(r.signature for r in records), name])
        record = run(cfg, overrides=overrides, watch=_watch(trial, plan, config, index))
        if record.state == "pruned":
            return TrialState.PRUNED, None
        if record.state != "done":
            raise Unfit(f"run {record.signature} {record.state}: {record.message}")
        records.append(record)
        if plan.pruner is not None and _over_seeds(plan):
            trial.report(score([record], plan.metrics[0]), index)
            if index + 1 < len(asked) and trial.should_prune():
                return TrialState.PRUNED, None
    values = [score(records, metric) for metric in plan.metrics]
    for metric, value in zip(plan.metrics, values, strict=True):
        if not math.isfinite(value):
            raise Unfit(f"{metric} is {value}")
    for metric, value in over(plan.constraints, lambda metric: score(records, metric)).items():
        trial.set_constraint(metric, value)
    return TrialState.COMPLETE, values


def _composed(overrides: list[str], trial: Trial, plan: Plan) -> DictConfig:
    cfg = composed(overrides)
    if plan.custom is None:
        return cfg
    get_method(plan.custom)(cfg, trial)  # names more parameters, as Hydra's own sweeper for Optuna lets it
    return composed([*overrides, *plan.space.more(trial.params)])


def _refused(trial: Trial, plan: Plan, known: Mapping[str, float]) -> TrialState | None:
    """A point that is over a limit before anything is trained costs nothing, and the sampler learns of it."""
    limits = {metric: most for metric, most in plan.constraints.items() if before(metric)}
    above = over(limits, lambda metric: known[metric])
    if not any(value > 0 for value in above.values()):
        return None
    for metric, value in above.items():
        trial.set_constraint(metric, value)
    said = ", ".join(f"{metric} is {known[metric]:,.6g}" for metric, value in above.items() if value > 0)
    trial.set_user_attr(study.WHY, f"{said}, over its limit: not trained")
    return TrialState.PRUNED


def _over_seeds(plan: Plan) -> bool:
    """Does the pruner compare seeds, not moments of a curve?"""
    return str((plan.pruner or {}).get("_target_", "")).endswith("WilcoxonPruner")


def _watch(trial: Trial, plan: Plan, config: Mapping[str, Any], index: int) -> Any:
    """What is told of a run's validations, and says whether that is enough. index: of the seed; each has its own
    stretch of steps, so that trials are compared where they have seen the same."""
    if plan.pruner is None or _over_seeds(plan):
        return None
    steps, metric, reported = config["trainer"]["steps"], plan.metrics[0], set[int]()

    def watch(step: int, values: Mapping[str, float]) -> bool:
        if metric not in values or step in reported:
            return False
        reported.add(step)
        trial.report(values[metric], index * steps + step)
        return step < steps and trial.should_prune()  # what is trained to its end has a value

    return watch


def _released() -> None:
    """A point that filled the memory of a GPU leaves none of it to the next."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@contextlib.contextmanager
def _beating(trial: Trial) -> Iterator[None]:
    """Say from time to time that somebody is at work on a trial."""
    over_ = threading.Event()

    def beat() -> None:
        while not over_.wait(_BEAT):
            with contextlib.suppress(Exception):  # a storage that is busy is asked again
                trial.set_user_attr(study.BEAT, time.time())

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over_.set()
        thread.join()
