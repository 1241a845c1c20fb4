"""Verdicts: the rules by hand, planted effects, and how often a claim that is not true is given an answer."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmab.lab.rules import Comparison, Order, Peak, Share
from lmab.lab.verdict import judge, reason
from lmab.types import BadInput

D = 30


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=seed))


def trained(rng, centres, S, *, seeds=1.0, documents=0.0, both=1.0, heavy=False):
    """Scores around each arm's centre: arm -> seed -> [D]. The documents' own difficulty is common to all."""

    def noise(*shape):
        return rng.standard_t(3, shape) if heavy else rng.standard_normal(shape)

    hard = 5 * noise(D)
    return {
        arm: dict(enumerate(centre + hard + seeds * noise(S, 1) + documents * noise(1, D) + both * noise(S, D)))
        for arm, centre in centres.items()
    }


def exactly(gains):
    """An arm that is better (lower) than a control by gains[s] at seed s, on every document."""
    control = {s: np.linspace(1, 2, D) for s in range(len(gains))}
    return {"new": {s: control[s] - g for s, g in enumerate(gains)}, "old": control}


def ranked(arms):
    return [Order(rule="ranked", arms=tuple(arms))]


def ask(scores, rule="better", margin=0.0, *, better="lower", weights=None, **rest):
    comparison = Comparison(rule=rule, treatment="new", control="old", margin=margin)
    weights = np.ones(D) if weights is None else weights
    return judge(scores, weights, [comparison], better=better, unit="nats", **{"replicates": 399} | rest)


# --- rules


@pytest.mark.parametrize(
    ("rule", "margin", "centre", "answer"),
    [
        ("better", 0.0, 1.0, "reproduced"),
        ("better", 0.0, -1.0, "contradicted"),
        ("better", 0.0, 0.0, "undecided"),
        ("better", 0.5, 1.0, "reproduced"),
        ("better", 0.5, 0.1, "contradicted"),  # better, but not by as much
        ("better", 0.5, 0.5, "undecided"),
        ("better", 0.5, -1.0, "contradicted"),
        ("not_worse", 0.5, 0.0, "reproduced"),
        ("not_worse", 0.5, -0.3, "reproduced"),
        ("not_worse", 0.5, -0.5, "undecided"),
        ("not_worse", 0.5, -1.0, "contradicted"),
        ("equivalent", 0.5, 0.0, "reproduced"),
        ("equivalent", 0.5, 0.5, "undecided"),
        ("equivalent", 0.5, 1.0, "contradicted"),
        ("equivalent", 0.5, -1.0, "contradicted"),
    ],
)
def test_rules(rule, margin, centre, answer):
    gains = centre + 0.05 * np.array([-4, -3, -2, -1, 1, 2, 3, 4])
    verdict = ask(exactly(gains), rule, margin)
    assert verdict.answer == verdict.judged[0].answer == answer
    assert verdict.judged[0].gain.estimate == pytest.approx(centre)
    mirrored = {arm: {s: -score for s, score in by_seed.items()} for arm, by_seed in exactly(gains).items()}
    assert ask(mirrored, rule, margin, better="higher").judged == verdict.judged


@pytest.mark.parametrize(("rule", "gain"), [("better", 0.5), ("not_worse", -0.5), ("equivalent", 0.5)])
def test_a_boundary_is_never_decided(rule, gain):
    """With no noise at all, and the gain on the line, every draw ties with the bound."""
    assert ask(exactly([gain] * 9), rule, 0.5).answer == "undecided"


def test_p_by_hand():
    judged = ask(exactly([1, 2, 3, 4, 5, 6, 7])).judged[0]
    assert judged.p == judged.adjusted == 2 / 128
    assert judged.effect == pytest.approx(4 / np.std(range(7), ddof=1))
    # TOST is as strong as its weaker side; either refutation is paid for twice.
    assert ask(exactly([-1, 1, -2, 2, -3, 3, 4]), "equivalent", 9.0).judged[0].p == 2 / 128
    assert ask(exactly([5, 6, 7, 8, 9, 10, 11]), "equivalent", 4.0).judged[0].p == 4 / 128


def test_the_interval_agrees_with_the_answer():
    rng = generator(1)
    for _ in range(40):
        verdict = ask(trained(rng, {"new": 0.0, "old": 0.9}, 8, documents=1), level=0.1)
        gain, answer = verdict.judged[0].gain, verdict.answer
        inside = "reproduced" if gain.low > 0 else "contradicted" if gain.high < 0 else "undecided"
        assert answer == inside


def test_a_claim_holds_where_all_of_it_does():
    rng, arms = generator(2), ["a", "b", "c"]
    low_to_high = trained(rng, {"a": 0.0, "b": 5.0, "c": 10.0}, 8)
    assert judge(low_to_high, np.ones(D), ranked(arms), better="lower").answer == "reproduced"
    assert judge(low_to_high, np.ones(D), ranked(["b", "a", "c"]), better="lower").answer == "contradicted"
    tied = low_to_high | {"b": low_to_high["a"]}
    found = judge(tied, np.ones(D), ranked(arms), better="lower")
    assert [j.answer for j in found.judged] == ["undecided", "reproduced"]
    assert found.answer == "undecided"


def test_holm_over_the_claim():
    """Six seeds decide one comparison, 2 / 64 <= 0.05, but not the smaller of two."""
    scores = exactly([1.0, 2, 3, 4, 5, 6])
    one = Comparison(rule="better", treatment="new", control="old")
    two = [one, Comparison(rule="not_worse", treatment="new", control="old", margin=3.5)]
    assert judge(scores, np.ones(D), [one], better="lower").answer == "reproduced"
    found = judge(scores, np.ones(D), two, better="lower")
    assert [(j.p, j.adjusted) for j in found.judged] == [(2 / 64, 4 / 64)] * 2
    assert found.answer == "undecided"
    assert [j.further_seeds for j in found.judged] == [1, 1]


def test_bad_input():
    scores = exactly([1, 2, 3])
    with pytest.raises(BadInput, match="no arm 'newer': did you mean new"):
        judge(scores, np.ones(D), ranked(["newer", "old"]), better="lower")
    with pytest.raises(BadInput, match="not 'low': did you mean lower"):
        ask(scores, better="low")
    with pytest.raises(BadInput, match="at least one"):
        judge(scores, np.ones(D), [], better="lower")
    with pytest.raises(BadInput, match="'new' has scores of shape"):
        ask(scores, weights=np.ones(D + 1))


# --- pairs


def test_only_shared_seeds_are_compared():
    scores = exactly([1.0, 2, 3, 4, 5, 6, 7, 8])
    alone = {"new": {s: v for s, v in scores["new"].items() if s > 0}, "old": scores["old"] | {9: np.ones(D)}}
    found = ask(alone)
    assert (found.judged[0].n, found.judged[0].p) == (7, 2 / 128)
    assert {arm: i.n for arm, i in found.arms.items()} == {"new": 7, "old": 9}
    assert found.judged[0].gain.estimate == pytest.approx(np.mean([2, 3, 4, 5, 6, 7, 8]))


@pytest.mark.parametrize("new", [{}, {7: np.ones(D)}])
def test_no_pairs_no_answer(new):
    found = ask(exactly([1, 2, 3]) | {"new": new})
    judged = found.judged[0]
    assert (found.answer, judged.n, judged.p, judged.further_seeds) == ("undecided", 0, 1, None)
    assert reason(judged) == "whether new is better than old is undecided: no seed was run in both arms"
    json.dumps(found.as_dict(), allow_nan=False)


@pytest.mark.parametrize("lost", [np.nan, np.inf])
def test_a_diverged_run_leaves_it_undecided(lost):
    scores = exactly([1.0, 2, 3, 4, 5, 6, 7, 8])
    scores["old"][3] = np.full(D, lost)
    found = ask(scores)
    assert found.answer == "undecided"
    assert found.as_dict()["judged"][0]["gain"] == {"estimate": None, "low": None, "high": None, "n": 8}


def test_documents_weigh_by_their_targets():
    """The treatment is better on the one long document and worse on the others."""
    scores = exactly([0.0] * 8)
    for s, v in scores["new"].items():
        v[:] += np.where(np.arange(D) == 0, -1.0, 0.5) + 0.001 * s
    assert ask(scores).judged[0].gain.estimate < 0
    assert ask(scores, weights=np.where(np.arange(D) == 0, 1000, 1)).judged[0].gain.estimate > 0


# --- the same question has the same answer


@settings(max_examples=20, deadline=None)
@given(st.permutations(["a", "b", "c"]), st.permutations(list(range(7))), st.integers(0, 50))
def test_order_changes_nothing(arms, seeds, seed):
    scores = trained(generator(3), {"a": 0.0, "b": 1.0, "c": 2.0}, 7, documents=1)
    shuffled = {arm: {s: scores[arm][s] for s in seeds} for arm in arms}
    asked = [
        *ranked(["a", "b", "c"]),
        Comparison(rule="equivalent", treatment="c", control="a", margin=3.0),
        Share(whole=("a", "c"), part=("a", "b"), least=0.25),
    ]
    plain = judge(scores, np.ones(D), asked, better="lower", seed=seed, replicates=99)
    turned = judge(shuffled, np.ones(D), asked[::-1], better="lower", seed=seed, replicates=99)
    assert turned.arms == plain.arms
    assert {j.statement.label: j for j in turned.judged} == {j.statement.label: j for j in plain.judged}


def test_exchanging_the_arms_mirrors_the_verdict():
    scores = trained(generator(4), {"new": 0.0, "old": 0.8}, 9, documents=1)
    there = ask(scores).judged[0]
    back = ask({"new": scores["old"], "old": scores["new"]}).judged[0]
    assert (back.p, back.n) == (there.p, there.n)
    assert (back.gain.low, back.gain.high) == pytest.approx((-there.gain.high, -there.gain.low))
    assert ask(scores, seed=1).judged[0].gain != there.gain


# --- what is said


def test_reasons():
    def said(gains, rule, margin=0.0):
        return reason(ask(exactly(np.array(gains)), rule, margin).judged[0])

    gains = np.array([1.0, 2, 3, 4, 5, 6, 7])
    assert said(gains, "better") == "new is better than old: gain +4 [+2, +6], n=7, p=0.016"
    assert said(-gains, "better").startswith("new is worse than old: gain -4")
    assert said(gains, "not_worse", 0.1).startswith("new is not worse than old by more than 0.1 nats: ")
    assert said(-gains, "not_worse", 0.1).startswith("new is worse than old by more than 0.1 nats: ")
    assert said(gains, "equivalent", 9).startswith("new is within 9 nats of old: ")
    assert said(gains, "equivalent", 0.5).startswith("new is not within 0.5 nats of old: ")
    few = said(gains[:5], "better")
    assert few.startswith("whether new is better than old is undecided: gain +3 (no bounds yet), n=5, p=0.062; about ")
    assert few.endswith("about 1 more seed would probably decide")


def test_as_dict_is_json():
    plain = ask(exactly([1, 2, 3])).as_dict()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert (plain["answer"], plain["level"], set(plain["arms"])) == ("undecided", 0.05, {"new", "old"})
    judged = plain["judged"][0]
    assert judged["statement"]["contrast"] == {"new": 1, "old": -1}
    assert judged["statement"]["support"] == [[1, 0]]
    assert judged["gain"]["estimate"] == pytest.approx(2)
    assert (judged["gain"]["low"], judged["gain"]["high"], judged["gain"]["n"]) == (None, None, 3)


# --- the truth is known


def test_planted_effects_are_found():
    """0.8 of the spread of a pair's difference, at twenty seeds: a t test would find 92 in 100."""
    rng, found = generator(5), []
    for _ in range(100):
        scores = trained(rng, {"new": 0.0, "old": 0.8 * math.sqrt(2)}, 20, both=0.3)
        found.append(ask(scores).answer)
    assert found.count("reproduced") >= 80
    assert "contradicted" not in found


