"""The live view of a sweep: arms x seeds with state, step, loss, and the time that is left.

It reads records, which are whole at every moment, so it works with any launcher on any machine that shares the
store. Without a terminal it prints a line whenever a run ends.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Protocol

    from lmab.lab.conclusion import Cell
    from lmab.store import Record, Store

    class Shown(Protocol):
        """What is looked at while many runs go on."""

        def table(self) -> Table: ...

        def news(self) -> Iterator[str]: ...


_MARK = {"done": "[green]done[/]", "failed": "[red]failed[/]", "diverged": "[magenta]diverged[/]"}


def _loss(record: Record) -> str:
    points = [p[-1] for name, p in sorted(record.curves.items()) if name.endswith("_loss") and p]
    return f"{max(points)[1]:.3f}" if points else ""


class Board:
    """What is shown of the cells of a sweep."""

    def __init__(self, title: str, cells: list[Cell], store: Store) -> None:
        self.title, self.cells, self.store = title, cells, store
        self.began = time.monotonic()
        self.steps = sum(r.step for r in map(self._record, cells) if r is not None)  # done before this sweep
        self._said: set[str] = {c.signature for c in cells if (r := self._record(c)) and r.state in _MARK}

    def _record(self, cell: Cell) -> Record | None:
        return self.store.find(cell.signature)

    def _left(self, pairs: list[tuple[Cell, Record | None]]) -> str:
        """Time left at the pace of this sweep so far."""
        done = sum(r.step for _, r in pairs if r is not None) - self.steps
        ahead = sum(
            cell.config["trainer"]["steps"] - (r.step if r is not None else 0)
            for cell, r in pairs
            if r is None or r.state not in _MARK
        )
        if done <= 0 or ahead <= 0:
            return ""
        seconds = int(ahead / done * (time.monotonic() - self.began))
        return f"{seconds // 60}:{seconds % 60:02d} left"

    def table(self) -> Table:
        """arms x seeds as a table of runs."""
        pairs = [(cell, self._record(cell)) for cell in self.cells]
        table = Table(title=f"{self.title}   {self._left(pairs)}", title_justify="left")
        for column in ("arm", "seed", "run", "state", "step", "loss"):
            table.add_column(column, justify="right" if column in ("seed", "step", "loss") else "left")
        for cell, record in pairs:
            row = [cell.arm, str(cell.seed), cell.signature]
            if record is None:
                row += ["[dim]waiting[/]", "", ""]
            else:
                row += [_MARK.get(record.state, record.state), f"{record.step}/{record.steps}", _loss(record)]
            table.add_row(*row)
        return table

    def news(self) -> Iterator[str]:
        """A line for every run that ended since this was last asked."""
        for cell in self.cells:
            record = self._record(cell)
            if record is not None and record.state == "running":
                self._said.discard(cell.signature)  # a failed run is tried again
            if record is not None and record.state in _MARK and cell.signature not in self._said:
                self._said.add(cell.signature)
                yield (
                    f"{cell.arm} seed {cell.seed}: {record.state} {_loss(record)} "
                    f"({len(self._said)} of {len(self.cells)} runs)"
                )


@contextlib.contextmanager
def shown(board: Shown) -> Iterator[None]:
    """Show a sweep while the body runs."""
    console = Console(stderr=True)
    over = threading.Event()
    live = Live(console=console, auto_refresh=False) if console.is_terminal else None

    def watch() -> None:
        while not over.wait(1.0):
            if live is None:
                for line in board.news():
                    console.print(line, highlight=False)
            else:
                live.update(board.table(), refresh=True)

    watcher = threading.Thread(target=watch, daemon=True)
    with live or contextlib.nullcontext():
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()
            if live is not None:
                live.update(board.table(), refresh=True)
            else:
                for line in board.news():
                    console.print(line, highlight=False)
