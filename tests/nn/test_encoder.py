"""The stack: what a place knows of after some layers, which depth uses which weights, what is remembered and kept."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmab.nn.attention import Attention
from lmab.nn.encoder import Encoder
from lmab.nn.layer import Layer
from lmab.nn.position import Absolute, Distances, Relative
from lmab.nn.sight import Sight, look
from lmab.types import Batch, View

HEADS, DIM = 2, 8
KINDS = pytest.mark.parametrize("kind", ["absolute", "relative"])


def stack(scatter, kind: str, layers: int, order: tuple[int, ...] | None = None) -> Encoder:
    def position() -> torch.nn.Module:
        if kind == "absolute":
            return Absolute()
        u, v = (torch.nn.Parameter(torch.empty(HEADS, DIM // HEADS)) for _ in range(2))
        return Relative(dim=DIM, u=u, v=v, segments=True)

    made = Encoder(
        [
            Layer(
                attention=Attention(dim=DIM, heads=HEADS, dropout=0.0, position=position()),
                dim=DIM,
                ffn=12,
                dropout=0.0,
                epsilon=1e-12,
            )
            for _ in range(layers)
        ],
        order,
    )
    scatter(made)
    return made.double().eval()


def sight(batch: Batch, memory: int) -> Sight:
    found = look(batch, memory=memory)
    encoded = Distances(dim=DIM, clamp=None, dropout=0.0)(found, torch.device("cpu"))
    return replace(found, encoded=encoded.double())


def states(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# Who knows of whom


def known(visible: torch.Tensor, query_visible: torch.Tensor, depth: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[T, T] and [P, T] bool: of which places the content and the second stream know after so many layers. A place
    always knows of itself, since it is added to what it sees; a query begins knowing nothing."""
    through = visible | torch.eye(len(visible), dtype=torch.bool)
    content = torch.eye(len(visible), dtype=torch.bool)
    second = torch.zeros_like(query_visible)
    for _ in range(depth):
        second = second | ((query_visible.double() @ content.double()) > 0)
        content = (through.double() @ content.double()) > 0
    return content, second


@settings(max_examples=60)
@given(T=st.integers(1, 6), P=st.integers(0, 3), share=st.sampled_from([0.1, 0.3, 0.6]), seed=st.integers(0, 999))
@KINDS
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_place_knows_of_what_it_can_reach_and_of_nothing_else_to_the_bit(scatter, kind, depth, T, P, share, seed):
    generator = torch.Generator().manual_seed(seed)
    visible = torch.rand(T, T, generator=generator) < share
    query_visible = torch.rand(P, T, generator=generator) < share
    view = View(
        visible=visible[None, None],
        queries=torch.randint(0, T, (1, P), generator=generator) if P else None,
        query_visible=query_visible[None, None] if P else None,
    )
    batch = Batch(torch.zeros(1, T, dtype=torch.int64), None, view, {}, torch.arange(1), 1, T)
    model, at = stack(scatter, kind, depth), sight(batch, 0)
    hidden = states(1, T + P, seed=seed)
    content, second = known(visible, query_visible, depth)
    with torch.no_grad():
        before = model(hidden, at)
        for place in range(T):
            other = hidden.clone()
            other[0, place] += torch.linspace(0.5, 1.5, DIM)
            after = model(other, at)
            assert torch.equal((before.hidden != after.hidden).any(-1)[0], content[:, place])
            if P:
                assert torch.equal((before.second != after.second).any(-1)[0], second[:, place])
        for slot in range(P):  # nobody looks at a query
            other = hidden.clone()
            other[0, T + slot] += torch.linspace(0.5, 1.5, DIM)
            after = model(other, at)
            assert torch.equal(before.hidden, after.hidden)
            assert (before.second != after.second).any(-1)[0].tolist() == [p == slot for p in range(P)]


@settings(max_examples=30)
@given(past=st.lists(st.integers(0, 6), min_size=2, max_size=2), depth=st.integers(1, 3), place=st.integers(0, 4))
@KINDS
def test_of_the_memory_of_a_depth_as_much_is_known_as_the_row_has_a_past(scatter, kind, past, depth, place):
    T, M = 3, 5
    causal = torch.ones(T, T, dtype=torch.bool).tril()[None, None]
    view = View(visible=causal, past=torch.tensor(past))
    batch = Batch(torch.zeros(2, T, dtype=torch.int64), None, view, {}, torch.arange(2), 2, 2 * T)
    model, hidden = stack(scatter, kind, depth), states(2, T)
    memory = [states(2, M, seed=10 + number) for number in range(depth)]
    with torch.no_grad():
        before = model(hidden, sight(batch, M), memory=memory).hidden
        for changed in range(depth):
            others = [layer.clone() for layer in memory]
            others[changed][:, place] += torch.linspace(0.5, 1.5, DIM)
            moved = (before != model(hidden, sight(batch, M), memory=others).hidden).any(-1)
            assert moved.tolist() == [[M - place <= past[row]] * T for row in range(2)]