def test_further_seeds_are_about_enough():
    """Where eight seeds did not decide, as many more as were asked for decide at least half the time."""
    rng, enough = generator(6), []
    for _ in range(60):
        many = trained(rng, {"new": 0.0, "old": 1.2}, 60, both=0.3)
        some = {arm: dict(list(by_seed.items())[:8]) for arm, by_seed in many.items()}
        judged = ask(some).judged[0]
        if judged.further_seeds and 8 + judged.further_seeds <= 60:
            more = {arm: dict(list(by_seed.items())[: 8 + judged.further_seeds]) for arm, by_seed in many.items()}
            enough.append(ask(more).answer == "reproduced")
    assert len(enough) >= 10
    assert np.mean(enough) >= 0.5


TRUE = "plain over all"  # the one statement below that lies on no line: there is a drop
NULLS = {
    "one": ({"new": 0.0, "old": 0.0}, [Comparison(rule="better", treatment="new", control="old")]),
    "three": (dict.fromkeys("abcd", 0.0), ranked("abcd")),
    "margins": (  # on the line of all three: b is worse than a by the margin
        {"a": 0.0, "b": 1.0, "c": 0.0},
        [
            Comparison(rule="not_worse", treatment="b", control="a", margin=1.0),
            Comparison(rule="equivalent", treatment="b", control="c", margin=1.0),
            Comparison(rule="better", treatment="a", control="c"),
        ],
    ),
    "steps": (
        dict.fromkeys("abc", 0.0),
        [Order(rule="monotone", arms=("a", "b", "c")), Peak(arms=("a", "b", "c"), top="b")],
    ),
    "half": (  # of the drop
        {"plain": 0.0, "part": 2.0, "all": 4.0},
        [Share(whole=("plain", "all"), part=("plain", "part"), least=0.5)],
    ),
    "no drop": (
        dict.fromkeys(("none", "part", "all"), 0.0),
        [Share(whole=("none", "all"), part=("none", "part"), least=0.3)],
    ),
}


