"""Permutation LM: who sees whom is exactly what the order says, and how often what is a target."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lmab.data.collate import Collate
from lmab.objectives.plm import Permutation, PermutationLM
from lmab.types import BadInput, Encoded

kinds = st.builds(lambda k, span: Permutation(k=k, span=span), st.integers(1, 8), st.integers(1, 6))
seeds = st.integers(0, 999)
keys = st.integers(0, 2**64 - 1)


def targets_of(noised, i: int) -> list[int]:
    """The target places of a row."""
    T = noised.tokens.shape[1]
    return (noised.places[noised.places // T == i] - i * T).tolist()


@given(noise=kinds, B=st.integers(1, 5), T=st.integers(3, 24), seed=seeds, key=keys)
def test_targets_are_ordinary_tokens_and_queries_are_their_places(rows, vocab, noise, B, T, seed, key):
    example = rows(B, T, seed=seed)
    noised = noise(example, vocab, key)
    assert noised.tokens is example.tokens
    assert np.array_equal(noised.answers, example.tokens.reshape(-1)[noised.places])
    assert not vocab.special[noised.answers].any()
    assert (np.diff(noised.places) > 0).all()
    assert noised.queries.shape == (B, noise.queries(T))
    assert noised.queries.dtype == noised.places.dtype == noised.answers.dtype == np.int64
    # The used queries come first and hold the places, row by row, as the targets do.
    used = noised.queries >= 0
    assert (np.diff(used.astype(int), axis=1) <= 0).all()
    assert np.array_equal(np.nonzero(used)[0] * T + noised.queries[used], noised.places)
    if noise.k == 1:
        assert np.array_equal(noised.places, np.flatnonzero(~vocab.special[example.tokens]))


@given(noise=kinds, T=st.integers(3, 16), seed=seeds, key=keys)
def test_who_sees_whom_is_what_the_order_says(rows, vocab, noise, T, seed, key):
    example = rows(3, T, seed=seed)
    noised = noise(example, vocab, key)
    assert noised.visible.shape == (3, T, T)
    assert noised.query_visible.shape == (3, noised.queries.shape[1], T)
    for i in range(3):
        targets = targets_of(noised, i)
        others = sorted(set(range(T)) - set(targets))
        sees = {p: set(np.flatnonzero(noised.visible[i, p]).tolist()) for p in range(T)}
        asks = {p: set(np.flatnonzero(noised.query_visible[i, s]).tolist()) for s, p in enumerate(targets)}
        # In the order, the next target sees one more than the last; those that are none see each other alone.
        order = sorted(targets, key=lambda p: len(asks[p]))
        for number, p in enumerate(order):
            assert asks[p] == set(others) | set(order[:number])
            assert sees[p] == asks[p] | {p}
        assert all(sees[p] == set(others) for p in others)
        assert not noised.query_visible[i, len(targets) :].any()


@given(noise=kinds, T=st.integers(3, 16), seed=seeds, key=keys)
def test_nothing_tells_a_query_what_stands_there(rows, vocab, noise, T, seed, key):
    """However many layers there are: what a query sees has itself seen neither its place nor a later one."""
    example = rows(2, T, seed=seed)
    batch = Collate({"plm": noise}, vocab, key)(example)
    content, query = batch.view.visible[:, 0].float(), batch.view.query_visible[:, 0].float()
    known = query
    for _ in range(4):
        assert torch.equal(known > 0, query > 0)
        known = known @ content
    row, slot = (batch.view.queries >= 0).nonzero(as_tuple=True)
    assert not query[row, slot, batch.view.queries[row, slot]].any()
    for i, length in enumerate(example.lengths):
        assert not content[i, :, length:].any()
        assert not query[i, :, length:].any()


def test_every_order_of_three_is_as_likely_as_every_other(rows, vocab):
    example = rows(12_000, 5, padded=False, inside=0.0)
    noised = Permutation(k=1, span=1)(example, vocab, 11)
    seen = noised.query_visible[:, :3, 1:4].sum(-1)  # how many targets stand before it
    counts = Counter(map(tuple, seen.tolist()))
    assert sorted(counts) == sorted(itertools.permutations(range(3)))
    assert all(abs(n - 2_000) < 5 * math.sqrt(12_000 / 6 * 5 / 6) for n in counts.values())


@pytest.mark.parametrize(("k", "span"), [(1, 4), (2, 1), (2, 5), (3, 3), (6, 1), (6, 5)])
def test_every_place_is_a_target_once_in_k(rows, vocab, k, span):
    example = rows(20_000, 23, padded=False)
    example.tokens[:] = 9
    noised = Permutation(k=k, span=span)(example, vocab, 3)
    share = np.bincount(noised.places % 23, minlength=23) / 20_000
    assert np.abs(share - 1 / k).max() <= 5 * math.sqrt(1 / k * (1 - 1 / k) / 20_000)


def run_lengths(noised) -> list[int]:
    """How many targets stand side by side, without the runs that touch an edge of the row."""
    lengths = []
    T = noised.tokens.shape[1]
    for i in range(len(noised.tokens)):
        here = np.isin(np.arange(T), targets_of(noised, i))
        edges = np.diff(here.astype(int), prepend=0, append=0)
        begins, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
        lengths += [int(e - b) for b, e in zip(begins, ends, strict=True) if b > 0 and e < T]
    return lengths


@pytest.mark.parametrize("span", [1, 3, 5])
def test_runs_have_every_length_up_to_the_span_equally_often(rows, vocab, span):
    # With k this large two runs hardly ever touch.
    example = rows(150, 1_000, padded=False)
    example.tokens[:] = 9
    noise = Permutation(k=30, span=span)
    lengths = run_lengths(noise(example, vocab, 5))
    assert len(lengths) > 1_000
    share = np.bincount(lengths, minlength=span + 1)[1 : span + 1] / len(lengths)
    assert share == pytest.approx(np.full(span, 1 / span), abs=0.06)
    said = noise.describe(example, vocab, 5)
    assert said["rate"] == pytest.approx(1 / 30, abs=0.003)
    assert said["span"] == pytest.approx((span + 1) / 2, abs=0.15)


def test_a_run_stands_anywhere_in_its_window(rows, vocab):
    # One of every two: the second of two neighbours is 1, 2 or 3 further, as two throws of a coin have it.
    example = rows(50, 400, padded=False)
    example.tokens[:] = 9
    noised = Permutation(k=2, span=1)(example, vocab, 5)
    gaps = np.concatenate([np.diff(targets_of(noised, i)) for i in range(50)])
    share = np.bincount(gaps, minlength=4)[1:] / len(gaps)
    assert share == pytest.approx([1 / 4, 1 / 2, 1 / 4], abs=0.02)


@given(noise=kinds, width=st.integers(1, 80))
def test_the_queries_of_a_width_hold_the_fullest_row(noise, width):
    # The fullest row that windows allow: a run that ends the first window, whole windows, and one that begins the last.
    fullest = 0
    for left, right in itertools.product(range(noise.span + 1), repeat=2):
        if left + right <= width:
            fullest = max(fullest, left + right + (width - left - right) // noise.k)
    assert noise.queries(width) == fullest


def test_the_number_of_queries_is_that_of_the_width_alone(rows, vocab):
    noise = Permutation(k=6, span=5)
    assert noise.queries(512) == 10 + 502 // 6
    for seed in range(5):
        assert noise(rows(3, 32, seed=seed, padded=False), vocab, seed).queries.shape == (3, 13)


@given(noise=kinds, seed=seeds, key=keys)
def test_it_does_not_depend_on_the_batch_or_its_padding(rows, vocab, alone, noise, seed, key):
    example = rows(4, 14, seed=seed)
    whole = noise(example, vocab, key)
    for i, row in alone(example):
        noised, length = noise(row, vocab, key), example.lengths[i]
        mine = targets_of(whole, i)
        assert targets_of(noised, 0) == mine
        assert np.array_equal(noised.visible[0, :length, :length], whole.visible[i, :length, :length])
        used = np.s_[: len(mine), :length]
        assert np.array_equal(noised.query_visible[0][used], whole.query_visible[i][used])


def test_targets_and_orders_change_with_the_epoch_the_example_and_the_key(rows, vocab):
    noise = Permutation(k=2, span=2)

    def drawn(epoch: int = 0, number: int = 0, key: int = 0):
        example = rows(1, 30, padded=False, epoch=epoch)
        return noise(example._replace(number=np.array([number])), vocab, key)

    assert np.array_equal(drawn().visible, drawn().visible)
    for other in (drawn(epoch=1), drawn(number=1), drawn(key=1)):
        assert not np.array_equal(drawn().places, other.places)
    # With K = 1 the targets are always the same, and the order is not.
    noise = Permutation(k=1, span=1)
    one, two = drawn(), drawn(epoch=1)
    assert np.array_equal(one.places, two.places)
    assert not np.array_equal(one.query_visible, two.query_visible)


def test_the_first_of_a_full_permutation_may_see_nobody(rows, vocab):
    example = rows(1, 6, padded=False)
    example.tokens[:] = 9
    noised = Permutation(k=1, span=1)(example, vocab, 0)
    assert sorted(noised.query_visible[0].sum(-1).tolist()) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("k", [1, 3, 50])
def test_the_loss_is_the_cross_entropy_in_the_second_stream(rows, vocab, network, states, k):
    example, hidden = rows(5, 12, seed=1), states(5, 12)
    loss = PermutationLM(k=k, span=2, weight=2.0)
    batch = Collate({"plm": loss.noise}, vocab, 3)(example)
    targets = batch.targets["plm"]
    assert targets.second
    second = states(len(targets.places), seed=4)
    outcome = loss(network, Encoded(hidden, second=second), batch)
    chances = torch.softmax(second @ network.scores.T, -1)
    answers = torch.from_numpy(example.tokens).flatten()[outcome.places]
    torch.testing.assert_close(outcome.losses, -chances.gather(1, answers[:, None])[:, 0].log())
    assert torch.equal(outcome.hits, chances.argmax(-1) == answers)
    (outcome.losses.sum() + 0 * hidden.sum()).backward()
    wanted = (chances - torch.eye(60, dtype=torch.float64)[answers]) @ network.scores
    torch.testing.assert_close(second.grad, wanted.detach())
    assert not hidden.grad.any()


def test_what_it_says_of_itself():
    assert PermutationLM.redefines == ("k", "span")
    assert PermutationLM.nats_a_token
    assert PermutationLM.second_stream


@pytest.mark.parametrize("name", ["k", "span"])
def test_numbers_below_one_are_refused(name):
    with pytest.raises(BadInput, match=rf"objective\.plm\.{name}=0 selects nothing: give 1 or more"):
        PermutationLM(**{"k": 6, "span": 5, "weight": 1.0} | {name: 0})
