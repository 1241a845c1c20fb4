"""Collating: who is seen, which segment a token belongs to, and noises that do not know of each other."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lmab.data.collate import Collate
from lmab.objectives.mlm import Masking
from lmab.types import Example, Vocabulary

special = np.arange(40) < 5
VOCABULARY = Vocabulary(40, 0, 1, 2, 3, 4, special, special & False)
NOISE = Masking(rate=0.4, mask=0.8, random=0.1, whole_words=False, copies=None)


def example(lengths: list[int], second: list[int] | None = None, width: int | None = None) -> Example:
    """Rows of such lengths, padded to the width of the longest or to a given one."""
    B, T = len(lengths), width or max(lengths)
    real = np.arange(T) < np.array(lengths)[:, None]
    tokens = np.where(real, np.arange(B * T).reshape(B, T) % 35 + 5, 0)
    return Example(
        tokens=tokens,
        lengths=np.array(lengths),
        second=np.array(second or lengths),
        label=np.full(B, np.nan),
        document=np.arange(B) * 3,
        number=np.arange(B) + 100,
        epoch=np.zeros(B, dtype=np.int64),
    )


plain = Collate({}, VOCABULARY, 0)


def test_rows_without_padding_have_no_mask():
    batch = plain(example([6, 6, 6]))
    assert batch.view.visible is None
    assert batch.segments is None
    assert (batch.examples, batch.real) == (3, 18)


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=5), more=st.integers(0, 4))
def test_every_query_sees_the_real_tokens_of_its_row_and_no_others(lengths, more):
    batch = plain(example(lengths, width=max(lengths) + more))
    B, T = batch.tokens.shape
    assert (batch.examples, batch.real) == (len(lengths), sum(lengths))
    assert batch.document.tolist() == [3 * i for i in range(B)]
    if more == 0 and len(set(lengths)) == 1:
        assert batch.view.visible is None
    else:
        visible = batch.view.visible
        assert visible.dtype == torch.bool
        assert visible.shape == (B, 1, 1, T)
        assert visible[:, 0, 0].tolist() == [[place < length for place in range(T)] for length in lengths]


def test_segments_begin_where_the_second_one_does():
    batch = plain(example([6, 4, 5], second=[2, 4, 3]))
    assert batch.segments.dtype == torch.int64
    rows = [row[:length].tolist() for row, length in zip(batch.segments, [6, 4, 5], strict=True)]
    assert rows == [[0, 0, 1, 1, 1, 1], [0, 0, 0, 0], [0, 0, 0, 1, 1]]


def test_a_noise_gives_the_targets_and_what_is_read():
    rows = example([9, 7, 8])
    batch = Collate({"mlm": NOISE}, VOCABULARY, 5)(rows)
    targets = batch.targets["mlm"]
    assert len(targets.places) > 0
    assert torch.equal(targets.answers, torch.from_numpy(rows.tokens).flatten()[targets.places])
    changed = (batch.tokens != torch.from_numpy(rows.tokens)).flatten().nonzero().flatten()
    assert set(changed.tolist()) <= set(targets.places.tolist())
    assert len(changed) > 0


def test_a_further_objective_leaves_the_noise_of_the_first_as_it_was():
    rows = example([9, 7, 8])
    alone = Collate({"mlm": NOISE}, VOCABULARY, 5)(rows)
    beside = Collate({"mlm": NOISE, "other": NOISE}, VOCABULARY, 5)(rows)
    assert torch.equal(alone.targets["mlm"].places, beside.targets["mlm"].places)
    assert torch.equal(alone.targets["mlm"].answers, beside.targets["mlm"].answers)
    # The other has a key of its own: under the same one it would ask again where the first left a token standing.
    assert not set(beside.targets["other"].places.tolist()) <= set(beside.targets["mlm"].places.tolist())


@pytest.mark.parametrize("other", [6, 7])
def test_the_noise_depends_on_the_seed(other):
    rows = example([9] * 20)
    one, two = (Collate({"mlm": NOISE}, VOCABULARY, seed)(rows).targets["mlm"] for seed in (5, other))
    assert not torch.equal(one.places, two.places)


def test_the_examples_are_left_as_they_were():
    rows = example([9, 7, 8])
    before = rows.tokens.copy()
    Collate({"mlm": NOISE}, VOCABULARY, 5)(rows)
    assert np.array_equal(rows.tokens, before)


def test_a_batch_moves_as_a_whole():
    batch = Collate({"mlm": NOISE}, VOCABULARY, 5)(example([9, 7, 8], second=[3, 7, 8]))
    moved = batch.to(torch.device("meta"))
    assert moved.tokens.is_meta
    assert moved.segments.is_meta
    assert moved.view.visible.is_meta
    assert moved.document.is_meta
    assert moved.targets["mlm"].places.is_meta
    assert moved.targets["mlm"].answers.is_meta
    assert (moved.examples, moved.real) == (batch.examples, batch.real)