# What comes out


def batch_of(B: int, T: int, queries: torch.Tensor | None = None) -> Batch:
    generator = torch.Generator().manual_seed(4)
    view = View(
        visible=(torch.rand(B, 1, T, T, generator=generator) < 0.7),
        queries=queries,
        query_visible=None if queries is None else torch.rand(B, 1, queries.shape[1], T, generator=generator) < 0.7,
    )
    return Batch(torch.zeros(B, T, dtype=torch.int64), None, view, {}, torch.arange(B), B, B * T)


@KINDS
@pytest.mark.parametrize("memory", [0, 4])
@pytest.mark.parametrize("two", [False, True])
def test_asked_at_some_places_the_stack_says_there_what_it_says_everywhere(scatter, kind, two, memory):
    queries = torch.tensor([[1, 4], [0, -1], [2, 3]]) if two else None
    batch, model = batch_of(3, 5, queries), stack(scatter, kind, 2)
    hidden = states(3, 7 if two else 5)
    held = [states(3, memory, seed=d) for d in range(2)] if memory else []
    at = sight(batch, memory)
    whole = model(hidden, at, memory=held, remember=3, keep=True)
    places = torch.tensor([0, 6, 7, 14])
    some = model(hidden, at, places, memory=held, remember=3, keep=True)
    torch.testing.assert_close(some.hidden, whole.hidden.flatten(0, 1)[places])
    none = model(hidden, at, places[:0], memory=held, remember=3)
    assert none.hidden.shape == (0, DIM)
    for other in (some, none):
        assert (other.second is None) == (whole.second is None) == (not two)
        if two:
            assert torch.equal(other.second, whole.second)
        assert all(torch.equal(a, b) for a, b in zip(other.memory, whole.memory, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(some.layers, whole.layers, strict=True))
    assert [layer.shape for layer in whole.layers] == [(3, 5, DIM)] * 2


@pytest.mark.parametrize("order", [(0, 0, 0), (0, 1, 0, 1), (0, 0, 1, 1), (1, 0)])
def test_the_order_says_which_depth_uses_which_weights(scatter, order):
    model, batch, hidden = stack(scatter, "relative", 2, order), batch_of(2, 4), states(2, 4)
    at = sight(batch, 0)
    wanted = hidden
    for number in order:
        wanted = model.layers[number](wanted, at)
    torch.testing.assert_close(model(hidden, at).hidden, wanted)
    assert stack(scatter, "absolute", 3).order == (0, 1, 2)


@given(held=st.integers(0, 6), remember=st.integers(1, 12))
def test_what_is_remembered_of_a_depth_are_the_newest_places_it_read(scatter, held, remember):
    model, batch, hidden = stack(scatter, "relative", 2), batch_of(2, 4), states(2, 4).requires_grad_()
    memory = [states(2, held, seed=5 + d) for d in range(2)] if held else []
    passed = model(hidden, sight(batch, held), memory=memory, remember=remember, keep=True)
    assert torch.equal(passed.layers[0], hidden)
    for depth in range(2):
        read = torch.cat([memory[depth], passed.layers[depth]], 1) if held else passed.layers[depth]
        assert torch.equal(passed.memory[depth], read[:, -remember:])
        assert not passed.memory[depth].requires_grad
        assert passed.memory[depth].grad_fn is None
        assert passed.layers[depth].requires_grad


def test_nothing_is_remembered_or_kept_unless_asked_for(scatter):
    passed = stack(scatter, "absolute", 2)(states(1, 3), sight(batch_of(1, 3), 0))
    assert passed.memory == passed.layers == ()
    assert passed.second is None


@pytest.mark.parametrize("memory", [0, 1, 2, 3])  # as many places as queries too: only the shapes are then alike
def test_two_streams_in_one_call_are_the_two_calls_of_the_paper(scatter, memory):
    """h from h and g from h, with the same weights (Yang et al. 2019, section 2.3)."""
    queries = torch.tensor([[1, 4], [0, 2], [2, 3]])
    batch, model, hidden = batch_of(3, 5, queries), stack(scatter, "relative", 3), states(3, 7)
    at = sight(batch, memory)
    held = [states(3, memory, seed=20 + depth) for depth in range(3)]
    h, g = hidden[:, :5], hidden[:, 5:]
    for layer, before in zip(model.layers, held, strict=True):
        source = torch.cat([before, h], 1)
        h, g = layer(h, at.of("content"), source), layer(g, at.of("second"), source)
    passed = model(hidden, at, memory=held if memory else ())
    torch.testing.assert_close(passed.hidden, h)
    torch.testing.assert_close(passed.second, g)
