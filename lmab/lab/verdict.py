"""From the scores of arms to an answer: reproduced, contradicted or undecided.

    S  seeds that two arms share   D  test documents

Every comparison is about the gain [S, D], how much better the treatment is than the control at the same seed
on the same document, positive where it is better. A rule says which one-sided statements about the centre of
the gain would bear the claim out, and which would refute it. Both verdicts are tested, so p is two-sided, and
Holm's correction runs over the comparisons of a claim: if nothing is true, the chance that anything at all is
called reproduced or contradicted is at most `level`.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from difflib import get_close_matches
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
    """What a claim says: all of `support` bears it out, any of `against` refutes it, and the words for both."""

    support: tuple[Side, ...]
    against: tuple[Side, ...]
    holds: str
    fails: str


def _better(margin: float, by: str) -> Rule:
    more = f" by more than {by}" if margin else ""
    return Rule((Side(1, margin),), (Side(-1, -margin),), f"better than {{}}{more}", f"worse than {{}}{more}")


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
        least = "at least 0" if self.rule == "better" else "above 0"
        if not 0 <= self.margin < math.inf or (self.margin == 0 and self.rule != "better"):
            raise BadInput(
                f"Rule {self.rule} needs a margin {least}, in units of the score, not {self.margin}."
            )


def ranked(arms: Sequence[str]) -> list[Comparison]:
    """Arms from best to worst, as comparisons of neighbours: the ranking holds where all of them do."""
    if len(arms) < 2 or len(set(arms)) < len(arms):
        raise BadInput(f"A ranking needs two arms or more, each once, not {list(arms)}.")
    return [
        Comparison(rule="better", treatment=arm, control=worse)
        for arm, worse in zip(arms, arms[1:], strict=False)
    ]


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

    answer: Answer
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
    rules = [RULES[c.rule](c.margin, "") for c in comparisons]
    found = [
        # Named by the pair and not by its place, so that no order of arms or comparisons changes a draw.
        _Evidence(
            signs[better] * _gain(tables[c.treatment], tables[c.control], len(weights)),
            weights,
            _generator(seed, *sorted((c.treatment, c.control))),
            replicates,
        )
        for c in comparisons
    ]
    sides = [evidence.sides(rule) for evidence, rule in zip(found, rules, strict=True)]
    raw = np.minimum(1, 2 * np.min(sides, axis=1))
    judged = []
    for c, rule, evidence, (support, against), p, adjusted in zip(
        comparisons, rules, found, sides, raw, stats.holm(raw), strict=True
    ):
        decided: Answer = "reproduced" if support < against else "contradicted"
        answer: Answer = decided if adjusted <= level else "undecided"
        judged.append(
            Judged(
                comparison=c,
                answer=answer,
                gain=stats.hull(evidence.values, evidence.draws, 1 - level),
                p=float(p),
                adjusted=float(adjusted),
                effect=stats.effect(evidence.values),
                n=len(evidence.values),
                further_seeds=evidence.further(rule, level, len(raw)) if answer == "undecided" else None,
            )
        )
    answers = [j.answer for j in judged]
    every: Answer = "reproduced" if set(answers) == {"reproduced"} else "undecided"
    return Verdict(
        answer="contradicted" if "contradicted" in answers else every,
        judged=tuple(judged),
        level=level,
        arms={
            arm: stats.interval(
                np.reshape(list(table.values()), (-1, len(weights))),
                weights,
                1 - level,
                rng=_generator(seed, arm),
                replicates=replicates,
            )
            for arm, table in tables.items()
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
    figures = f"gain {gain.estimate:+.3g} [{gain.low:+.3g}, {gain.high:+.3g}], n={judged.n}, p={judged.adjusted:.2g}"
    more = ""
    if judged.further_seeds:
        more = f"; about {judged.further_seeds} more seed{'s' * (judged.further_seeds > 1)} would probably decide"
    return f"{said}: {figures}{more}"


class _Evidence:
    """A gain [S, D] as its seeds' means [S] and the draws around its centre [R]."""

    def __init__(self, gain: Array, weights: Array, rng: np.random.Generator, replicates: int) -> None:
        self.values = stats.seed_means(gain, weights)
        self.draws = stats.multi_bootstrap(gain, weights, rng, replicates)
        self.documents = stats.document_error(gain, weights)

    def p(self, side: Side) -> float:
        """One-sided p against a statement, by the more cautious of both tests."""
        sign, bound = side.sign, side.sign * side.bound
        return max(stats.flip_p(sign * self.values, bound), stats.bootstrap_p(sign * self.draws, bound))

    def sides(self, rule: Rule) -> tuple[float, float]:
        """One-sided p of (what bears the rule out, what refutes it). Where all statements must hold, the worst
        decides; where any will do, the best, paid for by Bonferroni."""
        support, against = map(self.p, rule.support), [self.p(side) for side in rule.against]
        return max(support), min(1.0, len(against) * min(against))

    def further(self, rule: Rule, level: float, comparisons: int) -> int | None:
        """Seeds that would probably bring either verdict, if the gain stays as it looks now."""

        def seeds(side: Side, ways: int) -> float:
            if not side.sign * (self.values.mean() - side.bound) > 0:
                return math.inf
            more = stats.further_seeds(
                self.values, side.bound, level, comparisons * ways, documents=self.documents
            )
            return math.inf if more is None else more

        if not len(self.values):
            return None
        support = max(seeds(side, 1) for side in rule.support)
        fewest = min(support, *(seeds(side, len(rule.against)) for side in rule.against))
        return int(fewest) if fewest < math.inf else None


def _table(arm: str, by_seed: Mapping[int, Array], weights: Array) -> dict[int, Array]:
    """seed -> score of every document, in the order of seeds."""
    table = {seed: np.asarray(by_seed[seed], dtype=np.float64) for seed in sorted(by_seed)}
    for seed, score in table.items():
        if score.shape != weights.shape:
            raise BadInput(
                f"Arm {arm!r} has scores of {score.size} documents at seed {seed}, but weights are given for "
                f"{weights.size}."
            )
    return table


def _gain(treatment: dict[int, Array], control: dict[int, Array], documents: int) -> Array:
    """treatment - control at the seeds that both have, [S, D]."""
    with np.errstate(invalid="ignore"):  # where both diverged, the gain is nan and decides nothing
        return np.reshape([treatment[s] - control[s] for s in treatment if s in control], (-1, documents))


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
