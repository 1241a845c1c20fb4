"""Hints: their value and gradients by hand, which part of the student learns from them, and layers there are not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmab.models.bert import BERT
from lmab.models.mlp import MLP
from lmab.nn.network import initialise, normal
from lmab.train.optim import AdamW, Constant
from lmab.train.stepping import Learning
from lmab.transfer.hint import Hint
from lmab.types import BadInput, Batch, Encoded, Seen, View

if TYPE_CHECKING:
    from torch import Tensor

    from lmab.train.learner import Learner


def hinted(student: Learner, teacher: Learner, **knobs: Any) -> Hint:
    choice = {"hint": None, "guided": None, "regressor": "always"} | knobs
    term = Hint(**choice, weight=1.0, until=None, course="constant", begin=0.0, end=1.0)
    with torch.device("meta"):
        term.build(student, teacher)
    initialise(term, 0, normal(0.5, 0.5))
    return term.double()


def sizes(widths: tuple[int, ...], heads: tuple[int, ...] = ()) -> Learner:
    """As much of a learner as a term asks."""
    return cast("Learner", SimpleNamespace(network=SimpleNamespace(widths=widths, heads=heads)))


def seen(*layers: Tensor) -> Seen:
    return Seen(Encoded(torch.empty(0), layers=layers), {})


def rows(B: int, T: int, lengths: list[int] | None = None) -> Batch:
    found = None if lengths is None else torch.tensor(lengths)
    real = B * T if lengths is None else sum(lengths)
    visible = None if found is None else (torch.arange(T) < found[:, None])[:, None, None]
    tokens = torch.randint(1, 16, (B, T), generator=torch.Generator().manual_seed(0))
    return Batch(tokens, None, View(visible), {}, torch.arange(B), B, real, found)


def learning() -> Learning:
    return Learning(
        objectives={},
        optim=AdamW(lr=1e-3, beta1=0.9, beta2=0.999, epsilon=1e-8, weight_decay=0.01),
        schedule=Constant(warmup=0),
        steps=10,
        clip=None,
        seed=0,
        documents={},
    )


def mlp(dim: int, depth: int) -> MLP:
    sizes = {"vocab": 17, "length": 9, "dim": dim, "depth": depth}
    return MLP(learning(), **sizes, dropout=0.0, input_dropout=0.0, gain=1.0).double()


def bert(dim: int, depth: int) -> BERT:
    sizes = {"vocab": 17, "dim": dim, "depth": depth, "heads": 2, "ffn": 12, "length": 9, "segments": 2}
    plain = {"dropout": 0.0, "attention_dropout": 0.0, "epsilon": 1e-12, "std": 0.3, "embedding_std": 0.3}
    return BERT(learning(), **sizes, **plain, positions="normal").double()  # type: ignore[arg-type]


def test_a_hint_by_hand():
    term = hinted(sizes((4, 2)), sizes((4, 2)))
    with torch.no_grad():
        term.regressor.weight.copy_(torch.tensor([[1.0, 2.0], [0.0, -1.0]]))  # type: ignore[union-attr]
        term.regressor.bias.copy_(torch.tensor([0.5, 0.0]))  # type: ignore[union-attr]
    mine = torch.tensor([[[1.0, 1.0]], [[0.0, 2.0]]], dtype=torch.float64, requires_grad=True)
    theirs = torch.tensor([[[3.0, 0.0]], [[4.0, -4.0]]], dtype=torch.float64, requires_grad=True)
    batch = rows(2, 4)
    # r(v) is (3.5, -1) and (4.5, -2): it lies (0.5, -1) and (0.5, 2) beside u.
    loss = term.loss(seen(mine, mine), seen(theirs, theirs), batch)
    assert float(loss.detach()) == pytest.approx((0.25 + 1 + 0.25 + 4) / 2)
    assert term.count(batch) == 2
    loss.backward()
    assert mine.grad is not None
    assert mine.grad.tolist() == [[[0.5, 1.0 + 1.0]], [[0.5, 1.0 - 2.0]]]
    assert term.regressor.weight.grad.tolist() == [[0.5, 0.5 + 1.0], [-1.0, -1.0 + 4.0]]  # type: ignore[union-attr]
    assert term.regressor.bias.grad.tolist() == [1.0, 1.0]  # type: ignore[union-attr]
    assert theirs.grad is None


@settings(max_examples=30)
@given(lengths=st.lists(st.integers(1, 4), min_size=1, max_size=3), more=st.integers(0, 50), seed=st.integers(0, 99))
def test_padding_is_no_part_of_it_whatever_lies_there(lengths, more, seed):
    term = hinted(sizes((3, 3, 3), (1, 1)), sizes((5, 5, 5), (1, 1)))
    B, T = len(lengths), 4
    generator = torch.Generator().manual_seed(seed)
    mine, theirs = (torch.randn(B, T, D, generator=generator).double() for D in (3, 5))
    batch = rows(B, T, lengths)
    loss = term.loss(seen(mine, mine), seen(theirs, theirs), batch)
    mapped = term.regressor(mine)
    wanted = sum(
        (
            0.5 * (mapped[row, place] - theirs[row, place]).square().sum()
            for row in range(B)
            for place in range(lengths[row])
        ),
        torch.zeros(()).double(),
    )
    torch.testing.assert_close(loss, wanted, rtol=0, atol=1e-9)
    wide = [torch.nn.functional.pad(states, (0, 0, 0, more), value=float("nan")) for states in (mine, theirs)]
    long = rows(B, T + more, lengths)
    torch.testing.assert_close(
        term.loss(seen(wide[0], wide[0]), seen(wide[1], wide[1]), long), wanted, rtol=0, atol=1e-9
    )
    assert term.count(batch) == term.count(long) == sum(lengths)


@pytest.mark.parametrize("kind", [mlp, bert])
@pytest.mark.parametrize("guided", [1, 2, 4])
def test_what_lies_above_the_guided_layer_learns_nothing(kind, guided):
    student, teacher = kind(8, 4), kind(12, 3)
    term = hinted(student, teacher, guided=guided)
    batch = rows(3, 9, [9, 4, 6] if kind is bert else None)
    with torch.no_grad():
        theirs = teacher.seen(batch, ask=term.ask())
    term.loss(student.seen(batch, ask=term.ask()), theirs, batch).backward()
    network = cast("Any", student.network)
    layers = network.encoder.layers if kind is bert else network.encoder
    for number, layer in enumerate(layers, 1):
        for name, parameter in layer.named_parameters():
            assert (parameter.grad is not None) == (number <= guided), (number, name)
            assert parameter.grad is None or float(parameter.grad.abs().max()) > 0
    if kind is bert:
        assert network.embedding.tokens.weight.grad is not None
        assert network.head.bias.grad is None
    assert all(parameter.grad is not None for parameter in term.parameters())
    assert all(parameter.grad is None for parameter in teacher.parameters())


@pytest.mark.parametrize(("depth", "middle"), [(1, 1), (2, 1), (3, 2), (4, 2), (19, 10)])
def test_the_middle_layer_is_guided_by_the_middle_layer(depth, middle):
    """Layers are told apart by their widths."""
    student, teacher = sizes((9, *range(20, 20 + depth))), sizes((9, 30, 31, 32))
    assert hinted(student, teacher).regressor.weight.shape == (31, 19 + middle)  # type: ignore[union-attr]


def test_a_regressor_is_made_where_it_is_wanted():
    assert len(list(hinted(sizes((9, 4)), sizes((9, 4))).parameters())) == 2
    assert not list(hinted(sizes((9, 4)), sizes((9, 4)), regressor="needed").parameters())
    assert len(list(hinted(sizes((9, 4)), sizes((9, 5)), regressor="needed").parameters())) == 2


@pytest.mark.parametrize(
    ("heads", "knobs", "says"),
    [
        ((), {"guided": 4}, "transfer.hint.guided=4 is no layer of the student, which has 1 to 3: the nearest is 3."),
        ((), {"guided": 0}, "transfer.hint.guided=0 is no layer of the student, which has 1 to 3: the nearest is 1."),
        ((), {"hint": 7}, "transfer.hint.hint=7 is no layer of the teacher, which has 1 to 2: the nearest is 2."),
        ((2,), {"hint": -1}, "transfer.hint.hint=-1 is no layer of the teacher, which has 0 to 2: the nearest is 0."),
        ((2,), {"hint": 0, "guided": 0}, None),
    ],
)
def test_a_layer_there_is_not_is_refused_with_the_nearest(heads, knobs, says):
    student, teacher = sizes((9, 4, 4, 4), heads), sizes((9, 5, 5), heads)
    if says is None:
        hinted(student, teacher, **knobs)
        return
    with pytest.raises(BadInput) as refused:
        hinted(student, teacher, **knobs)
    assert str(refused.value) == says


def test_a_row_as_one_vector_is_no_hint_for_tokens():
    with pytest.raises(BadInput, match="give student and teacher both model=mlp, or neither"):
        hinted(sizes((4, 4), (2,)), sizes((9, 4)))
