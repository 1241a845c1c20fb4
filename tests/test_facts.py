"""What a record derives from its scores: perplexity, and bits that compare models with other tokens."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest

from lmab.run import run
from lmab.wiring import build_data, build_prepared, make

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from omegaconf import DictConfig


@pytest.mark.parametrize("tokenizer", ["byte_bpe", "wordpiece"])
def test_bits_per_byte_are_the_losses_of_the_text_over_its_bytes(
    tokenizer: str, composed: Callable[..., DictConfig], tmp_path: Path
) -> None:
    cfg = composed("experiment=transformer_xl", f"tokenizer={tokenizer}", "trainer.steps=2", f"store={tmp_path}")
    record = run(cfg)
    bits, sizes = (np.array(table["test/clm_bits_per_byte"]) for table in (record.scores, record.weights))
    losses, targets = (np.array(table["test/clm_loss"]) for table in (record.scores, record.weights))
    assert (bits * sizes).sum() * math.log(2) == pytest.approx((losses * targets).sum())
    assert record.metrics["test/clm_bits_per_byte"] == pytest.approx((bits * sizes).sum() / sizes.sum())
    assert record.metrics["test/clm_perplexity"] == pytest.approx(math.exp(record.metrics["test/clm_loss"]))

    # The bytes are those of the documents, whatever the tokenizer makes of them: all tokens but the first are targets.
    prepared = build_prepared(record.config)
    objectives = {name: make(node) for name, node in record.config["objective"].items()}
    _, data = build_data(record.config, objectives)
    assert sizes.tolist() == [prepared.bytes["test"][n] for n in np.unique(data.test.rows.document)]
    corpus = dict(enumerate(make({k: v for k, v in record.config["corpus"].items() if k != "fingerprint"}).documents()))
    for number, size in prepared.bytes["test"].items():
        # Sentences are joined by one space, whatever stood between them.
        assert 0.9 * len(corpus[number].encode()) <= size <= 1.05 * len(corpus[number].encode())


def test_a_loss_over_halves_has_no_bits(composed: Callable[..., DictConfig], tmp_path: Path) -> None:
    record = run(
        composed("experiment=transformer_xl", "objective.clm.half=true", "trainer.steps=2", f"store={tmp_path}")
    )
    assert "test/clm_loss" in record.metrics
    assert "test/clm_bits_per_byte" not in record.metrics
