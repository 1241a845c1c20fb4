"""Rows that a memory and a second stream may stand beside, drawn at random."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import strategies as st

from lmab.types import Batch, View

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn


@st.composite
def views(draw: Callable[..., Any]) -> dict[str, Any]:
    """rows, content, memory, places: B, T, M, P; and all that a batch may say of who sees whom."""
    B, T, M, P = (draw(st.integers(low, high)) for low, high in ((1, 3), (1, 6), (0, 5), (0, 3)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 999)))

    def coins(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator) < 0.6

    shape = draw(st.sampled_from([None, (B, T, T), (1, T, T), (B, 1, T)]))
    queries = torch.randint(-1, T, (B, P), generator=generator) if P else None
    view = View(
        visible=None if shape is None else coins(*shape)[:, None],
        queries=queries,
        query_visible=coins(B, P, T)[:, None] if P else None,
        past=torch.randint(0, M + 2, (B,), generator=generator) if draw(st.booleans()) else None,
        backward=coins(B) if draw(st.booleans()) else None,
    )
    segments = torch.randint(0, 2, (B, T), generator=generator) if draw(st.booleans()) else None
    tokens = torch.randint(0, 20, (B, T), generator=generator)
    batch = Batch(tokens, segments, view, {}, torch.arange(B), B, B * T)
    return {"batch": batch, "memory": M, "generator": generator}


@pytest.fixture(scope="session")
def drawn() -> Callable[[], st.SearchStrategy[dict[str, Any]]]:
    """The strategy of such rows."""
    return views


@pytest.fixture(scope="session")
def scatter() -> Callable[..., None]:
    """Weights that are all different and none special, the norms and biases too."""

    def filled(module: nn.Module, size: float = 0.3) -> None:
        generator = torch.Generator().manual_seed(7)
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                gain = parameter.dim() == 1 and name.endswith("weight")
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * size + gain)

    return filled
