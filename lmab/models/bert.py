"""BERT (Devlin, Chang, Lee, Toutanova 2018, arXiv 1810.04805): a bidirectional Transformer encoder.

paper         here
L             depth
H             dim
A             heads
4H            ffn
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import torch

from lmab.nn.attention import Attention
from lmab.nn.embedding import Embedding
from lmab.nn.encoder import Encoder
from lmab.nn.heads import Pooler, TokenHead
from lmab.nn.layer import Layer
from lmab.nn.network import Network, Rule, initialise, normal, positive
from lmab.nn.position import Absolute, sinusoids
from lmab.train.learner import Learner

if TYPE_CHECKING:
    from torch import Tensor

    from lmab.train.stepping import Learning


class BERT(Learner):
    """Post-norm layers, learned positions, segment embeddings, GELU, a token head tied to the embedding.

    vocab: types. dim, depth, heads, ffn: the encoder. length: positions. segments: kinds of segment.
    dropout: on embeddings and sublayers; attention_dropout: on attention weights. epsilon: of the norms.
    std: of the first weights; embedding_std: of the first token, position and segment vectors. positions:
    how the learned position vectors begin, "normal" as in the paper or "sinusoidal" (scaled to embedding_std).
    """

    def __init__(
        self,
        learning: Learning,
        *,
        vocab: int,
        dim: int,
        depth: int,
        heads: int,
        ffn: int,
        length: int,
        segments: int,
        dropout: float,
        attention_dropout: float,
        epsilon: float,
        std: float,
        embedding_std: float,
        positions: Literal["normal", "sinusoidal"],
    ) -> None:
        positive(vocab=vocab, dim=dim, depth=depth, heads=heads, ffn=ffn, length=length, segments=segments)
        with torch.device("meta"):
            layers = [
                Layer(
                    attention=Attention(dim=dim, heads=heads, dropout=attention_dropout, position=Absolute()),
                    dim=dim,
                    ffn=ffn,
                    dropout=dropout,
                    epsilon=epsilon,
                )
                for _ in range(depth)
            ]
            network = Network(
                embedding=Embedding(
                    vocab=vocab, dim=dim, length=length, segments=segments, dropout=dropout, epsilon=epsilon
                ),
                encoder=Encoder(layers),
                head=TokenHead(dim=dim, vocab=vocab, epsilon=epsilon),
                pooler=Pooler(dim=dim) if learning.pools else None,
                dim=dim,
            )
        super().__init__(network, learning)
        initialise(
            self, learning.seed, positioned(normal(std, embedding_std), embedding_std, positions), learning.start
        )


def positioned(rule: Rule, embedding_std: float, positions: Literal["normal", "sinusoidal"]) -> Rule:
    """The rule, but for position vectors that begin as sinusoids of the size of the others."""

    def fill(name: str, parameter: Tensor, generator: torch.Generator) -> None:
        if positions == "sinusoidal" and name.endswith("embedding.positions.weight"):
            # The root mean square of a sinusoid is 1 / sqrt(2).
            parameter.copy_(sinusoids(*parameter.shape) * (embedding_std * math.sqrt(2)))
        else:
            rule(name, parameter, generator)

    return fill
