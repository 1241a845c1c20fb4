"""Rows as segments make them, and a network that is two matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from lmab.types import Example, Vocabulary

if TYPE_CHECKING:
    from collections.abc import Callable

V = 60
SPECIAL = np.arange(V) < 5


@pytest.fixture(scope="session")
def vocab() -> Vocabulary:
    """[PAD] [UNK] [CLS] [SEP] [MASK], then ordinary types; every third of them continues a word."""
    return Vocabulary(V, 0, 1, 2, 3, 4, SPECIAL, (np.arange(V) % 3 == 0) & ~SPECIAL)


def make_rows(B: int, T: int, *, seed: int = 0, padded: bool = True, inside: float = 0.05, epoch: int = 0) -> Example:
    """[CLS] first, [SEP] last and now and then inside, [UNK] here and there. inside: shares of the last two."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(3, T + 1, B) if padded else np.full(B, T)
    tokens = generator.integers(5, V, (B, T))
    tokens[generator.random((B, T)) < inside] = 1
    tokens[generator.random((B, T)) < inside] = 3
    tokens[:, 0] = 2
    tokens[np.arange(B), lengths - 1] = 3
    tokens[np.arange(T) >= lengths[:, None]] = 0
    return Example(
        tokens=tokens,
        lengths=lengths,
        second=lengths,
        label=np.full(B, np.nan),
        document=np.zeros(B, dtype=np.int64),
        number=np.arange(B),
        epoch=np.full(B, epoch),
    )


@pytest.fixture(scope="session")
def rows() -> Callable[..., Example]:
    return make_rows


@pytest.fixture(scope="session")
def alone() -> Callable[[Example], list[tuple[int, Example]]]:
    """Each row of a block by itself: as it is, without its padding, and with more of it; with its number."""

    def taken(example: Example) -> list[tuple[int, Example]]:
        found = []
        for i, length in enumerate(example.lengths):
            row = example.rows(i, i + 1)
            narrow = row._replace(tokens=row.tokens[:, :length])
            wide = row._replace(tokens=np.pad(row.tokens, ((0, 0), (0, 4))))
            found += [(i, row), (i, narrow), (i, wide)]
        return found

    return taken


class TwoMatrices(torch.nn.Module):
    """Stands in for a network: a linear token head and a pooler, in double precision.

    D  width of a hidden state, 6
    """

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.scores = torch.nn.Parameter(torch.randn(V, 6, generator=generator, dtype=torch.float64))
        self.pooler = torch.nn.Parameter(torch.randn(6, 6, generator=generator, dtype=torch.float64))

    def token_losses(self, hidden: torch.Tensor, answers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = hidden @ self.scores.T
        return F.cross_entropy(scores, answers, reduction="none"), scores.argmax(-1) == answers

    def pooled(self, hidden: torch.Tensor) -> torch.Tensor:
        return (hidden @ self.pooler.T).tanh()


@pytest.fixture
def network() -> TwoMatrices:
    return TwoMatrices()


@pytest.fixture
def states() -> Callable[..., torch.Tensor]:
    """Hidden states of a given shape, which ask for their gradient."""

    def drawn(*shape: int, seed: int = 2) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(*shape, 6, generator=generator, dtype=torch.float64, requires_grad=True)

    return drawn
