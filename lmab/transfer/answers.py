"""What a teacher answered to every row of a part, as arrays on disk.

R  rows of the part   B  rows of a batch   N  targets   C  answers   S  places of a state   D  its width

    <folder>/kept.json                 objective -> its columns; the number of depths, and those that were kept
    <folder>/<objective>/rows.npy      [R + 1] where the targets of a row begin, and where the last ones end
    <folder>/<objective>/<column>.npy  [N] losses, hits, and said if it says it; [N, C] scores if they were asked
    <folder>/layers/<depth>.npy        [R, S, D]
"""

from __future__ import annotations

import json
import math
import shutil
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import torch

from lmab.types import BadInput, Encoded, Outcome, Seen

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from torch import Tensor

    from lmab.data.collate import Collate
    from lmab.data.rows import Rows
    from lmab.train.learner import Learner
    from lmab.types import Ask, Batch

    class Asked(Protocol):
        """A teacher that answers in person."""

        learner: Learner

        def see(self, batch: Batch, ask: Ask) -> Seen: ...


_COLUMNS = ("losses", "hits", "said", "scores")  # of an outcome


class Answers:
    """The arrays of a folder, mapped, so that a batch reads its own rows alone. OSError, ValueError, EOFError: one of
    them is not there, or not whole."""

    def __init__(self, folder: Path) -> None:
        kept = json.loads((folder / "kept.json").read_text())
        self.rows = {name: _mapped(folder / name / "rows.npy") for name in kept["objectives"]}
        self.columns = {
            name: {column: _mapped(folder / name / f"{column}.npy") for column in columns}
            for name, columns in kept["objectives"].items()
        }
        self.states = {depth: _mapped(folder / "layers" / f"{depth}.npy") for depth in kept["layers"]}
        self.depths = kept["depths"]

    def seen(self, batch: Batch, names: Iterable[str], *, layers: bool) -> Seen:
        """What the teacher made of these rows. names: of objectives. layers: with the states, where a depth that was
        not kept is empty; places after the end of a row hold anything."""
        assert batch.number is not None
        number, device = batch.number.cpu().numpy(), batch.tokens.device
        width = batch.tokens.shape[1]
        states = tuple(
            torch.from_numpy(np.asarray(self.states[depth][number, :width])) if depth in self.states else torch.empty(0)
            for depth in (range(self.depths) if layers else ())
        )
        states = tuple(state.to(device) for state in states)
        hidden = states[-1] if states else torch.empty(0, device=device)
        return Seen(Encoded(hidden, layers=states), {name: self._outcome(name, number, batch) for name in names})

    def _outcome(self, name: str, number: np.ndarray, batch: Batch) -> Outcome:
        """What an objective said at the targets of rows `number` [B]."""
        starts = self.rows[name][number]
        counts = self.rows[name][number + 1] - starts
        index = np.repeat(starts - (counts.cumsum() - counts), counts) + np.arange(counts.sum())  # [N]
        places = batch.targets[name].places
        if len(index) != len(places):
            raise RuntimeError(f"{name} asks {len(places)} places of these rows, and {len(index)} were answered.")
        found = {
            column: torch.from_numpy(np.asarray(array[index])).to(places.device)
            for column, array in self.columns[name].items()
        }
        return Outcome(places=places, **found)


class Piece(NamedTuple):
    """What a batch gives to an array: `values` from row `first` of it on. shape: of the whole array."""

    file: str
    first: int
    values: np.ndarray
    shape: tuple[int, ...]


