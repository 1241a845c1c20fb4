"""Embedding, encoder and heads as one network, and how its weights begin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from lmab.nn.sight import look
from lmab.rng import derive
from lmab.types import BadInput, Encoded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from lmab.nn.embedding import Embedding, Words
    from lmab.nn.encoder import Encoder
    from lmab.nn.heads import Pooler, Tied
    from lmab.nn.position import Distances
    from lmab.types import Batch

# A rule fills a parameter in place: (its name, the tensor, its own generator).
Rule = Callable[[str, torch.Tensor, torch.Generator], None]


_VECTORS = tuple(f"embedding.{table}.weight" for table in ("tokens", "positions", "segments", "project"))


class Network(nn.Module):
    """Knows no text, no objective and no trainer.

    dim: width D of a hidden state. pooler: of whole rows, where an objective asks for it. distances: for relative
    position schemes. query: the vector with which a second stream begins, [1, D]. memory: places that are remembered
    from row to row.
    """

    def __init__(
        self,
        *,
        embedding: Embedding | Words,
        encoder: Encoder,
        head: Tied,
        pooler: Pooler | None = None,
        distances: Distances | None = None,
        query: nn.Parameter | None = None,
        dim: int,
        memory: int = 0,
    ) -> None:
        super().__init__()
        self.dim = dim
        self.embedding, self.encoder, self.head = embedding, encoder, head
        self.pooler, self.distances, self.query = pooler, distances, query
        self.memory = memory

    def forward(
        self,
        batch: Batch,
        places: Tensor | None = None,
        *,
        memory: Sequence[Tensor] = (),
        remember: int = 0,
        reach: int | None = None,
        keep: bool = False,
        attention: bool = False,
    ) -> Encoded:
        """places: [N] where the last layer is wanted, flat over B * T, ascending; None for everywhere.

        memory: for every depth [B, M, D]. remember: places of memory to return, the newest ones. reach: keys that
        a query sees at most, counted back from its own; None for all. keep: return what every depth made.
        attention: return the content's scores of every depth before the softmax, at all places.
        """
        hidden = self.embedding(batch)
        sight = look(batch, memory=memory[0].shape[1] if memory else 0, reach=reach)
        if self.distances is not None:
            sight = replace(sight, encoded=self.distances(sight, hidden.device).to(hidden.dtype))
        queries = batch.view.queries
        if queries is not None:
            assert self.query is not None
            hidden = torch.cat([hidden, self.embedding.dropout(self.query.repeat(*queries.shape, 1))], 1)
        passed = self.encoder(hidden, sight, places, memory=memory, remember=remember, keep=keep, attention=attention)
        return Encoded(
            hidden=passed.hidden,
            places=places,
            second=None if queries is None else passed.second[queries >= 0],
            memory=passed.memory,
            layers=(*passed.layers, passed.hidden) if keep else (),
            attention=passed.attention,
        )

    @property
    def widths(self) -> tuple[int, ...]:
        """Of a hidden state in each of `Encoded.layers`: what the first depth reads, and what every depth makes."""
        return (self.dim,) * (len(self.encoder.order) + 1)

    @property
    def heads(self) -> tuple[int, ...]:
        """Of every depth's attention."""
        return self.encoder.heads

    def token_logits(self, hidden: Tensor) -> Tensor:
        """Scores over the vocabulary for hidden states at chosen places: [N, D] to [N, V]."""
        return self.head(hidden, self.embedding.tokens.weight)

    def token_losses(self, hidden: Tensor, answers: Tensor) -> tuple[Tensor, Tensor]:
        """hidden: [N, D]; answers: [N]. Returns the losses in nats [N], and whether the answer had the highest
        score [N] bool."""
        return self.head.losses(hidden, self.embedding.tokens.weight, answers)

    def pooled(self, hidden: Tensor) -> Tensor:
        """hidden: [N, D], of the [CLS] places. Returns [N, D]."""
        assert self.pooler is not None
        return self.pooler(hidden)


def positive(**sizes: int) -> None:
    """BadInput: a size of a model below 1."""
    for name, value in sizes.items():
        if value < 1:
            raise BadInput(f"model.{name}={value} builds nothing: give at least 1.")


def initialise(module: nn.Module, seed: int | None, rule: Rule, start: Mapping[str, Tensor] | None = None) -> None:
    """Give a module built on the meta device its memory and its first weights. seed: None leaves it as it is, with
    sizes and no memory.

    Each parameter has a generator of its own, named by (seed, its name): a further head, or another order of
    construction, leaves the weights of all the others as they were. start: weights from elsewhere by name, which
    replace those of the rule. BadInput: one of another shape.
    """
    start = start or {}
    for name, parameter in module.named_parameters():
        if name in start and start[name].shape != parameter.shape:
            raise BadInput(
                f"start has {name} of shape {[*start[name].shape]}, and this model wants {[*parameter.shape]}: leave "
                f"the sizes to the starting point."
            )
    if seed is None:
        return
    _materialise(module)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name in start:
                parameter.copy_(start[name])
            else:
                rule(name, parameter, torch.Generator().manual_seed(derive(seed, "weights", name)))


def _materialise(module: nn.Module) -> None:
    """Memory for parameters on the meta device. Not torch's to_empty, which gives a parameter that two modules hold
    to each of them anew, so that nothing would be shared any more."""
    made: dict[nn.Parameter, nn.Parameter] = {}
    for part in module.modules():
        for name, old in part.named_parameters(recurse=False):
            if old.is_meta:
                if old not in made:
                    made[old] = nn.Parameter(torch.empty_like(old, device="cpu"), requires_grad=old.requires_grad)
                setattr(part, name, made[old])


def normal(std: float, embedding_std: float) -> Rule:
    """BERT's rule: matrices are normal with a standard deviation of `std`, norms one, biases zero; the vectors that
    stand for tokens, positions and segments, and what they are projected with, have a deviation of their own."""

    def fill(name: str, parameter: torch.Tensor, generator: torch.Generator) -> None:
        if name.endswith("bias"):
            parameter.zero_()
        elif parameter.dim() == 1:  # the gain of a norm
            parameter.fill_(1.0)
        elif name.endswith(_VECTORS):
            parameter.normal_(0.0, embedding_std, generator=generator)
        else:
            parameter.normal_(0.0, std, generator=generator)

    return fill
