"""What only several parts of a configuration together can say: that they fit."""

from __future__ import annotations

import math
import pydoc
from typing import TYPE_CHECKING, Any

from lmab.types import BadInput

if TYPE_CHECKING:
    from collections.abc import Mapping


def fits(config: dict[str, Any]) -> dict[str, Any]:
    """What only several parts together can say."""
    train, held = config["trainer"], config["evaluation"]
    if not config.get("objective"):
        raise BadInput("objective=[] leaves nothing to learn: choose at least one, as in objective=[mlm].")
    if held["checkpoint"] not in ("last", "best"):
        raise BadInput(f"evaluation.checkpoint={held['checkpoint']} is neither last nor best.")
    # Only models that count positions from the start of a row have an end of them.
    room = math.inf if "memory" in config["model"] else config["model"]["length"]
    for key, part in (("segments", config["segments"]), ("evaluation.segments", held["segments"])):
        if part["length"] > room:
            raise BadInput(
                f"{key}.length={part['length']} does not fit into the model's positions, model.length={room}."
            )
    if config["tokenizer"]["vocab"] > config["model"]["vocab"]:
        raise BadInput(
            f"tokenizer.vocab={config['tokenizer']['vocab']} has more types than the model's embedding, "
            f"model.vocab={config['model']['vocab']}: give both the same number."
        )
    if config["frozen"] and config["start"] is None:
        raise BadInput("frozen=true probes nothing that was learnt: give the run to probe, start=...")
    _objectives(config)
    _memory(config)
    _images(config)
    _teaching(config)
    _augmented(config)
    if config["split"].get("omit") and config["task"] is None:
        raise BadInput(f"split.omit={config['split']['omit']} leaves out classes, and a corpus has none: give task=...")
    if train["devices"] not in (1, "1"):
        raise BadInput(
            f"trainer.devices={train['devices']} is not supported: a run trains on one device; give several runs to "
            f"several devices with a launcher, and large batches to one with trainer.micro."
        )
    if train["micro"] is not None and train["batch"] % train["micro"]:
        raise BadInput(
            f"trainer.batch={train['batch']} is no multiple of trainer.micro={train['micro']}: the nearest is "
            f"{max(1, round(train['batch'] / train['micro'])) * train['micro']}."
        )
    return config


def _objectives(config: Mapping[str, Any]) -> None:
    """Objectives that find what they learn from, and do not spoil each other."""
    chosen = config["objective"]
    classes = {name: pydoc.locate(node["_target_"]) for name, node in chosen.items()}
    tokens = [name for name, found in classes.items() if getattr(found, "nats_a_token", False)]
    if len(tokens) > 1:
        raise BadInput(
            f"objective=[{','.join(tokens)}] predicts one text in {len(tokens)} ways, of which one spoils what "
            f"another reads: choose one of them."
        )
    causal = [name for name, node in chosen.items() if name == "clm" or node.get("causal")]
    for name, found in classes.items():
        wanted = getattr(found, "negatives", None)
        if wanted is None:
            continue
        for key, part in (("segments", config["segments"]), ("evaluation.segments", config["evaluation"]["segments"])):
            there = part.get("negatives", wanted if key != "segments" else None)
            if there != wanted:
                raise BadInput(
                    f"objective=[{name}] learns from pairs of which half are {wanted}: give {key}=segment_pair with "
                    f"{key}.negatives={wanted}, not {there}."
                )
        if causal and not config["segments"].get("last"):
            raise BadInput(
                f"objective=[{name}] reads the first place of a row, which sees nothing else beside "
                f"objective=[{causal[0]}]: give segments.last=true, or leave one of them out."
            )


def _memory(config: Mapping[str, Any]) -> None:
    """A memory only where positions say something about earlier rows."""
    model, held = config["model"], config["evaluation"]["memory"]
    if held and ("memory" not in model or model.get("positions") == "sinusoidal"):
        raise BadInput(
            f"evaluation.memory={held} cannot work: this model counts positions from the start of a row, which say "
            f"nothing about earlier rows, so give evaluation.memory=0 or null."
        )


def _teaching(config: Mapping[str, Any]) -> None:
    """A teacher and something to be learnt from it, or neither."""
    chosen = {name: pydoc.locate(node["_target_"]) for name, node in config["transfer"].items()}
    if chosen and config["teacher"] is None:
        raise BadInput(
            f"transfer=[{','.join(chosen)}] has nobody to learn from: give teacher=..., a run, hf:PATH, minilm or the "
            f"overrides of a run to do first."
        )
    if config["teacher"] is not None and not chosen:
        raise BadInput("teacher=... teaches nothing: choose what, as in transfer=[labels,soft_targets].")
    if config["teacher"] is None and config["plain"]:
        raise BadInput("plain=true does the same student without its teacher, and there is none: give teacher=...")
    if chosen and config["frozen"]:
        raise BadInput("frozen=true leaves a student nothing to learn but its head: leave it out beside a teacher.")


def _augmented(config: Mapping[str, Any]) -> None:
    """Examples of a task to make more of, and whom that takes."""
    if config.get("augment") is None:
        return
    from lmab import augmenting  # here, so that reading records wants no torch

    if not augmenting.wanted(config):
        return
    if config["task"] is None:
        raise BadInput("augment=masked_lm makes more training examples of a task, and there is none: give task=...")
    if not any(isinstance(config[key], str | list) for key in ("start", "teacher")):  # else not looked up yet
        augmenting.source(config)


_IMAGES = {"model": "model=mlp reads", "tokenizer": "tokenizer=levels splits", "augment": "augment=shifts moves"}


def _images(config: Mapping[str, Any]) -> None:
    """Images and text each with what is made for them."""
    found = {key: for_images(config.get(key)) for key in (*_IMAGES, "task")}
    for key, does in _IMAGES.items():
        if found[key] and not found["task"]:
            raise BadInput(f"{does} images, and what is learnt from here is text: give task=digits, or leave it out.")
    if found["model"] and not found["tokenizer"]:
        raise BadInput("model=mlp reads grey levels: give tokenizer=levels, as experiment=digits does.")
    if not found["tokenizer"]:
        return
    for name, node in config["objective"].items():
        chosen = pydoc.locate(node["_target_"])
        if getattr(chosen, "nats_a_token", False) or hasattr(chosen, "negatives"):
            raise BadInput(f"objective=[{name}] learns from text, and these are images: give objective=[classify].")
        if found["model"] and (node["pool"], node["layers"], node["causal"]) != ("last", [-1], False):
            raise BadInput(
                f"model=mlp says one thing of a row as a whole: give objective.{name}.pool=last, .layers=[-1] and "
                f".causal=false."
            )
        if found["model"] and node["head"] == "pooler":
            raise BadInput(f"objective.{name}.head=pooler is not in model=mlp: give objective.{name}.head=linear.")
    if found["model"] and config["segments"]["length"] != config["model"]["length"]:
        raise BadInput(
            f"model.length={config['model']['length']} pixels and segments.length={config['segments']['length']} are "
            f"one number to model=mlp: give both the same, 64 for task=digits."
        )


def for_images(node: Mapping[str, Any] | None) -> bool:
    """Is this part of a configuration made for images?"""
    return node is not None and bool(getattr(pydoc.locate(node["_target_"]), "images", False))
