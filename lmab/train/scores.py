"""Held-out losses, kept for each document, and their mean over targets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torchmetrics import Metric

from lmab.types import BadInput

if TYPE_CHECKING:
    from torch import Tensor

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
        """loss, accuracy: means over all targets. loss_by_document, accuracy_by_document [documents]: means over
        each document's targets, NaN where it has none. weight [documents]: its targets."""
        total = self.counts.sum()
        if not total:
            raise BadInput("The held-out text holds no target: give more documents, or a higher rate.")
        return {
            "loss": self.sums.sum() / total,
            "accuracy": self.hits.sum() / total,
            "loss_by_document": self.sums / self.counts,
            "accuracy_by_document": self.hits / self.counts,
            "weight": self.counts,
        }
