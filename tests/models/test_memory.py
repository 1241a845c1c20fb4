"""A memory: segments that are read one after another are one text, as far back as it holds, and no further.

B  streams   T  places   M  places of memory   D  width
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lmab.models.transformer_xl import TransformerXL
from lmab.objectives.clm import CausalLM
from lmab.types import Batch, View

if TYPE_CHECKING:
    from lmab.nn.network import Network

VOCAB = 40
SIZES = {"vocab": VOCAB, "dim": 16, "depth": 3, "heads": 2, "ffn": 24, "length": 5, "memory": 6}
KNOBS = {"positions": "relative", "untied": False, "clamp": None, "cutoffs": [], "dropout": 0.0}
KNOBS |= {"attention_dropout": 0.0, "epsilon": 1e-5, "std": 0.02, "embedding_std": 0.02}


@pytest.fixture(scope="module")
def network(learning, scatter):
    """In double precision, with weights that are all different and none special."""

    @cache
    def made(**changes: object) -> Network:
        model = TransformerXL(learning(CausalLM(half=False, weight=1.0)), **SIZES | KNOBS | changes).double().eval()
        scatter(model)
        return model.network

    return made


def stream(rows: int, places: int) -> Tensor:
    return torch.randint(0, VOCAB, (rows, places), generator=torch.Generator().manual_seed(1))


def changed(tokens: Tensor, place: int) -> Tensor:
    """Another token at a place of the first stream."""
    other = tokens.clone()
    other[0, place] = (other[0, place] + 1) % VOCAB
    return other


def batch(tokens: Tensor, past: Tensor | None = None) -> Batch:
    """Rows in which each place sees itself and those before it."""
    B, T = tokens.shape
    visible = torch.ones(T, T, dtype=torch.bool).tril()[None, None]
    return Batch(tokens, None, View(visible, past=past), {}, torch.arange(B), B, B * T)


def walk(network: Network, tokens: Tensor, lengths: list[int], memory: int, reach: int | None = None) -> Tensor:
    """The last layer of streams that are read in segments: [B, T, D]."""
    held, seen = (), []
    for part in tokens.split(lengths, 1):
        encoded = network(batch(part), memory=held, remember=memory, reach=reach)
        held = encoded.memory
        seen.append(encoded.hidden)
    return torch.cat(seen, 1)


def near(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


# What it gives

KINDS = [{}, {"clamp": 3}, {"untied": True}, {"positions": "shaw", "length": 20, "memory": 20}]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@given(lengths=st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_a_memory_of_everything_makes_segments_one_row(network, kind, lengths):
    # By induction over depth: a place sees the same places of the depth below it, at the same distances.
    model, tokens = network(**kind), stream(2, sum(lengths))
    near(walk(model, tokens, lengths, memory=20), walk(model, tokens, [sum(lengths)], memory=0))


@given(reach=st.integers(1, 7), lengths=st.lists(st.integers(1, 5), min_size=2, max_size=5))
def test_a_memory_as_long_as_the_reach_is_enough_and_one_place_less_is_not(network, reach, lengths):
    # A query sees itself and reach - 1 places before it, so the first one of a segment needs that many of a memory.
    tokens = stream(2, sum(lengths))
    whole = walk(network(), tokens, [sum(lengths)], memory=0, reach=reach)
    near(walk(network(), tokens, lengths, memory=reach - 1, reach=reach), whole)
    if reach > 1:
        shallow = network(depth=1)
        whole = walk(shallow, tokens, [sum(lengths)], memory=0, reach=reach)
        less = walk(shallow, tokens, lengths, memory=reach - 2, reach=reach)
        differs = {int(place) for place in ((less - whole).abs().amax((0, 2)) > 1e-6).nonzero()}
        starts = np.cumsum(lengths[:-1]).tolist()
        assert differs == {start for start in starts if start >= reach - 1}


def test_nothing_is_learnt_through_a_memory(network):
    table = network().embedding.tokens.weight
    first = network()(batch(torch.arange(10).view(2, 5)), remember=6)
    second = network()(batch(torch.arange(20, 30).view(2, 5)), memory=first.memory)
    assert not any(layer.requires_grad for layer in first.memory)
    (gradient,) = torch.autograd.grad(second.hidden.square().sum(), table)
    touched = gradient.abs().amax(1).nonzero().flatten()
    assert touched.tolist() == list(range(20, 30))


# How far it reaches


def earliest(place: int, depth: int, length: int, memory: int) -> int:
    """The first token of which a place knows: at every depth it sees `memory` places before its segment."""
    for _ in range(depth):
        place = place // length * length - memory
    return place


@pytest.mark.parametrize(
    ("length", "memory", "depth"), [(4, 4, 3), (4, 4, 1), (3, 6, 2), (4, 2, 3), (3, 5, 3), (2, 1, 3), (1, 3, 3)]
)
def test_a_memory_reaches_its_length_further_at_every_depth_and_no_further(network, length, memory, depth):
    model, tokens = network(depth=depth, length=length, memory=memory), stream(1, 12 * length)
    lengths = [length] * 12
    place = 12 * length - 1
    first = earliest(place, depth, length, memory)
    if memory % length == 0:
        assert first == 11 * length - depth * memory
    assert first > 0
    known = walk(model, tokens, lengths, memory)[0, place]
    assert torch.equal(walk(model, changed(tokens, first - 1), lengths, memory)[0, place], known)
    assert (walk(model, changed(tokens, first), lengths, memory)[0, place] - known).abs().max() > 1e-9


def test_without_a_memory_a_segment_knows_nothing_of_the_one_before(network):
    model, tokens = network(memory=0), stream(2, 10)
    near(walk(model, tokens, [5, 5], memory=0)[:, 5:], walk(model, tokens[:, 5:], [5], memory=0))


# What may not be seen


@given(place=st.integers(0, 9))
def test_a_token_changes_nothing_before_it_and_something_everywhere_after(network, place):
    model, tokens = network(), stream(2, 10)
    one, two = (walk(model, given, [5, 5], memory=6) for given in (tokens, changed(tokens, place)))
    assert torch.equal(one[0, :place], two[0, :place])
    assert torch.equal(one[1], two[1])
    assert ((one - two)[0, place:].abs().amax(1) > 1e-6).all()


@given(past=st.lists(st.integers(0, 9), min_size=3, max_size=3))
def test_what_a_memory_holds_beyond_the_past_of_a_row_is_not_seen(network, past):
    model, tokens = network(), stream(3, 11)
    memory = model(batch(tokens[:, :6]), remember=6).memory
    rows = batch(tokens[:, 6:], past=torch.tensor(past))
    seen = model(rows, memory=memory).hidden
    for row, known in enumerate(past):
        alone = batch(tokens[row : row + 1, 6:])
        held = tuple(layer[row : row + 1, max(0, 6 - known) :] for layer in memory)
        near(seen[row], model(alone, memory=held if known else ()).hidden[0])
    hidden = torch.arange(6, 0, -1)[None] > torch.tensor(past)[:, None]  # [B, M]
    spoilt = tuple(layer.masked_fill(hidden[..., None], 1e3) for layer in memory)
    assert torch.equal(model(rows, memory=spoilt).hidden, seen)


@given(size=st.integers(1, 6))
def test_rows_do_not_depend_on_their_batch(network, size):
    model, tokens = network(), stream(6, 10)
    together = walk(model, tokens, [5, 5], memory=6)
    near(torch.cat([walk(model, part, [5, 5], memory=6) for part in tokens.split(size)]), together)
