"""Distillation steps a second: with a teacher that answers in every step, and with its answers kept.

A small classifier learns from the labels and from the soft targets of a larger one. One student trains, in one process
with one thread; its teacher answers live and from what was kept in turns of some steps each, Lightning included. Both
are held against the same student that learns from the labels alone. What it costs to keep the answers is given in live
steps, and from how many steps on it pays. No teacher is trained for this: what it says takes as long.

    python -m bench.distil [--turns 7] [--seconds 4]
"""

from __future__ import annotations

import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytorch_lightning as pl
import torch
from hydra import compose, initialize_config_dir

from lmab.machine import machine
from lmab.run import build_data, build_learner, resolve
from lmab.transfer.distiller import Distiller
from lmab.transfer.labels import Labels
from lmab.transfer.soft_targets import SoftTargets
from lmab.transfer.teacher import cached
from lmab.types import Ask
from lmab.wiring import make

if TYPE_CHECKING:
    from lmab.data.module import Data
    from lmab.transfer.teacher import Cached

TASK = ["task=rotten_tomatoes", "objective=[classify]", "segments.length=32", "trainer.batch=32", "split.train=2000"]
STUDENT = ["model.dim=64", "model.depth=2", "model.heads=2", "model.ffn=256"]
TEACHERS = {  # name -> sizes
    "depth 4, dim 128": ["model.dim=128", "model.depth=4", "model.heads=4", "model.ffn=512"],
    "depth 12, dim 256": ["model.dim=256", "model.depth=12", "model.heads=4", "model.ffn=1024"],
}
ALWAYS: dict[str, Any] = {"until": None, "course": "constant", "begin": 0.0, "end": 1.0}


class Turns(pl.Callback):
    """Lets each side have a turn after the other, and counts its steps a second. sides: name -> the terms of the loss
    that have a weight, and the kept answers, if the teacher need not be asked."""

    def __init__(self, sides: dict[str, tuple[dict[str, float], Cached | None]], turns: int, seconds: float) -> None:
        self.sides, self.turns, self.seconds = sides, turns, seconds
        self.speeds: dict[str, list[float]] = {name: [] for name in sides}
        self.names, self.number = [*sides], 0
        self.steps, self.began = 0, 0.0

    def _turn(self, distiller: Distiller) -> None:
        weights, distiller.cached = self.sides[self.names[self.number % len(self.names)]]
        for name, term in distiller.terms.items():
            term.weight = weights.get(name, 0.0)  # type: ignore[assignment]
        self.steps, self.began = 0, time.perf_counter()

    def on_train_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        self._turn(pl_module)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.steps += 1
        spent = time.perf_counter() - self.began
        warm = self.number >= len(self.names)
        if spent < (self.seconds if warm else 0.5):
            return
        if warm:  # all sides had a turn before anything counts
            self.speeds[self.names[self.number % len(self.names)]].append(self.steps / spent)
        self.number += 1
        trainer.should_stop = self.number == len(self.names) * (self.turns + 1)
        self._turn(pl_module)


def measure(teacher: list[str], store: str, turns: int, seconds: float) -> tuple[dict[str, list[float]], float]:
    """Steps a second of each side in each turn, and the seconds that it took to keep the answers."""

    def learner(sizes: list[str]) -> tuple[Any, Data]:
        with initialize_config_dir(str(Path(__file__).parents[1] / "conf"), version_base="1.3"):
            cfg = compose("config", [*TASK, *sizes, f"store={store}", "tracker=none", "trainer.steps=1000000"])
        config, _ = resolve(cfg)
        objectives = {name: make(node) for name, node in config["objective"].items()}
        _, data = build_data(config, objectives)
        return build_learner(config, objectives, data, 0), data

    student, data = learner(STUDENT)
    soft = SoftTargets(temperature=4.0, loss="cross_entropy", factor=True, objective=None, weight=1.0, **ALWAYS)
    terms = {"labels": Labels(weight=0.5, **ALWAYS), "soft_targets": soft}
    distiller = Distiller(student, learner(teacher)[0], terms)
    began = time.perf_counter()
    kept = cached(
        Path(store) / "teachers",
        distiller.teacher,  # type: ignore[arg-type]
        data.train.rows,
        data.train.collate,
        Ask(scores=frozenset(["classify"])),
        key=teacher,
        batch=128,
        device=torch.device("cpu"),
    )
    spent = time.perf_counter() - began
    both = {"labels": 0.5, "soft_targets": 1.0}
    callback = Turns({"alone": ({"labels": 1.0}, None), "live": (both, None), "kept": (both, kept)}, turns, seconds)
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=1,
        limit_val_batches=0,
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(distiller, train_dataloaders=data.train_dataloader())
    return callback.speeds, spent


def ratio(one: list[float], other: list[float]) -> str:
    """Of the medians, and from the least to the most of a turn."""
    each = sorted(a / b for a, b in zip(one, other, strict=True))
    return f"{statistics.median(one) / statistics.median(other):.2f} ({each[0]:.2f} to {each[-1]:.2f})"


@click.command()
@click.option("--turns", default=7, help="Turns of each side.")
@click.option("--seconds", default=4.0, help="Length of a turn.")
def main(turns: int, seconds: float) -> None:
    """Print the ratios."""
    warnings.simplefilter("ignore")
    with machine(threads=1), tempfile.TemporaryDirectory() as store:
        for name, sizes in TEACHERS.items():
            speeds, spent = measure(sizes, store, turns, seconds)
            alone, live, kept = (statistics.median(speeds[side]) for side in ("alone", "live", "kept"))
            print(
                f"teacher of {name}: {kept:.0f} steps a second with its answers kept, {live:.0f} live, {alone:.0f} "
                f"with labels alone.\n  Kept to live {ratio(speeds['kept'], speeds['live'])}; to labels alone: kept "
                f"{ratio(speeds['kept'], speeds['alone'])}, live {ratio(speeds['live'], speeds['alone'])}.\n"
                f"  To keep them takes as long as {spent * live:.0f} live steps, and pays from "
                f"{spent / (1 / live - 1 / kept):.0f} steps on."
            )


if __name__ == "__main__":
    main()
