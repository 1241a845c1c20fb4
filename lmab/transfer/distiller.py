"""Teacher and student: one learns from the other, and from whatever else the terms of the loss name.

The distiller knows no text, no task and no paper: it holds two learners and a list of terms.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from lmab.nn.network import initialise
from lmab.train.scores import DocumentLoss
from lmab.train.stepping import Stepping
from lmab.transfer.measures import Beside
from lmab.transfer.soft_targets import SoftTargets
from lmab.transfer.teacher import Joint, Live
from lmab.types import Ask, BadInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from torch import Tensor

    from lmab.train.learner import Learner
    from lmab.transfer.teacher import Cached
    from lmab.transfer.transfer import Transfer
    from lmab.types import Batch


class Distiller(Stepping):
    """student: what is trained, scored and kept. teacher: what it learns from; it is in no checkpoint, in no count of
    parameters and with no optimiser, and never in training mode, unless a term says that it learns too. terms: name ->
    term of the loss, each with a weight and a span of training.

    A term whose weight is 0 at a step is not computed. BadInput: terms that do not fit these two, or leave some of
    training without any.
    """

    def __init__(self, student: Learner, teacher: Learner, terms: Mapping[str, Transfer]) -> None:
        super().__init__(student.learning)
        self.student = student
        self.joint = any(term.joint for term in terms.values())
        if self.joint:
            self.taught = teacher  # a part of this module: trained and kept with it
        self.teacher = Joint(teacher) if self.joint else Live(teacher)
        self.cached: Cached | None = None  # answers of the teacher to the training text, where they are at hand
        self.terms = nn.ModuleDict(dict(terms))
        with torch.device("meta"):
            for term in terms.values():
                term.build(student, teacher)
        initialise(self.terms, student.learning.seed, _regressors)
        self._covered()
        self.shared = [name for name in student.objectives if _alike(name, student, teacher)]
        documents = student.learning.documents.get("test", 0)
        self.beside = {name: Beside(documents) for name in self.shared}
        self.pulls = {name: DocumentLoss(documents) for name, term in terms.items() if isinstance(term, SoftTargets)}

    def _covered(self) -> None:
        steps = self.learning.steps
        for name, term in self._terms.items():
            if not term.span(steps):
                raise BadInput(
                    f"transfer.{name} lasts from begin={term.begin} to end={term.end}, which is none of {steps} "
                    f"optimiser steps: give it at least {1 / steps:.2g} of them, or leave it out."
                )
        for step in sorted({0}.union(*(term.turns(steps) for term in self._terms.values()))):
            if step < steps and not self._active(step):
                raise BadInput(
                    f"No term of transfer=[{','.join(self.terms)}] has a weight at optimiser step {step} of {steps}: "
                    f"let one of them begin earlier or end later, or keep a weight."
                )

    @property
    def _terms(self) -> Mapping[str, Transfer]:
        return cast("Mapping[str, Transfer]", self.terms)

    def _active(self, step: int) -> list[tuple[Transfer, float]]:
        """The terms that have a weight at an optimiser step."""
        weights = [(term, term.weight_at(step, self.learning.steps)) for term in self._terms.values()]
        return [(term, weight) for term, weight in weights if weight]

    def asked(self) -> Ask | None:
        """All that the terms ask of the teacher in the course of training, None where they ask nothing."""
        asking = [term.ask() for term in self._terms.values() if not term.alone]
        return reduce(or_, asking) if asking else None

    def units(self, batch: Batch) -> dict[str, int]:
        found: dict[str, int] = {}
        for term, _ in self._active(self.global_step):
            found |= term.units(batch)
        return found

    def losses(self, batch: Batch, micro: int) -> Iterator[tuple[str, float, Tensor]]:
        active = self._active(self.global_step)
        ask = reduce(or_, (term.ask() for term, _ in active))
        student = self.student.seen(batch, "train", micro, ask)
        taught = None
        if not all(term.alone for term, _ in active):
            teacher = self.cached or self.teacher
            taught = teacher.see(batch, ask, "train", micro)
        for term, weight in active:
            for name, share, total in term(student, taught, batch):
                yield name, weight * share, total

    def on_validation_epoch_start(self) -> None:
        self.student.on_validation_epoch_start()

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self.student.validation_step(batch, batch_idx)

    def validation_means(self) -> dict[str, float]:
        return self.student.validation_means()

    def on_test_epoch_start(self) -> None:
        self.student.on_test_epoch_start()
        self.teacher.forget("test")
        for beside in self.beside.values():
            beside.reset(self.device)
        for pull in self.pulls.values():
            pull.to(self.device).reset()

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        ask = Ask(outcomes=frozenset(self.student.objectives), scores=frozenset(self.shared))
        student = self.student.seen(batch, "test", 0, ask)
        self.student.score("test", batch, student.outcomes)
        if not self.shared:
            return
        teacher = self.teacher.see(batch, ask, "test", 0)
        for name, beside in self.beside.items():
            beside.update(student.outcomes[name], teacher.outcomes[name], batch)
        for name, pull in self.pulls.items():
            term = cast("SoftTargets", self.terms[name])
            outcome = student.outcomes[cast("str", term.objective)]
            pull.update(replace(outcome, losses=term.pull(student, teacher, batch).log()), batch)

    def test_means(self) -> dict[str, float]:
        means = self.student.test_means()
        for name, beside in self.beside.items():
            means |= {f"test/{name}_{quantity}": value for quantity, value in beside.means().items()}
        return means | {f"test/{name}_pull": float(pull.compute()["loss"]) for name, pull in self.pulls.items()}

    def test_documents(self) -> dict[str, tuple[list[float], list[float]]]:
        found = self.student.test_documents()
        for name, beside in self.beside.items():
            found |= {f"test/{name}_{quantity}": columns for quantity, columns in beside.documents().items()}
        for name, pull in self.pulls.items():
            known = pull.compute()
            found[f"test/{name}_pull"] = known["loss_by_document"].tolist(), known["weight"].tolist()
        return found

    def hits(self, batches: Iterable[Batch]) -> dict[str, float]:
        """Objective that both have -> share of targets that the teacher gets right, on validation text."""
        right, targets = dict.fromkeys(self.shared, 0), dict.fromkeys(self.shared, 0)
        self.teacher.forget("validation")
        for batch in batches:
            seen = self.teacher.see(batch, Ask(scores=frozenset(self.shared)), "validation", 0)
            for name in self.shared:
                right[name] += int(seen.outcomes[name].hits.sum())
                targets[name] += len(seen.outcomes[name].hits)
        self.teacher.forget("validation")
        return {name: right[name] / targets[name] for name in self.shared if targets[name]}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.student.on_save_checkpoint(checkpoint)
        checkpoint["teacher_memory"] = self.teacher.learner.memories.of("train")

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.student.on_load_checkpoint(checkpoint)
        self.teacher.learner.memories.restore("train", checkpoint.get("teacher_memory", {}))


def _alike(name: str, student: Learner, teacher: Learner) -> bool:
    """Do both answer the same question?"""
    return name in teacher.objectives


def _regressors(name: str, parameter: Tensor, generator: torch.Generator) -> None:
    """A map from the student's states to the teacher's leaves their size as it is at first."""
    if parameter.dim() < 2:
        parameter.zero_()
    else:
        parameter.normal_(0.0, 1 / math.sqrt(parameter.shape[-1]), generator=generator)
