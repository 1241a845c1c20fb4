"""Arms that are tuned before they are judged: each over the same space, with as many trials, on seeds of their own.

A recipe that suits one arm makes the others look worse than they are, so a claim may say `tune:`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from lmab.lab import tables
from lmab.lab.jobs import Hydra, compose
from lmab.lab.page import Section
from lmab.lab.tables import Table
from lmab.lab.tuning import figures, results, space
from lmab.lab.tuning.board import figure
from lmab.lab.tuning.found import found as read
from lmab.lab.tuning.search import search
from lmab.lab.tuning.settings import Settings, planned
from lmab.types import BadInput, Failed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lmab.lab.claim import Claim, Tune
    from lmab.lab.tuning.found import Found


@dataclass(frozen=True)
class Tuned:
    """What was found for an arm. lines: the overrides of its best trial."""

    lines: list[str]
    found: Found = field(repr=False)


def tuned(hydra: Hydra, claim: Claim, shared: list[str]) -> dict[str, Tuned]:
    """Tune every arm of a claim: one worker each, so that its points are the same whatever runs beside it.

    Returns arm -> what was found. BadInput: what is tuned is what the arms are about. Failed: an arm has no trial with
    a value.
    """
    tune = claim.tune
    if tune is None:
        return {}
    parser = OverridesParser.create(config_loader=hydra.hydra_context.config_loader)
    cfg = compose(hydra, [*claim.base, *shared])
    where, fixed = space.read(parser, {key: _said(value, cfg) for key, value in tune.params.items()}, [])
    if fixed:
        raise BadInput(f"sweeps/{claim.name}.yaml: tune.params has one value for {fixed[0]}: move it to base.")
    _refuse(parser, claim, where, shared)
    trials = _trials(tune, cfg)
    plans = []
    for arm, lines in claim.arms.items():
        base = [*claim.base, *shared, *lines]
        corners = [compose(hydra, [*base, *where.corner(last=last)]) for last in (False, True)]
        settings = Settings(
            sampler=tune.sampler,
            direction=tune.direction,
            n_trials=trials,
            metric=tune.metric,
            seeds=tune.seeds,
        )
        plans.append(planned(settings, where, base, corners, title=f"{claim.name}/{arm}"))
    found = {}
    for arm, plan, known in zip(claim.arms, plans, search(hydra, f"{claim.name}, tuning", plans, 1), strict=True):
        result = read(plan, known)
        if not result.best:
            raise Failed(f"No trial of the arm {arm} of {claim.name} has a value: see the study {plan.name}.")
        found[arm] = Tuned(where.lines(result.best[0].params), result)
    return found


def _said(value: Any, cfg: Any) -> Any:
    """A value, or what the budget says at the place that is named."""
    return OmegaConf.create({**cfg, "_said": value})._said


def _trials(tune: Tune, cfg: Any) -> int:
    found = _said(tune.trials, cfg)
    if not isinstance(found, int):
        raise BadInput(f"tune.trials={tune.trials} is no number: give one, or ${{budget.tune.arm}}.")
    return found


def _refuse(parser: OverridesParser, claim: Claim, where: space.Space, shared: list[str]) -> None:
    names = {axis.name for axis in where.axes}
    for arm, lines in claim.arms.items():
        for override in parser.parse_overrides(lines):
            if (key := override.get_key_element().lstrip("+~")) in names:
                raise BadInput(
                    f"sweeps/{claim.name}.yaml: {key} is tuned in every arm, and is what the arm {arm} is about: leave "
                    f"it out of one."
                )
    for override in parser.parse_overrides(shared):
        if (key := override.get_key_element().lstrip("+~")) in names:
            raise BadInput(
                f"{override.input_line} does not go with {claim.name}, which tunes {key} in every arm: leave it out."
            )


def section(found: Mapping[str, Tuned]) -> Section:
    """What tuning found, what it took, and how the best value came down, for a claim's report."""
    if not found:
        return Section("Tuning")
    first = next(iter(found.values())).found
    plan = first.plan
    names, metric = [axis.name for axis in plan.space.axes], tables.unit(plan.metrics[0])[0]
    head = ["arm", "trials", *names, metric, "seconds", "study"]
    rows = []
    for arm, one in found.items():
        best = one.found.best[0]
        values = [line.partition("=")[2] for line in one.lines]
        value = figure(plan.metrics[0], best.values[0])
        seconds = tables.number(results.seconds(one.found))
        rows.append([arm, str(len(one.found.trials)), *values, value, seconds, one.found.plan.name])
    table = Table("Tuning", head, rows)
    seeds = ", ".join(map(str, plan.seeds))
    text = [
        f"Every arm was tuned over the same space, with {plan.trials} trials and the same sampler "
        f"({plan.sampler['_target_'].rpartition('.')[2]}) and its seed, by "
        f"{plan.metrics[0]} on seed {seeds}, by which no arm is judged."
    ]
    drawn = figures.best_so_far({arm: one.found for arm, one in found.items()})
    return Section("Tuning", text=text, tables=[table], figures=[drawn])


def told(found: Mapping[str, Tuned]) -> dict[str, Any]:
    """The same as data."""
    return {
        arm: {
            "overrides": one.lines,
            "trials": len(one.found.trials),
            "best": one.found.best[0].values[0],
            "points": [one.found.plan.space.lines(trial.params) for trial in one.found.trials],
            "values": [trial.values[0] if trial.values else None for trial in one.found.trials],
            "seeds": one.found.plan.seeds,
            "seconds": results.seconds(one.found),
        }
        for arm, one in found.items()
    }
