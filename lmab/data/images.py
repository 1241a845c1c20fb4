"""Images of digits, written as text: 64 numbers with spaces between them, row by row. So a digit is a labelled text
like any other, and its rows, their order, and scores by example are those of every task.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from lmab.data.corpus import digest
from lmab.data.labelled import Judged, Labelled
from lmab.types import BadInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lmab.data.tasks import Stored


@cache
def _digits() -> tuple[tuple[str, int], ...]:
    """Every image that scikit-learn ships, as text, and its class."""
    from sklearn.datasets import load_digits  # here, since it takes a second, and text needs it not

    images, labels = load_digits(return_X_y=True)
    return tuple((_text(image), int(label)) for image, label in zip(np.array(images), np.array(labels), strict=True))


def _text(image: np.ndarray) -> str:
    """image: [...] grey levels, whole numbers."""
    return " ".join(str(int(level)) for level in image.ravel())


@dataclass(frozen=True, kw_only=True)
class Digits(Judged):
    """Which digit is an image of 8 x 8 pixels with 17 grey levels (Alpaydin and Kaynak 1998), as scikit-learn ships
    1,797 of them? They stand in for MNIST.

    A held-out part may take up to half of them, and not a tenth as of texts: errors among a few digits would tell no
    two models apart, and a few hundred are enough to learn from.
    """

    images: ClassVar[bool] = True
    held_out: ClassVar[float] = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        self.counted(self.names, "this task")

    @property
    def names(self) -> list[str]:
        return list("0123456789")

    def fingerprint(self) -> str:
        return digest(("digits", _digits()), [])

    def examples(self) -> Iterator[Labelled]:
        for text, label in _digits():
            yield Labelled(None, (text,), float(label))


@dataclass(frozen=True, kw_only=True)
class Shifts:
    """Every image, and copies of it that are moved by up to `pixels` up or down and left or right; black comes in
    (Hinton et al. 2015, section 3: up to two pixels). With 1 pixel there are nine of each image."""

    pixels: int
    images: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.pixels < 1:
            raise BadInput(f"augment.pixels={self.pixels} moves nothing: give at least 1, or leave augment out.")

    def __call__(self, examples: Iterable[Stored]) -> Iterator[Stored]:
        for example in examples:
            yield example
            flat = np.array(example.text.split(), dtype=np.int64)
            side = math.isqrt(len(flat))
            if self.pixels >= side:
                raise BadInput(
                    f"augment.pixels={self.pixels} moves an image of {side} x {side} pixels out of sight: give "
                    f"augment.pixels={side - 1} at most."
                )
            padded = np.pad(flat.reshape(side, side), self.pixels)
            for down in range(2 * self.pixels + 1):
                for right in range(2 * self.pixels + 1):
                    if (down, right) != (self.pixels, self.pixels):
                        yield example._replace(text=_text(padded[down : down + side, right : right + side]))
