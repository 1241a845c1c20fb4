"""More training rows by other words: some words of a row become others that a masked LM holds likely in their place.

R  rows   B  rows of which a place is masked   T  positions   V  types   K  candidates
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from lmab.data.building import settings
from lmab.data.collate import Collate
from lmab.rng import derive, philox, uniform
from lmab.types import BadInput, Example

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from lmab.data.segments import Row
    from lmab.types import Batch, Vocabulary

_BLOCK = 256  # rows that are worked on together


class Predict(Protocol):
    """A masked LM: what every type scores at places [B], flat over B * T. Returns [B, V]."""

    def __call__(self, batch: Batch, places: torch.Tensor) -> torch.Tensor: ...


@dataclass(frozen=True, kw_only=True)
class Replacement:
    """Every row, and copies of it in which words are replaced (Jiao et al. 2020, section 3.2 and algorithm 1).

    A word of a single piece is replaced with probability `rate` (p_t), by one of the `candidates` (K) likeliest whole
    words at its place when it alone is masked there, each as likely; it may be itself. `copies` (N_a) of a row are
    made, and every row has as many, so labels stay shared out as they were. As in the published code, all copies are of
    the row as it was; that code also leaves out words without letters and stop words, which the algorithm does not.

    Words of several pieces stay as they are: the paper takes their neighbours among GloVe's vectors, which are of
    another model, and several pieces could not be put in the place of others without another length. Special tokens,
    padding and labels stay too.
    """

    copies: int
    rate: float
    candidates: int
    seed: int

    def __post_init__(self) -> None:
        for name, least in (("copies", 1), ("candidates", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise BadInput(f"augment.{name}={getattr(self, name)} cannot work: give at least {least}.")
        if not 0 < self.rate <= 1:
            raise BadInput(
                f"augment.rate={self.rate} is the share of words to replace: give a number above 0, up to 1."
            )

    def chosen(self, example: Example, words: Vocabulary) -> tuple[np.ndarray, np.ndarray]:
        """[R, copies, T] bool: where a word is replaced; and there a number below K, that of its candidate.

        Both are functions of (seed, example, copy, place) alone: more copies leave the first ones as they were.
        """
        T = example.tokens.shape[1]
        counter = np.arange(T), example.document[:, None, None], np.arange(self.copies)[:, None], 0
        drawn = uniform(philox(counter, derive(self.seed, "augment"))[:2])  # [2, R, copies, T]
        picked = (drawn[1] * self.candidates).astype(np.int64)
        return (drawn[0] < self.rate) & single(example, words)[:, None], picked


@dataclass(frozen=True)
class Replacing:
    """A replacement and who predicts. name: of the one who does, which tells these rows from any others. opened: gives
    it, and is called only where rows are to be made. batch: masked rows at once; it changes no more than rounding."""

    how: Replacement
    name: str
    opened: Callable[[], Predict] = field(repr=False)
    batch: int

    @property
    def key(self) -> list[object]:
        """What the rows depend on beside those that are read."""
        return [settings(self.how), self.name]

    def __call__(self, rows: Iterable[Row], words: Vocabulary) -> Iterator[Row]:
        """Every row, and after it its copies."""
        predict, rows = self.opened(), iter(rows)
        while block := list(itertools.islice(rows, _BLOCK)):
            example = _example(block, words.pad)
            replaced, picked = self.how.chosen(example, words)
            row, place = np.nonzero(replaced.any(1))
            found = np.zeros((*example.tokens.shape, self.how.candidates), dtype=np.int64)
            found[row, place] = self._candidates(example, row, place, words, predict)
            other = np.take_along_axis(found[:, None], picked[..., None], axis=-1)[..., 0]
            tokens = np.where(replaced, other, example.tokens[:, None])
            for original, copies in zip(block, tokens, strict=True):
                yield original
                for copy in copies[:, : len(original.tokens)].tolist():
                    yield original._replace(tokens=copy)

    def _candidates(
        self, example: Example, row: np.ndarray, place: np.ndarray, words: Vocabulary, predict: Predict
    ) -> np.ndarray:
        """[N, K] the likeliest whole words at each of N places, by their numbers. row, place: [N]."""
        collate = Collate({}, words, 0)
        found = np.empty((len(row), self.how.candidates), dtype=np.int64)
        order = np.argsort(example.lengths[row], kind="stable")  # so that little padding is computed
        for start in range(0, len(row), self.batch):
            here = order[start : start + self.batch]
            part = Example(*(None if column is None else column[row[here]] for column in example))  # type: ignore[arg-type]
            tokens = part.tokens[:, : part.lengths.max()].copy()
            B, T = tokens.shape
            tokens[np.arange(B), place[here]] = words.mask
            scores = predict(collate(part._replace(tokens=tokens)), torch.from_numpy(np.arange(B) * T + place[here]))
            found[here] = likeliest(scores.float().cpu().numpy(), words, self.how.candidates)
        return found


def single(example: Example, words: Vocabulary) -> np.ndarray:
    """[R, T] bool: a token that is a whole word, as far as its row shows: ordinary, and neither goes on with the word
    before it nor is gone on with."""
    real = np.arange(example.tokens.shape[1]) < example.lengths[:, None]
    ordinary = real & ~words.special[example.tokens]
    inside = ordinary & words.continues[example.tokens]
    followed = np.pad(inside[:, 1:], ((0, 0), (0, 1)))
    return ordinary & ~inside & ~followed


def whole(words: Vocabulary) -> np.ndarray:
    """[V] bool: the types that can be a word by themselves."""
    return ~words.special & ~words.continues


def likeliest(scores: np.ndarray, words: Vocabulary, count: int) -> np.ndarray:
    """[B, count] the whole words with the highest scores [B, V], by their numbers."""
    allowed = np.where(whole(words), scores, -np.inf)
    return np.sort(np.argpartition(-allowed, count - 1, axis=1)[:, :count], axis=1)


def _example(block: list[Row], pad: int) -> Example:
    lengths = np.array([len(row.tokens) for row in block])
    tokens = np.full((len(block), lengths.max()), pad, dtype=np.int64)
    for line, row in zip(tokens, block, strict=True):
        line[: len(row.tokens)] = row.tokens
    return Example(
        tokens=tokens,
        lengths=lengths,
        second=np.array([row.second for row in block]),
        label=np.array([np.nan if row.label is None else row.label for row in block]),
        document=np.array([row.document for row in block]),
        number=np.arange(len(block)),
        epoch=np.zeros(len(block), dtype=np.int64),
    )
