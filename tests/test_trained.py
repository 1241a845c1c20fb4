"""A run that is opened again has the weights with which it was scored, or is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lmab.run import run
from lmab.store import Record, Store
from lmab.trained import opened
from lmab.types import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from omegaconf import DictConfig


def _done(composed: Callable[..., DictConfig], store: Path, *more: str) -> Record:
    return run(composed("trainer.steps=4", "trainer.checkpoint_every=2", f"store={store}", *more))


def test_an_earlier_checkpoint_is_no_stand_in_for_a_broken_last_one(
    composed: Callable[..., DictConfig], tmp_path: Path
) -> None:
    """It would be another starting point under the same name."""
    record = _done(composed, tmp_path)
    folder = tmp_path / record.signature / "checkpoints"
    assert [path.name for path in sorted(folder.glob("*.ckpt"))] == ["step-0000002.ckpt", "step-0000004.ckpt"]
    opened(Store(tmp_path), record.signature)
    last = folder / "step-0000004.ckpt"
    content = bytearray(last.read_bytes())
    content[len(content) // 2] ^= 1
    last.write_bytes(content)
    for start in (f"start={record.signature}", "start=['trainer.steps=4','trainer.checkpoint_every=2']"):
        with pytest.raises(BadInput, match=f"{record.signature}.*delete"):
            run(composed(start, "optim.lr=0.01", f"store={tmp_path}"))
    with pytest.raises(BadInput, match=f"{record.signature}.*delete"):
        opened(Store(tmp_path), record.signature)
    last.unlink()
    with pytest.raises(BadInput, match="missing"):
        opened(Store(tmp_path), record.signature)


def test_best_weights_are_those_of_the_best_step_or_nothing(
    composed: Callable[..., DictConfig], tmp_path: Path
) -> None:
    record = _done(composed, tmp_path, "evaluation.checkpoint=best", "trainer.val_every=2")
    assert opened(Store(tmp_path), record.signature).name == record.signature
    (tmp_path / record.signature / "checkpoints" / "best.ckpt").unlink()
    with pytest.raises(BadInput, match="missing"):
        opened(Store(tmp_path), record.signature)


def test_the_best_step_is_by_the_first_objective_that_is_scored(
    composed: Callable[..., DictConfig], tmp_path: Path
) -> None:
    """Held-out rows without labels say nothing of next sentences."""
    record = _done(
        composed,
        tmp_path,
        "experiment=bert",
        "objective=[nsp,mlm]",
        "segments@evaluation.segments=doc_sentences",
        "evaluation.checkpoint=best",
    )
    assert record.state == "done"
    assert "test/nsp_loss" not in record.metrics
    opened(Store(tmp_path), record.signature)
