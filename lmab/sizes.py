"""What a model costs, said before anything is trained: of a configuration, on the meta device, without a corpus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from lmab.cost import row
from lmab.wiring import bare_learner

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn


def sizes(config: Mapping[str, Any]) -> dict[str, float]:
    """Figures of a configuration that is composed and typed; the corpus is not touched.

    cost/parameters: each once, with the token head and the heads of the objectives. cost/encoder_parameters: without
    these, as papers count. cost/flops_a_token: of one forward pass of the encoder over a full row of `model.length`.
    """
    learner = bare_learner(config, seed=None)
    network, length = learner.network, config["model"]["length"]
    encoder = (p.numel() for name, p in network.named_parameters() if not name.startswith("head."))
    return {
        "cost/parameters": sum(p.numel() for p in learner.parameters()),
        "cost/encoder_parameters": sum(encoder),
        "cost/flops_a_token": _forward(network, length) / length,
    }


def _forward(network: nn.Module, length: int) -> int:
    """FLOPs of one row of `length` tokens."""
    batch = row(length, 1, "meta")
    network.eval()
    # The fused kernels are not in the counter's table on every device; the plain ones do the same arithmetic.
    with (
        torch.no_grad(),
        torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
        FlopCounterMode(display=False) as counter,
    ):
        network(batch)
    return counter.get_total_flops()
