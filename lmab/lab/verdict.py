"""From the scores of arms to an answer: reproduced, contradicted or undecided.

    S  seeds that two arms share   D  test documents

Every comparison is about the gain [S, D], how much better the treatment is than the control at the same seed
on the same document, positive where it is better. A rule says which one-sided statements about the centre of
the gain would bear the claim out, and which would refute it. Both verdicts are tested, so p is two-sided, and
Holm's correction runs over the comparisons of a claim: the chance that any of them is called reproduced or
contradicted wrongly is at most `level`.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from lmab.lab import stats
from lmab.rng import derive
from lmab.types import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from lmab.lab.stats import Array, Interval

Answer = Literal["reproduced", "contradicted", "undecided"]


class Side(NamedTuple):
    """A one-sided statement: the gain is above `bound` (sign 1) or below it (sign -1)."""

    sign: int
    bound: float


class Rule(NamedTuple):
    """What a claim says: all of `support` bears it out, any of `against` refutes it, and words for either."""

    support: tuple[Side, ...]
    against: tuple[Side, ...]
    holds: str
    fails: str


def _better(margin: float, by: str) -> Rule:
    if not margin:
        return Rule((Side(1, 0.0),), (Side(-1, 0.0),), "better than {}", "worse than {}")
    words = f"better than {{}} by more than {by}"
    return Rule((Side(1, margin),), (Side(-1, margin),), words, f"not {words}")


def _not_worse(margin: float, by: str) -> Rule:
    words = f"worse than {{}} by more than {by}"
    return Rule((Side(1, -margin),), (Side(-1, -margin),), f"not {words}", words)


def _equivalent(margin: float, by: str) -> Rule:
    """Two one-sided tests bear it out (Schuirmann 1987)."""
    inside, outside = (Side(1, -margin), Side(-1, margin)), (Side(1, margin), Side(-1, -margin))
    return Rule(inside, outside, f"within {by} of {{}}", f"not within {by} of {{}}")


RULES: dict[str, Callable[[float, str], Rule]] = {
    "better": _better,
    "not_worse": _not_worse,
    "equivalent": _equivalent,
}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One thing a claim says of two arms. margin: in units of the score; how much counts as a difference."""

    rule: str
    treatment: str
    control: str
    margin: float = 0.0

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise BadInput(f"There is no rule {self.rule!r}: {_nearest(self.rule, RULES)}.")
        if self.treatment == self.control:
            raise BadInput(f"Rule {self.rule} compares {self.treatment!r} with itself: name two arms.")
        zero = self.rule == "better"  # the only rule that says something without a margin
        if not 0 <= self.margin < math.inf or (self.margin == 0 and not zero):
            least = "at least 0" if zero else "above 0"
            raise BadInput(f"Rule {self.rule} needs a margin {least} (in the score's unit), not {self.margin}.")


def ranked(arms: Sequence[str]) -> list[Comparison]:
    """Arms from best to worst, as comparisons of neighbours: the ranking holds where all of them do."""
    if len(arms) < 2 or len(set(arms)) < len(arms):
        raise BadInput(f"A ranking needs two arms or more, each once, not {list(arms)}.")
    return [Comparison(rule="better", treatment=arm, control=worse) for arm, worse in pairwise(arms)]


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A comparison and what the runs say of it."""

    comparison: Comparison
    answer: Answer
    gain: Interval  # at 1 - level, not corrected for the number of comparisons
    p: float  # two-sided
    adjusted: float  # p after Holm's correction
    effect: float  # d_z of the gain, over seeds
    n: int  # seeds that both arms have
    further_seeds: int | None  # how many more would probably decide; None where decided or out of reach


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The answer to a claim, and what it rests on."""

    answer: Answer  # contradicted where any comparison is, reproduced where all are
    judged: tuple[Judged, ...]
    level: float
    arms: Mapping[str, Interval]  # an arm's own score

    def as_dict(self) -> dict:
        """For JSON: a bound or a figure that is not finite becomes None."""
        return {key: _plain(value) for key, value in asdict(self).items()}


