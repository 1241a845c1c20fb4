"""Optimisers and schedules: what decays, and a learning rate that counts optimiser steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from lmab.train.optim import AdamW, Constant, Linear, decay_groups

ADAM = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.98, "epsilon": 1e-6, "weight_decay": 0.1}


# What decays


def test_neither_norms_nor_biases_decay_and_everything_else_does(wire):
    learner = wire().learner
    decaying, spared = decay_groups(learner, 0.01)
    assert (decaying["weight_decay"], spared["weight_decay"]) == (0.01, 0.0)
    names = {id(p): name for name, p in learner.named_parameters()}
    listed = [id(p) for group in (decaying, spared) for p in group["params"]]
    assert sorted(listed) == sorted(names)
    norms = ("norm.weight", "norm.bias", "bias")
    assert all(names[id(p)].endswith(norms) for p in spared["params"])
    assert all(not names[id(p)].endswith(norms) and p.dim() == 2 for p in decaying["params"])
    assert {"network.head.bias", "network.embedding.norm.weight"} <= {names[id(p)] for p in spared["params"]}
    assert "network.embedding.tokens.weight" in {names[id(p)] for p in decaying["params"]}


def test_a_parameter_that_is_shared_or_frozen_stands_once_or_not_at_all():
    one, two = nn.Linear(3, 3), nn.Linear(3, 3)
    two.weight = one.weight
    frozen = nn.Linear(2, 2)
    frozen.requires_grad_(False)
    decaying, spared = decay_groups(nn.ModuleList([one, two, one, frozen]), 0.5)
    assert [id(p) for p in decaying["params"]] == [id(one.weight)]
    assert {id(p) for p in spared["params"]} == {id(one.bias), id(two.bias)}
    assert len(spared["params"]) == 2


def test_a_norm_is_spared_whatever_it_is_called():
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.LayerNorm(4)
            self.table = nn.Embedding(3, 4)
            self.shift_bias = nn.Parameter(torch.zeros(4))

    module = Odd()
    decaying, spared = decay_groups(module, 0.5)
    assert [id(p) for p in decaying["params"]] == [id(module.table.weight)]
    assert len(spared["params"]) == 3


def test_adam_is_built_as_it_was_asked_for_and_decays_apart_from_the_gradient():
    module = nn.Linear(3, 2)
    optimizer = AdamW(**ADAM).build(module)
    assert isinstance(optimizer, torch.optim.AdamW)
    for group, decay in zip(optimizer.param_groups, (0.1, 0.0), strict=True):
        assert (group["lr"], group["betas"], group["eps"], group["weight_decay"]) == (1e-3, (0.9, 0.98), 1e-6, decay)
    weight, bias = module.weight.detach().clone(), module.bias.detach().clone()
    module.weight.grad, module.bias.grad = torch.zeros(2, 3), torch.zeros(2)
    optimizer.step()
    torch.testing.assert_close(module.weight.detach(), weight * (1 - 1e-3 * 0.1))
    assert torch.equal(module.bias.detach(), bias)


# Schedules


@given(warmup=st.integers(0, 50), steps=st.integers(1, 200))
def test_linear_rises_to_one_and_falls_to_nothing(warmup, steps):
    factors = [Linear(warmup=warmup).factor(step, steps) for step in range(steps + 1)]
    for step, factor in enumerate(factors):
        if step < warmup:
            assert factor == pytest.approx((step + 1) / warmup)
        else:
            assert factor == pytest.approx((steps - step) / max(1, steps - warmup))
    assert all(0 < factor <= 1 for factor in factors[:-1])
    if warmup <= steps:
        assert (max(factors), factors[-1]) == (1.0, 0.0)


def test_linear_at_known_steps():
    factors = [Linear(warmup=4).factor(step, 12) for step in range(14)]
    assert factors == [0.25, 0.5, 0.75, 1.0, 1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125, 0.0, 0.0]


@given(warmup=st.integers(0, 50), step=st.integers(0, 200))
def test_constant_rises_to_one_and_stays(warmup, step):
    assert Constant(warmup=warmup).factor(step, 7) == pytest.approx(min(1.0, (step + 1) / max(1, warmup)))


class Rates(pl.Callback):
    """The learning rate that every optimiser step really used."""

    def __init__(self) -> None:
        self.used: list[float] = []

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        self.used.append(trainer.optimizers[0].param_groups[0]["lr"])


@pytest.mark.parametrize("micro", [64, 20])
def test_warm_up_and_decay_count_optimiser_steps_and_not_micro_batches(wire, micro):
    rates = Rates()
    optim, schedule = AdamW(**ADAM), Linear(warmup=4)
    run = wire(micro=micro, optim=optim, schedule=schedule, callbacks=[rates]).fit()
    wanted = [1e-3 * schedule.factor(step, 13) for step in range(13)]
    assert rates.used == pytest.approx(wanted, rel=1e-12)
    # The curve tells the rate of the step that comes next.
    assert run.record.curves["train/lr"] == [
        (step, pytest.approx(1e-3 * schedule.factor(step, 13))) for step in (3, 6, 9, 12, 13)
    ]


@dataclass(frozen=True)
class Plain:
    """Gradient descent: at a rate of 1 a step is the gradient itself."""

    def build(self, module: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(module.parameters(), lr=1.0)


@pytest.mark.parametrize("clip", [0.05, 1e6])
def test_a_gradient_is_clipped_to_the_norm_that_was_asked_for(wire, clip):
    def step(bound: float | None) -> torch.Tensor:
        run = wire(steps=1, dropout=0.0, optim=Plain(), schedule=Constant(warmup=0), clip=bound)
        before = {name: weight.clone() for name, weight in run.weights().items()}
        run.fit()
        run.checkpoints.joinpath("step-0000001.ckpt").unlink()
        return torch.cat([(before[name] - weight).flatten() for name, weight in run.weights().items()])

    free, bound = step(None), step(clip)
    assert free.norm() > 0.05
    torch.testing.assert_close(bound, free * min(1.0, clip / float(free.norm())), rtol=1e-4, atol=1e-7)
