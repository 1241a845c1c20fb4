"""Examples to a batch: the noises are applied, then tensors are made of what is left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
import torch

from lmab.rng import derive
from lmab.types import BadInput, Batch, Targets, View

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lmab.types import Example, Noised, Vocabulary


# What a noise makes of an example: never anything by chance, something drawn once, or drawn anew as epochs pass.
Draws = Literal["never", "once", "anew"]


class Noise(Protocol):
    """The half of an objective that runs in the data workers: a pure function of examples and a key."""

    @property
    def draws(self) -> Draws: ...

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
        B, T = example.tokens.shape
        targets: dict[str, Targets] = {}
        visible = None  # [B or 1, T, T]
        queries, query_visible = None, None
        for name, noise in self.noises.items():
            noised = noise(example, self.vocabulary, derive(self.seed, "noise", name))
            example = example._replace(tokens=noised.tokens)
            second = noised.queries is not None
            targets[name] = Targets(torch.from_numpy(noised.places), torch.from_numpy(noised.answers), second)
            if noised.visible is not None:
                visible = noised.visible if visible is None else visible & noised.visible
            if second:
                if queries is not None:
                    raise BadInput(f"objective={[*self.noises]}: two of them ask a second stream, and there is one.")
                queries, query_visible = noised.queries, noised.query_visible
        place = np.arange(T)
        padded = bool((example.lengths < T).any())
        if padded:
            real = (place < example.lengths[:, None])[:, None]  # [B, 1, T]: all see the row's real tokens
            visible = real if visible is None else visible & real
            query_visible = None if query_visible is None else query_visible & real
        paired = bool((example.second < example.lengths).any())
        segments = torch.from_numpy((place >= example.second[:, None]).astype(np.int64)) if paired else None
        return Batch(
            tokens=torch.from_numpy(example.tokens),
            segments=segments,
            view=View(
                None if visible is None else torch.from_numpy(visible)[:, None],
                None if queries is None else torch.from_numpy(queries),
                None if query_visible is None else torch.from_numpy(query_visible)[:, None],
                None if example.past is None else torch.from_numpy(example.past),
                None if example.backward is None else torch.from_numpy(example.backward),
            ),
            targets=targets,
            document=torch.from_numpy(example.document),
            examples=B,
            real=int(example.lengths.sum()),
            lengths=torch.from_numpy(example.lengths) if padded else None,
            number=torch.from_numpy(example.number),
        )
