"""ALBERT (Lan et al. 2019, arXiv 1909.11942): BERT with a factorised embedding and layers that share weights.

paper         here
E             embedding
H             dim
L             depth
N, M          groups, depth / groups
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch

from lmab.models.bert import positioned
from lmab.nn.attention import Attention
from lmab.nn.embedding import Embedding
from lmab.nn.encoder import Encoder
from lmab.nn.heads import Pooler, TokenHead
from lmab.nn.layer import Layer
from lmab.nn.network import Network, initialise, normal, positive
from lmab.nn.position import Absolute
from lmab.train.learner import Learner
from lmab.types import BadInput

if TYPE_CHECKING:
    from lmab.nn.layer import Activation
    from lmab.train.stepping import Learning


class ALBERT(Learner):
    """Post-norm layers as in BERT. Fewer weights, and not one product of matrices less.

    embedding: width E of the token, position and segment vectors, projected to dim. share: which part of a layer is
    the same in all layers of a group (section 3.1, table 4): none, attention, ffn or all, each with its norm.
    groups: into how many runs of neighbours the layers fall (section 4.5), 1 for one group of all. inner: how many
    different layers stand in a group and are gone through together, each time (1 in the paper; the published code
    has it). activation: gelu_tanh is the approximation that the published code uses. The rest as in BERT.
    """

    def __init__(
        self,
        learning: Learning,
        *,
        vocab: int,
        embedding: int,
        dim: int,
        depth: int,
        heads: int,
        ffn: int,
        length: int,
        segments: int,
        share: Literal["none", "attention", "ffn", "all"],
        groups: int,
        inner: int,
        dropout: float,
        attention_dropout: float,
        epsilon: float,
        activation: Activation,
        std: float,
        embedding_std: float,
        positions: Literal["normal", "sinusoidal"],
    ) -> None:
        positive(vocab=vocab, embedding=embedding, dim=dim, depth=depth, heads=heads, ffn=ffn, length=length)
        positive(segments=segments, groups=groups, inner=inner)
        if groups > depth:
            raise BadInput(f"model.groups={groups} is more than there are layers: give at most model.depth={depth}.")

        def layer() -> Layer:
            return Layer(
                attention=Attention(dim=dim, heads=heads, dropout=attention_dropout, position=Absolute()),
                dim=dim,
                ffn=ffn,
                dropout=dropout,
                epsilon=epsilon,
                activation=activation,
            )

        with torch.device("meta"):
            network = Network(
                embedding=Embedding(
                    vocab=vocab,
                    dim=embedding,
                    length=length,
                    segments=segments,
                    dropout=dropout,
                    epsilon=epsilon,
                    out=dim,
                ),
                encoder=_encoder([layer() for _ in range(depth * inner)], share, groups, inner),
                head=TokenHead(dim=dim, vocab=vocab, epsilon=epsilon, out=embedding, activation=activation),
                pooler=Pooler(dim=dim) if learning.pools else None,
                dim=dim,
            )
        super().__init__(network, learning)
        initialise(
            self, learning.seed, positioned(normal(std, embedding_std), embedding_std, positions), learning.start
        )


def _encoder(
    layers: list[Layer], share: Literal["none", "attention", "ffn", "all"], groups: int, inner: int
) -> Encoder:
    """layers: one for every step through the stack; those that share everything with an earlier one are dropped."""
    rounds = len(layers) // inner
    # The layer of the same place in the first round of the group that a layer belongs to.
    group = [step // inner * groups // rounds for step in range(len(layers))]
    first = [group.index(g) + step % inner for step, g in enumerate(group)]
    if share == "none":
        return Encoder(layers)
    if share == "all":
        kept = sorted(set(first))
        return Encoder([layers[step] for step in kept], [kept.index(step) for step in first])
    for step, layer in enumerate(layers):
        layer.share(layers[first[step]], share)
    return Encoder(layers)
