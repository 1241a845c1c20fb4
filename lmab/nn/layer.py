"""One Transformer layer, post-norm as in BERT (Vaswani et al. 2017, section 3.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from lmab.nn.attention import Attention
    from lmab.nn.sight import Sight

Activation = Literal["gelu", "gelu_tanh", "relu"]

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),  # the approximation in the published code of ALBERT
    "relu": F.relu,
}


class Layer(nn.Module):
    """x = norm(x + attention(x)); x = norm(x + W2 f(W1 x)).

    ffn: width inside the feed-forward part. dropout: of both sublayers' results; inner_dropout: inside the
    feed-forward part. epsilon: of the norms. activation: f.
    """

    def __init__(
        self,
        *,
        attention: Attention,
        dim: int,
        ffn: int,
        dropout: float,
        epsilon: float,
        activation: Activation = "gelu",
        inner_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.attention = attention
        self.attention_norm = nn.LayerNorm(dim, epsilon)
        self.inner = nn.Linear(dim, ffn)
        self.outer = nn.Linear(ffn, dim)
        self.ffn_norm = nn.LayerNorm(dim, epsilon)
        self.dropout = nn.Dropout(dropout)
        self.inner_dropout = nn.Dropout(inner_dropout)
        self.activation = ACTIVATIONS[activation]

    def share(self, other: Layer, parts: Literal["attention", "ffn", "all"]) -> None:
        """Use another layer's weights, with the norms that belong to them: not copies, the same."""
        if parts != "ffn":
            self.attention, self.attention_norm = other.attention, other.attention_norm
        if parts != "attention":
            self.inner, self.outer, self.ffn_norm = other.inner, other.outer, other.ffn_norm

    def forward(
        self,
        hidden: Tensor,
        sight: Sight,
        source: Tensor | None = None,
        places: Tensor | None = None,
        scores: list[Tensor] | None = None,
    ) -> Tensor:
        """hidden: [B, Q, D]; source: [B, S, D], what is looked at, None for the same. Returns [B, Q, D], or
        [N, D] at `places` [N], flat over B * Q. scores: where attention adds its own, if they are wanted."""
        mixed = self.attention(hidden, sight, source, places, scores)
        everywhere = hidden
        if places is not None:
            hidden = hidden.flatten(0, 1).index_select(0, places)
        hidden = self.attention_norm(hidden + dropped(self.dropout, mixed, places, everywhere.shape))
        inside = self.activation(self.inner(hidden))
        inside = dropped(self.inner_dropout, inside, places, (*everywhere.shape[:2], inside.shape[-1]))
        fed = self.outer(inside)
        return self.ffn_norm(hidden + dropped(self.dropout, fed, places, everywhere.shape))


def dropped(dropout: nn.Dropout, values: Tensor, places: Tensor | None, everywhere: tuple[int, ...]) -> Tensor:
    """Dropout that draws for every place, asked for or not: a further objective, which asks at places of its own,
    then changes nothing for the others."""
    if places is None or not dropout.training or not dropout.p:
        return dropout(values)
    drawn = dropout(torch.ones(everywhere, dtype=values.dtype, device=values.device))
    return values * drawn.flatten(0, 1).index_select(0, places)
