"""Soft targets: value and gradient of every loss by hand, their limit as the temperature grows, and what it does to
the size of gradients.

N  targets   C  answers
"""

from __future__ import annotations

import math
from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lmab.transfer.soft_targets import SoftTargets
from lmab.types import BadInput, Batch, Encoded, Outcome, Seen, Targets, View

if TYPE_CHECKING:
    from torch import Tensor

    from lmab.train.learner import Learner

KINDS = ("cross_entropy", "kl", "logits")


def soft(loss: str, temperature: float = 1.0, factor: bool = True) -> SoftTargets:
    choice: dict[str, Any] = {"loss": loss, "temperature": temperature, "factor": factor, "objective": "classify"}
    return SoftTargets(**choice, weight=1.0, until=None, course="constant", begin=0.0, end=1.0)


def seen(scores: Tensor) -> Seen:
    nothing = torch.empty(0)
    return Seen(Encoded(nothing), {"classify": Outcome(nothing, nothing, nothing, scores=scores)})


def asked(answers: list[int]) -> Batch:
    """One row for each answer."""
    N = len(answers)
    targets = {"classify": Targets(torch.arange(N), torch.tensor(answers))}
    return Batch(torch.zeros(N, 1).long(), None, View(), targets, torch.arange(N), N, N)


def both(term: SoftTargets, mine: Tensor, theirs: Tensor) -> tuple[float, Tensor]:
    """The mean over targets, and its gradient [N, C] with respect to the student's scores."""
    mine = mine.clone().requires_grad_()
    theirs = theirs.clone().requires_grad_()
    batch = asked([0] * len(mine))
    loss = term.loss(seen(mine), seen(theirs), batch) / term.count(batch)
    loss.backward()
    assert mine.grad is not None
    assert theirs.grad is None  # also where the teacher learns
    return float(loss.detach()), mine.grad


