"""Optimisers and schedules. A schedule is a pure function of the optimiser step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from lmab.types import BadInput

if TYPE_CHECKING:
    from torch import nn


class Optim(Protocol):
    """Makes an optimiser for a module's parameters."""

    def build(self, module: nn.Module) -> torch.optim.Optimizer: ...


class Schedule(Protocol):
    """The factor on the learning rate at a step."""

    def factor(self, step: int, steps: int) -> float: ...


def decay_groups(module: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Parameters that decay, and those that do not: biases and the gains of norms, whatever they are called
    (Devlin et al. 2018, published code). A parameter shared by two modules stands once."""
    spared = {
        id(p)
        for m in module.modules()
        for name, p in m.named_parameters(recurse=False)
        if isinstance(m, torch.nn.LayerNorm) or name.endswith("bias")
    }
    kept = [p for p in module.parameters() if p.requires_grad]
    return [
        {"params": [p for p in kept if id(p) not in spared], "weight_decay": weight_decay},
        {"params": [p for p in kept if id(p) in spared], "weight_decay": 0.0},
    ]


def _counts(warmup: int) -> None:
    if warmup < 0:
        raise BadInput(f"schedule.warmup={warmup} cannot work: give a number of optimiser steps, 0 for none.")


@dataclass(frozen=True, kw_only=True)
class Moments:
    """The knobs of optimisers that divide a mean of gradients by the root of a mean of their squares."""

    lr: float
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float

    def __post_init__(self) -> None:
        for name in ("lr", "epsilon"):
            if not 0 < getattr(self, name) < math.inf:
                raise BadInput(f"optim.{name}={getattr(self, name)} cannot work: give a number above 0.")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise BadInput(f"optim.{name}={getattr(self, name)} cannot work: give a number from 0 to below 1.")
        if not 0 <= self.weight_decay < math.inf:
            raise BadInput(f"optim.weight_decay={self.weight_decay} cannot work: give a number from 0 up, 0 for none.")


@dataclass(frozen=True, kw_only=True)
class AdamW(Moments):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019)."""

    def build(self, module: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(
            decay_groups(module, self.weight_decay),
            lr=self.lr,
            betas=(self.beta1, self.beta2),
            eps=self.epsilon,
            fused=True,
        )


@dataclass(frozen=True, kw_only=True)
class Linear:
    """Up from 0 over `warmup` optimiser steps, then down to 0 at the last (Devlin et al. 2018, A.2)."""

    warmup: int

    def __post_init__(self) -> None:
        _counts(self.warmup)

    def factor(self, step: int, steps: int) -> float:
        if step < self.warmup:
            return (step + 1) / self.warmup
        return max(0.0, (steps - step) / max(1, steps - self.warmup))


@dataclass(frozen=True, kw_only=True)
class Constant:
    """Up from 0 over `warmup` optimiser steps, then flat."""

    warmup: int

    def __post_init__(self) -> None:
        _counts(self.warmup)

    def factor(self, step: int, steps: int) -> float:
        return min(1.0, (step + 1) / max(1, self.warmup))


@dataclass(frozen=True, kw_only=True)
class Cosine:
    """Up from 0 over `warmup` optimiser steps, then down to 0 along half a cosine (the published code of
    Transformer-XL)."""

    warmup: int

    def __post_init__(self) -> None:
        _counts(self.warmup)

    def factor(self, step: int, steps: int) -> float:
        if step < self.warmup:
            return (step + 1) / self.warmup
        return 0.5 + 0.5 * math.cos(math.pi * min(1.0, (step - self.warmup) / max(1, steps - self.warmup)))
