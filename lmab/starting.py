"""Where a run starts from: nothing, another run, or a checkpoint that somebody published.

A starting point gives the first weights, the sizes that go with them, and the tokenizer. One that is itself a run is
named by the overrides that make it; it is found in the store or done first.
"""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.utils import instantiate
from omegaconf import OmegaConf

from lmab.interop import checkpoint
from lmab.nn.quantize import full_precision
from lmab.store import Store
from lmab.train.callbacks import damage
from lmab.types import BadInput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from omegaconf import DictConfig
    from torch import Tensor

CONF = Path(__file__).parents[1] / "conf"
# What a run that is done first has of the run that asks for it.
_SHARED = ("seed", "store", "display", "tracker", "sweep", "precision")
_MACHINE = ("accelerator", "threads", "workers")
# How strongly a network is regularised is the recipe's, not the checkpoint's.
_OWN = ("dropout", "attention_dropout", "inner_dropout", "input_dropout")
_STUDENT = "student."
_HEADS = ("network.head.", "network.pooler.", "objectives.")
_CLASSIFIER = "objectives.classify."


@dataclass(frozen=True)
class Start:
    """A starting point. model: the node that its weights fit. tokenizer: a node. says: what the record keeps."""

    model: dict[str, Any]
    tokenizer: dict[str, Any]
    says: dict[str, Any]


def composed(overrides: Sequence[str]) -> DictConfig:
    """The configuration that a command line with these overrides would have, also from inside a Hydra job."""
    return copy.deepcopy(_composed(tuple(overrides)))


@lru_cache(maxsize=64)
def _composed(overrides: tuple[str, ...]) -> DictConfig:
    """Composed once a process: every seed of an arm has the same teacher, and reading all those files takes a while."""
    outer = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            return compose("config", [*overrides])
    finally:
        GlobalHydra.instance().hydra = outer


def overrides(config: Mapping[str, Any], key: str) -> list[str] | None:
    """Those of the run that is to be done for `key`, None where that is no run to be done."""
    given = config[key]
    if key == "teacher" and ready(given) and config["task"] is not None and published(given).labels is None:
        # An encoder that somebody published knows no task of ours: it is fine-tuned first.
        return ["experiment=finetune_ready", f"start='{given}'"]
    return given if isinstance(given, list) else None


def runs_first(config: Mapping[str, Any], key: str = "start") -> DictConfig | None:
    """The configuration of the run that this one starts from, or learns from (key="teacher"), None where that is no run
    to be done. config: as composed, with a list of overrides at `key`."""
    given = overrides(config, key)
    if given is None:
        return None
    budget = config["budget"]["name"]
    named = {override.split("=")[0].lstrip("+~").split("@")[0] for override in given}
    cfg = composed([*([] if "budget" in named else [f"budget={budget}"]), *given])
    if config["sweep"]:
        config = {**config, "sweep": {**config["sweep"], "arm": f"{key} of {config['sweep']['arm']}"}}
    for shared in _SHARED:
        if shared != "seed" or "seed" not in named:
            OmegaConf.update(cfg, shared, config[shared], merge=False)
    for machine in _MACHINE:
        OmegaConf.update(cfg, f"trainer.{machine}", config["trainer"][machine])
    if (config["task"] is not None or key == "teacher") and not any(name.startswith("corpus") for name in named):
        # A corpus beside a task can only be meant for the run that reads one; a teacher reads what its student reads.
        OmegaConf.update(cfg, "corpus", config["corpus"], merge=False)
    if key == "teacher":
        _same_text(cfg, config, named)
    return cfg


def ready(given: Any) -> bool:
    """Is it a checkpoint that somebody published?"""
    return isinstance(given, str) and (given == "minilm" or given.startswith("hf:"))


def _same_text(cfg: DictConfig, config: Mapping[str, Any], named: set[str]) -> None:
    """A teacher learns the task of its student, and what the student is scored on it never saw either."""
    if (cfg.task is None) != (config["task"] is None):
        return
    if config["task"] is not None and not any(name.split(".")[0] == "task" for name in named):
        OmegaConf.update(cfg, "task", config["task"], merge=False)
    for knob in ("seed", "validation", "test"):
        if f"split.{knob}" not in named:
            OmegaConf.update(cfg, f"split.{knob}", config["split"][knob])


def of_run(config: Mapping[str, Any], name: str) -> Start:
    """A run as a starting point. config: its resolved configuration; name: its signature."""
    return Start(config["model"], config["tokenizer"], {"run": name, "config": dict(config)})


def of_checkpoint(given: str) -> Start:
    """hf:PATH, hf:NAME on the hub, or minilm. BadInput: what is there cannot be read."""
    found = published(given)
    tokenizer = {
        "_target_": "lmab.data.tokenizer.Ready",
        "path": str(found.tokenizer),
        "vocab": found.model["vocab"],
        "fingerprint": found.fingerprint,
    }
    says = {"checkpoint": given, "fingerprint": found.fingerprint}
    if found.labels is not None:
        says |= {"labels": [*found.labels], "head": found.head}
    return Start(dict(found.model), tokenizer, says)


