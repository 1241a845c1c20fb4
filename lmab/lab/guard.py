"""Which metrics can be compared between which runs: a loss that the ablation itself redefines ranks nothing."""

from __future__ import annotations

import json
import pydoc
from typing import TYPE_CHECKING, Any

from lmab.store import splitter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

# What a loss over held-out text is measured on. Two runs that differ here answered different questions.
# The training text is among it, since the tokenizer is learnt from that.
_HELD_OUT = ("evaluation", "tokenizer", "corpus.fingerprint", "task.fingerprint", "split")
# The labels of a task are the same whatever its texts are split into, and no corpus is read.
_LABELLED = ("evaluation", "task.fingerprint", "split")
# Here the model only saw more or less of the text before the same targets, or took them up in other batches.
_CONTEXT = ("evaluation.batch", "evaluation.memory", "evaluation.reach")
# What is left of the training text is the model's alone: the tokenizer is learnt from all of it.
_TRAINING = ("split.share", "split.omit")
_BITS = "bits_per_byte"


def flat(config: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of every leaf."""
    for key, value in config.items():
        place = f"{path}.{key}" if path else str(key)
        if isinstance(value, dict) and value:
            yield from flat(value, place)
        else:
            yield place, value


def differences(configs: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Dotted key -> its value in each configuration (None where it is missing), for keys that differ."""
    leaves = [dict(flat(config)) for config in configs]
    keys = dict.fromkeys(key for leaf in leaves for key in leaf)
    table = {key: [leaf.get(key) for leaf in leaves] for key in keys}
    return {key: row for key, row in table.items() if any(value != row[0] for value in row)}


def redefined(metric: str, configs: list[Mapping[str, Any]]) -> list[str]:
    """The keys in which the configurations differ and which change what `metric` measures; empty if it can be
    compared. metric: `stage/objective_quantity`, as in test/mlm_loss."""
    own: set[str] = set()
    tokens = False
    for config in configs:
        name = objective(metric, config.get("objective", {}))
        if name:
            node = config["objective"][name]
            target: Any = pydoc.locate(node["_target_"])
            tokens = tokens or getattr(target, "nats_a_token", False)
            # A knob that held-out text has fixed for itself changes nothing there.
            fixed = config.get("evaluation", {}).get("noise", {}).get(name, {})
            own |= {f"objective.{name}.{knob}" for knob in getattr(target, "redefines", ()) if knob not in fixed}
    labelled = not tokens and all(config.get("task") for config in configs)
    held_out = _LABELLED if labelled else _HELD_OUT
    if metric.endswith(_BITS):  # those of the text, whatever tokens it is split into
        held_out = tuple(held for held in held_out if held != "tokenizer")
    found = []
    for key in differences(configs):
        inside = any(key == held or key.startswith(f"{held}.") for held in held_out)
        if key in own or (inside and key not in (*_CONTEXT, *_TRAINING)):
            found.append(key)
    by_token = tokens and not metric.endswith(_BITS)
    splits = {json.dumps(_split_elsewhere(config), sort_keys=True) for config in configs}
    if by_token and len(splits) > 1:
        found.append("start")  # each splits the text as the run that it starts from
    if _against_teacher(metric, configs) and len({_teacher(config) for config in configs}) > 1:
        found.append("teacher")  # each is held against its own
    return list(dict.fromkeys(found))


def _split_elsewhere(config: Mapping[str, Any]) -> Any:
    """How a run splits text that starts or learns elsewhere, None where it does neither."""
    return splitter(config) if config.get("start") or config.get("teacher") else None


def _teacher(config: Mapping[str, Any]) -> str | None:
    """Whom a run learns from, by name."""
    said = config.get("teacher") or {}
    return said.get("run") or said.get("fingerprint")


def _against_teacher(metric: str, configs: Iterable[Mapping[str, Any]]) -> bool:
    """Does a metric say what a student is beside its teacher?"""
    if not any(config.get("teacher") for config in configs):
        return False
    from lmab.transfer.measures import OF_BOTH  # here, so that reading records wants no torch

    return metric.endswith((*(f"_{quantity}" for quantity in OF_BOTH), "_pull"))


def metrics(config: Mapping[str, Any]) -> list[str]:
    """The held-out metrics that a run of this configuration records for every document."""
    found = []
    for name, node in config.get("objective", {}).items():
        whole = not config.get("task") and getattr(pydoc.locate(node["_target_"]), "whole_text", False)
        quantities = ["loss", "accuracy", *([_BITS] if whole else [])]
        if config.get("teacher") is not None:
            from lmab.transfer.measures import OF_BOTH, OF_TEACHER  # here, so that reading records wants no torch

            number = node.get("classes") == 1  # an answer is a number, and no share is given to it
            quantities += OF_TEACHER if number else (*OF_TEACHER, *OF_BOTH)
        if config.get("split", {}).get("omit"):
            from lmab.omitted import QUANTITIES

            quantities += QUANTITIES
        found += [f"test/{name}_{quantity}" for quantity in quantities]
    return found + [f"test/{name}_pull" for name in config.get("transfer", {}) if name == "soft_targets"]


def objective(metric: str, names: Iterable[str]) -> str | None:
    """Whose metric it is."""
    rest = metric.partition("/")[2]
    return max((name for name in names if rest.startswith(f"{name}_")), key=len, default=None)
