"""Position schemes: what attention is told about where things stand.

A scheme is injected into attention and answers a query with (query, additive bias): absolute positions were
added to the embedding and change neither; a relative scheme shifts the query and returns a bias, already divided
by sqrt(D) as the products of queries and keys will be.

    B  rows   H  heads   Q  queries   S  keys   W  distances   D  width of a head
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from torch import Tensor

    from lmab.nn.sight import Sight


class Absolute(nn.Module):
    """Positions stand in the embedding (Vaswani et al. 2017, section 3.5; Devlin et al. 2018)."""

    def forward(self, query: Tensor, sight: Sight) -> tuple[Tensor, Tensor | None]:
        """query: [B, H, Q, D]. Returns the query and a bias [B, H, Q, S], or None for none."""
        return query, None


class Relative(nn.Module):
    """Distances as sinusoids, with biases that stand in for the query's own place (Dai et al. 2019, section 3.3):
    A_ij = (q_i + u) k_j + (q_i + v) W_r r_(i-j); for XLNet also (q_i + s) e_same or e_different, whether the two
    stand in one segment (Yang et al. 2019, section 2.5).

    u, v: [H, D], handed in so that layers may share them. segments: learn s and e.
    """

    def __init__(self, *, dim: int, u: nn.Parameter, v: nn.Parameter, segments: bool = False) -> None:
        super().__init__()
        self.u, self.v = u, v
        self.project = nn.Linear(dim, dim, bias=False)
        self.s = nn.Parameter(torch.empty_like(u)) if segments else None
        self.kinds = nn.Parameter(torch.empty(2, *u.shape)) if segments else None  # same, different

    def forward(self, query: Tensor, sight: Sight) -> tuple[Tensor, Tensor | None]:
        """query: [B, H, Q, D]. Returns the shifted query and a bias [B, H, Q, S]."""
        assert sight.encoded is not None
        heads, width = self.u.shape
        keys = self.project(sight.encoded).unflatten(-1, (heads, width)).transpose(-3, -2)  # [.., H, W, D]
        bias = sight.by_key((query + self.v[:, None]) @ keys.transpose(-1, -2))
        if self.s is not None and self.kinds is not None and sight.differs is not None:
            kinds = (query + self.s[:, None]) @ self.kinds.permute(1, 2, 0)  # [B, H, Q, 2]
            bias = bias + torch.where(sight.differs[:, None], kinds[..., 1:], kinds[..., :1])
        return query + self.u[:, None], bias / math.sqrt(width)


class Shaw(nn.Module):
    """A learned vector for every distance, those further away than `length` as one: A_ij = q_i (k_j + a_(i-j))
    (Shaw et al. 2018, section 3.2, keys only, as Dai et al. 2019 compare with)."""

    def __init__(self, *, heads: int, width: int, length: int) -> None:
        super().__init__()
        self.length = length
        self.vectors = nn.Parameter(torch.empty(2 * length + 1, heads, width))

    def forward(self, query: Tensor, sight: Sight) -> tuple[Tensor, Tensor | None]:
        """query: [B, H, Q, D]. Returns the query and a bias [B, H, Q, S]."""
        number = sight.distances(query.device).clamp(-self.length, self.length) + self.length
        keys = self.vectors[number].transpose(-3, -2)  # [.., H, W, D]
        return query, sight.by_key(query @ keys.transpose(-1, -2)) / math.sqrt(query.shape[-1])


class Distances(nn.Module):
    """Distances as sinusoids, made once for all layers: sines in the first half, cosines in the second, as in the
    published code of Transformer-XL and XLNet.

    clamp: further away than this counts as this; None for no bound. dropout: on the vectors.
    """

    def __init__(self, *, dim: int, clamp: int | None, dropout: float) -> None:
        super().__init__()
        self.dim, self.clamp = dim, clamp
        self.dropout = nn.Dropout(dropout)

    def forward(self, sight: Sight, device: torch.device) -> Tensor:
        """Returns [W, dim], or [B, W, dim] where rows run backwards."""
        behind = sight.distances(device)
        if self.clamp is not None:
            behind = behind.clamp(-self.clamp, self.clamp)
        angle = behind[..., None] * _frequencies(self.dim, device)
        return self.dropout(torch.cat([angle.sin(), angle.cos()], -1))


def _frequencies(dim: int, device: torch.device | None = None) -> Tensor:
    return torch.exp(-math.log(10000.0) * torch.arange(0, dim, 2, dtype=torch.float32, device=device) / dim)


def sinusoids(length: int, dim: int) -> Tensor:
    """PE[p, 2i] = sin(p / 10000^(2i/dim)), PE[p, 2i+1] = cos of the same (Vaswani et al. 2017, section 3.5).

    Returns [length, dim].
    """
    angle = torch.arange(length)[:, None] * _frequencies(dim)
    table = torch.empty(length, dim)
    table[:, 0::2] = angle.sin()
    table[:, 1::2] = angle.cos()[:, : dim // 2]
    return table
