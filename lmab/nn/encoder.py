"""A stack of layers, the map that says which depth uses which weights, and what is remembered of each depth."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import nn

from lmab.nn.layer import dropped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from lmab.nn.layer import Layer
    from lmab.nn.sight import Sight


class Passed(NamedTuple):
    """What came out of the stack."""

    hidden: Tensor  # [B, T, D], or [N, D] at the places that were asked for
    second: Tensor | None  # [B, P, D] the second stream
    memory: tuple[Tensor, ...]  # for every depth [B, M, D], without gradients
    layers: tuple[Tensor, ...]  # what every depth read, [B, T, D]
    attention: tuple[Tensor, ...]  # the scores of every depth, [B, H, T, S]


class Encoder(nn.Module):
    """Runs layers one after another.

    layers: the different layers. order: for every depth the number of its layer; None uses each once. dropout: on
    the last hidden states.
    """

    def __init__(
        self, layers: Sequence[nn.Module], order: Sequence[int] | None = None, *, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(layers)
        self.order = tuple(range(len(layers)) if order is None else order)

    @property
    def heads(self) -> tuple[int, ...]:
        """Of every depth's attention."""
        return tuple(cast("Layer", self.layers[number]).attention.heads for number in self.order)

    def forward(
        self,
        hidden: Tensor,
        sight: Sight,
        places: Tensor | None = None,
        *,
        memory: Sequence[Tensor] = (),
        remember: int = 0,
        keep: bool = False,
        attention: bool = False,
    ) -> Passed:
        """hidden: [B, Q, D], the content's T places first and then the second stream's.

        places: [N] where the last layer's content is wanted, flat over B * T; None for everywhere. Nobody reads
        its other places, and behind its attention they cost more than half of it. memory: what each depth reads
        before the content, [B, M, D]. remember: places of memory to return. keep: return what every depth read.
        attention: return the scores of the content's queries before the softmax, at all places.

        The two streams ask the same keys and use the same weights, so they are the queries of one call (Yang et
        al. 2019, section 2.3); only the content is looked at.
        """
        T = sight.content
        remembered, kept = [], []
        second: Tensor | None = None
        scores: list[Tensor] | None = [] if attention else None
        for depth, number in enumerate(self.order):
            layer, content = self.layers[number], hidden[:, :T]
            source = torch.cat([memory[depth], content], 1) if memory else content
            if remember:
                # A copy: a part of `source` would keep all of it, here and in every checkpoint.
                remembered.append(source[:, -remember:].detach().clone())
            if keep:
                kept.append(content)
            if depth < len(self.order) - 1:
                itself = not memory and sight.queries is None  # what asks is all that is looked at
                hidden = layer(hidden, sight, None if itself else source, scores=scores)
                continue
            # The second stream first, and the content at every place: what one objective asks, or that it asks
            # nothing, changes no dropout of another.
            if sight.queries is not None:
                second = self.dropout(layer(hidden[:, T:], sight.of("second"), source))
            if places is not None and not len(places) and not attention:
                hidden = hidden.new_empty(0, hidden.shape[-1])
            else:
                hidden = layer(content, sight.of("content"), source if memory else None, places, scores)
                hidden = dropped(self.dropout, hidden, places, content.shape)
        looked = tuple(depth[:, :, :T] for depth in scores or ())
        return Passed(hidden, second, tuple(remembered), tuple(kept), looked)
