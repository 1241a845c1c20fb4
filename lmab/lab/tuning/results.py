"""What a search found: its trials, the best of them, and a report that anyone can open and rerun."""

from __future__ import annotations

import shlex
import statistics
from typing import TYPE_CHECKING, Any, NamedTuple

from omegaconf import OmegaConf
from rich.text import Text

from lmab.lab import tables
from lmab.lab.page import Page, Section, console, folder
from lmab.lab.tables import Table
from lmab.lab.tuning import figures, study
from lmab.lab.tuning.board import cells, figure, head, state
from lmab.starting import composed
from lmab.store import Store, write_whole

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from optuna.trial import FrozenTrial

    from lmab.lab.tuning.found import Found
    from lmab.lab.tuning.plan import Plan

# What Hydra needs to know of a configuration that is whole: nothing of its own is written.
_HYDRA = [{"override hydra/job_logging": "none"}, {"override hydra/hydra_logging": "none"}, "_self_"]
_PLACE = {"output_subdir": None, "run": {"dir": "."}, "sweep": {"dir": ".", "subdir": "."}}


class Paths(NamedTuple):
    """What a report wrote. best: one file for each best trial."""

    html: Path
    csv: Path
    best: list[Path]


def write(root: Path, result: Found, line: list[str]) -> Paths:
    """Write the report of a study to a folder of its own below `root`. line: what was asked on the command line."""
    plan = result.plan
    place = root / folder([plan.name], [str(plan.question)])
    kept = [place / f"{_name(result, trial)}.yaml" for trial in result.best]
    for path, trial in zip(kept, result.best, strict=True):
        write_whole(path, again(plan, trial))
    paths = Paths(place / "report.html", place / "trials.csv", kept)
    sentence = said(result)
    page = Page(
        title=plan.name,
        words=f"A search over {', '.join(result.names)} for {_aim(plan)}.",
        answer="",
        sentence=sentence,
        sections=_sections(result, kept, f"python run.py -m {shlex.join(line)}"),
    )
    write_whole(paths.html, page.html())
    write_whole(paths.csv, tables.as_csv(_rows(result)))
    return paths


def _name(result: Found, trial: FrozenTrial) -> str:
    return "best" if result.plan.one else f"front-{trial.number}"


def _aim(plan: Plan) -> str:
    words = {"minimize": "the lowest", "maximize": "the highest"}
    return " and ".join(f"{words[d]} {metric}" for metric, d in zip(plan.metrics, plan.directions, strict=True))


def said(result: Found) -> str:
    """What was found, in a sentence."""
    plan, count = result.plan, len(result.trials)
    if not result.best:
        return f"None of {count} trials has a value that keeps to the limits."
    if not plan.one:
        return f"{len(result.best)} of {count} trials are surpassed by no other in all of {', '.join(plan.metrics)}."
    (best,) = result.best
    value, lines = figure(plan.metrics[0], best.values[0]), " ".join(plan.space.lines(best.params))
    return f"The best of {count} trials is {best.number}, {tables.unit(plan.metrics[0])[0]} {value}: {lines}."


def again(plan: Plan, trial: FrozenTrial) -> str:
    """A configuration that reruns a trial's first run: `python run.py --config-dir FOLDER --config-name NAME`."""
    lines = [*plan.base, *plan.space.lines(trial.params), *(f"seed={seed}" for seed in plan.seeds[:1])]
    values = OmegaConf.to_container(composed(lines), resolve=True)
    assert isinstance(values, dict)
    return OmegaConf.to_yaml(OmegaConf.create({"defaults": _HYDRA, **values, "hydra": _PLACE}))


def _sections(result: Found, kept: list[Path], command: str) -> list[Section]:
    plan = result.plan
    metric = plan.metrics[0]
    several = [] if plan.one else [figures.front(result)]
    shares = Table("Importance", ["parameter", "share"], [[k, f"{v:.0%}"] for k, v in result.importance.items()])
    shares_note = [f"Of what makes {metric} vary among the better trials (PED-ANOVA)."] if shares else []
    rerun = [f"python run.py --config-dir {path.parent} --config-name {path.stem}" for path in kept]
    return [
        Section("What was found", tables=[_table(result, result.best)], figures=several),
        Section("History", figures=[figures.history(result, i) for i in range(len(plan.metrics))]),
        Section("Curves", figures=[figures.curves(result)] if plan.one else []),
        Section("Importance", text=shares_note, tables=[shares]),
        Section("Slices", figures=[figures.slices(result, name) for name in result.names] if result.complete else []),
        Section("What it cost", tables=[cost(result)]),
        Section("All trials", tables=[_table(result, result.trials)]),
        Section(
            "Again",
            text=["The whole search, which goes on where it stopped, and its best trials:"],
            command="\n".join([command, *rerun]),
        ),
    ]


def _table(result: Found, trials: list[FrozenTrial]) -> Table:
    plan = result.plan
    titles = [*head(plan, result.names), "runs", "note"]
    rows = []
    for t in trials:
        runs, why = t.user_attrs.get(study.RUNS, []), t.user_attrs.get(study.WHY, "")
        rows.append([*cells(t, plan, result.names), " ".join(runs), str(why)])
    if not any(row[-1] for row in rows):
        titles, rows = titles[:-1], [row[:-1] for row in rows]
    return Table("Trials", titles, rows)


def cost(result: Found) -> Table:
    """What the trials took: of each state how many, and the seconds of their runs."""
    store = Store(result.plan.store)
    rows = []
    for name in ("done", "pruned", "over a limit", "failed"):
        those = [t for t in result.trials if state(t) == name]
        if those:
            spent = [_seconds(store, t) for t in those]
            rows.append([name, str(len(those)), tables.number(sum(spent)), tables.number(statistics.fmean(spent))])
    return Table("Cost", ["trials", "count", "seconds of training", "a trial"], rows)


def seconds(result: Found) -> float:
    """Of training, in all its trials."""
    store = Store(result.plan.store)
    return sum(_seconds(store, trial) for trial in result.trials)


def _seconds(store: Store, trial: FrozenTrial) -> float:
    records = (store.find(name) for name in trial.user_attrs.get(study.RUNS, []))
    return sum(record.cost.get("seconds", 0.0) for record in records if record is not None)


def _rows(result: Found) -> Iterator[dict[str, Any]]:
    for t in result.trials:
        yield {
            "trial": t.number,
            **t.params,
            "state": state(t),
            **dict(zip(result.plan.metrics, t.values or [], strict=False)),
            "runs": " ".join(t.user_attrs.get(study.RUNS, [])),
            "note": t.user_attrs.get(study.WHY, ""),
        }


def say(result: Found, paths: Paths) -> None:
    """Print the best trials, what was found, and where the report is."""
    out = console()
    out.print(_table(result, result.best or result.trials).rich())
    out.print(Text(said(result), style="bold"))
    for path in paths.best:
        out.print(Text(f"python run.py --config-dir {path.parent} --config-name {path.stem}"), soft_wrap=True)
    out.print(Text(str(paths.html)), soft_wrap=True)
