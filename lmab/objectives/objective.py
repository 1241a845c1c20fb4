"""What every objective is: a noise for the data workers, a loss for the device, and how much that loss weighs.

N  targets
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from torch import nn

from lmab.nn.cross_entropy import cross_entropy
from lmab.types import BadInput, Outcome

if TYPE_CHECKING:
    from torchmetrics import Metric

    from lmab.data.collate import Noise
    from lmab.nn.network import Network
    from lmab.types import Batch, Encoded


class Objective(nn.Module):
    """name: of the objective's file, its targets in a batch and its metrics.

    redefines: knobs that change what the loss measures; arms that differ in one cannot be ranked by it.
    nats_a_token: the loss is one of ordinary tokens, so it can be held against the unigram entropy.
    whole_text: on held-out text every ordinary token is predicted once, so that its losses are those of the text.
    pools, second_stream: it asks the network's pooler, or its second stream. everywhere: it asks the last layer at
    all places. layered: it asks every layer.
    """

    name: ClassVar[str]
    redefines: ClassVar[tuple[str, ...]] = ()
    nats_a_token: ClassVar[bool] = False
    whole_text: ClassVar[bool] = False
    pools: bool = False
    second_stream: bool = False
    everywhere: bool = False
    layered: bool = False

    def __init__(self, noise: Noise, weight: float) -> None:
        super().__init__()
        if not 0 <= weight < math.inf:
            raise BadInput(f"objective.{self.name}.weight={weight} cannot work: give a finite number from 0 up.")
        self.noise, self.weight = noise, weight

    def build(self, dim: int) -> None:
        """Make the parameters that need to know the width of a hidden state."""

    def metrics(self) -> dict[str, Metric]:
        """Quantity -> what computes it from answers given and true over a whole set, where no mean over targets
        would do."""
        return {}


class TokenLoss(Objective):
    """Cross entropy at the target places, in nats, through the network's token head."""

    nats_a_token = True

    def forward(self, network: Network, encoded: Encoded, batch: Batch, *, scores: bool = False) -> Outcome:
        targets = batch.targets[self.name]
        hidden = encoded.of(targets)  # [N, D]
        if scores:
            logits = network.token_logits(hidden)  # [N, V]
            losses, hits = cross_entropy(logits, targets.answers)
            return Outcome(losses, targets.places, hits, scores=logits)
        losses, hits = network.token_losses(hidden, targets.answers)  # [N], [N]
        return Outcome(losses, targets.places, hits)
