"""What a search found: its trials, the best of them, and what mattered."""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import optuna
from optuna.trial import TrialState

from lmab.lab.tuning import sampler, study

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial

    from lmab.lab.tuning.plan import Plan

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Found:
    """trials: those that count, in their order. best: the best one, or where there are several metrics those that no
    other surpasses in all; they keep to the limits. importance: parameter -> its share of what makes the first metric
    vary (PED-ANOVA, Watanabe et al. 2023)."""

    plan: Plan
    trials: list[FrozenTrial]
    best: list[FrozenTrial]
    importance: dict[str, float]

    @property
    def names(self) -> list[str]:
        """Of the parameters: those of the space, and those that a function of the user's added in some trials."""
        return self.plan.space.names(t.params for t in self.trials)

    @property
    def complete(self) -> list[FrozenTrial]:
        """Those that have a value."""
        return [trial for trial in self.trials if trial.state == TrialState.COMPLETE]


def found(plan: Plan, known: Study) -> Found:
    """Read a study."""
    trials = study.counted(known)[: plan.trials]
    fit = [t for t in trials if t.state == TrialState.COMPLETE and not sampler.exceeded(t)]
    signs = [1 if direction == "minimize" else -1 for direction in plan.directions]
    scored = [(trial, [sign * value for sign, value in zip(signs, trial.values, strict=True)]) for trial in fit]
    best = [trial for trial, values in scored if not any(_surpasses(other, values) for _, other in scored)]
    best.sort(key=lambda trial: (signs[0] * trial.values[0], trial.number))
    return Found(plan, trials, best[:1] if plan.one else best, _importance(plan, known))


def _surpasses(one: list[float], other: list[float]) -> bool:
    """Is one trial nowhere worse than another, and somewhere better?"""
    return all(a <= b for a, b in zip(one, other, strict=True)) and one != other


def _importance(plan: Plan, known: Study) -> dict[str, float]:
    """Nothing where the trials are too few, or all alike."""
    done = [t for t in known.get_trials(deepcopy=False) if t.state == TrialState.COMPLETE]
    names = [n for n in plan.space.names(t.params for t in done) if all(n in t.params for t in done)]
    if len(done) < 4 or len({t.values[0] for t in done}) < 2 or len(names) < 2:
        return {}
    evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    names = [name for name in names if len({t.params.get(name) for t in done}) > 1]
    try:
        sign = 1 if plan.directions[0] == "minimize" else -1  # it asks what makes a figure low
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # it reminds of the sign
            shares = optuna.importance.get_param_importances(
                known, evaluator=evaluator, params=names, target=lambda trial: sign * trial.values[0]
            )
    except (ValueError, RuntimeError) as error:
        log.warning("No importances can be told of these trials: %s", error)
        return {}
    return dict(shares)
