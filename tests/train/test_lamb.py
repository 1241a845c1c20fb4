"""LAMB: against hand and numpy, how long a step is, and a state that goes on where it stopped."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from lmab.train.lamb import LAMB
from lmab.types import BadInput

KNOBS = {"lr": 0.1, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-6, "weight_decay": 0.01}


class Small(nn.Module):
    """Two parameters that adapt and four that do not, in double precision."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.table, self.linear, self.norm = nn.Embedding(5, 3), nn.Linear(3, 4), nn.LayerNorm(4)
        self.shift_bias = nn.Parameter(torch.empty(4))
        self.double()
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for parameter in self.parameters():
                values = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.copy_(scale * values)

    def adapting(self) -> list[nn.Parameter]:
        return [self.table.weight, self.linear.weight]


def gradients(module: nn.Module, step: int, scale: float = 1.0) -> None:
    """Every parameter's gradient is a function of the step; at odd steps the linear layer has none."""
    generator = torch.Generator().manual_seed(100 + step)
    for parameter in module.parameters():
        drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(parameter.dtype)
        parameter.grad = scale * drawn
    if step % 2:
        module.linear.weight.grad = None


def copies(module: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in module.parameters()]


# Values


def test_one_step_by_hand():
    module = nn.Linear(2, 1).double()
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[3.0, 4.0]]))
        module.bias.fill_(1.0)
    module.weight.grad = torch.tensor([[0.5, -0.5]], dtype=torch.float64)
    module.bias.grad = torch.tensor([2.0], dtype=torch.float64)
    LAMB(**KNOBS | {"epsilon": 0.5, "weight_decay": 0.1}).build(module).step()
    # The corrected means of a first step are g and g^2, so r = g / (|g| + 0.5) = (0.5, -0.5), and with a tenth of
    # the weights (0.8, -0.1), which is sqrt(0.65) long. The weights are 5 long.
    ratio = 5 / math.sqrt(0.65)
    assert module.weight[0].tolist() == pytest.approx([3 - 0.1 * ratio * 0.8, 4 + 0.1 * ratio * 0.1], rel=1e-14)
    # A bias takes Adam's step, 2 / 2.5, and does not decay.
    assert module.bias.tolist() == pytest.approx([1 - 0.1 * 0.8], rel=1e-14)


def published(weights, sequence, *, lr, beta1, beta2, epsilon, weight_decay, adapt):
    """Algorithm 2 of the paper for one parameter, line by line. None in the sequence: a step without a gradient."""
    x = weights.copy()
    m, v, t = np.zeros_like(x), np.zeros_like(x), 0
    for g in sequence:
        if g is None:
            continue
        t += 1
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        r = (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + epsilon)
        step = r + weight_decay * x
        ratio = np.linalg.norm(x) / np.linalg.norm(step) if adapt else 1.0
        x = x - lr * ratio * step
    return x


@given(
    lr=st.floats(1e-4, 0.5),
    beta1=st.floats(0, 0.99),
    beta2=st.floats(0, 0.9999),
    epsilon=st.floats(1e-8, 1e-2),
    weight_decay=st.sampled_from([0.0, 0.01, 0.5]),
)
def test_several_steps_are_those_of_the_paper(**knobs):
    module = Small()
    before, adapting = copies(module), [id(parameter) for parameter in module.adapting()]
    optimizer = LAMB(**knobs).build(module)
    drawn = [[] for _ in before]
    for step in range(5):
        gradients(module, step)
        for kept, parameter in zip(drawn, module.parameters(), strict=True):
            kept.append(None if parameter.grad is None else parameter.grad.numpy().copy())
        optimizer.step()
    for parameter, start, sequence in zip(module.parameters(), before, drawn, strict=True):
        adapt = id(parameter) in adapting
        decay = {"weight_decay": knobs["weight_decay"] if adapt else 0.0}
        wanted = published(start.numpy(), sequence, **knobs | decay, adapt=adapt)
        np.testing.assert_allclose(parameter.detach().numpy(), wanted, rtol=1e-9, atol=1e-11)


# How long a step is


@given(lr=st.floats(1e-4, 1.0), weight_decay=st.sampled_from([0.0, 0.01, 2.0]), scale=st.floats(1e-3, 1e3))
def test_a_step_is_as_long_as_the_weights_whatever_the_gradient(lr, weight_decay, scale):
    module = Small()
    optimizer = LAMB(**KNOBS | {"lr": lr, "weight_decay": weight_decay}).build(module)
    for step in (0, 2, 4):
        before = [parameter.detach().clone() for parameter in module.adapting()]
        gradients(module, step, scale)
        optimizer.step()
        for old, new in zip(before, module.adapting(), strict=True):
            assert float((new.detach() - old).norm()) == pytest.approx(lr * float(old.norm()), rel=1e-9)


