"""The report of a claim: written beside the runs, and said on the terminal."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console

from lmab.store import write_whole

if TYPE_CHECKING:
    from pathlib import Path

    from lmab.lab.conclusion import Cell, Conclusion
    from lmab.store import Record


class Paths(NamedTuple):
    """Where a report lies."""

    folder: Path

    @property
    def html(self) -> Path:
        return self.folder / "report.html"


def write(
    root: Path,
    conclusion: Conclusion,
    cells: list[Cell],
    overrides: list[str],
    departures: dict | None = None,
) -> Paths:
    names = "".join(sorted(c.signature for c in cells)).encode()
    digest = hashlib.blake2b(names, digest_size=4).hexdigest()
    paths = Paths(root / f"{conclusion.claim.name.replace('/', '-')}-{conclusion.budget}-{digest}")
    write_whole(paths.folder / "verdict.json", json.dumps({"sentence": conclusion.sentence}))
    write_whole(paths.html, f"<p>{conclusion.sentence}</p>")
    return paths


def say(conclusion: Conclusion, paths: Paths) -> None:
    console = Console(width=200)
    console.print(conclusion.sentence, markup=False)
    console.print(str(paths.html), markup=False)


def say_runs(records: list[Record], by: list[str]) -> None:
    for r in records:
        print(r.signature, r.state, *(f"{k}={r.value(k)}" for k in by))
