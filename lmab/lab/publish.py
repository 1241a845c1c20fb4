"""Evidence to keep: a verdict with what it rests on, small enough to be committed, and the ledger of them all.

results/<claim>/<budget>/   verdict.json table.md table.csv, the figures, and runs.json where anything was run
results/README.md           the ledger, made anew from every verdict.json below results/
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from lmab.lab import claim as claims
from lmab.store import Store, write_whole
from lmab.types import BadInput

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lmab.store import Record

_SWEEPS = Path(__file__).parents[2] / "sweeps"


def publish(store: Store, report: Path, results: Path) -> Path:
    """Copy the evidence of a report. Returns its folder below `results`.

    BadInput: a run is missing, or runs or figures were made by code that no revision gives back.
    """
    verdict = json.loads((report / "verdict.json").read_text(encoding="utf-8"))
    if "seeds=look" in verdict["changes"]:
        raise BadInput(f"{report.name} looked at one seed, which decides nothing: ask the claim without seeds=look.")
    if verdict["changes"]:
        raise BadInput(
            f"{report.name} is another experiment than sweeps/{verdict['claim']['name']}.yaml "
            f"({' '.join(verdict['changes'])}): write a claim file of its own to publish it."
        )
    if "figures" in verdict and verdict["code"].get("dirty", True):
        raise BadInput(
            f"{report.name} was computed by a tree with uncommitted changes, so nobody can compute it again: commit, "
            f"and ask the claim again."
        )
    runs = []
    for arm, by_seed in verdict["runs"].items():
        for name in by_seed.values():
            record = store.find(name)
            if record is None:
                raise BadInput(f"The run {name} of {report.name} is no longer in {store.root}: run the claim again.")
            if record.code.get("dirty", True):
                raise BadInput(
                    f"The run {name} of {report.name} was made from a tree with uncommitted changes, so nobody can "
                    f"make it again: commit, and run the claim in a store of its own."
                )
            runs.append({"arm": arm, **_small(record, verdict["claim"]["measure"]["metric"])})
    folder = results / verdict["claim"]["name"] / verdict["budget"]
    for path in sorted(report.iterdir()):
        if path.name != "report.html":  # large, and made from the rest
            write_whole(folder / path.name, path.read_text(encoding="utf-8"))
    if not runs:
        return folder
    lines = ",\n".join(json.dumps(run, ensure_ascii=False, allow_nan=False) for run in runs)
    write_whole(folder / "runs.json", f"[\n{lines}\n]\n")
    return folder


def _small(record: Record, metric: str) -> dict[str, Any]:
    """What of a record the evidence needs, with as many digits as anybody reads."""

    def short(value: float) -> float | None:
        return float(f"{value:.6g}") if math.isfinite(value) else None

    return {
        "signature": record.signature,
        "seed": record.seed,
        "state": record.state,
        "overrides": record.overrides,
        "metrics": record.metrics,
        "cost": {k: short(v) for k, v in record.cost.items()},
        "facts": record.facts,
        "versions": record.versions,
        "code": record.code,
        "curves": {k: [(s, short(v)) for s, v in points] for k, points in record.curves.items()},
        "scores": [short(v) for v in record.scores[metric]],
        "weights": [short(v) for v in record.weights[metric]],
    }


def ledger(results: Path) -> Path:
    """Write results/README.md anew. Returns its path."""
    rows = []
    for path in sorted(results.rglob("verdict.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        claim, source = found["claim"], found["claim"]["source"]
        place = path.parent.relative_to(results).as_posix()
        cells = (
            f"[{claim['name']}]({place}/table.md)",
            f"{source['paper']} (arXiv {source['arxiv']}), {source['where']}",
            found["budget"],
            found["answer"],
            found["sentence"].partition(": ")[2] + _since(claim),
        )
        rows.append("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
    text = [
        "# Ledger",
        "",
        "What was claimed, and what came of it here. Each row is made from the `verdict.json` in its folder; beside it",
        "lie the table, the figures and, in `runs.json`, every run. `python -m lmab publish` makes this page, and says",
        "where the file of a claim was rewritten since its evidence was kept.",
        "",
        "| claim | source | budget | answer | why |",
        "|---|---|---|---|---|",
        *rows,
    ]
    write_whole(results / "README.md", "\n".join(text) + "\n")
    return results / "README.md"


def _since(kept: Mapping[str, Any]) -> str:
    """A sentence on what the file of a claim says otherwise by now, "" where it stands as it was. kept: the claim as
    the evidence has it."""
    path = _SWEEPS / f"{kept['name']}.yaml"
    if not path.exists():
        return ""
    now = claims.load(kept["name"], yaml.safe_load(path.read_text(encoding="utf-8")))
    given = now.as_dict()
    changed = [part for part in ("base", "arms", "measure", "tune") if given[part] != kept.get(part)]
    if now.verdict != claims.rules(kept["verdict"]):
        changed.append("verdict")
    if not changed:
        return ""
    return f" Changed in the file since: {', '.join(changed)}; what was run stands in `verdict.json`."
