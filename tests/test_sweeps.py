"""Every claim file loads, its arms differ, and it is walked through at the smoke budget, through Hydra itself."""

from __future__ import annotations

import csv
import json
import math
import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from lmab.lab.claim import load
from lmab.lab.publish import publish
from lmab.store import Record, Store
from lmab.types import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable

    from lmab.lab.claim import Claim

ROOT = Path(__file__).parents[1]
SWEEPS = sorted(p for p in (ROOT / "sweeps").rglob("*.yaml") if p.parent.name != "tune")
TUNED = [f"tune/{p.stem}" for p in sorted((ROOT / "sweeps" / "tune").glob("*.yaml"))]
NAMES = [str(p.relative_to(ROOT / "sweeps").with_suffix("")) for p in SWEEPS]


def _line(name: str, store: Path, *more: str) -> list[str]:
    return ["run.py", "-m", f"sweeps={name}", "budget=smoke", "tracker=none", f"store={store}", *more]


def _given(name: str) -> dict:
    return yaml.safe_load((ROOT / "sweeps" / f"{name}.yaml").read_text(encoding="utf-8"))


def _written(store: Path) -> dict[str, int]:
    return {r.signature: (store / r.signature / "record.json").stat().st_mtime_ns for r in Store(store)}


def _report(said: str) -> Path:
    (path,) = [line.strip() for line in said.splitlines() if line.strip().endswith("report.html")]
    return Path(path) if Path(path).is_absolute() else ROOT / path


