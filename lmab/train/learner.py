"""The training step that every model inherits.

One batch from the loader is one optimiser step: a tuple of micro-batches. Each objective's loss is divided by
the targets of the whole step, so accumulation equals the large batch to rounding, whatever the micro-batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, cast

import pytorch_lightning as pl
import torch
from torch import nn

from lmab.rng import derive
from lmab.train.memories import Memories
from lmab.train.scores import Scores
from lmab.types import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pytorch_lightning.core.optimizer import LightningOptimizer
    from torch import Tensor

    from lmab.train.optim import Optim, Schedule
    from lmab.types import Batch, Outcome


class Diverged(RuntimeError):  # noqa: N818  (an outcome of training, not a fault of the program)
    """The loss is no longer a number. The message says where."""


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


FROZEN = ("embedding", "encoder", "distances")  # what of a network a probe leaves alone


class Learner(pl.LightningModule):
    """Objectives, optimiser and held-out scores around a network; a model class builds the network."""

    def __init__(self, network: nn.Module, learning: Learning) -> None:
        super().__init__()
        # A step is a whole accumulated batch: the learner walks through it, not Lightning.
        self.automatic_optimization = False
        self.network = network
        self.objectives = nn.ModuleDict(dict(learning.objectives))
        self.learning = learning
        self.memories = Memories()
        with torch.device("meta"):
            for name, objective in learning.objectives.items():
                if getattr(objective, "second_stream", False) and network.query is None:
                    raise BadInput(f"objective=[{name}] asks a second stream, which only model=xlnet has.")
                if build := cast("Callable[[int], None] | None", getattr(objective, "build", None)):
                    build(cast("int", network.dim))
        if learning.frozen:
            for part in self._frozen():
                part.requires_grad_(False)
            if network.query is not None:
                network.query.requires_grad_(False)
        self.scores = {
            (part, name): Scores(documents, objective)
            for part, documents in learning.documents.items()
            for name, objective in learning.objectives.items()
        }

    def _frozen(self) -> list[nn.Module]:
        return [part for name in FROZEN if (part := getattr(self.network, name, None)) is not None]

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if self.learning.frozen:
            for part in self._frozen():
                part.eval()
        return self

    def outcomes(self, batch: Batch, part: str = "train", micro: int = 0) -> Iterator[tuple[str, float, Outcome]]:
        """Each objective's name, weight and outcome on one forward pass.

        part, micro: whose memory the pass takes up and leaves behind, where rows belong to streams.
        """
        wanted = self.objectives.values()
        keep = any(getattr(objective, "layered", False) for objective in wanted)
        everywhere = keep or any(getattr(objective, "everywhere", False) for objective in wanted)
        held_out = part in self.learning.documents
        remember = self.network.memory
        if held_out and self.learning.memory is not None:
            remember = self.learning.memory
        if batch.view.past is None:
            remember = 0
        encoded = self.network(
            batch,
            None if everywhere else batch.asked(),
            memory=self.memories.before(part, micro, batch.examples, batch.tokens.device) if remember else (),
            remember=remember,
            reach=self.learning.reach if held_out else None,
            keep=keep,
        )
        if remember:
            self.memories.keep(part, micro, encoded.memory)
        for name, objective in self.objectives.items():
            yield name, cast("float", objective.weight), objective(self.network, encoded, batch)

    def training_step(self, batch: tuple[Batch, ...], batch_idx: int) -> dict[str, Any]:
        totals = {name: sum(len(micro.targets[name].places) for micro in batch) for name in self.objectives}
        sums = dict.fromkeys(self.objectives, torch.zeros((), device=self.device))
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
                for name, weight, outcome in self.outcomes(micro, "train", number):
                    total = outcome.losses.sum()
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

    def _score(self, part: str, batch: Batch) -> None:
        for name, _, outcome in self.outcomes(batch, part):
            self.scores[part, name].update(outcome, batch, batch.targets[name].answers)

    def _mean(self, part: str, short: str) -> dict[str, float]:
        """Of every objective that had targets there. BadInput: none had any."""
        values = {
            f"{short}/{name}_{quantity}": value
            for name in self.objectives
            for quantity, value in self.scores[part, name].means().items()
        }
        if not values:
            raise BadInput(
                "The held-out text holds no target: give more documents, a higher rate, or rows that have what the "
                "objectives ask for (evaluation.segments)."
            )
        return values

    def _fresh(self, part: str) -> None:
        self.memories.forget(part)
        for name in self.objectives:
            self.scores[part, name].reset(self.device)

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
        return {
            f"test/{name}_{quantity}": columns
            for name in self.objectives
            for quantity, columns in self.scores["test", name].documents().items()
        }

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["memory"] = self.memories.of("train")

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.memories.restore("train", checkpoint.get("memory", {}))

    def configure_optimizers(self) -> Any:
        optimizer = self.learning.optim.build(self)
        schedule, steps = self.learning.schedule, self.learning.steps
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: schedule.factor(step, steps))
        return [optimizer], [scheduler]
