"""One optimiser step, for whoever has losses to give.

One batch from the loader is one optimiser step: a tuple of micro-batches. Each loss is divided by what it is a mean
over in the whole step, so accumulation equals the large batch to rounding, whatever the micro-batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pytorch_lightning as pl
import torch

from lmab.rng import derive

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytorch_lightning.core.optimizer import LightningOptimizer
    from torch import Tensor, nn

    from lmab.train.optim import Optim, Schedule
    from lmab.types import Batch


@dataclass(frozen=True)
class Learning:
    """How a network is to learn. objectives: name -> loss module with a `weight`. steps: optimiser steps in
    all. clip: the largest norm of the gradient, None for no bound. seed: None leaves the weights on the meta
    device, where a network has sizes and no memory. documents: held-out part -> its number of documents.

    start: name of a parameter -> its first value, for weights that come from elsewhere. frozen: embedding and
    encoder stay as they begin, and without dropout: what is learnt is a probe. memory: places that are remembered
    on held-out text, None for as many as in training. reach: keys that a query sees at most there, None for all.
    """

    objectives: Mapping[str, nn.Module]
    optim: Optim
    schedule: Schedule
    steps: int
    clip: float | None
    seed: int | None
    documents: Mapping[str, int]
    start: Mapping[str, Tensor] | None = None
    frozen: bool = False
    memory: int | None = None
    reach: int | None = None

    @property
    def pools(self) -> bool:
        """Does an objective ask for rows as a whole?"""
        return any(getattr(objective, "pools", False) for objective in self.objectives.values())


class Stepping(pl.LightningModule):
    """Gives every subclass its training step and its optimiser; a subclass says what the losses are, and what it
    scores on held-out text."""

    def __init__(self, learning: Learning) -> None:
        super().__init__()
        # A step is a whole accumulated batch: this class walks through it, not Lightning.
        self.automatic_optimization = False
        self.learning = learning

    def units(self, batch: Batch) -> Mapping[str, int]:
        """Loss -> how many it is a mean over in this micro-batch: known before any forward pass."""
        raise NotImplementedError

    def losses(self, batch: Batch, micro: int) -> Iterator[tuple[str, float, Tensor]]:
        """Each loss of a micro-batch: its name, its weight, and its sum over the units, with gradients."""
        raise NotImplementedError

    def validation_means(self) -> dict[str, float]:
        """Means over the targets of the validation part, after its last batch."""
        raise NotImplementedError

    def test_means(self) -> dict[str, float]:
        """The same of the test part."""
        raise NotImplementedError

    def test_documents(self) -> dict[str, tuple[list[float], list[float]]]:
        """Metric -> (its mean for each document, the document's targets)."""
        raise NotImplementedError

    def training_step(self, batch: tuple[Batch, ...], batch_idx: int) -> dict[str, Any]:
        counts = [self.units(micro) for micro in batch]
        totals = {name: sum(count[name] for count in counts) for name in counts[0]}
        sums = dict.fromkeys(totals, torch.zeros((), device=self.device))
        # Dropout draws from torch's global generator: it is set by (seed, step, micro-batch) and put back, so that
        # what is drawn does not depend on what was drawn before, nor on the head of a further objective.
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            for number, micro in enumerate(batch):
                # Not torch.manual_seed: it keeps a stack trace for a CUDA that may never come, every time.
                for generator in (
                    torch.default_generator,
                    *(torch.cuda.default_generators[d.index] for d in devices),
                ):
                    generator.manual_seed(derive(self.learning.seed, "dropout", self.global_step, number))
                loss = torch.zeros((), device=self.device)
                for name, weight, total in self.losses(micro, number):
                    sums[name] = sums[name] + total.detach()
                    loss = loss + total * (weight / max(1, totals[name]))
                if loss.requires_grad:  # a step of which no row has a target teaches nothing
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

    def configure_optimizers(self) -> Any:
        optimizer = self.learning.optim.build(self)
        schedule, steps = self.learning.schedule, self.learning.steps
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: schedule.factor(step, steps))
        return [optimizer], [scheduler]
