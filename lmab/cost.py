"""What a model costs, counted before anything is trained, and measured by the clock.

D  dim   F  ffn   T  length of a row   W = 2 T - 1  distances   E  embedding
"""

from __future__ import annotations

import contextlib
import ctypes
import resource
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from lmab.machine import machine
from lmab.types import Batch, View
from lmab.wiring import bare_learner

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import nn

    from lmab.nn.network import Network
    from lmab.train.learner import Learner

RUNS = 5  # of which the fastest counts: the others waited for something else
_PROC = Path("/proc/self")


def row(length: int, rows: int, device: torch.device | str) -> Batch:
    """A batch of full rows."""
    return Batch(
        tokens=torch.zeros((rows, length), dtype=torch.int64, device=device),
        segments=None,
        view=View(),
        targets={},
        document=torch.zeros(rows, dtype=torch.int64, device=device),
        examples=rows,
        real=rows * length,
    )


@contextlib.contextmanager
def counted() -> Iterator[FlopCounterMode]:
    """Counts what forward passes compute, without gradients."""
    # The fused kernels are not in the counter's table on every device; the plain ones do the same arithmetic.
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        yield counter


def sizes(config: Mapping[str, Any]) -> dict[str, float]:
    """Figures of a configuration that is composed and typed, on the meta device; the corpus is not touched.

    cost/parameters: each once, with the token head and the heads of the objectives. cost/encoder_parameters: without
    these, as papers count. cost/flops_a_token: of one forward pass of the encoder over a full row of `model.length`.
    """
    learner = bare_learner(config, seed=None)
    network, length = learner.network.eval(), config["model"]["length"]
    encoder = (p.numel() for name, p in network.named_parameters() if not name.startswith("head."))
    with counted() as counter:
        network(row(length, 1, "meta"))
    return {
        "cost/parameters": sum(p.numel() for p in learner.parameters()),
        "cost/encoder_parameters": sum(encoder),
        "cost/flops_a_token": counter.get_total_flops() / length,
    }


def formula(model: Mapping[str, Any]) -> float:
    """FLOPs a token of one forward pass of the encoder over one full row without memory, two for each product and sum.

    Every layer has 4 D^2 for queries, keys, values and results, 2 D F for the feed-forward part and 2 T D for scores
    and their mixture; a relative scheme projects W distances, D^2 each (once for all rows that are read together), and
    holds every query against all of them; a factorised embedding has E D. A perceptron reads a row of T pixels once,
    T D and then D^2 a layer. Norms, activations and softmax are left out, as in the papers.
    """
    D, T = model["dim"], model["length"]
    kind = model["_target_"].rpartition(".")[2]
    if kind == "MLP":
        return 2 * (T * D + (model["depth"] - 1) * D * D) / T
    layer = 4 * D * D + 2 * D * model["ffn"] + 2 * T * D
    if kind == "XLNet" or model.get("positions") == "relative":
        layer += (2 * T - 1) / T * D * D + (2 * T - 1) * D
    elif model.get("positions") == "shaw":
        layer += (2 * T - 1) * D
    layers = model["depth"] * model.get("inner", 1)
    return 2 * (layers * layer + model.get("embedding", 0) * D)


def latency(network: nn.Module, length: int, rows: int, device: torch.device) -> float:
    """Seconds of one forward pass over `rows` full rows, in evaluation mode."""
    batch = row(length, rows, device)
    found = []
    with torch.inference_mode():
        for _ in range(RUNS):
            began = time.perf_counter()
            network(batch)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            found.append(time.perf_counter() - began)
    return min(found)


class Peak:
    """The most memory that was held since the last reset, in bytes: of the GPU, or of this process."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def reset(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            return
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)  # glibc keeps what an earlier run no longer needs
            (_PROC / "clear_refs").write_text("5")  # Linux sets the peak to what is held now

    def bytes(self) -> int:
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        status = _PROC / "status"
        if status.exists():
            (line,) = (text for text in status.read_text().splitlines() if text.startswith("VmHWM:"))
            return int(line.split()[1]) * 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def measured(config: Mapping[str, Any]) -> dict[str, float]:
    """Seconds of a forward pass over one row and over 32, and of training on rows of its content alone the tokens a
    second and the peak of memory in bytes. The model has its first weights, and the rows say one word over and over.
    """
    learner = bare_learner(config, seed=0)
    length = config["segments"]["length"]
    device = torch.device("cpu")
    with machine(config["trainer"]["threads"]):
        found = {f"cost/latency_{rows}": latency(learner.eval().network, length, rows, device) for rows in (1, 32)}
        peak = Peak(device)
        peak.reset()
        found["cost/tokens_a_second"] = _training(
            learner.train(), config["trainer"]["micro"] or config["trainer"]["batch"], length
        )
        found["cost/peak_memory"] = peak.bytes()
    return found


def _training(learner: Learner, rows: int, length: int) -> float:
    """Tokens a second of forward and backward passes with one place in six asked for; where the network has no scores
    over a vocabulary, without them."""
    network, batch = cast("Network", learner.network), row(length, rows, "cpu")
    places = torch.arange(0, rows * length, 6)
    found = []
    for _ in range(RUNS):
        began = time.perf_counter()
        losses = network(batch, places).hidden
        if hasattr(network, "token_losses"):
            losses, _ = network.token_losses(losses, torch.zeros_like(places))
        losses.mean().backward()
        learner.zero_grad()
        found.append(time.perf_counter() - began)
    return rows * length / min(found)
