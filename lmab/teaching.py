"""A run that learns from another: its teacher, the terms of its loss, and the same student without a teacher."""

from __future__ import annotations

import math
import pydoc
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from lmab import starting
from lmab.facts import teacher_cost
from lmab.rng import derive
from lmab.store import Store, splitter
from lmab.transfer.distiller import Distiller
from lmab.transfer.measures import gap_closed
from lmab.transfer.teacher import Live, cacheable, cached, pays
from lmab.types import BadInput
from lmab.wiring import build_learner, made, named

if TYPE_CHECKING:
    from collections.abc import Mapping

    from omegaconf import DictConfig

    from lmab.data.module import Data
    from lmab.data.prepare import Prepared
    from lmab.starting import Start
    from lmab.store import Record
    from lmab.train.learner import Learner

_LABELS = {
    "labels": {
        "_target_": "lmab.transfer.labels.Labels",
        "weight": 1.0,
        "until": None,
        "course": "constant",
        "begin": 0.0,
        "end": 1.0,
    }
}
PLAIN = ["transfer=[labels]", "plain=false"]


def applied(config: dict[str, Any], teacher: Start) -> dict[str, Any]:
    """The configuration with its teacher's tokenizer: both read the same rows. BadInput: the student has another from
    where it starts, a teacher that cannot read rows as long, or that names the classes otherwise."""
    told = config | {"teacher": teacher.says}
    own = teacher.model
    if "memory" not in own and config["segments"]["length"] > own["length"]:
        raise BadInput(
            f"segments.length={config['segments']['length']} does not fit into the teacher's positions, "
            f"{own['length']}: give shorter rows, or a teacher of longer ones."
        )
    if config["start"] is not None:
        before = splitter(config)
        theirs = splitter({"start": teacher.says})
        if before != theirs:
            raise BadInput(
                "The run that start names and the one that teacher names split text into different tokens, so neither "
                "reads what the other does: start from a student of this teacher, or from the teacher's own start."
            )
    _same_classes(config, teacher)
    told["tokenizer"] = teacher.tokenizer
    told["model"] = config["model"] | {"vocab": own["vocab"]}
    return told


def _same_classes(config: Mapping[str, Any], teacher: Start) -> None:
    theirs = teacher.says.get("config", {}).get("task")
    if config["task"] is None:
        return
    if (labels := teacher.says.get("labels")) is not None:
        _same_labels(config, labels)
    if theirs is None:
        return
    mine, known = ([*named(task).names] for task in (config["task"], theirs))
    if mine != known:
        again = "in another order" if sorted(mine) == sorted(known) else "of another task"
        raise BadInput(
            f"The teacher tells the classes {', '.join(known)} apart and the student {', '.join(mine)}: labels "
            f"{again}, so their scores are not compared; give both one task."
        )


def _same_labels(config: Mapping[str, Any], labels: list[str]) -> None:
    """The classes of a checkpoint are those of the task, number by number."""
    count = config["objective"].get("classify", {}).get("classes", 0)
    mine = starting.class_names(config["task"], count)
    order = starting.same(labels, mine)
    if order is None or order != [*range(len(order))]:
        again = "of another task" if order is None else "in another order"
        raise BadInput(
            f"The teacher tells the classes {', '.join(labels)} apart and the student {', '.join(mine) or 'a score'}: "
            f"labels {again}, so their scores are not compared; give both one task."
        )


def joint(config: Mapping[str, Any]) -> bool:
    """Does the teacher learn beside its student, so that no run of its own comes first?"""
    return any(getattr(pydoc.locate(node["_target_"]), "joint", False) for node in config["transfer"].values())


def without(cfg: DictConfig) -> DictConfig:
    """The same student that learns from labels alone. One that starts from a student of a teacher starts from that
    one's like without."""
    plain = OmegaConf.create(OmegaConf.to_container(cfg, resolve=False))
    assert isinstance(plain, type(cfg))
    for key, value in (("transfer", _LABELS), ("plain", False)):
        OmegaConf.update(plain, key, value, merge=False, force_add=True)
    if OmegaConf.is_list(plain.start):
        first = starting.composed(list(plain.start))
        if first.teacher is not None:
            plain.start = [*plain.start, *PLAIN]
    if plain.sweep:
        plain.sweep.arm = f"{plain.sweep.arm} without a teacher"
    return plain


