"""What is measured of a student beside its teacher, by hand and whatever the batches."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torchmetrics.classification import MulticlassCalibrationError

from lmab.transfer import measures
from lmab.transfer.measures import OF_BOTH, OF_TEACHER, Beside, Calibration, Halves, compared, gap_closed
from lmab.types import Batch, Outcome, View


def outcome(scores: torch.Tensor, answers: torch.Tensor, places: torch.Tensor) -> Outcome:
    losses = F.cross_entropy(scores, answers, reduction="none")
    return Outcome(losses, places, scores.argmax(-1) == answers, scores=scores)


def batch(documents: list[int], width: int) -> Batch:
    """Rows of a width, each of a document."""
    return Batch(
        tokens=torch.zeros(len(documents), width, dtype=torch.int64),
        segments=None,
        view=View(None),
        targets={},
        document=torch.tensor(documents),
        examples=len(documents),
        real=len(documents) * width,
    )


def told(
    beside: Beside, student: torch.Tensor, teacher: torch.Tensor, answers: list[int], documents: list[int]
) -> None:
    """One target a row, at its second place."""
    places, true = 3 * torch.arange(len(answers)) + 1, torch.tensor(answers, dtype=torch.int64)
    beside.update(outcome(student, true, places), outcome(teacher, true, places), batch(documents, 3))


def shares(*rows: list[float]) -> torch.Tensor:
    """Scores of which the softmax is this."""
    return torch.tensor(rows, dtype=torch.float64).log() + 5


# By hand: four targets, of two classes, in documents 0, 0, 2 and 2 of three.
STUDENT = shares([0.58, 0.42], [0.3, 0.7], [0.2, 0.8], [0.5625, 0.4375])
TEACHER = shares([0.9, 0.1], [0.25, 0.75], [0.59, 0.41], [0.45, 0.55])
ANSWERS = [0, 0, 1, 1]


def kl(p: float, q: float) -> float:
    return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))


def test_means_are_those_by_hand() -> None:
    beside = Beside(3)
    told(beside, STUDENT, TEACHER, ANSWERS, [0, 0, 2, 2])
    wanted = {
        "agreement": 2 / 4,  # the first two
        "divergence": (kl(0.9, 0.58) + kl(0.75, 0.7) + kl(0.59, 0.2) + kl(0.55, 0.4375)) / 4,
        "teacher_loss": -(math.log(0.9) + math.log(0.25) + math.log(0.41) + math.log(0.55)) / 4,
        "teacher_accuracy": 2 / 4,  # the first and the last
        # It is surest of the first two, of which the student gets one right; of the others too.
        "easy_accuracy": 1 / 2,
        "hard_accuracy": 1 / 2,
        # Between 8 and 9 fifteenths lie 0.58 and 0.5625; 0.7 and 0.8 lie by themselves.
        "ece": (abs(1 + 0 - 0.58 - 0.5625) + abs(0 - 0.7) + abs(1 - 0.8)) / 4,
        "teacher_ece": (abs(1 - 0.9) + abs(0 - 0.75) + abs(0 + 1 - 0.59 - 0.55)) / 4,
    }
    found = beside.means()
    assert found.keys() == wanted.keys()
    assert found == pytest.approx(wanted, rel=1e-12)


def test_documents_are_those_by_hand() -> None:
    beside = Beside(3)
    told(beside, STUDENT, TEACHER, ANSWERS, [0, 0, 2, 2])
    found = beside.documents()
    nan = math.nan
    wanted = {
        "agreement": ([1, nan, 0], [2, 0, 2]),
        "divergence": (
            [(kl(0.9, 0.58) + kl(0.75, 0.7)) / 2, nan, (kl(0.59, 0.2) + kl(0.55, 0.4375)) / 2],
            [2, 0, 2],
        ),
        "teacher_loss": ([-math.log(0.9 * 0.25) / 2, nan, -math.log(0.41 * 0.55) / 2], [2, 0, 2]),
        "teacher_accuracy": ([0.5, nan, 0.5], [2, 0, 2]),
        "easy_accuracy": ([0.5, nan, nan], [2, 0, 0]),
        "hard_accuracy": ([nan, nan, 0.5], [0, 0, 2]),
    }
    assert found.keys() == wanted.keys() == {*OF_BOTH, *OF_TEACHER}
    for name, (values, weights) in wanted.items():
        assert found[name][0] == pytest.approx(values, rel=1e-12, nan_ok=True)
        assert found[name][1] == weights


@st.composite
def compared_sets(draw):
    """Scores of both, answers and documents of some targets, two documents, and the sizes of batches."""
    n, c = draw(st.integers(1, 30)), draw(st.integers(2, 5))
    drawn = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    student, teacher = torch.randn(2, n, c, generator=drawn).round(decimals=draw(st.integers(0, 3)))
    answers = torch.randint(c, (n,), generator=drawn).tolist()
    return student, teacher, answers, torch.randint(2, (n,), generator=drawn).tolist(), draw(st.integers(1, 30))


@given(drawn=compared_sets())
def test_no_batch_size_changes_anything_and_parts_make_the_whole(drawn) -> None:
    student, teacher, answers, documents, size = drawn
    whole, parts = Beside(2), Beside(2)
    told(whole, student, teacher, answers, documents)
    for start in range(0, len(answers), size):
        here = slice(start, start + size)
        told(parts, student[here], teacher[here], answers[here], documents[here])
    means, columns = whole.means(), whole.documents()
    assert parts.means() == pytest.approx(means, rel=1e-9, abs=1e-12)
    for name, (values, weights) in parts.documents().items():
        assert values == pytest.approx(columns[name][0], rel=1e-9, abs=1e-12, nan_ok=True)
        assert weights == columns[name][1]
    hits = sum(s.argmax() == a for s, a in zip(student, answers, strict=True))
    halves = [columns[f"{half}_accuracy"] for half in ("easy", "hard") if f"{half}_accuracy" in columns]
    found = sum(v * w for values, weights in halves for v, w in zip(values, weights, strict=True) if w)
    assert found == pytest.approx(float(hits))
    assert sum(halves[0][1]) >= len(answers) / 2
    assert means["divergence"] > -1e-12


def test_a_student_that_is_its_teacher_agrees_and_does_not_diverge() -> None:
    beside, scores = Beside(1), torch.randn(50, 7, generator=torch.Generator().manual_seed(0))
    told(beside, scores, scores + 3, [n % 7 for n in range(50)], [0] * 50)  # a constant changes no share
    found = beside.means()
    assert found["agreement"] == 1
    assert found["divergence"] == pytest.approx(0, abs=1e-6)
    assert found["ece"] == pytest.approx(found["teacher_ece"])


@pytest.mark.parametrize("at_once", [1, 10, 10_000])
def test_targets_are_compared_some_at_a_time(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "_AT_ONCE", at_once)
    student, teacher = torch.randn(2, 23, 4, generator=torch.Generator().manual_seed(1))
    student.requires_grad_()
    found = compared(student, teacher)
    p, q = teacher.double().softmax(-1), student.detach().double().softmax(-1)
    assert torch.equal(found.agrees, student.argmax(-1) == teacher.argmax(-1))
    torch.testing.assert_close(found.divergence, F.kl_div(q.log(), p, reduction="none").sum(-1))
    torch.testing.assert_close(found.confidence, q.amax(-1))
    torch.testing.assert_close(found.teacher_confidence, p.amax(-1))
    assert not any(column.requires_grad for column in found)


def test_scores_are_not_kept() -> None:
    beside, answers = Beside(2), 1000
    for _ in range(3):
        told(beside, torch.randn(9, answers), torch.randn(9, answers), [0] * 9, [0, 1, 0] * 3)
    kept = 0
    for metric in (beside.teacher, beside.both, beside.ece, beside.teacher_ece, beside.halves):
        for name in metric._defaults:
            state = getattr(metric, name)
            kept += sum(map(torch.numel, state)) if isinstance(state, list) else state.numel()
    assert kept < 250


def test_of_numbers_only_the_teacher_is_told() -> None:
    """Where an answer is a score, no share is given to anything."""
    beside, places = Beside(1), torch.tensor([1, 4])
    scores = torch.tensor([[0.5], [2.0]])
    said = Outcome(torch.tensor([1.0, 4.0]), places, torch.tensor([False, True]), scores[:, 0], scores)
    beside.update(said, said, batch([0, 0], 3))
    assert beside.means() == {"teacher_loss": 2.5, "teacher_accuracy": 0.5}
    assert beside.documents() == {"teacher_loss": ([2.5], [2.0]), "teacher_accuracy": ([0.5], [2.0])}


def test_of_a_part_without_targets_nothing_is_said_and_what_was_reset_begins_anew() -> None:
    beside = Beside(3)
    assert beside.means() == beside.documents() == {}
    told(beside, torch.empty(0, 4), torch.empty(0, 4), [], [1])
    assert beside.means() == beside.documents() == {}
    told(beside, STUDENT, TEACHER, ANSWERS, [0, 0, 2, 2])
    beside.reset(torch.device("cpu"))
    assert beside.means() == beside.documents() == {}


# Easy and hard


def test_targets_of_which_a_teacher_is_as_sure_as_of_the_last_easy_one_are_easy() -> None:
    halves = Halves(2)
    halves.update(torch.tensor([0.9, 0.5, 0.7]), torch.tensor([True, False, False]), torch.tensor([0, 0, 1]))
    halves.update(torch.tensor([0.7, 0.4, 0.7]), torch.tensor([True, True, True]), torch.tensor([1, 1, 0]))
    found = {half: [column.tolist() for column in columns] for half, columns in halves.compute().items()}
    assert found == {"easy": [[2, 1], [2, 2]], "hard": [[0, 1], [1, 1]]}


def test_where_a_teacher_is_always_as_sure_all_is_easy() -> None:
    beside = Beside(1)
    told(beside, STUDENT, STUDENT[[0, 0, 0, 0]], ANSWERS, [0] * 4)
    found = beside.means()
    assert found["easy_accuracy"] == 0.5
    assert "hard_accuracy" not in found
    assert "hard_accuracy" not in beside.documents()


# Calibration


def calibrated(confidence: list[float], hits: list[bool], bins: int = 15) -> float:
    metric = Calibration(bins)
    metric.update(torch.tensor(confidence, dtype=torch.float64), torch.tensor(hits))
    return float(metric.compute())


def test_calibration_is_that_by_hand() -> None:
    # Two bins: (0, 0.5] holds the first two, whose mean confidence is 0.45; (0.5, 1] the others.
    assert calibrated([0.4, 0.5, 0.6, 1.0], [True, False, True, True], bins=2) == pytest.approx(0.5 * 0.05 + 0.5 * 0.2)
    assert calibrated([1.0, 1.0], [True, True]) == 0
    assert calibrated([1.0, 1.0], [False, False]) == 1
    assert calibrated([0.75, 0.75, 0.75, 0.75], [True, True, True, False]) == 0


def test_an_upper_edge_belongs_to_its_bin() -> None:
    # Together in (0, 0.5] a hit of 0.5 and a miss of 0.3 lie 0.1 off; apart they would lie 0.4 off.
    assert calibrated([0.5, 0.3], [True, False], bins=2) == pytest.approx(0.1)


@given(seed=st.integers(0, 2**32), size=st.integers(1, 40))
def test_calibration_is_that_of_torchmetrics_between_the_edges(seed: int, size: int) -> None:
    drawn = torch.Generator().manual_seed(seed)
    scores = 3 * torch.randn(60, 5, generator=drawn)
    answers = torch.randint(5, (60,), generator=drawn)
    theirs = MulticlassCalibrationError(num_classes=5, n_bins=15)
    theirs.update(scores.softmax(-1), answers)
    ours = Calibration()
    for start in range(0, 60, size):
        shares = scores[start : start + size].double().softmax(-1)
        ours.update(shares.amax(-1), shares.argmax(-1) == answers[start : start + size])
    assert float(ours.compute()) == pytest.approx(float(theirs.compute()), abs=1e-6)


# The gap


def test_the_share_of_the_gap_that_is_closed() -> None:
    assert gap_closed(0.6, 0.7, 0.8) == pytest.approx(0.5)
    assert gap_closed(0.6, 0.9, 0.8) == pytest.approx(1.5)
    assert gap_closed(0.6, 0.5, 0.8) == pytest.approx(-0.5)
    assert math.isnan(gap_closed(0.8, 0.9, 0.8))
    assert math.isnan(gap_closed(0.8, 0.7, 0.6))
