"""The rules of a claim file, and the statements that each of them makes.

Every statement is about a gain, a linear contrast of the arms' scores at the same seed on the same document,
positive where it is better. It says which one-sided statements about the centre of the gain would bear it out,
and which would refute it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple

from lmab.types import BadInput

if TYPE_CHECKING:
    from collections.abc import Mapping


class Side(NamedTuple):
    """A one-sided statement: the gain is above `bound` (sign 1) or below it (sign -1)."""

    sign: int
    bound: float


@dataclass(frozen=True, kw_only=True)
class Statement:
    """What is judged at once: all of `support` bears it out, any of `against` refutes it.

    rule: that makes it. label: of the gain, for tables. contrast: arm -> weight of its score, zero in sum, where a
    higher score counts as better; the arm that it is about stands first. margin: in units of the score; how much
    counts as a difference. holds, fails: the clause for either answer.
    """

    rule: str
    label: str
    contrast: Mapping[str, float]
    margin: float = 0.0
    support: tuple[Side, ...]
    against: tuple[Side, ...]
    holds: str
    fails: str

    @property
    def about(self) -> str:
        return next(iter(self.contrast))

    @property
    def pair(self) -> tuple[str, str] | None:
        """Treatment and control, where two arms are compared."""
        if list(self.contrast.values()) != [1, -1]:
            return None
        treatment, control = self.contrast
        return treatment, control


def _paired(
    rule: str,
    treatment: str,
    control: str,
    margin: float,
    sides: tuple[tuple[Side, ...], tuple[Side, ...]],
    words: tuple[str, str],
) -> Statement:
    """sides: those that support and those that are against; words: the clause for either."""
    return Statement(
        rule=rule,
        label=f"{treatment} over {control}",
        contrast={treatment: 1.0, control: -1.0},
        margin=margin,
        support=sides[0],
        against=sides[1],
        holds=words[0],
        fails=words[1],
    )


def _by(margin: float, unit: str) -> str:
    return f"{margin:g} {unit}".rstrip()


def _better(
    rule: str, treatment: str, control: str, margin: float = 0.0, unit: str = "", places: tuple[str, str] = ("", "")
) -> Statement:
    """places: words on where either arm stands."""
    first, second = treatment + places[0], control + places[1]
    more = f" by more than {_by(margin, unit)}" if margin else ""
    words = (
        f"{first} is better than {second}{more}",
        f"{first} is {'not better' if margin else 'worse'} than {second}{more}",
    )
    return _paired(rule, treatment, control, margin, ((Side(1, margin),), (Side(-1, margin),)), words)


def _not_worse(rule: str, treatment: str, control: str, margin: float, unit: str) -> Statement:
    words = f"worse than {control} by more than {_by(margin, unit)}"
    sides = (Side(1, -margin),), (Side(-1, -margin),)
    return _paired(rule, treatment, control, margin, sides, (f"{treatment} is not {words}", f"{treatment} is {words}"))


def _equivalent(rule: str, treatment: str, control: str, margin: float, unit: str) -> Statement:
    """Two one-sided tests bear it out (Schuirmann 1987)."""
    words = f"within {_by(margin, unit)} of {control}"
    sides = (Side(1, -margin), Side(-1, margin)), (Side(1, margin), Side(-1, -margin))
    return _paired(rule, treatment, control, margin, sides, (f"{treatment} is {words}", f"{treatment} is not {words}"))


def _refuse_margin(rule: str, margin: float, *, zero: bool) -> None:
    """zero: does the rule say something without a margin?"""
    if not 0 <= margin < math.inf or (margin == 0 and not zero):
        least = "at least 0" if zero else "above 0"
        raise BadInput(f"Rule {rule} needs a margin {least} (in the score's unit), not {margin}.")


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """{rule: better, treatment: a, control: b, margin: 0}, or not_worse, or equivalent."""

    rule: Literal["better", "not_worse", "equivalent"]
    treatment: str
    control: str
    margin: float = 0.0

    def __post_init__(self) -> None:
        if self.treatment == self.control:
            raise BadInput(f"Rule {self.rule} compares {self.treatment!r} with itself: name two arms.")
        _refuse_margin(self.rule, self.margin, zero=self.rule == "better")

    @property
    def named(self) -> tuple[str, ...]:
        """The arms that it speaks of."""
        return self.treatment, self.control

    def statements(self, unit: str = "") -> list[Statement]:
        """unit: of the score, for the words."""
        make = {"better": _better, "not_worse": _not_worse, "equivalent": _equivalent}[self.rule]
        return [make(self.rule, self.treatment, self.control, self.margin, unit)]


@dataclass(frozen=True, kw_only=True)
class Order:
    """{rule: ranked, arms: [a, b, c], margin: 0} from the best to the worst, {rule: monotone, ...} from the worst
    to the best. Neighbours are compared: the order holds where all of them do."""

    rule: Literal["ranked", "monotone"]
    arms: tuple[str, ...]
    margin: float = 0.0

    def __post_init__(self) -> None:
        if len(self.arms) < 2 or len(set(self.arms)) < len(self.arms):
            raise BadInput(f"Rule {self.rule} needs two arms or more, each once, not {list(self.arms)}.")
        _refuse_margin(self.rule, self.margin, zero=True)

    @property
    def named(self) -> tuple[str, ...]:
        return self.arms

    def statements(self, unit: str = "") -> list[Statement]:
        if self.rule == "ranked":
            return [_better(self.rule, arm, next_, self.margin, unit) for arm, next_ in pairwise(self.arms)]
        return [
            _better(self.rule, arm, before, self.margin, unit, ("", " before it"))
            for before, arm in pairwise(self.arms)
        ]


@dataclass(frozen=True, kw_only=True)
class Peak:
    """{rule: peak, arms: [a, b, c, d], top: c, margin: 0}: it gets better up to the top and worse after it. The top
    is compared with the first arm and with the last."""

    rule: Literal["peak"] = "peak"
    arms: tuple[str, ...]
    top: str
    margin: float = 0.0

    def __post_init__(self) -> None:
        if len(self.arms) < 3 or len(set(self.arms)) < len(self.arms):
            raise BadInput(f"Rule peak needs three arms or more, each once, not {list(self.arms)}.")
        if self.top not in self.arms[1:-1]:
            inside = ", ".join(self.arms[1:-1])
            raise BadInput(f"Rule peak has its top inside, neither first nor last: not {self.top} but one of {inside}.")
        _refuse_margin(self.rule, self.margin, zero=True)

    @property
    def named(self) -> tuple[str, ...]:
        return self.arms

    def statements(self, unit: str = "") -> list[Statement]:
        ends = {self.arms[0]: " at the start", self.arms[-1]: " at the end"}
        return [
            _better(self.rule, self.top, end, self.margin, unit, (" at the top", place)) for end, place in ends.items()
        ]


@dataclass(frozen=True, kw_only=True)
class Share:
    """{rule: share, whole: [none, all], part: [none, ffn], least: 0.5}: of the drop from `none` to `all`, at least
    this share is made by the step from `none` to `ffn`.

    Two statements: there is a drop, none - all > 0; and (none - ffn) - least (none - all) > 0, which, unlike a
    ratio, is a mean over seeds and documents like any gain.
    """

    rule: Literal["share"] = "share"
    whole: tuple[str, str]
    part: tuple[str, str]
    least: float

    def __post_init__(self) -> None:
        for name, step in (("whole", self.whole), ("part", self.part)):
            if step[0] == step[1]:
                raise BadInput(f"Rule share: {name} goes from {step[0]!r} to itself: name two arms.")
        if set(self.part) == set(self.whole):
            raise BadInput(f"Rule share: part has the arms of whole, {list(self.whole)}: name a step inside it.")
        if not 0 < self.least < 1:
            raise BadInput(f"Rule share needs least between 0 and 1, as in least: 0.5, not {self.least}.")

    @property
    def named(self) -> tuple[str, ...]:
        return *self.whole, *self.part

    def statements(self, unit: str = "") -> list[Statement]:
        (start, end), (before, after) = self.whole, self.part
        contrast = dict.fromkeys((after, before, end, start), 0.0)
        for arm, weight in ((before, 1.0), (after, -1.0), (start, -self.least), (end, self.least)):
            contrast[arm] += weight
        owner = after if before == start else f"the step from {before} to {after}"
        drop = f"{self.least:g} of the drop from {start} to {end}"
        share = Statement(
            rule=self.rule,
            label=f"{before} over {after}, less {self.least:g} of {start} over {end}",
            contrast=contrast,
            support=(Side(1, 0.0),),
            against=(Side(-1, 0.0),),
            holds=f"{owner} accounts for at least {drop}",
            fails=f"{owner} accounts for less than {drop}",
        )
        return [_better(self.rule, start, end), share]


Rule = Comparison | Order | Peak | Share
