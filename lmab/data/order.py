"""Which examples come when, as a function of the step: workers, and where a run was taken up, change nothing."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import Dataset

from lmab.data.streams import Streams
from lmab.rng import permutation
from lmab.types import BadInput, Batch

if TYPE_CHECKING:
    from lmab.data.collate import Collate
    from lmab.data.rows import Rows
    from lmab.data.segments import Segments
    from lmab.types import Example


class Training(Dataset[tuple[Batch, ...]]):
    """Item s is everything that optimiser step s learns from, in micro-batches that fit the machine.

    The whole step is one item, so that whoever averages a loss knows the targets of all its micro-batches.

    batch: examples a step. micro: examples a forward pass.
    """

    def __init__(self, rows: Rows, collate: Collate, *, batch: int, micro: int, steps: int, seed: int) -> None:
        self.rows, self.collate = rows, collate
        self.batch, self.micro, self.steps, self.seed = batch, micro, steps, seed

    def __len__(self) -> int:
        return self.steps

    def examples(self, step: int) -> Example:
        """The examples of a step before noise, in order."""
        raise NotImplementedError

    def __getitem__(self, step: int) -> tuple[Batch, ...]:
        whole = self.examples(step)
        parts = range(0, self.batch, self.micro)
        return tuple(self.collate(whole.rows(start, start + self.micro)) for start in parts)


class Shuffled(Training):
    """Examples in the order of endless epochs, each a permutation that is a function of (seed, epoch)."""

    def __init__(self, rows: Rows, collate: Collate, *, batch: int, micro: int, steps: int, seed: int) -> None:
        super().__init__(rows, collate, batch=batch, micro=micro, steps=steps, seed=seed)
        self._orders: dict[int, np.ndarray] = {}  # the epochs at hand; a batch may straddle two

    def _order(self, epoch: int) -> np.ndarray:
        if epoch not in self._orders:
            self._orders = {e: o for e, o in self._orders.items() if e >= epoch - 1}
            self._orders[epoch] = permutation(len(self.rows), self.seed, "order", epoch)
        return self._orders[epoch]

    def examples(self, step: int) -> Example:
        place = step * self.batch + np.arange(self.batch)
        epoch, offset = np.divmod(place, len(self.rows))
        index = np.empty_like(place)
        for e in np.unique(epoch):
            index[epoch == e] = self._order(int(e))[offset[epoch == e]]
        return self.rows.take(index, epoch)


class Streamed(Training):
    """Contiguous rows in fixed lanes, so that a memory finds in each lane what it read there a step ago.

    With R = rows // batch, lane b reads rows b R to b R + R - 1, one a step; then the next epoch begins, in which
    it reads them again. Rows beyond batch R are not read. `past` ends where the lane begins, since nothing before
    that was read. No seed changes this order.

    bidirectional: half of the lanes read from the last row to the first, and the tokens of a row likewise: in even
    epochs the second half, in odd ones the first, so that all text is read both ways (Yang et al. 2019, section
    3.1; in their data both directions of a text stand in one batch).
    """

    def __init__(
        self,
        rows: Rows,
        collate: Collate,
        *,
        batch: int,
        micro: int,
        steps: int,
        seed: int,
        bidirectional: bool = False,
    ) -> None:
        super().__init__(rows, collate, batch=batch, micro=micro, steps=steps, seed=seed)
        self.bidirectional = bidirectional
        if batch % micro:
            raise BadInput(
                f"trainer.batch={batch} is no multiple of trainer.micro={micro}, and every lane of a stream needs its "
                f"place in one micro-batch: the nearest is {max(1, round(batch / micro)) * micro}."
            )
        if bidirectional and batch % 2:
            raise BadInput(
                f"trainer.batch={batch} has no half that could read backwards: give trainer.batch={batch + 1}, or "
                f"segments.bidirectional=false."
            )
        if len(rows) < batch:
            most = len(rows) - len(rows) % 2 if bidirectional else len(rows)
            raise BadInput(
                f"trainer.batch={batch} lanes of contiguous text need a row each, and the training text has "
                f"{len(rows)} rows: give trainer.batch={most} at most, more documents or shorter rows."
            )
        self.each = len(rows) // batch  # R, rows of a lane

    def examples(self, step: int) -> Example:
        epoch, place = divmod(step, self.each)
        lane = np.arange(self.batch)
        backward = None
        index = lane * self.each + place
        if self.bidirectional:
            backward = (lane >= self.batch // 2) ^ (epoch % 2 == 1)
            index = np.where(backward, (lane + 1) * self.each - 1 - place, index)
        example = self.rows.take(index, np.full(self.batch, epoch), backward)
        assert example.past is not None
        # All rows of a stream but its last are full, so this is what the lane has read of the row's stream at most.
        return example._replace(past=np.minimum(example.past, place * self.rows.width))


def training(
    rows: Rows, collate: Collate, segments: Segments, *, batch: int, micro: int, steps: int, seed: int
) -> Training:
    """The order that a format of rows wants. BadInput: contiguous rows that do not fill the lanes."""
    if not segments.contiguous:
        return Shuffled(rows, collate, batch=batch, micro=micro, steps=steps, seed=seed)
    return Streamed(
        rows,
        collate,
        batch=batch,
        micro=micro,
        steps=steps,
        seed=seed,
        bidirectional=isinstance(segments, Streams) and segments.bidirectional,
    )


def deal(counts: list[int], lanes: int) -> list[list[int]]:
    """Documents of so many rows, dealt out to at most `lanes` lanes: the longest first, each to the lane that has
    the fewest rows. The lanes come by decreasing number of rows; none is empty."""
    held = [(0, lane) for lane in range(min(lanes, len(counts)))]
    hands: list[list[int]] = [[] for _ in held]
    for document in sorted(range(len(counts)), key=lambda d: -counts[d]):
        rows, lane = held[0]
        hands[lane].append(document)
        heapq.heapreplace(held, (rows + counts[document], lane))
    return sorted(hands, key=lambda hand: -sum(counts[d] for d in hand))


class HeldOut(Dataset[Batch]):
    """A held-out part, always under the same noise: epoch 0, and a key that no run shares with its training. What is
    scored is the same in every arm and for every seed.

    Rows come in their own order, `batch` at once. Where they belong to streams, each document being one, the
    documents are dealt out to `batch` lanes and an item is the next row of every lane that has one left: always the
    first lanes, so that a memory is cut to the rows of the item and never reordered. A row's `past` hides what its
    lane remembers of another document, so no score depends on `batch`.
    """

    def __init__(self, rows: Rows, collate: Collate, *, batch: int) -> None:
        self.rows, self.collate, self.batch = rows, collate, batch
        # Documents are told apart by their place in the part, which is a function of the corpus alone.
        names, self._ordinal = np.unique(rows.document, return_inverse=True)
        self.documents = len(names)
        if rows.past is None:
            self._order = np.arange(len(rows))
            self._stops = np.append(np.arange(batch, len(rows), batch), len(rows))
            return
        counts = np.bincount(self._ordinal)
        of_document = np.split(np.argsort(self._ordinal, kind="stable"), np.cumsum(counts)[:-1])
        lanes = [np.concatenate([of_document[d] for d in hand]) for hand in deal(counts.tolist(), batch)]
        item = np.concatenate([np.arange(len(lane)) for lane in lanes])
        self._order = np.concatenate(lanes)[np.argsort(item, kind="stable")]
        self._stops = np.cumsum(np.bincount(item))

    def __len__(self) -> int:
        return len(self._stops)

    def __getitem__(self, number: int) -> Batch:
        start = self._stops[number - 1] if number else 0
        index = self._order[start : self._stops[number]]
        example = self.rows.take(index, np.zeros_like(index))
        return self.collate(example._replace(document=self._ordinal[index]))


def as_is(item: Any) -> Any:
    """An item is a batch already. It is here since workers import what they are given, and Lightning takes seconds."""
    return item
