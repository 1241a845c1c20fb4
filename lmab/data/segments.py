"""Documents to rows: which stretches of text a model reads at once (RoBERTa, section 4.2).

A format decides what a row holds. Here are those whose rows begin with the first token, [CLS], and end with the
last, [SEP]; pairs stand in pairs.py, contiguous text in streams.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

from lmab.types import BadInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lmab.types import Vocabulary

    # A document: its number, and its sentences as token numbers.
    Document = tuple[int, list[list[int]]]

LEAST = 8  # two special tokens and something to read


class Row(NamedTuple):
    """One example as it is stored."""

    tokens: list[int]
    second: int  # where the second segment begins; len(tokens) where there is none
    label: float | None  # what the row as a whole is (next sentence, sentence order, a class); None: nothing is said
    document: int  # the first document that the row holds
    past: int = -1  # tokens of its stream before the row; -1: it belongs to no stream


class Segments(Protocol):
    """A format of rows. Formats over pairs fill `second` and `label`, contiguous ones `past`; the order in an epoch
    is not theirs."""

    length: int
    contiguous: ClassVar[bool]  # its rows follow one another in a stream of text, and want to be read so

    def rows(self, documents: Iterable[Document], vocabulary: Vocabulary) -> Iterator[Row]: ...


def roomy(length: int) -> None:
    """BadInput: rows of this length hold no text."""
    if length < LEAST:
        raise BadInput(f"length={length} leaves no room for text: the shortest row is {LEAST} tokens.")


def _pieces(sentences: Iterable[list[int]], size: int) -> Iterator[list[int]]:
    """The sentences, each cut where it is longer than a row can hold."""
    for sentence in sentences:
        for start in range(0, len(sentence), size):
            yield sentence[start : start + size]


@dataclass(frozen=True, kw_only=True)
class FullSentences:
    """FULL-SENTENCES: rows packed with sentences one after another, across documents, with an extra [SEP]
    where one ends.

    cut: fill every row to the last place and cut the sentence that stands there, so that nothing is padded.
    Without it, as in the paper, a sentence that no longer fits begins the next row.
    """

    length: int
    cut: bool = False
    contiguous: ClassVar[bool] = False

    def __post_init__(self) -> None:
        roomy(self.length)

    def rows(self, documents: Iterable[Document], vocabulary: Vocabulary) -> Iterator[Row]:
        size = self.length - 2

        def row(tokens: list[int], document: int) -> Row:
            whole = [vocabulary.first, *tokens, vocabulary.last]
            return Row(whole, len(whole), None, document)

        held: list[int] = []
        first = -1  # the document in which `held` begins
        for number, sentences in documents:
            if held and len(held) < size:
                held.append(vocabulary.last)
            for piece in _pieces(sentences, size):
                if not self.cut and len(held) + len(piece) > size:
                    yield row(held, first)
                    held = []
                first = first if held else number
                held = held + piece
                while self.cut and len(held) >= size:
                    yield row(held[:size], first)
                    held, first = held[size:], number
        if held:
            yield row(held, first)


@dataclass(frozen=True, kw_only=True)
class DocSentences:
    """DOC-SENTENCES: as FULL-SENTENCES, but no row crosses the end of a document. Held-out text is always
    read so, whatever the training rows are: then a loss belongs to one document."""

    length: int
    cut: bool = False
    contiguous: ClassVar[bool] = False

    def __post_init__(self) -> None:
        roomy(self.length)

    def rows(self, documents: Iterable[Document], vocabulary: Vocabulary) -> Iterator[Row]:
        whole = FullSentences(length=self.length, cut=self.cut)
        for document in documents:
            yield from whole.rows([document], vocabulary)
