"""A plain multi-layer perceptron in the place of an encoder: it reads a row as one vector and says one thing of it.

B  rows   T  pixels of a row   D  units of a hidden layer   N  places
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from lmab.types import Encoded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Generator, Tensor

    from lmab.nn.network import Rule
    from lmab.types import Batch


class Perceptron(nn.Module):
    """h_0 = x, h_l = dropout(max(0, W_l h_(l-1) + b_l)): no norm, and no path around a layer.

    x are the tokens of a row, grey levels from 0 to `levels`, scaled to the range from 0 to 1. The rest is what a
    learner asks of any network: no second stream, no memory and no pooler.
    """

    query = None
    pooler = None
    memory = 0
    heads = ()  # it has no attention

    def __init__(self, *, levels: int, length: int, dim: int, depth: int, dropout: float, input_dropout: float) -> None:
        super().__init__()
        self.dim, self.levels = dim, levels
        self.widths = (length, *[dim] * depth)  # of a state in each of `Encoded.layers`
        self.input_dropout, self.dropout = nn.Dropout(input_dropout), nn.Dropout(dropout)
        self.encoder = nn.ModuleList(nn.Linear(length if layer == 0 else dim, dim) for layer in range(depth))

    def forward(
        self,
        batch: Batch,
        places: Tensor | None = None,
        *,
        memory: Sequence[Tensor] = (),
        remember: int = 0,
        reach: int | None = None,
        keep: bool = False,
        attention: bool = False,
    ) -> Encoded:
        """places: [N] flat over B * T; each of them has the state of its row. None for all.

        keep: return the input and every hidden layer, [B, 1, T] and [B, 1, D] each. A perceptron has neither memory nor
        attention: nothing is kept of them.
        """
        B, T = batch.tokens.shape
        hidden = self.input_dropout(batch.tokens.to(next(self.parameters()).dtype) / self.levels)  # [B, T]
        layers = [hidden]
        for layer in self.encoder:
            hidden = self.dropout(layer(hidden).relu())  # [B, D]
            layers.append(hidden)
        whole = hidden[:, None].expand(B, T, self.dim) if places is None else hidden.index_select(0, places // T)
        return Encoded(hidden=whole, places=places, layers=tuple(layer[:, None] for layer in layers) if keep else ())


def rectified(gain: float) -> Rule:
    """The rule of first weights for rectified units (He et al. 2015, section 2.2): matrices are normal with a standard
    deviation of gain * sqrt(2 / inputs), biases zero. With a gain of 1 a signal keeps its size from layer to layer;
    with another it is multiplied by the gain in every one, and so is the gradient on its way back."""

    def fill(name: str, parameter: Tensor, generator: Generator) -> None:
        if name.endswith("bias"):
            parameter.zero_()
        else:
            parameter.normal_(0.0, gain * (2 / parameter.shape[1]) ** 0.5, generator=generator)

    return fill
