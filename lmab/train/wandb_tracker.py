"""Weights & Biases: a run of lmab is a run there, under the same name."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import wandb
import wandb.env
from wandb.errors import UsageError

from lmab.train.tracker import by_step
from lmab.types import BadInput

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from lmab.store import Record

MODES = ("offline", "online", "disabled")


class WandbTracker:
    """id: the signature. group: the sweep. job type: the arm. config: nested and resolved. summary: the record's
    metrics.

    mode: offline (kept in the run's folder, `wandb sync` sends it later), online, or disabled.
    BadInput: another mode, or online without a login.
    """

    def __init__(self, *, mode: str, project: str, entity: str | None = None) -> None:
        if mode not in MODES:
            raise BadInput(f"tracker.mode={mode} is none of {', '.join(MODES)}.")
        self._mode, self._project, self._entity = mode, project, entity
        self._run: Any = None
        self._sent = -1  # the last step that the server already holds

    def open(self, record: Record, folder: Path) -> None:
        if self._mode == "offline":
            # What a killed process left is a part of what is written now; two parts would be synced as two.
            for old in (folder / "wandb").glob("offline-run-*"):
                shutil.rmtree(old, ignore_errors=True)
        _own_service()
        sweep = record.config.get("sweep") or {}
        try:
            self._run = wandb.init(
                id=record.signature,
                name=record.config.get("name") or record.signature,
                project=self._project,
                entity=self._entity,
                group=sweep.get("name"),
                job_type=sweep.get("arm"),
                config=record.config,
                dir=str(folder),
                mode=self._mode,  # type: ignore[arg-type]  (checked above)
                resume="allow" if self._mode == "online" else None,
                reinit="create_new",
                settings=wandb.Settings(silent=True, console="off", x_disable_stats=True),
            )
        except UsageError as error:
            raise BadInput(
                f"tracker.mode={self._mode} does not work here ({error}): log in, or use offline."
            ) from error
        if self._mode == "online" and self._run.resumed:
            self._sent = self._run.step - 1
        for step, values in by_step(record):
            self.log(step, values)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        # A resumed run passes again through steps that were sent: they are equal, and the server refuses them.
        if self._run is not None and step > self._sent:
            self._run.log(dict(values), step=step)

    def close(self, record: Record) -> None:
        if self._run is None:
            return
        self._run.summary.update({**record.metrics, "state": record.state})
        self._run.finish(exit_code=0 if record.state in ("done", "pruned") else 1)
        self._run = None


def _own_service() -> None:
    """Forget a W&B service that another process started and left in the environment.

    A job inherits it from the process that launched it. Such a service may be on another machine or end with its
    owner, and it keeps the id of a killed run "in use" for as long as it lives.
    """
    if f"-{os.getpid()}-" not in os.environ.get(wandb.env.SERVICE, f"-{os.getpid()}-"):
        del os.environ[wandb.env.SERVICE]
