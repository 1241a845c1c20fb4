"""A stack of layers, and the map that says which depth uses which weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from lmab.types import View


class Encoder(nn.Module):
    """Runs layers one after another.

    layers: the different layers. order: for every depth the number of its layer; None uses each once.
    """

    def __init__(self, layers: Sequence[nn.Module], order: Sequence[int] | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.order = tuple(range(len(layers)) if order is None else order)

    def forward(self, hidden: torch.Tensor, view: View, places: torch.Tensor | None = None) -> torch.Tensor:
        """hidden: [B, T, D]. Returns [B, T, D], or [N, D] at `places` [N], flat over B * T.

        Nobody reads the last layer's other places, and behind its attention they cost more than half of it.
        """
        *below, last = self.order
        for number in below:
            hidden = self.layers[number](hidden, view)
        return self.layers[last](hidden, view, places)
