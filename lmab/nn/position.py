"""Position schemes: what attention is told about where things stand.

A scheme is injected into attention and answers a query with (query, additive bias): absolute positions were
added to the embedding and change neither; a relative scheme shifts the query and returns a bias.

    B  rows   H  heads   T  queries   S  keys   D  width of a head
"""

from __future__ import annotations

import math

import torch
from torch import nn


class Absolute(nn.Module):
    """Positions stand in the embedding (Vaswani et al. 2017, section 3.5; Devlin et al. 2018)."""

    def forward(self, query: torch.Tensor, keys: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """query: [B, H, T, D]; keys: S. Returns the query and a bias [.., T, S], or None for none."""
        return query, None


def sinusoids(length: int, dim: int) -> torch.Tensor:
    """PE[p, 2i] = sin(p / 10000^(2i/dim)), PE[p, 2i+1] = cos of the same (Vaswani et al. 2017, section 3.5).

    Returns [length, dim].
    """
    angle = torch.arange(length)[:, None] * torch.exp(
        -math.log(10000.0) * torch.arange(0, dim, 2, dtype=torch.float32) / dim
    )
    table = torch.empty(length, dim)
    table[:, 0::2] = angle.sin()
    table[:, 1::2] = angle.cos()[:, : dim // 2]
    return table
