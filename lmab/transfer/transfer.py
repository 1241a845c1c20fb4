"""What every transfer loss is: what it asks of teacher and student, and how much it weighs when."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Literal

from torch import nn

from lmab.types import Ask, BadInput

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor

    from lmab.train.learner import Learner
    from lmab.types import Batch, Seen

Course = Literal["constant", "linear", "cosine", "step"]


class Transfer(nn.Module):
    """One term of the loss of a student.

    weight: of its mean over its units. until: what the weight comes to at the end of its span, None for no change.
    course: how it gets there, all at once in the middle ("step"), along half a cosine, or in a straight line. begin,
    end: its span, as shares of all optimiser steps; outside it the term is not computed.

    name: of its file, its key in the configuration and its metrics. alone: it asks nothing of the teacher. joint: the
    teacher learns from it.
    """

    name: ClassVar[str]
    alone: ClassVar[bool] = False
    joint: ClassVar[bool] = False

    def __init__(
        self, *, weight: float, until: float | None = None, course: Course = "constant", begin: float, end: float
    ) -> None:
        super().__init__()
        for knob, value in (("weight", weight), ("until", until)):
            if value is not None and not 0 <= value < math.inf:
                raise BadInput(f"transfer.{self.name}.{knob}={value} cannot work: give a finite number from 0 up.")
        if (until is not None) != (course != "constant"):
            raise BadInput(
                f"transfer.{self.name}.until={'null' if until is None else until} does not fit course={course}: a "
                f"weight that changes needs both, as in until=0.1 with course=linear, and one that stays neither."
            )
        if not 0 <= begin < end <= 1:
            raise BadInput(
                f"transfer.{self.name} lasts from begin={begin} to end={end}: give shares of training, as in begin=0 "
                f"and end=1."
            )
        self.weight, self.until, self.course = weight, until, course
        self.begin, self.end = begin, end

    def span(self, steps: int) -> range:
        """The optimiser steps at which it is computed, of `steps`."""
        return range(round(self.begin * steps), round(self.end * steps))

    def weight_at(self, step: int, steps: int) -> float | None:
        """The weight at optimiser step `step` of `steps`, None outside the span. A weight that changes has its first
        value at the first step of the span and `until` at the last."""
        span = self.span(steps)
        if step not in span:
            return None
        if self.until is None:
            return self.weight
        gone = (step - span.start) / max(1, len(span) - 1)
        if self.course == "step":
            gone = float(step - span.start >= len(span) / 2)
        elif self.course == "cosine":
            gone = 0.5 - 0.5 * math.cos(math.pi * gone)
        # The sum alone can miss `until` by its last digit, and a weight of 0 is no term.
        return self.until if gone == 1 else self.weight + (self.until - self.weight) * gone

    def turns(self, steps: int) -> set[int]:
        """The steps at which it can cease to have a weight: a weight that changes is 0 at an end of its span, or in the
        whole of its second half."""
        span = self.span(steps)
        return {span.start, span.start + (len(span) + 1) // 2, span.stop - 1, span.stop}

    def ask(self) -> Ask:
        """What it wants of a forward pass of either."""
        return Ask()

    def build(self, student: Learner, teacher: Learner) -> None:
        """Make the parameters that need to know both. BadInput: they do not fit."""

    def count(self, batch: Batch) -> int:
        """The units over which its loss is a mean: targets, tokens, pairs of tokens."""
        raise NotImplementedError

    def loss(self, student: Seen, teacher: Seen, batch: Batch) -> Tensor:
        """Its sum over the units, a scalar; gradients go to the student alone."""
        raise NotImplementedError

    def units(self, batch: Batch) -> Mapping[str, int]:
        """Loss -> its units; most terms have one loss, of their own name."""
        return {self.name: self.count(batch)}

    def forward(self, student: Seen, teacher: Seen, batch: Batch) -> Iterator[tuple[str, float, Tensor]]:
        """Each loss: its name, its share of the term's weight, and its sum over the units."""
        yield self.name, 1.0, self.loss(student, teacher, batch)
