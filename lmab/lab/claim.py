"""A claim: a YAML file that says what a paper says, and what would show it. Bad ones are refused at load."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from pydantic import TypeAdapter, ValidationError

from lmab import checks
from lmab.lab import guard, stats
from lmab.lab.verdict import Comparison, ranked
from lmab.store import signature
from lmab.types import BadInput

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a claim stands."""

    paper: str
    arxiv: str
    where: str


@dataclass(frozen=True, kw_only=True)
class Measure:
    """What arms are scored by. better: lower or higher. unit: of the metric, for sentences."""

    metric: str
    better: Literal["lower", "higher"]
    unit: str = "nats"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim as loaded.

    base: overrides that all arms share. arms: name -> its overrides. verdict: the comparisons that must all
    hold. seeds: paired over arms. reported: the paper's own figures, shown and never used. plateau: nats that
    an arm must have gained over the unigram entropy before anything is read off it. level: of the whole claim.
    """

    name: str
    claim: str
    source: Source
    base: list[str]
    arms: dict[str, list[str]]
    measure: Measure
    verdict: list[Comparison]
    seeds: list[int]
    reported: dict[str, Any] = field(default_factory=dict)
    plateau: float = 0.5
    level: float = 0.05

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


_GIVEN = ("claim", "source", "base", "arms", "measure", "verdict", "seeds")
_OPTIONAL = ("reported", "plateau", "level")


def _comparisons(given: Any) -> list[Comparison]:
    """The file's `verdict`: one rule or a list of them; `ranked` names its arms, the best first."""
    rules = given if isinstance(given, list) else [given]
    found: list[Comparison] = []
    for rule in rules:
        if rule.get("rule") == "ranked":
            found += ranked(rule["arms"])
        else:
            found.append(Comparison(**rule))
    return found


def load(name: str, given: Mapping[str, Any]) -> Claim:
    """Make a claim of what a file holds. name: the file's, as in roberta/masking.

    BadInput: one sentence on the first thing that is wrong with it.
    """
    file = f"sweeps/{name}.yaml"
    for key in _GIVEN:
        if given.get(key) is None:
            raise BadInput(f"{file} has no {key}: a claim needs {', '.join(_GIVEN)}.")
    values = {k: given[k] for k in (*_GIVEN, *_OPTIONAL) if given.get(k) is not None}
    try:
        seeds = values["seeds"]
        values["seeds"] = list(range(seeds)) if isinstance(seeds, int) else seeds
        values["verdict"] = _comparisons(values["verdict"])
        claim = TypeAdapter(Claim).validate_python({"name": name, **values})
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(str(p) for p in problem["loc"])
        raise BadInput(f"{file}: {place}: {problem['msg'][:1].lower() + problem['msg'][1:]}.") from error
    except BadInput as error:
        raise BadInput(f"{file}: {error}") from error
    except (TypeError, KeyError, AttributeError) as error:
        raise BadInput(
            f"{file}: verdict is not a rule as in {{rule: better, treatment: ..., control: ...}}."
        ) from error
    _refuse(claim, file)
    return claim


def _refuse(claim: Claim, file: str) -> None:
    if len(claim.arms) < 2:
        raise BadInput(f"{file} has {len(claim.arms)} arm: a claim compares at least two.")
    for comparison in claim.verdict:
        for arm in (comparison.treatment, comparison.control):
            if arm not in claim.arms:
                raise BadInput(f"{file}: its verdict names the arm {arm!r}: {checks.nearest(arm, list(claim.arms))}")
    if len(set(claim.seeds)) < len(claim.seeds):
        raise BadInput(f"{file}: seeds {claim.seeds} name one seed twice, which is no further evidence.")
    least = stats.least_seeds(claim.level, len(claim.verdict))
    if len(claim.seeds) < least:
        raise BadInput(
            f"{file}: {len(claim.seeds)} seeds can never decide {len(claim.verdict)} comparison(s) at level "
            f"{claim.level}, whatever they show: give at least seeds={least}."
        )


def refuse_arms(claim: Claim, configs: Mapping[str, Mapping[str, Any]]) -> None:
    """BadInput for arms that, composed, cannot be compared. configs: arm -> its resolved configuration."""
    file = f"sweeps/{claim.name}.yaml"
    names: dict[str, str] = {}
    for arm, config in configs.items():
        twin = names.setdefault(signature(config), arm)
        if twin != arm:
            raise BadInput(f"{file}: the arms {twin} and {arm} compose to the same run, so they differ in nothing.")
    metric = claim.measure.metric
    for arm, config in configs.items():
        known = guard.metrics(config)
        if metric not in known:
            raise BadInput(f"{file}: the arm {arm} records no metric {metric}: {checks.nearest(metric, known)}")
    if keys := guard.redefined(metric, list(configs.values())):
        raise BadInput(
            f"{file}: {metric} cannot rank these arms, since they differ in {', '.join(keys)}, which changes what "
            f"it measures: measure a probe, a downstream score or bits per byte instead."
        )
