"""Hints (Romero et al. 2015, FitNets, arXiv 1412.6550, section 3.1): a layer of the student is guided by one of the
teacher.

paper                       here
hint layer, guided layer    hint, guided: numbers of `Encoded.layers`
u_h(x), v_g(x)              what they make of a row (in a Transformer: of a token)
r                           regressor
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmab.transfer.states import Regressor, States, linear, widths
from lmab.transfer.transfer import Course  # noqa: TC001  (read when the configuration is checked)
from lmab.types import BadInput

if TYPE_CHECKING:
    from torch import Tensor

    from lmab.train.learner import Learner
    from lmab.types import Batch, Seen


class Hint(States):
    """1/2 ||u_h(x) - r(v_g(x))||^2 (equation 3): half the sum over the units of the teacher's layer, of which a mean is
    taken over rows, or over real tokens. What lies above the guided layer learns nothing from it.

    hint, guided: None for the middle one, the lower where there are two. regressor: a linear map with a bias, "always"
    or where it is "needed", since the widths differ; the paper's is convolutional for layers that are so, and linear
    for others.
    """

    name = "hint"

    def __init__(
        self,
        *,
        hint: int | None,
        guided: int | None,
        regressor: Regressor,
        weight: float,
        until: float | None,
        course: Course,
        begin: float,
        end: float,
    ) -> None:
        super().__init__(weight=weight, until=until, course=course, begin=begin, end=end)
        self.hint, self.guided = hint, guided
        self._wanted: Regressor = regressor

    def build(self, student: Learner, teacher: Learner) -> None:
        super().build(student, teacher)
        self._from = self._layer("hint", self.hint, teacher)
        self._to = self._layer("guided", self.guided, student)
        self.regressor = linear(widths(student)[self._to], widths(teacher)[self._from], self._wanted, bias=True)

    def _layer(self, knob: str, number: int | None, learner: Learner) -> int:
        depth = len(widths(learner)) - 1
        if number is None:
            return (depth + 1) // 2
        lowest = int(self._whole)  # pixels are no layer: nothing lies at or below them that could learn
        if not lowest <= number <= depth:
            whose = "teacher" if knob == "hint" else "student"
            raise BadInput(
                f"transfer.hint.{knob}={number} is no layer of the {whose}, which has {lowest} to {depth}: the nearest "
                f"is {min(max(number, lowest), depth)}."
            )
        return number

    def loss(self, student: Seen, teacher: Seen, batch: Batch) -> Tensor:
        mine = self.regressor(student.encoded.layers[self._to])
        return 0.5 * self.squares(mine, teacher.encoded.layers[self._from], batch).sum()
