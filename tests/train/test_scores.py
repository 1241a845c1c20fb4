"""Held-out losses: sums over targets, whoever stood in whichever batch."""

from __future__ import annotations

import math
from collections import defaultdict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lmab.train.scores import DocumentLoss
from lmab.types import BadInput, Batch, Outcome, View

DOCUMENTS = 5
# A row: its document, and the losses and hits of its targets.
rows = st.lists(
    st.tuples(
        st.integers(0, DOCUMENTS - 1),
        st.lists(st.tuples(st.floats(0, 20, width=32), st.booleans()), max_size=4),
    ),
    min_size=1,
    max_size=12,
)


def scored(chunk: list, width: int) -> tuple[Outcome, Batch]:
    """The rows as a batch of such a width, with targets at the rows' first places."""
    places = [row * width + i for row, (_, targets) in enumerate(chunk) for i in range(len(targets))]
    pairs = [target for _, targets in chunk for target in targets]
    outcome = Outcome(
        torch.tensor([loss for loss, _ in pairs], dtype=torch.float32),
        torch.tensor(places, dtype=torch.int64),
        torch.tensor([hit for _, hit in pairs], dtype=torch.bool),
    )
    batch = Batch(
        tokens=torch.zeros(len(chunk), width, dtype=torch.int64),
        segments=None,
        view=View(None),
        targets={},
        document=torch.tensor([document for document, _ in chunk]),
        examples=len(chunk),
        real=len(chunk) * width,
    )
    return outcome, batch


def close(found: float, wanted: float) -> bool:
    return math.isnan(found) if math.isnan(wanted) else found == pytest.approx(wanted, rel=1e-12)


@given(rows=rows, size=st.integers(1, 12), width=st.integers(4, 9))
def test_sums_are_those_by_hand_whatever_the_batches(rows, size, width):
    metric = DocumentLoss(DOCUMENTS)
    for start in range(0, len(rows), size):
        metric.update(*scored(rows[start : start + size], width + start))
    if not any(targets for _, targets in rows):
        with pytest.raises(BadInput, match="no target"):
            metric.compute()
        return
    found = metric.compute()
    losses, hits = defaultdict(list), defaultdict(list)
    for document, targets in rows:
        losses[document] += [loss for loss, _ in targets]
        hits[document] += [hit for _, hit in targets]

    def mean(values: list) -> float:
        return math.fsum(values) / len(values) if values else math.nan

    for document in range(DOCUMENTS):
        assert found["weight"][document] == len(losses[document])
        assert close(float(found["loss_by_document"][document]), mean(losses[document]))
        assert close(float(found["accuracy_by_document"][document]), mean(hits[document]))
    assert close(float(found["loss"]), mean([x for row in losses.values() for x in row]))
    assert close(float(found["accuracy"]), mean([x for row in hits.values() for x in row]))


def test_a_mean_is_over_targets_and_not_over_batches_or_documents():
    metric = DocumentLoss(2)
    metric.update(*scored([(0, [(1.0, True)])], 4))
    metric.update(*scored([(1, [(3.0, False), (5.0, False), (7.0, True)])], 4))
    found = metric.compute()
    assert found["loss"] == 4.0
    assert found["accuracy"] == 0.5
    assert found["loss_by_document"].tolist() == [1.0, 5.0]
    assert found["weight"].tolist() == [1.0, 3.0]


def test_many_small_losses_lose_no_digits():
    metric = DocumentLoss(1)
    for _ in range(300):
        metric.update(*scored([(0, [(0.1, True)] * 1000)], 1000))
    assert float(metric.compute()["loss"]) == pytest.approx(float(torch.tensor(0.1)), rel=1e-12)


def test_a_metric_that_was_reset_begins_anew():
    metric = DocumentLoss(1)
    metric.update(*scored([(0, [(9.0, True)])], 4))
    assert float(metric.compute()["loss"]) == 9.0
    metric.reset()
    metric.update(*scored([(0, [(2.0, False)])], 4))
    assert [float(metric.compute()[name]) for name in ("loss", "accuracy")] == [2.0, 0.0]
