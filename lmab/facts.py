"""What a record says beside its scores: where it comes from, what its data were, what it cost."""

from __future__ import annotations

import math
import platform
import subprocess
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from lmab.cost import counted, latency, row
from lmab.rng import derive

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lmab.cost import Peak
    from lmab.data.module import Data
    from lmab.data.prepare import Prepared
    from lmab.store import Record
    from lmab.train.learner import Learner

_PACKAGES = (
    "lmab",
    "torch",
    "pytorch-lightning",
    "hydra-core",
    "datasets",
    "tokenizers",
    "torchmetrics",
    "numpy",
    "wandb",
)


def versions() -> dict[str, str]:
    """Of python, of the libraries that can change a result, and of the machine."""
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def code() -> dict[str, Any]:
    """The git revision of this package and whether the tree differed from it; empty outside a repository."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        return {"revision": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.CalledProcessError):
        return {}


def of_data(prepared: Prepared, data: Data, objectives: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Sizes, the plateaus, how often the training text repeats, and what each noise really did."""
    train = data.train
    found: dict[str, Any] = dict(prepared.facts)
    found["threads"] = torch.get_num_threads()
    found["epochs"] = train.steps * train.batch / len(train.rows)
    found["blind_nats"] = {
        name: {part: _blind(data.test.collate.noises[name], prepared, part) for part in ("validation", "test")}
        for name, objective in objectives.items()
        if getattr(objective, "nats_a_token", False)
    }
    for name, objective in objectives.items():
        if hasattr(objective.noise, "describe"):
            sample = train.examples(0)
            key = derive(seed, "noise", name)
            found[name] = objective.noise.describe(sample, prepared.vocabulary, key)
    return found


def _blind(noise: Any, prepared: Prepared, part: str) -> float:
    """What a model without context loses on a part, in nats a target: the unigram entropy, less what the place itself
    gives away."""
    if not hasattr(noise, "blind_nats"):
        return prepared.unigram_nats(part)
    return noise.blind_nats(prepared.likely(), prepared.counts[part] / prepared.counts[part].sum())


def gains(record: Record, objectives: Mapping[str, Any], test: Mapping[str, float]) -> dict[str, float]:
    """Perplexity, and how many nats a model gained over the unigram distribution, for losses in nats a token.

    test/x_gain: on the test part. learnt/x_gain: over a model without context, at its best moment, on the validation
    part or on its own training text: a model whose best moment is not clearly above 0 never left the plateau, and
    nothing can be read off it. One that learnt its training text by heart has left it, whatever it does on other text.
    """
    found: dict[str, float] = {}
    unigram = record.facts["unigram_nats"]
    for name, objective in objectives.items():
        if not getattr(objective, "nats_a_token", False) or f"test/{name}_loss" not in test:
            continue
        points = [v for _, v in record.curves.get(f"val/{name}_loss", [])]
        points += [v for _, v in record.curves.get(f"train/{name}_loss", [])][-1:]
        found[f"test/{name}_perplexity"] = math.exp(min(test[f"test/{name}_loss"], 700.0))
        found[f"test/{name}_gain"] = unigram["test"] - test[f"test/{name}_loss"]
        blind = record.facts["blind_nats"][name]["validation"]
        found[f"learnt/{name}_gain"] = blind - min(points, default=math.inf)
    return found


def bits_per_byte(
    documents: Mapping[str, tuple[list[float], list[float]]],
    objectives: Mapping[str, Any],
    prepared: Prepared,
    data: Data,
) -> dict[str, tuple[list[float], list[float]]]:
    """Metric -> (bits a byte of every test document, its bytes), for losses over whole texts: these compare models
    that split text into other tokens. The first token of a document is predicted by nobody: its bytes count, and it
    costs no bits."""
    found = {}
    for name, objective in objectives.items():
        if not prepared.bytes["test"]:  # a task's texts may be cut
            continue
        halved = getattr(data.test.collate.noises[name], "half", False)
        if getattr(objective, "whole_text", False) and not halved and f"test/{name}_loss" in documents:
            sizes = [float(prepared.bytes["test"][number]) for number in np.unique(data.test.rows.document).tolist()]
            means, targets = (np.array(column) for column in documents[f"test/{name}_loss"])
            nats = np.where(targets > 0, means * targets, 0.0)
            found[f"test/{name}_bits_per_byte"] = ((nats / math.log(2) / np.array(sizes)).tolist(), sizes)
    return found


def cost(learner: Learner, data: Data, tokens: int, seconds: float, peak: Peak) -> dict[str, float]:
    """parameters: each counted once, however often it is used. flops_a_token: of one training step (forward and
    twice that for backward, of which a probe has next to nothing), counted by torch on a real batch; padding counts,
    since it is computed. latency_1, latency_32: seconds of a forward pass over so many full rows. peak_memory: bytes,
    since the run began."""
    memory = peak.bytes()
    # The first training rows, with noise as in training but the same for every seed, whatever each draws.
    index = np.arange(min(data.train.micro, len(data.train.rows)))
    collate = replace(data.train.collate, seed=derive("cost"))
    micro = collate(data.train.rows.take(index, np.zeros_like(index))).to(learner.device)
    learner.eval()
    with torch.no_grad():  # once before, so that a memory is full
        for _ in learner.outcomes(micro, "cost"):
            pass
    with counted() as counter:
        for _ in learner.outcomes(micro, "cost"):
            pass
    threads = torch.get_num_threads()
    return {
        "seconds": seconds,
        "core_seconds": seconds * threads,
        "tokens": tokens,
        "tokens_a_second": tokens / seconds if seconds else math.nan,
        "parameters": sum(p.numel() for p in learner.parameters()),
        "flops_a_token": (1 if learner.learning.frozen else 3) * counter.get_total_flops() / micro.tokens.numel(),
        "latency_1": latency(learner.network, data.train.rows.width, 1, learner.device),
        "latency_32": latency(learner.network, data.train.rows.width, 32, learner.device),
        "peak_memory": memory,
    }


def teacher_cost(teacher: Learner, length: int) -> dict[str, float]:
    """The same of a teacher, as far as it can be held against its student's: of a forward pass over full rows."""
    with counted() as counter:
        teacher.network(row(length, 1, teacher.device))
    return {
        "teacher_parameters": sum(p.numel() for p in teacher.parameters()),
        "teacher_flops_a_token": counter.get_total_flops() / length,
        "teacher_latency_1": latency(teacher.network, length, 1, teacher.device),
        "teacher_latency_32": latency(teacher.network, length, 32, teacher.device),
    }
