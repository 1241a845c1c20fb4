"""A claim: a YAML file that says what a paper says, and what would show it. Bad ones are refused at load."""

from __future__ import annotations

from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, get_type_hints

from pydantic import TypeAdapter, ValidationError

from lmab import checks
from lmab.lab import guard, stats
from lmab.lab.amounts import Amount, Exact, Ratio
from lmab.lab.rules import Comparison, Order, Peak, Rule, Share
from lmab.store import signature
from lmab.types import BadInput

if TYPE_CHECKING:
    from collections.abc import Mapping


_KINDS: dict[str, type[Rule | Exact]] = {
    "better": Comparison,
    "not_worse": Comparison,
    "equivalent": Comparison,
    "ranked": Order,
    "monotone": Order,
    "peak": Peak,
    "share": Share,
    "exact": Amount,
}


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a claim stands."""

    paper: str
    arxiv: str
    where: str


@dataclass(frozen=True, kw_only=True)
class Measure:
    """What arms are scored by. better: lower or higher, None for a figure that is only computed. unit: of the
    metric, for sentences."""

    metric: str
    better: Literal["lower", "higher"] | None = None
    unit: str = "nats"


# A handful of trials learns little from one another, and random ones leave holes (Bousquet et al. 2017, arXiv
# 1706.03200).
_SPREAD = {"_target_": "optuna.samplers.QMCSampler", "qmc_type": "halton", "scramble": True, "seed": 0}


@dataclass(frozen=True, kw_only=True)
class Tune:
    """How each arm is tuned before it is judged: all over the same space, with as many trials and the same sampler.

    params: key -> sweep, in Hydra's grammar. trials: of each arm. Both may be interpolations of the budget. seeds: of
    every trial, none of them one that the arms are judged by. metric: of validation. sampler: a node with `_target_`;
    where none is given, points that spread evenly, the same ones for each arm.
    """

    params: dict[str, Any]
    trials: int | str
    seeds: list[int]
    metric: str
    direction: Literal["minimize", "maximize"] = "minimize"
    sampler: dict[str, Any] = field(default_factory=lambda: {**_SPREAD})


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim as loaded.

    base: overrides that all arms share. arms: name -> its overrides. verdict: the rules that must all hold, over
    seeds, or all of them exact. seeds: paired over arms; none where all is exact. reported: the paper's own figures,
    shown and never used. tune: how each arm is tuned first, if it is. plateau: nats that an arm must have gained over
    a model without context before anything is read off it. level: of the whole claim.
    """

    name: str
    claim: str
    source: Source
    base: list[str]
    arms: dict[str, list[str]]
    measure: Measure
    verdict: list[Rule | Exact]
    seeds: list[int] = field(default_factory=list)
    reported: dict[str, Any] = field(default_factory=dict)
    tune: Tune | None = None
    plateau: float = 0.2
    level: float = 0.05

    @property
    def tested(self) -> list[Rule]:
        """The rules over seeds: all of the verdict, or none."""
        return [rule for rule in self.verdict if not isinstance(rule, Exact)]

    @property
    def least(self) -> int:
        """The fewest seeds at which its rules over seeds can be decided at all."""
        return stats.least_seeds(self.level, sum(len(rule.statements()) for rule in self.tested))

    @property
    def exact(self) -> list[Exact]:
        """The rules of figures that are computed: all of the verdict, or none."""
        return [rule for rule in self.verdict if isinstance(rule, Exact)]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


_GIVEN = ("claim", "source", "base", "arms", "measure", "verdict", "seeds")
_OPTIONAL = ("reported", "plateau", "level", "tune")
_OF_SEEDS = ("seeds", "plateau", "level", "tune")


def rules(given: Any) -> list[Rule | Exact]:
    """A file's `verdict`: a rule or a list of them. BadInput: one sentence on the first that is wrong."""
    found = [_rule(rule) for rule in (given if isinstance(given, list) else [given])]
    if len({isinstance(rule, Exact) for rule in found}) != 1:
        raise BadInput(
            "The verdict mixes exact rules with rules over seeds: a figure that is computed and a score that is "
            "measured are two claims, so write two files."
            if found
            else "The verdict has no rule: give at least one, as in {rule: better, treatment: ..., control: ...}."
        )
    return found


def _rule(given: Any) -> Rule | Exact:
    if not isinstance(given, dict) or "rule" not in given:
        raise BadInput(f"{given!r} in verdict is not a rule as in {{rule: better, treatment: ..., control: ...}}.")
    name = str(given["rule"])
    if name not in _KINDS:
        raise BadInput(f"There is no rule {name!r}: {checks.nearest(name, list(_KINDS))}")
    kind = Ratio if name == "exact" and {"treatment", "control", "ratio"} & set(given) else _KINDS[name]
    known, hints, values = {f.name: f for f in fields(kind)}, get_type_hints(kind), {}
    for key, value in given.items():
        if key not in known:
            raise BadInput(f"Rule {name} takes no {key}: {checks.nearest(str(key), list(known))}")
        try:
            values[key] = TypeAdapter(hints[key]).validate_python(value)
        except ValidationError as error:
            says = error.errors()[0]["msg"]
            raise BadInput(f"Rule {name}: {key}={value!r} cannot work: {says[:1].lower() + says[1:]}.") from error
    for key, knob in known.items():
        if knob.default is MISSING and key not in values:
            form = ", ".join(f"{k}: {name if k == 'rule' else '...'}" for k in known)
            raise BadInput(f"Rule {name} has no {key}: give {{{form}}}.")
    return kind(**values)


