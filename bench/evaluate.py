"""Evaluation with a long reach: a memory against a window that slides on by one token (Dai et al. 2019, table 9).

A model without a memory that is to see the last A tokens before every prediction reads A tokens anew for each; one
with a memory reads each token once. Both are the same network here, and see equally far. The ratio is of seconds a
predicted token, measured in turns in one process; the paper has 363 for 800 tokens and 1,874 for 3,800, on a GPU.

    python -m bench.evaluate
"""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import click
import torch

from lmab.cost import row
from lmab.lab.costs import config
from lmab.machine import machine
from lmab.types import View
from lmab.wiring import bare_learner

if TYPE_CHECKING:
    from lmab.nn.network import Network

ROW = 64  # tokens that are read at once where there is a memory


def _view(length: int) -> View:
    return View(torch.ones(1, 1, length, length, dtype=torch.bool).tril())


def remembering(network: Network, reach: int, tokens: int) -> float:
    """Seconds a token: rows one after another, each with a memory of `reach` places."""
    batch = replace(row(ROW, 1, "cpu"), view=_view(ROW))
    memory = tuple(torch.zeros(1, reach, network.dim) for _ in network.encoder.order)
    began = time.perf_counter()
    for _ in range(max(1, tokens // ROW)):
        memory = network(batch, memory=memory, remember=reach).memory
    return (time.perf_counter() - began) / (max(1, tokens // ROW) * ROW)


def sliding(network: Network, reach: int, windows: int) -> float:
    """Seconds a token: windows of `reach` tokens, of which each says one."""
    batch = replace(row(reach, windows, "cpu"), view=_view(reach))
    last = torch.arange(1, windows + 1) * reach - 1
    began = time.perf_counter()
    network(batch, last)
    return (time.perf_counter() - began) / windows


@click.command()
@click.option("--turns", default=5, help="Turns of each side.")
@click.option("--budget", default="mini", help="Whose sizes the model has.")
@click.option("--reach", default="128,512,1024", help="Attention lengths, with commas.")
def main(turns: int, budget: str, reach: str) -> None:
    learner = bare_learner(config(["experiment=transformer_xl", f"budget={budget}"]), seed=0).eval()
    network = cast("Network", learner.network)
    with machine(1), torch.inference_mode():
        for length in map(int, reach.split(",")):
            ratios = []
            for _ in range(turns + 1):  # the first warms up
                ours = remembering(network, length, 8 * ROW)
                ratios.append(sliding(network, length, 4) / ours)
            low, mid, high = min(ratios[1:]), statistics.median(ratios[1:]), max(ratios[1:])
            print(
                f"attention over {length:5}: a sliding window takes {mid:.0f} times as long ({low:.0f} to {high:.0f})"
            )


if __name__ == "__main__":
    main()
