"""Hidden states to scores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

if TYPE_CHECKING:
    from torch import Tensor


class TokenHead(nn.Module):
    """Scores over the vocabulary: norm(gelu(W h)) E^T + b, with E the embedding itself (Devlin et al. 2018, A.2
    and the published code). E is handed in at the call, so that a tied weight is one parameter by construction.
    """

    def __init__(self, *, dim: int, vocab: int, epsilon: float) -> None:
        super().__init__()
        self.transform = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim, epsilon)
        self.bias = nn.Parameter(torch.empty(vocab))

    def forward(self, hidden: Tensor, embedding: Tensor) -> Tensor:
        """hidden: [N, D]; embedding: [V, D]. Returns [N, V]."""
        return F.linear(self.norm(F.gelu(self.transform(hidden))), embedding, self.bias)
