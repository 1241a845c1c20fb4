"""The scores of attention, where they are wanted: their values, and that nothing else changes with them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmab.nn.attention import Attention
from lmab.nn.embedding import Words
from lmab.nn.encoder import Encoder
from lmab.nn.heads import Tied
from lmab.nn.layer import Layer
from lmab.nn.network import Network
from lmab.nn.position import Absolute, Distances, Relative, Shaw
from lmab.nn.sight import Sight
from lmab.types import Batch, View

HEADS, WIDTH = 2, 3
DIM = HEADS * WIDTH
KINDS = pytest.mark.parametrize("kind", ["absolute", "relative", "shaw"])


def attention(kind: str, dropout: float = 0.0) -> Attention:
    position: torch.nn.Module = Absolute()
    if kind == "shaw":
        position = Shaw(heads=HEADS, width=WIDTH, length=3)
    elif kind == "relative":
        u, v = (torch.nn.Parameter(torch.empty(HEADS, WIDTH)) for _ in range(2))
        position = Relative(dim=DIM, u=u, v=v, segments=True)
    return Attention(dim=DIM, heads=HEADS, dropout=dropout, position=position)


def network(scatter, kind: str, order: tuple[int, ...] | None = None, dropout: float = 0.0) -> Network:
    made = Network(
        embedding=Words(vocab=20, dim=DIM, dropout=dropout),
        encoder=Encoder(
            [
                Layer(attention=attention(kind, dropout), dim=DIM, ffn=8, dropout=dropout, epsilon=1e-12)
                for _ in range(2)
            ],
            order,
        ),
        head=Tied(vocab=20),
        distances=Distances(dim=DIM, clamp=None, dropout=0.0) if kind == "relative" else None,
        query=torch.nn.Parameter(torch.empty(1, DIM)),
        dim=DIM,
    )
    scatter(made)
    return made.double()


def states(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@settings(max_examples=25)
@given(content=st.integers(1, 5), memory=st.integers(0, 3), masked=st.booleans(), seed=st.integers(0, 99))
@KINDS
def test_a_score_is_the_product_of_its_query_and_its_key_with_what_the_places_say(
    scatter, kind, content, memory, masked, seed
):
    model = attention(kind).double()
    scatter(model, 0.5)
    hidden = states(2, content, seed=seed)
    source = torch.cat([states(2, memory, seed=seed + 100), hidden], 1)
    mask = torch.rand(2, 1, content, memory + content, generator=torch.Generator().manual_seed(seed)) < 0.5
    plain = Sight(content, memory, mask if masked else None)
    at = replace(plain, encoded=Distances(dim=DIM, clamp=None, dropout=0.0)(plain, hidden.device).double())
    found: list[torch.Tensor] = []
    with torch.no_grad():
        mixed = model(hidden, at, source if memory else None, scores=found)
        assert torch.equal(mixed, model(hidden, at, source if memory else None))
        (scores,) = found
        assert scores.shape == (2, HEADS, content, memory + content)
        queries, keys = (
            (rows @ model.qkv.weight.T + model.qkv.bias).view(2, -1, 3, HEADS, WIDTH)[:, :, part]
            for part, rows in enumerate((hidden, source))
        )
        query, bias = model.position(queries.transpose(1, 2), at)
        for row in range(2):
            for head in range(HEADS):
                for i in range(content):
                    for j in range(memory + content):
                        wanted = float(query[row, head, i] @ keys[row, j, head]) / math.sqrt(WIDTH)
                        wanted += 0 if bias is None else float(bias[row, head, i, j])
                        assert float(scores[row, head, i, j]) == pytest.approx(wanted, abs=1e-12)


@settings(max_examples=25)
@given(data=st.data())
@KINDS
def test_they_are_those_of_the_content_and_of_every_depth(scatter, drawn, kind, data):
    """Whatever else stands beside it, and wherever the last layer is asked for."""
    view = data.draw(drawn())
    batch, M = view["batch"], view["memory"]
    B, T = batch.tokens.shape
    model = network(scatter, kind, data.draw(st.sampled_from([None, (0, 0, 1), (1, 1)]))).eval()
    depth = len(model.encoder.order)
    held = [states(B, M, seed=10 + number) for number in range(depth)] if M else []
    places = data.draw(st.sampled_from([None, torch.tensor([0]), torch.empty(0, dtype=torch.int64)]))
    with torch.no_grad():
        plain = model(batch, places, memory=held)
        asked = model(batch, places, memory=held, attention=True)
        # A content that nothing stands beside looks at the same keys.
        alone = replace(batch, view=replace(batch.view, queries=None, query_visible=None))
        single = model(alone, memory=held, attention=True).attention
    assert plain.attention == ()
    assert [scores.shape for scores in asked.attention] == [(B, HEADS, T, M + T)] * depth
    for mine, theirs in zip(asked.attention, single, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)
    assert torch.equal(plain.hidden, asked.hidden)
    assert plain.second is None or torch.equal(plain.second, asked.second)


def test_depths_that_share_a_layer_have_scores_of_their_own(scatter):
    model = network(scatter, "absolute", (0, 0, 0)).eval()
    batch = Batch(torch.tensor([[3, 4, 5]]), None, View(), {}, torch.arange(1), 1, 3)
    found = model(batch, attention=True).attention
    assert len(found) == 3
    assert not torch.allclose(found[0], found[1])
    assert not torch.allclose(found[1], found[2])
    assert model.heads == (HEADS,) * 3
    assert model.widths == (DIM,) * 4


@KINDS
def test_nothing_changes_in_training_where_they_are_wanted_and_they_have_gradients(scatter, kind):
    model = network(scatter, kind, dropout=0.3).train()
    tokens = torch.randint(0, 20, (2, 4), generator=torch.Generator().manual_seed(2))
    view = View(queries=torch.tensor([[1, -1], [3, 0]]), query_visible=torch.ones(2, 1, 2, 4, dtype=torch.bool))
    batch = Batch(tokens, None, view, {}, torch.arange(2), 2, 8)

    def passed(wanted: bool):
        with torch.random.fork_rng():
            torch.default_generator.manual_seed(5)
            return model(batch, torch.tensor([1, 6]), attention=wanted)

    plain, asked = passed(False), passed(True)
    assert torch.equal(plain.hidden, asked.hidden)
    assert torch.equal(plain.second, asked.second)
    sum(scores.square().sum() for scores in asked.attention).backward()
    first, last = (layer.attention.qkv.weight.grad for layer in model.encoder.layers)
    assert float(first.abs().min(1).values[: 2 * DIM].max()) > 0
    assert float(last[: 2 * DIM].abs().max()) > 0
    assert float(last[2 * DIM :].abs().max()) == 0  # the last values are mixed after the last scores
