"""Teacher and student together: what each term gives, to whom, and what is kept."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from lmab import starting, teaching
from lmab.run import resolve, run
from lmab.train.stepping import Stepping
from lmab.transfer.distiller import Distiller
from lmab.types import Ask, BadInput
from lmab.wiring import build_data, build_learner, made

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from omegaconf import DictConfig
    from torch import Tensor

    from lmab.data.corpus import Files
    from lmab.data.module import Data
    from lmab.data.prepare import Prepared
    from lmab.types import Batch

    Composed = Callable[..., DictConfig]
    Grads = dict[str, Tensor | None]

DIGITS = ["experiment=digits", "teacher=['experiment=digits_teacher']", "transfer=[labels,soft_targets]"]
TERMS = ["labels", "embedding", "attention", "hidden", "hint", "soft_targets"]
TEXT = ["experiment=hinton", "plain=false", f"transfer=[{','.join(TERMS)}]", "transfer.soft_targets.temperature=2"]


class Made:
    """A distiller of a resolved configuration whose teacher was trained, with its data."""

    def __init__(self, config: dict[str, Any], prepared: Prepared, data: Data) -> None:
        self.config, self.prepared, self.data = config, prepared, data
        self.both = self.distiller()

    def distiller(self) -> Distiller:
        return teaching.distiller(self.config, self.student(), self.data, self.config["seed"]).train()

    def student(self) -> Any:
        return build_learner(self.config, made(self.config["objective"]), self.data, self.config["seed"]).train()

    def exact(self) -> Distiller:
        """In float64, so that what is told apart is no rounding."""
        self.both.teacher.learner.double()
        return self.both.double()


@pytest.fixture(scope="module")
def distiller(composed: Composed, runs: Path) -> Callable[..., Made]:
    @cache
    def resolved(*lines: str) -> tuple[dict[str, Any], Prepared, Data]:
        cfg = composed(f"store={runs}", *lines)
        config, _ = resolve(cfg)
        if not teaching.joint(config):
            teacher = starting.runs_first(OmegaConf.to_container(cfg, resolve=True), "teacher")  # type: ignore[arg-type]
            assert teacher is not None
            assert run(teacher).state == "done"
        return config, *build_data(config, made(config["objective"]))

    def build(*lines: str, **weights: float) -> Made:
        """weights: of terms, others than these lines have."""
        config, prepared, data = resolved(*lines)
        config = copy.deepcopy(config)
        for name, weight in weights.items():
            config["transfer"][name]["weight"] = weight
        return Made(config, prepared, data)

    return build


def batch(data: Data, numbers: list[int]) -> Batch:
    return data.train.collate(data.train.rows.take(np.array(numbers), np.zeros(len(numbers), dtype=np.int64)))


def step(both: Any, *micro: Batch) -> tuple[dict[str, Tensor], Grads]:
    """One optimiser step over these micro-batches, short of the update: the sum of each loss, and the gradients."""
    both.zero_grad(set_to_none=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stepping, "_update", lambda _: None)
        patch.setattr(Stepping, "manual_backward", lambda _, loss: loss.backward())
        sums = both.training_step(micro, 0)["sums"]
    return sums, {name: None if p.grad is None else p.grad.clone() for name, p in both.named_parameters()}


def gradients(both: Any, *micro: Batch) -> Grads:
    return step(both, *micro)[1]


def of(part: str, grads: Grads) -> Grads:
    return {name.removeprefix(part): g for name, g in grads.items() if name.startswith(part)}


def equal(one: Grads, other: Grads) -> bool:
    return one.keys() == other.keys() and all(
        (g is None and other[name] is None) or torch.equal(g, other[name])  # type: ignore[arg-type]
        for name, g in one.items()
    )


def test_with_labels_alone_it_learns_as_without_a_teacher(distiller: Callable[..., Made]) -> None:
    it = distiller(*DIGITS, labels=1, soft_targets=0)
    some = batch(it.data, [*range(16)])
    (losses, grads), (plain, wanted) = step(it.both, some), step(it.student(), some)
    assert losses == plain
    assert equal(of("student.", grads), wanted)


def test_without_labels_it_learns_from_soft_targets_alone(distiller: Callable[..., Made]) -> None:
    it = distiller(*DIGITS, labels=0, soft_targets=1)
    alone = distiller(*DIGITS[:2], "transfer=[soft_targets]", "transfer.soft_targets.weight=1")
    some = batch(it.data, [*range(16)])
    (losses, grads), (lost, wanted) = step(it.both, some), step(alone.both, some)
    assert losses == lost
    assert losses.keys() == {"soft_targets"}
    assert equal(grads, wanted)
    assert not equal(grads, gradients(distiller(*DIGITS).both, some))


@pytest.mark.slow
def test_a_term_gives_its_weight_times_its_gradient_and_together_they_give_the_sum(
    distiller: Callable[..., Made],
) -> None:
    """Halves are exact in floating point, and sums are to its rounding."""
    weights = dict(zip(TERMS, (0.1, 0.7, 3.0, 0.0, 0.25, 0.9), strict=True))
    nothing = dict.fromkeys(TERMS, 0.0)

    def given(**chosen: float) -> Grads:
        it = distiller(*TEXT, **nothing | chosen)
        return gradients(it.exact(), batch(it.data, [*range(6)]))

    whole, total = given(**weights), {}
    for name, weight in weights.items():
        one, half = given(**{name: 1.0}), given(**{name: 0.5})
        taught = {key for key, g in one.items() if g is not None and g.any()}
        assert taught
        assert not any(key.startswith("terms.") and not key.startswith(f"terms.{name}.") for key in taught)
        for key, g in one.items():
            assert (g is None) == (half[key] is None)
            if g is not None:
                assert torch.equal(half[key], g / 2)  # type: ignore[arg-type]
                if weight:
                    total[key] = total.get(key, 0) + weight * g
    assert total.keys() == {key for key, g in whole.items() if g is not None}
    for key, g in total.items():
        torch.testing.assert_close(whole[key], g, rtol=1e-9, atol=1e-12)


def test_a_term_without_weight_is_not_computed(distiller: Callable[..., Made], monkeypatch: pytest.MonkeyPatch) -> None:
    it = distiller(*DIGITS, soft_targets=0.0)
    monkeypatch.setattr(it.both.teacher, "see", lambda *_: pytest.fail("nothing is asked of the teacher"))
    some = batch(it.data, [0, 1])
    assert [name for name, _, _ in it.both.losses(some, 0)] == ["classify"]
    assert it.both.units(some) == {"classify": 2}


def test_a_weight_that_changes_is_that_of_the_step(
    distiller: Callable[..., Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    more = ["transfer.soft_targets.until=0.0", "transfer.soft_targets.course=linear", "trainer.steps=5"]
    it = distiller(*DIGITS, *more)
    some, found = batch(it.data, [0, 1]), []
    for at in range(5):
        monkeypatch.setattr(Distiller, "global_step", at)
        found.append({name: weight for name, weight, _ in it.both.losses(some, 0)}.get("soft_targets"))
    assert found == [1.0, 0.75, 0.5, 0.25, None]


def trained(both: Distiller) -> tuple[torch.optim.Optimizer, set[int]]:
    """The optimiser and the parameters that it changes."""
    (optimizer,), _ = both.configure_optimizers()
    return optimizer, {id(p) for group in optimizer.param_groups for p in group["params"]}


def test_the_teacher_is_no_part_of_it_and_no_step_changes_it(distiller: Callable[..., Made]) -> None:
    it = distiller(*DIGITS)
    both, teacher = it.both, it.both.teacher.learner
    before, began = copy.deepcopy(teacher.state_dict()), copy.deepcopy(both.state_dict())
    both.train()
    assert both.student.training
    assert not any(module.training for module in teacher.modules())
    assert all(name.startswith(("student.", "terms.")) for name in began)
    owned = {id(p) for p in teacher.parameters()}
    assert not owned & {id(p) for p in both.parameters()}
    optimizer, changed = trained(both)
    assert changed == {id(p) for p in both.parameters() if p.requires_grad}
    gradients(both, batch(it.data, [*range(8)]))
    optimizer.step()
    assert all(p.grad is None and not p.requires_grad for p in teacher.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in teacher.state_dict().items())
    assert not any(torch.equal(began[name], tensor) for name, tensor in both.state_dict().items())


def test_a_teacher_that_learns_too_is_trained_by_its_labels_alone(distiller: Callable[..., Made]) -> None:
    bare = "teacher=['experiment=digits_teacher','model.dropout=0.0','model.input_dropout=0.0']"
    joint = [DIGITS[0], bare, "transfer=[labels,teacher_labels,soft_targets]"]
    it = distiller(*joint, teacher_labels=0.5)
    both, some = it.both, batch(it.data, [*range(8)])
    began = copy.deepcopy(both.state_dict())
    assert {name.split(".")[0] for name in began} == {"student", "taught"}
    assert both.taught.training
    optimizer, changed = trained(both)
    assert {id(p) for p in both.taught.parameters()} <= changed
    alone, grads = gradients(both.taught, some), gradients(both, some)
    taught = of("taught.", grads)
    assert taught.keys() == alone.keys()
    for name, gradient in alone.items():
        torch.testing.assert_close(taught[name], gradient / 2, rtol=0, atol=0)  # type: ignore[operator]
    optimizer.step()
    assert not any(torch.equal(began[name], tensor) for name, tensor in both.state_dict().items())
    without = distiller(*joint, teacher_labels=0.5, soft_targets=0)
    assert not equal(of("student.", grads), of("student.", gradients(without.both, some)))


def test_a_teacher_that_learns_too_begins_with_other_weights_than_a_student_of_its_size(
    distiller: Callable[..., Made],
) -> None:
    both = distiller(DIGITS[0], "teacher=['experiment=digits']", "transfer=[labels,teacher_labels]").both
    matrices = {name: tensor for name, tensor in both.student.state_dict().items() if tensor.dim() > 1}
    assert matrices
    assert not any(torch.equal(both.taught.state_dict()[name], tensor) for name, tensor in matrices.items())


def test_what_a_teacher_remembers_is_kept_and_taken_up_again(distiller: Callable[..., Made], corpus: Files) -> None:
    text = ["experiment=transformer_xl", "corpus=files", f"corpus.path={corpus.path}", "split.validation=6"]
    teacher = "teacher=['experiment=transformer_xl','trainer.steps=2']"
    it = distiller(*text, "split.test=6", teacher, "transfer=[soft_targets]", "trainer.steps=3")
    kept: dict[str, Any] = {}
    step(it.both, *it.data.train[0])
    it.both.on_save_checkpoint(kept)
    kept = copy.deepcopy(kept)  # as in a file
    wanted = step(it.both, *it.data.train[1])

    def resumed(**changes: Any) -> tuple[dict[str, Tensor], Grads]:
        both = it.distiller()
        both.on_load_checkpoint(copy.deepcopy(kept) | changes)
        return step(both, *it.data.train[1])

    losses, grads = resumed()
    assert losses == wanted[0]
    assert equal(grads, wanted[1])
    for one in ("memory", "teacher_memory"):  # each of the two matters
        assert not equal(resumed(**{one: {}})[1], wanted[1])


@pytest.mark.slow
def test_neither_padding_nor_accumulation_changes_a_step(distiller: Callable[..., Made]) -> None:
    it = distiller(*TEXT, "model.dropout=0.0", "model.attention_dropout=0.0")
    lengths = it.data.train.rows.length
    order = [int(number) for number in np.argsort(lengths, kind="stable")]
    short, long = order[:5], order[-8:]
    assert lengths[short].max() < lengths[long].min()
    both = it.exact()
    losses, whole = step(both, batch(it.data, [*short, *long]))  # the short ones are padded
    parts, grads = step(both, batch(it.data, short), batch(it.data, long))
    assert losses.keys() == {"classify", *TERMS[1:]}
    for name, loss in losses.items():
        torch.testing.assert_close(parts[name], loss, rtol=1e-9, atol=0)
    assert whole.keys() == grads.keys()
    for name, gradient in whole.items():
        if gradient is not None:
            torch.testing.assert_close(grads[name], gradient, rtol=1e-7, atol=1e-10)


def test_in_the_first_stage_a_hint_teaches_the_guided_part_alone(
    distiller: Callable[..., Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    it = distiller("experiment=fitnet", "plain=false")
    some, steps = batch(it.data, [*range(8)]), it.config["trainer"]["steps"]
    last = it.both.terms["hint"].span(steps).stop  # type: ignore[operator]
    assert 0 < last < steps
    for at in (0, last - 1):
        monkeypatch.setattr(Distiller, "global_step", at)
        assert {*it.both.units(some)} == {"hint"}
        taught = {name for name, g in gradients(it.both, some).items() if g is not None and g.any()}
        assert any(name.startswith("terms.hint.") for name in taught)
        layers = {name.partition(".encoder.")[2].split(".")[0] for name in taught if name.startswith("student.")}
        assert layers == {str(layer) for layer in range((it.config["model"]["depth"] + 1) // 2)}
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
    another = Made(it.config | {"seed": 1}, it.prepared, it.data).both.terms.state_dict()
    assert one.keys() == other.keys()
    assert one
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name])
        if tensor.dim() > 1:
            assert not torch.equal(tensor, another[name])
            assert float(tensor.std()) == pytest.approx(tensor.shape[-1] ** -0.5, rel=0.5)
        else:
            assert not tensor.any()


def test_a_teacher_below_the_commonest_class_by_more_than_chance_is_refused(distiller: Callable[..., Made]) -> None:
    it = distiller(*DIGITS)
    held, teacher = it.data.validation, it.both.teacher.learner
    parts, hits = [held[number] for number in range(len(held))], 0
    for part in parts:
        told = teacher.seen(part, "validation", 0, Ask(scores=frozenset(["classify"]))).outcomes["classify"]
        assert told.scores is not None
        hits += int((told.scores.argmax(-1) == part.targets["classify"].answers).sum())
    n, share, z = len(held.rows), hits / len(held.rows), 1.645
    assert it.both.hits(iter(parts)) == {"classify": share}
    # The largest share that is not more than z standard errors of its own above this one (Wilson 1927).
    bound = (share + z**2 / 2 / n + z * math.sqrt(share * (1 - share) / n + z**2 / 4 / n**2)) / (1 + z**2 / n)
    for least, passes in ((None, True), (bound - 1e-6, True), (bound + 1e-6, False)):
        facts = {} if least is None else {"majority": {"validation": least}}
        prepared = replace(it.prepared, facts=facts)
        if passes:
            teaching.refuse_worse(it.both, prepared, it.data)
            continue
        with pytest.raises(BadInput, match=rf"right for {share:.3f} of .* commonest class would be for {least:.3f}"):
            teaching.refuse_worse(it.both, prepared, it.data)
