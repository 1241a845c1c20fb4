"""Numbers to vectors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch import nn

from lmab.nn.position import sinusoids

if TYPE_CHECKING:
    from torch import Tensor

    from lmab.types import Batch


class Embedding(nn.Module):
    """Token + position + segment, normed (Devlin et al. 2018, section 3, figure 2).

    vocab: types. length: positions that have a vector. segments: kinds of segment. dim: of the vectors; out: what
    they are projected to after the norm (Lan et al. 2019, section 3.1: E and H), None for no projection.
    """

    def __init__(
        self,
        *,
        vocab: int,
        dim: int,
        length: int,
        segments: int,
        dropout: float,
        epsilon: float,
        out: int | None = None,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, dim)
        self.positions = nn.Embedding(length, dim)
        self.segments = nn.Embedding(segments, dim)
        self.norm = nn.LayerNorm(dim, epsilon)
        self.dropout = nn.Dropout(dropout)
        self.project = nn.Identity() if out is None else nn.Linear(dim, out)

    def forward(self, batch: Batch) -> Tensor:
        """Returns [B, T, D]."""
        T = batch.tokens.shape[1]
        hidden = self.tokens(batch.tokens) + self.positions.weight[:T]
        # A table of one kind serves text of two segments too: RoBERTa has no segment embeddings.
        if batch.segments is None or self.segments.num_embeddings == 1:
            hidden = hidden + self.segments.weight[0]
        else:
            hidden = hidden + self.segments(batch.segments)
        return self.project(self.dropout(self.norm(hidden)))


class Words(nn.Module):
    """Tokens alone: their places are told to attention (Dai et al. 2019; Yang et al. 2019).

    scaled: by sqrt(dim), as in Transformer-XL. absolute: add sinusoids of the place in the row instead (Vaswani et
    al. 2017).
    """

    def __init__(self, *, vocab: int, dim: int, dropout: float, scaled: bool = False, absolute: bool = False) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, dim)
        self.dropout = nn.Dropout(dropout)
        self.scale = math.sqrt(dim) if scaled else 1.0
        self.absolute = absolute

    def forward(self, batch: Batch) -> Tensor:
        """Returns [B, T, D]."""
        hidden = self.tokens(batch.tokens) * self.scale
        if self.absolute:
            hidden = hidden + sinusoids(*hidden.shape[1:]).to(hidden)
        return self.dropout(hidden)
