"""The rules of claims about what is computed and not trained: a figure of an arm, or how many times another's it is.

A paper prints rounded figures, so each is compared to a relative tolerance that the claim states.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lmab.lab.tables import compact
from lmab.types import BadInput

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True)
class Amount:
    """{rule: exact, arm: a, value: 18e6, within: 0.05}: the arm has this figure."""

    rule: Literal["exact"] = "exact"
    arm: str
    value: float
    within: float

    def __post_init__(self) -> None:
        _refuse("value", self.value, self.within)

    @property
    def named(self) -> tuple[str, ...]:
        """The arms that it speaks of."""
        return (self.arm,)

    @property
    def paper(self) -> float:
        return self.value

    def here(self, figures: Mapping[str, float]) -> float:
        """figures: arm -> what was computed."""
        return figures[self.arm]

    def said(self, figures: Mapping[str, float], unit: str) -> tuple[str, str]:
        """What was found, and the paper's figure, in words."""
        return f"{self.arm} has {compact(figures[self.arm])} {unit}", compact(self.value)


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """{rule: exact, treatment: a, control: b, ratio: 18, within: 0.05}: a has so many times the figure of b."""

    rule: Literal["exact"] = "exact"
    treatment: str
    control: str
    ratio: float
    within: float

    def __post_init__(self) -> None:
        if self.treatment == self.control:
            raise BadInput(f"Rule exact divides {self.treatment!r} by itself: name two arms.")
        _refuse("ratio", self.ratio, self.within)

    @property
    def named(self) -> tuple[str, ...]:
        return self.treatment, self.control

    @property
    def paper(self) -> float:
        return self.ratio

    def here(self, figures: Mapping[str, float]) -> float:
        return figures[self.treatment] / figures[self.control]

    def said(self, figures: Mapping[str, float], unit: str) -> tuple[str, str]:
        ours, theirs = (compact(figures[arm]) for arm in self.named)
        here = self.here(figures)
        times = f"{here:#.3g}".rstrip(".") if here < 1000 else compact(here)
        found = f"{self.treatment} has {ours} {unit} against {theirs} of {self.control}, {times} times as many"
        return found, f"{self.ratio:g}"


Exact = Amount | Ratio


def _refuse(name: str, value: float, within: float) -> None:
    if not 0 < value < math.inf:
        raise BadInput(f"Rule exact needs a {name} above 0, not {value}.")
    if not 0 <= within < 1:
        raise BadInput(f"Rule exact needs within from 0 to below 1, as a part of the paper's figure, not {within}.")
