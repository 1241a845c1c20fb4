"""What happens beside training: the record is kept up to date, and checkpoints are written and found."""

from __future__ import annotations

import logging
import math
import os
import time
import zipfile
from typing import TYPE_CHECKING, Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import TQDMProgressBar

from lmab.train.learner import Diverged, Pruned
from lmab.train.stepping import Stepping
from lmab.train.tracker import by_step

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from lmab.store import Record, Store
    from lmab.train.tracker import Tracker

    # The step and the means of a validation to whether that is enough.
    Watch = Callable[[int, Mapping[str, float]], bool]

log = logging.getLogger(__name__)


class Recorder(pl.Callback):
    """Writes curve points to the record and the tracker, and stops a run that diverged or was seen enough of.

    every: optimiser steps between two points of the training loss, each the mean over the targets between. watch: is
    told of every validation, also of those before a checkpoint.
    """

    def __init__(
        self, record: Record, store: Store, tracker: Tracker, *, every: int, watch: Watch | None = None
    ) -> None:
        self.record, self.store, self.tracker, self.every, self.watch = record, store, tracker, every, watch
        self.sums: dict[str, torch.Tensor] = {}
        self.totals: dict[str, int] = {}
        self.tokens = 0
        self._clock = 0.0

    def state_dict(self) -> dict[str, Any]:
        return {
            "curves": {name: list(points) for name, points in self.record.curves.items()},
            "sums": {name: float(value) for name, value in self.sums.items()},
            "totals": dict(self.totals),
            "tokens": self.tokens,
            "seconds": self.record.cost.get("seconds", 0.0),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.record.curves = {n: [(int(s), v) for s, v in p] for n, p in state_dict["curves"].items()}
        self.sums = {name: torch.tensor(value) for name, value in state_dict["sums"].items()}
        self.totals = dict(state_dict["totals"])
        self.tokens = state_dict["tokens"]
        self.record.cost["seconds"] = state_dict["seconds"]

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        # Here the curves of a checkpoint are back; on_train_start is left out where nothing is left to train.
        self.tracker.open(self.record, self.store.folder(self.record.signature))

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.record.step = trainer.global_step
        self.store.write(self.record)
        self._clock = time.perf_counter()
        for step, values in by_step(self.record):
            self._shown(step, {name: value for name, value in values.items() if name.startswith("val/")})

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        for name, value in outputs["sums"].items():
            self.sums[name] = self.sums[name].to(value.device) + value if name in self.sums else value
            self.totals[name] = self.totals.get(name, 0) + outputs["totals"][name]
        self.tokens += outputs["real"]
        step = trainer.global_step
        if step % self.every and step != self.record.steps:
            return
        values = {
            f"train/{name}_loss": float(s) / self.totals[name] for name, s in self.sums.items() if self.totals[name]
        }
        self.sums, self.totals = {}, {}
        (group, *_) = trainer.optimizers[0].param_groups  # the rate of the next step
        self._point(step, values | {"train/lr": group["lr"]})

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, Stepping)
        means = pl_module.validation_means()
        self._point(trainer.global_step, means)
        self._shown(trainer.global_step, means)

    def _shown(self, step: int, values: Mapping[str, float]) -> None:
        if self.watch is not None and values and self.watch(step, values):
            raise Pruned(f"Pruned at step {step} of {self.record.steps}.")

    def _point(self, step: int, values: Mapping[str, float]) -> None:
        now = time.perf_counter()
        self.record.cost["seconds"] = self.record.cost.get("seconds", 0.0) + now - self._clock
        self._clock = now
        for name, value in values.items():
            self.record.curves.setdefault(name, []).append((step, value))
        self.record.step = step
        self.tracker.log(step, values)
        self.store.write(self.record)
        for name, value in values.items():
            if not math.isfinite(value):
                raise Diverged(f"{name} is {value} at step {step} of {self.record.steps}.")


class Bar(TQDMProgressBar):
    """A progress bar that shows the newest losses of the record."""

    def __init__(self, record: Record) -> None:
        super().__init__(refresh_rate=20)
        self.record = record

    def get_metrics(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> dict[str, int | str | float | dict]:
        losses = {name: points[-1][1] for name, points in self.record.curves.items() if name.endswith("_loss")}
        return {name: f"{value:.3f}" for name, value in losses.items()}


class Checkpoints(pl.Callback):
    """Writes a checkpoint every so many optimiser steps, and the best one by the first of `best` that is scored.

    A checkpoint is written before the next step begins, when validation and records of the last are done. The
    last two are kept: should a disk spoil one, the other is whole.
    """

    def __init__(self, folder: Path, record: Record, *, every: int, best: Sequence[str]) -> None:
        self.folder, self.record, self.every, self.best = folder, record, every, best
        self._resumed = -1

    def _save(self, trainer: pl.Trainer) -> None:
        path = self.folder / f"step-{trainer.global_step:07d}.ckpt"
        draft = self.folder / f".{path.name}.{os.getpid()}"
        try:
            trainer.save_checkpoint(draft)
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
        for old in _checkpoints(self.folder)[2:]:
            old.unlink()

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._resumed = trainer.global_step

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        step = trainer.global_step
        if step % self.every == 0 and step > max(0, self._resumed):
            self._save(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.global_step > self._resumed:
            self._save(trainer)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        points = next((self.record.curves[name] for name in self.best if name in self.record.curves), [])
        if points and points[-1][1] <= min(value for _, value in points):
            draft = self.folder / f".best.{os.getpid()}"
            torch.save(pl_module.state_dict(), draft)
            draft.replace(self.folder / "best.ckpt")


def _checkpoints(folder: Path) -> list[Path]:
    """The newest first."""
    return sorted(folder.glob("step-*.ckpt"), reverse=True)


def last_whole(folder: Path) -> Path | None:
    """The newest checkpoint whose every byte is as it was written; a broken one is named and put aside."""
    for path in _checkpoints(folder):
        if (broken := damage(path)) is None:
            return path
        log.warning("The checkpoint %s is broken (%s): the run goes back to the one before it.", path, broken)
        path.replace(path.with_suffix(".broken"))
    return None


def damage(path: Path) -> str | None:
    """What is wrong with a checkpoint, None where nothing is."""
    try:
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()
        if broken is None:  # what stands between the parts has no checksum: torch must find its way through it
            torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except MemoryError:
        raise
    except Exception as error:  # a flipped bit can make a reader stumble over anything
        return repr(error)
    return broken