def answer(
    folder: Path,
    live: Asked,
    rows: Rows,
    collate: Collate,
    ask: Ask,
    *,
    depths: Sequence[int] | None,
    batch: int,
    device: torch.device,
) -> None:
    """Let the teacher answer what is asked of all rows, in their order, `batch` at once, and keep it in `folder`.

    depths: whose states are kept where layers are asked for, -1 for the last; None for all. BadInput: a depth that the
    teacher lacks, or more than there is room for.
    """
    names = [name for name in collate.noises if name in (ask.outcomes | ask.scores) & {*live.learner.objectives}]
    ends = _ends(rows, collate, names, batch)
    for name in names:
        (folder / name).mkdir()
        np.save(folder / name / "rows.npy", ends[name])
    arrays: dict[str, np.memmap] = {}
    last = None
    for start, part in _batches(rows, collate, batch):
        last = live.see(part.to(device), ask)
        pieces = [piece for name in names for piece in _of_targets(name, last.outcomes[name], ends[name], start)]
        states, width = last.encoded.layers, part.tokens.shape[1]
        pieces += [_of_layer(depth, states[depth], rows, start, width) for depth in _chosen(depths, len(states))]
        if not arrays:
            arrays = _made(folder, pieces)
        for piece in pieces:
            window = slice(piece.first, piece.first + len(piece.values)), *map(slice, piece.values.shape[1:])
            arrays[piece.file][window] = piece.values
    for array in arrays.values():
        array.flush()
    assert last is not None
    kept = {
        "objectives": {
            name: [column for column in _COLUMNS if getattr(last.outcomes[name], column) is not None] for name in names
        },
        "depths": len(last.encoded.layers),
        "layers": _chosen(depths, len(last.encoded.layers)),
    }
    (folder / "kept.json").write_text(json.dumps(kept))


def _batches(rows: Rows, collate: Collate, batch: int) -> Iterator[tuple[int, Batch]]:
    """The number of its first row, and the batch."""
    for start in range(0, len(rows), batch):
        index = np.arange(start, min(start + batch, len(rows)))
        yield start, collate(rows.take(index, np.zeros_like(index)))


def _ends(rows: Rows, collate: Collate, names: Sequence[str], batch: int) -> dict[str, np.ndarray]:
    """Objective -> [R + 1]. The noise alone says how many targets a row has, so that no array need grow."""
    counts = {name: np.zeros(len(rows) + 1, dtype=np.int64) for name in names}
    for start, part in _batches(rows, collate, batch):
        for name in names:
            row = part.targets[name].places.numpy() // part.tokens.shape[1]
            counts[name][start + 1 : start + 1 + part.examples] = np.bincount(row, minlength=part.examples)
    return {name: count.cumsum() for name, count in counts.items()}


def _of_targets(name: str, outcome: Outcome, ends: np.ndarray, start: int) -> Iterator[Piece]:
    for column in _COLUMNS:
        if (values := getattr(outcome, column)) is not None:
            plain = _plain(values)
            yield Piece(f"{name}/{column}.npy", int(ends[start]), plain, (int(ends[-1]), *plain.shape[1:]))


def _of_layer(depth: int, state: Tensor, rows: Rows, start: int, width: int) -> Piece:
    # Rows on disk have one width and a batch that of its longest row; a state of rows as a whole has its own.
    places = rows.width if state.shape[1] == width else state.shape[1]
    return Piece(f"layers/{depth}.npy", start, _plain(state), (len(rows), places, state.shape[2]))


def _chosen(depths: Sequence[int] | None, there: int) -> list[int]:
    """The depths that are kept, of those that there are, counted from 0. BadInput: one that there is not."""
    if depths is None or not there:
        return [*range(there)]
    for depth in depths:
        if not -there <= depth < there:
            raise BadInput(f"The teacher has the depths 0, its embedding, to {there - 1}, and {depth} is none of them.")
    return sorted({depth % there for depth in depths})


def _made(folder: Path, pieces: Sequence[Piece]) -> dict[str, np.memmap]:
    """The arrays to which these pieces belong, on disk. BadInput: there is no room for them."""
    wanted = sum(math.prod(piece.shape) * piece.values.itemsize for piece in pieces)
    free = shutil.disk_usage(folder).free
    if wanted > free:
        raise BadInput(
            f"What the teacher answers to all rows would take {wanted / 1e9:.1f} GB in {folder.parent}, where "
            f"{free / 1e9:.1f} GB are free: let it answer in every step instead."
        )
    (folder / "layers").mkdir()
    return {
        piece.file: np.lib.format.open_memmap(
            folder / piece.file, mode="w+", dtype=piece.values.dtype, shape=piece.shape
        )
        for piece in pieces
    }


def _plain(values: Tensor) -> np.ndarray:
    """As an array, in float32 at least."""
    if values.is_floating_point() and values.dtype != torch.float64:
        values = values.float()
    return values.cpu().numpy()


def _mapped(path: Path) -> np.ndarray:
    return np.load(path, mmap_mode="r")