def load(name: str, given: Mapping[str, Any], *, look: bool = False) -> Claim:
    """Make a claim of what a file holds. name: the file's, as in roberta/masking. look: at its first seed alone,
    which decides nothing.

    BadInput: one sentence on the first thing that is wrong with it.
    """
    file = f"sweeps/{name}.yaml"
    values = {k: given[k] for k in (*_GIVEN, *_OPTIONAL) if given.get(k) is not None}
    for key in _GIVEN:
        if key not in values and key != "seeds":
            raise BadInput(f"{file} has no {key}: a claim needs {', '.join(_GIVEN)}.")
    try:
        values["verdict"] = rules(values["verdict"])
        exact = isinstance(values["verdict"][0], Exact)
        _refuse_seeds(values, exact=exact)
        if look:
            values["seeds"] = [0]
        if exact and isinstance(values["measure"], dict):
            unit = str(values["measure"].get("metric", "")).rpartition("/")[2].replace("_", " ")
            values["measure"] = {"unit": unit, **values["measure"]}
        claim = TypeAdapter(Claim).validate_python({"name": name, **values})
        _refuse(claim, look=look)
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(str(p) for p in problem["loc"])
        raise BadInput(f"{file}: {place}: {problem['msg'][:1].lower() + problem['msg'][1:]}.") from error
    except BadInput as error:
        raise BadInput(f"{file}: {error}") from error
    return claim


def _refuse_seeds(values: dict[str, Any], *, exact: bool) -> None:
    """What belongs to rules over seeds stands with them alone; seeds as a number becomes a list."""
    idle = [key for key in _OF_SEEDS if key in values]
    if exact and idle:
        raise BadInput(f"Its figures are computed, once and for all: leave out {', '.join(idle)}.")
    if exact:
        return
    if "seeds" not in values:
        raise BadInput("It has no seeds: rules over seeds need a number of them, as in seeds: 7.")
    if isinstance(values["seeds"], int):
        values["seeds"] = list(range(values["seeds"]))


def _refuse(claim: Claim, *, look: bool) -> None:
    if len(claim.arms) < 2 and not claim.exact:
        raise BadInput(f"It has {len(claim.arms)} arm: a claim compares at least two.")
    for arm in (arm for rule in claim.verdict for arm in rule.named):
        if arm not in claim.arms:
            raise BadInput(f"Its verdict names the arm {arm!r}: {checks.nearest(arm, list(claim.arms))}")
    if claim.exact and claim.measure.better:
        raise BadInput("Its figures are computed, and none is better: leave out measure.better.")
    if claim.exact:
        return
    if claim.measure.better is None:
        raise BadInput("It has no measure.better: say whether lower or higher is better.")
    if len(set(claim.seeds)) < len(claim.seeds):
        raise BadInput(f"Its seeds {claim.seeds} name one seed twice, which is no further evidence.")
    if claim.tune is not None and (both := {*claim.tune.seeds} & {*claim.seeds}):
        raise BadInput(
            f"Its arms are tuned on seed {min(both)} and judged by it, which flatters them: give tune.seeds of their "
            f"own, as in tune.seeds=[100]."
        )
    if claim.tune is not None and not (claim.tune.seeds and claim.tune.params):
        raise BadInput("Its tune has no params or no seeds: say what is searched, and on which seeds.")
    if len(claim.seeds) < claim.least and not look:
        count = sum(len(rule.statements()) for rule in claim.tested)
        raise BadInput(
            f"{len(claim.seeds)} seeds can never decide {count} comparison(s) at level {claim.level}, whatever they "
            f"show: give at least seeds={claim.least}, or seeds=look to look at one."
        )


def refuse_twins(claim: Claim, configs: Mapping[str, Mapping[str, Any]]) -> None:
    """BadInput for arms that compose to the same. configs: arm -> its resolved configuration."""
    file, names = f"sweeps/{claim.name}.yaml", dict[str, str]()
    for arm, config in configs.items():
        twin = names.setdefault(signature(config), arm)
        if twin != arm:
            raise BadInput(f"{file}: the arms {twin} and {arm} compose to the same run, so they differ in nothing.")


def refuse_arms(claim: Claim, configs: Mapping[str, Mapping[str, Any]]) -> None:
    """BadInput for arms that, composed, cannot be compared. configs: arm -> its resolved configuration."""
    refuse_twins(claim, configs)
    file, metric = f"sweeps/{claim.name}.yaml", claim.measure.metric
    for arm, config in configs.items():
        known = guard.metrics(config)
        if metric not in known:
            raise BadInput(f"{file}: the arm {arm} records no metric {metric}: {checks.nearest(metric, known)}")
    if keys := guard.redefined(metric, list(configs.values())):
        raise BadInput(
            f"{file}: {metric} cannot rank these arms, since they differ in {', '.join(keys)}, which changes what "
            f"it measures: measure a probe, a downstream score or bits per byte instead."
        )
