"""What a few seeds and many documents can say about a mean: p-values, intervals, numbers of seeds.

    S  seeds   D  test documents   R  draws of a bootstrap

A score is a matrix [S, D], the mean loss of every document after every seed, beside the number of targets of
a document, weights [D]. Its centre is what the weighted mean would be over all seeds and all documents.

Two tests stand side by side, and the more cautious speaks. The sign-flip test is exact for any number of
seeds, but knows nothing of documents. The bootstrap over seeds and documents knows both, but resampling
three seeds shows too little of how seeds differ. Both come as draws around the centre, [R], and are read
alike: a bound is rejected at level a where (1 + draws on its far side) / (1 + R) <= a, and an interval is the
bounds that are not rejected. Draws that are not finite (a run that diverged) reject nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats as distributions

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

REPLICATES = 9_999  # so that R + 1 divides evenly at the usual levels
_ENUMERATED = 14  # seeds up to which all 2**S - 1 subsets are written out; beyond, as many are drawn
_CELLS = 2**22  # document counts held at once by the bootstrap: 32 MiB
_TIE = 1e-12  # two means closer than this, relative to their size, differ by rounding only


@dataclass(frozen=True, kw_only=True)
class Interval:
    """An estimate, the bounds around it (infinite where the seeds are too few), and the seeds it rests on."""

    estimate: float
    low: float
    high: float
    n: int


def seed_means(matrix: Array, weights: Array) -> Array:
    """The score at every seed, sum_d w_d x_sd / sum_d w_d: [S, D] and [D] to [S]."""
    matrix, weights = _with_targets(matrix, weights)
    return matrix @ (weights / weights.sum())


def subsets(rng: np.random.Generator, size: int, seeds: int) -> Array:
    """Weights of seeds that average a random non-empty subset, [size, S]: all subsets are as likely."""
    taken = rng.integers(0, 2, (size, seeds))
    while (empty := ~taken.any(axis=1)).any():
        taken[empty] = rng.integers(0, 2, (empty.sum(), seeds))
    return taken / taken.sum(axis=1, keepdims=True)


def with_replacement(rng: np.random.Generator, size: int, seeds: int) -> Array:
    """Weights of seeds that average S of them drawn with replacement, [size, S]: Efron's bootstrap."""
    return rng.multinomial(seeds, np.full(seeds, 1 / seeds), size) / seeds


