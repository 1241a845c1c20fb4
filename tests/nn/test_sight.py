"""Who sees whom at which distance: masks, distances and segments as a double loop has them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lmab.nn.sight import Sight, look
from lmab.types import Batch, View

if TYPE_CHECKING:
    from torch import Tensor


def askers(batch: Batch) -> list[tuple[int, int, int]]:
    """Row, number of the query, and its place, of the content and of the used places of the second stream."""
    B, T = batch.tokens.shape
    found = [(b, i, i) for b in range(B) for i in range(T)]
    if batch.view.queries is not None:
        found += [(b, T + p, place) for b in range(B) for p, place in enumerate(batch.view.queries[b].tolist())]
    return [asker for asker in found if asker[2] >= 0]


def may(batch: Batch, memory: int, reach: int | None, row: int, query: int, place: int, key: int) -> bool:
    """Does the query of a row see a key? By the words of the documentation."""
    T, view = batch.tokens.shape[1], batch.view
    if reach is not None and memory + place - key >= reach:
        return False
    if key < memory:
        return view.past is None or memory - key <= int(view.past[row])
    matrix = view.visible if query < T else view.query_visible
    if matrix is None:
        return True
    matrix = matrix.expand(batch.tokens.shape[0], 1, matrix.shape[2] if query >= T else T, T)
    return bool(matrix[row, 0, query if query < T else query - T, key - memory])


@given(st.data(), st.one_of(st.none(), st.integers(1, 9)))
def test_the_mask_is_what_every_rule_allows(drawn, data, reach):
    given_ = data.draw(drawn())
    batch, M = given_["batch"], given_["memory"]
    B, T = batch.tokens.shape
    P = 0 if batch.view.queries is None else batch.view.queries.shape[1]
    sight = look(batch, memory=M, reach=reach)
    mask = torch.ones(1, 1, 1, 1, dtype=torch.bool) if sight.mask is None else sight.mask
    assert mask.dtype == torch.bool
    mask = mask.expand(B, 1, T + P, M + T)
    for (row, query, place), key in itertools.product(askers(batch), range(M + T)):
        assert mask[row, 0, query, key] == may(batch, M, reach, row, query, place, key)
    for part, rows in (("content", slice(0, T)), ("second", slice(T, None))):
        of = sight.of(part)
        if P and sight.mask is not None:
            assert torch.equal(of.mask.expand(B, 1, -1, M + T).expand_as(mask[:, :, rows]), mask[:, :, rows])
        elif not P:
            assert of is sight


@given(st.data())
def test_segments_differ_where_they_do_and_a_memory_is_of_the_first(drawn, data):
    given_ = data.draw(drawn())
    batch, M = given_["batch"], given_["memory"]
    sight = look(batch, memory=M)
    if batch.segments is None:
        assert sight.differs is None
        return
    for (row, query, place), key in itertools.product(askers(batch), range(M + batch.tokens.shape[1])):
        other = 0 if key < M else int(batch.segments[row, key - M])
        assert sight.differs[row, query, key] == (int(batch.segments[row, place]) != other)


def naive(sight: Sight, scores: Tensor, batch: Batch) -> dict[tuple[int, int, int], Tensor]:
    """Row, query, key -> the scores [H] of the query for the distance at which the key lies behind it."""
    behind = sight.distances(scores.device).expand(len(batch.tokens), -1)
    found = {}
    for (row, query, place), key in itertools.product(askers(batch), range(sight.memory + sight.content)):
        distance = sight.memory + place - key
        if batch.view.backward is not None and batch.view.backward[row]:
            distance = -distance
        (number,) = (behind[row] == distance).nonzero().flatten().tolist()
        found[row, query, key] = scores[row, :, query, number]
    return found


@given(st.data())
def test_scores_by_distance_become_scores_by_key(drawn, data):
    given_ = data.draw(drawn())
    batch, M = given_["batch"], given_["memory"]
    B, T = batch.tokens.shape
    P = 0 if batch.view.queries is None else batch.view.queries.shape[1]
    sight = look(batch, memory=M)
    scores = torch.randn(B, 2, T + P, M + 2 * T - 1, generator=given_["generator"])
    by_key = sight.by_key(scores)
    assert by_key.shape == (B, 2, T + P, M + T)
    for (row, query, key), wanted in naive(sight, scores, batch).items():
        assert torch.equal(by_key[row, :, query, key], wanted)
    # Each stream alone gives its own part of that.
    assert torch.equal(sight.of("content").by_key(scores[:, :, :T]), by_key[:, :, :T])
    if P:
        assert torch.equal(sight.of("second").by_key(scores[:, :, T:]), by_key[:, :, T:])


@given(content=st.integers(1, 7), memory=st.integers(0, 7))
def test_distances_run_from_the_oldest_key_to_the_furthest_ahead(content, memory):
    behind = Sight(content, memory).distances(torch.device("cpu"))
    assert behind.tolist() == list(range(memory + content - 1, -content, -1))
    both = Sight(content, memory, backward=torch.tensor([False, True])).distances(torch.device("cpu"))
    assert both.tolist() == [behind.tolist(), (-behind).tolist()]


def plain(**view: Any) -> Batch:
    tokens = torch.zeros(2, 4, dtype=torch.int64)
    return Batch(tokens, None, View(**view), {}, torch.arange(2), 2, 8)


def test_where_all_see_all_there_is_no_mask():
    assert look(plain(), memory=0).mask is None
    assert look(plain(), memory=3).mask is None
    assert look(plain(past=torch.tensor([1, 2])), memory=0).mask is None


@pytest.mark.parametrize("memory", [0, 3, 6])
@pytest.mark.parametrize("reach", [1, 2, 5, 20])
def test_a_reach_counts_keys_back_from_the_query_itself(memory, reach):
    causal = torch.ones(4, 4, dtype=torch.bool).tril()[None, None]
    mask = look(plain(visible=causal), memory=memory, reach=reach).mask
    assert mask.expand(2, 1, 4, -1).sum(-1)[0, 0].tolist() == [min(reach, memory + 1 + i) for i in range(4)]


@pytest.mark.parametrize("past", [0, 1, 2, 3, 4, 100])
def test_of_a_memory_the_newest_places_are_seen(past):
    mask = look(plain(past=torch.tensor([past, 0])), memory=3).mask.expand(2, 1, 4, 7)
    assert mask[0, 0, :, :3].tolist() == [[3 - m <= past for m in range(3)]] * 4
    assert not mask[1, 0, :, :3].any()
    assert mask[..., 3:].all()
