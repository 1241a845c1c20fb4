"""Segments: every token stands in the rows once, in order, and no row is longer than it may be."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmab.data.segments import LEAST, DocSentences, FullSentences, Row
from lmab.types import BadInput, Vocabulary

FIRST, LAST = 2, 3
special = np.arange(10_000) < 5
VOCABULARY = Vocabulary(
    size=len(special),
    pad=0,
    unknown=1,
    first=FIRST,
    last=LAST,
    mask=4,
    special=special,
    continues=special & False,
)

# Lengths of the sentences of some documents; now and then a sentence that the tokenizer left empty.
shapes = st.lists(st.lists(st.integers(0, 30), max_size=6), max_size=6)
lengths = st.integers(LEAST, 20)


def numbered(shape: list[list[int]]) -> list[tuple[int, list[list[int]]]]:
    """Documents of such sentences, in which every token is another and says where it comes from."""
    fresh = itertools.count(5)
    return [(10 * d, [[next(fresh) for _ in range(n)] for n in sentences]) for d, sentences in enumerate(shape)]


def rows(segments: FullSentences | DocSentences, documents: list[tuple[int, list[list[int]]]]) -> list[Row]:
    return list(segments.rows(documents, VOCABULARY))


def content(row: Row) -> list[int]:
    return [token for token in row.tokens if token >= 5]


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("kind", [FullSentences, DocSentences])
@given(shape=shapes, length=lengths)
def test_no_token_is_lost_doubled_or_moved(kind, cut, shape, length):
    documents = numbered(shape)
    found = rows(kind(length=length, cut=cut), documents)
    said = [token for _, sentences in documents for sentence in sentences for token in sentence]
    assert [token for row in found for token in content(row)] == said
    owner = {token: number for number, sentences in documents for sentence in sentences for token in sentence}
    for row in found:
        assert len(row.tokens) <= length
        assert (row.tokens[0], row.tokens[-1]) == (FIRST, LAST)
        assert content(row)
        assert (row.second, row.label) == (len(row.tokens), None)
        assert row.document == owner[content(row)[0]]


@pytest.mark.parametrize("cut", [False, True])
@given(shape=shapes, length=lengths)
def test_a_separator_stands_wherever_a_row_passes_into_another_document(cut, shape, length):
    documents = numbered(shape)
    owner = {token: number for number, sentences in documents for sentence in sentences for token in sentence}
    for row in rows(FullSentences(length=length, cut=cut), documents):
        inside = row.tokens[1:-1]
        for before, after in itertools.pairwise(inside):
            if before >= 5 and after >= 5:
                assert owner[before] == owner[after]
        assert FIRST not in inside


@pytest.mark.parametrize("cut", [False, True])
@given(shape=shapes, length=lengths)
def test_rows_of_single_documents_never_cross_one(cut, shape, length):
    documents = numbered(shape)
    owner = {token: number for number, sentences in documents for sentence in sentences for token in sentence}
    found = rows(DocSentences(length=length, cut=cut), documents)
    for row in found:
        assert {owner[token] for token in content(row)} == {row.document}
        assert LAST not in row.tokens[1:-1]
    # Each document gives the rows that it would give alone.
    assert found == [r for d in documents for r in rows(FullSentences(length=length, cut=cut), [d])]


@given(shape=shapes, length=lengths)
def test_cut_rows_are_full_to_the_last_but_one(shape, length):
    found = rows(FullSentences(length=length, cut=True), numbered(shape))
    assert all(len(row.tokens) == length for row in found[:-1])


@given(shape=shapes, length=lengths)
def test_uncut_rows_end_where_the_next_sentence_has_no_room(shape, length):
    documents = numbered(shape)
    found = rows(FullSentences(length=length), documents)
    holds = {token: number for number, row in enumerate(found) for token in content(row)}
    for _, sentences in documents:
        for sentence in filter(None, sentences):
            across = {holds[token] for token in sentence}
            # Only a sentence longer than a row is cut, into as few rows as can hold it.
            assert len(across) == -(-len(sentence) // (length - 2))
    starts = {s[i] for _, sentences in documents for s in sentences for i in range(0, len(s), length - 2)}
    pieces = {s[i]: len(s[i : i + length - 2]) for _, ss in documents for s in ss for i in range(0, len(s), length - 2)}
    for row, following in itertools.pairwise(found):
        begins = content(following)[0]
        assert begins in starts
        assert len(row.tokens) + pieces[begins] > length - 1  # a separator may have been wanted too


DOCUMENTS = [
    (7, [[10, 11, 12], [13, 14]]),
    (8, [[20, 21], [22, 23, 24, 25], [26, 27, 28, 29, 30, 31, 32, 33]]),
    (9, [[40]]),
]
C, S = FIRST, LAST


def test_a_known_corpus_gives_known_rows():
    def told(segments: FullSentences | DocSentences) -> list[tuple[list[int], int]]:
        return [(row.tokens, row.document) for row in rows(segments, DOCUMENTS)]

    assert told(FullSentences(length=10)) == [
        ([C, 10, 11, 12, 13, 14, S, 20, 21, S], 7),
        ([C, 22, 23, 24, 25, S], 8),
        ([C, 26, 27, 28, 29, 30, 31, 32, 33, S], 8),
        ([C, 40, S], 9),
    ]
    assert told(FullSentences(length=8, cut=True)) == [
        ([C, 10, 11, 12, 13, 14, S, S], 7),
        ([C, 20, 21, 22, 23, 24, 25, S], 8),
        ([C, 26, 27, 28, 29, 30, 31, S], 8),
        ([C, 32, 33, S, 40, S], 8),
    ]
    assert told(DocSentences(length=8)) == [
        ([C, 10, 11, 12, 13, 14, S], 7),
        ([C, 20, 21, 22, 23, 24, 25, S], 8),
        ([C, 26, 27, 28, 29, 30, 31, S], 8),
        ([C, 32, 33, S], 8),
        ([C, 40, S], 9),
    ]
    assert told(DocSentences(length=9, cut=True)) == [
        ([C, 10, 11, 12, 13, 14, S], 7),
        ([C, 20, 21, 22, 23, 24, 25, 26, S], 8),
        ([C, 27, 28, 29, 30, 31, 32, 33, S], 8),
        ([C, 40, S], 9),
    ]


def test_documents_are_read_as_they_come():
    def endless():
        for number in itertools.count():
            yield number, [[5, 6, 7, 8]]

    found = FullSentences(length=12, cut=True).rows(endless(), VOCABULARY)
    assert [row.document for row in itertools.islice(found, 5)] == [0, 2, 4, 6, 8]


@pytest.mark.parametrize("kind", [FullSentences, DocSentences])
def test_rows_without_room_for_text_are_refused(kind):
    with pytest.raises(BadInput, match=f"length=7 leaves no room for text: the shortest row is {LEAST} tokens"):
        kind(length=7)
    assert rows(kind(length=LEAST), [(0, [[5]])]) == [Row([FIRST, 5, LAST], 3, None, 0)]
