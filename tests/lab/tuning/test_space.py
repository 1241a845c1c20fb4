"""A search space is read as plain Hydra reads the same words."""

from __future__ import annotations

from typing import Any

import pytest
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from lmab.lab.tuning import space
from lmab.types import BadInput

PARSER = OverridesParser.create()


def read(*words: str, **params: Any) -> space.Space:
    return space.read(PARSER, params, words)[0]


def plain(*words: str) -> list[str]:
    """What Hydra's own sweeper would run, of one sweep."""
    (batch,) = BasicSweeper.split_arguments(PARSER.parse_overrides([*words]), None)
    return [line for lines in batch for line in lines]


def told(word: str) -> list[str]:
    (axis,) = read(word).axes
    assert axis.values is not None
    return [axis.line(value) for value in axis.values]


NUMBERS = st.integers(-20, 20)
STEPS = st.sampled_from([1, 2, 3, -1, -2, 0.5, 0.25, -0.1])
WORDS = st.sampled_from(["a", "null", "true", "3", "-2", "1.5", "1e-3", "[a,b]", "{k:1}", "'a b'", "x.y"])


@given(NUMBERS, NUMBERS, STEPS)
def test_a_range_has_hydras_values(start: int, stop: int, step: float) -> None:
    word = f"key=range({start},{stop},{step})"
    if (stop - start) * step <= 0:
        with pytest.raises(BadInput, match="has no values"):
            read(word)
        return
    assert told(word) == plain(word)
    (axis,) = read(word).axes
    kind = axis.distribution
    assert isinstance(kind, IntDistribution | FloatDistribution)
    # What Optuna can draw is one of them, to the last digit.
    count = len(plain(word))
    drawn = [kind.low + place * (kind.step or 1) for place in range(count)]
    assert {axis.line(value) for value in drawn} == {*plain(word)}


@given(st.lists(WORDS, min_size=1, max_size=5, unique=True), st.booleans())
def test_a_choice_has_hydras_values(words: list[str], tagged: bool) -> None:
    inner = f"choice({','.join(word for word in words if word != 'null') or 'a'})"
    word = f"key=tag(size, {inner})" if tagged else f"key={inner}"
    assert told(word) == plain(word)
    if len(words) > 1:
        simple = f"key={','.join(words)}"
        assert told(simple) == plain(simple)


def test_values_that_python_takes_for_one_stay_several() -> None:
    word = "k=choice(1,true,1.0,0,false)"
    assert told(word) == plain(word)
    assert len({*told(word)}) == 5


@given(st.permutations(["a", "b", "c", "d"]))
def test_a_choice_that_is_shuffled_is_one_space_in_every_process(words: list[str]) -> None:
    word = f"key=shuffle({','.join(words)})"
    assert told(word) == [f"key={word}" for word in words]
    assert sorted(plain(word)) == sorted(told(word))


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("k=interval(1,4)", FloatDistribution(1.0, 4.0)),
        ("k=interval(0,1)", FloatDistribution(0.0, 1.0)),
        ("k=tag(log,interval(1e-4,1e-2))", FloatDistribution(1e-4, 1e-2, log=True)),
        ("k=int(interval(1,4))", IntDistribution(1, 4)),
        ("k=tag(int,interval(1,4))", IntDistribution(1, 4)),
        ("k=tag(log,int,interval(1,64))", IntDistribution(1, 64, log=True)),
        ("k=range(1,4)", IntDistribution(1, 3)),
        ("k=range(0,1,0.25)", FloatDistribution(0.0, 0.75, step=0.25)),
        ("+k=a,b", CategoricalDistribution(["a", "b"])),
        ("k=choice(2,4)", CategoricalDistribution([2, 4])),
    ],
)
def test_what_optuna_draws_from(word: str, kind: object) -> None:
    (axis,) = read(word).axes
    assert axis.distribution == kind
    assert axis.name == "k"


def test_the_command_line_counts_over_the_file() -> None:
    found, shared = space.read(PARSER, {"a.b": "range(1,4)", "c": 3, "d": "choice(x,y)"}, ["a.b=2", "e=1", "f=1,2"])
    assert [axis.key for axis in found.axes] == ["d", "f"]
    assert sorted(shared) == ["a.b=2", "c=3", "e=1"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["a=1"], "Nothing is searched"),
        (["a=tag(log,interval(0,1))"], "above 0 and below"),
        (["a=interval(2,1)"], "below the upper one"),
    ],
)
def test_what_is_no_space(words: list[str], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        read(*words)


def test_a_grid_wants_values() -> None:
    assert read("a=range(1,3)", "b=x,y").grid() == {"a": [1, 2], "b": ["x", "y"]}
    with pytest.raises(BadInput, match="a is an interval, of which a grid has no values"):
        read("a=interval(0,1)", "b=x,y").grid()
