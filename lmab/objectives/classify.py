"""Labels of whole rows: fine-tuning (Devlin et al. 2018, section 4.1) and probes of what a frozen encoder knows.

B  rows   T  positions   D  width of a hidden state
N  labelled rows   F  features   C  classes
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import nn

from lmab.nn.cross_entropy import cross_entropy
from lmab.objectives.labels import Labels
from lmab.objectives.metrics import F1, Correlation, Matthews
from lmab.objectives.objective import Objective
from lmab.types import BadInput, Outcome

if TYPE_CHECKING:
    from torch import Tensor
    from torchmetrics import Metric

    from lmab.nn.network import Network
    from lmab.types import Batch, Encoded


class Classify(Objective):
    """The loss: cross entropy of C classes, or squared error of a score where `classes` is 1.

    pool: the state at the first token ([CLS]), at the last real one, the mean over the real ones, or the first and
    the mean side by side. layers: depths whose states are put side by side, 0 for the embedding and -1 for the last.
    head: linear; dense, W2 tanh(W1 x) with W1 of the width of the network (Liu et al. 2019, published code); or
    pooler, a linear map of the network's pooler as in BERT, so that it begins as pre-training left it. dropout: on
    the features, and inside a dense head. causal: each place sees itself and those before it, for an encoder that
    was trained so.
    """

    name = "classify"
    redefines: ClassVar[tuple[str, ...]] = ("classes",)

    def __init__(
        self,
        *,
        classes: int,
        pool: Literal["first", "last", "mean", "first_and_mean"],
        head: Literal["linear", "dense", "pooler"],
        layers: list[int],
        dropout: float,
        causal: bool,
        weight: float,
    ) -> None:
        if classes < 1:
            raise BadInput(
                f"objective.classify.classes={classes} tells nothing apart: give at least 2, or 1 for scores."
            )
        if not layers:
            raise BadInput("objective.classify.layers=[] reads nothing: give [-1] for the last.")
        if not 0 <= dropout < 1:
            raise BadInput(f"objective.classify.dropout={dropout} cannot work: give a number from 0 to below 1.")
        self._one = layers == [-1] and pool in ("first", "last")  # a single place is read
        if head == "pooler" and not self._one:
            raise BadInput(
                f"objective.classify.head=pooler reads one place of the last layer, not pool={pool} of "
                f"layers={layers}: give head=dense."
            )
        place = "first" if pool in ("first", "first_and_mean") else "last"
        super().__init__(Labels(objective=self.name, classes=classes, place=place, causal=causal), weight)
        self.classes, self.pool, self.head, self.layers = classes, pool, head, layers
        self.pools = head == "pooler"
        self.layered = layers != [-1]
        self.everywhere = not self._one
        self.dropout = nn.Dropout(dropout)

    def build(self, dim: int) -> None:
        features = dim * len(self.layers) * (2 if self.pool == "first_and_mean" else 1)
        dense = self.head == "dense"
        self.dense = nn.Linear(features, dim) if dense else None
        self.out = nn.Linear(dim if dense else features, self.classes)

    def forward(self, network: Network, encoded: Encoded, batch: Batch, *, scores: bool = False) -> Outcome:
        targets = batch.targets[self.name]
        features = self.features(encoded, batch)  # [N, F]
        if self.head == "pooler":
            features = network.pooled(features)
        features = self.dropout(features)
        if self.dense is not None:
            features = self.dropout(self.dense(features).tanh())
        found = self.out(features)  # [N, C]
        if self.classes == 1:
            said = found[:, 0].to(targets.answers.dtype)
            errors = said - targets.answers
            return Outcome(errors**2, targets.places, errors.abs() < 0.5, said, found if scores else None)
        losses, _ = cross_entropy(found, targets.answers)
        said = found.argmax(-1)
        return Outcome(losses, targets.places, said == targets.answers, said, found if scores else None)

    def features(self, encoded: Encoded, batch: Batch) -> Tensor:
        """[N, F] what is read off each labelled row."""
        places = batch.targets[self.name].places
        if self._one:
            return encoded.at(places)
        depth = len(encoded.layers)
        if self.layered and not all(-depth <= layer < depth for layer in self.layers):
            raise BadInput(
                f"objective.classify.layers={self.layers} names a depth that the model lacks: it has 0, the embedding, "
                f"to {depth - 1}."
            )
        states = [encoded.layers[layer] for layer in self.layers] if self.layered else [encoded.hidden]
        parts = []
        for hidden in states:  # [B, T, D]
            if self.pool != "mean":
                parts.append(hidden.flatten(0, 1).index_select(0, places))
            if self.pool in ("mean", "first_and_mean"):
                parts.append(_mean(hidden, batch.lengths).index_select(0, places // hidden.shape[1]))
        return torch.cat(parts, -1)

    def metrics(self) -> dict[str, Metric]:
        if self.classes == 1:
            return {"pearson": Correlation(ranks=False), "spearman": Correlation(ranks=True)}
        return {"f1": F1(self.classes), "mcc": Matthews(self.classes)}


def _mean(hidden: Tensor, lengths: Tensor | None) -> Tensor:
    """[B, D]: the mean of hidden states [B, T, D] over the real tokens of each row."""
    if lengths is None:
        return hidden.mean(1)
    real = torch.arange(hidden.shape[1], device=hidden.device) < lengths[:, None]  # [B, T]
    return (hidden * real[..., None]).sum(1) / lengths[:, None]
