"""Which point comes next: Optuna's samplers, seeded by the number of the trial.

So workers never draw alike, and a study that is taken up again draws what it would have drawn.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from hydra.errors import InstantiationException
from hydra.utils import get_class, instantiate
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler, BruteForceSampler, GridSampler, QMCSampler

from lmab.lab.tuning.study import void
from lmab.rng import derive, permutation
from lmab.types import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from optuna.distributions import BaseDistribution
    from optuna.pruners import BasePruner
    from optuna.study import Study
    from optuna.trial import FrozenTrial, TrialState

    from lmab.lab.tuning.plan import Plan
    from lmab.lab.tuning.space import Value


def of_plan(plan: Plan) -> Seeded:
    """The sampler of a plan. BadInput: it takes no such settings, or cannot keep to constraints."""
    node = {key: value for key, value in plan.sampler.items() if key != "seed"}
    kind, seed = get_class(node["_target_"]), plan.sampler.get("seed")
    takes = inspect.signature(kind).parameters
    if plan.constraints and "constraints_func" not in takes:
        # Those that take such a function are those that heed what a trial says of its limits.
        raise BadInput(
            f"{node['_target_']} cannot keep to constraints: choose hydra/sweeper/sampler=tpe, gp or nsgaii, or leave "
            f"hydra.sweeper.constraints out."
        )

    if issubclass(kind, GridSampler) and plan.custom is not None:
        raise BadInput(
            "A grid has no values of what hydra.sweeper.custom_search_space names: choose "
            "hydra/sweeper/sampler=brute_force."
        )
    if issubclass(kind, GridSampler) or (
        plan.custom is None and issubclass(kind, BruteForceSampler) and plan.space.finite
    ):
        instantiated(node, **({"search_space": plan.space.grid()} if issubclass(kind, GridSampler) else {}))
        return Seeded(lambda number: Every(plan.space.grid(), seed or 0))

    def make(number: int) -> BaseSampler:
        # The points of a sequence are those of one seed; only which is next depends on the trial.
        own = seed if seed is None or issubclass(kind, QMCSampler) else derive(seed, "trial", str(number)) % 2**32
        return instantiated(node, **({"seed": own} if "seed" in takes else {}))

    make(0)  # refused at once if it cannot be made
    return Seeded(make)


def pruner_of(plan: Plan) -> BasePruner | None:
    """The pruner of a plan, None where nothing is pruned."""
    return None if plan.pruner is None else instantiated(plan.pruner)


def instantiated(node: Mapping[str, Any], **more: Any) -> Any:
    """What a node of the configuration names. BadInput: it takes no such settings."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)  # what is experimental was chosen by name
            return instantiate(dict(node), **more)
    except (InstantiationException, TypeError, ValueError) as error:
        cause = error.__cause__ or error
        says = " ".join(str(cause).split()).rstrip(".")
        raise BadInput(f"{node['_target_']} cannot be made of these settings: {says}.") from error


def exceeded(trial: FrozenTrial) -> bool:
    """Is a trial above one of its limits?"""
    return any(value > 0 for value in trial.constraints.values())


class Seeded(BaseSampler):
    """Asks a sampler that is made for each trial. make: number of the trial -> its sampler."""

    def __init__(self, make: Callable[[int], BaseSampler]) -> None:
        self.make = make
        self.inner = make(0)

    @property
    def once(self) -> bool:
        """Is every point visited once, so that two workers that drew the same one took it at the same moment?"""
        return isinstance(self.inner, Every)

    def reseed_rng(self) -> None:
        """Nothing to do: every trial has a seed of its own."""

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        self.inner = self.make(trial.number)
        self.inner.before_trial(study, trial)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self.inner.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return self.inner.sample_relative(study, trial, search_space)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self.inner.sample_independent(study, trial, param_name, param_distribution)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        # Where all points are through Optuna wants to stop its own loop, which is an error elsewhere.
        with (
            contextlib.suppress(RuntimeError) if isinstance(self.inner, BruteForceSampler) else contextlib.nullcontext()
        ):
            self.inner.after_trial(study, trial, state, values)


class Every(BaseSampler):
    """All points of a grid, each once, in an order that hangs on the seed. Optuna's own counts a point as visited when
    its worker has died over it. grid: name -> values."""

    def __init__(self, grid: Mapping[str, Sequence[Value]], seed: int) -> None:
        self.grid, self.seed = grid, seed
        self.point: dict[str, Value] = {}

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        others = study._storage.get_all_trials(study._study_id, deepcopy=False)  # a pruner may hide some of the study's
        taken = {self._key(t.params) for t in others if t.number != trial.number and not void(t)}
        sizes = [len(values) for values in self.grid.values()]
        for place in permutation(math.prod(sizes), self.seed, "grid"):
            at = np.unravel_index(place, sizes)
            self.point = {name: self.grid[name][int(i)] for name, i in zip(self.grid, at, strict=True)}
            if self._key(self.point) not in taken:
                return

    def _key(self, params: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(params.get(name) for name in self.grid)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return {}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self.point[param_name]
