"""Which layer of the teacher a layer of the student learns from, and maps that do not fit."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmab.transfer.depths import depths
from lmab.types import BadInput


def mapped(kind, students: int, teachers: int, lowest: int = 0) -> tuple[int, ...]:
    return depths(kind, students, teachers, term="hidden", lowest=lowest)


def test_the_maps_of_the_paper():
    """A student of 4 layers and BERT of 12 (section 4.1, and table 4)."""
    assert mapped("uniform", 4, 12) == (3, 6, 9, 12)
    assert mapped("top", 4, 12) == (9, 10, 11, 12)
    assert mapped("bottom", 4, 12) == (1, 2, 3, 4)
    assert mapped([0, 5, 5, 12], 4, 12) == (0, 5, 5, 12)


@given(students=st.integers(1, 12), times=st.integers(1, 4), more=st.integers(0, 8))
def test_every_map_rises_and_ends_where_it_should(students, times, more):
    uniform = mapped("uniform", students, students * times)
    assert uniform == tuple(range(times, students * times + 1, times))
    top, bottom = (mapped(kind, students, students + more) for kind in ("top", "bottom"))
    assert top == tuple(range(more + 1, students + more + 1))
    assert bottom == tuple(range(1, students + 1))
    assert uniform[-1] == students * times
    if not more:
        assert top == bottom == mapped("uniform", students, students)


@pytest.mark.parametrize(
    ("kind", "students", "teachers", "lowest", "says"),
    [
        ("uniform", 4, 6, 0, "do not divide its 6: the nearest that do are model.depth=3 and model.depth=6."),
        ("uniform", 5, 12, 0, "do not divide its 12: the nearest that do are model.depth=4 and model.depth=6."),
        ("uniform", 8, 4, 0, "cannot lay 8 layers of the student beside 4 of the teacher: give at most model.depth=4"),
        ("top", 5, 4, 0, "map=top cannot lay 5 layers of the student beside 4 of the teacher"),
        ("bottom", 5, 4, 0, "map=bottom cannot lay 5 layers"),
        ([1, 2], 3, 6, 0, "has 2 numbers, and the student has 3 layers: give one for each, as in [2, 4, 6]."),
        ([1], 2, 1, 1, "as in [1, 1]."),
        ([1, 7, 6], 3, 6, 0, "names layer 7, and the teacher has 0 to 6: the nearest is 6."),
        ([-1, 6], 2, 6, 0, "names layer -1, and the teacher has 0 to 6: the nearest is 0."),
        ([0, 6], 2, 6, 1, "names layer 0, and the teacher has 1 to 6: the nearest is 1."),
    ],
)
def test_a_map_that_does_not_fit_is_refused_with_the_nearest_that_does(kind, students, teachers, lowest, says):
    with pytest.raises(BadInput, match=re.escape(says)) as refused:
        mapped(kind, students, teachers, lowest)
    assert str(refused.value).startswith("transfer.hidden.map=")


@given(students=st.integers(1, 12), teachers=st.integers(1, 24))
def test_what_a_refusal_names_works(students, teachers):
    try:
        mapped("uniform", students, teachers)
    except BadInput as refused:
        named = [int(found) for found in re.findall(r"model\.depth=(\d+)", str(refused))]
        assert named
        for depth in named:
            mapped("bottom" if students > teachers else "uniform", depth, teachers)
