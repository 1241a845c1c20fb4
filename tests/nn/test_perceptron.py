"""A perceptron: by hand, and as whatever asks an encoder finds it."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lmab.nn.network import initialise
from lmab.nn.perceptron import Perceptron, rectified
from lmab.types import Batch, View

SIZES = {"levels": 16, "length": 6, "dim": 5, "depth": 3, "dropout": 0.0, "input_dropout": 0.0}


def made(**changes):
    torch.manual_seed(3)
    return Perceptron(**SIZES | changes).double().eval()


def rows(number: int = 4, length: int = 6, seed: int = 0) -> Batch:
    tokens = torch.randint(0, 17, (number, length), generator=torch.Generator().manual_seed(seed))
    return Batch(tokens, None, View(), {}, torch.arange(number), number, number * length)


def test_a_row_by_hand():
    network = made(length=2, dim=2, depth=2)
    first, second = network.encoder
    with torch.no_grad():
        first.weight.copy_(torch.tensor([[2.0, 0.0], [1.0, -1.0]]))
        first.bias.copy_(torch.tensor([0.5, 0.0]))
        second.weight.copy_(torch.tensor([[1.0, 1.0], [-1.0, 4.0]]))
        second.bias.copy_(torch.tensor([0.0, -1.0]))
    batch = Batch(torch.tensor([[8, 16]]), None, View(), {}, torch.zeros(1), 1, 2)
    found = network(batch, torch.tensor([1]), keep=True)
    # 8 and 16 of 16 are 1/2 and 1; then 2 * 1/2 + 1/2, and 1/2 - 1 is below 0; then 3/2, and -3/2 - 1 is below 0.
    assert [layer.tolist() for layer in found.layers] == [[[[0.5, 1.0]]], [[[1.5, 0.0]]], [[[1.5, 0.0]]]]
    assert found.hidden.tolist() == [[1.5, 0.0]]


@given(number=st.integers(1, 5), data=st.data())
def test_every_place_has_the_state_of_its_row(number, data):
    network, batch = made(), rows(number)
    whole = network(batch)
    assert whole.hidden.shape == (number, 6, 5)
    places = data.draw(st.lists(st.integers(0, number * 6 - 1), unique=True).map(sorted).map(torch.tensor)).long()
    asked = network(batch, places)
    assert torch.equal(asked.hidden, whole.at(places))
    assert torch.equal(asked.hidden, whole.hidden[:, 0][places // 6])
    assert not asked.layers
    assert not asked.attention


def test_layers_are_the_input_and_every_hidden_layer():
    network, batch = made(), rows()
    kept = network(batch, keep=True, attention=True)
    assert [tuple(layer.shape) for layer in kept.layers] == [(4, 1, 6), (4, 1, 5), (4, 1, 5), (4, 1, 5)]
    assert torch.equal(kept.layers[0][:, 0], batch.tokens.double() / 16)
    assert torch.equal(kept.layers[-1][:, 0], kept.hidden[:, 0])
    assert kept.attention == ()


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_only_what_lies_below_a_layer_learns_from_it(depth):
    network = made()
    layer = network(rows(), keep=True).layers[depth]
    if depth:
        layer.square().sum().backward()
    assert [part.weight.grad is not None for part in network.encoder] == [number < depth for number in range(3)]


def test_dropout_falls_on_inputs_and_on_hidden_units():
    batch = Batch(torch.full((200, 6), 16), None, View(), {}, torch.zeros(200), 200, 1200)
    seen = made(input_dropout=0.25).train()(batch, keep=True).layers[0]
    assert set(seen.unique().tolist()) == {0.0, 1 / 0.75}
    assert 0.2 < (seen == 0).double().mean() < 0.3
    network = made(dropout=0.5, dim=50, depth=1)
    plain = network(batch).hidden
    dropped = network.train()(batch).hidden
    alive = plain > 0
    assert 0.45 < (dropped[alive] == 0).double().mean() < 0.55
    kept = dropped > 0
    torch.testing.assert_close(dropped[kept], 2 * plain[kept])


@pytest.mark.parametrize("gain", [1.0, 0.5])
def test_a_signal_keeps_its_size_or_fades_by_the_gain_in_every_layer(gain):
    with torch.device("meta"):
        network = Perceptron(**SIZES | {"length": 400, "dim": 400, "depth": 6})
    initialise(network, 0, rectified(gain))
    assert all(not part.bias.any() for part in network.encoder)
    first = network.encoder[0].weight
    assert first.std().item() == pytest.approx(gain * math.sqrt(2 / 400), rel=0.02)
    layers = network(rows(64, 400), keep=True).layers
    sizes = [layer.square().mean().sqrt().item() for layer in layers]
    for before, after in itertools.pairwise(sizes):
        assert after / before == pytest.approx(gain, rel=0.25)
