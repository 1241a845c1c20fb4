"""The live view of a search: its newest trials, the best one so far, and how many are left."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from optuna.trial import TrialState
from rich.table import Table

from lmab.lab import tables
from lmab.lab.tuning import study

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from optuna.study import Study
    from optuna.trial import FrozenTrial

    from lmab.lab.tuning.plan import Plan

_SHOWN = 12  # trials


class Board:
    """What is shown of studies over one space. plans: what they ask."""

    def __init__(self, title: str, plans: Sequence[Plan], studies: Sequence[Study]) -> None:
        self.title, self.plans, self.studies = title, plans, studies
        self._said = {(plan.name, t.number) for plan, t in self._trials() if t.state.is_finished()}

    def _trials(self) -> list[tuple[Plan, FrozenTrial]]:
        pairs = zip(self.plans, self.studies, strict=True)
        return [(plan, trial) for plan, known in pairs for trial in study.counted(known)[: plan.trials]]

    def _named(self, plan: Plan) -> list[str]:
        return [plan.name] if len(self.plans) > 1 else []

    def table(self) -> Table:
        """The newest trials."""
        trials = self._trials()
        ended = sum(t.state.is_finished() for _, t in trials)
        count = sum(plan.trials for plan in self.plans)
        table = Table(title=f"{self.title}   {ended} of {count} trials", title_justify="left")
        first = self.plans[0]
        names = ["study"] if self._named(first) else []
        params = first.space.names(trial.params for _, trial in trials)
        for column in (*names, *head(first, params)):
            table.add_column(column, justify="left" if column in ("study", "state") else "right", overflow="fold")
        newest = sorted(trials, key=lambda pair: pair[1].datetime_start or datetime.datetime.max)
        for plan, trial in newest[-_SHOWN:]:
            table.add_row(*self._named(plan), *cells(trial, plan, params))
        return table

    def news(self) -> Iterator[str]:
        """A line for every trial that ended since this was last asked."""
        for plan, trial in self._trials():
            if trial.state.is_finished() and (plan.name, trial.number) not in self._said:
                self._said.add((plan.name, trial.number))
                values = " ".join(map(figure, plan.metrics, trial.values or []))
                who = " ".join([*self._named(plan), f"trial {trial.number}"])
                params = " ".join(map(written, trial.params.values()))
                yield f"{who} ({params}): {state(trial)} {values}".rstrip()


def head(plan: Plan, names: Sequence[str]) -> list[str]:
    """Of columns of trials. names: of their parameters."""
    return ["trial", "state", *(tables.unit(metric)[0] for metric in plan.metrics), *names]


def cells(trial: FrozenTrial, plan: Plan, names: Sequence[str]) -> list[str]:
    """A trial as a row below that head."""
    values = [*(trial.values or [])] if trial.state == TrialState.COMPLETE else []
    values += [float("nan")] * (len(plan.metrics) - len(values))
    params = [written(trial.params.get(name)) for name in names]
    return [str(trial.number), state(trial), *map(figure, plan.metrics, values), *params]


def figure(metric: str, value: float) -> str:
    """A value of a metric as it is printed, in the unit of its column."""
    return tables.number(value / tables.unit(metric)[1]) if metric.startswith("cost/") else tables.score(value)


def written(value: Any) -> str:
    """A parameter: four digits are enough to tell trials apart."""
    return f"{value:.4g}" if isinstance(value, float) else tables.NOTHING if value is None else str(value)


def state(trial: FrozenTrial) -> str:
    """How a trial ended, in one word."""
    if trial.state == TrialState.PRUNED and not trial.intermediate_values and study.WHY in trial.user_attrs:
        return "over a limit"
    names = {"COMPLETE": "done", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running", "WAITING": "waiting"}
    return names[trial.state.name]
