"""What the labels teach, at temperature 1: the hard term of the student, and that of a teacher that learns too."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from lmab.transfer.transfer import Transfer
from lmab.types import Ask

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor

    from lmab.train.learner import Learner
    from lmab.types import Batch, Seen


class Labels(Transfer):
    """The losses of the student's own objectives, each with its own weight, as without a teacher."""

    name = "labels"
    alone = True

    def build(self, student: Learner, teacher: Learner) -> None:
        self._weights = _weights(student)

    def ask(self) -> Ask:
        return Ask(outcomes=frozenset(self._weights))

    def units(self, batch: Batch) -> Mapping[str, int]:
        return {name: len(batch.targets[name].places) for name in self._weights}

    def forward(self, student: Seen, teacher: Seen | None, batch: Batch) -> Iterator[tuple[str, float, Tensor]]:
        for name, weight in self._weights.items():
            yield name, weight, student.outcomes[name].losses.sum()


class TeacherLabels(Transfer):
    """The losses of the teacher's objectives: it learns from them beside its student (Mishra and Marr 2018, arXiv
    1711.05852, scheme A)."""

    name = "teacher_labels"
    joint = True

    def build(self, student: Learner, teacher: Learner) -> None:
        self._weights = _weights(teacher)

    def ask(self) -> Ask:
        return Ask(outcomes=frozenset(self._weights))

    def units(self, batch: Batch) -> Mapping[str, int]:
        return {f"teacher_{name}": len(batch.targets[name].places) for name in self._weights}

    def forward(self, student: Seen, teacher: Seen | None, batch: Batch) -> Iterator[tuple[str, float, Tensor]]:
        assert teacher is not None
        for name, weight in self._weights.items():
            yield f"teacher_{name}", weight, teacher.outcomes[name].losses.sum()


def _weights(learner: Learner) -> dict[str, float]:
    return {name: cast("float", objective.weight) for name, objective in learner.objectives.items()}
