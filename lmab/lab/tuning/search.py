"""Workers for studies, started by whichever launcher was chosen, until every study has its trials."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from lmab.lab import display
from lmab.lab.jobs import Hydra, launcher, quoted
from lmab.lab.tuning import study
from lmab.lab.tuning.board import Board
from lmab.store import Store

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from optuna.study import Study

    from lmab.lab.tuning.plan import Plan

log = logging.getLogger(__name__)

# How often workers are launched that died without a word and left the studies no further: as often as one point is
# given out, and once more, to give that up.
_ROUNDS = study.RETRIES + 1


def place(store: str, name: str) -> Path:
    """The folder of a study beside its runs."""
    return Store(store).root.absolute() / "studies" / name


def search(hydra: Hydra, title: str, plans: Sequence[Plan], workers: int) -> list[Study]:
    """Work on studies until each has its trials. workers: for each. Returns the studies, in the order of the plans."""
    studies, lines = [], []
    for plan in plans:
        path = place(plan.store, plan.name) / "plan.json"
        studies.append(study.opened(plan))  # refused before a plan that others work by is written over
        plan.write(path)
        said = quoted(name=plan.name, plan=str(path))
        lines.append(["display=false", f"sweep={said}"])
    chosen, left, ended = None, _ROUNDS, -1
    while left and (
        todo := [at for plan, known, at in zip(plans, studies, lines, strict=True) if not over(known, plan)]
    ):
        now = sum(trial.state.is_finished() for known in studies for trial in study.counted(known))
        left, ended = (left if now == ended else _ROUNDS) - 1, now
        chosen = chosen or launcher(hydra)
        with display.shown(Board(title, plans, studies)):
            try:
                chosen.launch(todo * workers, initial_job_idx=0)
            except Exception as error:  # the launcher's own: what became of a trial is in the study
                log.warning("The launcher stopped (%s: %s).", type(error).__name__, error)
    return studies


def over(known: Study, plan: Plan) -> bool:
    """Has a study all its trials?"""
    return study.over(known, plan.trials)
