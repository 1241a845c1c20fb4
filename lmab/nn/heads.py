"""Hidden states to scores. The embedding is handed in at the call, so that a tied weight is one parameter by
construction.

    N  places   D  width   V  types
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

from lmab.nn.cross_entropy import cross_entropy
from lmab.nn.layer import ACTIVATIONS, Activation
from lmab.types import BadInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


class Tied(nn.Module):
    """Scores over the vocabulary: h E^T + b, with E the embedding itself (Dai et al. 2019; Yang et al. 2019)."""

    def __init__(self, *, vocab: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.empty(vocab))

    def forward(self, hidden: Tensor, embedding: Tensor) -> Tensor:
        """hidden: [N, D]; embedding: [V, D]. Returns [N, V]."""
        return F.linear(hidden, embedding, self.bias)

    def losses(self, hidden: Tensor, embedding: Tensor, answers: Tensor) -> tuple[Tensor, Tensor]:
        """answers: [N]. Returns the losses in nats [N], and whether the answer had the highest score [N] bool."""
        return cross_entropy(self(hidden, embedding), answers)


class TokenHead(Tied):
    """norm(f(W h)) E^T + b (Devlin et al. 2018, A.2 and the published code).

    out: width of the embedding where it is another than dim.
    """

    def __init__(
        self, *, dim: int, vocab: int, epsilon: float, out: int | None = None, activation: Activation = "gelu"
    ) -> None:
        super().__init__(vocab=vocab)
        self.transform = nn.Linear(dim, out or dim)
        self.norm = nn.LayerNorm(out or dim, epsilon)
        self.activation = ACTIVATIONS[activation]

    def forward(self, hidden: Tensor, embedding: Tensor) -> Tensor:
        return super().forward(self.norm(self.activation(self.transform(hidden))), embedding)


class Adaptive(Tied):
    """Adaptive softmax (Grave et al. 2017): frequent types and one score for each cluster of rarer ones; inside a
    cluster a softmax of its own. Types are numbered by falling frequency.

    cutoffs: the first type of each cluster. All clusters keep the full width (div_val 1 in the published code).
    """

    def __init__(self, *, dim: int, vocab: int, cutoffs: Sequence[int]) -> None:
        super().__init__(vocab=vocab)
        self.ends = (*cutoffs, vocab)
        if list(self.ends) != sorted(set(self.ends)) or self.ends[0] < 1:
            raise BadInput(f"model.cutoffs={[*cutoffs]} do not rise from 1 to below model.vocab={vocab}.")
        self.clusters = nn.Linear(dim, len(cutoffs))

    def forward(self, hidden: Tensor, embedding: Tensor) -> Tensor:
        """Returns log probabilities [N, V], which are scores too."""
        head = self._head(hidden, embedding)
        parts = [head[:, : self.ends[0]]]
        for cluster in range(len(self.ends) - 1):
            inside = self._inside(hidden, embedding, cluster)
            parts.append(head[:, self.ends[0] + cluster, None] + inside)
        return torch.cat(parts, 1)

    def losses(self, hidden: Tensor, embedding: Tensor, answers: Tensor) -> tuple[Tensor, Tensor]:
        """Only the clusters in which answers lie are computed. A hit is said where the answer beats all types of
        its own cluster and its cluster all others."""
        head = self._head(hidden, embedding)
        cluster = torch.bucketize(answers, torch.tensor(self.ends[:-1], device=answers.device), right=True) - 1
        column = torch.where(cluster < 0, answers, self.ends[0] + cluster)
        found = head.gather(1, column[:, None]).squeeze(1)
        hits = found >= head.amax(1)
        for number in range(len(self.ends) - 1):
            (rows,) = (cluster == number).nonzero(as_tuple=True)
            if len(rows):
                inside = self._inside(hidden[rows], embedding, number)
                mine = inside.gather(1, (answers[rows] - self.ends[number])[:, None]).squeeze(1)
                found = found.index_add(0, rows, mine)
                hits = hits.index_put((rows,), hits[rows] & (mine >= inside.amax(1)))
        return -found, hits

    def _head(self, hidden: Tensor, embedding: Tensor) -> Tensor:
        """Log probabilities [N, frequent types + clusters]."""
        frequent = F.linear(hidden, embedding[: self.ends[0]], self.bias[: self.ends[0]])
        return _log_shares(torch.cat([frequent, self.clusters(hidden)], 1))

    def _inside(self, hidden: Tensor, embedding: Tensor, cluster: int) -> Tensor:
        """Log probabilities of a cluster's types, given the cluster."""
        types = slice(self.ends[cluster], self.ends[cluster + 1])
        return _log_shares(F.linear(hidden, embedding[types], self.bias[types]))


def _log_shares(scores: Tensor) -> Tensor:
    """log softmax, in float32 at least."""
    return (scores if scores.dtype == torch.float64 else scores.float()).log_softmax(1)


class Pooler(nn.Module):
    """tanh(W h), of the [CLS] place (Devlin et al. 2018, published code)."""

    def __init__(self, *, dim: int) -> None:
        super().__init__()
        self.dense = nn.Linear(dim, dim)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.dense(hidden).tanh()