def distiller(config: Mapping[str, Any], student: Learner, data: Data, seed: int | None) -> Distiller:
    """Teacher and student of a resolved configuration. seed: None for sizes without memory.

    BadInput: terms that do not fit the two; weights that are not there.
    """
    return Distiller(student, _teacher(config, data, seed), made(config["transfer"]))


def _teacher(config: Mapping[str, Any], data: Data, seed: int | None) -> Learner:
    said = config["teacher"]
    if "run" in said:
        own = {**said["config"], "store": config["store"]}
        objectives = made(own["objective"])
        if seed is None:
            return build_learner(own, objectives, data, None)
        if joint(config):
            return build_learner(own, objectives, data, derive(seed, "teacher"))
        found = build_learner(own, objectives, data, own["seed"])
        found.load_state_dict(starting.last_weights(Store(config["store"]), said["run"], own))
        return found
    published = starting.published(said["checkpoint"])
    # Without a head it has no scores that could be compared, and may still be followed layer by layer.
    objective = {}
    if published.labels is not None and "classify" in config["objective"]:
        objective = {"classify": config["objective"]["classify"] | published.head}
    elif any(name.startswith("network.head.") for name in published.weights):
        objective = config["objective"]
    own = {**config, "model": published.model, "quantize": None}
    return build_learner(own, made(objective), data, seed, published.weights)


def at_hand(both: Distiller, config: Mapping[str, Any], data: Data) -> None:
    """Let a teacher answer the training rows once, where they come again as they were and no weight of it changes."""
    live, ask, rows, train = both.teacher, both.asked(), data.train.rows, config["trainer"]
    if not config["cache"] or ask is None or not isinstance(live, Live):
        return
    if not cacheable(rows, data.train.collate.noises.values(), ask):
        return
    if not pays(rows, steps=train["steps"], batch=train["batch"]):
        return
    both.cached = cached(
        Path(config["store"]) / "teachers",
        live,
        rows,
        data.train.collate,
        ask,
        key=[str(config["teacher"].get("run") or config["teacher"]["fingerprint"]), config["precision"]["trainer"]],
        batch=config["evaluation"]["batch"],
        device=both.device,
    )


def refuse_worse(both: Distiller, prepared: Prepared, data: Data) -> None:
    """BadInput: a teacher that knows less than one that always says the commonest class, by more than chance would have
    it one time in twenty."""
    majority = prepared.facts.get("majority")
    if majority is None or both.joint:
        return
    part, least = data.validation, majority["validation"]
    chance = 1.645 * math.sqrt(least * (1 - least) / len(part.rows))
    for name, share in both.hits(part[number] for number in range(len(part))).items():
        if share < least - chance:
            raise BadInput(
                f"The teacher's {name} is right for {share:.3f} of the validation part, and always saying the "
                f"commonest class would be for {least:.3f}: train it for longer, or choose another."
            )


def beside(record: Record, both: Distiller, plain: Record | None) -> None:
    """What the record says of teacher and student together. plain: the run of the same student without a teacher."""
    record.cost |= teacher_cost(both.teacher.learner, record.config["segments"]["length"])
    if plain is None:
        return
    for name in both.shared:
        tokens = getattr(both.student.objectives[name], "nats_a_token", False)
        quantity, sign = ("loss", -1) if tokens else ("accuracy", 1)
        keys = f"test/{name}_plain_{quantity}", f"test/{name}_{quantity}", f"test/{name}_teacher_{quantity}"
        record.metrics[keys[0]] = plain.metrics.get(keys[1], math.nan)
        record.metrics[f"test/{name}_gap_closed"] = gap_closed(*(sign * record.metrics[key] for key in keys))
