"""Held-out losses: sums over targets, whoever stood in whichever batch."""

from __future__ import annotations

import math
from collections import defaultdict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchmetrics import Metric

from lmab.train.scores import DocumentLoss, Scores
from lmab.types import Batch, Outcome, View

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
    found = metric.compute()
    losses, hits = defaultdict(list), defaultdict(list)
    for document, targets in rows:
        losses[document] += [loss for loss, _ in targets]
        hits[document] += [hit for _, hit in targets]

    def mean(values: list) -> float:
        return math.fsum(values) / len(values) if values else math.nan  # where there is nothing, nothing is said

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


# All that is said of an objective


class Largest(Metric):
    """The largest answer that was given, which is no mean over batches."""

    full_state_update = False

    def __init__(self) -> None:
        super().__init__()
        self.add_state("found", default=torch.tensor(-math.inf), dist_reduce_fx="max")

    def update(self, said: torch.Tensor, answers: torch.Tensor) -> None:
        assert len(said) == len(answers)
        self.found = torch.maximum(self.found, said.max()) if len(said) else self.found

    def compute(self) -> torch.Tensor:
        return self.found


class Asked(torch.nn.Module):
    """An objective that names a metric of a whole set."""

    def metrics(self) -> dict[str, Metric]:
        return {"largest": Largest()}


def told(scores: Scores, chunk: list, said: list[float]) -> None:
    outcome, batch = scored(chunk, 4)
    outcome = Outcome(outcome.losses, outcome.places, outcome.hits, torch.tensor(said))
    scores.update(outcome, batch, torch.zeros(len(said)))


@pytest.mark.parametrize("objective", [torch.nn.Identity(), Asked()])
def test_of_a_part_without_targets_nothing_is_said(objective):
    scores = Scores(DOCUMENTS, objective)
    assert scores.means() == scores.documents() == {}
    told(scores, [(0, []), (3, [])], [])
    assert scores.means() == scores.documents() == {}


def test_means_documents_and_metrics_of_the_whole_stand_side_by_side():
    scores = Scores(3, Asked())
    told(scores, [(0, [(1.0, True)]), (2, [(3.0, False), (5.0, False)])], [0.5, 7.0, 2.0])
    told(scores, [(2, [(7.0, True)])], [1.0])
    assert scores.means() == {"loss": 4.0, "accuracy": 0.5, "largest": 7.0}
    found = scores.documents()
    assert found.keys() == {"loss", "accuracy"}
    for quantity, wanted in (("loss", [1.0, 5.0]), ("accuracy", [1.0, pytest.approx(1 / 3)])):
        values, weights = found[quantity]
        assert [values[0], values[2]] == wanted
        assert math.isnan(values[1])
        assert weights == [1.0, 0.0, 3.0]


def test_scores_that_were_reset_begin_anew():
    scores = Scores(3, Asked())
    told(scores, [(0, [(9.0, True)])], [9.0])
    scores.reset(torch.device("cpu"))
    assert scores.means() == {}
    told(scores, [(1, [(2.0, False)])], [1.0])
    assert scores.means() == {"loss": 2.0, "accuracy": 0.0, "largest": 1.0}
