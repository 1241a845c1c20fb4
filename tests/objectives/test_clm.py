"""Causal LM: answers that are the text itself, each once, and a view that never holds what is asked."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lmab.data.collate import Collate
from lmab.objectives.clm import CausalLM, NextToken
from lmab.types import BadInput, Encoded

full, half = NextToken(half=False), NextToken(half=True)


def asked(noised, T: int) -> dict[tuple[int, int], int]:
    """(row, place) -> answer."""
    row, place = np.divmod(noised.places, T)
    return dict(zip(zip(row.tolist(), place.tolist(), strict=True), noised.answers.tolist(), strict=True))


def ahead_of(example, seed: int) -> np.ndarray:
    """What streams go on with: nothing, an ordinary token, or a special one."""
    return np.random.default_rng(seed).choice([-1, 3, 17, 40], len(example.tokens))


@given(B=st.integers(1, 5), T=st.integers(3, 20), seed=st.integers(0, 999), stream=st.booleans())
def test_answers_are_the_text_and_each_ordinary_token_is_asked_once(rows, vocab, B, T, seed, stream):
    example = rows(B, T, seed=seed)
    if stream:
        example = example._replace(ahead=ahead_of(example, seed))
    noised = full(example, vocab, 0)
    wanted = {}
    for i, length in enumerate(example.lengths):
        text = example.tokens[i, :length].tolist() + ([int(example.ahead[i])] if stream else [])
        for place, token in enumerate(text[1:]):
            if token >= 5:
                wanted[i, place] = token
    assert asked(noised, T) == wanted
    assert noised.tokens is example.tokens
    assert (np.diff(noised.places) > 0).all()
    assert noised.places.dtype == noised.answers.dtype == np.int64


@given(B=st.integers(1, 5), T=st.integers(3, 20), seed=st.integers(0, 999))
def test_half_asks_in_the_second_half_of_what_is_real(rows, vocab, B, T, seed):
    example = rows(B, T, seed=seed)._replace(ahead=ahead_of(rows(B, T, seed=seed), seed))
    every = asked(full(example, vocab, 0), T)
    later = {(i, place): token for (i, place), token in every.items() if place >= example.lengths[i] / 2}
    assert asked(half(example, vocab, 0), T) == later


def test_half_asks_half(rows, vocab):
    example = rows(50, 40, padded=False, inside=0.0)
    assert full.describe(example, vocab, 0) == {"rate": 1.0}
    # 38 ordinary tokens; those at places 21 to 38 are predicted at places 20 to 37.
    assert half.describe(example, vocab, 0) == {"rate": 18 / 38}


def test_each_place_sees_itself_and_those_before_it(rows, vocab):
    example = rows(4, 9)
    batch = Collate({"clm": full}, vocab, 0)(example)
    assert full(example, vocab, 0).visible.shape == (1, 9, 9)
    for i, length in enumerate(example.lengths):
        for query in range(9):
            seen = batch.view.visible[i, 0, query].nonzero().flatten().tolist()
            assert seen == [key for key in range(9) if key <= query and key < length]
    assert not batch.targets["clm"].second


@pytest.mark.parametrize("noise", [full, half])
def test_it_does_not_depend_on_the_batch_or_its_padding(rows, vocab, alone, noise):
    example = rows(6, 12)
    example = example._replace(ahead=ahead_of(example, 5))
    whole = asked(noise(example, vocab, 0), 12)
    for i, row in alone(example):
        mine = {(0, place): token for (j, place), token in whole.items() if j == i}
        assert asked(noise(row, vocab, 9), row.tokens.shape[1]) == mine


def test_the_loss_is_the_cross_entropy_of_what_follows(rows, vocab, network, states):
    example, hidden = rows(5, 12), states(5, 12)
    loss = CausalLM(half=False, weight=0.5)
    assert loss.weight == 0.5
    batch = Collate({"clm": loss.noise}, vocab, 3)(example)
    outcome = loss(network, Encoded(hidden), batch)
    row, place = np.divmod(outcome.places.numpy(), 12)
    chances = torch.softmax(hidden[row, place] @ network.scores.T, -1)
    following = example.tokens[row, place + 1]
    torch.testing.assert_close(outcome.losses, -chances[range(len(row)), following].log())
    assert outcome.hits.tolist() == (chances.argmax(-1).numpy() == following).tolist()
    # Its gradient is (softmax - onehot) E at the targets, and nothing elsewhere.
    outcome.losses.sum().backward()
    chances = chances.detach()
    chances[range(len(row)), following] -= 1
    wanted = torch.zeros(5, 12, 6, dtype=torch.float64)
    wanted[row, place] = chances @ network.scores.detach()
    torch.testing.assert_close(hidden.grad, wanted)


def test_what_it_says_of_itself():
    assert CausalLM.redefines == ("half",)
    assert CausalLM.nats_a_token
    with pytest.raises(BadInput, match=r"objective\.clm\.weight=-1 cannot work: give a finite number from 0 up"):
        CausalLM(half=False, weight=-1)
