"""Soft targets (Hinton, Vinyals and Dean 2015, arXiv 1503.02531, section 2): a student gives all answers the shares
that its teacher gives them.

N  targets   C  answers
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import torch

from lmab.transfer.transfer import Course, Transfer
from lmab.types import Ask, BadInput

if TYPE_CHECKING:
    from torch import Tensor

    from lmab.train.learner import Learner
    from lmab.types import Batch, Seen


class SoftTargets(Transfer):
    """p = softmax(z / T), of the teacher p_T and of the student p_S.

    loss: "cross_entropy", - sum p_T log p_S; "kl", the same less the entropy of p_T, which has the same gradient and is
    0 where they agree; or "logits", 1 / 2C sum (z_S - z_T)^2 with both brought to mean 0, which is what T^2 times the
    others comes to as T grows (section 2.1), and knows no temperature. factor: multiply by T^2, so that the gradients,
    which shrink with its square, keep their size beside those of the labels. objective: whose scores; None for the
    only one that both have.
    """

    name = "soft_targets"

    def __init__(
        self,
        *,
        temperature: float,
        loss: Literal["cross_entropy", "kl", "logits"],
        factor: bool,
        objective: str | None,
        weight: float,
        until: float | None,
        course: Course,
        begin: float,
        end: float,
    ) -> None:
        super().__init__(weight=weight, until=until, course=course, begin=begin, end=end)
        if not 0 < temperature < math.inf:
            raise BadInput(
                f"transfer.soft_targets.temperature={temperature} cannot work: give a number above 0, as 1 for the "
                f"teacher's own shares or 4 for softer ones."
            )
        self.temperature, self.kind, self.factor, self.objective = temperature, loss, factor, objective

    def build(self, student: Learner, teacher: Learner) -> None:
        both = [name for name in student.objectives if name in teacher.objectives]
        if self.objective is None and len(both) == 1:
            (self.objective,) = both
        if self.objective not in both:
            raise BadInput(
                f"transfer.soft_targets.objective={self.objective or 'null'} cannot work: it compares scores of one "
                f"objective, and the teacher has {', '.join(teacher.objectives) or 'none'} and the student "
                f"{', '.join(student.objectives)}."
            )
        if getattr(student.objectives[self.objective], "classes", None) == 1:
            raise BadInput(
                f"transfer.soft_targets compares shares of answers, and {self.objective} says one number: choose terms "
                f"over layers instead, as in transfer=[labels,hidden]."
            )

    def ask(self) -> Ask:
        assert self.objective is not None
        return Ask(scores=frozenset([self.objective]))

    def count(self, batch: Batch) -> int:
        assert self.objective is not None
        return len(batch.targets[self.objective].places)

    def loss(self, student: Seen, teacher: Seen, batch: Batch) -> Tensor:
        mine, theirs = self.scores(student), self.scores(teacher).detach()  # of one that learns too
        if self.kind == "logits":
            return 0.5 * (_centred(mine) - _centred(theirs)).square().mean(-1).sum()
        shares = (theirs / self.temperature).softmax(-1)  # [N, C]
        logs = (mine / self.temperature).log_softmax(-1)
        lost = -(shares * logs).sum()
        if self.kind == "kl":
            lost = lost + torch.xlogy(shares, shares).sum()
        return lost * self.scale

    @property
    def scale(self) -> float:
        return self.temperature**2 if self.factor else 1.0

    def scores(self, seen: Seen) -> Tensor:
        """[N, C], in float32 at least."""
        assert self.objective is not None
        found = seen.outcomes[self.objective].scores
        assert found is not None
        return found if found.dtype == torch.float64 else found.float()

    def pull(self, student: Seen, teacher: Seen, batch: Batch) -> Tensor:
        """[N]: the size of this loss's gradient with respect to the student's scores at a target, as a share of that
        of the label's cross entropy there (section 2: whether the two keep their proportion as T changes)."""
        mine, theirs = self.scores(student), self.scores(teacher)
        assert self.objective is not None
        hard = mine.softmax(-1)
        hard[torch.arange(len(hard)), batch.targets[self.objective].answers] -= 1
        if self.kind == "logits":
            soft = (_centred(mine) - _centred(theirs)) / mine.shape[-1]
        else:
            T = self.temperature
            soft = ((mine / T).softmax(-1) - (theirs / T).softmax(-1)) * (self.scale / T)
        return soft.norm(dim=-1) / hard.norm(dim=-1)


def _centred(scores: Tensor) -> Tensor:
    """Scores [N, C] of mean 0: a constant changes no share."""
    return scores - scores.mean(-1, keepdim=True)
