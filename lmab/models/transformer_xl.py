"""Transformer-XL (Dai et al. 2019, arXiv 1901.02860): segments that remember, and distances instead of positions.

paper         here
L             the length of a row (segments.length)
M             memory
N             depth
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import nn

from lmab.nn.attention import Attention, width
from lmab.nn.embedding import Words
from lmab.nn.encoder import Encoder
from lmab.nn.heads import Adaptive, Pooler, Tied
from lmab.nn.layer import Layer
from lmab.nn.network import Network, initialise, normal, positive
from lmab.nn.position import Absolute, Distances, Relative, Shaw
from lmab.train.learner import Learner
from lmab.types import BadInput

if TYPE_CHECKING:
    from lmab.train.stepping import Learning


class TransformerXL(Learner):
    """Post-norm layers whose keys and values reach back into what earlier rows made (section 3.2), with relative
    positions (section 3.3). What a place may see is the objective's: it is a language model with objective=[clm].

    memory: places of every depth that are remembered from row to row, 0 for no recurrence. length: the longest row.
    positions: "relative" as in the paper, "shaw" (learned vectors for distances), "sinusoidal" (added to the
    embedding; these cannot go with a memory, section 3.3). untied: u and v of every layer are its own. clamp: distances
    beyond this count as this, null for no bound. cutoffs: where the clusters of an adaptive softmax begin, [] for a
    plain one. dropout: on embeddings, distances, inside and after sublayers; attention_dropout: on attention weights.
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
        positions: Literal["relative", "shaw", "sinusoidal"],
        untied: bool,
        clamp: int | None,
        cutoffs: list[int],
        dropout: float,
        attention_dropout: float,
        epsilon: float,
        std: float,
        embedding_std: float,
    ) -> None:
        positive(vocab=vocab, dim=dim, depth=depth, heads=heads, ffn=ffn, length=length)
        if memory < 0 or (memory and positions == "sinusoidal"):
            raise BadInput(
                f"model.memory={memory} cannot work"
                + (
                    ": positions that are counted from the start of a row say nothing about earlier rows, so give "
                    "model.memory=0, or model.positions=relative."
                    if memory > 0
                    else ": give a number of places, 0 for no recurrence."
                )
            )

        def biases() -> tuple[nn.Parameter, nn.Parameter]:
            shape = (heads, width(dim, heads))
            return nn.Parameter(torch.empty(shape)), nn.Parameter(torch.empty(shape))

        with torch.device("meta"):
            shared = biases()

            def scheme() -> nn.Module:
                if positions == "sinusoidal":
                    return Absolute()
                if positions == "shaw":
                    return Shaw(heads=heads, width=width(dim, heads), length=length + memory)
                u, v = biases() if untied else shared
                return Relative(dim=dim, u=u, v=v)

            layers = [
                Layer(
                    attention=Attention(dim=dim, heads=heads, dropout=attention_dropout, position=scheme(), bias=False),
                    dim=dim,
                    ffn=ffn,
                    dropout=dropout,
                    epsilon=epsilon,
                    activation="relu",
                    inner_dropout=dropout,
                )
                for _ in range(depth)
            ]
            relative = positions == "relative"
            network = Network(
                embedding=Words(vocab=vocab, dim=dim, dropout=dropout, scaled=True, absolute=positions == "sinusoidal"),
                encoder=Encoder(layers, dropout=dropout),
                head=Adaptive(dim=dim, vocab=vocab, cutoffs=cutoffs) if cutoffs else Tied(vocab=vocab),
                pooler=Pooler(dim=dim) if learning.pools else None,
                dim=dim,
                distances=Distances(dim=dim, clamp=clamp, dropout=dropout) if relative else None,
                memory=memory,
            )
        super().__init__(network, learning)
        initialise(self, learning.seed, normal(std, embedding_std), learning.start)
