"""The layers of TinyBERT (Jiao et al. 2020, arXiv 1909.10351, section 3.1): a student that makes of a text, layer by
layer, what its teacher makes of it.

paper          here
E, H           a hidden state, number 0 of `Encoded.layers` and the others
A              the scores of attention before the softmax
W_e, W_h       regressors
g(m)           depths of `map`
lambda         weight

B  rows   T  positions   S  keys   H  heads
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from lmab.transfer.depths import Map, depths
from lmab.transfer.states import Regressor, States, heads, linear, widths
from lmab.transfer.transfer import Course, Transfer
from lmab.types import Ask, BadInput

if TYPE_CHECKING:
    from torch import Tensor

    from lmab.train.learner import Learner
    from lmab.types import Batch, Seen


class Embedding(States):
    """MSE(E_S W_e, E_T) of what the first layers read (equation 10): a mean over real tokens and the teacher's width.

    regressor: learn W_e "always", as in the paper, or where it is "needed", since the widths differ.
    """

    name = "embedding"

    def __init__(
        self,
        *,
        regressor: Regressor,
        weight: float,
        until: float | None,
        course: Course,
        begin: float,
        end: float,
    ) -> None:
        super().__init__(weight=weight, until=until, course=course, begin=begin, end=end)
        self._wanted: Regressor = regressor

    def build(self, student: Learner, teacher: Learner) -> None:
        super().build(student, teacher)
        if self._whole:
            raise BadInput("transfer=[embedding] compares embeddings, and model=mlp has none: leave it out.")
        self.regressor = linear(widths(student)[0], widths(teacher)[0], self._wanted, bias=False)

    def loss(self, student: Seen, teacher: Seen, batch: Batch) -> Tensor:
        mine = self.regressor(student.encoded.layers[0])
        return self.squares(mine, teacher.encoded.layers[0], batch).mean(-1).sum()


class Hidden(States):
    """The sum over the student's layers m of MSE(H_m W_h, H_g(m)) (equation 9), each a mean over real tokens and the
    teacher's width.

    map: g, as in `depths`. regressor: as in Embedding. shared: one W_h for all layers, as in the published code; else
    one for each.
    """

    name = "hidden"

    def __init__(
        self,
        *,
        map: Map,  # noqa: A002
        regressor: Regressor,
        shared: bool,
        weight: float,
        until: float | None,
        course: Course,
        begin: float,
        end: float,
    ) -> None:
        super().__init__(weight=weight, until=until, course=course, begin=begin, end=end)
        self.map: Map = map
        self.shared = shared
        self._wanted: Regressor = regressor

    def build(self, student: Learner, teacher: Learner) -> None:
        super().build(student, teacher)
        mine, theirs = widths(student), widths(teacher)
        self.depths = depths(self.map, len(mine) - 1, len(theirs) - 1, term=self.name, lowest=0)
        sizes = [(mine[m], theirs[g]) for m, g in enumerate(self.depths, 1)]
        if self.shared and len(set(sizes)) > 1:
            raise BadInput(
                f"transfer.hidden.shared=true is one map for all layers, and map={self.map} pairs layers of different "
                f"widths: give transfer.hidden.shared=false."
            )
        made = sizes[:1] if self.shared else sizes
        self.regressors = nn.ModuleList(linear(*both, self._wanted, bias=False) for both in made)

    def loss(self, student: Seen, teacher: Seen, batch: Batch) -> Tensor:
        lost = []
        for m, g in enumerate(self.depths, 1):
            mine = self.regressors[0 if self.shared else m - 1](student.encoded.layers[m])
            lost.append(self.squares(mine, teacher.encoded.layers[g], batch).mean(-1).sum())
        return torch.stack(lost).sum()


class Attention(Transfer):
    """The sum over the student's layers m of 1/h sum_i MSE(A_m,i, A_g(m),i) (equation 7), each a mean over the pairs of
    a query and a key that it may see, neither of them padding. The published code takes padding in, as zeros.

    map: g, as in `depths`; a list begins at 1. Keys of a memory are left out: the two may remember differently far.
    """

    name = "attention"

    def __init__(
        self,
        *,
        map: Map,  # noqa: A002
        weight: float,
        until: float | None,
        course: Course,
        begin: float,
        end: float,
    ) -> None:
        super().__init__(weight=weight, until=until, course=course, begin=begin, end=end)
        self.map: Map = map

    def ask(self) -> Ask:
        return Ask(attention=True)

    def build(self, student: Learner, teacher: Learner) -> None:
        mine, theirs = heads(student), heads(teacher)
        if not mine or not theirs:
            raise BadInput("transfer=[attention] compares scores of attention, and model=mlp has none: leave it out.")
        self.depths = depths(self.map, len(mine), len(theirs), term=self.name, lowest=1)
        for own, g in zip(mine, self.depths, strict=True):
            if own != theirs[g - 1]:
                raise BadInput(
                    f"transfer=[attention] compares head by head, and the student has {own} heads where its teacher "
                    f"has {theirs[g - 1]}: give model.heads={theirs[g - 1]}."
                )

    def count(self, batch: Batch) -> int:
        B, T = batch.tokens.shape
        seen = pairs(batch)
        return B * T * T if seen is None else int(seen.expand(B, 1, T, T).sum())

    def loss(self, student: Seen, teacher: Seen, batch: Batch) -> Tensor:
        T = batch.tokens.shape[1]
        seen, lost = pairs(batch), []
        for mine, g in zip(student.encoded.attention, self.depths, strict=True):
            theirs = teacher.encoded.attention[g - 1].detach()[..., -T:]
            difference = mine[..., -T:] - theirs  # [B, H, T, T]
            if difference.dtype != torch.float64:
                difference = mine[..., -T:].float() - theirs.float()
            if seen is not None:
                difference = difference.masked_fill(~seen, 0.0)
            lost.append(difference.square().mean(1).sum())
        return torch.stack(lost).sum()


def pairs(batch: Batch) -> Tensor | None:
    """[B or 1, 1, 1 or T, T] bool: a query and a key that it may see, both real tokens; None: all of them."""
    if batch.lengths is None:
        return batch.view.visible
    real = torch.arange(batch.tokens.shape[1], device=batch.tokens.device) < batch.lengths[:, None]
    both = real[:, None, :, None] & real[:, None, None]
    return both if batch.view.visible is None else both & batch.view.visible