def test_neither_the_size_of_the_gradients_nor_that_of_the_weights_changes_the_direction():
    knobs = KNOBS | {"epsilon": 1e-30, "weight_decay": 0.0}

    def walk(gradient: float, size: float) -> list[torch.Tensor]:
        module = Small(size)
        optimizer = LAMB(**knobs).build(module)
        for step in range(4):
            gradients(module, step, gradient)
            optimizer.step()
        return [parameter.detach() for parameter in module.adapting()]

    for one, louder, larger in zip(walk(1.0, 1.0), walk(1e4, 1.0), walk(1.0, 1e3), strict=True):
        torch.testing.assert_close(louder, one, rtol=1e-10, atol=0)
        torch.testing.assert_close(larger, 1e3 * one, rtol=1e-10, atol=0)


def test_weights_that_are_zero_take_the_step_of_adam():
    module = nn.Linear(3, 2, bias=False).double()
    nn.init.zeros_(module.weight)
    module.weight.grad = torch.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]], dtype=torch.float64)
    LAMB(**KNOBS).build(module).step()
    torch.testing.assert_close(module.weight.detach(), -0.1 * module.weight.grad.sign(), rtol=1e-5, atol=0)


def test_a_gradient_of_zero_moves_nothing_that_does_not_decay():
    module = Small()
    before = copies(module)
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    LAMB(**KNOBS | {"weight_decay": 0.0}).build(module).step()
    assert all(torch.equal(old, new) for old, new in zip(before, module.parameters(), strict=True))


def test_without_decay_the_same_parameters_adapt():
    for decay in (0.0, 0.01):
        module = Small()
        adapting, spared = LAMB(**KNOBS | {"weight_decay": decay}).build(module).param_groups
        assert (adapting["adapt"], spared["adapt"]) == (True, False)
        assert (adapting["weight_decay"], spared["weight_decay"]) == (decay, 0.0)
        assert [id(parameter) for parameter in adapting["params"]] == [id(p) for p in module.adapting()]
        assert len(spared["params"]) == 4


# Going on


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("stop", [1, 2, 3])
def test_a_state_that_was_written_and_read_goes_on_to_the_last_digit(stop, dtype):
    def steps(module: nn.Module, optimizer: torch.optim.Optimizer, numbers: range) -> None:
        for step in numbers:
            gradients(module, step)
            optimizer.step()

    whole = Small().to(dtype)
    steps(whole, LAMB(**KNOBS).build(whole), range(5))

    first = Small().to(dtype)
    optimizer = LAMB(**KNOBS).build(first)
    steps(first, optimizer, range(stop))
    written = io.BytesIO()
    torch.save({"model": first.state_dict(), "optimizer": optimizer.state_dict()}, written)
    written.seek(0)
    read = torch.load(written, weights_only=True)

    second = Small(2.0).to(dtype)
    second.load_state_dict(read["model"])
    optimizer = LAMB(**KNOBS | {"lr": 7.0}).build(second)  # the rate that was written counts
    optimizer.load_state_dict(read["optimizer"])
    steps(second, optimizer, range(stop, 5))
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), second.parameters(), strict=True))


def test_a_closure_is_called_with_gradients_and_its_loss_returned():
    module, row = Small(), torch.ones(3, dtype=torch.float64)

    def closure() -> float:
        loss = module.linear(row).square().sum()
        loss.backward()
        return loss.item()

    before = copies(module)
    wanted = module.linear(row).square().sum().item()
    assert LAMB(**KNOBS).build(module).step(closure) == wanted
    moved = {n for (n, p), old in zip(module.named_parameters(), before, strict=True) if not torch.equal(p, old)}
    assert moved == {"linear.weight", "linear.bias"}


def test_it_trains_a_network_and_the_schedule_reaches_it(wire):
    run = wire(optim=LAMB(**KNOBS | {"lr": 0.03})).fit()
    curve = [loss for _, loss in run.record.curves["train/mlm_loss"]]
    assert all(map(math.isfinite, curve))
    assert curve[-1] < curve[0]
    assert run.trainer.optimizers[0].param_groups[0]["lr"] == 0.0  # the end of the schedule


@pytest.mark.parametrize(
    ("knob", "value"), [("lr", 0.0), ("epsilon", math.nan), ("beta1", 1.0), ("beta2", -0.1), ("weight_decay", -1.0)]
)
def test_a_knob_that_cannot_work_is_refused_in_one_sentence(knob, value):
    with pytest.raises(BadInput, match=rf"^optim\.{knob}={value} cannot work: give a number [^.]*\d[^.]*\.$"):
        LAMB(**KNOBS | {knob: value})
