"""Permutation language modelling: tokens are predicted one after another in an order that is drawn (Yang et al.
2019, sections 2.2 and 2.3, and appendix A).

paper               here
K                   k
z_t <= c            the non-targets, first in the order
z_t > c             the targets
h, g                content and query stream: `visible` and `query_visible`

    B  rows   T  positions   P  queries in a row   W  windows
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from lmab.objectives.objective import TokenLoss
from lmab.rng import philox, uniform
from lmab.types import BadInput, Noised

if TYPE_CHECKING:
    from lmab.data.collate import Draws
    from lmab.types import Example, Vocabulary


@dataclass(frozen=True, kw_only=True)
class Permutation:
    """Draws the targets, one in `k` ordinary tokens, and the order in which they are predicted. The text stays.

    Everybody sees the non-targets, and they see each other alone. A target is seen by those after it in the order;
    its content stream sees it too, its query stream does not.

    span: targets are runs of L tokens in windows of k L, with L drawn for each window from 1 to `span`.
    """

    k: int
    span: int

    @property
    def draws(self) -> Draws:
        return "anew"

    def __post_init__(self) -> None:
        for name in ("k", "span"):
            if getattr(self, name) < 1:
                raise BadInput(f"objective.plm.{name}={getattr(self, name)} selects nothing: give 1 or more.")

    def __call__(self, example: Example, vocabulary: Vocabulary, key: int) -> Noised:
        T = example.tokens.shape[1]
        targets = self._spans(example, key) & ~vocabulary.special[example.tokens]
        drawn = philox((np.arange(T), example.number[:, None], example.epoch[:, None], 0), key)[0]
        order = np.argsort(np.argsort(drawn, axis=1, kind="stable"), axis=1)
        order = np.where(targets, order, -1)  # [B, T]; the non-targets come first, all at once
        row, place = np.nonzero(targets)
        counts = targets.sum(1)
        slot = np.arange(len(row)) - np.repeat(counts.cumsum() - counts, counts)
        queries = np.full((len(targets), self.queries(T)), -1)
        queries[row, slot] = place
        asking = np.full_like(queries, -1)  # an unused query comes before everybody, and sees nobody
        asking[row, slot] = order[row, place]
        places = row * T + place
        return Noised(
            tokens=example.tokens,
            places=places,
            answers=example.tokens.reshape(-1)[places],
            visible=order[:, None] <= order[:, :, None],
            queries=queries,
            query_visible=order[:, None] < asking[:, :, None],
        )

    def queries(self, width: int) -> int:
        """P: the most targets that a row of `width` positions can have. At both ends stands at most a window of
        which no more than the run is seen; in the windows between one position in k is a target."""
        ends = min(width, 2 * self.span)
        return ends + (width - ends) // self.k

    def _spans(self, example: Example, key: int) -> np.ndarray:
        """[B, T] bool: positions within a run.

        The windows follow one another as if the row were cut out of an endless text. A cut falls into a window as
        often as the window is long, so the first is drawn with a probability in proportion to L, and begins
        anywhere up to its length before the row: then every position is in a run with probability 1 / k exactly.
        """
        B, T = example.tokens.shape
        window = np.arange(-(-T // self.k) + 1)  # each takes up k positions or more, the first at least one
        words = uniform(philox((window, example.number[:, None], example.epoch[:, None], 1), key))  # [4, B, W]
        length = 1 + (words[0] * self.span).astype(np.int64)
        shares = np.arange(1, self.span + 1).cumsum()
        length[:, 0] = 1 + np.searchsorted(shares, words[0, :, 0] * shares[-1], side="right")
        begins = (self.k * length).cumsum(1) - self.k * length
        begins -= (words[1, :, :1] * self.k * length[:, :1]).astype(np.int64)
        start = begins + (words[2] * ((self.k - 1) * length + 1)).astype(np.int64)
        edges = np.zeros((B, T + 1), dtype=np.int64)
        row = np.arange(B)[:, None]
        np.add.at(edges, (row, start.clip(0, T)), 1)
        np.add.at(edges, (row, (start + length).clip(0, T)), -1)
        return edges.cumsum(1)[:, :T] > 0

    def describe(self, example: Example, vocabulary: Vocabulary, key: int) -> dict[str, Any]:
        """What the noise did to these examples: the share of the ordinary tokens that are targets, and how many of
        them stand side by side."""
        T = example.tokens.shape[1]
        places = self(example, vocabulary, key).places
        runs = int(((np.diff(places, prepend=-2) > 1) | (places % T == 0)).sum())
        return {
            "rate": len(places) / max(1, int((~vocabulary.special[example.tokens]).sum())),
            "span": len(places) / max(1, runs),
        }


class PermutationLM(TokenLoss):
    """The loss: cross entropy of the targets in the query stream, which knows their places and not what stands
    there."""

    name = "plm"
    redefines: ClassVar[tuple[str, ...]] = ("k", "span")
    second_stream = True

    def __init__(self, *, k: int, span: int, weight: float) -> None:
        super().__init__(Permutation(k=k, span=span), weight)
