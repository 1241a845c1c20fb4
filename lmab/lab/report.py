"""The report of a claim: a page, a table and the verdict as data, written beside the runs, and what is said.

Nothing in it comes from the clock or from the machine that writes it, only from records: the same line again
gives the same bytes.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.text import Text

from lmab.lab import findings, plots, students, tables
from lmab.lab.page import Page, Section, console, folder
from lmab.lab.plots import Row
from lmab.lab.tables import Table
from lmab.lab.tuning import tuned
from lmab.store import write_whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from lmab.lab.conclusion import Cell, Conclusion
    from lmab.lab.exact import Computed
    from lmab.lab.tuning.tuned import Tuned
    from lmab.store import Record

    Departures = Mapping[str, Sequence[Any]]  # key -> (in the paper, here)


class Paths(NamedTuple):
    """What a report wrote."""

    html: Path
    markdown: Path
    csv: Path
    verdict: Path


def write(
    root: Path,
    conclusion: Conclusion,
    cells: list[Cell],
    overrides: list[str],
    departures: Departures | None = None,
    found: Mapping[str, Tuned] | None = None,
) -> Paths:
    """Write the report of a claim to a folder of its own below `root`.

    cells: all that were planned, also those without a score. overrides: what was asked on the command line.
    departures: key -> (in the paper, at this budget). found: how its arms were tuned. OSError: the folder cannot be
    written.
    """
    command = f"python run.py -m {shlex.join(overrides)}"
    paths = keep(
        root,
        conclusion,
        [c.signature for c in cells],
        _sections(conclusion, cells, command, departures or {}, found or {}),
        findings.results(conclusion),
        findings.rows(conclusion),
        _data(conclusion, command) | ({"tuned": tuned.told(found)} if found else {}),
    )
    for name, figure in _figures(conclusion).items():
        write_whole(paths.html.parent / f"{name}.svg", figure.alone())
    return paths


def keep(
    root: Path,
    answered: Conclusion | Computed,
    signatures: list[str],
    sections: list[Section],
    results: list[Table],
    rows: Iterable[Mapping[str, Any]],
    data: Mapping[str, Any],
) -> Paths:
    """Write what was answered to a folder of its own below `root`.

    signatures: what it rests on. sections: of the page. results: for the table. rows: of the CSV. data: the verdict.
    """
    claim = answered.claim
    # The name covers what is asked as well as what is run: another margin is another report.
    asked = json.dumps(claim.as_dict(), sort_keys=True)
    place = root / folder([claim.name, answered.budget], [asked, *signatures])
    paths = Paths(*(place / file for file in ("report.html", "table.md", "table.csv", "verdict.json")))
    page = Page(
        title=f"{claim.name} at budget {answered.budget}",
        words=claim.claim,
        source=f"{claim.source.paper}, {claim.source.where}",
        arxiv=claim.source.arxiv if re.fullmatch(r"[\w.-]+(/\d+)?", claim.source.arxiv) else "",
        answer=answered.answer,
        sentence=answered.sentence,
        sections=sections,
    )
    head = f"# {page.title}\n\n{claim.claim} ({page.source})\n\n**{answered.sentence}**\n"
    write_whole(paths.html, page.html())
    write_whole(paths.markdown, "\n".join([head, *(t.markdown() for t in results)]))
    write_whole(paths.csv, tables.as_csv(rows))
    write_whole(paths.verdict, json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    return paths


def say(conclusion: Conclusion, paths: Paths) -> None:
    """Print the arms, the verdict, what has no score, and where the report is."""
    out = console()
    out.print(findings.arms(conclusion).rich())
    out.print(Text(conclusion.sentence, style="bold"))
    for cell, why in conclusion.missing:
        out.print(Text(f"{cell.arm} seed {cell.seed}, {cell.signature}: {findings.why(why)}", style="red"))
    out.print(Text(str(paths.html)), soft_wrap=True)


def say_runs(records: list[Record], by: list[str], store: str = "runs") -> None:
    """Print a table of runs, and of means where there are several seeds. by: what was varied, a key of the
    configuration, a group of keys, or a choice that is no key, such as experiment."""
    out = console()
    metrics = list(dict.fromkeys(m for r in records for m in r.metrics if m.startswith("test/")))[:3]
    for table in tables.runs(records, by, metrics):
        out.print(table.rich())
    for record in records:
        if record.message:
            out.print(Text(f"{record.signature} {record.state}: {record.message}", style="red"))
    if by and records:
        where = "" if store == "runs" else f" --store {shlex.quote(store)}"
        known = dict.fromkeys(k if any(r.value(k) is not None for r in records) else "sweep.arm" for k in by)
        out.print(Text(f"python -m lmab{where} compare {' '.join(f'--by {key}' for key in known)}"), soft_wrap=True)


def _data(conclusion: Conclusion, command: str) -> dict[str, Any]:
    """verdict.json."""
    return {
        "answer": conclusion.answer,
        "sentence": conclusion.sentence,
        "budget": conclusion.budget,
        "changes": list(conclusion.changes),
        "command": command,
        "claim": conclusion.claim.as_dict(),
        "verdict": conclusion.verdict.as_dict() if conclusion.verdict else None,
        "scores": {
            arm: {str(seed): value if math.isfinite(value) else None for seed, value in scores.items()}
            for arm, scores in findings.scores(conclusion).items()
        },
        "runs": {
            arm: {str(seed): record.signature for seed, record in sorted(runs.items())}
            for arm, runs in conclusion.arms.items()
        },
        "missing": [
            {"arm": c.arm, "seed": c.seed, "signature": c.signature, "why": findings.why(why)}
            for c, why in conclusion.missing
        ],
    }


def _sections(
    conclusion: Conclusion, cells: list[Cell], command: str, departures: Departures, found: Mapping[str, Tuned]
) -> list[Section]:
    claim, groups = conclusion.claim, conclusion.arms
    records = [record for runs in groups.values() for record in runs.values()]
    metric = claim.measure.metric
    first = {cell.arm: cell.config for cell in reversed(cells)}
    configs = {arm: first[arm] for arm in claim.arms if arm in first}
    scores = findings.scores(conclusion)
    ours = {arm: tables.score(tables.mean(values)) for arm, values in scores.items()}
    figures = _figures(conclusion)
    note = "Shown for comparison of direction only: other data, other sizes. No rule uses these figures."
    paper = tables.reported(claim.reported, ours, metric, note)
    return [
        Section(
            "What was found",
            tables=findings.results(conclusion),
            figures=[figures[name] for name in ("seeds", "differences") if name in figures],
        ),
        tuned.section(found),
        Section("Learning curves", figures=[figures[name] for name in ("held-out", "training") if name in figures]),
        Section("Students beside their teachers", tables=students.beside(groups)),
        Section("The paper's figures", tables=[paper] if paper else []),
        Section("Cost", tables=[tables.cost(groups)] if records else []),
        Section("What the noise really did", tables=tables.noise(groups)),
        Section("Data", tables=[tables.data(groups)] if records else []),
        Section("Where the arms differ", tables=[tables.configuration(configs)]),
        departed(departures),
        reproduced([(r.code, r.versions) for r in records], command),
        Section("Runs", tables=[findings.runs(conclusion, cells)]),
    ]


def _figures(conclusion: Conclusion) -> dict[str, plots.Figure]:
    """Name of a file -> figure, for those that have something to show."""
    measure, groups = conclusion.claim.measure, conclusion.arms
    if not any(groups.values()):
        return {}
    intervals = conclusion.verdict.arms if conclusion.verdict else {}
    arms = [Row(arm, list(v.values()), intervals.get(arm)) for arm, v in findings.scores(conclusion).items()]
    axis = f"{measure.metric} ({measure.unit}), {measure.better} is better"
    held_out, training = plots.learning(groups, measure.metric)
    figures = {
        "seeds": plots.rows(f"{measure.metric} of every seed", arms, axis),
        "differences": _differences(conclusion),
        "held-out": held_out,
        "training": training,
    }
    return {name: figure for name, figure in figures.items() if figure is not None}


def _differences(conclusion: Conclusion) -> plots.Figure | None:
    """Gains seed by seed, against zero and the margins of the rules."""
    measure, scores = conclusion.claim.measure, findings.scores(conclusion)
    sign = -1 if measure.better == "lower" else 1
    drawn = []
    for j in findings.judged(conclusion):
        statement = j.statement
        seeds = [seed for seed in scores[statement.about] if all(seed in scores[arm] for arm in statement.contrast)]
        values = [sign * sum(w * scores[arm][seed] for arm, w in statement.contrast.items()) for seed in seeds]
        margins = [side.bound for side in statement.support if side.bound]
        drawn.append(Row(statement.label, values, j.gain, margins, list(scores).index(statement.about)))
    if not any(row.values for row in drawn):
        return None
    pairs = all(j.statement.pair for j in findings.judged(conclusion))
    axis = f"gain ({measure.unit}); to the right the first is {'better' if pairs else 'more'}"
    return plots.rows("Paired differences, seed by seed", drawn, axis, zero=True)


def departed(departures: Departures) -> Section:
    """In which knobs this is not what the paper did."""
    rows = [[key, *map(tables.said, pair)] for key, pair in departures.items()]
    table = Table("Departures from the paper", ["key", "in the paper", "here"], rows)
    return Section("Where this budget departs from the paper", tables=[table])


def reproduced(made: Sequence[tuple[Mapping[str, Any], Mapping[str, str]]], command: str) -> Section:
    """How to do it again: the line, the code, the versions that the runs recorded. made: code and versions of each."""
    revisions = dict.fromkeys(str(code.get("revision", "unknown")) for code, _ in made)
    dirty = sum(bool(code.get("dirty")) for code, _ in made)
    warning = ""
    if dirty:
        where = f" in {dirty} of {len(made)} runs" if len(made) > 1 else ""
        warning = f"The working tree had uncommitted changes{where}: the revision alone does not give the code back."
    names = dict.fromkeys(key for _, versions in made for key in versions)
    rows = [[key, tables.said(tables.together(versions.get(key) for _, versions in made))] for key in names]
    rows += [["git revision", ", ".join(revisions)]] if made else []
    table = Table("Versions", ["part", "version"], rows)
    return Section("How to reproduce it", warning=warning, command=command, tables=[table])
