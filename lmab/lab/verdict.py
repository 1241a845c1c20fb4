"""From the scores of arms to an answer: reproduced, contradicted or undecided.

    S  seeds that all arms of a statement have   D  test documents

Every statement is about a gain [S, D], such as how much better the treatment is than the control at the same seed
on the same document. Both what would bear it out and what would refute it are tested, so p is two-sided, and
Holm's correction runs over the statements of a claim: the chance that any of them is called reproduced or
contradicted wrongly is at most `level`.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import reduce
from typing import TYPE_CHECKING, Literal

import numpy as np

from lmab.checks import nearest
from lmab.lab import stats
from lmab.rng import derive
from lmab.types import BadInput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lmab.lab.rules import Rule, Side, Statement
    from lmab.lab.stats import Array, Interval

    Table = tuple[list[int], Array]  # an arm's seeds in order, and its scores [S, D], nan where a run diverged

Answer = Literal["reproduced", "contradicted", "undecided"]


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A statement and what the runs say of it."""

    statement: Statement
    answer: Answer
    gain: Interval  # at 1 - level, not corrected for the number of statements
    p: float  # two-sided
    adjusted: float  # p after Holm's correction
    effect: float  # d_z of the gain, over seeds
    n: int  # seeds that all its arms have
    further_seeds: int | None  # how many more would probably decide; None where decided or out of reach


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The answer to a claim, and what it rests on."""

    answer: Answer  # contradicted where any statement is, reproduced where all are
    judged: tuple[Judged, ...]
    level: float
    arms: Mapping[str, Interval]  # an arm's own score

    def as_dict(self) -> dict:
        """For JSON: a bound or a figure that is not finite becomes None."""
        return {key: _plain(value) for key, value in asdict(self).items()}


def judge(
    scores: Mapping[str, Mapping[int, Array]],
    weights: Array,
    rules: Sequence[Rule],
    *,
    better: Literal["lower", "higher"],
    unit: str = "",
    level: float = 0.05,
    seed: int = 0,
    replicates: int = stats.REPLICATES,
) -> Verdict:
    """Answer a claim.

    scores: arm -> seed -> mean loss (or other score) of every document, [D]. weights: targets of a document,
    [D]. better: which way the score improves. unit: of the score, for the words. level: the chance of any false
    verdict. seed: of the bootstrap. An arm that lacks seeds lowers n; one that has none leaves undecided what is
    said of it.
    """
    if better not in (signs := {"lower": -1.0, "higher": 1.0}):
        raise BadInput(f"A score is better lower or higher, not {better!r}: {nearest(str(better), list(signs))}")
    statements = [statement for rule in rules for statement in rule.statements(unit)]
    if not statements:
        raise BadInput("A claim needs at least one rule to be judged.")
    for arm in (arm for statement in statements for arm in statement.contrast):
        if arm not in scores:
            raise BadInput(f"There is no arm {arm!r}: {nearest(arm, list(scores))}")
    weights = np.asarray(weights, dtype=np.float64)
    tables = {arm: _table(arm, by_seed, weights) for arm, by_seed in scores.items()}
    tests = [
        _Test(statement, signs[better] * _gain(tables, statement.contrast), weights, seed, replicates)
        for statement in statements
    ]
    adjusted = stats.holm(np.array([test.p for test in tests]))
    judged = tuple(test.judged(float(p), level, len(tests)) for test, p in zip(tests, adjusted, strict=True))
    answers: set[Answer] = {j.answer for j in judged}
    agreed: Answer = answers.pop() if len(answers) == 1 else "undecided"
    return Verdict(
        answer="contradicted" if "contradicted" in answers else agreed,
        judged=judged,
        level=level,
        arms={
            arm: stats.interval(matrix, weights, 1 - level, rng=_generator(seed, arm), replicates=replicates)
            for arm, (_, matrix) in tables.items()
        },
    )


def reason(judged: Judged) -> str:
    """One clause that gives the answer and its figures."""
    statement, gain = judged.statement, judged.gain
    said = statement.fails if judged.answer == "contradicted" else statement.holds
    if judged.answer == "undecided":
        said = f"whether {said} is undecided"
    if not judged.n:
        return f"{said}: no seed was run in {'both' if statement.pair else 'all of its'} arms"
    bounds = f"[{gain.low:+.3g}, {gain.high:+.3g}]" if math.isfinite(gain.high - gain.low) else "(no bounds yet)"
    said += f": gain {gain.estimate:+.3g} {bounds}, n={judged.n}"
    said += f", p={judged.adjusted:.2g}"
    if more := judged.further_seeds:
        said += f"; about {more} more seed{'s' * (more > 1)} would probably decide"
    return said


class _Test:
    """A statement on its gain [S, D], before the others are heard."""

    def __init__(self, statement: Statement, gain: Array, weights: Array, seed: int, replicates: int) -> None:
        # Named by its arms and not by its place, so that no order of arms or statements changes a draw.
        rng = _generator(seed, *sorted(statement.contrast))
        self.statement = statement
        self.values = stats.seed_means(gain, weights)
        self.draws = stats.multi_bootstrap(gain, weights, rng, replicates)
        self.documents = stats.document_error(gain, weights)
        # Where all statements have to hold, the worst decides; where any will do, the best, after Bonferroni.
        self.support = max(map(self._p, self.statement.support))
        self.against = min(1.0, len(self.statement.against) * min(map(self._p, self.statement.against)))
        self.p = min(1.0, 2 * min(self.support, self.against))

    def judged(self, adjusted: float, level: float, statements: int) -> Judged:
        answer: Answer = "undecided"
        if adjusted <= level:
            answer = "reproduced" if self.support < self.against else "contradicted"
        return Judged(
            statement=self.statement,
            answer=answer,
            gain=stats.hull(self.values, self.draws, 1 - level),
            p=self.p,
            adjusted=adjusted,
            effect=stats.effect(self.values),
            n=len(self.values),
            further_seeds=self._further(level, statements) if answer == "undecided" else None,
        )

    def _p(self, side: Side) -> float:
        """One-sided p against a statement, by the more cautious of both tests."""
        bound = side.sign * side.bound
        return max(stats.flip_p(side.sign * self.values, bound), stats.bootstrap_p(side.sign * self.draws, bound))

    def _further(self, level: float, statements: int) -> int | None:
        """Seeds that would probably bring one verdict or the other, if the gain stays what it seems to be."""

        def seeds(side: Side, ways: int) -> float:
            if not (len(self.values) and side.sign * (self.values.mean() - side.bound) > 0):
                return math.inf
            more = stats.further_seeds(self.values, side.bound, level, statements * ways, documents=self.documents)
            return math.inf if more is None else more

        either, against = [max(seeds(side, 1) for side in self.statement.support)], self.statement.against
        either += [seeds(side, len(against)) for side in against]
        return int(min(either)) if min(either) < math.inf else None


def _table(arm: str, by_seed: Mapping[int, Array], weights: Array) -> Table:
    for seed, score in by_seed.items():
        if np.shape(score) != weights.shape:
            raise BadInput(
                f"Arm {arm!r} has scores of shape {np.shape(score)} at seed {seed}, but the documents' "
                f"weights have shape {weights.shape}."
            )
    seeds = sorted(by_seed)
    table = np.array([by_seed[s] for s in seeds], dtype=np.float64).reshape(-1, weights.size)
    return seeds, np.where(np.isfinite(table), table, np.nan)


def _gain(tables: Mapping[str, Table], contrast: Mapping[str, float]) -> Array:
    """The contrast at the seeds that all of its arms have, [S, D]."""
    seeds = reduce(np.intersect1d, (tables[arm][0] for arm in contrast))
    scores = [tables[arm][1][np.searchsorted(tables[arm][0], seeds)] for arm in contrast]
    # Weights are zero in sum, so the scores may be counted from one arm's: then arms that are equal gain exactly 0.
    return np.sum([w * (x - scores[-1]) for w, x in zip(contrast.values(), scores, strict=True)], axis=0)


def _generator(*parts: object) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=derive(*parts)))


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {key: _plain(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
