"""What terms over hidden states have in common: which of them count, and how those of another width are compared.

B  rows   T  positions   D  width
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, cast

import torch
from torch import nn

from lmab.transfer.transfer import Transfer
from lmab.types import Ask, BadInput

if TYPE_CHECKING:
    from torch import Tensor

    from lmab.train.learner import Learner
    from lmab.types import Batch

Regressor = Literal["always", "needed"]


class States(Transfer):
    """A term over what layers make, number 0 being what the first of them reads: in a Transformer the embedding with
    its positions, norm, projection and dropout; in a perceptron the pixels.

    Its units are the tokens that are not padding, or, where a row is one vector, the rows.
    """

    def ask(self) -> Ask:
        return Ask(layers=True)

    def build(self, student: Learner, teacher: Learner) -> None:
        self._whole = not heads(student)  # without attention a row is one vector
        if self._whole != (not heads(teacher)):
            raise BadInput(
                f"transfer=[{self.name}] compares a row as one vector (model=mlp) with a row of tokens: give student "
                f"and teacher both model=mlp, or neither."
            )

    def count(self, batch: Batch) -> int:
        return batch.examples if self._whole else batch.real

    def squares(self, mine: Tensor, theirs: Tensor, batch: Batch) -> Tensor:
        """Of the differences of two layers, [B, T, D] or [B, 1, D], in float32 at least; 0 at padding."""
        theirs = theirs.detach()
        double = mine.dtype == torch.float64
        difference = mine - theirs if double else mine.float() - theirs.float()
        if batch.lengths is not None and not self._whole:
            padding = torch.arange(mine.shape[1], device=mine.device) >= batch.lengths[:, None]
            difference = difference.masked_fill(padding[..., None], 0.0)
        return difference.square()


def widths(learner: Learner) -> tuple[int, ...]:
    """Of a state in each of `Encoded.layers`."""
    return cast("tuple[int, ...]", learner.network.widths)


def heads(learner: Learner) -> tuple[int, ...]:
    """Of every depth's attention; none where a row is one vector."""
    return cast("tuple[int, ...]", learner.network.heads)


def linear(mine: int, theirs: int, wanted: Regressor, *, bias: bool) -> nn.Module:
    """From the width of a student's layer to that of its teacher's: a linear map, or nothing where none is needed."""
    return nn.Identity() if wanted == "needed" and mine == theirs else nn.Linear(mine, theirs, bias=bias)
