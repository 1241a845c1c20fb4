"""What rows of streams left behind for the rows that follow them (Dai et al. 2019, section 3.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    Layers = tuple[Tensor, ...]  # for every depth [B, M, D], without gradients


class Memories:
    """Part of the data -> micro-batch -> memory. The lanes of a stream keep their place in a batch, so a memory is
    carried on row by row; which of it belongs to a row's own stream is said by the row (View.past)."""

    def __init__(self) -> None:
        self._held: dict[str, dict[int, Layers]] = {}

    def before(self, part: str, micro: int, rows: int, device: torch.device) -> Layers:
        """The memory of the first `rows` lanes, empty where nothing was read yet. Lanes that have come to their end
        are the last ones. device: where it is wanted; a checkpoint is read before anything is moved there."""
        return tuple(layer[:rows].to(device) for layer in self._held.get(part, {}).get(micro, ()))

    def keep(self, part: str, micro: int, memory: Layers) -> None:
        self._held.setdefault(part, {})[micro] = memory

    def forget(self, part: str) -> None:
        self._held.pop(part, None)

    def of(self, part: str) -> dict[int, Layers]:
        return self._held.get(part, {})

    def restore(self, part: str, held: dict[int, Layers]) -> None:
        self._held[part] = held
