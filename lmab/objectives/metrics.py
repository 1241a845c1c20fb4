"""Metrics of a whole set, which no mean over batches gives. All are 0 where they are not defined, as for a model
that says the same of every row.

    N  rows   C  classes
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torchmetrics import Metric

if TYPE_CHECKING:
    from torch import Tensor


class Confusion(Metric):
    """Counts who was taken for whom. classes: C."""

    counts: Tensor
    full_state_update = False

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes = classes
        self.add_state("counts", default=torch.zeros(classes, classes, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, said: Tensor, answers: Tensor) -> None:
        """said, answers: [N] int64."""
        pairs = torch.bincount(answers * self.classes + said, minlength=self.classes**2)
        self.counts += pairs.view(self.classes, self.classes)

    def margins(self) -> tuple[Tensor, Tensor, Tensor]:
        """[C] each, in float64: rows of a class that were told, rows of it, and rows that were said to be of it."""
        counts = self.counts.double()
        return counts.diagonal(), counts.sum(1), counts.sum(0)


class F1(Confusion):
    """2 hits / (rows of the class + rows said to be of it): of class 1 where there are two classes, else the mean
    over the classes that occur in either."""

    def compute(self) -> Tensor:
        hits, true, said = self.margins()
        scores = 2 * hits / (true + said).clamp(min=1)
        return scores[1] if self.classes == 2 else scores[true + said > 0].mean().nan_to_num()


class Matthews(Confusion):
    """The correlation of two partitions: (c s - sum t p) / sqrt((s^2 - sum p^2) (s^2 - sum t^2)), with c the hits of
    all classes, s the rows, t and p the rows of a class and those said to be of it (Gorodkin 2004)."""

    def compute(self) -> Tensor:
        hits, true, said = self.margins()
        rows = true.sum()
        spread = ((rows**2 - (said**2).sum()) * (rows**2 - (true**2).sum())).sqrt()
        return ((hits.sum() * rows - (true * said).sum()) / spread).nan_to_num(0.0, 0.0, 0.0)


class Correlation(Metric):
    """Pearson's, or of the ranks: Spearman's, equal values sharing their mean rank."""

    said: list[Tensor]
    answers: list[Tensor]
    full_state_update = False

    def __init__(self, *, ranks: bool) -> None:
        super().__init__()
        self.ranks = ranks
        for name in ("said", "answers"):
            self.add_state(name, default=[], dist_reduce_fx="cat")

    def update(self, said: Tensor, answers: Tensor) -> None:
        """said, answers: [N]."""
        self.said.append(said.detach().double())
        self.answers.append(answers.double())

    def compute(self) -> Tensor:
        columns = [torch.cat(self.said), torch.cat(self.answers)]
        if self.ranks:
            columns = [_ranks(column) for column in columns]
        one, other = (column - column.mean() for column in columns)
        return ((one * other).sum() / (one.norm() * other.norm())).nan_to_num(0.0, 0.0, 0.0)


def _ranks(values: Tensor) -> Tensor:
    _, number, counts = values.unique(return_inverse=True, return_counts=True)
    return (counts.cumsum(0) - (counts - 1) / 2).double()[number]
