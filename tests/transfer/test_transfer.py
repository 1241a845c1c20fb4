"""Weights and spans of terms: exact at both ends, monotone between them, and what is refused."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lmab.transfer.transfer import Course, Transfer
from lmab.types import BadInput

COURSES: list[Course] = ["linear", "cosine", "step"]


class Term(Transfer):
    name = "term"


def term(weight: float = 1.0, until: float | None = None, course: Course = "constant", **span: float) -> Transfer:
    return Term(**{"weight": weight, "until": until, "course": course, "begin": 0.0, "end": 1.0} | span)  # type: ignore[arg-type]


def weights(of: Transfer, steps: int) -> list[float]:
    """Over its span."""
    return [weight for step in range(steps) if (weight := of.weight_at(step, steps)) is not None]


# By hand


@pytest.mark.parametrize(
    ("course", "wanted"),
    [
        ("linear", [4.0, 3.25, 2.5, 1.75, 1.0]),
        ("cosine", [4.0, 2.5 + 1.5 / math.sqrt(2), 2.5, 2.5 - 1.5 / math.sqrt(2), 1.0]),
        ("step", [4.0, 4.0, 4.0, 1.0, 1.0]),
    ],
)
def test_a_weight_that_falls_by_hand(course: Course, wanted: list[float]) -> None:
    """Ten steps, of which the span is the second half."""
    falls = term(4.0, 1.0, course, begin=0.5)
    assert [falls.weight_at(step, 10) for step in range(5)] == [None] * 5
    assert weights(falls, 10) == pytest.approx(wanted)


def test_a_step_in_a_span_of_even_length_is_in_its_middle() -> None:
    assert weights(term(1.0, 0.5, "step"), 4) == [1.0, 1.0, 0.5, 0.5]
    assert weights(term(1.0, 0.5, "step"), 2) == [1.0, 0.5]


def test_a_weight_that_stays_is_the_same_at_every_step_of_its_span() -> None:
    stays = term(0.3, begin=0.25, end=0.75)
    assert [stays.weight_at(step, 8) for step in range(8)] == [None, None, 0.3, 0.3, 0.3, 0.3, None, None]


@pytest.mark.parametrize("course", COURSES)
def test_a_span_of_one_step_has_the_first_weight(course: Course) -> None:
    assert weights(term(0.9, 0.1, course, begin=0.5, end=0.6), 10) == [0.9]


# Properties

WEIGHTS = st.floats(0, 1e6, allow_subnormal=False)


@given(first=WEIGHTS, last=WEIGHTS, course=st.sampled_from(COURSES), steps=st.integers(2, 300), data=st.data())
def test_both_ends_are_exact_and_nothing_between_turns_back(first, last, course, steps, data) -> None:
    begin, end = sorted(data.draw(st.lists(st.floats(0, 1), min_size=2, max_size=2, unique=True)))
    changes = term(first, last, course, begin=begin, end=end)
    found = weights(changes, steps)
    assume(len(found) > 1)
    assert found[0] == first
    assert found[-1] == last
    ordered = sorted(found, reverse=last < first)
    assert found == ordered
    if course == "step":
        assert set(found) <= {first, last}


@given(cuts=st.lists(st.floats(0, 1), max_size=4), steps=st.integers(1, 300))
def test_spans_that_follow_each_other_meet_and_do_not_overlap(cuts, steps) -> None:
    edges = sorted({0.0, 1.0, *cuts})
    parts = [term(begin=begin, end=end) for begin, end in pairwise(edges)]
    for step in range(steps):
        assert sum(part.weight_at(step, steps) is not None for part in parts) == 1
    assert all(part.weight_at(steps, steps) is None for part in parts)


@given(weight=WEIGHTS, until=WEIGHTS, course=st.sampled_from(COURSES), steps=st.integers(1, 100), data=st.data())
def test_a_weight_is_nowhere_zero_for_the_first_time_but_at_its_turns(weight, until, course, steps, data) -> None:
    begin, end = sorted(data.draw(st.lists(st.floats(0, 1), min_size=2, max_size=2, unique=True)))
    first, last = data.draw(st.sampled_from([(weight, 0.0), (0.0, until), (weight, until)]))
    changes = term(first, last, course, begin=begin, end=end)
    assume(changes.span(steps))
    there = [bool(changes.weight_at(step, steps)) for step in range(steps)]
    fallen = {step for step in range(steps) if not there[step] and (step == 0 or there[step - 1])}
    assert fallen <= {0, *changes.turns(steps)}


# What is refused


@pytest.mark.parametrize(
    ("knobs", "says"),
    [
        ({"weight": -0.5}, "transfer.term.weight=-0.5 cannot work: give a finite number from 0 up."),
        ({"weight": math.inf}, "transfer.term.weight=inf cannot work: give a finite number from 0 up."),
        ({"weight": math.nan}, "transfer.term.weight=nan cannot work: give a finite number from 0 up."),
        ({"until": -1.0, "course": "linear"}, "transfer.term.until=-1.0 cannot work: give a finite number from 0 up."),
        ({"until": 0.5}, "transfer.term.until=0.5 does not fit course=constant: "),
        ({"course": "cosine"}, "transfer.term.until=null does not fit course=cosine: "),
        ({"begin": 0.5, "end": 0.5}, "transfer.term lasts from begin=0.5 to end=0.5: give shares of training"),
        ({"begin": 0.8, "end": 0.2}, "transfer.term lasts from begin=0.8 to end=0.2: give shares of training"),
        ({"begin": -0.1}, "transfer.term lasts from begin=-0.1 to end=1.0: give shares of training"),
        ({"end": 1.5}, "transfer.term lasts from begin=0.0 to end=1.5: give shares of training"),
        ({"begin": math.nan}, "transfer.term lasts from begin=nan to end=1.0: give shares of training"),
    ],
)
def test_weights_and_spans_that_cannot_be(knobs: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput) as refused:
        term(**knobs)
    assert str(refused.value).startswith(says)
    assert "\n" not in str(refused.value)


def test_a_weight_of_zero_is_none_of_them() -> None:
    assert weights(term(0.0), 3) == [0.0] * 3
    assert weights(term(1.0, 0.0, "linear"), 3) == [1.0, 0.5, 0.0]