@pytest.mark.parametrize("name", NAMES)
def test_a_claim_file_loads_and_gives_its_source(name: str) -> None:
    claim = load(name, _given(name))
    assert claim.source.arxiv
    assert set(claim.reported) <= {"columns", *claim.arms}
    assert _given(name)["defaults"][0] == {"override /hydra/sweeper": "claim"}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_claim_is_looked_at_from_text_to_report(
    name: str,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every arm at one seed and with few steps, in this process: what a claim file says composes, trains, is judged."""
    store = tmp_path_factory.getbasetemp() / "claims"  # shared: a corpus is prepared once
    claim = load(name, _given(name))
    words = ["run.py", "-m", f"sweeps={name}", "tracker=none", f"store={store}", "hydra/launcher=basic"]
    if claim.tested:
        words += ["budget=smoke", "seeds=look"]
        owned = any(line.startswith("trainer.steps=") for lines in claim.arms.values() for line in lines)
        words += [] if owned else ["trainer.steps=2"]
    monkeypatch.setattr(sys, "argv", words)
    runpy.run_path(str(ROOT / "run.py"), run_name="__main__")
    said = capsys.readouterr().out
    verdict = json.loads((_report(said).parent / "verdict.json").read_text())
    assert set(verdict["scores" if claim.tested else "figures"]) == set(claim.arms)
    if claim.exact:
        assert verdict["answer"] in ("reproduced", "contradicted")
        assert "runs" not in verdict or not any(verdict["runs"].values())
        return
    assert verdict["answer"] == "undecided"
    assert "with seeds=look" in verdict["sentence"]
    assert f"one seed was looked at, and a verdict needs at least {claim.least}" in verdict["sentence"]
    assert verdict["missing"] == []
    if claim.tune is not None:
        _tuned(claim, verdict, _report(said))
    taught = False
    for arm in claim.arms:
        assert math.isfinite(verdict["scores"][arm]["0"])
        record = Store(store).find(verdict["runs"][arm]["0"])
        assert record is not None
        assert record.state == "done"
        taught |= record.config["teacher"] is not None
    assert ("Students beside their teachers" in _report(said).read_text()) == taught
    with pytest.raises(BadInput, match="decides nothing"):
        publish(Store(store), _report(said).parent, store / "results")


def _tuned(claim: Claim, verdict: dict, page: Path) -> None:
    """Every arm had as many trials, on seeds that judge none, and the verdict is taken on what was found for it."""
    tuned = verdict["tuned"]
    assert set(tuned) == set(claim.arms)
    assert {one["trials"] for one in tuned.values()} == {2}
    (points,) = {tuple(map(tuple, one["points"])) for one in tuned.values()}  # the same for every arm
    assert len({*points}) == 2
    assert claim.tune is not None
    assert not {*claim.tune.seeds} & {*claim.seeds}
    for arm, one in tuned.items():
        assert one["seeds"] == claim.tune.seeds
        assert one["best"] == (min if claim.tune.direction == "minimize" else max)(one["values"])
        record = Store(page.parents[2]).find(verdict["runs"][arm]["0"])
        assert record is not None
        for line in one["overrides"]:
            key, _, value = line.partition("=")
            assert record.value(key) == float(value)
    assert "with 2 trials and the same sampler" in page.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", TUNED)
def test_a_search_goes_from_its_file_to_a_report(
    name: str,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = tmp_path_factory.getbasetemp() / "claims"
    words = ["run.py", "-m", f"sweeps={name}", "budget=smoke", "tracker=none", f"store={store}"]
    words += ["hydra/launcher=basic", "hydra.sweeper.n_trials=2", *_shorter(name)]
    monkeypatch.setattr(sys, "argv", words)
    runpy.run_path(str(ROOT / "run.py"), run_name="__main__")
    said = capsys.readouterr().out
    report = _report(said)
    given = _given(name)["hydra"]["sweeper"]
    with (report.parent / "trials.csv").open(encoding="utf-8") as file:
        trials = list(csv.DictReader(file))
    assert len(trials) == 2
    assert all({*given["params"]} <= {*trial} for trial in trials)
    assert any(trial["state"] == "done" for trial in trials)
    several = isinstance(given["metric"], list)
    assert [path.name for path in report.parent.glob("front-*.yaml" if several else "best.yaml")]
    assert ("surpassed by no other" if several else "The best of 2 trials") in said


def _shorter(name: str) -> list[str]:
    return [] if any("trainer.steps=" in line for line in _given(name)["base"]) else ["trainer.steps=2"]


@pytest.mark.slow
def test_a_claim_killed_in_the_middle_reaches_a_verdict_and_asked_again_trains_nothing(
    tmp_path: Path, here: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    name = "albert/dropout"  # of the claims with fewest runs
    claim = load(name, _given(name))
    line = _line(name, tmp_path)
    # As a user gives it, over all cores.
    process = subprocess.Popen([sys.executable, *line], cwd=ROOT, start_new_session=True)
    while sum(r.state == "done" for r in Store(tmp_path)) < 3:
        assert process.poll() is None
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    done = {r.signature for r in Store(tmp_path) if r.state == "done"}
    before = {k: v for k, v in _written(tmp_path).items() if k in done}
    assert 3 <= len(done) < len(claim.arms) * len(claim.seeds)
    line += ["hydra/launcher=basic"]
    first = here(*line)
    assert first.returncode == 0, first.stderr
    written = _written(tmp_path)
    assert len(written) == len(claim.arms) * len(claim.seeds)
    assert {k: v for k, v in written.items() if k in done} == before
    assert all(r.state == "done" for r in Store(tmp_path))
    assert "at budget smoke" in first.stdout
    report = _report(first.stdout)
    text = report.read_bytes()
    assert json.loads((report.parent / "verdict.json").read_text())["answer"] in (
        "reproduced",
        "contradicted",
        "undecided",
        "not decidable",
    )
    again = here(*line)
    assert again.returncode == 0
    assert again.stdout == first.stdout
    assert report.read_bytes() == text
    # A look at one seed finds it done; one more seed trains that seed alone.
    for more in ("seeds=look", f"seeds={len(claim.seeds) + 1}"):
        assert _written(tmp_path) == written
        assert here(*line, more).returncode == 0
    more = _written(tmp_path)
    assert len(more) == len(written) + len(claim.arms)
    assert {k: v for k, v in more.items() if k in written} == written


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["sweeps=albert/parameters", "budget=smoke"], "budget=paper"),
        (["sweeps=roberta/masking", "seeds=1"], "seeds=look"),
        (["sweeps=roberta/masking", "seeds=some"], "seeds"),
    ],
)
def test_what_a_claim_cannot_be_asked_is_one_sentence(
    line: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["run.py", "-m", *line, f"store={tmp_path}"])
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(ROOT / "run.py"), run_name="__main__")
    assert left.value.code == 2
    (sentence,) = capsys.readouterr().err.strip().splitlines()
    assert words in sentence
    assert list(Store(tmp_path)) == []


@pytest.mark.slow
def test_jobs_that_fail_differently_stop_no_other(
    tmp_path: Path, here: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    done = here("run.py", "-m", "trainer.accelerator=cpu,cuda,mps", "budget=smoke", "tracker=none", f"store={tmp_path}")
    assert done.returncode == 1
    records: dict[str, Record] = {r.config["trainer"]["accelerator"]: r for r in Store(tmp_path)}
    assert {name: r.state for name, r in records.items()} == {
        "cpu": "done",
        "cuda": "failed",
        "mps": "failed",
    }
    assert len({r.message for r in records.values() if r.state == "failed"}) > 1
    for record in records.values():
        trace = tmp_path / record.signature / "traceback.txt"
        assert trace.exists() == (record.state == "failed")
        if record.state == "failed":
            assert trace.read_text().strip().splitlines()[-1] in done.stderr
            assert record.signature in done.stdout


CHANGES = {
    "an arm too few": ({"arms": {"once": []}}, "compares at least two"),
    "a missing key": ({"measure": None}, "has no measure"),
    "an arm that is not there": (
        {"verdict": {"rule": "better", "treatment": "dynamc", "control": "ten"}},
        "did you mean dynamic",
    ),
    "an unknown rule": ({"verdict": {"rule": "beter", "treatment": "dynamic", "control": "ten"}}, "better"),
    "too few seeds": ({"seeds": 4}, "at least seeds=7"),
    "a seed twice": ({"seeds": [0, 1, 2, 3, 4, 5, 5]}, "twice"),
    "no direction": ({"measure": {"metric": "test/mlm_loss", "better": "up"}}, "lower"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_bad_claim_is_refused_with_one_sentence(change: str) -> None:
    values, words = CHANGES[change]
    with pytest.raises(BadInput, match=words) as refused:
        load("roberta/masking", _given("roberta/masking") | values)
    assert str(refused.value).startswith("sweeps/roberta/masking.yaml")
    assert "\n" not in str(refused.value)


def test_arms_that_cannot_be_compared_are_refused(composed: Callable) -> None:
    from lmab.lab.claim import refuse_arms
    from lmab.run import resolve

    claim = load("roberta/masking", _given("roberta/masking"))

    def configs(once: str, ten: str) -> dict:
        return {"once": resolve(composed(once))[0], "ten": resolve(composed(ten))[0]}

    with pytest.raises(BadInput, match="compose to the same run"):
        refuse_arms(claim, configs("seed=0", "seed=0"))
    with pytest.raises(BadInput, match=r"objective\.mlm\.rate"):
        refuse_arms(claim, configs("objective.mlm.rate=0.15", "objective.mlm.rate=0.4"))
    with pytest.raises(BadInput, match=r"tokenizer\.vocab"):
        refuse_arms(claim, configs("tokenizer.vocab=500", "tokenizer.vocab=600"))
    refuse_arms(claim, configs("objective.mlm.copies=1", "objective.mlm.copies=10"))