def false_verdicts(claim, S, trials, *, heavy=False, **noise):
    """The share of claims in which anything at all was decided that lies on the line."""
    rng, (centres, rules) = generator(7), NULLS[claim]
    wrong = 0
    for trial in range(trials):
        scores = trained(rng, centres, S, heavy=heavy, **noise)
        found = judge(scores, np.ones(D), rules, better="lower", seed=trial, replicates=399)
        wrong += any(j.answer != "undecided" for j in found.judged if j.statement.label != TRUE)
    return wrong / trials


@pytest.mark.slow
@pytest.mark.parametrize("documents", [0.0, 1.5])
@pytest.mark.parametrize(
    ("claim", "heavy"),
    [*((claim, 0) for claim in NULLS), ("one", 1), ("three", 1), ("half", 1)],
)
@pytest.mark.parametrize("S", [3, 5, 7, 10, 20])
def test_false_verdicts_are_as_rare_as_promised(S, claim, heavy, documents, monkeypatch):
    """Seeds vary, gaussian or heavy-tailed (Student's t with 3 degrees of freedom); documents too, or not."""
    monkeypatch.setattr("lmab.lab.stats.further_seeds", lambda *_, **__: None)  # slow, and part of no verdict
    trials = {3: 50, 5: 50, 7: 500, 10: 400, 20: 300}[S]
    wrong = false_verdicts(claim, S, trials, heavy=heavy, documents=documents, both=0.5)
    assert wrong <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / trials)
    if S <= 5:  # no exact test reaches 0.05 with five seeds: 2 / 2**5
        assert wrong == 0
