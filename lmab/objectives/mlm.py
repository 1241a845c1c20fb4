"""Masked language modelling: BERT's denoising autoencoder (Devlin et al. 2018, section 3.1, task 1).

Some tokens are selected; of those most become [MASK], some a random token, the rest stay; all are predicted.
Static masks (BERT), a few copies of them, or a new mask in every epoch (RoBERTa, section 4.1) differ in one
integer. ALBERT's n-grams are runs of words that are selected together.

    B  rows   T  positions   N  longest n-gram
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from lmab.objectives.objective import TokenLoss
from lmab.rng import philox, uniform
from lmab.types import BadInput, Noised

if TYPE_CHECKING:
    from lmab.data.collate import Draws
    from lmab.types import Example, Vocabulary


def _share(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise BadInput(f"objective.mlm.{name}={value} is a share: give a number from 0 to 1.")


@lru_cache(maxsize=64)
def reaches(rate: float, ngram: int) -> np.ndarray:
    """The chances that what begins at a unit reaches more than m = 0, 1, .., N - 1 units.

    Returns [2, N]: first for a unit with others before it, then for one that begins a stretch: the row's first, or a
    special token.

    Let n-grams begin at every unit with probability a, on their own, and their length be n with probability
    p(n) = (1/n) / sum_k (1/k), k from 1 to N (Lan et al. 2019, section 4.1). A unit is left out if none of the
    n-grams that may begin at it or at the N - 1 units before it reaches it, so with S_m = P(n > m) the share of
    selected units is

        rate = 1 - prod_{m=0}^{N-1} (1 - a S_m),

    which grows with a from 0 to 1 and is solved for it by bisection. What begins a stretch takes the place of all
    that would stand before it too, so that its units are selected as often as any others: it reaches more than m
    with probability 1 - prod_{l=m}^{N-1} (1 - a S_l).
    """
    chances = 1 / np.arange(1, ngram + 1)
    tails = chances[::-1].cumsum()[::-1] / chances.sum()  # S_m
    low, high = (rate, rate) if ngram == 1 else (0.0, 1.0)
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if 1 - np.prod(1 - middle * tails) < rate else (low, middle)
    inner = low * tails
    first = inner.copy()
    for m in reversed(range(ngram - 1)):
        first[m] += first[m + 1] * (1 - inner[m])
    return np.stack([inner, first])


@dataclass(frozen=True, kw_only=True)
class Masking:
    """The noise. Every unit (a token, or a whole word) is selected with probability `rate`: on its own, or as part
    of an n-gram of at most `ngram` units. N-grams may overlap; none crosses a special token.

    mask, random: shares of the selected tokens that become [MASK] and a random ordinary token.
    whole_words: select words, with all their pieces. copies: how many different masks an example has; epoch e
    sees mask e modulo copies. None: a new one in every epoch. causal: each place sees itself and those before it,
    as in a language model that reads from left to right.
    """

    rate: float
    mask: float
    random: float
    whole_words: bool
    copies: int | None
    ngram: int = 1
    causal: bool = False

    def __post_init__(self) -> None:
        for name in ("rate", "mask", "random"):
            _share(name, getattr(self, name))
        if self.mask + self.random > 1:
            raise BadInput(
                f"objective.mlm.mask={self.mask} and objective.mlm.random={self.random} are shares of the same "
                f"tokens and exceed 1 together: lower random to {round(1 - self.mask, 6)}."
            )
        if self.copies is not None and self.copies < 1:
            raise BadInput(f"objective.mlm.copies={self.copies} masks nothing: give 1 or more, or null.")
        if self.ngram < 1:
            raise BadInput(f"objective.mlm.ngram={self.ngram} selects nothing: give 1 for single units, or more.")

    @property
    def draws(self) -> Draws:
        return "once" if self.copies == 1 else "anew"

    def __call__(self, example: Example, vocabulary: Vocabulary, key: int) -> Noised:
        T = example.tokens.shape[1]
        epoch = example.epoch if self.copies is None else example.epoch % self.copies
        words = philox((np.arange(T), example.number[:, None], epoch[:, None], 0), key)  # [4, B, T]
        drawn = uniform(words[0])
        eligible = ~vocabulary.special[example.tokens]
        start = np.broadcast_to(np.arange(T), eligible.shape)
        if self.whole_words:
            # Every piece takes the draw of the piece that begins its word.
            begins = ~vocabulary.continues[example.tokens] | ~eligible
            start = np.maximum.accumulate(np.where(begins, start, 0), axis=1)
            drawn = np.take_along_axis(drawn, start, axis=1)
        selected = eligible & self._reached(drawn, start, eligible)
        fate = uniform(words[1])
        ordinary = np.flatnonzero(~vocabulary.special)
        replacement = ordinary[(uniform(words[2]) * len(ordinary)).astype(np.int64)]
        tokens = np.where(selected & (fate < self.mask), vocabulary.mask, example.tokens)
        swapped = selected & (fate >= self.mask) & (fate < self.mask + self.random)
        tokens = np.where(swapped, replacement, tokens)
        places = np.flatnonzero(selected)
        visible = np.tri(T, dtype=bool)[None] if self.causal else None
        return Noised(tokens, places, example.tokens.reshape(-1)[places], visible)

    def _reached(self, drawn: np.ndarray, start: np.ndarray, eligible: np.ndarray) -> np.ndarray:
        """[B, T] bool: the tokens that an n-gram reaches. drawn: a number in [0, 1) for each unit. start: where the
        unit of a token begins. eligible: tokens that are not special."""
        before = np.maximum(start - 1, 0)  # the last token of the unit before
        first = (start == 0) | ~np.take_along_axis(eligible, start, 1)
        # One number decides both whether an n-gram begins and how long it is, since what is rarer is also longer.
        reach = (drawn[..., None] < reaches(self.rate, self.ngram)[first.astype(np.int64)]).sum(-1)
        left = reach
        for _ in range(self.ngram - 1):
            left = np.where(first, reach, np.maximum(reach, np.take_along_axis(left, before, 1) - 1))
        return left > 0

    def blind_nats(self, likely: np.ndarray, held: np.ndarray) -> float:
        """Nats a target of whoever sees no context, only what is read at the place itself: on this plateau a model
        sits until it learns from context.

        likely, held: [V] shares of the types in training and in held-out text, 0 for special ones. A type w that is
        read there stands as it was with probability k p(w) / (k p(w) + r / V), where k and r are the shares of
        targets that stay and that are drawn from V ordinary types; with what is left, all types are as likely as ever.
        """
        p, q = likely[likely > 0], held[likely > 0]
        V, r, k = len(p), self.random, 1 - self.mask - self.random
        unseen = -np.log(p)
        if k <= 0:
            return float(q @ unseen)  # what is read tells nothing
        stays = k * p / (k * p + r / V)
        kept = -np.log(stays + (1 - stays) * p)
        if r == 0:
            return float(q @ ((1 - k) * unseen + k * kept))
        # Drawn anew: another type in nearly all cases, the same one by chance.
        other = -np.log1p(-stays).mean() + unseen
        drawn = other + (kept - unseen + np.log1p(-stays)) / V
        return float(q @ (self.mask * unseen + k * kept + r * drawn))

    def describe(self, example: Example, vocabulary: Vocabulary, key: int) -> dict[str, Any]:
        """What the noise did to these examples: the realised rate and split, and how much of the masks of two
        epochs is the same (targets in both over targets in either)."""
        now = self(example._replace(epoch=np.zeros_like(example.epoch)), vocabulary, key)
        then = self(example._replace(epoch=np.ones_like(example.epoch)), vocabulary, key)
        read = now.tokens.reshape(-1)[now.places]
        n = max(1, len(now.places))
        masked, kept = int((read == vocabulary.mask).sum()), int((read == now.answers).sum())
        both, either = np.intersect1d(now.places, then.places), np.union1d(now.places, then.places)
        return {
            "masks": "dynamic" if self.copies is None else "static",
            "copies": self.copies,
            "rate": len(now.places) / max(1, int((~vocabulary.special[example.tokens]).sum())),
            "mask": masked / n,
            "random": (n - masked - kept) / n if len(now.places) else 0.0,
            "kept": kept / n,
            "overlap": len(both) / max(1, len(either)),
        }


class MaskedLM(TokenLoss):
    """The loss: cross entropy at the target places.

    `copies` does not change what it measures, since held-out text is always read at epoch 0; nor does `causal`,
    which asks the same of the same text and lets the model see less of it.
    """

    name = "mlm"
    redefines: ClassVar[tuple[str, ...]] = ("rate", "mask", "random", "whole_words", "ngram")

    def __init__(
        self,
        *,
        rate: float,
        mask: float,
        random: float,
        whole_words: bool,
        copies: int | None,
        weight: float,
        ngram: int = 1,
        causal: bool = False,
    ) -> None:
        if rate == 0:
            raise BadInput("objective.mlm.rate=0 selects nothing to learn from: give a share above 0, such as 0.15.")
        noise = Masking(
            rate=rate,
            mask=mask,
            random=random,
            whole_words=whole_words,
            copies=copies,
            ngram=ngram,
            causal=causal,
        )
        super().__init__(noise, weight)
