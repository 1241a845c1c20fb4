"""Position schemes: what is added to the products of queries and keys is the paper's sum, place by place."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmab.nn.position import Absolute, Distances, Relative, Shaw
from lmab.nn.sight import Sight, look

HEADS, WIDTH = 2, 4
DIM = HEADS * WIDTH


def sinusoid(distance: float) -> torch.Tensor:
    """[DIM] by the formula: sines in the first half, cosines in the second."""
    angles = [distance / 10000 ** (2 * i / DIM) for i in range(DIM // 2)]
    return torch.tensor([*map(math.sin, angles), *map(math.cos, angles)], dtype=torch.float64)


def relative(scatter, *, segments: bool) -> Relative:
    u, v = (torch.nn.Parameter(torch.empty(HEADS, WIDTH)) for _ in range(2))
    scheme = Relative(dim=DIM, u=u, v=v, segments=segments).double()
    scatter(scheme)
    return scheme


def places(batch) -> torch.Tensor:
    """[B, Q] where each query stands, -1 for a place of the second stream that is not used."""
    B, T = batch.tokens.shape
    content = torch.arange(T).expand(B, T)
    return content if batch.view.queries is None else torch.cat([content, batch.view.queries], 1)


def behind(batch, memory: int, row: int, query: int, key: int) -> int:
    """How far a key lies before a query in the text."""
    distance = memory + int(places(batch)[row, query]) - key
    turned = batch.view.backward is not None and bool(batch.view.backward[row])
    return -distance if turned else distance


@settings(max_examples=60)
@given(data=st.data(), segments=st.booleans(), clamp=st.one_of(st.none(), st.integers(1, 6)))
def test_relative_attention_is_the_sum_of_its_terms(scatter, drawn, data, segments, clamp):
    """A_ij = (q + u) k + (q + v) W r + (q + s) e, over sqrt(D), one pair of places after another."""
    given_ = data.draw(drawn())
    batch, M = given_["batch"], given_["memory"]
    B, T = batch.tokens.shape
    asked = places(batch)
    scheme = relative(scatter, segments=segments)
    sight = look(batch, memory=M)
    encoded = Distances(dim=DIM, clamp=clamp, dropout=0.0)(sight, torch.device("cpu")).double()
    sight = Sight(**vars(sight) | {"encoded": encoded})
    query = torch.randn(B, HEADS, asked.shape[1], WIDTH, generator=given_["generator"], dtype=torch.float64)
    with torch.no_grad():
        shifted, bias = scheme(query, sight)
        assert torch.equal(shifted, query + scheme.u[:, None])
        assert bias.shape == (B, HEADS, asked.shape[1], M + T)
        for row, number, key in itertools.product(range(B), range(asked.shape[1]), range(M + T)):
            if asked[row, number] < 0:
                continue
            distance = behind(batch, M, row, number, key)
            if clamp is not None:
                distance = max(-clamp, min(clamp, distance))
            r = (scheme.project.weight @ sinusoid(distance)).view(HEADS, WIDTH)
            wanted = ((query[row, :, number] + scheme.v) * r).sum(-1)
            if segments and batch.segments is not None:
                kind = 0 if key < M else int(batch.segments[row, key - M])
                differs = int(kind != int(batch.segments[row, asked[row, number]]))
                wanted = wanted + ((query[row, :, number] + scheme.s) * scheme.kinds[differs]).sum(-1)
            # The vectors are made in single precision.
            torch.testing.assert_close(bias[row, :, number, key], wanted / math.sqrt(WIDTH), rtol=0, atol=2e-6)


@settings(max_examples=30)
@given(data=st.data(), length=st.integers(1, 8))
def test_shaw_has_a_vector_for_every_distance_up_to_the_longest(scatter, drawn, data, length):
    given_ = data.draw(drawn())
    batch, M = given_["batch"], given_["memory"]
    asked = places(batch)
    scheme = Shaw(heads=HEADS, width=WIDTH, length=length).double()
    scatter(scheme)
    B, Q = asked.shape
    query = torch.randn(B, HEADS, Q, WIDTH, generator=given_["generator"], dtype=torch.float64)
    with torch.no_grad():
        same, bias = scheme(query, look(batch, memory=M))
    assert same is query
    for row, number, key in itertools.product(range(B), range(Q), range(M + batch.tokens.shape[1])):
        if asked[row, number] >= 0:
            vector = scheme.vectors[max(-length, min(length, behind(batch, M, row, number, key))) + length]
            wanted = (query[row, :, number] * vector).sum(-1) / math.sqrt(WIDTH)
            torch.testing.assert_close(bias[row, :, number, key], wanted)


def test_absolute_positions_add_nothing():
    query = torch.randn(1, 2, 3, 4, generator=torch.Generator().manual_seed(0))
    assert Absolute()(query, Sight(3, 0)) == (query, None)


@pytest.mark.parametrize("clamp", [None, 1, 3])
def test_distances_become_sinusoids(clamp):
    found = Distances(dim=DIM, clamp=clamp, dropout=0.0)(Sight(3, 2), torch.device("cpu"))
    wanted = [4, 3, 2, 1, 0, -1, -2]
    if clamp is not None:
        wanted = [max(-clamp, min(clamp, distance)) for distance in wanted]
    torch.testing.assert_close(found.double(), torch.stack([sinusoid(d) for d in wanted]), rtol=0, atol=1e-6)


def test_backward_rows_get_the_distances_of_their_own_direction():
    sight = Sight(3, 2, backward=torch.tensor([False, True]))
    found = Distances(dim=DIM, clamp=None, dropout=0.0)(sight, torch.device("cpu"))
    assert found.shape == (2, 7, DIM)
    half = DIM // 2
    assert torch.equal(found[1, :, :half], -found[0, :, :half])  # sines turn, cosines do not
    assert torch.equal(found[1, :, half:], found[0, :, half:])


def test_dropout_of_distances_is_there_in_training_alone():
    scheme = Distances(dim=DIM, clamp=None, dropout=0.5)
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(0)
        trained = scheme.train()(Sight(9, 0), torch.device("cpu"))
    still = scheme.eval()(Sight(9, 0), torch.device("cpu"))
    dropped = trained == 0
    assert 0.3 < dropped.double().mean() < 0.7
    torch.testing.assert_close(trained[~dropped], 2 * still[~dropped])


def test_without_segments_in_a_batch_their_weights_are_left_out(scatter):
    scheme = relative(scatter, segments=True)
    sight = Sight(2, 0, encoded=torch.randn(3, DIM, dtype=torch.float64))
    _, bias = scheme(torch.ones(1, HEADS, 2, WIDTH, dtype=torch.float64), sight)
    bias.sum().backward()
    assert scheme.s.grad is None
    assert scheme.kinds.grad is None
    assert scheme.v.grad.any()
