"""Heads: scores and losses by formula; the adaptive softmax is a distribution, and torch's own where both exist."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from lmab.nn.heads import Adaptive, Pooler, Tied, TokenHead
from lmab.types import BadInput

VOCAB, DIM = 11, 4


@st.composite
def cutoffs(draw) -> list[int]:
    return sorted(draw(st.sets(st.integers(1, VOCAB - 1), min_size=1, max_size=4)))


def adaptive(scatter, ends: list[int]) -> Adaptive:
    head = Adaptive(dim=DIM, vocab=VOCAB, cutoffs=ends).double()
    scatter(head, 0.7)
    return head


def drawn(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# Adaptive softmax


@given(ends=cutoffs(), n=st.integers(0, 9), seed=st.integers(0, 99))
def test_losses_are_what_a_distribution_over_all_types_says(scatter, ends, n, seed):
    head, hidden, table = adaptive(scatter, ends), drawn(n, DIM, seed=seed), drawn(VOCAB, DIM, seed=seed + 1)
    answers = torch.randint(0, VOCAB, (n,), generator=torch.Generator().manual_seed(seed))
    scores = head(hidden, table)
    assert scores.shape == (n, VOCAB)
    torch.testing.assert_close(scores.exp().sum(1), torch.ones(n, dtype=torch.float64), rtol=0, atol=1e-12)
    losses, hits = head.losses(hidden, table, answers)
    torch.testing.assert_close(losses, -scores[range(n), answers], rtol=0, atol=1e-12)
    assert hits.dtype == torch.bool
    # A hit: its cluster beats the frequent types and the other clusters, and it beats the types of its cluster.
    starts, scores = [0, *ends, VOCAB], scores.detach()
    for i, answer in enumerate(answers.tolist()):
        cluster = sum(answer >= end for end in ends)
        best = [float(scores[i, t]) for t in range(ends[0])]
        best += [float(scores[i, a:b].logsumexp(0)) for a, b in itertools.pairwise(starts[1:])]
        mine = answer if cluster == 0 else ends[0] + cluster - 1
        inside = scores[i, starts[cluster] : starts[cluster + 1]]
        wanted = best[mine] >= max(best) - 1e-12 and (cluster == 0 or scores[i, answer] >= inside.max() - 1e-12)
        assert bool(hits[i]) == wanted


@settings(max_examples=20)
@given(ends=cutoffs(), seed=st.integers(0, 99))
def test_losses_and_gradients_are_those_of_torch(scatter, ends, seed):
    """Its clusters have a matrix and no bias, behind a projection that is left out where they keep the width."""
    head, table = adaptive(scatter, ends), drawn(VOCAB, DIM, seed=seed).requires_grad_()
    peer = torch.nn.AdaptiveLogSoftmaxWithLoss(DIM, VOCAB, ends, div_value=1.0, head_bias=True).double()
    with torch.no_grad():
        head.bias[ends[0] :] = 0
        peer.head.weight.copy_(torch.cat([table[: ends[0]], head.clusters.weight]))
        peer.head.bias.copy_(torch.cat([head.bias[: ends[0]], head.clusters.bias]))
        for part, start, stop in zip(peer.tail, ends, [*ends[1:], VOCAB], strict=True):
            part[0].weight.copy_(torch.eye(DIM))
            part[1].weight.copy_(table[start:stop])
    ours, theirs = (drawn(6, DIM, seed=seed + 1).requires_grad_() for _ in range(2))
    answers = torch.randint(0, VOCAB, (6,), generator=torch.Generator().manual_seed(seed))
    losses, _ = head.losses(ours, table, answers)
    said = peer(theirs, answers)
    torch.testing.assert_close(losses, -said.output, rtol=0, atol=1e-12)
    torch.testing.assert_close(head(ours, table), peer.log_prob(theirs), rtol=0, atol=1e-12)
    losses.sum().backward()
    (-said.output.sum()).backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=1e-12)
    torch.testing.assert_close(table.grad[: ends[0]], peer.head.weight.grad[: ends[0]], rtol=0, atol=1e-12)
    torch.testing.assert_close(head.clusters.weight.grad, peer.head.weight.grad[ends[0] :], rtol=0, atol=1e-12)


@pytest.mark.parametrize("ends", [[1], [4, 7], [1, 2, 10]])
def test_the_gradient_of_the_losses_is_right(scatter, ends):
    head, hidden, table = adaptive(scatter, ends), drawn(5, DIM), drawn(VOCAB, DIM, seed=2)
    answers = torch.tensor([0, 3, 5, 8, 10])
    asked = [hidden, table, *head.parameters()]

    def losses(*_: torch.Tensor) -> torch.Tensor:  # gradcheck changes them in place
        return head.losses(hidden, table, answers)[0]

    assert torch.autograd.gradcheck(losses, [tensor.requires_grad_() for tensor in asked])


def test_in_half_precision_probabilities_are_taken_in_single(scatter):
    head = adaptive(scatter, [4, 7]).bfloat16()
    hidden, table = drawn(5, DIM).bfloat16(), drawn(VOCAB, DIM, seed=2).bfloat16()
    scores = head(hidden, table)
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores.exp().sum(1), torch.ones(5), rtol=0, atol=1e-6)
    assert head.losses(hidden, table, torch.tensor([0, 3, 5, 8, 10]))[0].dtype == torch.float32


@pytest.mark.parametrize("ends", [[0], [11], [3, 3], [5, 4], [2, 12]])
def test_cutoffs_that_cut_nothing_are_refused(ends):
    with pytest.raises(BadInput, match=r"^model\.cutoffs=\[.*\] do not rise from 1 to below model\.vocab=11\.$"):
        Adaptive(dim=DIM, vocab=VOCAB, cutoffs=ends)


# The others


def test_tied_scores_are_products_with_the_embedding(scatter):
    head, hidden, table = Tied(vocab=VOCAB).double(), drawn(5, DIM), drawn(VOCAB, DIM, seed=2)
    scatter(head)
    answers = torch.tensor([0, 3, 5, 8, 10])
    scores = hidden @ table.T + head.bias
    torch.testing.assert_close(head(hidden, table), scores)
    losses, hits = head.losses(hidden, table, answers)
    torch.testing.assert_close(losses, F.cross_entropy(scores, answers, reduction="none"))
    assert torch.equal(hits, scores.argmax(1) == answers)
    assert [name for name, _ in head.named_parameters()] == ["bias"]


@pytest.mark.parametrize(
    ("activation", "function"),
    [
        ("gelu", lambda x: 0.5 * x * (1 + torch.erf(x / 2**0.5))),
        ("gelu_tanh", lambda x: 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))),
        ("relu", lambda x: (x + x.abs()) / 2),
    ],
)
@pytest.mark.parametrize("out", [None, 3])
def test_a_token_head_transforms_and_norms_first(scatter, activation, function, out):
    head = TokenHead(dim=DIM, vocab=VOCAB, epsilon=1e-5, out=out, activation=activation).double()
    scatter(head)
    hidden, table = drawn(5, DIM), drawn(VOCAB, out or DIM, seed=2)
    inside = function(hidden @ head.transform.weight.T + head.transform.bias)
    centred = inside - inside.mean(1, keepdim=True)
    normed = centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt() * head.norm.weight + head.norm.bias
    torch.testing.assert_close(head(hidden, table), normed @ table.T + head.bias)


def test_a_pooler_is_a_layer_with_a_tangent(scatter):
    head, hidden = Pooler(dim=DIM).double(), drawn(5, DIM)
    scatter(head)
    torch.testing.assert_close(head(hidden), torch.tanh(hidden @ head.dense.weight.T + head.dense.bias))
