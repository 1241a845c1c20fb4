"""The report of an exact claim: the same page, table and verdict as any other, with figures instead of scores."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from rich.text import Text

from lmab.lab import report, tables
from lmab.lab.page import Section, console
from lmab.lab.tables import Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from lmab.lab.exact import Computed
    from lmab.lab.report import Departures, Paths


def write(
    root: Path,
    computed: Computed,
    configs: Mapping[str, Mapping[str, Any]],
    overrides: list[str],
    departures: Departures,
) -> Paths:
    """Write the report to a folder of its own below `root`. configs: arm -> its configuration. overrides: what was
    asked on the command line. departures: key -> (in the paper, at this budget)."""
    claim, command = computed.claim, f"python run.py -m {shlex.join(overrides)}"
    ours = {arm: tables.number(known[claim.measure.metric]) for arm, known in computed.figures.items()}
    paper = tables.reported(
        claim.reported, ours, claim.measure.metric, "Shown as they stand; no rule uses these figures."
    )
    sections = [
        Section("What was found", tables=_results(computed)),
        Section("The paper's figures", tables=[paper] if paper else []),
        Section("Where the arms differ", tables=[tables.configuration(configs)]),
        report.departed(departures),
        report.reproduced([(computed.code, computed.versions)], command),
    ]
    # Nothing was run that could be named; the figures are what the report rests on.
    signatures = [f"{arm} {sorted(known.items())}" for arm, known in computed.figures.items()]
    data = _data(computed, command)
    return report.keep(root, computed, signatures, sections, _results(computed), _rows(computed), data)


def say(computed: Computed, paths: Paths) -> None:
    """Print the figures, the verdict, and where the report is."""
    out = console()
    for table in _results(computed):
        out.print(table.rich())
    out.print(Text(computed.sentence, style="bold"))
    out.print(Text(str(paths.html)), soft_wrap=True)


def _results(computed: Computed) -> list[Table]:
    names = list(next(iter(computed.figures.values())))
    arms = [[arm, *(f"{known[name]:,.0f}" for name in names)] for arm, known in computed.figures.items()]
    rules = [
        [
            " over ".join(c.rule.named),
            tables.number(c.here),
            tables.number(c.rule.paper),
            f"{100 * c.away:+.1f}%",
            f"{100 * c.rule.within:g}%",
            "reproduced" if c.holds else "contradicted",
        ]
        for c in computed.checked
    ]
    metric = computed.claim.measure.metric
    note = "Computed from the configurations, without weights, text or seeds."
    return [
        Table("Arms", ["arm", *names], arms, note),
        Table(f"Rules on {metric}", [metric, "here", "paper", "away", "within", "answer"], rules),
    ]


def _rows(computed: Computed) -> Iterator[dict[str, Any]]:
    """table.csv: a line an arm, every digit kept."""
    for arm, known in computed.figures.items():
        yield {"arm": arm, **known}


def _data(computed: Computed, command: str) -> dict[str, Any]:
    """verdict.json."""
    return {
        "answer": computed.answer,
        "sentence": computed.sentence,
        "budget": computed.budget,
        "changes": list(computed.changes),
        "command": command,
        "claim": computed.claim.as_dict(),
        "verdict": computed.as_dict(),
        "figures": computed.figures,
        "runs": {},
        "missing": [],
        "code": computed.code,
        "versions": computed.versions,
    }
