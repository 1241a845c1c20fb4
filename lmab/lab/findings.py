"""What a conclusion found: arms, comparisons and runs as tables."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from lmab.lab import tables
from lmab.lab.tables import NOTHING, Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lmab.lab.conclusion import Cell, Conclusion
    from lmab.lab.verdict import Judged


def scores(conclusion: Conclusion) -> dict[str, dict[int, float]]:
    """Arm -> seed -> score, seeds in order."""
    metric = conclusion.claim.measure.metric
    return {
        arm: {seed: tables.scored(r, metric) for seed, r in sorted(runs.items())}
        for arm, runs in conclusion.arms.items()
    }


def judged(conclusion: Conclusion) -> tuple[Judged, ...]:
    return conclusion.verdict.judged if conclusion.verdict else ()


def results(conclusion: Conclusion) -> list[Table]:
    return [arms(conclusion), *([_comparisons(conclusion)] if conclusion.verdict else [])]


def arms(conclusion: Conclusion) -> Table:
    """Each arm's mean and interval, and what it gains over the arms that it is compared with."""
    claim, verdict = conclusion.claim, conclusion.verdict
    rows = []
    for arm, by_seed in scores(conclusion).items():
        interval = verdict.arms.get(arm) if verdict else None
        gains = [_gain(j, pair[1]) for j in judged(conclusion) if (pair := j.statement.pair) and pair[0] == arm]
        bounds = tables.bounds(interval) if interval else NOTHING
        rows.append([arm, str(len(by_seed)), tables.score(tables.mean(by_seed)), bounds, "\n".join(gains)])
    head = [
        "arm",
        "n",
        f"{claim.measure.metric} ({claim.measure.unit})",
        _level(conclusion),
        "gain over control",
    ]
    note = (
        f"Means over n seeds; {claim.measure.better} is better. A gain is positive where the arm is better "
        f"than its control at the same seed; d_z is its mean over its standard deviation between seeds. "
        f"An interval is {tables.UNBOUNDED} where the seeds are too few for its level."
    )
    return Table("Arms", head, rows, note)


def _level(conclusion: Conclusion) -> str:
    return f"{100 * (1 - conclusion.claim.level):g}% interval"


def _gain(judged: Judged, control: str) -> str:
    if not judged.n:
        return f"no seed in common with {control}"
    gain = f"{tables.score(judged.gain.estimate, '+')} {tables.bounds(judged.gain, '+')}"
    return f"{gain}, d_z {tables.effect(judged.effect)}, over {control}"


def _comparisons(conclusion: Conclusion) -> Table:
    """What is said of each pair of arms, or of a share of a drop."""
    rows = []
    for j in judged(conclusion):
        s = j.statement
        gain = [tables.score(j.gain.estimate, "+"), tables.bounds(j.gain, "+")] if j.n else [NOTHING, NOTHING]
        row = [s.label, s.rule.replace("_", " "), f"{s.margin:g}", str(j.n), *gain]
        more = NOTHING if j.further_seeds is None else f"{j.further_seeds}"
        rows.append([*row, tables.effect(j.effect), f"{j.adjusted:.2g}" if j.n else NOTHING, j.answer, more])
    head = [
        "comparison",
        "rule",
        "margin",
        "n",
        "gain",
        _level(conclusion),
        "d_z",
        "p",
        "answer",
        "further seeds",
    ]
    note = (
        "p is two-sided, after Holm's correction; intervals are not corrected. Further seeds are those that "
        "would probably decide."
    )
    return Table("Comparisons", head, rows, note)


def rows(conclusion: Conclusion) -> Iterator[dict[str, Any]]:
    """table.csv: a line an arm with every digit: its mean, its gains, its seeds."""
    for arm, by_seed in scores(conclusion).items():
        row: dict[str, Any] = {"arm": arm, "n": len(by_seed), "mean": tables.mean(by_seed)}
        interval = conclusion.verdict.arms.get(arm) if conclusion.verdict else None
        row |= {"low": interval.low, "high": interval.high} if interval else {"low": "", "high": ""}
        for j in judged(conclusion):
            values = {"gain": j.gain.estimate, "gain low": j.gain.low, "gain high": j.gain.high}
            for key, value in (values | {"d_z": j.effect, "p": j.adjusted, "n": j.n}).items():
                column = f"{key} over {pair[1]}" if (pair := j.statement.pair) else f"{key} of {j.statement.label}"
                row[column] = value if arm == j.statement.about else row.get(column, "")
        yield row | {f"seed {seed}": by_seed.get(seed, "") for seed in conclusion.claim.seeds}


def why(state: str) -> str:
    """Why a cell has no score. A run without a message, such as one that goes on, leaves a colon behind."""
    return state.strip().removesuffix(":")


def runs(conclusion: Conclusion, cells: list[Cell]) -> Table:
    """Every planned run, also those that failed or never ran."""
    reasons = {(cell.arm, cell.seed): why(reason) for cell, reason in conclusion.missing}
    found = scores(conclusion)
    rows = []
    for cell in cells:
        state, _, message = reasons.get((cell.arm, cell.seed), "done").partition(": ")
        value = found[cell.arm].get(cell.seed, math.nan)
        rows.append([cell.signature, cell.arm, str(cell.seed), state, tables.score(value), message])
    if not any(row[-1] for row in rows):
        rows = [row[:-1] for row in rows]
    head = ["run", "arm", "seed", "state", conclusion.claim.measure.metric, "message"]
    return Table("Runs", head[: len(rows[0])] if rows else head, rows)
