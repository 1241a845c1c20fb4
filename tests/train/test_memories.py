"""Memories: carried on in order, without gradients, through micro-batches, evaluations and checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch

from lmab.data.order import HeldOut
from lmab.train.memories import Memories
from lmab.train.optim import AdamW, Constant

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from lmab.train.learner import Learner
    from lmab.types import Batch

    from .conftest import Wired

MEMORY = 40  # more than a row, less than two


@dataclass(frozen=True)
class Still:
    """Leaves every weight as it is."""

    def build(self, module: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(module.parameters(), lr=0.0)


KNOBS = {"memory": MEMORY, "schedule": Constant(warmup=0), "clip": None, "dropout": 0.0, "double": True}
CPU = torch.device("cpu")


def walk(learner: Learner, batches: list[Batch], remember: int) -> list[torch.Tensor]:
    """The losses of the targets of batches that are read one after another, the memory carried by hand."""
    held: list[torch.Tensor] = []
    said = []
    with torch.no_grad():
        for batch in batches:
            encoded = learner.network(batch, memory=[m[: batch.examples] for m in held], remember=remember)
            targets = batch.targets["plm"]
            losses, _ = learner.network.token_losses(encoded.of(targets), targets.answers)
            said.append(losses)
            held = list(encoded.memory)
    return said


# What is held


def layers(rows: int, fill: float) -> tuple[torch.Tensor, ...]:
    return tuple(torch.full((rows, 2, 3), fill + depth) for depth in range(2))


def test_parts_and_micro_batches_have_memories_of_their_own():
    memories = Memories()
    assert memories.before("train", 0, 4, CPU) == ()
    for number, key in enumerate([("train", 0), ("train", 1), ("validation", 0)]):
        memories.keep(*key, layers(4, 10.0 * number))
    for number, key in enumerate([("train", 0), ("train", 1), ("validation", 0)]):
        found = memories.before(*key, 3, CPU)
        assert [float(layer[0, 0, 0]) for layer in found] == [10.0 * number, 10.0 * number + 1]
        assert [layer.shape for layer in found] == [(3, 2, 3)] * 2
    memories.forget("validation")
    assert memories.before("validation", 0, 4, CPU) == ()
    assert memories.before("train", 1, 4, CPU) != ()
    memories.forget("test")


def test_what_was_restored_is_given_out_where_it_is_wanted():
    """A checkpoint is read before the model is on its device."""
    one, other = Memories(), Memories()
    one.keep("train", 2, layers(4, 1.0))
    other.restore("train", one.of("train"))
    assert all(torch.equal(a, b) for a, b in zip(other.before("train", 2, 4, CPU), layers(4, 1.0), strict=True))
    assert all(layer.is_meta for layer in other.before("train", 2, 4, torch.device("meta")))


# Training


@pytest.mark.parametrize("micro", [64, 16])
def test_a_memory_is_carried_from_step_to_step_in_each_micro_batch(wire: Callable[..., Wired], micro):
    run = wire(micro=micro, optim=Still(), log_every=1, **KNOBS).fit()
    train = run.data.train
    assert 4 < train.each < 13  # the lanes begin anew on the way
    columns = [walk(run.learner, [train[step][m] for step in range(13)], MEMORY) for m in range(64 // micro)]
    wanted = [torch.cat(step).mean().item() for step in zip(*columns, strict=True)]
    curve = run.record.curves["train/plm_loss"]
    assert [value for _, value in curve] == pytest.approx(wanted, rel=1e-12)
    # Without a memory the first step says the same, and the others do not.
    blind = [torch.cat([walk(run.learner, [part], 0)[0] for part in train[step]]).mean().item() for step in range(13)]
    assert blind[0] == pytest.approx(wanted[0], rel=1e-12)
    assert blind[train.each] == pytest.approx(wanted[train.each], rel=1e-12)  # where a new epoch begins
    assert all(abs(a - b) > 1e-6 for a, b in zip(blind[1 : train.each], wanted[1 : train.each], strict=True))


def test_what_is_held_has_no_gradient_and_is_no_part_of_something_larger(wire):
    run = wire(steps=3, micro=32, **KNOBS).fit()
    held = run.learner.memories.of("train")
    assert held.keys() == {0, 1}
    for micro in held.values():
        assert len(micro) == 2
        for layer in micro:
            assert layer.shape == (32, MEMORY, 16)
            assert not layer.requires_grad
            assert layer.grad_fn is None
            assert layer.untyped_storage().nbytes() == layer.numel() * layer.element_size()


def test_no_gradient_flows_through_a_memory(wire):
    """The gradient of a step is that with the memory as a given number."""
    run = wire(steps=2, optim=Still(), **KNOBS).fit()
    learner, (batch,) = run.learner, run.data.train[1]
    (first,) = run.data.train[0]
    learner.zero_grad()
    learner.memories.forget("train")
    list(learner.outcomes(first))
    ((_, _, outcome),) = learner.outcomes(batch)
    outcome.losses.mean().backward()
    found = {name: p.grad.clone() for name, p in learner.named_parameters() if p.grad is not None}
    assert len(found) == 29  # all but what asks for segments, which streams have not
    learner.zero_grad()
    with torch.no_grad():
        memory = learner.network(first, remember=MEMORY).memory
    encoded = learner.network(batch, memory=[layer.clone() for layer in memory])
    targets = batch.targets["plm"]
    learner.network.token_losses(encoded.of(targets), targets.answers)[0].mean().backward()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, learner.get_parameter(name).grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("micro", [32, 8])
def test_training_in_micro_batches_ends_with_the_weights_of_the_large_batch(wire, micro):
    knobs = KNOBS | {"optim": AdamW(lr=1e-2, beta1=0.9, beta2=0.999, epsilon=1e-3, weight_decay=0.01), "clip": 0.5}
    whole, parts = wire("whole", steps=6, **knobs).fit(), wire("parts", steps=6, micro=micro, **knobs).fit()
    for name, weight in whole.weights().items():
        torch.testing.assert_close(parts.weights()[name], weight, rtol=1e-8, atol=1e-10)
    for name, curve in whole.record.curves.items():
        assert parts.record.curves[name] == [(step, pytest.approx(value, rel=1e-8)) for step, value in curve]


def test_rows_that_belong_to_no_stream_leave_nothing_behind(wire):
    run = wire(steps=1, **KNOBS)
    (batch,) = run.data.train[0]
    alone = type(batch)(**vars(batch) | {"view": type(batch.view)(**vars(batch.view) | {"past": None})})
    list(run.learner.outcomes(alone))
    assert run.learner.memories.of("train") == {}
    list(run.learner.outcomes(batch))
    assert run.learner.memories.of("train") != {}


# Held-out text


def scored(learner: Learner, part: HeldOut) -> dict[str, float]:
    learner.on_validation_epoch_start()
    with torch.no_grad():
        for number in range(len(part)):
            learner.validation_step(part[number], number)
    return learner.validation_means()


def lanes(run: Wired, size: int) -> HeldOut:
    held = run.data.validation
    return HeldOut(held.rows, held.collate, batch=size)


@pytest.mark.parametrize("memory", [7, MEMORY, 500])
def test_a_held_out_loss_does_not_depend_on_how_many_documents_are_read_at_once(wire, memory):
    run = wire(**KNOBS | {"memory": memory})
    learner = run.learner.eval()
    values = [scored(learner, lanes(run, size)) for size in (1, 2, 4, 6, 128)]
    for found in values:
        assert found == {name: pytest.approx(value, rel=1e-12) for name, value in values[0].items()}
    # By hand, document by document.
    held = lanes(run, 1)
    documents: list[list[Batch]] = []
    for number in range(len(held)):
        batch = held[number]
        if int(batch.view.past) == 0:
            documents.append([])
        documents[-1].append(batch)
    assert len(documents) == 6
    assert max(map(len, documents)) > 3
    losses = torch.cat([loss for rows in documents for loss in walk(learner, rows, memory)])
    assert values[0]["val/plm_loss"] == pytest.approx(losses.mean().item(), rel=1e-12)


def test_every_evaluation_begins_without_a_memory_and_leaves_that_of_training_alone(wire):
    run = wire(steps=2, optim=Still(), **KNOBS).fit()
    learner = run.learner.eval()
    before = [layer.clone() for layer in learner.memories.of("train")[0]]
    one, two = scored(learner, lanes(run, 3)), scored(learner, lanes(run, 3))
    assert one == two
    assert learner.memories.of("validation") != {}
    assert all(torch.equal(a, b) for a, b in zip(before, learner.memories.of("train")[0], strict=True))
    learner.memories.forget("train")
    learner.on_test_epoch_start()
    assert learner.memories.of("test") == {}
    assert scored(learner, lanes(run, 3)) == one


def test_how_often_is_validated_does_not_change_what_is_learnt(wire):
    often, seldom = (wire(f"run{n}", val_every=n, memory=MEMORY).fit().record.curves for n in (1, 13))
    assert often["train/plm_loss"] == seldom["train/plm_loss"]
    assert often["val/plm_loss"][-1] == seldom["val/plm_loss"][-1]


def test_held_out_text_can_be_read_with_another_memory_or_reach(wire):
    def loss(name: str, **learning: Any) -> float:
        run = wire(name, learning=learning, **KNOBS)
        return scored(run.learner.eval(), lanes(run, 6))["val/plm_loss"]

    plain = loss("plain")
    assert loss("same", memory=MEMORY) == plain
    assert loss("reach_of_all", reach=10_000) == pytest.approx(plain, rel=1e-12)
    none, less = loss("none", memory=0), loss("less", memory=5)
    run = wire("bare", **KNOBS | {"memory": 0})
    assert none == pytest.approx(scored(run.learner.eval(), lanes(run, 6))["val/plm_loss"], rel=1e-12)
    others = [plain, none, less, loss("longer", memory=90), loss("near", reach=4), loss("nearer", reach=3)]
    assert len({round(value, 9) for value in others}) == len(others)


# Checkpoints


def test_a_checkpoint_holds_the_memory_of_training(wire):
    run = wire(steps=5, micro=32, memory=MEMORY, checkpoint_every=5).fit()
    (path,) = run.checkpoints.glob("step-*.ckpt")
    held = torch.load(path, weights_only=True)["memory"]
    wanted = run.learner.memories.of("train")
    assert held.keys() == wanted.keys() == {0, 1}
    for micro, kept in held.items():
        assert all(torch.equal(a, b) for a, b in zip(kept, wanted[micro], strict=True))
    other = wire("other", steps=5, micro=32, memory=MEMORY).learner
    other.on_load_checkpoint({"memory": held})
    assert all(torch.equal(a, b) for a, b in zip(other.memories.of("train")[1], wanted[1], strict=True))


def test_a_run_that_lost_its_memory_would_not_go_on_as_it_was(wire, monkeypatch):
    """What the runs that were stopped in test_callbacks.py are compared by does see a memory."""
    wire("run", steps=5, memory=MEMORY, checkpoint_every=5).fit()
    (path,) = wire("run", steps=5, memory=MEMORY).checkpoints.glob("step-*.ckpt")
    checkpoint = torch.load(path, weights_only=True)
    losses = []
    for memory in (checkpoint["memory"], {}):
        run = wire("next", memory=MEMORY)
        run.learner.load_state_dict(checkpoint["state_dict"])
        run.learner.on_load_checkpoint({"memory": memory})
        ((_, _, outcome),) = run.learner.eval().outcomes(run.data.train[5][0])
        losses.append(outcome.losses.mean().item())
    assert abs(losses[0] - losses[1]) > 1e-6
