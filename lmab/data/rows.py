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

    document, length: [rows] int64.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        table = cache.readable(folder, lambda: Dataset.from_file(str(folder / "rows.arrow")).data.table)
        width = table.schema.field("tokens").type.list_size
        # One view a chunk, so that a large file is never joined into a copy of itself.
        self._tokens = [chunk.flatten().to_numpy().reshape(-1, width) for chunk in table["tokens"].chunks]
        self._starts = np.cumsum([0] + [len(chunk) for chunk in self._tokens])
        self.length = table["length"].to_numpy().astype(np.int64)
        self.document = table["document"].to_numpy().astype(np.int64)
        self._second = table["second"].to_numpy().astype(np.int64)
        self._label = table["label"].to_numpy().astype(np.float64)

    def __reduce__(self) -> tuple[type[Rows], tuple[Path]]:
        return Rows, (self.folder,)

    def __len__(self) -> int:
        return len(self.length)

    def take(self, index: np.ndarray, epoch: np.ndarray) -> Example:
        """The examples at `index` [B], each seen `epoch` [B] times before."""
        chunk = np.searchsorted(self._starts, index, side="right") - 1
        tokens = np.empty((len(index), self._tokens[0].shape[1]), dtype=np.int32)
        for c in np.unique(chunk):
            tokens[chunk == c] = self._tokens[c][index[chunk == c] - self._starts[c]]
        lengths = self.length[index]
        # Columns that are padding in every row are not carried on.
        return Example(
            tokens=tokens[:, : lengths.max()].astype(np.int64),
            lengths=lengths,
            second=self._second[index],
            label=self._label[index],
            document=self.document[index],
            number=index,
            epoch=epoch,
        )
