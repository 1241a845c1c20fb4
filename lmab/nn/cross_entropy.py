"""Cross entropy over a vocabulary, with as few passes over the scores as the mathematics needs.

torch's own keeps log-probabilities, fills a second matrix with zeros for the backward pass and takes exponentials
again there. Over a vocabulary that is a third of a small model's time. Here one exponential serves both passes.

    N  targets   V  types
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _CrossEntropy(torch.autograd.Function):
    """loss = log sum_v exp(z_v) - z_answer; its gradient is softmax(z) - onehot(answer)."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, answers: Tensor) -> tuple[Tensor, Tensor]:
        highest = logits.amax(-1, keepdim=True)  # [N, 1]
        asked = logits.gather(-1, answers[:, None])  # [N, 1]
        shares = logits.softmax(-1)  # [N, V], one fused pass
        # The largest share is at least 1 / V, so its logarithm is exact where the answer's own would not be:
        # log sum_v exp(z_v) = max_v z_v - log max_v softmax(z)_v.
        spread = -shares.amax(-1, keepdim=True).log()
        ctx.save_for_backward(shares, answers)
        hits = (asked >= highest).squeeze(-1)
        ctx.mark_non_differentiable(hits)
        return (spread + (highest - asked)).squeeze(-1), hits

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  (the decorator hides its names)
        ctx: Any, *grad_outputs: Any
    ) -> tuple[Tensor, None]:
        shares, answers = ctx.saved_tensors
        gradient = grad_outputs[0][:, None]  # [N, 1]
        # In place: the largest matrix of the step is not copied. A second backward pass is refused by torch.
        found = shares.mul_(gradient)
        return found.scatter_add_(-1, answers[:, None], -gradient), None


def cross_entropy(logits: Tensor, answers: Tensor) -> tuple[Tensor, Tensor]:
    """logits: [N, V]; answers: [N] int64. Returns the losses in nats [N], and whether the answer had the highest
    score [N] bool. Computed in float32 at least."""
    return _CrossEntropy.apply(logits if logits.dtype == torch.float64 else logits.float(), answers)  # type: ignore[return-value]
