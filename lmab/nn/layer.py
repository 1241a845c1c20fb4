"""One Transformer layer, post-norm as in BERT (Vaswani et al. 2017, section 3.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

if TYPE_CHECKING:
    from lmab.types import View


class Layer(nn.Module):
    """x = norm(x + attention(x)); x = norm(x + W2 gelu(W1 x)).

    ffn: width inside the feed-forward part. dropout: of both sublayers' results. epsilon: of the norms.
    """

    def __init__(self, *, attention: nn.Module, dim: int, ffn: int, dropout: float, epsilon: float) -> None:
        super().__init__()
        self.attention = attention
        self.attention_norm = nn.LayerNorm(dim, epsilon)
        self.inner = nn.Linear(dim, ffn)
        self.outer = nn.Linear(ffn, dim)
        self.ffn_norm = nn.LayerNorm(dim, epsilon)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: torch.Tensor, view: View, places: torch.Tensor | None = None) -> torch.Tensor:
        """hidden: [B, T, D]. Returns [B, T, D], or [N, D] at `places` [N], flat over B * T."""
        mixed = self.attention(hidden, view, places)
        everywhere = hidden
        if places is not None:
            hidden = hidden.flatten(0, 1).index_select(0, places)
        hidden = self.attention_norm(hidden + self._dropped(mixed, places, everywhere))
        fed = self.outer(F.gelu(self.inner(hidden)))
        return self.ffn_norm(hidden + self._dropped(fed, places, everywhere))

    def _dropped(self, values: torch.Tensor, places: torch.Tensor | None, everywhere: torch.Tensor) -> torch.Tensor:
        """Dropout that draws for every place, asked for or not: a further objective, which asks at places of its
        own, then changes nothing for the others."""
        if places is None or not self.training or not self.dropout.p:
            return self.dropout(values)
        return values * self.dropout(torch.ones_like(everywhere)).flatten(0, 1).index_select(0, places)
