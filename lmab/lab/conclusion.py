"""Records to an answer: the verdict of a claim, in a sentence that names its budget."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from lmab.lab import guard
from lmab.lab.verdict import Verdict, judge, reason
from lmab.types import BadInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmab.lab.claim import Claim
    from lmab.store import Record

NEXT = {"smoke": "mini", "mini": "base", "base": "paper"}


@dataclass(frozen=True)
class Cell:
    """One run of a claim. config: resolved, as its record will hold it."""

    arm: str
    seed: int
    overrides: list[str]
    signature: str
    config: dict[str, Any] = field(repr=False)


@dataclass(frozen=True)
class Conclusion:
    """answer: reproduced, contradicted, undecided, or not decidable (at this budget). sentence: the same with
    its reasons. arms: arm -> its records by seed, those that have a score."""

    claim: Claim
    budget: str
    answer: str
    sentence: str
    verdict: Verdict | None
    arms: dict[str, dict[int, Record]] = field(repr=False)
    missing: list[tuple[Cell, str]] = field(repr=False)  # cells without a score, and why
    changes: tuple[str, ...] = ()  # what makes it another experiment than the file's


def placed(budget: str, changes: Sequence[str]) -> str:
    """Where an answer holds. changes: what was asked that makes it another experiment than the file's."""
    return f"at budget {budget}" + (f" with {' '.join(changes)}" if changes else "")


def conclude(claim: Claim, cells: list[Cell], records: dict[str, Record], changes: Sequence[str] = ()) -> Conclusion:
    """Judge a claim on what its runs recorded. records: signature -> record, for cells that have one. changes: what
    was asked that makes it another experiment than the file's.

    BadInput: runs that were scored on different targets.
    """
    metric = claim.measure.metric
    budget = str(cells[0].config["budget"]["name"])
    place = placed(budget, changes)
    arms: dict[str, dict[int, Record]] = {arm: {} for arm in claim.arms}
    missing: list[tuple[Cell, str]] = []
    diverged: dict[str, list[int]] = {}
    for cell in cells:
        record = records.get(cell.signature)
        if record is not None and record.state == "done" and metric in record.scores:
            arms[cell.arm][cell.seed] = record
        else:
            if record is not None and record.state == "diverged":
                diverged.setdefault(cell.arm, []).append(cell.seed)
            missing.append((cell, "never ran" if record is None else f"{record.state}: {record.message}"))
    stuck = [arm for arm, by_seed in arms.items() if _gain(metric, by_seed) < claim.plateau]
    scored = [record for by_seed in arms.values() for record in by_seed.values()]
    if not scored:
        return Conclusion(
            claim,
            budget,
            "undecided",
            f"Undecided {place}: no run has a score.",
            None,
            arms,
            missing,
            tuple(changes),
        )
    weights = np.array(scored[0].weights[metric])
    for record in scored:
        if record.weights[metric] != scored[0].weights[metric]:
            raise BadInput(
                f"The runs {scored[0].signature} and {record.signature} of {claim.name} were scored on different "
                f"held-out targets, so their {metric} cannot be compared."
            )
    # A run that diverged is no missing run: left out, it would make its arm look better than it is.
    lost = {arm: {seed: np.full(weights.shape, np.nan) for seed in seeds} for arm, seeds in diverged.items()}
    assert claim.measure.better is not None  # only an exact claim leaves it out
    verdict = judge(
        {
            arm: {seed: np.array(r.scores[metric]) for seed, r in by_seed.items()} | lost.get(arm, {})
            for arm, by_seed in arms.items()
        },
        weights,
        claim.tested,
        better=claim.measure.better,
        unit=claim.measure.unit,
        level=claim.level,
    )
    reasons = "; ".join(reason(judged) for judged in verdict.judged)
    if len(claim.seeds) < claim.least:
        answer = "undecided"
        gains = "; ".join(f"{j.statement.label}: {j.gain.estimate:+.3g}" for j in verdict.judged if j.n)
        sentence = (
            f"Undecided {place}: one seed was looked at, and a verdict needs at least {claim.least}. Gains: {gains}."
        )
        if stuck:
            sentence += f" {_stuck(stuck, claim.plateau)}."
    elif stuck:
        answer = "not decidable"
        larger = NEXT.get(budget)
        sentence = f"Not decidable {place}: {_stuck(stuck, claim.plateau)}, so nothing can be read off the arms" + (
            f"; try budget={larger}." if larger else "."
        )
    else:
        answer = verdict.answer
        sentence = f"{answer.capitalize()} {place}: {reasons}."
    if missing:
        sentence += f" {len(missing)} of {len(cells)} runs have no score"
        sentence += f", {sum(map(len, diverged.values()))} of them diverged." if diverged else "."
    if len({r.code.get("revision") for r in scored}) > 1:
        sentence += " The runs come from different revisions of the code."
    return Conclusion(claim, budget, answer, sentence, verdict, arms, missing, tuple(changes))


def _stuck(arms: Sequence[str], plateau: float) -> str:
    return f"{', '.join(arms)} gained less than {plateau} nats over a model without context"


def _gain(metric: str, by_seed: dict[int, Record]) -> float:
    """The mean over seeds of what an arm learnt from context at its best moment; infinite for
    a metric that has no such plateau."""
    gains = [
        r.metrics[key]
        for r in by_seed.values()
        if (key := f"learnt/{guard.objective(metric, r.config['objective'])}_gain") in r.metrics
    ]
    return float(np.mean(gains)) if gains else float("inf")
