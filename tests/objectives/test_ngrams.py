"""N-grams of masked words: their lengths, how often a word is selected, and where they end."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmab.objectives.mlm import MaskedLM, Masking, reaches
from lmab.rng import philox, uniform
from lmab.types import BadInput


def masking(**changes: object) -> Masking:
    given = {"rate": 0.15, "mask": 0.8, "random": 0.1, "whole_words": False, "copies": None}
    return Masking(**given | changes)


def selected(noise: Masking, example, vocab, key: int = 7) -> np.ndarray:
    chosen = np.zeros(example.tokens.size, dtype=bool)
    chosen[noise(example, vocab, key).places] = True
    return chosen.reshape(example.tokens.shape)


@pytest.mark.parametrize("rate", [0.0, 0.05, 0.15, 0.6, 1.0])
def test_the_chance_that_one_begins_solves_the_equation(rate):
    # N = 2: P(n > 0) = 1, P(n > 1) = (1/2) / (1 + 1/2) = 1/3, so 1 - (1 - a) (1 - a/3) = rate.
    inner, first = reaches(rate, 2)
    a = 2 - math.sqrt(4 - 3 * rate)
    assert inner == pytest.approx([a, a / 3], abs=1e-12)
    assert first == pytest.approx([rate, a / 3], abs=1e-12)
    # N = 3: the tails are 1, 5/11 and 2/11.
    inner, first = reaches(rate, 3)
    assert inner[1:] == pytest.approx([inner[0] * 5 / 11, inner[0] * 2 / 11])
    assert 1 - np.prod(1 - inner) == pytest.approx(rate, abs=1e-12)
    assert first == pytest.approx([rate, 1 - (1 - inner[1]) * (1 - inner[2]), inner[2]], abs=1e-12)


@pytest.mark.parametrize("whole_words", [False, True])
def test_with_single_units_each_draws_for_itself(rows, vocab, whole_words):
    example = rows(40, 60)
    drawn = uniform(philox((np.arange(60), example.number[:, None], example.epoch[:, None], 0), 7)[0])
    wanted = np.zeros_like(example.tokens, dtype=bool)
    for i, row in enumerate(example.tokens):
        for place, token in enumerate(row):
            begin = place
            while whole_words and begin > 0 and vocab.continues[row[begin]]:
                begin -= 1
            wanted[i, place] = not vocab.special[token] and drawn[i, begin] < 0.3
    assert np.array_equal(selected(masking(rate=0.3, whole_words=whole_words), example, vocab), wanted)


@pytest.mark.parametrize("ngram", [2, 3, 5])
@pytest.mark.parametrize("rate", [0.1, 0.4])
@pytest.mark.parametrize("begins", [2, 9])  # with [CLS], or in the middle of a stream
def test_every_place_is_selected_at_the_rate_also_where_a_stretch_begins(rows, vocab, ngram, rate, begins):
    example = rows(6_000, 14, padded=False, inside=0.0)
    example.tokens[:, 0] = begins
    example.tokens[:, 6] = 3
    share = selected(masking(rate=rate, ngram=ngram), example, vocab).mean(0)
    special = vocab.special[example.tokens[0]]
    assert not share[special].any()
    ordinary = share[~special]
    assert np.abs(ordinary - rate).max() < 5 * math.sqrt(rate * (1 - rate) / 6_000)


def words_of(row: np.ndarray, vocab) -> list[list[int]]:
    """The words of a row as lists of places; a special token is none."""
    words: list[list[int]] = []
    for place, token in enumerate(row):
        if vocab.special[token]:
            continue
        if vocab.continues[token] and words and words[-1][-1] == place - 1:
            words[-1].append(place)
        else:
            words.append([place])
    return words


def test_whole_words_are_selected_at_the_rate_however_long_they_are(rows, vocab):
    example = rows(1_500, 40, padded=False)
    chosen = selected(masking(rate=0.2, ngram=3, whole_words=True), example, vocab)
    by_length: dict[int, list[bool]] = {}
    for row, hit in zip(example.tokens, chosen, strict=True):
        for word in words_of(row, vocab):
            assert len(set(hit[word].tolist())) == 1
            by_length.setdefault(len(word), []).append(hit[word[0]])
    # Words of an n-gram are selected together: the variance of a count is up to N times a binomial's.
    for length in (1, 2, 3):
        hits = by_length[length]
        assert len(hits) > 1_000
        assert abs(np.mean(hits) - 0.2) < 5 * math.sqrt(3 * 0.2 * 0.8 / len(hits))


@pytest.mark.parametrize("ngram", [1, 2, 3])
def test_lengths_have_the_chances_of_the_paper(rows, vocab, ngram):
    # So rare that hardly two meet: a run of targets is one n-gram.
    example = rows(800, 500, padded=False, inside=0.0)
    chosen = selected(masking(rate=0.01, ngram=ngram), example, vocab)
    edges = np.diff(chosen.astype(int), axis=1, prepend=0, append=0)
    lengths = np.nonzero(edges == -1)[1] - np.nonzero(edges == 1)[1]
    assert len(lengths) > 2_000
    share = np.bincount(lengths, minlength=ngram + 1)[1 : ngram + 1] / len(lengths)
    wanted = 1 / np.arange(1, ngram + 1)
    assert share == pytest.approx(wanted / wanted.sum(), abs=0.04)


@given(
    seed=st.integers(0, 999),
    ngram=st.integers(1, 6),
    rate=st.floats(0, 1),
    whole_words=st.booleans(),
    key=st.integers(0, 2**64 - 1),
    data=st.data(),
)
def test_none_crosses_a_special_token(rows, vocab, seed, ngram, rate, whole_words, key, data):
    example = rows(60, 20, seed=seed, padded=False)
    cut = data.draw(st.integers(1, 18))
    example.tokens[:, cut] = 3
    noise = masking(rate=rate, ngram=ngram, whole_words=whole_words)
    whole = selected(noise, example, vocab, key)
    # What stands on one side of it is nothing to the other.
    for side in (slice(0, cut), slice(cut + 1, None)):
        other = example.tokens.copy()
        other[:, side] = 1
        rest = np.ones(20, dtype=bool)
        rest[side] = False
        assert np.array_equal(selected(noise, example._replace(tokens=other), vocab, key)[:, rest], whole[:, rest])


def test_a_mask_may_read_from_left_to_right(rows, vocab):
    example = rows(3, 9)
    plain, causal = (masking(causal=c)(example, vocab, 3) for c in (False, True))
    assert plain.visible is None
    assert causal.visible.shape == (1, 9, 9)
    assert causal.visible.dtype == bool
    assert all(causal.visible[0, i, j] == (j <= i) for i in range(9) for j in range(9))
    assert np.array_equal(plain.tokens, causal.tokens)
    assert np.array_equal(plain.places, causal.places)


def test_only_what_is_asked_redefines_the_loss():
    assert "ngram" in MaskedLM.redefines
    assert "causal" not in MaskedLM.redefines


@pytest.mark.parametrize("ngram", [0, -2])
def test_no_words_at_all_are_refused(ngram):
    with pytest.raises(BadInput, match=rf"objective\.mlm\.ngram={ngram} selects nothing: give 1"):
        masking(ngram=ngram)
