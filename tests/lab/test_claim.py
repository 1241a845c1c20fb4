"""Claim files: every kind of rule loads, and what is wrong with one is said in a sentence that names the file."""

from __future__ import annotations

from typing import Any

import pytest

from lmab.lab import claim as claims
from lmab.lab.amounts import Amount, Ratio
from lmab.lab.rules import Comparison, Order, Peak, Share
from lmab.types import BadInput

GIVEN: dict[str, Any] = {
    "claim": "Sharing costs little.",
    "source": {"paper": "ALBERT", "arxiv": "1909.11942", "where": "table 4"},
    "base": [],
    "arms": {"none": ["a=1"], "attention": ["a=2"], "ffn": ["a=3"], "all": ["a=4"]},
    "measure": {"metric": "test/mlm_loss", "better": "lower"},
    "seeds": 10,
}
EXACT: dict[str, Any] = {
    **{key: value for key, value in GIVEN.items() if key != "seeds"},
    "measure": {"metric": "cost/encoder_parameters"},
    "verdict": {"rule": "exact", "arm": "all", "value": "18e6", "within": 0.05},
}


def load(**given: Any) -> claims.Claim:
    return claims.load("albert/sharing", GIVEN | given)


@pytest.mark.parametrize(
    ("rule", "loaded", "statements"),
    [
        (
            {"rule": "better", "treatment": "none", "control": "all"},
            Comparison(rule="better", treatment="none", control="all"),
            1,
        ),
        ({"rule": "ranked", "arms": ["none", "ffn", "all"]}, Order(rule="ranked", arms=("none", "ffn", "all")), 2),
        (
            {"rule": "monotone", "arms": ["all", "ffn", "none"], "margin": 1},
            Order(rule="monotone", arms=("all", "ffn", "none"), margin=1.0),
            2,
        ),
        (
            {"rule": "peak", "arms": ["none", "attention", "ffn", "all"], "top": "ffn"},
            Peak(arms=("none", "attention", "ffn", "all"), top="ffn"),
            2,
        ),
        (
            {"rule": "share", "whole": ["none", "all"], "part": ["none", "ffn"], "least": 0.5},
            Share(whole=("none", "all"), part=("none", "ffn"), least=0.5),
            2,
        ),
    ],
)
def test_rules_load_and_count(rule: dict[str, Any], loaded: Any, statements: int) -> None:
    claim = load(verdict=rule)
    assert claim.verdict == claim.tested == [loaded]
    assert not claim.exact
    assert claims.rules([rule, rule]) == [loaded, loaded]
    # What is kept as evidence can be read again.
    assert claims.rules(claim.as_dict()["verdict"]) == [loaded]
    # Seeds that could never decide all of its statements are too few: 2 / 2**S <= 0.05 / statements.
    least = {1: 6, 2: 7}[statements]
    assert load(verdict=rule, seeds=least).seeds == list(range(least))
    with pytest.raises(BadInput, match=rf"can never decide {statements} comparison\(s\) .* at least seeds={least}"):
        load(verdict=rule, seeds=least - 1)


def test_statements_of_all_rules_count_together() -> None:
    order = {"rule": "monotone", "arms": ["all", "ffn", "attention", "none"]}
    share = {"rule": "share", "whole": ["none", "all"], "part": ["none", "ffn"], "least": 0.5}
    with pytest.raises(BadInput, match=r"5 comparison\(s\) .* at least seeds=8"):
        load(verdict=[order, share], seeds=7)


