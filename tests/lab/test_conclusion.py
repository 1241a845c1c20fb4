"""From records to an answer: what is missing, lost, stuck or changed is said, and never helps an arm."""

from __future__ import annotations

from typing import Any

import pytest

from lmab.lab.claim import load
from lmab.lab.conclusion import Cell, conclude
from lmab.store import Record
from lmab.types import BadInput

GIVEN: dict[str, Any] = {
    "claim": "New is better than old.",
    "source": {"paper": "None", "arxiv": "0000.00000", "where": "nowhere"},
    "base": [],
    "arms": {"old": ["a=1"], "new": ["a=2"]},
    "measure": {"metric": "test/mlm_loss", "better": "lower"},
    "verdict": {"rule": "better", "treatment": "new", "control": "old"},
    "seeds": 10,
}
WEIGHTS = [3.0, 5.0, 2.0]


def _cells(budget: str = "mini") -> list[Cell]:
    config = {"budget": {"name": budget}, "objective": {"mlm": {}}}
    return [Cell(arm, seed, [], f"{arm}-{seed}", config) for seed in range(10) for arm in ("old", "new")]


def _record(cell: Cell, gain: float = 2.0, **more: Any) -> Record:
    level = (4.0 if cell.arm == "new" else 5.0) + 0.01 * ((cell.seed * 7) % 10)
    given: dict[str, Any] = {
        "signature": cell.signature,
        "state": "done",
        "config": cell.config,
        "seed": cell.seed,
        "metrics": {"learnt/mlm_gain": gain},
        "scores": {"test/mlm_loss": [level, level + 0.1, level - 0.1]},
        "weights": {"test/mlm_loss": WEIGHTS},
        "code": {"revision": "abc"},
    }
    return Record(**given | more)


def _records(**more: Any) -> dict[str, Record]:
    return {cell.signature: _record(cell, **more) for cell in _cells()}


def test_a_planted_effect_is_found_and_named_with_its_budget() -> None:
    found = conclude(load("some/claim", GIVEN), _cells(), _records())
    assert found.answer == "reproduced"
    assert found.sentence.startswith("Reproduced at budget mini: new is better than old: gain +1")
    assert not found.missing


def test_arms_on_the_plateau_decide_nothing() -> None:
    found = conclude(load("some/claim", GIVEN), _cells(), _records(gain=0.19))
    assert found.answer == "not decidable"
    assert "old, new gained less than 0.2 nats" in found.sentence
    assert "try budget=base" in found.sentence


def test_a_run_that_diverged_is_not_left_out_of_its_arm() -> None:
    records = _records()
    for seed in (2, 5):
        cell = next(c for c in _cells() if (c.arm, c.seed) == ("new", seed))
        records[cell.signature] = _record(cell, state="diverged", scores={}, weights={}, message="lost")
    found = conclude(load("some/claim", GIVEN), _cells(), records)
    assert found.answer == "undecided"
    assert "2 of 20 runs have no score, 2 of them diverged." in found.sentence


def test_a_run_that_failed_is_a_missing_pair_and_is_said() -> None:
    records = _records()
    del records["new-3"]
    found = conclude(load("some/claim", GIVEN), _cells(), records)
    assert found.answer == "reproduced"
    assert found.verdict is not None
    assert found.verdict.judged[0].n == 9
    assert "1 of 20 runs have no score." in found.sentence


def test_nothing_to_judge_is_undecided() -> None:
    assert conclude(load("some/claim", GIVEN), _cells(), {}).answer == "undecided"


def test_runs_scored_on_other_targets_are_refused() -> None:
    records = _records()
    records["new-3"].weights["test/mlm_loss"] = [3.0, 5.0, 4.0]
    with pytest.raises(BadInput, match="different held-out targets"):
        conclude(load("some/claim", GIVEN), _cells(), records)


def test_what_was_changed_and_mixed_revisions_are_named() -> None:
    records = _records()
    records["new-3"].code["revision"] = "def"
    found = conclude(load("some/claim", GIVEN), _cells(), records, ["model.depth=4"])
    assert found.sentence.startswith("Reproduced at budget mini with model.depth=4: ")
    assert "different revisions" in found.sentence


def test_the_level_of_a_file_counts() -> None:
    assert load("some/claim", GIVEN | {"level": 0.01}).level == 0.01
    with pytest.raises(BadInput, match="can never decide"):
        load("some/claim", GIVEN | {"level": 0.001})


@pytest.mark.parametrize("gain", [2.0, 0.19])
def test_a_look_at_one_seed_is_always_undecided(gain: float) -> None:
    claim = load("some/claim", GIVEN | {"seeds": "look"}, look=True)
    assert claim.seeds == [0]
    found = conclude(claim, [c for c in _cells() if c.seed == 0], _records(gain=gain), ["seeds=look"])
    assert found.answer == "undecided"
    words = "Undecided at budget mini with seeds=look: one seed was looked at, and a verdict needs at least 6."
    assert found.sentence.startswith(f"{words} Gains: new over old: +1")
    assert ("old, new gained less than 0.2 nats" in found.sentence) == (gain < 0.2)


def test_a_look_that_lost_an_arm_says_so() -> None:
    cells = [c for c in _cells() if c.seed == 0]
    records = {c.signature: _record(c) for c in cells if c.arm == "old"}
    found = conclude(load("some/claim", GIVEN, look=True), cells, records)
    assert found.answer == "undecided"
    assert "nan" not in found.sentence
    assert "1 of 2 runs have no score" in found.sentence


def test_a_file_that_asks_for_a_look_is_refused() -> None:
    with pytest.raises(BadInput, match="seeds"):
        load("some/claim", GIVEN | {"seeds": "look"})
