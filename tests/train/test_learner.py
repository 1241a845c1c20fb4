"""The training step: micro-batches are the large batch, dropout is a function of the step, means are over targets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
import torch.nn.functional as F

from lmab.data.order import HeldOut
from lmab.train.optim import AdamW, Constant

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from lmab.train.learner import Learner
    from lmab.types import Batch

    from .conftest import Wired


@dataclass(frozen=True)
class Plain:
    """Gradient descent: at a rate of 1 a step is the gradient itself."""

    lr: float = 1.0

    def build(self, module: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(module.parameters(), lr=self.lr)


STILL = {"optim": Plain(), "schedule": Constant(warmup=0), "clip": None, "dropout": 0.0, "double": True}


def by_hand(learner: Learner, batch: Batch) -> torch.Tensor:
    """The loss of every target, by torch's own cross entropy over the scores at every place."""
    hidden = learner.network(batch).hidden
    logits = learner.network.token_logits(hidden.flatten(0, 1))
    targets = batch.targets["mlm"]
    return F.cross_entropy(logits[targets.places], targets.answers, reduction="none")


# Accumulation


@pytest.mark.parametrize("cut", [True, False])
@pytest.mark.parametrize("micro", [1, 5, 16])
def test_the_gradient_of_a_step_is_that_of_the_mean_over_all_its_targets(wire: Callable[..., Wired], micro, cut):
    run = wire(steps=1, batch=16, micro=micro, cut=cut, **STILL)
    parts = run.data.train[0]
    counts = [len(part.targets["mlm"].places) for part in parts]
    assert len(set(counts)) > 1 or micro == 16
    before = {name: weight.clone() for name, weight in run.weights().items()}
    (whole,) = wire("other", steps=1, batch=16, cut=cut, **STILL).data.train[0]
    reference = wire("reference", **STILL).learner
    losses = by_hand(reference, whole)
    assert len(losses) == sum(counts)
    losses.mean().backward()
    run.fit()
    for name, parameter in reference.named_parameters():
        step = before[name] - run.weights()[name]
        torch.testing.assert_close(step, parameter.grad, rtol=1e-9, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")
    (_, value), *_ = run.record.curves["train/mlm_loss"]
    assert value == pytest.approx(losses.mean().item(), rel=1e-12)


@pytest.mark.parametrize("micro", [7, 30])
def test_training_in_micro_batches_ends_with_the_weights_of_the_large_batch(wire, micro):
    knobs = STILL | {"optim": AdamW(lr=1e-2, beta1=0.9, beta2=0.999, epsilon=1e-3, weight_decay=0.01), "clip": 0.5}
    whole, parts = wire("whole", steps=6, **knobs).fit(), wire("parts", steps=6, micro=micro, **knobs).fit()
    for name, weight in whole.weights().items():
        torch.testing.assert_close(parts.weights()[name], weight, rtol=1e-8, atol=1e-10)
    for name, curve in whole.record.curves.items():
        assert parts.record.curves[name] == [(step, pytest.approx(value, rel=1e-8)) for step, value in curve]


def test_a_micro_batch_without_targets_adds_nothing(wire):
    run = wire(steps=1, batch=40, micro=1, cut=False, **STILL)
    rows = run.data.train.rows
    # Rows so short that some have no target at a rate of 0.3.
    order = np.argsort(rows.length, kind="stable")[:40]
    run.data.train._orders[0] = np.concatenate([order, np.setdiff1d(np.arange(len(rows)), order)])
    counts = [len(part.targets["mlm"].places) for part in run.data.train[0]]
    assert 0 in counts
    assert sum(counts) > 0
    run.fit()
    assert all(weight.isfinite().all() for weight in run.weights().values())
    (_, value), *_ = run.record.curves["train/mlm_loss"]
    reference = wire("reference", cut=False, **STILL).learner
    losses = torch.cat([by_hand(reference, part) for part in run.data.train[0]])
    assert value == pytest.approx(losses.mean().item(), rel=1e-12)


# Dropout


class Disturb(pl.Callback):
    """Draws from the global generator before every step, and sees whether a step leaves it as it was."""

    def __init__(self, draws: int) -> None:
        self.draws = draws
        self.state = torch.empty(0)

    def on_train_batch_start(self, *_: Any) -> None:
        torch.rand(self.draws)
        self.state = torch.get_rng_state()

    def on_train_batch_end(self, *_: Any) -> None:
        assert torch.equal(torch.get_rng_state(), self.state)


def test_what_a_step_draws_does_not_depend_on_what_was_drawn_before(wire):
    runs = [wire(f"run{draws}", callbacks=[Disturb(draws)], dropout=0.3).fit() for draws in (0, 1, 1000)]
    for other in runs[1:]:
        assert other.record.curves == runs[0].record.curves
        assert all(torch.equal(weight, other.weights()[name]) for name, weight in runs[0].weights().items())


def losses_of_one_batch(wire: Callable[..., Wired], name: str, seed: int, dropout: float) -> list[float]:
    """The training loss at five steps that all read the same batch and change no weight."""
    knobs = {"optim": Plain(lr=0.0), "schedule": Constant(warmup=0), "log_every": 1, "val_every": 100}
    run = wire(name, steps=5, seed=seed, dropout=dropout, **knobs)
    fixed = wire("fixed", batch=64).data.train[0]
    weights = wire("fixed").learner.state_dict()
    run.learner.load_state_dict(weights)
    type_ = type(run.data.train)
    run.data.train.__class__ = type("Fixed", (type_,), {"__getitem__": lambda self, step: fixed})
    return [value for _, value in run.fit().record.curves["train/mlm_loss"]]


def test_dropout_differs_by_step_and_by_seed_and_repeats(wire):
    still = losses_of_one_batch(wire, "still", 0, 0.0)
    assert len(set(still)) == 1
    first, again = (losses_of_one_batch(wire, name, 0, 0.3) for name in ("first", "again"))
    assert first == again
    assert len(set(first)) == 5
    assert not set(first) & set(losses_of_one_batch(wire, "other", 1, 0.3))


def test_the_micro_batches_of_a_step_drop_different_places(wire):
    seen: list[torch.Tensor] = []
    run = wire(steps=1, batch=64, micro=32, dropout=0.5)
    run.learner.network.embedding.dropout.register_forward_hook(lambda _m, _i, out: seen.append(out == 0))
    run.fit()
    assert 0.4 < seen[0].float().mean() < 0.6
    assert not torch.equal(seen[0], seen[1])


# Held-out means


def means(run: Wired, part: HeldOut, *, wider: int = 0) -> dict[str, float]:
    """Validation by hand, without a trainer, on batches that may be padded more than they need."""
    learner = run.learner.double().eval()
    learner.on_validation_epoch_start()
    with torch.no_grad():
        for number in range(len(part)):
            start = number * part.batch
            index = np.arange(start, min(start + part.batch, len(part.rows)))
            example = part.rows.take(index, np.zeros_like(index))
            padded = np.pad(example.tokens, ((0, 0), (0, wider)))
            example = example._replace(tokens=padded, document=part._ordinal[index])
            learner.validation_step(part.collate(example), number)
    return learner.validation_means()


def test_a_validation_loss_does_not_depend_on_the_evaluation_batch_or_on_padding(wire):
    run = wire(cut=False, dropout=0.5)
    held = run.data.validation
    batch = held[0]
    assert batch.view.visible is not None
    learner = run.learner.double().eval()
    with torch.no_grad():
        rows = [HeldOut(held.rows, held.collate, batch=1)[number] for number in range(len(held.rows))]
        losses = torch.cat([by_hand(learner, row) for row in rows])
    wanted = losses.mean().item()
    for size, wider in ((1, 0), (7, 0), (128, 0), (1_000, 0), (7, 50)):
        found = means(run, HeldOut(held.rows, held.collate, batch=size), wider=wider)
        assert found["val/mlm_loss"] == pytest.approx(wanted, rel=1e-12)
        assert 0 <= found["val/mlm_accuracy"] < 1


def test_what_is_validated_in_training_is_that_mean(wire):
    curves = [wire(f"run{size}", held_batch=size, cut=False).fit().record.curves for size in (5, 500)]
    for one, other in zip(curves[0]["val/mlm_loss"], curves[1]["val/mlm_loss"], strict=True):
        assert one == (other[0], pytest.approx(other[1], rel=1e-5))
    # How often it is looked at does not change what is learnt.
    assert curves[0]["train/mlm_loss"] == curves[1]["train/mlm_loss"]
    seldom = wire("seldom", val_every=13, cut=False).fit().record.curves
    assert seldom["train/mlm_loss"] == curves[0]["train/mlm_loss"]


def test_test_scores_by_document_are_hand_sums(wire):
    run = wire(cut=False)
    learner = run.learner.double().eval()
    learner.on_test_epoch_start()
    held = run.data.test
    sums, counts = np.zeros(held.documents), np.zeros(held.documents)
    with torch.no_grad():
        for number in range(len(held)):
            batch = held[number]
            learner.test_step(batch, number)
            losses = by_hand(learner, batch)
            row = batch.targets["mlm"].places // batch.tokens.shape[1]
            np.add.at(sums, batch.document[row].numpy(), losses.numpy())
            np.add.at(counts, batch.document[row].numpy(), 1)
    values, weights = learner.test_documents()["test/mlm_loss"]
    assert values == pytest.approx((sums / counts).tolist(), rel=1e-12)
    assert weights == counts.tolist()
    assert len(values) == 6
    assert learner.test_means()["test/mlm_loss"] == pytest.approx(sums.sum() / counts.sum(), rel=1e-12)
    hits, again = learner.test_documents()["test/mlm_accuracy"]
    assert again == weights
    total = sum(h * w for h, w in zip(hits, weights, strict=True)) / sum(weights)
    assert learner.test_means()["test/mlm_accuracy"] == pytest.approx(total)


def test_a_small_model_learns_the_text_it_sees(wire):
    curve = wire(steps=60, dropout=0.0, log_every=10, val_every=30).fit().record.curves["train/mlm_loss"]
    losses = [value for _, value in curve]
    assert losses[0] > losses[-1]
    assert losses[-1] < np.log(600)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_half_precision_trains_to_finite_figures(wire, dropout):
    knobs = {"cut": False, "micro": 24, "dropout": dropout}
    half, full = (wire(p, precision=p, **knobs).fit() for p in ("bf16-mixed", "32-true"))
    for name, curve in full.record.curves.items():
        other = half.record.curves[name]
        assert [step for step, _ in other] == [step for step, _ in curve]
        if name.endswith("loss"):
            assert other == [(step, pytest.approx(value, rel=0.05)) for step, value in curve]
    assert all(weight.dtype == torch.float32 and weight.isfinite().all() for weight in half.weights().values())
    assert half.record.curves != full.record.curves