PEAK = {"rule": "peak", "arms": ["none", "ffn", "all"], "top": "ffn"}
SHARE = {"rule": "share", "whole": ["none", "all"], "part": ["none", "ffn"], "least": 0.5}
AMOUNT = {"rule": "exact", "arm": "all", "value": 18e6, "within": 0.05}
RATIO = {"rule": "exact", "treatment": "none", "control": "all", "ratio": 18, "within": 0.05}
BAD = {
    "no rule": (3, "3 in verdict is not a rule as in {rule: better"),
    "a rule without a name": ({"treatment": "none"}, "is not a rule as in"),
    "an empty list": ([], "has no rule"),
    "an unknown rule": ({"rule": "monoton"}, "no rule 'monoton': did you mean monotone"),
    "a rule that is a list": ({"rule": ["peak"]}, "no rule"),
    "a missing key": (
        {"rule": "peak", "arms": ["none", "ffn", "all"]},
        "Rule peak has no top: give {rule: peak, ",
    ),
    "another missing key": ({"rule": "share", "whole": ["none", "all"], "least": 0.5}, "Rule share has no part"),
    "an unknown key": ({**PEAK, "topp": "ffn"}, "Rule peak takes no topp: did you mean top"),
    "a key of another rule": ({**PEAK, "treatment": "ffn"}, "Rule peak takes no treatment"),
    "ranked with a key too many": ({"rule": "ranked", "arms": ["none", "all"], "least": 1}, "ranked takes no least"),
    "a word for a number": ({**SHARE, "least": "half"}, "Rule share: least='half' cannot work: input should be"),
    "one arm for two": ({**SHARE, "part": "ffn"}, "Rule share: part='ffn' cannot work"),
    "three arms for two": ({**SHARE, "part": ["none", "ffn", "all"]}, "Rule share: part="),
    "an arm that is not there": ({**SHARE, "part": ["none", "fnn"]}, "names the arm 'fnn': did you mean ffn"),
    "a top that is not there": ({**PEAK, "top": "fnn"}, "not fnn but one of ffn"),
    "an order of arms that are not there": ({"rule": "monotone", "arms": ["nune", "all"]}, "'nune': did you mean none"),
    "a top at the end": ({**PEAK, "top": "all"}, "neither first nor last"),
    "a share of everything": ({**SHARE, "least": 1}, "between 0 and 1"),
    "exact and tested rules": ([AMOUNT, PEAK], "write two files"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_verdict_is_refused_with_one_sentence(what: str) -> None:
    rule, words = BAD[what]
    with pytest.raises(BadInput) as refused:
        load(verdict=rule)
    said = str(refused.value)
    assert said.startswith("sweeps/albert/sharing.yaml: ")
    assert words in said
    assert said.endswith((".", "?"))
    assert "\n" not in said


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seeds": None}, "It has no seeds: rules over seeds need a number of them"),
        ({"measure": {"metric": "test/mlm_loss"}}, "has no measure.better: say whether lower or higher"),
        ({"measure": {"metric": "test/mlm_loss", "better": "up"}}, "measure.better"),
        ({"measure": "test/mlm_loss"}, "measure"),
        ({"arms": {"ffn": []}}, "at least two"),
    ],
)
def test_what_rules_over_seeds_need(change: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words) as refused:
        load(**{"verdict": PEAK} | change)
    assert str(refused.value).startswith("sweeps/albert/sharing.yaml: ")


def test_an_exact_claim_needs_no_seeds() -> None:
    claim = claims.load("albert/parameters", EXACT)
    assert claim.exact == claim.verdict == [Amount(arm="all", value=18e6, within=0.05)]  # YAML reads 18e6 as a word
    assert (claim.tested, claim.seeds) == ([], [])
    assert claim.measure.unit == "encoder parameters"
    named = claims.load("x", EXACT | {"measure": {"metric": "cost/flops_a_token", "unit": "FLOPs a token"}})
    assert named.measure.unit == "FLOPs a token"
    both = claims.load("albert/parameters", EXACT | {"verdict": [AMOUNT, RATIO]})
    assert both.exact[1] == Ratio(treatment="none", control="all", ratio=18, within=0.05)
    assert claims.rules(both.as_dict()["verdict"]) == both.exact
    one = claims.load("albert/parameters", EXACT | {"arms": {"all": []}})
    assert list(one.arms) == ["all"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seeds": 7}, "leave out seeds"),
        ({"seeds": 7, "level": 0.01}, "leave out seeds, level"),
        ({"plateau": 0.1}, "leave out plateau"),
        ({"measure": {"metric": "cost/parameters", "better": "lower"}}, "leave out measure.better"),
        ({"measure": None}, "has no measure"),
        ({"verdict": {**AMOUNT, "arm": "al"}}, "names the arm 'al': did you mean all"),
        ({"verdict": {**AMOUNT, "valeu": 3}}, "takes no valeu: did you mean value"),
        ({"verdict": {"rule": "exact", "arm": "all", "value": 3}}, "Rule exact has no within"),
        ({"verdict": {"rule": "exact", "treatment": "all", "within": 0.1}}, "Rule exact has no control"),
        ({"verdict": {**RATIO, "control": "none"}}, "divides 'none' by itself"),
        ({"verdict": {**RATIO, "ratio": 0}}, "ratio above 0"),
        ({"verdict": {**AMOUNT, "value": -1}}, "value above 0"),
        ({"verdict": {**AMOUNT, "within": 1}}, "within from 0 to below 1"),
        ({"verdict": {**AMOUNT, "ratio": 3}}, "takes no arm"),
    ],
)
def test_a_bad_exact_claim_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words) as refused:
        claims.load("albert/parameters", EXACT | change)
    assert str(refused.value).startswith("sweeps/albert/parameters.yaml")
    assert "\n" not in str(refused.value)
