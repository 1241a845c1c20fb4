"""Examples to a batch: the noises are applied, then tensors are made of what is left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from lmab.rng import derive
from lmab.types import Batch, Targets, View

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lmab.types import Example, Noised, Vocabulary


class Noise(Protocol):
    """The half of an objective that runs in the data workers: a pure function of examples and a key."""

    def __call__(self, example: Example, vocabulary: Vocabulary, key: int) -> Noised: ...


@dataclass(frozen=True)
class Collate:
    """Applies every objective's noise in turn and builds tensors.

    noises: objective's name -> its noise. seed: what the noises' keys derive from, each with its own name, so
    that a further objective leaves the noise of the others as it was.
    """

    noises: Mapping[str, Noise]
    vocabulary: Vocabulary
    seed: int

    def __call__(self, example: Example) -> Batch:
        targets: dict[str, Targets] = {}
        for name, noise in self.noises.items():
            noised = noise(example, self.vocabulary, derive(self.seed, "noise", name))
            example = example._replace(tokens=noised.tokens)
            targets[name] = Targets(torch.from_numpy(noised.places), torch.from_numpy(noised.answers))
        B, T = example.tokens.shape
        place = np.arange(T)
        padded = bool((example.lengths < T).any())
        # [B, 1, 1, T]: every query of a row sees the row's real tokens
        visible = torch.from_numpy(place < example.lengths[:, None])[:, None, None] if padded else None
        paired = bool((example.second < example.lengths).any())
        segments = torch.from_numpy((place >= example.second[:, None]).astype(np.int64)) if paired else None
        return Batch(
            tokens=torch.from_numpy(example.tokens),
            segments=segments,
            view=View(visible),
            targets=targets,
            document=torch.from_numpy(example.document),
            examples=B,
            real=int(example.lengths.sum()),
        )
