"""The rules of a claim file: what each states of which arms, in which words, and how it is answered."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmab.lab.rules import Comparison, Order, Peak, Rule, Share, Side
from lmab.lab.verdict import Verdict, judge, reason
from lmab.types import BadInput

D = 12
JITTER = 0.05 * np.array([-4, -3, -2, -1, 1, 2, 3, 4])  # of an arm over its seeds; its mean is 0


def scores(**centres: float) -> dict[str, dict[int, np.ndarray]]:
    """Losses of eight seeds around a centre for each arm. Documents differ alike in all arms; seeds of one arm do
    not follow those of another."""
    hard = np.linspace(1, 2, D)
    return {
        arm: {s: centre + hard + jitter for s, jitter in enumerate(np.roll(JITTER, 3 * i))}
        for i, (arm, centre) in enumerate(centres.items())
    }


def ask(rule: Rule, **centres: float) -> Verdict:
    return judge(scores(**centres), np.ones(D), [rule], better="lower", unit="nats", replicates=399)


def answers(found: Verdict) -> list[str]:
    return [j.answer for j in found.judged]


MONOTONE = Order(rule="monotone", arms=("a", "b", "c"))
PEAK = Peak(arms=("a", "b", "c", "d"), top="c")
SHARE = Share(whole=("none", "all"), part=("none", "ffn"), least=0.5)


def test_statements_by_hand() -> None:
    assert [(s.contrast, s.margin) for s in Order(rule="ranked", arms=("a", "b", "c"), margin=0.1).statements()] == [
        ({"a": 1, "b": -1}, 0.1),
        ({"b": 1, "c": -1}, 0.1),
    ]
    assert [(s.contrast, s.label) for s in MONOTONE.statements()] == [
        ({"b": 1, "a": -1}, "b over a"),
        ({"c": 1, "b": -1}, "c over b"),
    ]
    assert [s.contrast for s in PEAK.statements()] == [{"c": 1, "a": -1}, {"c": 1, "d": -1}]
    drop, part = SHARE.statements()
    assert (drop.contrast, drop.pair) == ({"none": 1, "all": -1}, ("none", "all"))
    assert (part.contrast, part.pair, part.about) == ({"ffn": -1, "none": 0.5, "all": 0.5}, None, "ffn")
    assert part.label == "none over ffn, less 0.5 of none over all"
    assert (part.support, part.against) == ((Side(1, 0),), (Side(-1, 0),))
    # A part that ends where the whole does, and one that touches neither end.
    inside = Share(whole=("none", "all"), part=("ffn", "all"), least=0.25).statements()[1]
    assert inside.contrast == {"ffn": 1, "all": -0.75, "none": -0.25}
    between = Share(whole=("none", "all"), part=("x", "y"), least=0.25).statements()[1]
    assert between.contrast == {"x": 1, "y": -1, "none": -0.25, "all": 0.25}


@given(st.floats(0.01, 0.99), st.permutations(["none", "all", "ffn", "attention"]))
def test_the_weights_of_a_share_are_zero_in_sum(least: float, arms: list[str]) -> None:
    for part in ((arms[0], arms[2]), (arms[2], arms[1]), (arms[2], arms[3])):
        statement = Share(whole=(arms[0], arms[1]), part=part, least=least).statements()[1]
        assert math.fsum(statement.contrast.values()) == pytest.approx(0, abs=1e-12)
        assert set(statement.contrast) == {*part, *arms[:2]}


# --- how each is answered, at eight seeds: reproduced, contradicted, undecided


@pytest.mark.parametrize(
    ("centres", "margin", "each"),
    [
        ((3, 2, 1), 0, ["reproduced", "reproduced"]),
        ((3, 4, 1), 0, ["contradicted", "reproduced"]),
        ((3, 2, 2), 0, ["reproduced", "undecided"]),
        ((3, 2, 1), 0.5, ["reproduced", "reproduced"]),
        ((3, 2, 1.9), 0.5, ["reproduced", "contradicted"]),  # better, but not by as much
        ((3, 2, 1.5), 0.5, ["reproduced", "undecided"]),
    ],
)
def test_monotone(centres: tuple[float, ...], margin: float, each: list[str]) -> None:
    arms = dict(zip("abc", centres, strict=True))
    found = ask(Order(rule="monotone", arms=("a", "b", "c"), margin=margin), **arms)
    assert answers(found) == each
    whole = "contradicted" if "contradicted" in each else "undecided" if "undecided" in each else "reproduced"
    assert found.answer == whole
    # A ranking says the same from the other end.
    assert answers(ask(Order(rule="ranked", arms=("c", "b", "a"), margin=margin), **arms)) == each[::-1]


@pytest.mark.parametrize(
    ("centres", "each", "whole"),
    [
        ((3, 2, 1, 2), ["reproduced", "reproduced"], "reproduced"),
        ((3, 9, 1, 2), ["reproduced", "reproduced"], "reproduced"),  # the arms between are not compared
        ((3, 2, 1, 0), ["reproduced", "contradicted"], "contradicted"),  # it rises to the end
        ((0, 1, 2, 3), ["contradicted", "reproduced"], "contradicted"),  # it falls from the start
        ((3, 2, 1, 1), ["reproduced", "undecided"], "undecided"),
    ],
)
def test_peak(centres: tuple[float, ...], each: list[str], whole: str) -> None:
    found = ask(PEAK, **dict(zip("abcd", centres, strict=True)))
    assert (answers(found), found.answer) == (each, whole)


@pytest.mark.parametrize(
    ("none", "ffn", "all_", "each", "whole"),
    [
        (0, 3, 4, ["reproduced", "reproduced"], "reproduced"),  # 0.75 of the drop
        (0, 5, 4, ["reproduced", "reproduced"], "reproduced"),  # more than all of it
        (0, 1, 4, ["reproduced", "contradicted"], "contradicted"),  # 0.25
        (0, -1, 4, ["reproduced", "contradicted"], "contradicted"),  # the part gains
        (4, 0, 0, ["contradicted", "contradicted"], "contradicted"),  # no drop but a gain
        (0, 2, 4, ["reproduced", "undecided"], "undecided"),  # on the line
        (0, 0, 0, ["undecided", "undecided"], "undecided"),
    ],
)
def test_share(none: float, ffn: float, all_: float, each: list[str], whole: str) -> None:
    found = ask(SHARE, none=none, ffn=ffn, all=all_)
    assert (answers(found), found.answer) == (each, whole)
    # In units of the score, as a loss: what the part costs, less half of what the whole costs.
    assert found.judged[1].gain.estimate == pytest.approx((ffn - none) - 0.5 * (all_ - none), abs=1e-12)
    turned = {arm: {s: -x for s, x in by_seed.items()} for arm, by_seed in scores(none=none, ffn=ffn, all=all_).items()}
    higher = judge(turned, np.ones(D), [SHARE], better="higher", unit="nats", replicates=399)
    assert higher.judged == found.judged


def test_a_share_pairs_seed_and_document() -> None:
    """Seeds that move all arms alike, however far, change no gain; and p is that of the signs of seven seeds."""
    rng = np.random.Generator(np.random.Philox(key=1))
    moved = {s: 50 * rng.standard_normal(D) for s in range(7)}
    arms = {
        "none": moved,
        "all": {s: x + 4 for s, x in moved.items()},
        "ffn": {s: x + 2 + 0.125 * (s + 1) for s, x in moved.items()},
    }
    drop, part = judge(arms, np.ones(D), [SHARE], better="lower", replicates=399).judged
    assert (drop.p, part.p) == (2 / 128, 2 / 128)
    assert (part.gain.estimate, part.n) == (pytest.approx(0.5), 7)
    assert part.effect == pytest.approx(4 / np.std(range(7), ddof=1))


def test_arms_that_are_equal_decide_nothing_of_a_share() -> None:
    """Weights such as 0.3 and 0.7 would leave a rounding error of one sign in every seed."""
    same = {s: np.linspace(1, 2, D) + 0.1 * s for s in range(9)}
    share = Share(whole=("none", "all"), part=("none", "ffn"), least=0.3)
    found = judge(dict.fromkeys(("none", "ffn", "all"), same), np.ones(D), [share], better="lower", replicates=99)
    assert answers(found) == ["undecided", "undecided"]
    assert [j.gain.estimate for j in found.judged] == [0, 0]


def test_a_share_stands_on_the_seeds_of_all_its_arms() -> None:
    given_ = scores(none=0, ffn=3, all=4)
    del given_["ffn"][0], given_["all"][1], given_["none"][7]
    drop, part = judge(given_, np.ones(D), [SHARE], better="lower", replicates=99).judged
    assert (drop.n, part.n) == (6, 5)
    given_["ffn"] = {}
    alone = judge(given_, np.ones(D), [SHARE], better="lower", replicates=99).judged[1]
    assert reason(alone).endswith("is undecided: no seed was run in all of its arms")
    given_["ffn"] = {s: np.full(D, np.nan) for s in range(8)}
    assert answers(judge(given_, np.ones(D), [SHARE], better="lower", replicates=99))[1] == "undecided"


def test_further_seeds_of_a_share() -> None:
    few = {arm: dict(list(by_seed.items())[:4]) for arm, by_seed in scores(none=0, ffn=3, all=4).items()}
    judged = judge(few, np.ones(D), [SHARE], better="lower", replicates=99).judged[1]
    assert judged.answer == "undecided"
    assert judged.further_seeds == 3  # two statements: 2 / 2**7 <= 0.05 / 2


# --- words


def test_words_of_either_answer() -> None:
    def said(rule: Rule) -> list[tuple[str, str]]:
        return [(s.holds, s.fails) for s in rule.statements("nats")]

    assert said(MONOTONE) == [
        ("b is better than a before it", "b is worse than a before it"),
        ("c is better than b before it", "c is worse than b before it"),
    ]
    assert said(Order(rule="monotone", arms=("a", "b"), margin=0.1)) == [
        ("b is better than a before it by more than 0.1 nats", "b is not better than a before it by more than 0.1 nats")
    ]
    assert said(PEAK) == [
        ("c at the top is better than a at the start", "c at the top is worse than a at the start"),
        ("c at the top is better than d at the end", "c at the top is worse than d at the end"),
    ]
    assert said(SHARE) == [
        ("none is better than all", "none is worse than all"),
        (
            "ffn accounts for at least 0.5 of the drop from none to all",
            "ffn accounts for less than 0.5 of the drop from none to all",
        ),
    ]
    inside = said(Share(whole=("none", "all"), part=("ffn", "all"), least=0.5))[1][0]
    assert inside == "the step from ffn to all accounts for at least 0.5 of the drop from none to all"


def test_reasons() -> None:
    drop, part = map(reason, ask(SHARE, none=0, ffn=3, all=4).judged)
    assert drop.startswith("none is better than all: gain +4 [")
    assert part.startswith("ffn accounts for at least 0.5 of the drop from none to all: gain +1 [")
    _, part = map(reason, ask(SHARE, none=0, ffn=1, all=4).judged)
    assert part.startswith("ffn accounts for less than 0.5 of the drop from none to all: gain -1 [")
    _, part = map(reason, ask(SHARE, none=0, ffn=2, all=4).judged)
    assert part.startswith("whether ffn accounts for at least 0.5 of the drop from none to all is undecided: gain ")


# --- refusals


@pytest.mark.parametrize(
    ("rule", "bad", "says"),
    [
        (Comparison, {"rule": "not_worse", "treatment": "a", "control": "b"}, "margin above 0"),
        (Comparison, {"rule": "equivalent", "treatment": "a", "control": "b", "margin": 0.0}, "margin above 0"),
        (Comparison, {"rule": "better", "treatment": "a", "control": "b", "margin": -1.0}, "margin at least 0"),
        (Comparison, {"rule": "better", "treatment": "a", "control": "b", "margin": math.nan}, "margin at least 0"),
        (Comparison, {"rule": "better", "treatment": "a", "control": "a"}, "with itself"),
        (Order, {"rule": "ranked", "arms": ("a",)}, "each once"),
        (Order, {"rule": "monotone", "arms": ("a", "b", "a")}, "each once"),
        (Order, {"rule": "monotone", "arms": ("a", "b"), "margin": -1.0}, "margin at least 0"),
        (Peak, {"arms": ("a", "b"), "top": "b"}, "three arms or more"),
        (Peak, {"arms": ("a", "b", "c", "d"), "top": "a"}, "neither first nor last: not a but one of b, c"),
        (Peak, {"arms": ("a", "b", "c", "d"), "top": "d"}, "neither first nor last"),
        (Peak, {"arms": ("a", "b", "c"), "top": "e"}, "not e but one of b"),
        (Share, {"whole": ("a", "a"), "part": ("a", "b"), "least": 0.5}, "whole goes from 'a' to itself"),
        (Share, {"whole": ("a", "b"), "part": ("c", "c"), "least": 0.5}, "part goes from 'c' to itself"),
        (Share, {"whole": ("a", "b"), "part": ("b", "a"), "least": 0.5}, "a step inside it"),
        (Share, {"whole": ("a", "b"), "part": ("a", "c"), "least": 0.0}, "between 0 and 1"),
        (Share, {"whole": ("a", "b"), "part": ("a", "c"), "least": 1.0}, "between 0 and 1"),
        (Share, {"whole": ("a", "b"), "part": ("a", "c"), "least": math.nan}, "between 0 and 1"),
    ],
)
def test_rules_that_say_nothing_are_refused(rule: type, bad: dict, says: str) -> None:
    with pytest.raises(BadInput, match=says) as refused:
        rule(**bad)
    assert str(refused.value).endswith(".")
