"""Streams: the rows together are the text, each says how much of its stream came before it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmab.data.segments import LEAST, DocSentences, FullSentences, Row
from lmab.data.streams import Streams
from lmab.types import BadInput, Vocabulary

FIRST, LAST = C, S = 2, 3
special = np.arange(10_000) < 5
VOCABULARY = Vocabulary(len(special), 0, 1, FIRST, LAST, 4, special, special & False)

shapes = st.lists(st.lists(st.integers(0, 30), max_size=5), max_size=6)
lengths = st.integers(LEAST, 20)


def streams(length: int, *, cross: bool) -> Streams:
    return Streams(length=length, cross=cross, bidirectional=False)


def numbered(shape: list[list[int]]) -> list[tuple[int, list[list[int]]]]:
    """Documents of such sentences, in which every token is another and says where it comes from."""
    fresh = itertools.count(5)
    return [(10 * d, [[next(fresh) for _ in range(n)] for n in sentences]) for d, sentences in enumerate(shape)]


def texts(documents: list[tuple[int, list[list[int]]]]) -> dict[int, list[int]]:
    """The number of each document that says anything -> its text with the separator at its end."""
    said = {number: list(itertools.chain.from_iterable(sentences)) for number, sentences in documents}
    return {number: [*text, LAST] for number, text in said.items() if text}


@given(shape=shapes, length=lengths)
def test_one_stream_is_the_whole_text_but_for_what_fills_no_row(shape, length):
    documents = numbered(shape)
    found = list(streams(length, cross=True).rows(documents, VOCABULARY))
    text = [(token, number) for number, tokens in texts(documents).items() for token in tokens]
    assert [token for row in found for token in row.tokens] == [token for token, _ in text[: len(found) * length]]
    assert len(text) - len(found) * length < length
    for i, row in enumerate(found):
        assert (len(row.tokens), row.second, row.label) == (length, length, None)
        assert row.past == i * length
        assert row.document == text[i * length][1]


@given(shape=shapes, length=lengths)
def test_a_document_that_is_a_stream_is_read_whole(shape, length):
    documents = numbered(shape)
    found = list(streams(length, cross=False).rows(documents, VOCABULARY))
    for number, text in texts(documents).items():
        own = [row for row in found if row.document == number]
        assert [token for row in own for token in row.tokens] == text
        assert [row.past for row in own] == list(range(0, len(text), length))
        assert all(len(row.tokens) == length for row in own[:-1])
        assert all((row.second, row.label) == (len(row.tokens), None) for row in own)
    assert {row.document for row in found} == set(texts(documents))
    assert [row.document for row in found] == sorted(row.document for row in found)


def test_a_known_corpus_gives_known_rows():
    documents = [(7, [[10, 11, 12], [13, 14]]), (8, [[]]), (9, [[20, 21], [22, 23, 24, 25, 26, 27, 28]]), (11, [[40]])]
    assert list(streams(8, cross=True).rows(documents, VOCABULARY)) == [
        Row([10, 11, 12, 13, 14, S, 20, 21], 8, None, 7, 0),
        Row([22, 23, 24, 25, 26, 27, 28, S], 8, None, 9, 8),
    ]
    assert list(streams(8, cross=False).rows(documents, VOCABULARY)) == [
        Row([10, 11, 12, 13, 14, S], 6, None, 7, 0),
        Row([20, 21, 22, 23, 24, 25, 26, 27], 8, None, 9, 0),
        Row([28, S], 2, None, 9, 8),
        Row([40, S], 2, None, 11, 0),
    ]


def test_documents_are_read_as_they_come():
    def endless():
        for number in itertools.count():
            yield number, [[5, 6, 7, 8]]

    found = streams(12, cross=True).rows(endless(), VOCABULARY)
    assert [row.document for row in itertools.islice(found, 5)] == [0, 2, 4, 7, 9]


def test_a_format_says_whether_its_rows_follow_one_another():
    assert Streams.contiguous
    assert not FullSentences.contiguous
    assert not DocSentences.contiguous


def test_values_that_cannot_work_are_refused():
    with pytest.raises(BadInput, match=f"length=7 leaves no room.*{LEAST} tokens"):
        streams(7, cross=True)
    with pytest.raises(BadInput, match=r"segments\.bidirectional=true.*cross=true"):
        Streams(length=16, cross=False, bidirectional=True)
