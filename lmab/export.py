"""A trained run as a Hugging Face checkpoint, which transformers opens by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmab.interop import checkpoint
from lmab.nn.quantize import settle
from lmab.starting import class_names
from lmab.trained import opened
from lmab.types import BadInput

if TYPE_CHECKING:
    from pathlib import Path

    from lmab.store import Store


def export(store: Store, given: str, folder: Path) -> list[str]:
    """Write the weights with which a run was scored, and its tokenizer, to a new folder.

    given: how the run's signature begins. A classifier of a task goes with it where it is built like theirs: it reads
    the pooler at the first place, or in XLNet a dense layer at the last. Returns the modules that are left out: those
    that have no place there, and the scores over the vocabulary where no objective of the run taught them. BadInput: no
    such run, none that is done, a model that theirs cannot be, a folder that is not empty.
    """
    run = opened(store, given)
    settle(run.learner)  # what was measured is what low precision left
    if run.prepared.vocabulary.first < 0:
        raise BadInput(
            f"Run {run.name} reads images, for which transformers' text models have no place: export a run of text."
        )
    weights = run.learner.state_dict()
    taught = any(getattr(objective, "nats_a_token", False) for objective in run.learner.objectives.values())
    kept = {name: weight for name, weight in weights.items() if taught or not name.startswith("network.head.")}
    head = run.config["objective"].get("classify")
    classes = None if head is None else class_names(run.config["task"], head["classes"]) or ["score"]
    left = checkpoint.write(folder, run.config["model"], kept, run.prepared.tokenizer, classes, head)
    return sorted({name.rpartition(".")[0] for name in [*left, *(weights.keys() - kept.keys())]})
