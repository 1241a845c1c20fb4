"""The training step that every model inherits.

One batch from the loader is one optimiser step: a tuple of micro-batches. Each objective's loss is divided by
the targets of the whole step, so accumulation equals the large batch to rounding, whatever the micro-batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pytorch_lightning as pl
import torch
from torch import nn

from lmab.rng import derive
from lmab.train.scores import DocumentLoss

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytorch_lightning.core.optimizer import LightningOptimizer

    from lmab.train.optim import Optim, Schedule
    from lmab.types import Batch, Outcome


class Diverged(RuntimeError):  # noqa: N818  (an outcome of training, not a fault of the program)
    """The loss is no longer a number. The message says where."""


@dataclass(frozen=True)
class Learning:
    """How a network is to learn. objectives: name -> loss module with a `weight`. steps: optimiser steps in
    all. clip: the largest norm of the gradient, None for no bound. seed: None leaves the weights on the meta
    device, where a network has sizes and no memory."""

    objectives: Mapping[str, nn.Module]
    optim: Optim
    schedule: Schedule
    steps: int
    clip: float | None
    seed: int | None
    documents: Mapping[str, int]  # held-out part -> its number of documents


class Learner(pl.LightningModule):
    """Objectives, optimiser and held-out scores around a network; a model class builds the network."""

    def __init__(self, network: nn.Module, learning: Learning) -> None:
        super().__init__()
        # A step is a whole accumulated batch: the learner walks through it, not Lightning.
        self.automatic_optimization = False
        self.network = network
        self.objectives = nn.ModuleDict(dict(learning.objectives))
        self.learning = learning
        self.scores = {
            (part, name): DocumentLoss(documents)
            for part, documents in learning.documents.items()
            for name in learning.objectives
        }

    def outcomes(self, batch: Batch) -> Iterator[tuple[str, float, Outcome]]:
        """Each objective's name, weight and outcome on one forward pass."""
        encoded = self.network(batch, batch.asked())
        for name, objective in self.objectives.items():
            yield name, cast("float", objective.weight), objective(self.network, encoded, batch)

    def training_step(self, batch: tuple[Batch, ...], batch_idx: int) -> dict[str, Any]:
        totals = {name: max(1, sum(len(micro.targets[name].places) for micro in batch)) for name in self.objectives}
        sums = dict.fromkeys(self.objectives, torch.zeros((), device=self.device))
        # Dropout draws from torch's global generator: it is set by (seed, step) and put back, so that what a
        # step draws does not depend on what was drawn before.
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            # Not torch.manual_seed: it keeps a stack trace for a CUDA that may never come, every time.
            for generator in (
                torch.default_generator,
                *(torch.cuda.default_generators[d.index] for d in devices),
            ):
                generator.manual_seed(derive(self.learning.seed, "dropout", self.global_step))
            for micro in batch:
                loss = torch.zeros((), device=self.device)
                for name, weight, outcome in self.outcomes(micro):
                    total = outcome.losses.sum()
                    sums[name] = sums[name] + total.detach()
                    loss = loss + total * (weight / totals[name])
                self.manual_backward(loss)
        self._update()
        return {"sums": sums, "totals": totals, "real": sum(micro.real for micro in batch)}

    def _update(self) -> None:
        optimizer = cast("LightningOptimizer", self.optimizers())
        scheduler = cast("torch.optim.lr_scheduler.LRScheduler", self.lr_schedulers())
        if self.learning.clip is not None:
            # Not Lightning's: it refuses a fused optimiser under bf16, which scales no gradients and so is safe.
            torch.nn.utils.clip_grad_norm_(self.parameters(), self.learning.clip)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()

    def _score(self, part: str, batch: Batch) -> None:
        for name, _, outcome in self.outcomes(batch):
            self.scores[part, name].update(outcome, batch)

    def _mean(self, part: str, short: str) -> dict[str, float]:
        values: dict[str, float] = {}
        for name in self.objectives:
            found = self.scores[part, name].compute()
            values[f"{short}/{name}_loss"] = float(found["loss"])
            values[f"{short}/{name}_accuracy"] = float(found["accuracy"])
        return values

    def _fresh(self, part: str) -> None:
        for name in self.objectives:
            metric = self.scores[part, name].to(self.device)
            metric.reset()

    def on_validation_epoch_start(self) -> None:
        self._fresh("validation")

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self._score("validation", batch)

    def validation_means(self) -> dict[str, float]:
        """Means over the targets of the validation part, after its last batch."""
        return self._mean("validation", "val")

    def on_test_epoch_start(self) -> None:
        self._fresh("test")

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        self._score("test", batch)

    def test_means(self) -> dict[str, float]:
        return self._mean("test", "test")

    def test_documents(self) -> dict[str, tuple[list[float], list[float]]]:
        """Metric -> (its mean for each document, the document's targets)."""
        documents: dict[str, tuple[list[float], list[float]]] = {}
        for name in self.objectives:
            found = self.scores["test", name].compute()
            for quantity in ("loss", "accuracy"):
                column = found[f"{quantity}_by_document"].tolist()
                documents[f"test/{name}_{quantity}"] = (column, found["weight"].tolist())
        return documents

    def configure_optimizers(self) -> Any:
        optimizer = self.learning.optim.build(self)
        schedule, steps = self.learning.schedule, self.learning.steps
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: schedule.factor(step, steps))
        return [optimizer], [scheduler]
