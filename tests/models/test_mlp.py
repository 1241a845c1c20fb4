"""MLP: its parameters, what it learns from, and that it is a learner like the others."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lmab.models.mlp import MLP
from lmab.objectives.classify import Classify
from lmab.types import BadInput, Batch, Targets, View

SIZES = {"vocab": 17, "length": 64, "dim": 12, "depth": 3, "dropout": 0.0, "input_dropout": 0.0, "gain": 1.0}


def classify(**changes):
    knobs = {"classes": 10, "pool": "last", "head": "linear", "layers": [-1], "dropout": 0.0, "causal": False}
    return Classify(**knobs | {"weight": 1.0} | changes)


@pytest.fixture
def mlp(learning):
    def made(*, seed: int | None = 0, start=None, frozen: bool = False, **changes) -> MLP:
        return MLP(learning(classify(), seed=seed, start=start, frozen=frozen), **SIZES | changes)

    return made


def digits(labels: list[int], seed: int = 0) -> Batch:
    tokens = torch.randint(0, 17, (len(labels), 64), generator=torch.Generator().manual_seed(seed))
    targets = {"classify": Targets(torch.arange(len(labels)) * 64 + 63, torch.tensor(labels))}
    return Batch(tokens, None, View(), targets, torch.arange(len(labels)), len(labels), tokens.numel())


@given(length=st.integers(1, 80), dim=st.integers(1, 30), depth=st.integers(1, 6))
def test_the_parameters_in_closed_form(learning, length, dim, depth):
    model = MLP(learning(classify(), seed=None), **SIZES | {"length": length, "dim": dim, "depth": depth})
    hidden = length * dim + dim + (depth - 1) * (dim * dim + dim)
    assert sum(p.numel() for p in model.network.parameters()) == hidden
    assert sum(p.numel() for p in model.parameters()) == hidden + 10 * dim + 10


def test_the_loss_is_that_of_the_plain_net(mlp):
    model, batch = mlp(), digits([3, 0, 9])
    layers = []
    for layer in model.network.encoder:
        layers += [layer, torch.nn.ReLU()]
    plain = torch.nn.Sequential(*layers, model.objectives["classify"].out)
    ((_, _, outcome),) = model.outcomes(batch)
    wanted = torch.nn.functional.cross_entropy(plain(batch.tokens / 16), torch.tensor([3, 0, 9]), reduction="none")
    torch.testing.assert_close(outcome.losses, wanted)
    outcome.losses.sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in model.parameters())


def test_first_weights_depend_on_seed_and_name_alone(mlp):
    one, same, other = mlp(), mlp(depth=2), mlp(seed=1)
    weights = dict(one.named_parameters())
    assert all(torch.equal(weights[name], weight) for name, weight in same.named_parameters())
    assert not torch.equal(
        weights["network.encoder.1.weight"], dict(other.named_parameters())["network.encoder.1.weight"]
    )


def test_it_begins_with_the_weights_of_another(mlp):
    one = mlp()
    two = mlp(seed=5, start=dict(one.named_parameters()))
    assert all(torch.equal(p, q) for p, q in zip(one.parameters(), two.parameters(), strict=True))


def test_a_probe_learns_its_head_alone(mlp):
    model = mlp(frozen=True, dropout=0.5).train()
    ((_, _, outcome),) = model.outcomes(digits([1, 2]))
    outcome.losses.sum().backward()
    assert {name for name, p in model.named_parameters() if p.grad is not None} == {
        "objectives.classify.out.weight",
        "objectives.classify.out.bias",
    }


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"dim": 0}, "model.dim=0 builds nothing"),
        ({"depth": 0}, "model.depth=0 builds nothing"),
        ({"vocab": 1}, "model.vocab=1 leaves no grey level"),
        ({"gain": 0.0}, "model.gain=0.0 cannot work"),
        ({"gain": float("inf")}, "model.gain=inf cannot work"),
    ],
)
def test_sizes_that_build_nothing_are_refused(mlp, changes, says):
    with pytest.raises(BadInput, match=says):
        mlp(**changes)
