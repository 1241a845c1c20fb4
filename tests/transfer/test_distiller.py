"""Teacher and student together: what each term gives, to whom, and what is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from lmab import teaching
from lmab.run import resolve, run
from lmab.store import Store
from lmab.transfer.distiller import Distiller
from lmab.types import BadInput
from lmab.wiring import build_data, build_learner, made

if TYPE_CHECKING:
    from collections.abc import Callable

    from omegaconf import DictConfig
    from torch import Tensor

    from lmab.data.module import Data
    from lmab.types import Batch

    Composed = Callable[..., DictConfig]
    Grads = dict[str, Tensor | None]

DIGITS = ["experiment=digits", "teacher=['experiment=digits_teacher']", "transfer=[labels,soft_targets]"]


class Made:
    """A distiller of a configuration whose teacher was trained, with its data."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        _, self.data = build_data(config, made(config["objective"]))
        self.both = self.distiller()

    def distiller(self) -> Distiller:
        return teaching.distiller(self.config, self.student(), self.data, self.config["seed"]).train()

    def student(self) -> Any:
        return build_learner(self.config, made(self.config["objective"]), self.data, self.config["seed"])


@pytest.fixture(scope="module")
def distiller(composed: Composed, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Made]:
    store = tmp_path_factory.mktemp("distiller")

    def build(*lines: str) -> Made:
        cfg = composed(f"store={store}", *lines)
        config, _ = resolve(cfg)
        said = config["teacher"]
        if Store(store).find(said["run"]) is None and not teaching.joint(config):
            run(composed(f"store={store}", *lines, "trainer.steps=1", "plain=false"))  # which trains the teacher first
        return Made(config)

    return build


def batch(data: Data, numbers: list[int]) -> Batch:
    return data.train.collate(data.train.rows.take(np.array(numbers), np.zeros(len(numbers), dtype=np.int64)))


def gradients(both: Any, *micro: Batch) -> Grads:
    """Of one optimiser step over these micro-batches, as `Stepping` takes it."""
    counts = [both.units(one) for one in micro]
    totals = {name: sum(count[name] for count in counts) for name in counts[0]}
    both.zero_grad(set_to_none=True)
    for number, one in enumerate(micro):
        loss = sum(weight * total / max(1, totals[name]) for name, weight, total in both.losses(one, number))
        assert isinstance(loss, torch.Tensor)
        loss.backward()
    return {name: None if p.grad is None else p.grad.clone() for name, p in both.named_parameters()}


def students(grads: Grads) -> Grads:
    return {name.removeprefix("student."): g for name, g in grads.items() if name.startswith("student.")}


def equal(one: Grads, other: Grads) -> bool:
    return one.keys() == other.keys() and all(
        (g is None and other[name] is None) or torch.equal(g, other[name])  # type: ignore[arg-type]
        for name, g in one.items()
    )


def test_with_labels_alone_it_learns_as_without_a_teacher(distiller: Callable[..., Made]) -> None:
    it = distiller(*DIGITS, "transfer.labels.weight=1", "transfer.soft_targets.weight=0")
    some = batch(it.data, [*range(16)])
    assert equal(students(gradients(it.both, some)), gradients(it.student().train(), some))


def test_without_labels_it_learns_from_soft_targets_alone(distiller: Callable[..., Made]) -> None:
    it = distiller(*DIGITS, "transfer.labels.weight=0", "transfer.soft_targets.weight=1")
    alone = distiller("experiment=digits", *DIGITS[1:2], "transfer=[soft_targets]", "transfer.soft_targets.weight=1")
    some = batch(it.data, [*range(16)])
    assert equal(gradients(it.both, some), gradients(alone.both, some))
    other = distiller(*DIGITS, "transfer.labels.weight=1", "transfer.soft_targets.weight=1")
    assert not equal(gradients(it.both, some), gradients(other.both, some))


def test_a_term_gives_its_weight_times_its_gradient(distiller: Callable[..., Made]) -> None:
    def of(labels: float, soft: float) -> Grads:
        it = distiller(*DIGITS, f"transfer.labels.weight={labels}", f"transfer.soft_targets.weight={soft}")
        return students(gradients(it.both, batch(it.data, [*range(12)])))

    hard, soft, both = of(1, 0), of(0, 1), of(0.25, 4)
    halved = of(0.5, 0)
    for name, gradient in hard.items():
        assert gradient is not None
        torch.testing.assert_close(halved[name], gradient / 2, rtol=0, atol=0)
        torch.testing.assert_close(both[name], gradient / 4 + 4 * soft[name], rtol=1e-4, atol=1e-6)  # type: ignore[operator]


def test_a_term_without_weight_is_not_computed(distiller: Callable[..., Made], monkeypatch: pytest.MonkeyPatch) -> None:
    it = distiller(*DIGITS, "transfer.soft_targets.weight=0.0")
    monkeypatch.setattr(it.both.teacher, "see", lambda *_: pytest.fail("nothing is asked of the teacher"))
    some = batch(it.data, [0, 1])
    assert [name for name, _, _ in it.both.losses(some, 0)] == ["classify"]
    assert it.both.units(some) == {"classify": 2}