def drawn(*shape: int, spread: float = 1.0, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * spread


# By hand


def test_cross_entropy_by_hand() -> None:
    """At T = 2 the teacher's shares are 3/4 and 1/4, the student's 1/2 and 1/2."""
    theirs = torch.tensor([[2 * math.log(3), 0.0]], dtype=torch.float64)
    mine = torch.tensor([[5.0, 5.0]], dtype=torch.float64)
    value, gradient = both(soft("cross_entropy", 2.0), mine, theirs)
    assert value == pytest.approx(4 * math.log(2))
    torch.testing.assert_close(gradient, 2 * torch.tensor([[1 / 2 - 3 / 4, 1 / 2 - 1 / 4]], dtype=torch.float64))
    value, gradient = both(soft("cross_entropy", 2.0, factor=False), mine, theirs)
    assert value == pytest.approx(math.log(2))
    torch.testing.assert_close(gradient, 0.5 * torch.tensor([[-1 / 4, 1 / 4]], dtype=torch.float64))


def test_kl_by_hand() -> None:
    theirs = torch.tensor([[2 * math.log(3), 0.0]], dtype=torch.float64)
    mine = torch.tensor([[0.0, 0.0]], dtype=torch.float64)
    value, gradient = both(soft("kl", 2.0), mine, theirs)
    assert value == pytest.approx(4 * (3 / 4 * math.log(3 / 2) + 1 / 4 * math.log(1 / 2)))
    torch.testing.assert_close(gradient, torch.tensor([[-1 / 2, 1 / 2]], dtype=torch.float64))


def test_logits_by_hand() -> None:
    """Brought to mean 0 they are (1, -1, 0) and (0, 2, -2)."""
    mine = torch.tensor([[8.0, 6.0, 7.0]], dtype=torch.float64)
    theirs = torch.tensor([[1.0, 3.0, -1.0]], dtype=torch.float64)
    for temperature, factor in ((1.0, True), (4.0, True), (4.0, False)):
        value, gradient = both(soft("logits", temperature, factor), mine, theirs)
        assert value == pytest.approx((1 + 9 + 4) / 6)
        torch.testing.assert_close(gradient, torch.tensor([[1.0, -3.0, 2.0]], dtype=torch.float64) / 3)


SHAPES = st.tuples(st.integers(1, 5), st.integers(2, 7))


@st.composite
def pairs(draw: st.DrawFn, largest: float = 20.0) -> tuple[Tensor, Tensor]:
    """Scores of a student and a teacher, [N, C]."""
    shape = draw(SHAPES)
    found = (draw(hnp.arrays(np.float64, shape, elements=st.floats(-largest, largest))) for _ in range(2))
    mine, theirs = map(torch.from_numpy, found)
    return mine, theirs


@given(scores=pairs(), temperature=st.floats(0.3, 50), factor=st.booleans())
def test_values_and_gradients_are_the_closed_forms(scores, temperature, factor) -> None:
    mine, theirs = scores
    N, scale = len(mine), temperature**2 if factor else 1.0
    p, q = (theirs / temperature).softmax(-1), (mine / temperature).softmax(-1)
    wanted = scale / temperature * (q - p) / N
    value, gradient = both(soft("cross_entropy", temperature, factor), mine, theirs)
    assert value == pytest.approx(float(F.cross_entropy(mine / temperature, p)) * scale, rel=1e-9)
    torch.testing.assert_close(gradient, wanted, rtol=1e-7, atol=1e-10)
    value, gradient = both(soft("kl", temperature, factor), mine, theirs)
    logs = (mine / temperature).log_softmax(-1)
    assert value == pytest.approx(float(F.kl_div(logs, p, reduction="batchmean")) * scale, rel=1e-9, abs=1e-9 * scale)
    torch.testing.assert_close(gradient, wanted, rtol=1e-7, atol=1e-10)


@given(scores=pairs(), shift=st.floats(-10, 10), temperature=st.floats(0.3, 20))
def test_where_they_agree_nothing_is_lost_and_a_constant_changes_nothing(scores, shift, temperature) -> None:
    mine, theirs = scores
    for kind in ("kl", "logits"):
        value, gradient = both(soft(kind, temperature), theirs + shift, theirs)
        assert value == pytest.approx(0, abs=1e-9)
        assert float(gradient.abs().max()) < 1e-9
        assert both(soft(kind, temperature), mine, theirs)[0] >= -1e-9
    for kind in KINDS:
        moved = both(soft(kind, temperature), mine + shift, theirs - shift)[0]
        assert moved == pytest.approx(both(soft(kind, temperature), mine, theirs)[0], rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("answers", [2, 50])
def test_the_mean_is_over_targets_and_not_over_answers(kind, answers) -> None:
    mine, theirs = drawn(4, answers), drawn(4, answers, seed=1)
    rows = [both(soft(kind, 3.0), mine[[row]], theirs[[row]])[0] for row in range(4)]
    assert both(soft(kind, 3.0), mine, theirs)[0] == pytest.approx(sum(rows) / 4)
    again = both(soft(kind, 3.0), mine.repeat(5, 1), theirs.repeat(5, 1))[0]
    assert again == pytest.approx(sum(rows) / 4)


# The temperature


@given(scores=pairs(largest=5.0))
def test_matching_logits_is_the_limit_of_a_high_temperature(scores) -> None:
    """The next order is that of spread^3 / T, with the scores' mean 0 or not (section 2.1)."""
    mine, theirs = scores
    value, gradient = both(soft("logits"), mine, theirs)
    for kind in ("kl", "cross_entropy"):
        warm, warm_gradient = both(soft(kind, 1e3), mine, theirs)
        torch.testing.assert_close(warm_gradient, gradient, rtol=0, atol=0.05)
        hot, hot_gradient = both(soft(kind, 1e4), mine, theirs)
        torch.testing.assert_close(hot_gradient, gradient, rtol=0, atol=0.005)
        if kind == "kl":
            assert warm == pytest.approx(value, abs=0.2)
            assert hot == pytest.approx(value, abs=0.02)


@given(answers=st.integers(2, 12), seed=st.integers(0, 999))
def test_soft_gradients_keep_their_size_for_scores_that_differ_little(answers, seed) -> None:
    """With the factor the gradient is T (q - p), the mean of the softmax' Jacobian on the way from one to the other
    times the difference of the scores, of mean 0. Its eigenvalues lie between the least and the largest share. Scores
    between -0.3 and 0.3 leave these between exp(-0.6 / T) / C and exp(0.6 / T) / C, so that sizes at T and T' differ by
    at most exp(0.6 / T + 0.6 / T'), which is below 2 for 1 and 2 and more. Scores of a trained network differ by far
    more, and then the size changes more too."""
    generator = torch.Generator().manual_seed(seed)
    mine, theirs = (torch.rand(1, answers, generator=generator, dtype=torch.float64) * 0.6 - 0.3 for _ in range(2))
    sizes = [float(both(soft("kl", T), mine, theirs)[1].norm()) for T in (1.0, 2.0, 4.0, 8.0, 16.0)]
    others = [float(both(soft("cross_entropy", T), mine, theirs)[1].norm()) for T in (1.0, 16.0)]
    assert others == pytest.approx([sizes[0], sizes[-1]])
    assert max(sizes) < 2 * min(sizes)


def test_on_the_average_target_soft_gradients_keep_their_size_for_scores_of_deviation_one() -> None:
    """Ten answers, student and teacher independent; the mean of the norms over a thousand targets."""
    mine, theirs = drawn(1000, 10), drawn(1000, 10, seed=1)
    sizes = [float(both(soft("kl", T), mine, theirs)[1].norm(dim=-1).mean()) for T in (1.0, 2.0, 4.0, 8.0, 16.0)]
    assert max(sizes) < 2 * min(sizes)


@given(scores=pairs(largest=3.0))
def test_without_the_factor_gradients_fall_with_the_square_of_a_high_temperature(scores) -> None:
    sizes = [both(soft("kl", T, factor=False), *scores)[1].norm() for T in (200.0, 400.0, 800.0)]
    for one, next_ in pairwise(sizes):
        torch.testing.assert_close(next_, one / 4, rtol=0.1, atol=1e-12)


# Precision


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("dtype", "largest"), [(torch.float16, 6e4), (torch.bfloat16, 1e5), (torch.float32, 1e5)])
@pytest.mark.parametrize("temperature", [0.1, 1.0, 16.0])
def test_low_precision_loses_no_number(kind, dtype, largest, temperature) -> None:
    mine = torch.tensor([[largest, -largest, 0.0], [0.1, 0.2, 0.3]], dtype=dtype)
    theirs = torch.tensor([[-largest, 0.0, largest], [0.3, 0.2, 0.1]], dtype=dtype)
    value, gradient = both(soft(kind, temperature, factor=kind != "logits"), mine, theirs)
    assert math.isfinite(value)
    if kind != "logits":  # their squares have no bound, and their gradient is one of half precision
        assert gradient.isfinite().all()
        wanted = both(soft(kind, temperature), mine.double(), theirs.double())
        assert value == pytest.approx(wanted[0], rel=1e-5)
        torch.testing.assert_close(gradient.double(), wanted[1], rtol=1e-2, atol=1e-6)


# Its size beside that of the labels


@given(scores=pairs(), kind=st.sampled_from(KINDS), temperature=st.floats(0.5, 20), factor=st.booleans())
def test_a_pull_is_the_ratio_of_the_two_gradients_at_a_target(scores, kind, temperature, factor) -> None:
    mine, theirs = scores
    term = soft(kind, temperature, factor)
    batch = asked([row % mine.shape[1] for row in range(len(mine))])
    found = term.pull(seen(mine), seen(theirs), batch)
    _, gradient = both(term, mine, theirs)
    free = mine.clone().requires_grad_()
    F.cross_entropy(free, batch.targets["classify"].answers, reduction="sum").backward()
    assert free.grad is not None
    torch.testing.assert_close(found * free.grad.norm(dim=-1), gradient.norm(dim=-1) * len(mine), rtol=1e-6, atol=1e-9)


# What is refused


def learner(*objectives: str, classes: int = 3) -> Learner:
    return cast("Learner", SimpleNamespace(objectives={name: SimpleNamespace(classes=classes) for name in objectives}))


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.inf, math.nan])
def test_a_temperature_that_cannot_be(temperature) -> None:
    with pytest.raises(BadInput, match=rf"transfer.soft_targets.temperature={temperature} cannot work: give a number"):
        soft("kl", temperature)


def test_scores_of_one_objective_that_both_have() -> None:
    term = soft("kl")
    term.objective = None
    term.build(learner("mlm", "nsp"), learner("clm", "nsp"))
    assert term.objective == "nsp"
    assert term.ask().scores == {"nsp"}
    for chosen, mine, theirs in (
        (None, ("mlm", "nsp"), ("mlm", "nsp")),
        (None, ("mlm",), ("clm",)),
        ("sop", ("sop",), ()),
    ):
        term.objective = chosen
        with pytest.raises(BadInput, match="compares scores of one objective, and the teacher has"):
            term.build(learner(*mine), learner(*theirs))


def test_a_score_has_no_shares() -> None:
    with pytest.raises(BadInput, match="one number"):
        soft("kl").build(learner("classify", classes=1), learner("classify", classes=1))
