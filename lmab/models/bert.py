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
from lmab.nn.heads import TokenHead
from lmab.nn.layer import Layer
from lmab.nn.network import Network, Rule, initialise, normal
from lmab.nn.position import Absolute, sinusoids
from lmab.train.learner import Learner, Learning
from lmab.types import BadInput

if TYPE_CHECKING:
    from torch import Tensor


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
        sizes = {"vocab": vocab, "dim": dim, "depth": depth, "heads": heads, "ffn": ffn}
        for name, value in (sizes | {"length": length, "segments": segments}).items():
            if value < 1:
                raise BadInput(f"model.{name}={value} builds nothing: give at least 1.")
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
            )
        super().__init__(network, learning)
        if learning.seed is not None:
            initialise(self, learning.seed, _rule(std, embedding_std, positions))


def _rule(std: float, embedding_std: float, positions: str) -> Rule:
    matrices, vectors = normal(std), normal(embedding_std)

    def fill(name: str, parameter: Tensor, generator: torch.Generator) -> None:
        if name.endswith("embedding.positions.weight") and positions == "sinusoidal":
            # The root mean square of a sinusoid is 1 / sqrt(2).
            parameter.copy_(sinusoids(*parameter.shape) * (embedding_std * math.sqrt(2)))
        elif ".embedding." in f".{name}" and parameter.dim() == 2:
            vectors(name, parameter, generator)
        else:
            matrices(name, parameter, generator)

    return fill
