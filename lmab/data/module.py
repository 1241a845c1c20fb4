"""Batches as a function of the step: workers, and where a run was taken up, change nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytorch_lightning as pl
from torch.utils.data import DataLoader, Dataset, Sampler

from lmab.rng import permutation
from lmab.types import Batch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lmab.data.collate import Collate
    from lmab.data.rows import Rows
    from lmab.types import Example


class Shuffled(Dataset[tuple[Batch, ...]]):
    """Item s is everything that optimiser step s learns from, in micro-batches that fit the machine.

    Examples come in the order of endless epochs, each a permutation that is a function of (seed, epoch).
    The whole step is one item, so that whoever averages a loss knows the targets of all its micro-batches.

    batch: examples a step. micro: examples a forward pass.
    """

    def __init__(self, rows: Rows, collate: Collate, *, batch: int, micro: int, steps: int, seed: int) -> None:
        self.rows, self.collate = rows, collate
        self.batch, self.micro, self.steps, self.seed = batch, micro, steps, seed
        self._orders: dict[int, np.ndarray] = {}  # the epochs at hand; a batch may straddle two

    def __len__(self) -> int:
        return self.steps

    def _order(self, epoch: int) -> np.ndarray:
        if epoch not in self._orders:
            self._orders = {e: o for e, o in self._orders.items() if e >= epoch - 1}
            self._orders[epoch] = permutation(len(self.rows), self.seed, "order", epoch)
        return self._orders[epoch]

    def examples(self, step: int) -> Example:
        """The examples of a step before noise, in order."""
        place = step * self.batch + np.arange(self.batch)
        epoch, offset = np.divmod(place, len(self.rows))
        index = np.empty_like(place)
        for e in np.unique(epoch):
            index[epoch == e] = self._order(int(e))[offset[epoch == e]]
        return self.rows.take(index, epoch)

    def __getitem__(self, step: int) -> tuple[Batch, ...]:
        whole = self.examples(step)
        parts = range(0, self.batch, self.micro)
        return tuple(self.collate(whole.rows(start, start + self.micro)) for start in parts)


class HeldOut(Dataset[Batch]):
    """A held-out part in its own order, always under the same noise: epoch 0, and a key that no run shares
    with its training. What is scored is the same in every arm and for every seed."""

    def __init__(self, rows: Rows, collate: Collate, *, batch: int) -> None:
        self.rows, self.collate, self.batch = rows, collate, batch
        # Documents are told apart by their place in the part, which is a function of the corpus alone.
        names, self._ordinal = np.unique(rows.document, return_inverse=True)
        self.documents = len(names)

    def __len__(self) -> int:
        return -(-len(self.rows) // self.batch)

    def __getitem__(self, number: int) -> Batch:
        start = number * self.batch
        index = np.arange(start, min(start + self.batch, len(self.rows)))
        example = self.rows.take(index, np.zeros_like(index))
        return self.collate(example._replace(document=self._ordinal[index]))


class From(Sampler[int]):
    """The steps from `start` on. Its length counts those before too, since Lightning counts them as done."""

    def __init__(self, start: int, steps: int) -> None:
        self.start, self.steps = start, steps

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.steps))

    def __len__(self) -> int:
        return self.steps


def _as_is(item: Any) -> Any:
    return item


class Data(pl.LightningDataModule):
    """The three parts as loaders. It remembers in the checkpoint which step comes next."""

    def __init__(self, *, train: Shuffled, validation: HeldOut, test: HeldOut, workers: int) -> None:
        super().__init__()
        self.train, self.validation, self.test = train, validation, test
        self.workers = workers
        self.start = 0

    def _loader(self, part: Dataset[Any], sampler: Sampler[int] | None, workers: int) -> DataLoader[Any]:
        return DataLoader(
            part,
            batch_size=None,
            collate_fn=_as_is,  # an item is a batch already
            sampler=sampler,
            num_workers=workers,
            persistent_workers=workers > 0,
            multiprocessing_context="spawn" if workers else None,
            pin_memory=False,
        )

    def train_dataloader(self) -> DataLoader[tuple[Batch, ...]]:
        return self._loader(self.train, From(self.start, len(self.train)), self.workers)

    def val_dataloader(self) -> DataLoader[Batch]:
        return self._loader(self.validation, None, 0)

    def test_dataloader(self) -> DataLoader[Batch]:
        return self._loader(self.test, None, 0)

    def state_dict(self) -> dict[str, Any]:
        assert self.trainer is not None
        return {"step": self.trainer.global_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.start = state_dict["step"]

    def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:
        return tuple(micro.to(device) for micro in batch) if isinstance(batch, tuple) else batch.to(device)
