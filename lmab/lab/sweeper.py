"""Many runs: plan, reconcile with the store, execute what is missing, conclude.

A sweeper never trains. It composes every cell, finds what is done, gives the rest to whichever Hydra launcher was
chosen, and reads the answers from the store, since a record outlives the process that made it.
"""

from __future__ import annotations

import logging
import re
import sys
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from lmab import checks, facts
from lmab.cost import sizes
from lmab.data import cache
from lmab.lab import claim as claims
from lmab.lab import display, exact, guard, report, sheet
from lmab.lab.conclusion import Cell, conclude
from lmab.lab.jobs import ROUNDS, Hydra, compose, launcher, plain, quoted
from lmab.lab.tuning.tuned import tuned
from lmab.run import begun, rehearse, resolve
from lmab.store import FINAL, OUTSIDE, Record, Store
from lmab.types import BadInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lmab.lab.exact import Computed
    from lmab.lab.tuning.tuned import Tuned

log = logging.getLogger(__name__)

LOOK = "seeds=look"  # each arm at one seed, to see its curves before hours are spent; decides nothing


def sweep_claim(hydra: Hydra, arguments: list[str]) -> Any:
    """Run a claim file to its verdict. Returns the conclusion; exits with status 1 if a run failed."""
    chosen = hydra.config.hydra.runtime.choices["sweeps"]
    given = OmegaConf.to_container(hydra.config, resolve=False)
    assert isinstance(given, dict)
    for key in given:
        if key not in (*checks.PARTS, *checks.CLAIM, "hydra"):
            raise BadInput(
                f"sweeps/{chosen}.yaml: {key} is no part of a claim: {checks.nearest(str(key), [*checks.CLAIM])}"
            )
    look = LOOK in arguments
    claim = claims.load(str(chosen), {str(k): v for k, v in given.items() if k in checks.CLAIM}, look=look)
    shared = _shared(hydra, claim, arguments)
    changes = [
        line for line in (*_asked(arguments), *shared) if line == LOOK or not line.lstrip("+").startswith(_HARMLESS)
    ]
    asked = [f"sweeps={claim.name}", *_asked(arguments), *shared]
    if claim.exact:
        return _compute(hydra, claim, shared, changes, asked)
    found = tuned(hydra, claim, shared)
    cells = _cells(hydra, claim, shared, found)
    store = Store(cells[0].config["store"])
    departures = _departures(hydra, claim, shared, cells[0].config)
    execute(hydra, claim.name, cells, store)
    records = _records(store, cells)
    conclusion = conclude(claim, cells, records, changes)
    paths = report.write(store.root / "reports", conclusion, cells, asked, departures, found)
    report.say(conclusion, paths)
    _fail(cells, records)
    return conclusion


def _compute(hydra: Hydra, claim: claims.Claim, shared: list[str], changes: list[str], asked: list[str]) -> Computed:
    """Answer an exact claim: the arms are composed and counted, and nothing is run."""
    configs: dict[str, dict[str, Any]] = {}
    for arm, lines in claim.arms.items():
        cfg = compose(hydra, [*claim.base, *shared, *lines])
        configs[arm] = checks.checked(plain(cfg))
    claims.refuse_twins(claim, configs)
    first = next(iter(configs.values()))
    computed = exact.compute(
        claim,
        str(first["budget"]["name"]),
        {arm: sizes(config) for arm, config in configs.items()},
        changes,
        code=facts.code(),
        versions=facts.versions(),
    )
    root = Store(first["store"]).root / "reports"
    paths = sheet.write(root, computed, configs, asked, _departures(hydra, claim, shared, first))
    sheet.say(computed, paths)
    return computed


def _shared(hydra: Hydra, claim: claims.Claim, arguments: list[str]) -> list[str]:
    """The user's own overrides, which hold for every arm; those of the claim itself are left out."""
    parser = OverridesParser.create(config_loader=hydra.hydra_context.config_loader)
    owned = {
        o.get_key_element().lstrip("+~").split("=")[0]: arm
        for arm, lines in claim.arms.items()
        for o in parser.parse_overrides(lines)
    }
    shared = []
    for override in parser.parse_overrides(arguments):
        key = override.get_key_element().lstrip("+~")
        if key.split(".")[0] in (*checks.CLAIM, "sweeps"):
            continue
        if key == "budget" and (fixed := [line for line in claim.base if line.startswith("budget=")]):
            raise BadInput(
                f"{override.input_line} does not go with {claim.name}, which holds at {fixed[-1]}: leave it out."
            )
        if override.is_sweep_override() or key == "seed":
            raise BadInput(
                f"{override.input_line} does not go with a claim, which sets its arms and seeds itself: "
                f"give seeds=N for more seeds, or leave sweeps= out for a plain multirun."
            )
        if key in owned:
            raise BadInput(
                f"{override.input_line} is what the arm {owned[key]} of {claim.name} is about: leave it out, or "
                f"write a claim of your own."
            )
        shared.append(override.input_line or "")
    return shared


def _asked(arguments: list[str]) -> list[str]:
    """What the user changed of the claim itself, as in seeds=9."""
    return [line for line in arguments if re.split(r"[.=]", line.lstrip("+~"))[0] in checks.CLAIM]


# Overrides under which a claim is still the same experiment: a matter of place, display, or more seeds.
_HARMLESS = ("budget=", "store=", "name=", "display=", "tracker", "seeds=", "hydra", "trainer.workers=")


