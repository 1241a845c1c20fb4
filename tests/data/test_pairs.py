"""Pairs: what stands in a row, whether the label is true of it, and that nothing else gives the label away."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmab.data.pairs import SegmentPair, SentencePair, kept
from lmab.data.segments import LEAST, Row
from lmab.types import BadInput, Vocabulary

FIRST, LAST = C, S = 2, 3
special = np.arange(100_000) < 5
VOCABULARY = Vocabulary(len(special), 0, 1, FIRST, LAST, 4, special, special & False)

Documents = list[tuple[int, list[list[int]]]]
Pairs = SegmentPair | SentencePair

# Lengths of the sentences of some documents; now and then a sentence that the tokenizer left empty.
shapes = st.lists(st.lists(st.integers(0, 12), max_size=8), max_size=5)
lengths = st.integers(LEAST, 24)
kinds = st.sampled_from(["random", "swap", None])


def segment_pair(length: int, **knobs) -> SegmentPair:
    return SegmentPair(
        **{"negatives": None, "copies": 1, "short": 0.0, "last": False, "seed": 0} | knobs, length=length
    )


def sentence_pair(length: int, **knobs) -> SentencePair:
    return SentencePair(**{"negatives": None, "copies": 1, "last": False, "seed": 0} | knobs, length=length)


def numbered(shape: list[list[int]]) -> Documents:
    """Documents of such sentences, in which every token is another, and they count upwards through the corpus."""
    fresh = itertools.count(5)
    return [(10 * d, [[next(fresh) for _ in range(n)] for n in sentences]) for d, sentences in enumerate(shape)]


def rows(pairs: Pairs, documents: Documents) -> list[Row]:
    """The rows, or none where all of the few words stand in one document."""
    words = [any(sentences) for _, sentences in documents]
    if pairs.negatives == "random" and sum(words) == 1:
        return []
    return list(pairs.rows(documents, VOCABULARY))


def parts(row: Row) -> tuple[list[int], list[int]]:
    """A and B, with the special tokens seen to be where they belong."""
    assert (row.tokens[0], row.tokens[row.second - 1], row.tokens[-1]) == (FIRST, LAST, LAST)
    a, b = row.tokens[1 : row.second - 1], row.tokens[row.second : -1]
    assert min(a + b) >= 5
    return a, b


def boundaries(documents: Documents) -> tuple[set[int], set[int]]:
    """The first and the last tokens of sentences."""
    some = [sentence for _, sentences in documents for sentence in sentences if sentence]
    return {sentence[0] for sentence in some}, {sentence[-1] for sentence in some}


def owners(documents: Documents) -> dict[int, int]:
    return {token: number for number, sentences in documents for sentence in sentences for token in sentence}


# What holds of every pair


@given(shape=shapes, length=lengths, negatives=kinds, short=st.sampled_from([0.0, 0.5]), single=st.booleans())
def test_a_row_holds_two_stretches_of_text_and_fits(shape, length, negatives, short, single):
    documents = numbered(shape)
    pairs = (
        sentence_pair(length, negatives=negatives) if single else segment_pair(length, negatives=negatives, short=short)
    )
    owner = owners(documents)
    begins, ends = boundaries(documents)
    for row in rows(pairs, documents):
        a, b = parts(row)
        assert a
        assert b
        assert len(row.tokens) <= length
        for part in (a, b):
            assert part == list(range(part[0], part[-1] + 1))  # a stretch of the text as it stands there
            assert len({owner[token] for token in part}) == 1
            if len(row.tokens) < length:  # only a full row was cut
                assert part[0] in begins
                assert part[-1] in ends
        assert row.document == owner[a[0]] or negatives == "swap"
        assert (row.label is None) == (negatives is None)
        assert row.past == -1


@given(shape=shapes, length=lengths, negatives=kinds)
def test_the_label_is_true(shape, length, negatives):
    documents = numbered(shape)
    owner = owners(documents)
    for row in rows(segment_pair(length, negatives=negatives), documents):
        a, b = parts(row)
        whole = len(row.tokens) < length
        if row.label in (1, None):
            assert owner[a[0]] == owner[b[0]] == row.document
            assert b[0] > a[-1]
            assert b[0] == a[-1] + 1 or not whole
        elif negatives == "swap":  # the two stand in the document one after the other, the other way round
            assert owner[a[0]] == owner[b[0]] == row.document
            assert a[0] > b[-1]
            assert a[0] == b[-1] + 1 or not whole
        else:
            assert owner[a[0]] == row.document != owner[b[0]]


@given(shape=shapes, length=lengths, short=st.sampled_from([0.0, 0.5, 1.0]))
def test_swapped_and_plain_rows_are_the_same_but_for_their_order(shape, length, short):
    documents = numbered(shape)
    plain = rows(segment_pair(length, short=short), documents)
    swapped = rows(segment_pair(length, short=short, negatives="swap"), documents)
    assert len(plain) == len(swapped)
    for one, other in zip(plain, swapped, strict=True):
        (a, b), (c, d) = parts(one), parts(other)
        assert one.document == other.document
        if other.label == 1:
            assert (a, b) == (c, d)
        elif len(other.tokens) < length:
            assert (a, b) == (d, c)
        else:  # of two equally long segments the second loses a token, whichever that is
            assert abs(len(a) - len(d)) <= 1
            assert set(c) <= set(range(b[0] - length, b[-1] + length))


@given(shape=st.lists(st.lists(st.integers(0, 9), max_size=8), max_size=5), short=st.sampled_from([0.0, 1.0]))
def test_nothing_of_a_document_is_lost_where_nothing_is_cut(shape, short):
    documents = numbered(shape)
    found = rows(segment_pair(100, short=short), documents)
    for number, sentences in documents:
        own = [token for row in found if row.document == number for part in parts(row) for token in part]
        said = [token for sentence in sentences for token in sentence]
        assert own == (said if sum(map(bool, sentences)) >= 2 else [])


@given(shape=shapes, length=lengths)
def test_what_a_random_segment_took_the_place_of_is_read_again(shape, length):
    documents = numbered(shape)
    found = rows(segment_pair(length, negatives="random"), documents)
    begins, _ = boundaries(documents)
    for row, following in itertools.pairwise(found):
        if row.document == following.document and len(row.tokens) < length and len(following.tokens) < length:
            a, b = parts(row)
            end = b[-1] if row.label == 1 else a[-1]
            assert parts(following)[0][0] == end + 1
            assert end + 1 in begins


@given(shape=shapes, negatives=kinds, single=st.booleans())
def test_a_document_of_one_sentence_gives_no_pair(shape, negatives, single):
    documents = numbered(shape)
    make = sentence_pair if single else segment_pair
    found = rows(make(16, negatives=negatives), documents)
    several = {number for number, sentences in documents if sum(map(bool, sentences)) >= 2}
    assert {row.document for row in found} == (several if found else set())


@given(shape=shapes, length=lengths)
def test_sentence_pairs_are_two_sentences(shape, length):
    documents = numbered(shape)
    found = rows(sentence_pair(100), documents)
    wanted = []
    for number, sentences in documents:
        some = [sentence for sentence in sentences if sentence]
        wanted += [(number, some[i], some[i + 1]) for i in range(0, len(some) - 1, 2)]
    assert [(row.document, *parts(row)) for row in found] == wanted
    ends = {s[0]: s[-1] for _, sentences in documents for s in sentences if s}
    for row in rows(sentence_pair(100, negatives="random"), documents):
        assert all(ends[part[0]] == part[-1] for part in parts(row))


# Truncation


@given(a=st.integers(1, 40), b=st.integers(1, 40), room=st.integers(5, 30))
def test_tokens_are_taken_from_the_longer_segment_one_by_one(a, b, room):
    found = [int(n[0]) for n in kept(np.array([a]), np.array([b]), room)]
    while a + b > room:
        if a > b:
            a -= 1
        else:
            b -= 1
    assert found == [a, b]


def test_both_ends_of_a_segment_lose_tokens_alike():
    documents = numbered([[30, 30]] * 400)
    front = []
    for row in rows(segment_pair(23), documents):
        a, b = parts(row)
        assert len(a) == len(b) == 10
        for part in (a, b):
            start = 5 + 30 * ((part[0] - 5) // 30)  # of the sentence
            front.append(part[0] - start)
    # 20 of 30 tokens go, each from the front with probability 1/2: a mean of 10, a standard deviation of sqrt(5).
    assert abs(np.mean(front) - 10) < 5 * math.sqrt(5 / len(front))
    assert 0.8 < np.var(front) / 5 < 1.2


# Labels


@pytest.mark.parametrize("negatives", ["random", "swap"])
@pytest.mark.parametrize("make", [segment_pair, sentence_pair])
def test_labels_are_balanced(make, negatives):
    drawn = np.random.default_rng(1)
    shape = [drawn.integers(1, 15, drawn.integers(1, 12)).tolist() for _ in range(2_000)]
    found = rows(make(32, negatives=negatives), numbered(shape))
    label = np.array([row.label for row in found])
    n = len(label)
    assert n > 2_000
    # Five standard deviations of a fair coin; and a coin that remembers nothing.
    assert abs(label.sum() - n / 2) < 5 * math.sqrt(n / 4)
    assert abs((label[1:] == label[:-1]).sum() - n / 2) < 5 * math.sqrt(n / 4)


@pytest.mark.parametrize("length", [32, 33])
def test_cutting_says_nothing_of_the_label(length):
    # Of two segments that are cut to one length, the first keeps the odd token, whichever of the two it is.
    found = rows(segment_pair(length, negatives="swap"), numbered([[30, 28], [28, 30]] * 50))
    left = {label: {(len(a), len(b)) for a, b in (parts(r) for r in found if r.label == label)} for label in (0, 1)}
    assert left[0] == left[1] == {(-(-(length - 3) // 2), (length - 3) // 2)}


def test_the_other_document_is_drawn_evenly_and_is_never_the_same():
    documents = numbered([[5, 5, 5, 5]] * 6)
    owner = owners(documents)
    found = rows(segment_pair(16, negatives="random", copies=500), documents)
    pairs = [(row.document, owner[parts(row)[1][0]]) for row in found if row.label == 0]
    counts = np.array([[pairs.count((10 * one, 10 * other)) for other in range(6)] for one in range(6)])
    assert not counts.diagonal().any()
    rest = counts[~np.eye(6, dtype=bool)]
    assert (abs(rest - rest.mean()) < 5 * np.sqrt(rest.mean())).all()
    # From any of its sentences on.
    assert {(parts(row)[1][0] - 5) % 20 // 5 for row in found if row.label == 0} == {0, 1, 2, 3}


# Knobs


def test_copies_go_through_the_text_again_with_other_choices():
    documents = numbered([[4, 5, 6, 3, 4, 5, 6, 7, 3]] * 3)
    for negatives in ("random", "swap", None):
        once = rows(segment_pair(20, negatives=negatives, short=0.3), documents)
        thrice = rows(segment_pair(20, negatives=negatives, short=0.3, copies=3), documents)
        by_document = [[row for row in thrice if row.document == number] for number, _ in documents]
        for number, found in zip((0, 10, 20), by_document, strict=True):
            first = [row for row in once if row.document == number]
            assert found[: len(first)] == first
            assert found[len(first) : 2 * len(first)] != first
    assert rows(sentence_pair(20, copies=2), documents)[:4] == rows(sentence_pair(20), documents)[:4]


def test_choices_depend_on_the_seed_and_the_document_and_on_nothing_else():
    documents = numbered([[4, 5, 6, 3, 4, 5, 6, 7, 3]] * 8)
    pairs = segment_pair(20, negatives="swap", short=0.3)
    found = rows(pairs, documents)
    assert rows(pairs, documents) == found
    assert rows(replace(pairs, seed=1), documents) != found
    # Without the first documents the others give what they gave.
    assert rows(pairs, documents[3:]) == [row for row in found if row.document >= 30]


def test_a_share_of_the_pairs_is_short():
    documents = numbered([[1] * 400] * 20)
    assert {len(row.tokens) for row in rows(segment_pair(23), documents)} == {23}
    sizes = np.array([len(row.tokens) - 3 for row in rows(segment_pair(23, short=0.5), documents)])
    n, short = len(sizes), sizes[sizes < 20]
    # Sizes from 2 to 20 are equally likely: one in 19 of the "short" ones is full.
    assert abs((sizes == 20).mean() - (0.5 + 0.5 / 19)) < 5 * math.sqrt(0.25 / n)
    assert abs(short.mean() - 10.5) < 5 * math.sqrt(27 / len(short))
    assert set(short) == set(range(2, 20))
    assert rows(segment_pair(23, short=1.0), documents) != rows(segment_pair(23, short=0.0), documents)


@given(shape=shapes, length=lengths, negatives=kinds)
def test_the_special_tokens_may_stand_as_in_xlnet(shape, length, negatives):
    documents = numbered(shape)
    for make in (segment_pair, sentence_pair):
        plain = rows(make(length, negatives=negatives), documents)
        last = rows(make(length, negatives=negatives, last=True), documents)
        for one, other in zip(plain, last, strict=True):
            a, b = parts(one)
            assert other.tokens == [*a, LAST, *b, LAST, FIRST]
            assert other.second == len(a) + 1
            assert (other.label, other.document) == (one.label, one.document)


def test_a_known_corpus_gives_known_pairs():
    documents = [(7, [[10, 11], [12], [], [13, 14, 15]]), (8, [[20]]), (9, [[30, 31], [32, 33]])]
    # Two sentences fill a row of 8, and the third would be left over, so it joins them.
    found = rows(segment_pair(8), documents)
    assert [(row.document, row.label) for row in found] == [(7, None), (9, None)]
    assert found[0].second in (4, 5)
    assert found[1] == Row([C, 30, 31, S, 32, 33, S], 4, None, 9)
    (pair, other) = rows(sentence_pair(8), documents)
    assert pair == Row([C, 10, 11, S, 12, S], 4, None, 7)
    assert other == Row([C, 30, 31, S, 32, 33, S], 4, None, 9)
    both = {(*row.tokens,): row.label for row in rows(sentence_pair(8, negatives="swap", copies=50), documents)}
    assert both == {
        (C, 10, 11, S, 12, S): 1,
        (C, 12, S, 10, 11, S): 0,
        (C, 30, 31, S, 32, 33, S): 1,
        (C, 32, 33, S, 30, 31, S): 0,
    }
    two = [(0, [[10], [11]]), (1, [[20], [21]])]
    seen = {(*row.tokens,): row.label for row in rows(sentence_pair(8, negatives="random", copies=100), two)}
    assert seen == {
        (C, 10, S, 11, S): 1,
        (C, 10, S, 20, S): 0,
        (C, 10, S, 21, S): 0,
        (C, 20, S, 21, S): 1,
        (C, 20, S, 10, S): 0,
        (C, 20, S, 11, S): 0,
    }


# Refusals


def test_values_that_cannot_work_are_refused():
    with pytest.raises(BadInput, match=f"length=7 leaves no room.*{LEAST} tokens"):
        segment_pair(7)
    with pytest.raises(BadInput, match=r"segments\.copies=0"):
        sentence_pair(16, copies=0)
    for share in (-0.1, 1.5, math.nan):
        with pytest.raises(BadInput, match=r"segments\.short=.*from 0 to 1"):
            segment_pair(16, short=share)


def test_a_single_document_has_no_other():
    documents = numbered([[3, 4, 5], []])
    with pytest.raises(BadInput, match=r"segments\.negatives=random.*only one.*negatives=swap"):
        list(segment_pair(16, negatives="random").rows(documents, VOCABULARY))
    assert list(segment_pair(16, negatives="random").rows([], VOCABULARY)) == []


def test_documents_are_read_as_they_come_where_none_is_drawn_from():
    def endless():
        for number in itertools.count():
            yield number, [[5, 6], [7, 8]]

    found = segment_pair(16, negatives="swap").rows(endless(), VOCABULARY)
    assert [row.document for row in itertools.islice(found, 3)] == [0, 1, 2]
