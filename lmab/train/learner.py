"""Objectives and held-out scores around a network: what every model inherits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, cast

import torch
from torch import nn

from lmab.train.memories import Memories
from lmab.train.scores import Scores
from lmab.train.stepping import Learning, Stepping
from lmab.types import Ask, BadInput, Seen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import Tensor

    from lmab.types import Batch, Outcome


class Diverged(RuntimeError):  # noqa: N818  (an outcome of training, not a fault of the program)
    """The loss is no longer a number. The message says where."""


class Pruned(RuntimeError):  # noqa: N818  (likewise)
    """Whoever watches the run has seen enough. The message says where."""


FROZEN = ("embedding", "encoder", "distances")  # what of a network a probe leaves alone


class Learner(Stepping):
    """Objectives and held-out scores around a network; a model class builds the network."""

    def __init__(self, network: nn.Module, learning: Learning) -> None:
        super().__init__(learning)
        self.network = network
        self.objectives = nn.ModuleDict(dict(learning.objectives))
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

    def seen(self, batch: Batch, part: str = "train", micro: int = 0, ask: Ask | None = None) -> Seen:
        """One forward pass: what the network made of it, and what objectives say.

        part, micro: whose memory the pass takes up and leaves behind, where rows belong to streams. ask: what is
        wanted, of what there is; None for the outcome of every objective.
        """
        if ask is None:
            ask = Ask(outcomes=frozenset(self.objectives))
        chosen = [name for name in self.objectives if name in (ask.outcomes | ask.scores) and name in batch.targets]
        wanted = [self.objectives[name] for name in chosen]
        keep = ask.layers or any(getattr(objective, "layered", False) for objective in wanted)
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
            attention=ask.attention,
        )
        if remember:
            self.memories.keep(part, micro, encoded.memory)
        return Seen(
            encoded,
            {
                name: objective(self.network, encoded, batch, scores=name in ask.scores)
                for name, objective in zip(chosen, wanted, strict=True)
            },
        )

    def outcomes(self, batch: Batch, part: str = "train", micro: int = 0) -> Iterator[tuple[str, float, Outcome]]:
        """Each objective's name, weight and outcome on one forward pass."""
        for name, outcome in self.seen(batch, part, micro).outcomes.items():
            yield name, cast("float", self.objectives[name].weight), outcome

    def units(self, batch: Batch) -> dict[str, int]:
        return {name: len(batch.targets[name].places) for name in self.objectives}

    def losses(self, batch: Batch, micro: int) -> Iterator[tuple[str, float, Tensor]]:
        for name, weight, outcome in self.outcomes(batch, "train", micro):
            yield name, weight, outcome.losses.sum()

    def score(self, part: str, batch: Batch, outcomes: Mapping[str, Outcome]) -> None:
        """Count what the objectives say of a batch of a held-out part."""
        for name, outcome in outcomes.items():
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
        self.score("validation", batch, self.seen(batch, "validation").outcomes)

    def validation_means(self) -> dict[str, float]:
        return self._mean("validation", "val")

    def on_test_epoch_start(self) -> None:
        self._fresh("test")

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        self.score("test", batch, self.seen(batch, "test").outcomes)

    def test_means(self) -> dict[str, float]:
        return self._mean("test", "test")

    def test_documents(self) -> dict[str, tuple[list[float], list[float]]]:
        return {
            f"test/{name}_{quantity}": columns
            for name in self.objectives
            for quantity, columns in self.scores["test", name].documents().items()
        }

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["memory"] = self.memories.of("train")

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.memories.restore("train", checkpoint.get("memory", {}))
