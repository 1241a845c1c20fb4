"""Rows on disk as blocks of examples: mapped memory, one gather a block."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from datasets import Dataset

from lmab.data import cache
from lmab.types import Example

if TYPE_CHECKING:
    from pathlib import Path


class Rows:
    """The rows of one part. Pickled to a data worker it is a path and nothing more.

    document, length: [rows] int64. past, rest: [rows] int64, tokens of a row's stream before it and after it; None
    where rows belong to no stream. width: places in a row on disk.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        table = cache.readable(folder, lambda: Dataset.from_file(str(folder / "rows.arrow")).data.table)
        self.width = table.schema.field("tokens").type.list_size
        # One view a chunk, so that a large file is never joined into a copy of itself.
        self._tokens = [chunk.flatten().to_numpy().reshape(-1, self.width) for chunk in table["tokens"].chunks]
        self._starts = np.cumsum([0] + [len(chunk) for chunk in self._tokens])
        self.length = table["length"].to_numpy().astype(np.int64)
        self.document = table["document"].to_numpy().astype(np.int64)
        self._second = table["second"].to_numpy().astype(np.int64)
        self._label = table["label"].to_numpy().astype(np.float64)
        self.past = self.rest = None
        if "past" in table.column_names:
            self.past = table["past"].to_numpy().astype(np.int64)
            end = self.past + self.length
            stops = np.append(np.flatnonzero(self.past[1:] == 0), len(end) - 1)  # the last row of every stream
            self.rest = np.repeat(end[stops], np.diff(stops, prepend=-1)) - end

    def __reduce__(self) -> tuple[type[Rows], tuple[Path]]:
        return Rows, (self.folder,)

    def __len__(self) -> int:
        return len(self.length)

    def _read(self, index: np.ndarray, place: np.ndarray | None = None) -> np.ndarray:
        """The rows at `index` [B] whole, [B, width], or one token of each, at `place` [B]."""
        chunk = np.searchsorted(self._starts, index, side="right") - 1
        found = np.empty((len(index), self.width) if place is None else len(index), dtype=np.int32)
        for c in np.unique(chunk):
            here = chunk == c
            rows = index[here] - self._starts[c]
            found[here] = self._tokens[c][rows] if place is None else self._tokens[c][rows, place[here]]
        return found

    def take(self, index: np.ndarray, epoch: np.ndarray, backward: np.ndarray | None = None) -> Example:
        """The examples at `index` [B], each seen `epoch` [B] times before.

        backward: [B] bool, rows to be read from their end to their start; None: none, and nothing is said of it.
        """
        lengths = self.length[index]
        # Columns that are padding in every row are not carried on.
        tokens = self._read(index)[:, : lengths.max()].astype(np.int64)
        past = ahead = None
        if self.past is not None and self.rest is not None:
            past, rest = self.past[index], self.rest[index]
            following, place = np.where(rest > 0, index + 1, index), np.zeros_like(index)
            if backward is not None:
                before = np.where(past > 0, index - 1, index)
                following = np.where(backward, before, following)
                place = np.where(backward, self.length[before] - 1, place)
                past, rest = np.where(backward, rest, past), np.where(backward, past, rest)
            ahead = np.where(rest > 0, self._read(following, place), -1).astype(np.int64)
        if backward is not None:
            column = np.arange(tokens.shape[1])
            turned = backward[:, None] & (column < lengths[:, None])
            tokens = np.take_along_axis(tokens, np.where(turned, lengths[:, None] - 1 - column, column), axis=1)
        return Example(
            tokens=tokens,
            lengths=lengths,
            second=self._second[index],
            label=self._label[index],
            document=self.document[index],
            number=index,
            epoch=epoch,
            past=past,
            ahead=ahead,
            backward=backward,
        )
