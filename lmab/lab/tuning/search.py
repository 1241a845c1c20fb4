"""Workers for studies, started by whichever launcher was chosen, until every study has its trials."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from lmab.lab import display
from lmab.lab.jobs import ROUNDS, Hydra, launcher, quoted
from lmab.lab.tuning import study
from lmab.lab.tuning.board import Board
from lmab.store import Store

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from optuna.study import Study

    from lmab.lab.tuning.plan import Plan

log = logging.getLogger(__name__)


def place(store: str, name: str) -> Path:
    """The folder of a study beside its runs."""
    return Store(store).root.absolute() / "studies" / name


def search(hydra: Hydra, title: str, plans: Sequence[Plan], workers: int) -> list[Study]:
    """Work on studies until each has its trials. workers: for each. Returns the studies, in the order of the plans."""
    studies, lines = [], []
    for plan in plans:
        path = place(plan.store, plan.name) / "plan.json"
        plan.write(path)
        studies.append(study.opened(plan))
        said = quoted(name=plan.name, plan=str(path))
        lines.append(["display=false", f"store={plan.store}", f"sweep={said}"])
    chosen = None
    for _ in range(ROUNDS):
        todo = [line for plan, known, line in zip(plans, studies, lines, strict=True) if not over(known, plan)]
        if not todo:
            break
        chosen = chosen or launcher(hydra)
        with display.shown(Board(title, plans, studies)):
            try:
                chosen.launch(todo * workers, initial_job_idx=0)
            except Exception as error:  # the launcher's own: what became of a trial is in the study
                log.warning("The launcher stopped (%s: %s).", type(error).__name__, error)
    return studies


def over(known: Study, plan: Plan) -> bool:
    """Has a study all its trials?"""
    return len(study.counted(known)) >= plan.trials and not study.running(known)[: plan.trials]
