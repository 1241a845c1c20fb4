"""A resolved configuration to objects: the only place that wires them together."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate

from lmab import augmenting
from lmab.checks import nearest
from lmab.data.collate import Collate
from lmab.data.module import Data
from lmab.data.order import HeldOut, training
from lmab.data.prepare import Prepared, prepare
from lmab.data.replace import Replacement
from lmab.data.rows import Rows
from lmab.data.tasks import prepare_task
from lmab.data.tokenizer import Ready
from lmab.fits import for_images
from lmab.nn.quantize import quantize
from lmab.rng import derive
from lmab.train.stepping import Learning
from lmab.types import BadInput

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from lmab.train.learner import Learner


def make(node: Mapping[str, Any], *args: Any) -> Any:
    """The object that a node with `_target_` describes. BadInput: its class refuses the values, in its own words.

    args go by position, since Hydra would take a dataclass given by name for configuration.
    """
    try:
        return instantiate(node, *args, _convert_="all")  # lists are lists
    except InstantiationException as error:
        if isinstance(error.__cause__, ValueError):  # ours, or torch's own, as for a dropout of 2
            raise BadInput(str(error.__cause__)) from error
        raise


def made(nodes: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The objects of several nodes, as of `objective` or `transfer`, by their keys."""
    return {name: make(node) for name, node in nodes.items()}


def named(node: Mapping[str, Any]) -> Any:
    """What gives text: a corpus or a task, whose content is named in its node too."""
    return make({k: v for k, v in node.items() if k != "fingerprint"})


def build_prepared(config: Mapping[str, Any]) -> Prepared:
    """The rows of a resolved configuration, built if they are not there."""
    task = config["task"]
    source = config["start"] or config["teacher"]
    if source is not None and "run" in source and not for_images(config["tokenizer"]):
        # The text of the run it starts or learns from may be another, and its numbers mean what they meant there.
        learner: Any = Ready(
            path=str(build_prepared({**source["config"], "store": config["store"], "augment": None}).tokenizer),
            vocab=config["model"]["vocab"],
        )
    else:
        learner = named(config["tokenizer"])
    root, split, segments = Path(config["store"]) / "data", make(config["split"]), make(config["segments"])
    if task is not None:
        augment = None if config.get("augment") is None else make(config["augment"])
        predicted = isinstance(augment, Replacement)
        return prepare_task(
            root,
            task=named(task),
            fingerprint=task["fingerprint"],
            split=split,
            learner=learner,
            length=segments.length,
            last=getattr(segments, "last", False),
            augment=None if predicted else augment,
            replace=augmenting.replacing(config, augment, bare_learner) if predicted else None,
        )
    return prepare(
        root,
        corpus=named(config["corpus"]),
        fingerprint=config["corpus"]["fingerprint"],
        split=split,
        learner=learner,
        segments=segments,
        held_out=make(config["evaluation"]["segments"]),
    )


def _held_out(noises: Mapping[str, Any], changes: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The noises as held-out text has them. BadInput: a change to what is not there."""
    for name, values in changes.items():
        if name not in noises:
            raise BadInput(f"evaluation.noise.{name} is no objective that was chosen: {nearest(name, [*noises])}")
        known = [f.name for f in fields(noises[name])]
        for key in values:
            if key not in known:
                raise BadInput(f"evaluation.noise.{name}.{key} is no knob of its noise: {nearest(key, known)}")
    return {name: replace(noise, **changes.get(name, {})) for name, noise in noises.items()}


def build_data(config: Mapping[str, Any], objectives: Mapping[str, Any]) -> tuple[Prepared, Data]:
    """The corpus' rows, built if they are not there, and the batches of a resolved configuration."""
    segments = make(config["segments"])
    prepared = build_prepared(config)
    noises = {name: objective.noise for name, objective in objectives.items()}
    train, held = config["trainer"], config["evaluation"]
    fixed = _held_out(noises, held["noise"])
    rows = {part: Rows(folder) for part, folder in prepared.folders.items()}

    def held_out(part: str) -> HeldOut:
        # Keyed by the evaluation's own seed: one frozen masking for every arm and every seed of a claim, which
        # no training run draws.
        collate = Collate(fixed, prepared.vocabulary, derive("held-out", part, held["seed"]))
        return HeldOut(rows[part], collate, batch=held["batch"])

    data = Data(
        train=training(
            rows["train"],
            Collate(noises, prepared.vocabulary, config["seed"]),
            segments,
            batch=train["batch"],
            micro=train["micro"] or train["batch"],
            steps=train["steps"],
            seed=config["seed"],
        ),
        validation=held_out("validation"),
        test=held_out("test"),
        workers=train["workers"],
    )
    return prepared, data


def bare_learner(config: Mapping[str, Any], seed: int | None, start: Mapping[str, Tensor] | None = None) -> Learner:
    """The model of a configuration whose text nobody has read. seed: None for sizes without memory. start: its first
    weights."""
    return _built(config, _learning(config, made(config["objective"]), {}, seed, start))


def build_learner(
    config: Mapping[str, Any],
    objectives: Mapping[str, Any],
    data: Data,
    seed: int | None,
    start: Mapping[str, Tensor] | None = None,
) -> Learner:
    """The model of a resolved configuration. seed: None for sizes without memory. start: its first weights."""
    documents = {"validation": data.validation.documents, "test": data.test.documents}
    return _built(config, _learning(config, objectives, documents, seed, start))


def _built(config: Mapping[str, Any], learning: Learning) -> Learner:
    learner = make(config["model"], learning)
    if config["quantize"] is not None:
        quantize(learner, make(config["quantize"]))
    return learner


def _learning(
    config: Mapping[str, Any],
    objectives: Mapping[str, Any],
    documents: dict[str, int],
    seed: int | None,
    start: Mapping[str, Tensor] | None,
) -> Learning:
    return Learning(
        objectives=objectives,
        optim=make(config["optim"]),
        schedule=make(config["schedule"]),
        steps=config["trainer"]["steps"],
        clip=config["trainer"]["clip"],
        seed=seed,
        documents=documents,
        start=start,
        frozen=config["frozen"],
        memory=config["evaluation"]["memory"],
        reach=config["evaluation"]["reach"],
    )
