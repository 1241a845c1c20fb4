"""A noise says truly whether it draws, by what it does to the same examples in two epochs and under two keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from lmab.objectives.clm import NextToken
from lmab.objectives.labels import Labels
from lmab.objectives.mlm import Masking
from lmab.objectives.plm import Permutation

if TYPE_CHECKING:
    from collections.abc import Callable

    from lmab.types import Example, Vocabulary

MASKS: dict[str, Any] = {"rate": 0.3, "mask": 0.8, "random": 0.1, "whole_words": False}


@pytest.mark.parametrize(
    ("noise", "draws"),
    [
        (Labels(objective="classify", classes=2), "never"),
        (NextToken(half=False), "never"),
        (Masking(copies=1, **MASKS), "once"),
        (Masking(copies=2, **MASKS), "anew"),
        (Masking(copies=None, **MASKS), "anew"),
        (Permutation(k=3, span=2), "anew"),
    ],
)
def test_a_noise_says_whether_it_draws(noise: Any, draws: str, rows: Callable[..., Example], vocab: Vocabulary) -> None:
    def made(epoch: int, key: int) -> list[Any]:
        example = rows(20, 12, epoch=epoch)
        found = noise(example._replace(label=example.number % 2 * 1.0), vocab, key)
        assert len(found.places)
        return [None if column is None else np.asarray(column).tolist() for column in found]

    anew, drawn = made(0, 1) != made(1, 1), made(0, 1) != made(0, 2)
    assert noise.draws == ("anew" if anew else "once" if drawn else "never") == draws
