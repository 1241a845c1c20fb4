"""LAMB: Adam whose step is as long as the weights it moves (You et al. 2019, arXiv 1904.00962, algorithm 2).

paper         here
x, g          a parameter and its gradient
m, v          the decayed means of g and of g^2
lambda        weight_decay
phi           the identity, without bounds
"""

# torch keeps its operations on many tensors at once, and Adam's kernel, behind an underscore.
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch

from lmab.train.optim import Moments, decay_groups

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor, nn


class LayerwiseAdam(torch.optim.Optimizer):
    """x = x - lr * ratio * (r + lambda x), where r is Adam's step with its means corrected for beginning at zero,
    and ratio = |x| / |r + lambda x| for each parameter as a whole, 1 where either norm is 0.

    A group with adapt=False keeps a ratio of 1: its parameters take Adam's step. The projection of queries, keys
    and values is one parameter here, and so has one ratio.
    """

    def __init__(
        self,
        params: Iterable[dict[str, Any]],
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        adapt: bool = True,
    ) -> None:
        knobs = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "adapt": adapt}
        # So torch brings the number of steps, when it is read from a checkpoint, to where the parameters are.
        super().__init__(params, knobs | {"fused": True})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            moved = [p for p in group["params"] if p.grad is not None]
            if moved:
                self._move(moved, group)
        return loss

    def _move(self, weights: list[Tensor], group: dict[str, Any]) -> None:
        for weight in weights:
            if not self.state[weight]:
                step = torch.zeros((), dtype=torch.float32, device=weight.device)
                self.state[weight] = {"step": step, "m": torch.zeros_like(weight), "v": torch.zeros_like(weight)}
        steps, m, v = ([self.state[weight][name] for weight in weights] for name in ("step", "m", "v"))
        gradients = cast("list[Tensor]", [weight.grad for weight in weights])
        torch._foreach_add_(steps, 1)

        # Adam's kernel with a rate of 1 makes -r out of zeros, in one pass over all that it reads.
        move = [torch.zeros_like(weight) for weight in weights]
        beta1, beta2 = group["betas"]
        torch._fused_adam_(
            move,
            gradients,
            m,
            v,
            [],
            steps,
            lr=1.0,
            beta1=beta1,
            beta2=beta2,
            weight_decay=0.0,
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
        )
        if group["weight_decay"]:
            torch._foreach_add_(move, weights, alpha=-group["weight_decay"])
        if group["adapt"]:
            # On the device alone: nothing here waits for a number.
            size, change = (torch.stack(torch._foreach_norm(those)) for those in (weights, move))
            ratios = torch.where((size > 0) & (change > 0), size / change, 1.0)
            torch._foreach_addcmul_(weights, move, list(ratios.unbind()), value=group["lr"])
        else:
            torch._foreach_add_(weights, move, alpha=group["lr"])


@dataclass(frozen=True, kw_only=True)
class LAMB(Moments):
    """Biases and the gains of norms neither decay nor adapt, as in the published code of ALBERT, where what is
    excluded from decay is by default excluded from adaptation. That code does not correct the means for beginning
    at zero; the paper's algorithm does, and so does this."""

    def build(self, module: nn.Module) -> torch.optim.Optimizer:
        decaying, spared = decay_groups(module, self.weight_decay)
        return LayerwiseAdam(
            [decaying, spared | {"adapt": False}],
            lr=self.lr,
            betas=(self.beta1, self.beta2),
            eps=self.epsilon,
            weight_decay=self.weight_decay,
        )
