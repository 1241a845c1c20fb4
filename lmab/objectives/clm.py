"""Causal language modelling: every place predicts the token that follows (Al-Rfou et al. 2018, section 2; Dai et
al. 2019, section 3).

    B  rows   T  positions
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from lmab.objectives.objective import TokenLoss
from lmab.types import Noised

if TYPE_CHECKING:
    from lmab.data.collate import Draws
    from lmab.types import Example, Vocabulary


@dataclass(frozen=True, kw_only=True)
class NextToken:
    """Not a noise but a view: the text stays as it is, and each place sees itself and those before it.

    The last place of a row predicts what its stream goes on with, where there is a stream that goes on. Only
    ordinary tokens are predicted: special ones are a matter of the format, and left out of the unigram entropy
    that the loss is held against.

    half: only places in the second half of a row are targets, which all have half a row before them (Al-Rfou et al.
    2018; Dai et al. 2019, table 6).
    """

    half: bool

    @property
    def draws(self) -> Draws:
        return "never"

    def __call__(self, example: Example, vocabulary: Vocabulary, key: int) -> Noised:
        T = example.tokens.shape[1]
        following = np.full_like(example.tokens, vocabulary.pad)
        following[:, :-1] = example.tokens[:, 1:]
        if example.ahead is not None:
            goes_on = np.flatnonzero(example.ahead >= 0)
            following[goes_on, example.lengths[goes_on] - 1] = example.ahead[goes_on]
        asks = ~vocabulary.special[following]
        if self.half:
            asks &= 2 * np.arange(T) >= example.lengths[:, None]
        places = np.flatnonzero(asks)
        visible = np.tri(T, dtype=bool)[None]
        return Noised(example.tokens, places, following.reshape(-1)[places], visible)

    def describe(self, example: Example, vocabulary: Vocabulary, key: int) -> dict[str, Any]:
        """The share of the ordinary tokens that are predicted."""
        places = self(example, vocabulary, key).places
        return {"rate": len(places) / max(1, int((~vocabulary.special[example.tokens]).sum()))}


class CausalLM(TokenLoss):
    """The loss: cross entropy of the token that follows. Rows that run backwards predict the one before."""

    name = "clm"
    redefines: ClassVar[tuple[str, ...]] = ("half",)
    whole_text: ClassVar[bool] = True  # unless held-out text is read by halves

    def __init__(self, *, half: bool, weight: float) -> None:
        super().__init__(NextToken(half=half), weight)
