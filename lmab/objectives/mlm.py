"""Masked language modelling: BERT's denoising autoencoder (Devlin et al. 2018, section 3.1, task 1).

Some tokens are selected; of those most become [MASK], some a random token, the rest stay; all are predicted.
Static masks (BERT), a few copies of them, or a new mask in every epoch (RoBERTa, section 4.1) differ in one
integer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from torch import nn

from lmab.nn.cross_entropy import cross_entropy
from lmab.rng import philox, uniform
from lmab.types import BadInput, Noised, Outcome

if TYPE_CHECKING:
    from lmab.nn.network import Network
    from lmab.types import Batch, Encoded, Example, Vocabulary


def _share(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise BadInput(f"objective.mlm.{name}={value} is a share: give a number from 0 to 1.")


@dataclass(frozen=True, kw_only=True)
class Masking:
    """The noise. Every unit (a token, or a whole word) is selected on its own with probability `rate`.

    mask, random: shares of the selected tokens that become [MASK] and a random ordinary token.
    whole_words: select words, with all their pieces. copies: how many different masks an example has; epoch e
    sees mask e modulo copies. None: a new one in every epoch.
    """

    rate: float
    mask: float
    random: float
    whole_words: bool
    copies: int | None

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

    def __call__(self, example: Example, vocabulary: Vocabulary, key: int) -> Noised:
        T = example.tokens.shape[1]
        epoch = example.epoch if self.copies is None else example.epoch % self.copies
        words = philox((np.arange(T), example.number[:, None], epoch[:, None], 0), key)  # [4, B, T]
        drawn = uniform(words[0])
        eligible = ~vocabulary.special[example.tokens]
        if self.whole_words:
            # Every piece takes the draw of the piece that begins its word.
            begins = ~vocabulary.continues[example.tokens] | ~eligible
            start = np.maximum.accumulate(np.where(begins, np.arange(T), 0), axis=1)
            drawn = np.take_along_axis(drawn, start, axis=1)
        selected = eligible & (drawn < self.rate)
        fate = uniform(words[1])
        ordinary = np.flatnonzero(~vocabulary.special)
        replacement = ordinary[(uniform(words[2]) * len(ordinary)).astype(np.int64)]
        tokens = np.where(selected & (fate < self.mask), vocabulary.mask, example.tokens)
        swapped = selected & (fate >= self.mask) & (fate < self.mask + self.random)
        tokens = np.where(swapped, replacement, tokens)
        places = np.flatnonzero(selected)
        return Noised(tokens, places, example.tokens.reshape(-1)[places])

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


class MaskedLM(nn.Module):
    """The loss: cross entropy at the target places, in nats, through the network's token head.

    `redefines` are the knobs that change what the loss measures; arms that differ in one cannot be ranked by
    it. `copies` is not among them, since held-out text is always read at epoch 0.
    """

    redefines: ClassVar[tuple[str, ...]] = ("rate", "mask", "random", "whole_words")
    nats_a_token: ClassVar[bool] = True  # so it can be held against the unigram entropy

    def __init__(
        self,
        *,
        rate: float,
        mask: float,
        random: float,
        whole_words: bool,
        copies: int | None,
        weight: float,
    ) -> None:
        super().__init__()
        if rate == 0:
            raise BadInput("objective.mlm.rate=0 selects nothing to learn from: give a share above 0, such as 0.15.")
        if not 0 <= weight < math.inf:
            raise BadInput(f"objective.mlm.weight={weight} cannot work: give a finite number from 0 up.")
        self.noise = Masking(rate=rate, mask=mask, random=random, whole_words=whole_words, copies=copies)
        self.weight = weight

    def forward(self, network: Network, encoded: Encoded, batch: Batch) -> Outcome:
        targets = batch.targets["mlm"]
        logits = network.token_logits(encoded.at(targets.places))  # [N, V]
        losses, hits = cross_entropy(logits, targets.answers)
        return Outcome(losses, targets.places, hits)
