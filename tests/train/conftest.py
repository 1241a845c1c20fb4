"""A small BERT on the reviews, or an XLNet on them as streams, wired as a run wires it, with every knob at hand."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import pytorch_lightning as pl

from lmab.data.collate import Collate
from lmab.data.module import Data
from lmab.data.order import HeldOut, training
from lmab.data.prepare import Prepared, Split, prepare
from lmab.data.rows import Rows
from lmab.data.segments import FullSentences
from lmab.data.streams import Streams
from lmab.data.tokenizer import WordPiece
from lmab.models.bert import BERT
from lmab.models.xlnet import XLNet
from lmab.objectives.mlm import MaskedLM
from lmab.objectives.plm import PermutationLM
from lmab.store import Record, Store
from lmab.train.callbacks import Checkpoints, Recorder, last_whole
from lmab.train.optim import AdamW, Linear
from lmab.train.stepping import Learning
from lmab.train.tracker import NoTracker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import torch

    from lmab.data.corpus import Files
    from lmab.train.learner import Learner
    from lmab.train.optim import Optim, Schedule

ROW = 32  # tokens of a row of a stream


@dataclass
class Wired:
    """What a run holds, before it trains."""

    record: Record
    store: Store
    data: Data
    learner: Learner
    recorder: Recorder
    trainer: pl.Trainer

    @property
    def checkpoints(self) -> Path:
        return self.store.folder(self.record.signature) / "checkpoints"

    def fit(self) -> Wired:
        """Train, from the last whole checkpoint if there is one."""
        resume = last_whole(self.checkpoints)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*does not have many workers.*")
            warnings.filterwarnings("ignore", message=".*your dataloader is not resumable.*")
            warnings.filterwarnings("ignore", message=".*LeafSpec.*is deprecated.*")
            self.trainer.fit(self.learner, self.data, ckpt_path=str(resume) if resume else None)
        return self

    def weights(self) -> dict[str, torch.Tensor]:
        return {name: parameter.detach() for name, parameter in self.learner.named_parameters()}


def streams(*, train: bool) -> Streams:
    """Training text is one stream that half of the lanes read backwards, and a held-out document is one of its own."""
    return Streams(length=ROW, cross=train, bidirectional=train)


@pytest.fixture(scope="session")
def streamed(corpus: Files, data_root: Path) -> Callable[[], Prepared]:
    """The reviews as streams."""

    def make() -> Prepared:
        return prepare(
            data_root,
            corpus=corpus,
            fingerprint=corpus.fingerprint(),
            split=Split(train=None, validation=6, test=6),
            learner=WordPiece(vocab=600, alphabet=100),
            segments=streams(train=True),
            held_out=streams(train=False),
        )

    return make


@pytest.fixture
def wire(prepared: Callable[..., Prepared], streamed: Callable[[], Prepared], tmp_path: Path) -> Callable[..., Wired]:
    """Wire a run in a folder of its own name. With 13 steps of 64 rows it sees every row once and some twice.

    memory: places that an XLNet remembers of streams; None for a BERT on rows that belong to none. learning: more
    of what is said of it.
    """

    def make(
        name: str = "run",
        *,
        steps: int = 13,
        batch: int = 64,
        micro: int | None = None,
        seed: int = 0,
        dropout: float = 0.1,
        copies: int | None = None,
        cut: bool = True,
        optim: Optim | None = None,
        schedule: Schedule | None = None,
        clip: float | None = 1.0,
        log_every: int = 3,
        val_every: int = 4,
        checkpoint_every: int = 5,
        best: str | None = None,
        precision: Any = "32-true",
        double: bool = False,
        held_batch: int = 128,
        callbacks: Sequence[pl.Callback] = (),
        memory: int | None = None,
        learning: dict[str, Any] | None = None,
    ) -> Wired:
        found = prepared(cut=cut) if memory is None else streamed()
        objective = MaskedLM(rate=0.3, mask=0.8, random=0.1, whole_words=False, copies=copies, weight=1.0)
        if memory is not None:
            objective = PermutationLM(k=3, span=2, weight=1.0)
        rows = {part: Rows(folder) for part, folder in found.folders.items()}

        def held_out(part: str) -> HeldOut:
            return HeldOut(
                rows[part], Collate({objective.name: objective.noise}, found.vocabulary, 0), batch=held_batch
            )

        data = Data(
            train=training(
                rows["train"],
                Collate({objective.name: objective.noise}, found.vocabulary, seed),
                FullSentences(length=100, cut=cut) if memory is None else streams(train=True),
                batch=batch,
                micro=micro or batch,
                steps=steps,
                seed=seed,
            ),
            validation=held_out("validation"),
            test=held_out("test"),
            workers=0,
        )
        knobs: dict[str, Any] = {
            "objectives": {objective.name: objective},
            "optim": optim or AdamW(lr=3e-3, beta1=0.9, beta2=0.999, epsilon=1e-8, weight_decay=0.01),
            "schedule": schedule or Linear(warmup=4),
            "steps": steps,
            "clip": clip,
            "seed": seed,
            "documents": {"validation": data.validation.documents, "test": data.test.documents},
        }
        asked = Learning(**knobs | (learning or {}))
        sizes: dict[str, Any] = {"vocab": found.vocabulary.size, "dim": 16, "depth": 2, "heads": 2, "ffn": 32}
        sizes |= {"dropout": dropout, "attention_dropout": dropout, "epsilon": 1e-12, "std": 0.1, "embedding_std": 0.1}
        learner: Learner
        if memory is None:
            learner = BERT(asked, length=100, segments=2, positions="normal", **sizes)
        else:
            learner = XLNet(asked, length=ROW, memory=memory, clamp=None, inner_dropout=dropout, **sizes)
        if double:
            learner.double()
        store = Store(tmp_path / "runs")
        folder = store.create(name)
        record = Record(signature=name, state="running", config={}, seed=seed, steps=steps)
        recorder = Recorder(record, store, NoTracker(), every=log_every)
        checkpoints = Checkpoints(folder / "checkpoints", record, every=checkpoint_every, best=[best] if best else [])
        trainer = pl.Trainer(
            accelerator="cpu",
            devices=1,
            precision=precision,
            max_steps=steps,
            max_epochs=1,
            val_check_interval=min(val_every, steps),
            num_sanity_val_steps=0,
            callbacks=[recorder, checkpoints, *callbacks],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
            default_root_dir=str(folder),
        )
        return Wired(record, store, data, learner, recorder, trainer)

    return make
