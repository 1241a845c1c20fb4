"""Contiguous text: rows that go on where the one before them ended (Dai et al. 2019, section 3.2)."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from lmab.data.segments import Row, roomy
from lmab.types import BadInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lmab.data.segments import Document
    from lmab.types import Vocabulary


@dataclass(frozen=True, kw_only=True)
class Streams:
    """Text without [CLS], cut into rows of exactly `length` tokens; one [SEP] stands at the end of a document.

    cross: all documents are one stream. What is left at its very end is no whole row and is left out, so that a
    memory never holds padding. Without it every document is a stream of its own, and its last row may be shorter.
    bidirectional: half of the training lanes read their text from its end to its start (Yang et al. 2019, section
    3.1); wants `cross`, since a short row at the end of a document would come first there.
    """

    length: int
    cross: bool
    bidirectional: bool
    contiguous: ClassVar[bool] = True

    def __post_init__(self) -> None:
        roomy(self.length)
        if self.bidirectional and not self.cross:
            raise BadInput(
                "segments.bidirectional=true reads streams of whole rows, and with segments.cross=false documents end "
                "in shorter ones: give cross=true as well, or bidirectional=false."
            )

    def rows(self, documents: Iterable[Document], vocabulary: Vocabulary) -> Iterator[Row]:
        held: list[int] = []
        first = -1  # the document in which `held` begins
        past = 0
        for number, sentences in documents:
            text = list(itertools.chain.from_iterable(sentences))
            if not text:
                continue
            first = first if held else number
            held = [*held, *text, vocabulary.last]
            whole = len(held) - len(held) % self.length
            for start in range(0, whole, self.length):
                yield Row(held[start : start + self.length], self.length, None, first, past)
                first, past = number, past + self.length  # of what came before nothing is left
            held = held[whole:]
            if not self.cross:
                if held:
                    yield Row(held, len(held), None, number, past)
                held, past = [], 0