# What a budget sets for the machine's sake; it is no part of the paper's recipe.
_LOGISTICS = ("trainer.val_every", "trainer.log_every", "trainer.checkpoint_every", "trainer.accelerator")
_LOGISTICS += ("trainer.threads", "trainer.micro")


def _departures(hydra: Hydra, claim: claims.Claim, shared: list[str], here: dict[str, Any]) -> dict[str, list[Any]]:
    """Key -> (at the published sizes, here), for every knob of the recipe in which this sweep departs from the
    paper, in all arms alike."""
    arm = next(iter(claim.arms.values()))
    chosen = [line for line in shared if line.lstrip("+").startswith("corpus")]  # the text is the user's to choose
    cfg = compose(hydra, [*claim.base, *chosen, *arm, "budget=paper", f"seed={here['seed']}"])
    pair = [_recipe(config) for config in (begun(checks.typed(plain(cfg))), here)]
    return {
        key: values
        for key, values in guard.differences(pair).items()
        if key.replace("start.", "") not in (*_LOGISTICS, *OUTSIDE)
    }


_RECIPE = ("model", "objective", "segments", "tokenizer", "optim", "schedule", "precision", "split", "trainer")


def _recipe(config: dict[str, Any]) -> dict[str, Any]:
    """What a paper would say of a run, and below `start` of the one that it starts from."""
    start = config["start"]
    first = {} if start is None else _recipe(start["config"]) if "run" in start else start
    return {key: config[key] for key in _RECIPE} | {"start": first}


def _cells(hydra: Hydra, claim: claims.Claim, shared: list[str], found: Mapping[str, Tuned]) -> list[Cell]:
    """Every arm with every seed, resolved; arms vary fastest, so that pairs are complete early. found: what tuning
    found for each arm."""
    cells: dict[tuple[str, int], Cell] = {}
    first: dict[str, dict[str, Any]] = {}
    for arm, lines in claim.arms.items():
        label = f"sweep={quoted(name=claim.name, arm=arm)}"
        best = found[arm].lines if arm in found else []
        common = [*claim.base, *shared, *lines, *best, "display=false", label]
        cfg = compose(hydra, common)
        for seed in claim.seeds:
            cfg.seed = seed
            config, name = resolve(cfg)
            first.setdefault(arm, config)
            cells[arm, seed] = Cell(arm, seed, [*common, f"seed={seed}"], name, config)
    claims.refuse_arms(claim, first)
    for config in first.values():
        rehearse(config)
    return [cells[arm, seed] for seed in claim.seeds for arm in claim.arms]


def sweep_grid(hydra: Hydra, arguments: list[str]) -> Any:
    """Run the product of all lists of values. Returns the records."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    parser = OverridesParser.create(config_loader=hydra.hydra_context.config_loader)
    (batch,) = BasicSweeper.split_arguments(parser.parse_overrides(arguments), None)
    varied = [o.get_key_element() for o in parser.parse_overrides(arguments) if o.is_sweep_override()]
    if "sweeps" in varied:
        raise BadInput("Claims are run one after another: give one sweeps= a line.")
    if "store" in varied:
        raise BadInput("A multirun has one store: leave store= at one value.")
    cells = []
    for lines in batch:
        arm = " ".join(line for line in lines if line.split("=")[0] in varied and not line.startswith("seed="))
        label = f"sweep={quoted(name='grid', arm=arm.replace(chr(39), ''))}"
        overrides = [*lines, "display=false", label]
        config, name = resolve(compose(hydra, overrides))
        cells.append(Cell(arm or "all", config["seed"], overrides, name, config))
    store = Store(cells[0].config["store"])
    for config in {cache.key({**c.config, "seed": 0}): c.config for c in cells}.values():
        rehearse(config)
    execute(hydra, "grid", cells, store)
    records = _records(store, cells)
    report.say_runs(list(records.values()), [key for key in varied if key != "seed"], cells[0].config["store"])
    _fail(cells, records)
    return records


def execute(hydra: Hydra, title: str, cells: list[Cell], store: Store) -> None:
    """Run the cells that the store does not hold. A job that fails, or a worker that dies, stops no other."""
    chosen = None
    for attempt in range(ROUNDS):
        todo = [c for c in cells if _wanted(store, c, retry=attempt == 0)]
        if not todo:
            return
        chosen = chosen or launcher(hydra)
        with display.shown(display.Board(title, cells, store)):
            try:
                chosen.launch([c.overrides for c in todo], initial_job_idx=0)
            except Exception as error:  # the launcher's own: each job's is in its record
                log.warning("The launcher stopped (%s: %s).", type(error).__name__, error)


def _wanted(store: Store, cell: Cell, *, retry: bool) -> bool:
    """Is there something left to do? A run that failed is tried again once a sweep, not once a round."""
    record = store.find(cell.signature)
    if record is None or record.state == "running":
        return True
    return retry and record.state not in FINAL


def _records(store: Store, cells: Iterable[Cell]) -> dict[str, Record]:
    return {c.signature: r for c in cells if (r := store.find(c.signature)) is not None}


def _fail(cells: Iterable[Cell], records: dict[str, Record]) -> None:
    """Leave with status 1 if a run failed, or never came so far as to have a record."""
    ended = {name for name, record in records.items() if record.state in FINAL}
    if failed := [cell.signature for cell in cells if cell.signature not in ended]:
        print(f"lmab: {len(failed)} run(s) failed: {', '.join(failed)}.", file=sys.stderr)
        raise SystemExit(1)
