"""Cross entropy: torch's own, to rounding, forward and backward."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from lmab.nn.cross_entropy import cross_entropy


def scores(n: int, types: int, *, size: float = 3.0, dtype: torch.dtype = torch.float64) -> tuple:
    generator = torch.Generator().manual_seed(n * 1000 + types)
    logits = (torch.randn(n, types, generator=generator, dtype=torch.float64) * size).to(dtype)
    return logits.requires_grad_(), torch.randint(types, (n,), generator=generator)


@given(n=st.integers(0, 6), types=st.integers(1, 9), size=st.sampled_from([0.0, 1.0, 300.0]))
def test_losses_hits_and_gradients_are_torchs(n, types, size):
    logits, answers = scores(n, types, size=size)
    weight = torch.arange(1.0, n + 1, dtype=torch.float64)
    losses, hits = cross_entropy(logits, answers)
    (losses * weight).sum().backward()
    wanted = logits.detach().clone().requires_grad_()
    expected = F.cross_entropy(wanted, answers, reduction="none") if n else wanted.sum(-1)
    (expected * weight).sum().backward()
    torch.testing.assert_close(losses, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(logits.grad, wanted.grad if n else torch.zeros(n, types).double(), rtol=0, atol=1e-12)
    assert hits.tolist() == [bool(row[a] == row.max()) for row, a in zip(logits, answers, strict=True)]


def test_large_scores_lose_no_digits():
    logits, answers = scores(20, 50, dtype=torch.float32)
    plain, _ = cross_entropy(logits, answers)
    # A shift that float32 holds exactly changes no loss.
    small = (logits.detach() * 64).round() / 64
    shifted, _ = cross_entropy(small + 2.0**16, answers)
    assert torch.equal(shifted, cross_entropy(small, answers)[0])
    torch.testing.assert_close(shifted, plain.detach(), rtol=0, atol=0.05)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_small_numbers_are_computed_in_single_precision(dtype):
    logits, answers = scores(20, 50, dtype=dtype)
    losses, _ = cross_entropy(logits, answers)
    assert losses.dtype == torch.float32
    losses.mean().backward()
    wanted = logits.detach().float().requires_grad_()
    expected = F.cross_entropy(wanted, answers, reduction="none")
    expected.mean().backward()
    torch.testing.assert_close(losses, expected, rtol=1e-6, atol=1e-6)
    assert logits.grad.dtype == dtype
    torch.testing.assert_close(logits.grad, wanted.grad.to(dtype), rtol=1e-5, atol=1e-7)


def test_scores_that_would_overflow_give_finite_losses():
    logits = torch.tensor([[1e4, -1e4, 0.0], [-1e30, -1e30, -1e30]], requires_grad=True)
    losses, _ = cross_entropy(logits, torch.tensor([1, 0]))
    assert losses.tolist() == pytest.approx([2e4, 1.0986123])
    losses.sum().backward()
    assert logits.grad.tolist()[0] == [1.0, -1.0, 0.0]
    assert logits.grad.isfinite().all()


def test_a_score_that_is_no_number_gives_a_loss_that_is_none():
    losses, hits = cross_entropy(torch.tensor([[0.0, float("nan")], [0.0, 1.0]]), torch.tensor([0, 1]))
    assert losses.isnan().tolist() == [True, False]
    assert hits.tolist() == [False, True]


def test_the_scores_are_left_as_they_were_and_a_second_backward_pass_is_refused():
    logits, answers = scores(4, 6)
    before = logits.detach().clone()
    losses, _ = cross_entropy(logits, answers)
    losses.sum().backward(retain_graph=True)
    assert torch.equal(logits.detach(), before)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        losses.sum().backward()