def judge(
    scores: Mapping[str, Mapping[int, Array]],
    weights: Array,
    comparisons: Sequence[Comparison],
    *,
    better: Literal["lower", "higher"],
    level: float = 0.05,
    seed: int = 0,
    replicates: int = stats.REPLICATES,
) -> Verdict:
    """Answer a claim.

    scores: arm -> seed -> mean loss (or other score) of every document, [D]. weights: targets of a document,
    [D]. better: which way the score improves. level: the chance of any false verdict. seed: of the bootstrap.
    An arm that lacks seeds lowers n; one that has none leaves its comparisons undecided.
    """
    if better not in (signs := {"lower": -1.0, "higher": 1.0}):
        raise BadInput(f"A score is better lower or higher, not {better!r}: {_nearest(str(better), signs)}.")
    if not comparisons:
        raise BadInput("A claim needs at least one comparison to be judged.")
    for arm in (arm for c in comparisons for arm in (c.treatment, c.control)):
        if arm not in scores:
            raise BadInput(f"There is no arm {arm!r}: {_nearest(arm, scores)}.")
    weights = np.asarray(weights, dtype=np.float64)
    tables = {arm: _table(arm, by_seed, weights) for arm, by_seed in scores.items()}
    tests = [
        _Test(c, signs[better] * _gain(tables[c.treatment], tables[c.control]), weights, seed, replicates)
        for c in comparisons
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


def reason(judged: Judged, unit: str = "") -> str:
    """One clause that gives the answer and its figures; unit: of the score, such as "nats"."""
    c, gain = judged.comparison, judged.gain
    rule = RULES[c.rule](c.margin, f"{c.margin:g} {unit}".rstrip())
    words = (rule.fails if judged.answer == "contradicted" else rule.holds).format(c.control)
    said = f"{c.treatment} is {words}"
    if judged.answer == "undecided":
        said = f"whether {said} is undecided"
    if not judged.n:
        return f"{said}: no seed was run in both arms"
    bounds = f"[{gain.low:+.3g}, {gain.high:+.3g}]" if math.isfinite(gain.high - gain.low) else "(no bounds yet)"
    said += f": gain {gain.estimate:+.3g} {bounds}, n={judged.n}"
    said += f", p={judged.adjusted:.2g}"
    if more := judged.further_seeds:
        said += f"; about {more} more seed{'s' * (more > 1)} would probably decide"
    return said


class _Test:
    """A comparison on its gain [S, D], before the other comparisons are heard."""

    def __init__(self, comparison: Comparison, gain: Array, weights: Array, seed: int, replicates: int) -> None:
        # Named by the pair and not by its place, so that no order of arms or comparisons changes a draw.
        rng = _generator(seed, *sorted((comparison.treatment, comparison.control)))
        self.comparison = comparison
        self.rule = RULES[comparison.rule](comparison.margin, "")
        self.values = stats.seed_means(gain, weights)
        self.draws = stats.multi_bootstrap(gain, weights, rng, replicates)
        self.documents = stats.document_error(gain, weights)
        # Where all statements have to hold, the worst decides; where any will do, the best, after Bonferroni.
        self.support = max(map(self._p, self.rule.support))
        self.against = min(1.0, len(self.rule.against) * min(map(self._p, self.rule.against)))
        self.p = min(1.0, 2 * min(self.support, self.against))

    def judged(self, adjusted: float, level: float, comparisons: int) -> Judged:
        answer: Answer = "undecided"
        if adjusted <= level:
            answer = "reproduced" if self.support < self.against else "contradicted"
        return Judged(
            comparison=self.comparison,
            answer=answer,
            gain=stats.hull(self.values, self.draws, 1 - level),
            p=self.p,
            adjusted=adjusted,
            effect=stats.effect(self.values),
            n=len(self.values),
            further_seeds=self._further(level, comparisons) if answer == "undecided" else None,
        )

    def _p(self, side: Side) -> float:
        """One-sided p against a statement, by the more cautious of both tests."""
        bound = side.sign * side.bound
        return max(stats.flip_p(side.sign * self.values, bound), stats.bootstrap_p(side.sign * self.draws, bound))

    def _further(self, level: float, comparisons: int) -> int | None:
        """Seeds that would probably bring one verdict or the other, if the gain stays what it seems to be."""

        def seeds(side: Side, ways: int) -> float:
            if not (len(self.values) and side.sign * (self.values.mean() - side.bound) > 0):
                return math.inf
            more = stats.further_seeds(self.values, side.bound, level, comparisons * ways, documents=self.documents)
            return math.inf if more is None else more

        either, rule = [max(seeds(side, 1) for side in self.rule.support)], self.rule
        either += [seeds(side, len(rule.against)) for side in rule.against]
        return int(min(either)) if min(either) < math.inf else None


def _table(arm: str, by_seed: Mapping[int, Array], weights: Array) -> tuple[list[int], Array]:
    """An arm's seeds in order, and its scores [S, D], nan where a run diverged."""
    for seed, score in by_seed.items():
        if np.shape(score) != weights.shape:
            raise BadInput(
                f"Arm {arm!r} has scores of shape {np.shape(score)} at seed {seed}, but the documents' "
                f"weights have shape {weights.shape}."
            )
    seeds = sorted(by_seed)
    table = np.array([by_seed[s] for s in seeds], dtype=np.float64).reshape(-1, weights.size)
    return seeds, np.where(np.isfinite(table), table, np.nan)


def _gain(treatment: tuple[list[int], Array], control: tuple[list[int], Array]) -> Array:
    """treatment - control at the seeds that both have, [S, D]."""
    _, ours, theirs = np.intersect1d(treatment[0], control[0], return_indices=True)
    return treatment[1][ours] - control[1][theirs]


def _generator(*parts: object) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=derive(*parts)))


def _nearest(word: str, known: Iterable[str]) -> str:
    names = list(known)
    near = get_close_matches(word, names, n=1)
    return f"the nearest is {near[0]!r}" if near else f"there are {', '.join(map(repr, names))}"


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {key: _plain(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
