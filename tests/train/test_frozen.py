"""Weights that come from elsewhere, and those that stay as they begin while a head learns on top of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from lmab.types import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable

    from lmab.train.learner import Learner

    from .conftest import Wired

BOTH = pytest.mark.parametrize("memory", [None, 40])  # BERT, and XLNet with two streams
HEAD = "network.head."


def kept(name: str) -> bool:
    """Is a parameter of those that a probe leaves alone?"""
    return not name.startswith(HEAD)


@BOTH
def test_what_is_frozen_does_not_move_and_has_no_gradient_and_the_head_does(wire: Callable[..., Wired], memory):
    run = wire(memory=memory, learning={"frozen": True})
    before = {name: weight.clone() for name, weight in run.weights().items()}
    assert any(kept(name) for name in before)
    run.fit()
    for name, parameter in run.learner.named_parameters():
        assert parameter.requires_grad != kept(name), name
        assert torch.equal(parameter, before[name]) == kept(name), name
        if kept(name):
            assert parameter.grad is None
    given = {id(p) for group in run.trainer.optimizers[0].param_groups for p in group["params"]}
    assert given == {id(p) for name, p in run.learner.named_parameters() if not kept(name)}


def hidden(learner: Learner, run: Wired) -> torch.Tensor:
    (batch,) = run.data.train[0]
    with torch.random.fork_rng(), torch.no_grad():
        encoded = learner.network(batch)
    return encoded.hidden if encoded.second is None else encoded.second


@BOTH
def test_nothing_is_dropped_inside_of_what_is_frozen(wire, memory):
    knobs = {"memory": memory, "dropout": 0.5}
    run = wire("frozen", learning={"frozen": True}, **knobs)
    loose = wire("loose", **knobs)
    for learner in (run.learner, loose.learner):
        learner.train()
    still = hidden(loose.learner.eval(), run)
    loose.learner.train()
    assert torch.equal(hidden(run.learner, run), still)
    assert not torch.equal(hidden(loose.learner, run), still)
    # Lightning puts a model into training again after every validation.
    run.learner.eval()
    assert run.learner.train().training
    assert torch.equal(hidden(run.learner, run), still)


@BOTH
def test_a_probe_learns(wire, memory):
    run = wire(memory=memory, learning={"frozen": True}, dropout=0.0, log_every=13).fit()
    loose = wire("loose", memory=memory, dropout=0.0, log_every=13).fit()
    name = "train/mlm_loss" if memory is None else "train/plm_loss"
    first = wire("first", memory=memory, dropout=0.0, steps=1, log_every=1).fit().record.curves[name][0][1]
    assert loose.record.curves[name][0][1] < run.record.curves[name][0][1] < first


# Where weights start


@BOTH
def test_weights_from_elsewhere_are_taken_by_name_and_the_others_begin_as_ever(wire, memory):
    plain = wire("plain", memory=memory).weights()
    chosen = sorted(plain)[::3]
    start = {name: torch.full_like(plain[name], 0.25) for name in chosen}
    found = wire("begun", memory=memory, learning={"start": start | {"network.nowhere": torch.ones(3)}}).weights()
    for name, weight in plain.items():
        assert torch.equal(found[name], start.get(name, weight)), name
    # They are copies: training does not change what was handed in.
    wire("trained", memory=memory, learning={"start": start}).fit()
    assert all(bool((value == 0.25).all()) for value in start.values())


@pytest.mark.parametrize("seed", [0, None])
def test_a_weight_of_another_shape_is_refused(wire, seed):
    start = {"network.head.bias": torch.zeros(7)}
    with pytest.raises(
        BadInput, match=r"^start has network\.head\.bias of shape \[7\], and this model wants \[\d+\]: "
    ):
        wire(learning={"start": start, "seed": seed})


def test_frozen_weights_from_elsewhere_stay_what_they_were(wire):
    start = {name: weight + 0.01 for name, weight in wire("plain").weights().items()}
    found = wire("probe", learning={"start": start, "frozen": True}).fit().weights()
    assert all(torch.equal(found[name], start[name]) == kept(name) for name in found)
