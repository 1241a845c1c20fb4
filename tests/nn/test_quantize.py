"""Weights in low precision: levels by hand, the straight-through gradient, and a learner that sees and learns them."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmab.models.albert import ALBERT
from lmab.models.bert import BERT
from lmab.models.mlp import MLP
from lmab.nn.quantize import (
    Binary,
    Quantize,
    StraightThrough,
    Ternary,
    Uniform,
    full_precision,
    quantised_names,
    quantize,
    settle,
    weight_bytes,
)
from lmab.nn.sight import Sight
from lmab.objectives.classify import Classify
from lmab.train.optim import AdamW, Constant, decay_groups
from lmab.train.stepping import Learning
from lmab.types import BadInput, Batch, Targets, View

if TYPE_CHECKING:
    from lmab.train.learner import Learner

PLAIN: dict[str, Any] = {"scale": "tensor", "edges": False}


def kinds(**changes: Any) -> list[Quantize]:
    knobs = PLAIN | changes
    return [*(Uniform(bits=k, **knobs) for k in (8, 4, 2)), Ternary(threshold=0.7, **knobs), Binary(**knobs)]


EVERY = pytest.mark.parametrize("how", kinds(), ids=["bits8", "bits4", "bits2", "ternary", "binary"])


# Levels


def test_levels_by_hand():
    weight = torch.tensor([[0.9, -0.1, 0.29], [-0.6, 0.0, 0.31]])
    eight, four, two, ternary, binary = kinds()
    # Three bits: s = 0.9 and L = 3, so that the levels are 0.3 apart.
    three = Uniform(bits=3, **PLAIN)(weight)
    torch.testing.assert_close(three, torch.tensor([[0.9, 0.0, 0.3], [-0.6, 0.0, 0.3]]))
    torch.testing.assert_close(two(weight), torch.tensor([[0.9, 0.0, 0.0], [-0.9, 0.0, 0.0]]))
    torch.testing.assert_close(four(weight)[0], torch.tensor([0.9, -0.9 / 7, 2 * 0.9 / 7]))
    torch.testing.assert_close(eight(weight), weight, rtol=0, atol=0.45 / 127)
    # The mean magnitude is 2.2 / 6, and 0.7 of it 0.257: four weights are kept, of a mean of 2.1 / 4.
    s = 2.1 / 4
    torch.testing.assert_close(ternary(weight), torch.tensor([[s, 0, s], [-s, 0, s]]))
    s = 2.2 / 6
    torch.testing.assert_close(binary(weight), torch.tensor([[s, -s, s], [-s, s, s]]))


def test_a_row_may_have_a_scale_of_its_own():
    weight = torch.tensor([[0.9, -0.1, 0.2], [-0.06, 0.0, 0.04]])
    eight, _, two, ternary, binary = kinds(scale="row")
    torch.testing.assert_close(two(weight), torch.tensor([[0.9, 0.0, 0.0], [-0.06, 0.0, 0.06]]))
    torch.testing.assert_close(eight(weight)[1], weight[1], rtol=0, atol=0.03 / 127)
    torch.testing.assert_close(ternary(weight), torch.tensor([[0.9, 0, 0], [-0.05, 0, 0.05]]))
    torch.testing.assert_close(binary(weight), torch.tensor([[0.4, -0.4, 0.4], [-0.1 / 3, 0.1 / 3, 0.1 / 3]]))


def drawn(rows: int, columns: int, size: float, seed: int) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * size


@settings(max_examples=60)
@given(
    rows=st.integers(1, 6),
    columns=st.integers(1, 40),
    size=st.sampled_from([1e-4, 0.02, 1.0, 300.0]),
    seed=st.integers(0, 999),
    scale=st.sampled_from(["tensor", "row"]),
)
@pytest.mark.parametrize("kind", range(5))
def test_there_are_no_more_levels_than_the_bits_tell_apart_and_they_stay_as_they_are(
    kind, rows, columns, size, seed, scale
):
    how, weight = kinds(scale=scale)[kind], drawn(rows, columns, size, seed)
    found = how(weight)
    for part in found if scale == "row" else [found]:
        assert len(part.unique()) <= 2**how.width
    torch.testing.assert_close(how(found), found, rtol=1e-5, atol=0)
    torch.testing.assert_close(how(-weight), -found, rtol=1e-6, atol=0)
    torch.testing.assert_close(how(4 * weight), 4 * found, rtol=1e-5, atol=0)
    assert bool((found * weight >= 0).all())


@settings(max_examples=30)
@given(bits=st.integers(2, 16), seed=st.integers(0, 999))
def test_even_steps_miss_a_weight_by_half_a_step_at_most(bits, seed):
    weight = drawn(3, 20, 0.02, seed)
    found = Uniform(bits=bits, **PLAIN)(weight)
    step = float(weight.abs().max()) / (2 ** (bits - 1) - 1)
    assert float((found - weight).abs().max()) <= step / 2 * 1.001
    assert torch.equal(Uniform(bits=bits, **PLAIN)(found), found)


@EVERY
def test_a_matrix_of_zeros_stays_one(how):
    assert torch.equal(how(torch.zeros(2, 3)), torch.zeros(2, 3))


@settings(max_examples=20)
@given(seed=st.integers(0, 999))
@EVERY
def test_the_levels_are_seen_to_the_last_digit_and_the_gradient_goes_straight_through(how, seed):
    weight = drawn(4, 5, 0.02, seed).requires_grad_()
    incoming = drawn(4, 5, 1.0, seed + 1)
    seen = StraightThrough(how)(weight)
    assert torch.equal(seen.detach(), how(weight.detach()))
    seen.backward(incoming)
    assert torch.equal(weight.grad, incoming)


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda: Uniform(bits=1, **PLAIN), "quantize.bits=1 cannot work: give 2 to 16, or quantize=binary"),
        (lambda: Uniform(bits=32, **PLAIN), "quantize.bits=32 cannot work"),
        (lambda: Ternary(threshold=1.0, **PLAIN), "quantize.threshold=1.0 cannot work"),
        (lambda: Ternary(threshold=-0.1, **PLAIN), "quantize.threshold=-0.1 cannot work"),
    ],
)
def test_values_that_cannot_work_are_refused(made, says):
    with pytest.raises(BadInput, match=says):
        made()


# A learner


def learning(seed: int | None = 0, **changes: Any) -> Learning:
    classify = Classify(classes=3, pool="last", head="linear", layers=[-1], dropout=0.0, causal=False, weight=1.0)
    return Learning(
        objectives={"classify": classify},
        optim=AdamW(lr=1e-2, beta1=0.9, beta2=0.999, epsilon=1e-8, weight_decay=0.1),
        schedule=Constant(warmup=0),
        steps=10,
        clip=None,
        seed=seed,
        documents={},
        **changes,
    )


SIZES = {"vocab": 30, "dim": 8, "depth": 2, "heads": 2, "ffn": 12, "length": 9, "segments": 2}
DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0, "epsilon": 1e-12, "std": 0.3, "embedding_std": 0.3}


def bert(seed: int | None = 0, **changes: Any) -> Learner:
    return BERT(learning(seed, **changes), **SIZES, **DROPOUT, positions="normal")  # type: ignore[arg-type]


def albert(seed: int | None = 0) -> Learner:
    knobs = {"embedding": 5, "share": "all", "groups": 1, "inner": 1, "activation": "gelu_tanh", "positions": "normal"}
    return ALBERT(learning(seed), **SIZES, **DROPOUT, **knobs)  # type: ignore[arg-type]


def mlp(seed: int | None = 0, depth: int = 3) -> Learner:
    sizes = {"vocab": 30, "length": 9, "dim": 8, "depth": depth}
    return MLP(learning(seed), **sizes, dropout=0.0, input_dropout=0.0, gain=1.0)


MODELS = pytest.mark.parametrize("made", [bert, albert, mlp])


def rows() -> Batch:
    tokens = torch.randint(0, 30, (4, 9), generator=torch.Generator().manual_seed(2))
    targets = {"classify": Targets(torch.arange(4) * 9 + 8, torch.tensor([0, 1, 2, 1]))}
    return Batch(tokens, None, View(), targets, torch.arange(4), 4, 36)


def lowered(learner: Learner) -> set[str]:
    return {
        name.removesuffix(".parametrizations.weight.original")
        for name in learner.state_dict()
        if "parametrizations" in name
    }


def test_the_matrices_of_the_encoder_are_lowered_and_no_others():
    learner = bert()
    quantize(learner, kinds()[0])
    parts = ("attention.qkv", "attention.out", "inner", "outer")
    assert lowered(learner) == {f"network.encoder.layers.{n}.{part}" for n in range(2) for part in parts}
    learner = albert()
    quantize(learner, kinds()[0])
    assert lowered(learner) == {f"network.encoder.layers.0.{part}" for part in parts}
    learner = mlp()
    quantize(learner, kinds()[0])
    assert lowered(learner) == {"network.encoder.1", "network.encoder.2"}


@MODELS
def test_at_the_edges_all_matrices_are(made):
    learner = made()
    matrices = {name.removesuffix(".weight") for name, p in learner.named_parameters() if p.dim() == 2}
    quantize(learner, kinds(edges=True)[3])
    assert lowered(learner) == matrices
    assert "objectives.classify.out" in matrices


def test_a_perceptron_of_one_layer_has_nothing_between_its_edges():
    with pytest.raises(BadInput, match=r"model\.depth=1 has no other: give model\.depth=2, or quantize\.edges=true"):
        quantize(mlp(depth=1), kinds()[0])
    quantize(mlp(depth=1), kinds(edges=True)[0])


@MODELS
@EVERY
def test_a_quantised_learner_says_what_one_with_those_levels_says(made, how):
    learner, plain = made(), made()
    quantize(learner, how)
    state = plain.state_dict()
    with torch.no_grad():
        for name in lowered(learner):
            state[f"{name}.weight"].copy_(how(state[f"{name}.weight"]))
    batch = rows()
    mine, theirs = (one.seen(batch) for one in (learner, plain))
    assert torch.equal(mine.outcomes["classify"].losses, theirs.outcomes["classify"].losses)
    for one in (mine, theirs):
        one.outcomes["classify"].losses.sum().backward()
    gradients = {name: p.grad for name, p in plain.named_parameters()}
    found = full_precision({name: p.grad for name, p in learner.named_parameters() if p.grad is not None})
    assert len(found) > 5
    for name, gradient in found.items():
        assert torch.equal(gradient, gradients[name]), name


def test_attention_sees_the_levels_also_where_it_looks_at_something_else():
    learner, plain = bert(), bert()
    how = kinds()[2]
    quantize(learner, how)
    one, other = (model.network.encoder.layers[0].attention for model in (learner, plain))  # type: ignore[union-attr]
    with torch.no_grad():
        for linear in (other.qkv, other.out):
            linear.weight.copy_(how(linear.weight))
        hidden = drawn(1, 24, 1.0, 3).view(1, 3, 8)
        for source in (None, hidden):
            assert torch.equal(one(hidden, Sight(3, 0), source), other(hidden, Sight(3, 0), source))


def decaying(learner: Learner) -> set[str]:
    """Names in full precision of what weight decay shrinks."""
    names = {id(p): name for name, p in learner.named_parameters()}
    decays: Any = decay_groups(learner, 0.1)[0]["params"]
    return {*full_precision({names[id(p)]: p for p in decays})}


@MODELS
def test_full_precision_is_what_is_kept_what_learns_and_what_decays(made):
    learner, plain = made(), made()
    before = copy.deepcopy(learner.state_dict())
    quantize(learner, kinds()[3])
    assert full_precision(learner.state_dict()).keys() == before.keys()
    for name, tensor in full_precision(learner.state_dict()).items():
        assert torch.equal(tensor, before[name])
    assert decaying(learner) == decaying(plain) == {n for n, p in plain.named_parameters() if p.dim() == 2}
    optimizer = learner.learning.optim.build(learner)
    learner.seen(rows()).outcomes["classify"].losses.mean().backward()
    optimizer.step()
    moved = full_precision(learner.state_dict())
    for name in lowered(learner):
        weight = moved[f"{name}.weight"]
        assert len(weight.unique()) > 3
        assert not torch.equal(weight, before[f"{name}.weight"])


@MODELS
def test_a_state_goes_into_full_precision_and_back(made):
    learner, plain, other = made(), made(seed=5), made(seed=7)
    quantize(learner, kinds()[0])
    quantize(other, kinds()[4])
    plain.load_state_dict(full_precision(learner.state_dict()))
    other.load_state_dict(quantised_names(plain.state_dict(), other))
    assert other.state_dict().keys() == learner.state_dict().keys()
    assert all(torch.equal(tensor, learner.state_dict()[name]) for name, tensor in other.state_dict().items())
    assert full_precision(plain.state_dict()).keys() == plain.state_dict().keys()


@MODELS
@EVERY
def test_a_settled_learner_says_the_same_with_plain_weights(made, how):
    learner = made()
    names = learner.state_dict().keys()
    quantize(learner, how)
    said = learner.seen(rows()).outcomes["classify"].losses
    changed = lowered(learner)
    settle(learner)
    assert torch.equal(learner.seen(rows()).outcomes["classify"].losses, said)
    assert learner.state_dict().keys() == names
    assert all(len(learner.state_dict()[f"{name}.weight"].unique()) <= 2**how.width for name in changed)


@MODELS
@EVERY
def test_sizes_are_known_without_memory(made, how):
    learner, real = made(seed=None), made()
    assert weight_bytes(learner) == weight_bytes(real) == 4 * sum(p.numel() for p in real.parameters())
    quantize(learner, how)
    quantize(real, how)
    assert all(p.is_meta for p in learner.parameters())
    matrices = [p for name, p in real.named_parameters() if name.endswith("original")]
    inside = sum(p.numel() for p in matrices)
    rest = sum(p.numel() for p in real.parameters()) - inside
    wanted = 4 * rest + (inside * how.width + 32 * len(matrices)) / 8
    assert wanted <= weight_bytes(learner) < wanted + 1
    assert weight_bytes(learner) == weight_bytes(real)


def test_scales_of_rows_take_their_bytes():
    learner = mlp()
    quantize(learner, Binary(scale="row", edges=False))
    # Two matrices of 8 x 8, each with 8 scales; 9 x 8 and 8 x 3 weights and 8 + 8 + 8 + 3 biases are whole.
    assert weight_bytes(learner) == 2 * (8 + 8 * 4) + 4 * (72 + 24 + 27)


def test_a_frozen_encoder_stays_frozen():
    learner = bert(frozen=True)
    quantize(learner, kinds()[0])
    assert not any(p.requires_grad for p in learner.network.encoder.parameters())  # type: ignore[union-attr]
