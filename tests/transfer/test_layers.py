"""The layer-wise losses of TinyBERT: values and gradients by hand, padding, accumulation, and what does not fit.

B  rows   T  positions   D  width   H  heads   M, N  layers of student and teacher
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmab.models.bert import BERT
from lmab.nn.network import initialise, normal
from lmab.objectives.mlm import MaskedLM
from lmab.train.optim import AdamW, Constant
from lmab.train.stepping import Learning
from lmab.transfer.layers import Attention, Embedding, Hidden, pairs
from lmab.types import BadInput, Batch, Encoded, Seen, View

if TYPE_CHECKING:
    from torch import Tensor

    from lmab.train.learner import Learner
    from lmab.transfer.transfer import Transfer

SPAN: dict[str, Any] = {"weight": 1.0, "until": None, "course": "constant", "begin": 0.0, "end": 1.0}


def embedding(regressor: str = "always") -> Embedding:
    return Embedding(regressor=regressor, **SPAN)  # type: ignore[arg-type]


def hidden(kind: Any = "uniform", regressor: str = "always", shared: bool = True) -> Hidden:
    return Hidden(map=kind, regressor=regressor, shared=shared, **SPAN)  # type: ignore[arg-type]


def attention(kind: Any = "uniform") -> Attention:
    return Attention(map=kind, **SPAN)


def sizes(widths: tuple[int, ...], heads: tuple[int, ...]) -> Learner:
    """As much of a learner as a term asks."""
    return cast("Learner", SimpleNamespace(network=SimpleNamespace(widths=widths, heads=heads)))


def built(term: Transfer, student: Learner, teacher: Learner) -> Transfer:
    with torch.device("meta"):
        term.build(student, teacher)
    initialise(term, 0, normal(0.5, 0.5))
    return term.double()


def seen(layers: list[Tensor] = [], scores: list[Tensor] = []) -> Seen:  # noqa: B006
    return Seen(Encoded(torch.empty(0), layers=tuple(layers), attention=tuple(scores)), {})


def rows(T: int, lengths: list[int] | None = None, visible: Tensor | None = None, B: int = 1) -> Batch:
    """Where rows are padded, nobody sees the padding, as the collator has it."""
    found = None
    if lengths is not None:
        B, found = len(lengths), torch.tensor(lengths)
        real = (torch.arange(T) < found[:, None])[:, None, None]
        visible = real if visible is None else visible & real
    count = B * T if lengths is None else sum(lengths)
    return Batch(torch.zeros(B, T).long(), None, View(visible), {}, torch.arange(B), B, count, found)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


# By hand


def test_the_embedding_by_hand():
    term = built(embedding(), sizes((2, 2), (1,)), sizes((2, 2), (1,)))
    weight = cast("torch.nn.Parameter", term.regressor.weight)  # type: ignore[union-attr]
    with torch.no_grad():
        weight.copy_(torch.tensor([[0.5, -1.0], [1.0, 0.0]]))
    mine = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [9.0, 9.0]]], dtype=torch.float64, requires_grad=True)
    theirs = torch.tensor([[[1.0, 1.0], [-0.5, 1.0], [0.0, 7.0]]], dtype=torch.float64, requires_grad=True)
    batch = rows(3, [2])
    # E_S W_e is (-1.5, 1) and (-2.5, 3): it lies (-2.5, 0) and (-2, 2) beside E_T.
    loss = term.loss(seen([mine]), seen([theirs]), batch)
    assert float(loss.detach()) == pytest.approx((2.5**2 + 0) / 2 + (2**2 + 2**2) / 2)
    assert term.count(batch) == 2
    loss.backward()
    # The gradient at E_S W_e is 2 / 2 times the difference.
    close(weight.grad, torch.tensor([[-2.5 * 1 - 2 * 3, -2.5 * 2 - 2 * 4], [2.0 * 3, 2.0 * 4]], dtype=torch.float64))
    wanted = [[-2.5 * 0.5, -2.5 * -1.0], [-2 * 0.5 + 2 * 1.0, -2 * -1.0], [0, 0]]
    close(mine.grad, torch.tensor([wanted], dtype=torch.float64))
    assert theirs.grad is None


def test_attention_by_hand():
    """Two heads, three places of which the last is padding, and no query sees what follows it."""
    term = built(attention(), sizes((4, 4), (2,)), sizes((4, 4), (2,)))
    mine = torch.tensor([[[[1.0, 9, 9], [2, 3, 9], [9, 9, 9]], [[0, 9, 9], [1, -1, 9], [9, 9, 9]]]]).double()
    theirs = torch.tensor([[[[3.0, 5, 5], [2, 2, 5], [5, 5, 5]], [[1, 5, 5], [1, -4, 5], [5, 5, 5]]]]).double()
    mine.requires_grad_()
    batch = rows(3, [2], torch.ones(3, 3, dtype=torch.bool).tril()[None, None])
    assert term.count(batch) == 3
    loss = term.loss(seen(scores=[mine]), seen(scores=[theirs]), batch)
    assert float(loss.detach()) == pytest.approx((2**2 + 0 + 1**2) / 2 + (1**2 + 0 + 3**2) / 2)
    loss.backward()
    close(
        mine.grad, torch.tensor([[[[-2.0, 0, 0], [0, 1, 0], [0, 0, 0]], [[-1, 0, 0], [0, 3, 0], [0, 0, 0]]]]).double()
    )


def test_hidden_is_the_sum_over_mapped_layers_by_hand():
    term = built(hidden([2, 0], "needed"), sizes((1, 1, 1), (1, 1)), sizes((1, 1, 1), (1, 1)))
    assert not list(term.parameters())
    mine = [torch.full((1, 2, 1), value, dtype=torch.float64, requires_grad=True) for value in (7.0, 1.0, 2.0)]
    theirs = [torch.full((1, 2, 1), value, dtype=torch.float64) for value in (5.0, 8.0, 3.0)]
    loss = term.loss(seen(mine), seen(theirs), rows(2))
    assert float(loss.detach()) == pytest.approx(2 * (1 - 3) ** 2 + 2 * (2 - 5) ** 2)
    loss.backward()
    assert mine[0].grad is None
    assert [layer.grad.flatten().tolist() for layer in mine[1:]] == [[-4, -4], [-6, -6]]


# Whatever the sizes


@settings(max_examples=40)
@given(
    lengths=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    kind=st.sampled_from(["uniform", "top", "bottom", [0, 4]]),
    shared=st.booleans(),
    seed=st.integers(0, 99),
)
def test_hidden_is_what_a_loop_finds_with_its_gradients(lengths, kind, shared, seed):
    M, N, D, wide, B, T = 2, 4, 3, 5, len(lengths), 4
    term = cast("Hidden", built(hidden(kind, shared=shared), sizes((D,) * 3, (1,) * M), sizes((wide,) * 5, (1,) * N)))
    assert len(list(term.parameters())) == (1 if shared else M)
    mine = [drawn(B, T, D, seed=seed + m).requires_grad_() for m in range(M + 1)]
    theirs = [drawn(B, T, wide, seed=seed + 50 + n) for n in range(N + 1)]
    batch = rows(T, lengths)
    loss = term.loss(seen(mine), seen(theirs), batch)
    asked = [*mine[1:], *term.parameters()]
    found = torch.autograd.grad(loss, asked)
    wanted = torch.zeros((), dtype=torch.float64)
    for m in range(1, M + 1):
        weight = term.regressors[0 if shared else m - 1].weight
        for row, length in enumerate(lengths):
            for place in range(length):
                difference = weight @ mine[m][row, place] - theirs[term.depths[m - 1]][row, place]
                wanted = wanted + sum(difference**2) / wide
    close(loss, wanted)
    for one, other in zip(found, torch.autograd.grad(wanted, asked), strict=True):
        close(one, other)


@settings(max_examples=40)
@given(
    lengths=st.none() | st.lists(st.integers(1, 4), min_size=2, max_size=2),
    shape=st.sampled_from([None, (2, 1, 4, 4), (1, 1, 4, 4), (2, 1, 1, 4)]),
    memory=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    seed=st.integers(0, 99),
)
def test_attention_is_what_a_loop_finds_with_its_gradients(lengths, shape, memory, seed):
    B, T, H = 2, 4, 2
    term = cast("Attention", built(attention("top"), sizes((4,) * 2, (H,)), sizes((4,) * 4, (3, 3, H))))
    visible = None if shape is None else drawn(*shape, seed=seed) > -0.3
    batch = rows(T, lengths, visible, B)
    mine = drawn(B, H, T, memory[0] + T, seed=seed).requires_grad_()
    theirs = [drawn(B, heads, T, memory[1] + T, seed=seed + n) for n, heads in enumerate((3, 3, H), 1)]
    loss = term.loss(seen(scores=[mine]), seen(scores=theirs), batch)
    wanted, count = 0 * mine.sum(), 0
    seen_by = None if batch.view.visible is None else batch.view.visible.expand(B, 1, T, T)
    for row in range(B):
        for i in range(T if lengths is None else lengths[row]):
            for j in range(T):
                if seen_by is not None and not seen_by[row, 0, i, j]:
                    continue
                count += 1
                for head in range(H):
                    apart = mine[row, head, i, memory[0] + j] - theirs[2][row, head, i, memory[1] + j]
                    wanted = wanted + apart**2 / H
    assert term.count(batch) == count
    close(loss, wanted)
    close(torch.autograd.grad(loss, mine)[0], torch.autograd.grad(wanted, mine)[0])


def test_every_pair_counts_where_nothing_is_hidden():
    assert pairs(rows(5, B=3)) is None
    term = built(attention(), sizes((4, 4), (2,)), sizes((4, 4), (2,)))
    assert term.count(rows(5, B=3)) == 75


def test_states_of_low_precision_are_compared_in_float32():
    term = built(hidden(regressor="needed"), sizes((2, 2), (1,)), sizes((2, 2), (1,)))
    mine, theirs = torch.full((1, 1, 2), 256.0).bfloat16(), torch.full((1, 1, 2), 255.0).bfloat16()
    loss = term.loss(seen([mine, mine]), seen([theirs, theirs]), rows(1))
    assert loss.dtype == torch.float32
    assert float(loss) == 1.0


# Between two networks


def bert(dim: int, depth: int, heads: int) -> BERT:
    masked = MaskedLM(
        rate=0.15, mask=0.8, random=0.1, whole_words=False, ngram=1, copies=None, causal=False, weight=1.0
    )
    learning = Learning(
        objectives={"mlm": masked},
        optim=AdamW(lr=1e-3, beta1=0.9, beta2=0.999, epsilon=1e-8, weight_decay=0.01),
        schedule=Constant(warmup=0),
        steps=10,
        clip=None,
        seed=dim,
        documents={},
    )
    made = BERT(
        learning,
        vocab=30,
        dim=dim,
        depth=depth,
        heads=heads,
        ffn=12,
        length=60,
        segments=2,
        dropout=0.0,
        attention_dropout=0.0,
        epsilon=1e-12,
        std=0.3,
        embedding_std=0.3,
        positions="normal",
    )
    return made.double()


@pytest.fixture(scope="module")
def both() -> tuple[BERT, BERT]:
    return bert(8, 2, 2), bert(12, 4, 2)


def read(T: int, lengths: list[int]) -> Batch:
    """Rows of which the real tokens do not depend on T."""
    plain = rows(T, lengths)
    tokens = torch.randint(5, 30, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(1))
    padded = torch.nn.functional.pad(tokens, (0, T - max(lengths)))
    return replace(plain, tokens=padded.masked_fill(torch.arange(T) >= plain.lengths[:, None], 0))  # type: ignore[index]


def part(batch: Batch, rows: slice) -> Batch:
    """Some of the rows, as padded as before."""
    assert batch.lengths is not None
    assert batch.view.visible is not None
    lengths = batch.lengths[rows]
    return replace(
        batch,
        tokens=batch.tokens[rows],
        lengths=lengths,
        view=View(batch.view.visible[rows]),
        examples=len(lengths),
        real=int(lengths.sum()),
    )


def taught(term: Transfer, both: tuple[BERT, BERT], batches: list[Batch]) -> tuple[Tensor, dict[str, Tensor]]:
    """The mean over the units of all batches together, and its gradients."""
    student, teacher = both
    student.zero_grad()
    term.zero_grad()
    count, total = sum(term.count(batch) for batch in batches), torch.zeros(()).double()
    for batch in batches:
        with torch.no_grad():
            theirs = teacher.seen(batch, ask=term.ask())
        loss = term.loss(student.seen(batch, ask=term.ask()), theirs, batch) / count
        loss.backward()
        total = total + loss.detach()
    named = [*student.named_parameters(), *term.named_parameters()]
    return total, {name: p.grad.clone() for name, p in named if p.grad is not None}


TERMS = {"embedding": embedding, "hidden": hidden, "attention": attention}


@pytest.mark.parametrize("name", list(TERMS))
def test_neither_padding_nor_accumulation_changes_a_term(name, both):
    term = built(TERMS[name](), *both)
    assert term.name == name
    lengths = [5, 3, 1, 4]
    loss, gradients = taught(term, both, [read(5, lengths)])
    assert len(gradients) > 3
    assert float(loss) > 0.01
    long = read(55, lengths)
    for batches in ([long], [part(long, slice(0, 1)), part(long, slice(1, 4))]):
        other, theirs = taught(term, both, batches)
        close(loss, other)
        for parameter, gradient in gradients.items():
            wide = theirs[parameter]
            if parameter.endswith("positions.weight"):
                assert float(wide[5:].abs().max()) == 0.0
            close(gradient, wide)


@pytest.mark.parametrize("name", list(TERMS))
def test_a_step_along_the_gradient_brings_the_student_nearer(name, both):
    term = built(TERMS[name](), *both)
    batch = read(5, [5, 4])
    before, gradients = taught(term, both, [batch])
    named = dict(both[0].named_parameters()) | dict(term.named_parameters())
    with torch.no_grad():
        for parameter, gradient in gradients.items():
            named[parameter] -= 1e-4 * gradient
        seen_now = [one.seen(batch, ask=term.ask()) for one in both]
        after = term.loss(*seen_now, batch) / term.count(batch)
        for parameter, gradient in gradients.items():
            named[parameter] += 1e-4 * gradient
    slope = sum(float(gradient.square().sum()) for gradient in gradients.values())
    assert float(before - after) == pytest.approx(1e-4 * slope, rel=0.05)


def test_of_the_student_the_embedding_term_teaches_the_embedding_alone(both):
    term = built(embedding(), *both)
    _, gradients = taught(term, both, [read(5, [5, 4])])
    assert "regressor.weight" in gradients
    assert all(name.startswith(("network.embedding.", "regressor.")) for name in gradients)


# What does not fit


def test_regressors_are_made_where_they_are_wanted():
    alike, wide = sizes((4, 4, 4), (2, 2)), sizes((6, 6, 6), (2, 2))
    for term in (embedding("needed"), hidden(regressor="needed")):
        assert not list(built(term, alike, alike).parameters())
    for term in (embedding("needed"), embedding(), hidden(), hidden(regressor="needed")):
        (weight,) = built(term, alike, wide).parameters()
        assert weight.shape == (6, 4)
    assert len(list(built(hidden(shared=False), alike, alike).parameters())) == 2


@pytest.mark.parametrize(
    ("term", "student", "teacher", "says"),
    [
        (
            attention(),
            sizes((4, 4), (2,)),
            sizes((8, 8), (4,)),
            "has 2 heads where its teacher has 4: give model.heads=4.",
        ),
        (attention([0]), sizes((4, 4), (2,)), sizes((4, 4), (2,)), "transfer.attention.map=[0] names layer 0"),
        (attention(), sizes((9, 4), ()), sizes((9, 4), ()), "model=mlp has none: leave it out."),
        (embedding(), sizes((9, 4), ()), sizes((9, 4), ()), "model=mlp has none: leave it out."),
        (hidden(), sizes((9, 4), ()), sizes((4, 4), (2,)), "give student and teacher both model=mlp, or neither."),
        (hidden([0]), sizes((9, 4), ()), sizes((9, 5, 5), ()), None),
        (hidden([0, 1]), sizes((9, 4, 4), ()), sizes((9, 4), ()), "give transfer.hidden.shared=false."),
        (hidden([0, 1], shared=False), sizes((9, 4, 4), ()), sizes((9, 4), ()), None),
        (hidden(), sizes((4,) * 5, (2,) * 4), sizes((4,) * 7, (2,) * 6), "transfer.hidden.map=uniform"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(term, student, teacher, says):
    if says is None:
        built(term, student, teacher)
        return
    with pytest.raises(BadInput) as refused:
        built(term, student, teacher)
    assert says in str(refused.value)
    assert str(refused.value).count(". ") == 0


def test_a_row_that_is_one_vector_counts_once():
    term = built(hidden("top"), sizes((9, 2), ()), sizes((9, 3, 3), ()))
    mine, theirs = drawn(2, 1, 2).requires_grad_(), drawn(2, 1, 3, seed=1)
    batch = rows(9, B=2)
    assert term.count(batch) == 2
    loss = term.loss(seen([drawn(2, 1, 9), mine]), seen([drawn(2, 1, 9), theirs, theirs]), batch)
    weight = next(term.parameters())
    close(loss, ((mine @ weight.T - theirs) ** 2).sum() / 3)
