"""The live view of a search: its newest trials, the best one so far, and how many are left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from optuna.trial import TrialState
from rich.table import Table

from lmab.lab import tables
from lmab.lab.tuning import study

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optuna.study import Study
    from optuna.trial import FrozenTrial

    from lmab.lab.tuning.plan import Plan

_SHOWN = 12  # trials


class Board:
    """What is shown of a study. plan: what it asks."""

    def __init__(self, plan: Plan, known: Study) -> None:
        self.plan, self.known = plan, known
        self._said = {t.number for t in self._trials() if t.state.is_finished()}

    def _trials(self) -> list[FrozenTrial]:
        return study.counted(self.known)

    def table(self) -> Table:
        """The newest trials."""
        trials = self._trials()
        ended = sum(t.state.is_finished() for t in trials)
        table = Table(title=f"{self.plan.name}   {ended} of {self.plan.trials} trials", title_justify="left")
        for column in ("trial", *(axis.name for axis in self.plan.space.axes), "state", *self.plan.metrics):
            table.add_column(column, justify="left" if column == "state" else "right", overflow="fold")
        for trial in trials[-_SHOWN:]:
            table.add_row(*cells(trial, self.plan))
        return table

    def news(self) -> Iterator[str]:
        """A line for every trial that ended since this was last asked."""
        for trial in self._trials():
            if trial.state.is_finished() and trial.number not in self._said:
                self._said.add(trial.number)
                _, *params, state, _ = [*cells(trial, self.plan)[: len(self.plan.space.axes) + 2], ""]
                values = " ".join(map(tables.score, trial.values or []))
                yield f"trial {trial.number} ({' '.join(params)}): {state} {values}".rstrip()


def cells(trial: FrozenTrial, plan: Plan) -> list[str]:
    """A trial as a row: its number, parameters, state and values."""
    values = [*(trial.values or [])] if trial.state == TrialState.COMPLETE else []
    values += [float("nan")] * (len(plan.metrics) - len(values))
    params = [written(trial.params.get(axis.name)) for axis in plan.space.axes]
    return [str(trial.number), *params, state(trial), *map(tables.score, values)]


def written(value: Any) -> str:
    """A parameter: four digits are enough to tell trials apart."""
    return f"{value:.4g}" if isinstance(value, float) else tables.NOTHING if value is None else str(value)


def state(trial: FrozenTrial) -> str:
    """How a trial ended, in one word."""
    if trial.state == TrialState.PRUNED and not trial.intermediate_values and study.WHY in trial.user_attrs:
        return "over a limit"
    names = {"COMPLETE": "done", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running", "WAITING": "waiting"}
    return names[trial.state.name]
