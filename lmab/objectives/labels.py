"""What a row as a whole is: the noise of objectives that ask one place of every labelled row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from lmab.types import BadInput, Noised

if TYPE_CHECKING:
    from lmab.data.collate import Draws
    from lmab.types import Example, Vocabulary


@dataclass(frozen=True, kw_only=True)
class Labels:
    """Leaves the text as it is, and asks each row that has a label for it.

    objective: whose noise it is. classes: labels count from 0 below it; 1 for scores, which are real numbers.
    place: of the first token, [CLS], wherever a model wants it, or the last real one. causal: each place sees itself
    and those before it.
    """

    objective: str
    classes: int
    place: Literal["first", "last"] = "first"
    causal: bool = False

    @property
    def draws(self) -> Draws:
        return "never"

    def __call__(self, example: Example, vocabulary: Vocabulary, key: int) -> Noised:
        T = example.tokens.shape[1]
        rows = np.flatnonzero(~np.isnan(example.label))
        labels = example.label[rows]
        if self.classes > 1:
            self._known(labels)
        place = example.lengths[rows] - 1
        if self.place == "first":
            place = self._first(example, rows, vocabulary)
        answers = labels.astype(np.float32 if self.classes == 1 else np.int64)
        visible = np.tri(T, dtype=bool)[None] if self.causal else None
        return Noised(example.tokens, rows * T + place, answers, visible)

    def _known(self, labels: np.ndarray) -> None:
        strange = labels[~np.isin(labels, np.arange(self.classes))]
        if len(strange):
            whole = (labels == np.floor(labels)).all() and labels.min() >= 0
            raise BadInput(
                f"objective.{self.objective} tells the labels 0 to {self.classes - 1} apart, and a row has "
                f"{strange[0]:g}: objective.classify.classes={int(labels.max()) + 1 if whole else 1} would take it."
            )

    def _first(self, example: Example, rows: np.ndarray, vocabulary: Vocabulary) -> np.ndarray:
        is_first = example.tokens[rows] == vocabulary.first
        if not is_first.any(1).all():
            raise BadInput(
                f"objective.{self.objective} reads the first token, [CLS], and a row has none: choose segments that "
                f"begin rows with it, or objective.classify.pool=last."
            )
        place = is_first.argmax(1)
        if self.causal and (place < example.lengths[rows] - 1).any():
            raise BadInput(
                f"objective.{self.objective} reads the first token, [CLS], which sees nothing but itself under "
                f"causal=true: give pool=last or pool=mean."
            )
        return place
