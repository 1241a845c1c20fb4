"""Who sees whom at which distance in one forward pass, worked out once for all layers.

B  rows          M  places of memory        S = M + T  keys
T  content       P  second stream           Q = T + P  queries, the content first
W = S + T - 1    distances between a query and a key, from S - 1 (far behind) down to -(T - 1) (ahead)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from lmab.types import Batch


@dataclass(frozen=True)
class Sight:
    """What attention and its position scheme need to know beside the hidden states."""

    content: int  # T
    memory: int  # M
    mask: Tensor | None = None  # [B or 1, 1, 1 or Q, S] bool; None: every query sees every key
    queries: Tensor | None = None  # [B, P] places of the second stream
    backward: Tensor | None = None  # [B] bool: the row runs from the end of the text to its start
    differs: Tensor | None = None  # [B, Q, S] bool: query and key stand in different segments
    encoded: Tensor | None = None  # [W, D] or [B, W, D]: the distances as vectors
    part: str = "both"  # which queries are at hand: content, second or both

    def of(self, part: str) -> Sight:
        """The same for one of the two streams alone."""
        if self.queries is None or part == self.part:
            return self
        rows = slice(0, self.content) if part == "content" else slice(self.content, None)
        return replace(
            self,
            mask=self.mask if self.mask is None or self.mask.shape[2] == 1 else self.mask[:, :, rows],
            differs=None if self.differs is None else self.differs[:, rows],
            part=part,
        )

    def distances(self, device: torch.device) -> Tensor:
        """[W], or [B, W] where some rows run backwards: how far a key lies behind a query in the text."""
        keys = self.memory + self.content
        behind = torch.arange(keys - 1, -self.content, -1, device=device)
        if self.backward is None:
            return behind
        return torch.where(self.backward[:, None], -behind, behind)

    def by_key(self, scores: Tensor) -> Tensor:
        """Scores of every query for every distance [.., Q, W] to scores for every key [.., Q, S].

        Query i stands M + i places from the first key, so key j is for it the distance number T - 1 - i + j.
        """
        T, S = self.content, self.memory + self.content
        parts = []
        if self.part != "second":
            rows = scores[..., :T, :].flatten(-2)  # T x W numbers, among which those of query i begin at T - 1 - i
            parts.append(rows[..., T - 1 : -1].unflatten(-1, (T, -1))[..., :S] if T > 1 else scores[..., :1, :])
        if self.queries is not None and self.part != "content":
            number = (T - 1 - self.queries.clamp(min=0))[..., None] + torch.arange(S, device=scores.device)
            number = number[:, None].expand(-1, scores.shape[1], -1, -1)  # [B, H, P, S]
            parts.append(scores[..., -self.queries.shape[1] :, :].gather(-1, number))
        return parts[0] if len(parts) == 1 else torch.cat(parts, -2)


def look(batch: Batch, *, memory: int, reach: int | None = None) -> Sight:
    """The sight of a batch.

    memory: places of memory in front of the content, M. reach: no query sees further back than the last `reach`
    keys, its own place among them; None for all there are.
    """
    view, (B, T) = batch.view, batch.tokens.shape
    device = batch.tokens.device
    P = 0 if view.queries is None else view.queries.shape[1]
    hides = memory and view.past is not None
    mask = view.visible
    if P or hides or reach is not None or (memory and mask is not None):
        mask = torch.ones(1, 1, 1, T, dtype=torch.bool, device=device) if mask is None else mask
        if view.query_visible is not None:
            rows = max(B, mask.shape[0])
            mask = torch.cat([mask.expand(rows, 1, T, T), view.query_visible.expand(rows, 1, P, T)], 2)
        if memory:
            old = torch.arange(memory, 0, -1, device=device)  # how far before the row each place lies
            seen = torch.ones(1, 1, 1, memory, dtype=torch.bool, device=device)
            if view.past is not None:
                seen = (old <= view.past[:, None])[:, None, None]
            rows = max(mask.shape[0], seen.shape[0])
            mask = torch.cat([seen.expand(rows, 1, mask.shape[2], memory), mask.expand(rows, 1, -1, -1)], 3)
        if reach is not None:
            place = torch.arange(T, device=device)[None]
            if view.queries is not None:
                place = torch.cat([place.expand(B, T), view.queries], 1)
            behind = memory + place[..., None] - torch.arange(memory + T, device=device)  # [B or 1, Q, S]
            mask = mask & (behind < reach)[:, None]
    differs = None
    if batch.segments is not None:
        asked = batch.segments
        if view.queries is not None:
            asked = torch.cat([asked, asked.gather(1, view.queries.clamp(min=0))], 1)
        keys = torch.cat([asked.new_zeros(B, memory), batch.segments], 1)
        differs = asked[:, :, None] != keys[:, None]
    return Sight(T, memory, mask, view.queries, view.backward, differs)
