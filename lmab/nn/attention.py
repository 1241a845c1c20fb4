"""The one attention core: softmax(Q K^T / sqrt(d) + bias) V (Vaswani et al. 2017, section 3.2).

B  rows   T  positions   D  width   H  heads
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import nn

from lmab.types import BadInput

if TYPE_CHECKING:
    import torch

    from lmab.types import View


class Attention(nn.Module):
    """Multi-head self-attention with one projection for query, key and value.

    dropout: of the attention weights. position: the scheme that answers (query, additive bias).
    """

    def __init__(self, *, dim: int, heads: int, dropout: float, position: nn.Module) -> None:
        super().__init__()
        if dim % heads:
            near = sorted({dim // heads * heads, -(-dim // heads) * heads} - {0})
            raise BadInput(
                f"dim={dim} is not divisible by heads={heads}: the nearest {'is' if len(near) == 1 else 'are'} "
                f"dim={' and dim='.join(map(str, near))}."
            )
        self.heads, self.dropout = heads, dropout
        self.position = position
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, hidden: torch.Tensor, view: View, places: torch.Tensor | None = None) -> torch.Tensor:
        """hidden: [B, T, D]. Returns [B, T, D], or [N, D] at `places` [N], flat over B * T."""
        B, T, D = hidden.shape
        query, key, value = self.qkv(hidden).view(B, T, 3, self.heads, D // self.heads).unbind(2)
        query, bias = self.position(query.transpose(1, 2), T)  # [B, H, T, D / H]
        mask = view.visible
        if bias is not None:
            mask = bias if mask is None else bias.masked_fill(~mask, float("-inf"))
        mixed = F.scaled_dot_product_attention(
            query,
            key.transpose(1, 2),
            value.transpose(1, 2),
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
        )
        mixed = mixed.transpose(1, 2).reshape(B, T, D)
        return self.out(mixed if places is None else mixed.flatten(0, 1).index_select(0, places))
