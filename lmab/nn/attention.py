"""The one attention core: softmax(Q K^T / sqrt(d) + bias) V (Vaswani et al. 2017, section 3.2).

B  rows   Q  queries   S  keys   D  width   H  heads
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import nn

from lmab.types import BadInput

if TYPE_CHECKING:
    from torch import Tensor

    from lmab.nn.sight import Sight


def width(dim: int, heads: int) -> int:
    """Of a head. BadInput: heads that do not divide the width."""
    if dim % heads:
        near = sorted({dim // heads * heads, -(-dim // heads) * heads} - {0})
        raise BadInput(
            f"dim={dim} is not divisible by heads={heads}: the nearest {'is' if len(near) == 1 else 'are'} "
            f"dim={' and dim='.join(map(str, near))}."
        )
    return dim // heads


class Attention(nn.Module):
    """Multi-head attention with one projection for query, key and value.

    dropout: of the attention weights. position: the scheme that answers (query, additive bias). bias: of both
    projections.
    """

    def __init__(self, *, dim: int, heads: int, dropout: float, position: nn.Module, bias: bool = True) -> None:
        super().__init__()
        width(dim, heads)
        self.heads, self.dropout = heads, dropout
        self.position = position
        self.qkv = nn.Linear(dim, 3 * dim, bias=bias)
        self.out = nn.Linear(dim, dim, bias=bias)

    def forward(
        self,
        hidden: Tensor,
        sight: Sight,
        source: Tensor | None = None,
        places: Tensor | None = None,
        scores: list[Tensor] | None = None,
    ) -> Tensor:
        """hidden: [B, Q, D], what asks; source: [B, S, D], what is looked at, None for the same. Returns
        [B, Q, D], or [N, D] at `places` [N], flat over B * Q. A query that sees nothing gets zeros.

        scores: where Q K^T / sqrt(d) + bias of every query and key is added, [B, H, Q, S], also of what may not be
        seen; None for nowhere, and nothing of it is computed.
        """
        B, Q, D = hidden.shape
        if source is None:
            query, key, value = self.qkv(hidden).view(B, Q, 3, self.heads, -1).unbind(2)
        else:
            weight, bias = self.qkv.weight, self.qkv.bias
            query = F.linear(hidden, weight[:D], None if bias is None else bias[:D]).view(B, Q, self.heads, -1)
            both = F.linear(source, weight[D:], None if bias is None else bias[D:])
            key, value = both.view(B, source.shape[1], 2, self.heads, -1).unbind(2)
        query, bias = self.position(query.transpose(1, 2), sight)  # [B, H, Q, D / H]
        if scores is not None:
            products = query @ key.permute(0, 2, 3, 1) / math.sqrt(query.shape[-1])
            scores.append(products if bias is None else products + bias)
        mask = sight.mask
        if bias is not None:
            mask = bias if mask is None else bias.masked_fill(~mask, float("-inf"))
        mixed = F.scaled_dot_product_attention(
            query,
            key.transpose(1, 2),
            value.transpose(1, 2),
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
        )
        mixed = mixed.transpose(1, 2).reshape(B, Q, D)
        return self.out(mixed if places is None else mixed.flatten(0, 1).index_select(0, places))
