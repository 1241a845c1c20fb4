"""A run that is done, opened again: its network with its last weights, and its tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lmab import starting
from lmab.types import BadInput
from lmab.wiring import build_data, build_learner, make

if TYPE_CHECKING:
    from lmab.data.prepare import Prepared
    from lmab.store import Store
    from lmab.train.learner import Learner


@dataclass(frozen=True)
class Trained:
    """config: as the record holds it. learner: in evaluation mode, on the CPU."""

    name: str
    config: dict[str, Any]
    learner: Learner
    prepared: Prepared


def opened(store: Store, given: str) -> Trained:
    """given: how the run's signature begins. BadInput: no such run, or none that is done."""
    record = store.select(given)
    if record.state != "done":
        raise BadInput(f"Run {record.signature} is {record.state}, not done: finish it first.")
    config: dict[str, Any] = {**record.config, "store": str(store.root)}  # wherever it was moved
    objectives = {name: make(node) for name, node in config["objective"].items()}
    prepared, data = build_data(config, objectives)
    learner = build_learner(config, objectives, data, config["seed"])
    learner.load_state_dict(starting.last_weights(store, record.signature, config))
    return Trained(record.signature, config, learner.eval(), prepared)
