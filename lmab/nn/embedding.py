"""Numbers to vectors: token + position + segment, normed (Devlin et al. 2018, section 3, figure 2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from lmab.types import Batch


class Embedding(nn.Module):
    """vocab: types. length: positions that have a vector. segments: kinds of segment."""

    def __init__(self, *, vocab: int, dim: int, length: int, segments: int, dropout: float, epsilon: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, dim)
        self.positions = nn.Embedding(length, dim)
        self.segments = nn.Embedding(segments, dim)
        self.norm = nn.LayerNorm(dim, epsilon)
        self.dropout = nn.Dropout(dropout)

    def forward(self, batch: Batch) -> torch.Tensor:
        """Returns [B, T, D]."""
        T = batch.tokens.shape[1]
        hidden = self.tokens(batch.tokens) + self.positions.weight[:T]
        hidden = hidden + (self.segments.weight[0] if batch.segments is None else self.segments(batch.segments))
        return self.dropout(self.norm(hidden))
