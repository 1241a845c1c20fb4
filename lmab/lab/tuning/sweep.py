"""A search as a line: `python run.py -m hydra/sweeper=optuna ...`, or a file of sweeps/tune/.

It writes down what is asked, starts workers by whichever Hydra launcher was chosen, and reads what came of it from the
study.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from optuna.trial import TrialState

from lmab.lab.jobs import Hydra, compose
from lmab.lab.tuning import space
from lmab.lab.tuning.found import Found, found
from lmab.lab.tuning.results import say, write
from lmab.lab.tuning.search import over, search
from lmab.lab.tuning.settings import planned, read
from lmab.run import rehearse, resolve
from lmab.store import Store
from lmab.types import BadInput

if TYPE_CHECKING:
    from omegaconf import DictConfig


def sweep_study(hydra: Hydra, given: dict[str, Any], arguments: list[str]) -> Found:
    """Search until the study has its trials. Returns what was found; leaves with status 1 where nothing was."""
    settings = read(given)
    parser = OverridesParser.create(config_loader=hydra.hydra_context.config_loader)
    asked = [line for line in arguments if line.lstrip("+").split("=")[0] != "sweeps"]
    where, shared = space.read(parser, settings.params, asked, empty=settings.custom_search_space is not None)
    base = [*_base(hydra), *shared]
    corners = [compose(hydra, [*base, *where.corner(last=last)]) for last in (False, True)]
    plan = planned(settings, where, base, corners)
    _rehearsed(corners[0])
    (known,) = search(hydra, plan.name, [plan], settings.n_jobs)
    result = found(plan, known)
    paths = write(Store(plan.store).root / "reports", result, [*_line(hydra), *arguments])
    say(result, paths)
    failed = sum(t.state == TrialState.FAIL for t in result.trials) / max(1, len(result.trials))
    if not over(known, plan):
        print("lmab: Its workers died before all was done: the same line goes on.", file=sys.stderr)
        raise SystemExit(1)
    if not result.best:
        print("lmab: No trial has a value.", file=sys.stderr)
        raise SystemExit(1)
    if settings.max_failure_rate is not None and failed > settings.max_failure_rate:
        print(
            f"lmab: {failed:.0%} of the trials failed, more than hydra.sweeper.max_failure_rate allows.",
            file=sys.stderr,
        )
        raise SystemExit(1)
    return result


def _base(hydra: Hydra) -> list[str]:
    """What a file of sweeps/tune/ says that all its trials share."""
    given = OmegaConf.to_container(hydra.config, resolve=False)  # what a line interpolates, a trial may change
    assert isinstance(given, dict)
    return [str(line) for line in given.get("base") or []]


def _line(hydra: Hydra) -> list[str]:
    """What was asked of the sweeper itself, so that a report can say the whole line."""
    return [line for line in hydra.asked if not line.startswith("hydra.mode")]


def _rehearsed(corner: DictConfig) -> None:
    """Build one point without training it."""
    with contextlib.suppress(BadInput):  # said already, and no reason to refuse all
        rehearse(resolve(corner)[0])
