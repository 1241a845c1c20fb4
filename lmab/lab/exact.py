"""Claims about what is computed and not trained: figures of the arms against the paper's, without seeds.

Nothing is drawn and nothing is uncertain: the claim is reproduced where all of its rules hold and contradicted where
any fails.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from lmab.checks import nearest
from lmab.lab.conclusion import placed
from lmab.types import BadInput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lmab.lab.amounts import Exact
    from lmab.lab.claim import Claim

    Figures = Mapping[str, Mapping[str, float]]  # arm -> name -> figure


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
