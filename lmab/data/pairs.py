"""Rows of two segments, and whether the second follows the first (Devlin et al. 2018, A.2; Lan et al. 2019, 3.1)."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

import numpy as np

from lmab.data.segments import Row, roomy
from lmab.rng import derive, philox, uniform
from lmab.types import BadInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lmab.data.segments import Document
    from lmab.types import Vocabulary

SPECIAL = 3  # [CLS] and two [SEP]


class _Text(NamedTuple):
    """Documents as flat arrays, small enough to be held while others are drawn from them. None is empty, and no
    sentence is."""

    tokens: np.ndarray  # int32
    sentences: np.ndarray  # [sentences + 1] where each begins in `tokens`
    documents: np.ndarray  # [documents + 1] where each begins in `sentences`
    numbers: np.ndarray  # [documents] as the corpus counts


def _gathered(documents: Iterable[Document]) -> _Text:
    tokens, lengths, counts, numbers = array("i"), array("q", [0]), array("q", [0]), array("q")
    for number, sentences in documents:
        some = [sentence for sentence in sentences if sentence]
        if some:
            for sentence in some:
                tokens.extend(sentence)
                lengths.append(len(sentence))
            counts.append(len(some))
            numbers.append(number)
    return _Text(np.array(tokens), np.cumsum(lengths), np.cumsum(counts), np.array(numbers))


def kept(a: np.ndarray, b: np.ndarray, room: int) -> tuple[np.ndarray, np.ndarray]:
    """How much is left of pairs of these lengths when tokens are taken one by one from the longer segment, of two
    equal ones from the second, until both together fit into `room`."""
    half = -(-room // 2)
    left = np.where(a + b > room, np.minimum(a, np.maximum(room - b, half)), a)
    return left, np.minimum(b, room - left)


@dataclass(frozen=True, kw_only=True)
class _Pairs:
    """What both formats share. What is random is a function of (seed, document, copy, pair)."""

    length: int
    negatives: Literal["random", "swap"] | None
    copies: int
    last: bool
    seed: int
    contiguous: ClassVar[bool] = False
    joins: ClassVar[bool]  # a single sentence at a document's end joins the pair before it

    def __post_init__(self) -> None:
        roomy(self.length)
        if self.copies < 1:
            raise BadInput(f"segments.copies={self.copies} goes through no text: give 1 or more.")

    def _size(self, chance: float, size: float) -> int:
        """Tokens to collect for a pair. chance, size: draws from [0, 1)."""
        raise NotImplementedError

    def rows(self, documents: Iterable[Document], vocabulary: Vocabulary) -> Iterator[Row]:
        if self.negatives != "random":
            for document in documents:
                yield from self._rows(_gathered([document]), vocabulary)
            return
        text = _gathered(documents)
        if len(text.numbers) == 1:
            raise BadInput(
                "segments.negatives=random takes segments from other documents, and a part of the corpus has only one: "
                "give it more documents, or negatives=swap."
            )
        yield from self._rows(text, vocabulary)

    def _rows(self, text: _Text, vocabulary: Vocabulary) -> Iterator[Row]:
        first, last = [vocabulary.first], [vocabulary.last]
        for document, number in enumerate(text.numbers.tolist()):
            for copy in range(self.copies):
                found = self._found(text, document, copy)
                if not found:
                    continue
                *places, labels = zip(*found, strict=True)
                for a, b, label in zip(*self._fit(np.array(places), number, copy), labels, strict=True):
                    one, two = text.tokens[slice(*a)].tolist(), text.tokens[slice(*b)].tolist()
                    if self.last:
                        yield Row(one + last + two + last + first, len(one) + 1, label, number)
                    else:
                        yield Row(first + one + last + two + last, len(one) + 2, label, number)

    def _found(self, text: _Text, document: int, copy: int) -> list[tuple[int, int, int, int, float | None]]:
        """The pairs of a document as they stand in the text: where A begins and ends and where B does, in tokens,
        and the label."""
        begins = text.sentences
        at, stop = text.documents[document : document + 2].tolist()
        counter = (np.arange(2)[:, None], text.numbers[document], copy, np.arange(stop - at))
        draws = uniform(philox(counter, derive(self.seed, "pairs"))).reshape(8, -1).T.tolist()  # [pairs at most, 8]
        found = []
        while stop - at >= 2:
            chance, size, part, coin, other, start, *_ = draws[len(found)]
            wanted = self._size(chance, size)
            end = min(stop, max(at + 2, int(begins.searchsorted(begins[at] + wanted))))
            if self.joins and stop - end == 1:
                end = stop
            middle = at + 1 + int(part * (end - at - 1))
            one, two = (begins[at], begins[middle]), (begins[middle], begins[end])
            follows = self.negatives is None or coin < 0.5
            if not follows and self.negatives == "random":
                two = self._elsewhere(text, document, other, start, wanted - int(one[1] - one[0]))
                end = middle  # the sentences that B took the place of are read again
            elif not follows:
                one, two = two, one
            found.append((*one, *two, None if self.negatives is None else float(follows)))
            at = end
        return found

    def _elsewhere(self, text: _Text, document: int, other: float, start: float, wanted: int) -> tuple[int, int]:
        """Sentences of another document from a random one on, at least one, until they have `wanted` tokens."""
        chosen = int(other * (len(text.numbers) - 1))
        chosen += chosen >= document
        at, stop = text.documents[chosen : chosen + 2].tolist()
        at += int(start * (stop - at))
        end = max(at + 1, int(text.sentences.searchsorted(text.sentences[at] + wanted)))
        return int(text.sentences[at]), int(text.sentences[min(stop, end)])

    def _fit(self, places: np.ndarray, number: int, copy: int) -> tuple[list[list[int]], list[list[int]]]:
        """places [4, pairs] as found. Returns begin and end of every A and of every B as they fit into a row; each
        token too many was taken from a random end of its segment."""
        start_a, stop_a, start_b, stop_b = places
        a, b = stop_a - start_a, stop_b - start_b
        keep_a, keep_b = kept(a, b, self.length - SPECIAL)
        over_a, over = (a - keep_a)[:, None], (a + b - keep_a - keep_b)[:, None]
        nth = np.arange(over.max())  # a coin for each, those of A first: does it go from the front?
        counter = (nth, number, copy, np.arange(len(a))[:, None])
        front = uniform(philox(counter, derive(self.seed, "pairs", "ends"))[0]) < 0.5
        start_a = start_a + (front & (nth < over_a)).sum(1)
        start_b = start_b + (front & (nth >= over_a) & (nth < over)).sum(1)
        return np.stack([start_a, start_a + keep_a], 1).tolist(), np.stack([start_b, start_b + keep_b], 1).tolist()


@dataclass(frozen=True, kw_only=True)
class SegmentPair(_Pairs):
    """SEGMENT-PAIR: [CLS] A [SEP] B [SEP], each segment some sentences of a document.

    Sentences are collected until they fill a row, and parted at a random one. A pair that is too long loses tokens
    of its longer segment, one by one, each from a random end.

    negatives: what half of the pairs are instead, by a coin for each. "random": B is taken from another document,
    from a random sentence on, and what it took the place of is read again. "swap": A and B are exchanged. None:
    nothing; then nothing is said of a row either.
    copies: how often the text is gone through, each time with other random choices (BERT's dupe_factor).
    short: share of the pairs that are collected to a random smaller size.
    last: A [SEP] B [SEP] [CLS] instead, the order of Yang et al. 2019, section 2.5.

    It departs from the published code in four points. There, a document of one sentence and a sentence that is left
    over become a pair with a random B, even among swaps. Here the first gives no pair, and the second joins the pair
    before it (or is left out where B was random), so that both labels are equally likely whatever is read. The size
    is drawn for each pair and not for each document. Another document is never the same one. Copies of a document
    follow one another. As there, the sentence that fills a row is longer than most and stands last, so that lengths
    alone tell two swapped segments from others slightly better than a coin.
    """

    short: float
    joins: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.short <= 1:
            raise BadInput(f"segments.short={self.short} is a share: give a number from 0 to 1, such as 0.1.")

    def _size(self, chance: float, size: float) -> int:
        room = self.length - SPECIAL
        return 2 + int(size * (room - 1)) if chance < self.short else room


@dataclass(frozen=True, kw_only=True)
class SentencePair(_Pairs):
    """SENTENCE-PAIR: as SEGMENT-PAIR, but A and B are single sentences (Liu et al. 2019, section 4.2). A sentence
    that is left over at a document's end is left out."""

    joins: ClassVar[bool] = False

    def _size(self, chance: float, size: float) -> int:
        return 0  # two sentences are always collected
