"""Held-out losses, kept for each document, and their mean over targets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torchmetrics import Metric

if TYPE_CHECKING:
    from torch import Tensor, nn

    from lmab.types import Batch, Outcome


class DocumentLoss(Metric):
    """Sums over targets by document, in float64: neither the batch size nor padding nor the number of
    processes changes a mean.

    documents: how many there are; a batch's `document` counts from 0 below it.
    """

    sums: Tensor
    counts: Tensor
    hits: Tensor
    full_state_update = False

    def __init__(self, documents: int) -> None:
        super().__init__()
        for name in ("sums", "counts", "hits"):
            zeros = torch.zeros(documents, dtype=torch.float64)
            self.add_state(name, default=zeros, dist_reduce_fx="sum")

    def update(self, outcome: Outcome, batch: Batch) -> None:
        row = outcome.places // batch.tokens.shape[1]
        document = batch.document[row]
        self.sums.index_add_(0, document, outcome.losses.double())
        self.counts.index_add_(0, document, torch.ones_like(document, dtype=torch.float64))
        self.hits.index_add_(0, document, outcome.hits.double())

    def compute(self) -> dict[str, Tensor]:
        """loss, accuracy: means over all targets, NaN where there are none. loss_by_document, accuracy_by_document
        [documents]: means over each document's targets, NaN where it has none. weight [documents]: its targets."""
        total = self.counts.sum()
        return {
            "loss": self.sums.sum() / total,
            "accuracy": self.hits.sum() / total,
            "loss_by_document": self.sums / self.counts,
            "accuracy_by_document": self.hits / self.counts,
            "weight": self.counts,
        }


class Scores:
    """All that is said of one objective on one held-out part: its loss and accuracy for each document, and the
    metrics of a whole set that it names (F1, a correlation), which are no means over batches."""

    def __init__(self, documents: int, objective: nn.Module) -> None:
        self.loss = DocumentLoss(documents)
        named = getattr(objective, "metrics", None)
        self.whole: dict[str, Metric] = named() if named else {}

    def reset(self, device: torch.device) -> None:
        for metric in (self.loss, *self.whole.values()):
            metric.to(device).reset()

    def update(self, outcome: Outcome, batch: Batch, answers: Tensor) -> None:
        self.loss.update(outcome, batch)
        for metric in self.whole.values():
            metric.update(outcome.said, answers)

    def means(self) -> dict[str, float]:
        """Quantity -> its value over the whole part; empty where it has no targets."""
        if not self.loss.counts.sum():
            return {}
        found = self.loss.compute()
        return {q: float(found[q]) for q in ("loss", "accuracy")} | {
            name: float(metric.compute()) for name, metric in self.whole.items()
        }

    def documents(self) -> dict[str, tuple[list[float], list[float]]]:
        """Quantity -> (its mean for each document, the document's targets); empty where the part has none."""
        if not self.loss.counts.sum():
            return {}
        found = self.loss.compute()
        return {q: (found[f"{q}_by_document"].tolist(), found["weight"].tolist()) for q in ("loss", "accuracy")}
