"""Committed evidence agrees with itself: judged again from its runs, it gives the verdict that stands there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from lmab.lab import claim as claims
from lmab.lab import exact
from lmab.lab.publish import ledger
from lmab.lab.verdict import judge

RESULTS = Path(__file__).parents[1] / "results"
VERDICTS = sorted(RESULTS.rglob("verdict.json"))


@pytest.mark.parametrize("path", VERDICTS, ids=lambda p: str(p.parent.relative_to(RESULTS)))
def test_evidence_gives_its_verdict_again(path: Path) -> None:
    found = json.loads(path.read_text(encoding="utf-8"))
    claim = found["claim"]
    if "figures" in found:
        figures = {arm: known[claim["measure"]["metric"]] for arm, known in found["figures"].items()}
        checked = exact.check(claims.rules(claim["verdict"]), figures)
        assert [c.holds for c in checked] == [c["holds"] for c in found["verdict"]["checked"]]
        assert found["answer"] == ("reproduced" if all(c.holds for c in checked) else "contradicted")
        assert found["code"]["dirty"] is False
        return
    runs = json.loads((path.parent / "runs.json").read_text(encoding="utf-8"))
    scores: dict[str, dict[int, np.ndarray]] = {arm: {} for arm in claim["arms"]}
    for run in runs:
        scores[run["arm"]][run["seed"]] = np.array(
            run["scores"], dtype=float
        )  # null, where a document has no target, is NaN
        assert run["code"]["dirty"] is False
        assert run["weights"] == runs[0]["weights"]  # every run was scored on the same targets
        assert found["runs"][run["arm"]][str(run["seed"])] == run["signature"]
        held = np.array(run["weights"]) > 0
        mean = np.average(np.array(run["scores"], dtype=float)[held], weights=np.array(run["weights"])[held])
        assert mean == pytest.approx(found["scores"][run["arm"]][str(run["seed"])], rel=1e-4)
    verdict = judge(
        scores,
        np.array(runs[0]["weights"]),
        claims.rules(claim["verdict"]),
        better=claim["measure"]["better"],
        level=claim["level"],
    )
    for ours, theirs in zip(verdict.judged, found["verdict"]["judged"], strict=True):
        assert ours.answer == theirs["answer"]
        assert ours.gain.estimate == pytest.approx(theirs["gain"]["estimate"], rel=1e-3, abs=1e-4)
        assert ours.gain.low == pytest.approx(theirs["gain"]["low"], rel=1e-2, abs=1e-3)
    if found["answer"] != "not decidable":
        assert verdict.answer == found["answer"]


def test_the_ledger_is_that_of_the_evidence(tmp_path: Path) -> None:
    for path in VERDICTS:
        copy = tmp_path / path.relative_to(RESULTS)
        copy.parent.mkdir(parents=True)
        copy.write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    assert ledger(tmp_path).read_text(encoding="utf-8") == (RESULTS / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ""),
        ({"claim": "Other words.", "seeds": [0, 1, 2], "reported": {}}, ""),
        ({"base": []}, "base"),
        ({"arms": {"a": ["model.depth=1"], "b": []}}, "arms"),
        ({"verdict": [{"rule": "better", "treatment": "dynamic", "control": "once"}]}, "verdict"),
        ({"base": [], "measure": {"metric": "test/mlm_loss", "better": "lower", "unit": "bits"}}, "base, measure"),
    ],
)
def test_the_ledger_says_what_was_rewritten(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    """Evidence rests on the claim as it was, of which it holds a copy."""
    file = RESULTS.parent / "sweeps/roberta/masking.yaml"
    claim = claims.load("roberta/masking", yaml.safe_load(file.read_text(encoding="utf-8"))).as_dict() | changes
    found = {"claim": claim, "budget": "mini", "answer": "undecided", "sentence": "Undecided at budget mini: so."}
    path = tmp_path / "roberta/masking/mini/verdict.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(found), encoding="utf-8")
    row = ledger(tmp_path).read_text(encoding="utf-8").splitlines()[-1]
    assert row.endswith("| so. |") if not said else f" Changed in the file since: {said}; " in row
