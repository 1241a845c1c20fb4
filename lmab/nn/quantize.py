"""Matrices in low precision, while full precision is what learns (Mishra and Marr 2018, Apprentice, arXiv 1711.05852).

A matrix W is seen as Q(W) by whoever multiplies with it, and the gradient of Q(W) is taken for that of W (the
straight-through estimator): the optimiser moves W, in float32, which a checkpoint keeps. Activations stay as they are.

s  the scale of a matrix or of each of its rows   k  bits
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import nn
from torch.nn.utils import parametrize

from lmab.types import BadInput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

_LEARNT = ".parametrizations.weight.original"  # what torch calls W where a module sees Q(W)


@dataclass(frozen=True, kw_only=True)
class Quantize(ABC):
    """scale: one for a whole matrix, as in the papers, or one for each of its rows, that is, for what a unit reads.
    edges: the first and the last layer too (embeddings, pooler and heads; of a perceptron the layer that reads the
    pixels), which the paper leaves in full precision."""

    scale: Literal["tensor", "row"]
    edges: bool

    @property
    @abstractmethod
    def width(self) -> int:
        """Bits of a weight."""

    @abstractmethod
    def __call__(self, weight: Tensor) -> Tensor:
        """Q(W) for W [R, C], with at most 2^width values in whatever has one scale."""

    def mean(self, values: Tensor) -> Tensor:
        """Over whatever has one scale, [R or 1, 1]."""
        return values.mean(1, keepdim=True) if self.scale == "row" else values.mean().view(1, 1)

    def largest(self, values: Tensor) -> Tensor:
        """The same of the largest."""
        return values.amax(1, keepdim=True) if self.scale == "row" else values.amax().view(1, 1)


@dataclass(frozen=True, kw_only=True)
class Uniform(Quantize):
    """Q(w) = s round(L w / s) / L with L = 2^(k-1) - 1 and s = max |w|: even steps, as many below 0 as above (Mishra et
    al. 2018, WRPN, arXiv 1709.01134, where weights are clipped to s = 1; those of a Transformer are much smaller).

    bits: k."""

    bits: int

    def __post_init__(self) -> None:
        if not 2 <= self.bits <= 16:
            raise BadInput(
                f"quantize.bits={self.bits} cannot work: give 2 to 16, or quantize=binary for one bit and "
                f"quantize=null for full precision."
            )

    @property
    def width(self) -> int:
        return self.bits

    def __call__(self, weight: Tensor) -> Tensor:
        steps = 2 ** (self.bits - 1) - 1
        s = self.largest(weight.abs())
        return s * ((weight / _above_zero(s) * steps).round() / steps)


@dataclass(frozen=True, kw_only=True)
class Ternary(Quantize):
    """Q(w) is s or -s where |w| > threshold mean |w|, else 0; s = mean |w| of those (Li and Liu 2016, Ternary Weight
    Networks, arXiv 1605.04711, with a threshold of 0.7). The scale is computed. In the paper of Apprentice the two
    signs have scales of their own, which are learnt (Zhu et al. 2017, arXiv 1612.01064)."""

    threshold: float

    def __post_init__(self) -> None:
        if not 0 <= self.threshold < 1:
            raise BadInput(
                f"quantize.threshold={self.threshold} cannot work: give a share of the mean magnitude, from 0 to below "
                f"1, as 0.7."
            )

    @property
    def width(self) -> int:
        return 2

    def __call__(self, weight: Tensor) -> Tensor:
        size = weight.abs()
        kept = (size > self.threshold * self.mean(size)).to(weight.dtype)
        s = self.mean(size * kept) / _above_zero(self.mean(kept))
        return s * weight.sign() * kept


@dataclass(frozen=True, kw_only=True)
class Binary(Quantize):
    """Q(w) = s where w >= 0 and -s elsewhere, with s = mean |w| (Rastegari et al. 2016, XNOR-Net, arXiv
    1603.05279, section 3.1)."""

    @property
    def width(self) -> int:
        return 1

    def __call__(self, weight: Tensor) -> Tensor:
        s = self.mean(weight.abs())
        return torch.where(weight >= 0, s, -s)


def _above_zero(scale: Tensor) -> Tensor:
    """A row of zeros has the scale 0: what is divided by it is 0 too."""
    return scale.clamp(min=torch.finfo(scale.dtype).tiny)


class StraightThrough(nn.Module):
    """W is seen as Q(W), to the last digit, and has its gradient."""

    def __init__(self, how: Quantize) -> None:
        super().__init__()
        self.how = how

    def forward(self, weight: Tensor) -> Tensor:
        return self.how(weight.detach()) + (weight - weight.detach())


def quantize(learner: nn.Module, how: Quantize) -> None:
    """Let a learner see its matrices in low precision, from their present values on: the linear maps of its encoder, or
    of a perceptron behind its first layer. Biases, norms and vectors stay as they are. BadInput: there are none."""
    found = _matrices(learner, edges=how.edges)
    if not found:
        raise BadInput(
            "quantize leaves the first and the last layer as they are, and model.depth=1 has no other: give "
            "model.depth=2, or quantize.edges=true."
        )
    for module in found:
        parametrize.register_parametrization(module, "weight", StraightThrough(how))


def _matrices(learner: nn.Module, *, edges: bool) -> Sequence[nn.Module]:
    """The modules that hold them, each once, however often it is used."""
    if edges:
        return [part for part in learner.modules() if isinstance(part, nn.Linear | nn.Embedding)]
    network = cast("nn.Module", learner.network)
    inner = [part for part in cast("nn.Module", network.encoder).modules() if isinstance(part, nn.Linear)]
    return inner if hasattr(network, "embedding") else inner[1:]


def full_precision(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state of a quantised learner with the names of one in full precision: its W, not Q(W)."""
    return {name.replace(_LEARNT, ".weight"): tensor for name, tensor in state.items()}


def quantised_names(state: Mapping[str, Tensor], learner: nn.Module) -> dict[str, Tensor]:
    """The same back: a state of full precision with the names that a quantised learner has for it."""
    names = {name.replace(_LEARNT, ".weight"): name for name in learner.state_dict()}
    return {names.get(name, name): tensor for name, tensor in state.items()}


def weight_bytes(learner: nn.Module) -> int:
    """What its weights take: as many bits as a quantised one has, with a scale in float32 for each matrix or row, and
    four bytes for each of the others. What two modules share counts once."""
    bits = {id(weight): 32 * weight.numel() for weight in learner.parameters()}
    for module in learner.modules():
        if parametrize.is_parametrized(module, "weight"):
            held = cast("Any", module).parametrizations.weight
            how, weight = held[0].how, held.original
            bits[id(weight)] = how.width * weight.numel() + 32 * (len(weight) if how.scale == "row" else 1)
    return -(-sum(bits.values()) // 8)


def settle(learner: nn.Module) -> None:
    """Leave Q(W) in the place of W, for good: for another format, and for the time that a forward pass takes."""
    for module in learner.modules():
        if parametrize.is_parametrized(module, "weight"):
            parametrize.remove_parametrizations(module, "weight", leave_parametrized=True)
