"""XLNet (Yang et al. 2019, arXiv 1906.08237): a permutation language model with two streams on Transformer-XL.

paper         here
h             the content stream
g, w          the query stream, and the vector with which it begins
K             objective.plm.k
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from lmab.nn.attention import Attention, width
from lmab.nn.embedding import Words
from lmab.nn.encoder import Encoder
from lmab.nn.heads import Pooler, Tied
from lmab.nn.layer import Layer
from lmab.nn.network import Network, initialise, normal, positive
from lmab.nn.position import Distances, Relative
from lmab.train.learner import Learner
from lmab.types import BadInput

if TYPE_CHECKING:
    from lmab.train.stepping import Learning


class XLNet(Learner):
    """Layers as in Transformer-XL with GELU and relative segment encodings (section 2.5). Which place may see which is
    the objective's: plm asks the query stream (section 2.3), mlm the content stream alone (the denoising
    autoencoder of table 6).

    memory: places of every depth that are remembered from row to row. length: the longest row. clamp: distances
    beyond this count as this, null for no bound. dropout: on embeddings, distances and sublayers; inner_dropout:
    inside the feed-forward part; attention_dropout: on attention weights.
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
        memory: int,
        clamp: int | None,
        dropout: float,
        inner_dropout: float,
        attention_dropout: float,
        epsilon: float,
        std: float,
        embedding_std: float,
    ) -> None:
        positive(vocab=vocab, dim=dim, depth=depth, heads=heads, ffn=ffn, length=length)
        if memory < 0:
            raise BadInput(f"model.memory={memory} cannot work: give a number of places, 0 for no recurrence.")
        shape = (heads, width(dim, heads))
        with torch.device("meta"):
            layers = [
                Layer(
                    attention=Attention(
                        dim=dim,
                        heads=heads,
                        dropout=attention_dropout,
                        position=Relative(
                            dim=dim,
                            u=nn.Parameter(torch.empty(shape)),
                            v=nn.Parameter(torch.empty(shape)),
                            segments=True,
                        ),
                        bias=False,
                    ),
                    dim=dim,
                    ffn=ffn,
                    dropout=dropout,
                    epsilon=epsilon,
                    inner_dropout=inner_dropout,
                )
                for _ in range(depth)
            ]
            network = Network(
                embedding=Words(vocab=vocab, dim=dim, dropout=dropout),
                encoder=Encoder(layers, dropout=dropout),
                head=Tied(vocab=vocab),
                pooler=Pooler(dim=dim) if learning.pools else None,
                dim=dim,
                distances=Distances(dim=dim, clamp=clamp, dropout=dropout),
                query=nn.Parameter(torch.empty(1, dim)),
                memory=memory,
            )
        super().__init__(network, learning)
        initialise(self, learning.seed, normal(std, embedding_std), learning.start)
