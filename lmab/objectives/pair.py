"""Binary objectives on rows of two segments: what both say of a row is its label, and the segments made it.

N  labelled rows   D  width of a hidden state
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from torch import nn

from lmab.nn.cross_entropy import cross_entropy
from lmab.objectives.labels import Labels
from lmab.objectives.objective import Objective
from lmab.types import Outcome

if TYPE_CHECKING:
    from lmab.nn.network import Network
    from lmab.types import Batch, Encoded


class Pair(Objective):
    """The loss: cross entropy of two classes, softmax(W tanh(P h + p) + b) with h the last layer at [CLS] (Devlin
    et al. 2018, section 3.1, task 2, and the published code). A row without a label is no target."""

    pools = True
    negatives: ClassVar[str]  # of the rows it learns from, as segments.negatives says it

    def __init__(self, *, weight: float) -> None:
        super().__init__(Labels(objective=self.name, classes=2), weight)

    def build(self, dim: int) -> None:
        self.classifier = nn.Linear(dim, 2)

    def forward(self, network: Network, encoded: Encoded, batch: Batch, *, scores: bool = False) -> Outcome:
        targets = batch.targets[self.name]
        found = self.classifier(network.pooled(encoded.at(targets.places)))  # [N, 2]
        losses, _ = cross_entropy(found, targets.answers)
        said = found.argmax(-1)
        return Outcome(losses, targets.places, said == targets.answers, said, found if scores else None)
