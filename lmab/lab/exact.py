"""Claims about what is computed and not trained: figures of the arms against the paper's, without seeds.

A paper prints rounded figures, so each is compared to a relative tolerance that the claim states. Nothing is drawn
and nothing is uncertain: the claim is reproduced where all of its rules hold and contradicted where any fails.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from lmab.checks import nearest
from lmab.lab.conclusion import placed
from lmab.lab.tables import compact
from lmab.types import BadInput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lmab.lab.claim import Claim

    Figures = Mapping[str, Mapping[str, float]]  # arm -> name -> figure


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


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A rule and what was computed. away: from the paper's figure, as a part of it."""

    rule: Exact
    here: float
    away: float
    holds: bool


@dataclass(frozen=True, kw_only=True)
class Computed:
    """An exact claim with its answer. code, versions: of what computed it."""

    claim: Claim
    budget: str
    answer: Literal["reproduced", "contradicted"]
    sentence: str
    checked: tuple[Checked, ...]
    figures: Figures
    changes: tuple[str, ...]
    code: Mapping[str, Any] = field(repr=False)
    versions: Mapping[str, str] = field(repr=False)

    def as_dict(self) -> dict[str, Any]:
        """The verdict for JSON."""
        return {"answer": self.answer, "checked": [asdict(checked) for checked in self.checked]}


def check(rules: Sequence[Exact], figures: Mapping[str, float]) -> tuple[Checked, ...]:
    """figures: arm -> what was computed."""
    checked = []
    for rule in rules:
        here = rule.here(figures)
        away = here / rule.paper - 1
        checked.append(Checked(rule=rule, here=here, away=away, holds=abs(away) <= rule.within))
    return tuple(checked)


def compute(
    claim: Claim,
    budget: str,
    figures: Figures,
    changes: Sequence[str] = (),
    *,
    code: Mapping[str, Any],
    versions: Mapping[str, str],
) -> Computed:
    """Answer a claim. figures: all that is known of each arm. changes: what makes it another experiment than the
    file's. BadInput: the measure is not among the figures."""
    metric = claim.measure.metric
    for arm, known in figures.items():
        if metric not in known:
            raise BadInput(
                f"sweeps/{claim.name}.yaml: {metric} of the arm {arm} is nothing that is computed: "
                f"{nearest(metric, list(known))}"
            )
    measured = {arm: known[metric] for arm, known in figures.items()}
    checked = check(claim.exact, measured)
    answer = "reproduced" if all(c.holds for c in checked) else "contradicted"
    reasons = "; ".join(_reason(c, measured, claim.measure.unit) for c in checked)
    return Computed(
        claim=claim,
        budget=budget,
        answer=answer,
        sentence=f"{answer.capitalize()} {placed(budget, changes)}: {reasons}.",
        checked=checked,
        figures=figures,
        changes=tuple(changes),
        code=code,
        versions=versions,
    )


def _reason(checked: Checked, figures: Mapping[str, float], unit: str) -> str:
    found, paper = checked.rule.said(figures, unit)
    if checked.holds:
        return f"{found} (paper: {paper})"
    return f"{found}, not within {100 * checked.rule.within:g}% of the paper's {paper}"
