"""Who is told of a run while it goes on. The record is the truth; a tracker is a copy for other eyes.

A tracker is opened with all curve points so far, so that a resumed run is one continuous curve everywhere.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from lmab.store import write_whole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lmab.store import Record


class Tracker(Protocol):
    """open and close once a process; close also when the run fails."""

    def open(self, record: Record, folder: Path) -> None: ...

    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self, record: Record) -> None: ...


class NoTracker:
    """Tells nobody."""

    def open(self, record: Record, folder: Path) -> None:
        pass

    def log(self, step: int, values: Mapping[str, float]) -> None:
        pass

    def close(self, record: Record) -> None:
        pass


class CSVTracker:
    """metrics.csv in the run's folder: step, metric, value, one point a line."""

    def __init__(self) -> None:
        self._path = Path()

    def open(self, record: Record, folder: Path) -> None:
        self._path = folder / "metrics.csv"
        # Written anew: a killed process may have left points behind the checkpoint that the run resumes from.
        text = io.StringIO(newline="")
        writer = csv.writer(text)
        writer.writerow(["step", "metric", "value"])
        for step, values in by_step(record):
            writer.writerows([step, name, value] for name, value in values.items())
        write_whole(self._path, text.getvalue())

    def log(self, step: int, values: Mapping[str, float]) -> None:
        with self._path.open("a", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([step, name, value] for name, value in values.items())

    def close(self, record: Record) -> None:
        pass


def by_step(record: Record) -> list[tuple[int, dict[str, float]]]:
    """The record's curves turned about: (step, metric -> value), in the order of the steps."""
    steps: dict[int, dict[str, float]] = {}
    for name, points in record.curves.items():
        for step, value in points:
            steps.setdefault(step, {})[name] = value
    return sorted(steps.items())
