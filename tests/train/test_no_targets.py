"""Objectives that ask nothing of some text, of all of it, or of a model that cannot answer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from lmab.objectives.mlm import MaskedLM
from lmab.objectives.nsp import NextSentence
from lmab.objectives.plm import PermutationLM
from lmab.types import BadInput, Batch, Targets, View

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from lmab.train.learner import Learner

    from .conftest import Wired


@dataclass(frozen=True)
class Still:
    """Leaves every weight as it is."""

    def build(self, module: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(module.parameters(), lr=0.0)


@pytest.fixture
def both(wire: Callable[..., Wired]) -> Callable[..., Learner]:
    """A model that fills in masks and tells next sentences."""

    def made(**learning: Any) -> Learner:
        masked = MaskedLM(rate=0.3, mask=0.8, random=0.1, whole_words=False, copies=None, weight=1.0)
        objectives = {"mlm": masked, "nsp": NextSentence(weight=1.0)}
        documents = {"validation": 4, "test": 4}
        return wire(learning={"objectives": objectives, "documents": documents} | learning).learner.eval()

    return made


def asking(*, masks: bool, pairs: bool) -> Batch:
    def targets(places: list[int]) -> Targets:
        return Targets(torch.tensor(places, dtype=torch.int64), torch.ones(len(places), dtype=torch.int64))

    tokens = torch.arange(24).view(4, 6)
    asked = {"mlm": targets([1, 8] if masks else []), "nsp": targets([0, 18] if pairs else [])}
    return Batch(tokens, None, View(), asked, torch.arange(4), 4, 24)


@pytest.mark.parametrize("part", ["validation", "test"])
@pytest.mark.parametrize(("masks", "pairs"), [(True, True), (True, False), (False, True)])
def test_an_objective_without_held_out_targets_leaves_no_metric(both, part, masks, pairs):
    learner = both()
    getattr(learner, f"on_{part}_epoch_start")()
    with torch.no_grad():
        for number in range(2):
            getattr(learner, f"{part}_step")(asking(masks=masks, pairs=pairs), number)
    found = getattr(learner, f"{part}_means")()
    short = {"validation": "val", "test": "test"}[part]
    named = [name for name, there in (("mlm", masks), ("nsp", pairs)) if there]
    assert sorted(found) == [f"{short}/{name}_{quantity}" for name in named for quantity in ("accuracy", "loss")]
    assert all(np.isfinite(value) for value in found.values())
    if part == "test":
        assert sorted(learner.test_documents()) == sorted(found)


def test_held_out_text_without_any_target_is_refused(both):
    learner = both()
    learner.on_validation_epoch_start()
    with torch.no_grad():
        learner.validation_step(asking(masks=True, pairs=True), 0)
    learner.on_validation_epoch_start()
    with torch.no_grad():
        learner.validation_step(asking(masks=False, pairs=False), 0)
    with pytest.raises(BadInput, match=r"^The held-out text holds no target: give .*\(evaluation\.segments\)\.$"):
        learner.validation_means()


def test_a_training_curve_is_a_mean_over_targets_even_where_a_step_has_none(wire):
    """Two in three steps are made to ask nothing."""
    knobs = {"steps": 6, "optim": Still(), "dropout": 0.0}
    whole, some, none = (wire(name, log_every=n, **knobs) for name, n in (("whole", 1), ("some", 3), ("none", 1)))
    for run, asks in ((some, lambda step: step % 3 == 1), (none, lambda step: step > 3)):
        kind = type(run.data.train)

        def item(self: Any, step: int, kind: Any = kind, asks: Any = asks) -> tuple[Batch, ...]:
            nothing = {"mlm": Targets(*(torch.zeros(0, dtype=torch.int64) for _ in range(2)))}
            found = kind.__getitem__(self, step)
            return found if asks(step) else tuple(replace(part, targets=nothing) for part in found)

        run.data.train.__class__ = type("Some", (kind,), {"__getitem__": item})
    curves = [run.fit().record.curves["train/mlm_loss"] for run in (whole, some, none)]
    assert curves[1] == [(3, pytest.approx(curves[0][1][1])), (6, pytest.approx(curves[0][4][1]))]
    assert curves[2] == curves[0][4:]


def test_a_second_stream_is_asked_only_of_a_model_that_has_one(wire):
    plm = PermutationLM(k=3, span=2, weight=1.0)
    with pytest.raises(BadInput, match=r"^objective=\[plm\] asks a second stream, which only model=xlnet has\.$"):
        wire(learning={"objectives": {"plm": plm}})
    wire(memory=0, learning={"objectives": {"plm": plm}})
