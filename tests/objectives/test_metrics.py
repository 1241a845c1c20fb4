"""Metrics of a whole set: by hand, against torchmetrics, and however the set is cut into batches."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchmetrics.functional import matthews_corrcoef, pearson_corrcoef, spearman_corrcoef
from torchmetrics.functional.classification import binary_f1_score, multiclass_f1_score

from lmab.objectives.metrics import F1, Correlation, Matthews


def value(metric, said, answers) -> float:
    metric.update(torch.tensor(said), torch.tensor(answers))
    return float(metric.compute())


def test_binary_f1_is_of_the_second_class():
    # 2 true positives, 1 false positive, 3 false negatives: 2 * 2 / (2 * 2 + 1 + 3).
    said, answers = [1, 1, 1, 0, 0, 0, 0], [1, 1, 0, 1, 1, 1, 0]
    assert value(F1(2), said, answers) == pytest.approx(0.5)
    assert value(F1(2), [0, 0], [0, 0]) == 0


def test_macro_f1_is_the_mean_over_the_classes_that_occur():
    # Class 0: 2 * 1 / (2 + 1); class 1: 2 * 1 / (1 + 2); class 2: 0 of 1; class 3 does not occur.
    assert value(F1(4), [0, 1, 1, 0], [0, 1, 2, 0]) == pytest.approx((1 + 2 / 3 + 0) / 3)


def test_matthews_by_hand():
    # (tp tn - fp fn) / sqrt((tp + fp)(tp + fn)(tn + fp)(tn + fn)) with tp 2, tn 1, fp 1, fn 3.
    said, answers = [1, 1, 1, 0, 0, 0, 0], [1, 1, 0, 1, 1, 1, 0]
    assert value(Matthews(2), said, answers) == pytest.approx((2 - 3) / math.sqrt(3 * 5 * 2 * 4))
    assert value(Matthews(2), [0, 1, 1], [0, 1, 1]) == pytest.approx(1)
    assert value(Matthews(2), [1, 0, 0], [0, 1, 1]) == pytest.approx(-1)


@pytest.mark.parametrize("answers", [[0, 1, 0], [0, 0, 0], [1, 1, 0]])
@pytest.mark.parametrize("classes", [2, 3])
def test_who_says_the_same_of_all_is_not_correlated(answers, classes):
    # torchmetrics gives 0.41 here for two classes.
    assert value(Matthews(classes), [0, 0, 0], answers) == 0


def test_correlations_by_hand():
    said, answers = [1.0, 2.0, 4.0], [1.0, 3.0, 2.0]
    # Deviations -4/3, -1/3, 5/3 and -1, 1, 0: their product is 1, their squares are 14/3 and 2.
    assert value(Correlation(ranks=False), said, answers) == pytest.approx(1 / math.sqrt(14 / 3 * 2))
    # Ranks 1, 2, 3 and 1, 3, 2: 1 - 6 * 2 / (3 * 8).
    assert value(Correlation(ranks=True), said, answers) == pytest.approx(0.5)
    # Ranks 1.5, 1.5, 3, 4 and 1, 2, 3, 4: deviations -1, -1, 1/2, 3/2 and -3/2, -1/2, 1/2, 3/2.
    ties = value(Correlation(ranks=True), [0.5, 0.5, 7.0, 9.0], [1.0, 2.0, 3.0, 4.0])
    assert ties == pytest.approx(4.5 / math.sqrt(4.5 * 5))


@pytest.mark.parametrize("ranks", [False, True])
def test_a_constant_is_not_correlated(ranks):
    assert value(Correlation(ranks=ranks), [0.1, 0.1, 0.1], [1.0, 2.0, 3.0]) == pytest.approx(0, abs=1e-6)
    assert value(Correlation(ranks=ranks), [0.1], [1.0]) == 0


@given(seed=st.integers(0, 9_999), classes=st.integers(2, 5), rows=st.integers(20, 60))
def test_classes_as_torchmetrics_has_them_where_it_is_defined(seed, classes, rows):
    generator = torch.Generator().manual_seed(seed)
    answers = torch.randint(0, classes, (rows,), generator=generator)
    said = torch.where(torch.rand(rows, generator=generator) < 0.5, answers, answers.roll(1))
    f1, mcc = F1(classes), Matthews(classes)
    # A set in two batches, and an empty one.
    for part in (slice(0, rows // 3), slice(0, 0), slice(rows // 3, None)):
        f1.update(said[part], answers[part])
        mcc.update(said[part], answers[part])
    if classes == 2:
        wanted = binary_f1_score(said, answers)
    else:
        wanted = multiclass_f1_score(said, answers, classes, average="macro")
    assert float(f1.compute()) == pytest.approx(float(wanted), abs=1e-6)
    if len(said.unique()) > 1 and len(answers.unique()) > 1:
        wanted = matthews_corrcoef(said, answers, "multiclass", num_classes=classes)
        assert float(mcc.compute()) == pytest.approx(float(wanted), abs=1e-5)


@given(seed=st.integers(0, 9_999), rows=st.integers(5, 60))
def test_correlations_as_torchmetrics_has_them(seed, rows):
    generator = torch.Generator().manual_seed(seed)
    answers = torch.randn(rows, generator=generator)
    said = (answers + torch.randn(rows, generator=generator)).round(decimals=1)  # with ties
    metrics = {ranks: Correlation(ranks=ranks) for ranks in (False, True)}
    for part in (slice(0, rows // 3), slice(0, 0), slice(rows // 3, None)):
        for metric in metrics.values():
            metric.update(said[part], answers[part])
    assert float(metrics[False].compute()) == pytest.approx(float(pearson_corrcoef(said, answers)), abs=1e-4)
    assert float(metrics[True].compute()) == pytest.approx(float(spearman_corrcoef(said, answers)), abs=1e-4)


@pytest.mark.parametrize("metric", [F1(2), Matthews(3), Correlation(ranks=True)])
def test_a_metric_begins_anew(metric):
    for _ in range(2):
        metric.reset()
        assert value(metric, [1, 0, 1, 0], [1, 0, 1, 0]) == pytest.approx(1)
