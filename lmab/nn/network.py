"""Embedding, encoder and token head as one network, and how its weights begin."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import nn

from lmab.rng import derive
from lmab.types import Encoded

if TYPE_CHECKING:
    from lmab.nn.embedding import Embedding
    from lmab.types import Batch

# A rule fills a parameter in place: (its name, the tensor, its own generator).
Rule = Callable[[str, torch.Tensor, torch.Generator], None]


class Network(nn.Module):
    """Knows no text, no objective and no trainer."""

    def __init__(self, *, embedding: Embedding, encoder: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.embedding, self.encoder, self.head = embedding, encoder, head

    def forward(self, batch: Batch, places: torch.Tensor | None = None) -> Encoded:
        """places: [N] where the last layer is wanted, flat over B * T; None for everywhere."""
        return Encoded(self.encoder(self.embedding(batch), batch.view, places), places)

    def token_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Scores over the vocabulary for hidden states at chosen places: [N, D] to [N, V]."""
        return self.head(hidden, self.embedding.tokens.weight)


def initialise(module: nn.Module, seed: int, rule: Rule) -> None:
    """Give a module built on the meta device its memory and its first weights.

    Each parameter has a generator of its own, named by (seed, its name): a further head, or another order of
    construction, leaves the weights of all the others as they were.
    """
    if any(p.is_meta for p in module.parameters()):
        module.to_empty(device="cpu")
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            rule(name, parameter, torch.Generator().manual_seed(derive(seed, "weights", name)))


def normal(std: float) -> Rule:
    """BERT's rule: matrices are normal with a standard deviation of `std`, norms one, biases zero."""

    def fill(name: str, parameter: torch.Tensor, generator: torch.Generator) -> None:
        if name.endswith("bias"):
            parameter.zero_()
        elif parameter.dim() == 1:  # the gain of a norm
            parameter.fill_(1.0)
        else:
            parameter.normal_(0.0, std, generator=generator)

    return fill