def multi_bootstrap(
    matrix: Array,
    weights: Array,
    rng: np.random.Generator,
    replicates: int = REPLICATES,
    *,
    draw: Callable[[np.random.Generator, int, int], Array] = subsets,
) -> Array:
    """Weighted means of the score over seeds and documents drawn together, [R].

    The Multi-Bootstrap (Sellam et al. 2021, "The MultiBERTs", arXiv 2106.16163, section 3) draws S seeds and
    D documents with replacement, independently: `draw=with_replacement`. With seeds drawn as random subsets,
    the default, it becomes Hartigan's test where documents agree, and stays within its level where seeds and
    documents vary about equally; there the published form errs for up to 7 claims in 100 instead of 5, even
    beside the sign-flip test (tests/lab/test_stats.py measures both).
    """
    matrix, weights = _with_targets(matrix, weights)
    S, D = matrix.shape
    if not (S and D and np.isfinite(matrix).all()):
        return np.full(replicates, np.nan)
    seeds = draw(rng, replicates, S)  # [R, S]
    drawn = np.empty(replicates)
    step = max(1, _CELLS // D)
    for start in range(0, replicates, step):
        some = seeds[start : start + step]  # [r, S]
        r = len(some)
        cells = rng.integers(0, D, (r, D)) + D * np.arange(r)[:, None]
        targets = np.bincount(cells.ravel(), minlength=r * D).reshape(r, D) * weights  # [r, D]
        drawn[start : start + step] = ((targets @ matrix.T) * some).sum(axis=1) / targets.sum(axis=1)
    return drawn


def subset_means(values: Array, rng: np.random.Generator | None = None) -> Array:
    """The means of all 2**S - 1 non-empty subsets of values [S]: Hartigan's typical values (1969, "Using
    subsample values as typical values", theorem 1). About the centre of a symmetric distribution, each of the
    2**S gaps between them is as likely to hold it.

    Beyond 14 seeds, 2**14 - 1 random subsets, from `rng` or always the same ones.
    """
    values = np.asarray(values, dtype=np.float64)
    S = len(values)
    if not np.isfinite(values).all():
        return np.full(1, np.nan)
    if rng is not None and S > _ENUMERATED:
        return subsets(rng, 2**_ENUMERATED - 1, S) @ values
    return _all_subsets(S) @ values


def bootstrap_p(draws: Array, bound: float) -> float:
    """One-sided p of "the centre is at most `bound`", (1 + draws at or below it) / (1 + R)
    (Davison and Hinkley 1997, section 4.2). Ties count against rejection."""
    slack = _TIE * max(abs(bound), np.abs(draws).max(initial=0.0))
    return float((1 + np.count_nonzero(~(draws > bound + slack))) / (1 + len(draws)))


def flip_p(values: Array, bound: float, rng: np.random.Generator | None = None) -> float:
    """One-sided p of "the centre of values [S] is at most `bound`" by the exact sign-flip test (Fisher 1935,
    section 21): the share of the 2**S sign patterns of values - bound whose sum is at least the observed.

    Flipping a subset reaches the observed sum just where the subset's mean is at most `bound` (the empty
    subset ties), so the patterns are counted by their subset means.
    """
    return bootstrap_p(subset_means(values, rng), bound)


def flip_interval(values: Array, level: float, rng: np.random.Generator | None = None) -> tuple[float, float]:
    """The bounds that `flip_p` does not reject on either side at (1 - level) / 2: it covers the centre with
    probability 1 - 2k / 2**S >= level. Infinite where there are too few seeds for any such k >= 1."""
    return _central(subset_means(values, rng), level)


def hull(values: Array, draws: Array, level: float) -> Interval:
    """The smallest interval that holds the bootstrap's and the sign-flip test's: values [S], draws [R]."""
    (low, high), (least, most) = _central(draws, level), flip_interval(values, level)
    estimate = float(np.mean(values)) if len(values) and np.isfinite(values).all() else math.nan
    return Interval(estimate=estimate, low=min(low, least), high=max(high, most), n=len(values))


def interval(
    matrix: Array,
    weights: Array,
    level: float = 0.95,
    *,
    rng: np.random.Generator,
    replicates: int = REPLICATES,
) -> Interval:
    """The mean of a score and the interval that covers its centre with probability `level`."""
    return hull(seed_means(matrix, weights), multi_bootstrap(matrix, weights, rng, replicates), level)


def holm(p: Array) -> Array:
    """Adjusted p-values (Holm 1979): the i-th smallest of m becomes max_{j <= i} min(1, (m - j + 1) p_(j)).

    Rejecting where they are at most a keeps the chance of any false rejection at most a.
    """
    p = np.asarray(p, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.maximum.accumulate(np.minimum(1, np.arange(len(p), 0, -1) * p[order]))
    return adjusted


def effect(values: Array) -> float:
    """Standardised paired effect, Cohen's d_z = mean / sd (1988, section 2.3); nan without spread."""
    values = np.asarray(values, dtype=np.float64)
    if len(values) < 2 or not np.isfinite(values).all():
        return math.nan
    spread = values.std(ddof=1)
    return float(values.mean() / spread) if spread > _TIE * np.abs(values).max() else math.nan


def least_seeds(level: float, comparisons: int) -> int:
    """The fewest seeds at which one of several two-sided exact tests can reach `level` after Holm's
    correction: its smallest p is 2 / 2**S, and the smallest of m has to stay below level / m."""
    S = 1
    while level / comparisons < 2.0 ** (1 - S):
        S += 1
    return S


def document_error(matrix: Array, weights: Array) -> float:
    """The part of the standard error of a score that no number of seeds removes: how much it varies with the
    documents alone, by the delta method for a ratio, less what a finite number of seeds adds to it. One seed
    or one document shows nothing of it: 0."""
    matrix, weights = _with_targets(matrix, weights)
    S, D = matrix.shape
    if S < 2 or D < 2 or not np.isfinite(matrix).all():
        return 0.0
    share = weights / weights.sum()
    documents = matrix.mean(axis=0)  # [D]
    rest = matrix - documents  # [S, D]
    rest = rest - (rest @ share)[:, None]
    both = ((share * (documents - documents @ share)) ** 2).sum()
    seeds = ((share * rest) ** 2).sum() / (S * (S - 1))
    return float(math.sqrt(max(0.0, both - seeds) * D / (D - 1)))


def further_seeds(
    values: Array,
    bound: float,
    level: float,
    comparisons: int,
    power: float = 0.8,
    most: int = 200,
    *,
    documents: float = 0.0,
) -> int | None:
    """How many seeds more would probably set the centre of values [S] apart from `bound`, or None.

    The smallest n - S at which a two-sided t test at level / comparisons (the worst that Holm may ask) has
    the power asked for, if mean and spread are those seen: a noncentral t with n - 1 degrees of freedom and
    (mean - bound) / sqrt(sd**2 / n + documents**2), where `documents` is the `document_error`.
    None where that takes more than `most`, where the mean is the bound, and where one seed shows no spread.
    A forecast and no licence: who looks, adds seeds and looks again has had two chances to err.
    """
    values = np.asarray(values, dtype=np.float64)
    S = len(values)
    if S < 2 or not np.isfinite(values).all():
        return None
    away = abs(values.mean() - bound)
    if away <= _TIE * max(abs(bound), np.abs(values).max()):
        return None
    n = np.arange(max(S + 1, least_seeds(level, comparisons)), S + most + 1)
    error = np.sqrt(values.var(ddof=1) / n + documents**2)
    # Far beyond any threshold of interest the noncentral t loses its footing; there the power is 1.
    shift = np.minimum(away / np.maximum(error, away / 30), 30)
    reached = distributions.nct.sf(distributions.t.isf(level / comparisons / 2, n - 1), n - 1, shift) >= power
    return int(n[reached.argmax()]) - S if reached.any() else None


def _with_targets(matrix: Array, weights: Array) -> tuple[Array, Array]:
    """Without the documents that hold no target, whose mean loss is undefined; what is not finite is nan."""
    matrix, weights = np.asarray(matrix, dtype=np.float64), np.asarray(weights, dtype=np.float64)
    matrix = matrix[:, weights > 0]
    return np.where(np.isfinite(matrix), matrix, np.nan), weights[weights > 0]


def _central(draws: Array, level: float) -> tuple[float, float]:
    """The k-th smallest and k-th largest draw, k the largest with k / (1 + R) <= (1 - level) / 2."""
    k = math.floor((1 + len(draws)) * (1 - level) / 2 + 1e-9)
    if k < 1 or not np.isfinite(draws).all():
        return -math.inf, math.inf
    ordered = np.sort(draws)
    return float(ordered[k - 1]), float(ordered[-k])


@lru_cache(maxsize=8)
def _all_subsets(S: int) -> Array:
    """Weights that average each non-empty subset of S seeds, [2**S - 1, S]; of many, fixed random subsets."""
    if S > _ENUMERATED:
        return subsets(np.random.Generator(np.random.Philox(key=S)), 2**_ENUMERATED - 1, S)
    taken = np.arange(1, 2**S)[:, None] >> np.arange(S) & 1
    return taken / taken.sum(axis=1, keepdims=True)