def test_a_weight_that_changes_is_that_of_the_step(
    distiller: Callable[..., Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    more = [
        "transfer.soft_targets.weight=1.0",
        "transfer.soft_targets.until=0.0",
        "transfer.soft_targets.course=linear",
    ]
    it = distiller(*DIGITS, *more, "trainer.steps=5")
    some, found = batch(it.data, [0, 1]), []
    for step in range(5):
        monkeypatch.setattr(Distiller, "global_step", step)
        found.append({name: weight for name, weight, _ in it.both.losses(some, 0)}.get("soft_targets"))
    assert found == [1.0, 0.75, 0.5, 0.25, None]


def test_the_teacher_is_no_part_of_it(distiller: Callable[..., Made]) -> None:
    it = distiller(*DIGITS)
    both, teacher = it.both, it.both.teacher.learner
    before = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}
    both.train()
    assert both.student.training
    assert not any(module.training for module in teacher.modules())
    assert all(name.startswith(("student.", "terms.")) for name in both.state_dict())
    owned = {id(p) for p in teacher.parameters()}
    assert not owned & {id(p) for p in both.parameters()}
    (optimizer,), _ = both.configure_optimizers()
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert trained == {id(p) for p in both.parameters() if p.requires_grad}
    assert not owned & trained
    gradients(both, batch(it.data, [*range(8)]))
    assert all(p.grad is None and not p.requires_grad for p in teacher.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in teacher.state_dict().items())


def test_a_teacher_that_learns_too_is_trained_by_its_labels_alone(distiller: Callable[..., Made]) -> None:
    bare = "teacher=['experiment=digits_teacher','model.dropout=0.0','model.input_dropout=0.0']"
    joint = [DIGITS[0], bare, "transfer=[labels,teacher_labels,soft_targets]"]
    it = distiller(*joint, "transfer.teacher_labels.weight=0.5")
    both, some = it.both, batch(it.data, [*range(8)])
    assert {name.split(".")[0] for name in both.state_dict()} == {"student", "taught"}
    assert both.taught.training
    (optimizer,), _ = both.configure_optimizers()
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert {id(p) for p in both.taught.parameters()} <= trained
    grads = gradients(both, some)
    taught = {name.removeprefix("taught."): g for name, g in grads.items() if name.startswith("taught.")}
    alone = gradients(both.taught, some)
    for name, gradient in alone.items():
        torch.testing.assert_close(taught[name], gradient / 2, rtol=0, atol=0)  # type: ignore[operator]
    without = distiller(*joint[:2], "transfer=[labels,teacher_labels]", "transfer.teacher_labels.weight=0.5")
    assert not equal(students(grads), students(gradients(without.both, some)))


def test_neither_padding_nor_accumulation_changes_a_step(distiller: Callable[..., Made]) -> None:
    it = distiller("experiment=hinton", "plain=false", "model.dropout=0.0", "model.attention_dropout=0.0")
    lengths = it.data.train.rows.take(np.arange(40), np.zeros(40, dtype=np.int64)).lengths
    order = [int(n) for n in np.argsort(lengths, kind="stable")]
    short, long = order[:5], order[-8:]
    assert lengths[short].max() < lengths[long].min()
    both = it.both.train()
    whole = gradients(both, batch(it.data, [*short, *long]))  # the short ones are padded
    parts = gradients(both, batch(it.data, short), batch(it.data, long))
    assert whole.keys() == parts.keys()
    for name, gradient in whole.items():
        if gradient is not None:
            torch.testing.assert_close(parts[name], gradient, rtol=1e-4, atol=1e-6)


def test_in_the_first_stage_a_hint_teaches_the_guided_part_alone(
    distiller: Callable[..., Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    it = distiller("experiment=fitnet", "plain=false")
    some, steps = batch(it.data, [*range(8)]), it.config["trainer"]["steps"]
    last = it.both.terms["hint"].span(steps).stop  # type: ignore[operator]
    assert 0 < last < steps
    for step in (0, last - 1):
        monkeypatch.setattr(Distiller, "global_step", step)
        assert {*it.both.units(some)} == {"hint"}
        taught = {name for name, g in gradients(it.both, some).items() if g is not None and g.any()}
        assert any(name.startswith("terms.hint.") for name in taught)
        guided = {name for name in taught if name.startswith("student.")}
        assert guided
        depths = {int(part) for name in guided for part in name.split(".") if part.isdigit()}
        assert max(depths) < it.config["model"]["depth"] - 1
        assert not any("objectives" in name for name in guided)
    monkeypatch.setattr(Distiller, "global_step", last)
    assert "hint" not in it.both.units(some)
    after = gradients(it.both, some)
    assert all(g is not None and g.any() for name, g in after.items() if name.startswith("student.objectives"))
    assert all(g is None for name, g in after.items() if name.startswith("terms."))


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([*DIGITS, "transfer.labels.begin=0.5", "transfer.soft_targets.begin=0.5"], "No term of transfer="),
        ([*DIGITS, "transfer.labels.begin=0.99"], "which is none of 20 optimiser steps"),
    ],
)
def test_a_step_that_would_teach_nothing_is_refused(
    lines: list[str], says: str, distiller: Callable[..., Made]
) -> None:
    with pytest.raises(BadInput, match=says):
        distiller(*lines)


def test_regressors_begin_with_the_seed_and_leave_sizes_as_they_are(distiller: Callable[..., Made]) -> None:
    it = distiller("experiment=fitnet", "plain=false")
    one, other = it.both.terms.state_dict(), it.distiller().terms.state_dict()
    assert one.keys() == other.keys()
    assert one
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name])
        if tensor.dim() > 1:
            assert float(tensor.std()) == pytest.approx(tensor.shape[-1] ** -0.5, rel=0.5)
        else:
            assert not tensor.any()