@cache
def published(given: str) -> checkpoint.Found:
    """A checkpoint, read once a process. given: hf:PATH, hf:NAME on the hub, or minilm."""
    return checkpoint.read(checkpoint.minilm() if given == "minilm" else checkpoint.find(given.removeprefix("hf:")))


def refuse(overrides: Sequence[str]) -> None:
    """BadInput: an override of a run that starts from elsewhere, of a size that is that of its starting point."""
    for line in overrides:
        key = line.split("=")[0].lstrip("+~")
        if key.startswith("model.") and key.removeprefix("model.") not in _OWN:
            raise BadInput(
                f"{line} has no effect beside start, whose sizes a model has to have: leave it out, or give it to the "
                f"run that start names."
            )


def applied(config: dict[str, Any], start: Start) -> dict[str, Any]:
    """The configuration with the sizes and the tokenizer of its starting point."""
    own = {key: config["model"][key] for key in _OWN if key in config["model"] and key in start.model}
    return config | {"model": start.model | own, "tokenizer": start.tokenizer, "start": start.says}


def weights(config: Mapping[str, Any]) -> dict[str, Tensor] | None:
    """The first weights of a resolved configuration by name, None where it starts from nothing. A probe gets no heads:
    they begin anew, in every arm alike. Failed or missing runs: BadInput."""
    start = config["start"]
    if start is None:
        return None
    if "run" in start:
        found = full_precision(last_weights(Store(config["store"]), start["run"], start["config"]))
        if config["task"] != start["config"]["task"]:  # its classes are others
            found = {name: tensor for name, tensor in found.items() if not name.startswith(_CLASSIFIER)}
    else:
        found = _classified(published(start["checkpoint"]), config)
    if config["frozen"]:
        return {name: tensor for name, tensor in found.items() if not name.startswith(_HEADS)}
    return found


def _classified(found: checkpoint.Found, config: Mapping[str, Any]) -> dict[str, Tensor]:
    """The weights of a checkpoint, with its classifier where it tells the classes of this task apart and is built like
    the one here, whichever numbers it has for them; else without."""
    node = config["objective"].get("classify")
    classes = [] if node is None else class_names(config["task"], node["classes"])
    order = same(found.labels, classes) if found.labels is not None else None
    if order is None or node is None or any(node[key] != value for key, value in found.head.items()):
        return {name: tensor for name, tensor in found.weights.items() if not name.startswith(_CLASSIFIER)}
    return {
        name: tensor[order] if name.startswith(f"{_CLASSIFIER}out.") else tensor
        for name, tensor in found.weights.items()
    }


def class_names(task: Mapping[str, Any] | None, count: int) -> list[str]:
    """What a task's classes are called; a score has one name, whatever it is of."""
    if task is None or count == 1:
        return []
    node = {key: value for key, value in task.items() if key != "fingerprint"}
    return [*instantiate(node, _convert_="all").names]


def same(labels: Sequence[str], classes: Sequence[str]) -> list[int] | None:
    """For each class of ours the number of the label that is it, None where they are others. Names that say nothing,
    as transformers gives them, and a single score are taken in their order."""
    if len(labels) == 1 and not classes:
        return [0]
    if len(labels) != len(classes):
        return None
    if all(re.fullmatch(r"(?i)label_\d+", label) for label in labels):
        return [*range(len(labels))]
    known = [label.lower() for label in labels]
    if sorted(known) != sorted(name.lower() for name in classes):
        return None
    return [known.index(name.lower()) for name in classes]


def last_weights(store: Store, name: str, config: Mapping[str, Any]) -> dict[str, Tensor]:
    """The weights with which a run was scored, by name. config: its own. BadInput: they are not there, or broken; an
    earlier checkpoint would be another starting point under the same name."""
    best = config["evaluation"]["checkpoint"] == "best"
    path = store.folder(name) / "checkpoints" / ("best.ckpt" if best else f"step-{config['trainer']['steps']:07d}.ckpt")
    wrong = damage(path) if path.exists() else "it is missing"
    if wrong is not None:
        raise BadInput(
            f"The last weights of run {name}, {path}, cannot be read ({wrong}): delete {store.folder(name)}, and "
            f"the run is done anew."
        )
    found = torch.load(path, map_location="cpu", weights_only=True)
    found = found if best else found["state_dict"]
    if config.get("teacher") is None:
        return found
    # Of a student and its teacher the student alone goes on.
    return {key.removeprefix(_STUDENT): tensor for key, tensor in found.items() if key.startswith(_STUDENT)}


def done(store: Store, given: str) -> tuple[dict[str, Any], str]:
    """The resolved configuration and the signature of a run that is in the store. given: how its signature begins.
    BadInput: there is none, or it is not done."""
    record = store.select(given.removeprefix("run:"))
    if record.state != "done":
        raise BadInput(f"start={given} is a run that is {record.state}, not done: finish it first.")
    return record.config, record.signature
