"""The three parts as loaders, for Lightning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytorch_lightning as pl
from torch.utils.data import DataLoader, Dataset, Sampler

from lmab.data.order import as_is

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lmab.data.order import HeldOut, Training
    from lmab.types import Batch


class From(Sampler[int]):
    """The steps from `start` on. Its length counts those before too, since Lightning counts them as done."""

    def __init__(self, start: int, steps: int) -> None:
        self.start, self.steps = start, steps

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.steps))

    def __len__(self) -> int:
        return self.steps


class Data(pl.LightningDataModule):
    """The three parts as loaders. It remembers in the checkpoint which step comes next."""

    def __init__(self, *, train: Training, validation: HeldOut, test: HeldOut, workers: int) -> None:
        super().__init__()
        self.train, self.validation, self.test = train, validation, test
        self.workers = workers
        self.start = 0

    def _loader(self, part: Dataset[Any], sampler: Sampler[int] | None, workers: int) -> DataLoader[Any]:
        return DataLoader(
            part,
            batch_size=None,
            collate_fn=as_is,
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
