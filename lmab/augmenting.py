"""Who predicts the words that augment=masked_lm puts in place of others: a masked LM that was trained before."""

from __future__ import annotations

import logging
import pydoc
from typing import TYPE_CHECKING, Any, cast

import torch

from lmab import starting
from lmab.data.replace import Replacement, Replacing, whole
from lmab.store import Store
from lmab.types import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from lmab.data.replace import Predict
    from lmab.nn.network import Network
    from lmab.train.learner import Learner
    from lmab.types import Batch, Vocabulary

    # A configuration, a seed and first weights to a model without text.
    Build = Callable[[Mapping[str, Any], int, Mapping[str, Tensor] | None], Learner]

log = logging.getLogger(__name__)


def wanted(config: Mapping[str, Any]) -> bool:
    """Does a model make this run's training rows?"""
    node = config.get("augment")
    return node is not None and pydoc.locate(node["_target_"]) is Replacement


def without(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with the training rows as they are before a model, which may not be there yet, adds to them."""
    return {**config, "augment": None} if wanted(config) else {**config}


def source(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a resolved configuration says of the masked LM from which its teacher started, or it itself if it has none.

    It is looked for along the way: each run's teacher, where that was done first, or else its start. BadInput: there is
    none that learnt from masked tokens, and no checkpoint that came with its token head.
    """
    said = _before(config)
    while said is not None:
        if "run" not in said:
            if any(name.startswith("network.head.") for name in starting.published(said["checkpoint"]).weights):
                return said
            break
        if _masked(said["config"]):
            return said
        said = _before(said["config"])
    raise BadInput(
        "augment=masked_lm asks a masked LM for words, and this run has none before it: let its teacher start from "
        "one, as teacher=['experiment=finetune'] does, or from a checkpoint with its token head, or leave augment out."
    )


def _before(config: Mapping[str, Any]) -> dict[str, Any] | None:
    terms = (config.get("transfer") or {}).values()
    joint = any(getattr(pydoc.locate(node["_target_"]), "joint", False) for node in terms)
    return config.get("start") if joint else config.get("teacher") or config.get("start")


def _masked(config: Mapping[str, Any]) -> bool:
    """Did a run learn to tell masked tokens? A student that follows layers alone is only scored on them."""
    told = config.get("teacher") is None or {"labels", "soft_targets"} & {*config["transfer"]}
    return bool(told) and "mlm" in config["objective"] and not config["objective"]["mlm"]["causal"]


def replacing(config: Mapping[str, Any], how: Replacement, build: Build) -> Replacing:
    """What makes the training rows of a resolved configuration. build: makes models."""
    said = source(config)

    def opened() -> Predict:
        log.info("A masked LM, %s, is asked for other words in the training rows, once for all.", name)
        return _opened(config, said, build)

    name = str(said.get("run") or said["fingerprint"])
    return Replacing(how, name, opened, config["evaluation"]["batch"])


def _opened(config: Mapping[str, Any], said: Mapping[str, Any], build: Build) -> Predict:
    """The masked LM in evaluation mode, where training will be."""
    if "run" in said:
        own = {**said["config"], "store": config["store"]}
        learner = build(own, own["seed"], None)
        learner.load_state_dict(starting.last_weights(Store(config["store"]), said["run"], own))
    else:
        found = starting.published(said["checkpoint"])
        own = {**config, "model": found.model, "objective": {}, "quantize": None, "frozen": False}
        learner = build(own, 0, found.weights)
    gpu = config["trainer"]["accelerator"] != "cpu" and torch.cuda.is_available()
    learner = learner.eval().to("cuda" if gpu else "cpu")
    network = cast("Network", learner.network)

    @torch.no_grad()
    def predict(batch: Batch, places: Tensor) -> Tensor:
        encoded = network(batch.to(learner.device), places.to(learner.device))
        return network.token_logits(encoded.hidden)

    return predict


def refuse(how: object, words: Vocabulary) -> None:
    """BadInput: more candidates than there are words to choose from. how: any way to make more of examples."""
    if isinstance(how, Replacement) and how.candidates > (most := int(whole(words).sum())):
        raise BadInput(
            f"augment.candidates={how.candidates} are more than the {most} types of the tokenizer that are words by "
            f"themselves: give augment.candidates={most} at most."
        )
