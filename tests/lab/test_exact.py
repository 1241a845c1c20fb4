"""Exact claims: figures against the paper's, from a file through the command line to a page and to evidence."""

from __future__ import annotations

import csv
import io
import json
import re
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from lmab.lab import claim as claims
from lmab.lab import exact, sheet, tables
from lmab.lab.publish import ledger, publish
from lmab.store import Store
from lmab.types import BadInput

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

GIVEN: dict[str, Any] = {
    "claim": "One layer for all has eighteen times fewer parameters.",
    "source": {"paper": "ALBERT", "arxiv": "1909.11942", "where": "section 3.1, table 1"},
    "base": ["budget=paper"],
    "arms": {"bert_large": ["model=bert"], "albert_large": ["model=albert"]},
    "measure": {"metric": "cost/encoder_parameters", "unit": "parameters"},
    "verdict": [
        {"rule": "exact", "arm": "albert_large", "value": 18e6, "within": 0.05},
        {"rule": "exact", "treatment": "bert_large", "control": "albert_large", "ratio": 18, "within": 0.05},
    ],
    "reported": {"columns": ["layers"], "bert_large": [24], "albert_large": [24]},
}
FIGURES = {
    "bert_large": {"cost/encoder_parameters": 333_557_760, "cost/flops_a_token": 654311424.0},
    "albert_large": {"cost/encoder_parameters": 17_683_968, "cost/flops_a_token": 654573568.0},
}
CODE, VERSIONS = {"revision": "96d89129a1ed", "dirty": False}, {"python": "3.11.7", "torch": "2.13.0"}


def ask(
    *rules: dict[str, Any], changes: tuple[str, ...] = (), code: dict[str, Any] = CODE, **given: Any
) -> exact.Computed:
    claim = claims.load("albert/parameters", {**GIVEN, **given, **({"verdict": [*rules]} if rules else {})})
    return exact.compute(claim, "paper", FIGURES, changes, code=code, versions=VERSIONS)


def amount(value: float, within: float) -> dict[str, Any]:
    return {"rule": "exact", "arm": "albert_large", "value": value, "within": within}


def test_all_rules_hold() -> None:
    found = ask()
    assert found.answer == "reproduced"
    assert found.sentence == (
        "Reproduced at budget paper: albert_large has 17.7M parameters (paper: 18M); bert_large has 334M parameters "
        "against 17.7M of albert_large, 18.9 times as many (paper: 18)."
    )
    one, two = found.checked
    assert one.away == pytest.approx(17_683_968 / 18e6 - 1)
    assert two.here == pytest.approx(333_557_760 / 17_683_968)


def test_one_that_fails_contradicts() -> None:
    found = ask(amount(18e6, 0.05), amount(20e6, 0.05), changes=("model.ffn=8",))
    assert found.answer == "contradicted"
    assert [c.holds for c in found.checked] == [True, False]
    assert found.sentence == (
        "Contradicted at budget paper with model.ffn=8: albert_large has 17.7M parameters (paper: 18M); albert_large "
        "has 17.7M parameters, not within 5% of the paper's 20M."
    )


@pytest.mark.parametrize(
    ("value", "within", "holds"),
    [
        (17_683_968, 0.0, True),
        (17_683_969, 0.0, False),
        (2 * 17_683_968, 0.5, True),  # the tolerance is a part of the paper's figure, not of ours
        (2 * 17_683_968, 0.49, False),
        (17_683_968 / 1.5, 0.5, True),
        (17_683_968 / 1.5, 0.49, False),
    ],
)
def test_the_tolerance_is_relative_to_the_paper(value: float, within: float, holds: bool) -> None:
    assert ask(amount(value, within)).checked[0].holds is holds


def test_ratios_in_words() -> None:
    rule = {"rule": "exact", "treatment": "bert_large", "control": "albert_large", "ratio": 1, "within": 0.05}
    flops = {"metric": "cost/flops_a_token", "unit": "FLOPs a token"}
    assert ask(rule, measure=flops).sentence == (
        "Reproduced at budget paper: bert_large has 654M FLOPs a token against 655M of albert_large, 1.00 times as "
        "many (paper: 1)."
    )
    assert "18.9 times as many, not within 5% of the paper's 1." in ask(rule).sentence


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (17_683_968, "17.7M"),
        (334e6, "334M"),
        (999_600, "1M"),
        (1234, "1.23K"),
        (38.5, "38.5"),
        (2.5e12, "2.5T"),
        (1e9, "1G"),
    ],
)
def test_compact_numbers(value: float, words: str) -> None:
    assert tables.compact(value) == words


def test_a_measure_that_is_not_computed_is_refused() -> None:
    with pytest.raises(BadInput, match=r"sweeps/albert/parameters.yaml: cost/encoder_params .* did you mean"):
        ask(measure={"metric": "cost/encoder_params"})


# --- the report, and what is kept


def write(root: Path, found: exact.Computed) -> Any:
    configs = {arm: {"model": {"depth": depth}} for arm, depth in (("bert_large", 24), ("albert_large", 1))}
    return sheet.write(root, found, configs, ["sweeps=albert/parameters"], {"model.dropout": (0.1, 0.0)})


def test_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = ask()
    paths = write(tmp_path, found)
    assert re.fullmatch(r"albert-parameters-paper-[0-9a-f]{8}", paths.html.parent.name)
    page = paths.html.read_text(encoding="utf-8")
    for words in (
        GIVEN["claim"],
        found.sentence,
        "https://arxiv.org/abs/1909.11942",
        *("333,557,760", "17,683,968", "18,000,000", "18.86", "-1.8%", "+4.8%", "5%"),
        *("model.depth", "model.dropout", "96d89129a1ed", "2.13.0", "layers"),
        "python run.py -m sweeps=albert/parameters",
    ):
        assert words in page, words
    assert "uncommitted" not in page
    data = json.loads(paths.verdict.read_text(encoding="utf-8"), parse_constant=pytest.fail)
    assert (data["answer"], data["sentence"], data["budget"]) == ("reproduced", found.sentence, "paper")
    assert data["figures"] == FIGURES
    assert [c["holds"] for c in data["verdict"]["checked"]] == [True, True]
    rows = list(csv.DictReader(io.StringIO(paths.csv.read_text(encoding="utf-8"))))
    assert [row["arm"] for row in rows] == list(FIGURES)
    assert rows[1]["cost/encoder_parameters"] == "17683968"
    lines = [line for line in paths.markdown.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    assert len(lines) == 4 + 4  # with the heads and their rules
    before = [path.read_bytes() for path in paths]
    assert [path.read_bytes() for path in write(tmp_path, ask())] == before
    assert write(tmp_path, ask(amount(18e6, 0.1))).html.parent != paths.html.parent  # another margin, another report
    sheet.say(found, paths)
    said = capsys.readouterr().out.splitlines()
    assert found.sentence in said
    assert said[-1] == str(paths.html)


def test_evidence_is_kept_where_a_revision_gives_it_back(tmp_path: Path) -> None:
    store, results = Store(tmp_path / "runs"), tmp_path / "results"
    kept = publish(store, write(tmp_path, ask()).html.parent, results)
    assert kept == results / "albert/parameters/paper"
    assert sorted(path.name for path in kept.iterdir()) == ["table.csv", "table.md", "verdict.json"]
    assert "| reproduced | albert_large has 17.7M parameters (paper: 18M);" in ledger(results).read_text()
    with pytest.raises(BadInput, match="uncommitted changes"):
        publish(store, write(tmp_path, ask(code={"revision": "9", "dirty": True})).html.parent, results)
    with pytest.raises(BadInput, match="another experiment"):
        publish(store, write(tmp_path, ask(changes=("model.ffn=8",))).html.parent, results)


# --- through the command line

TOY = """\
# @package _global_
defaults:
  - override /hydra/sweeper: claim

claim: Twice the layers are twice the weights of layers, and one more arm.
source: {paper: None, arxiv: "0000.00000", where: nowhere}
base: [experiment=roberta, budget=smoke, corpus=files, corpus.path=/nowhere/at/all.txt]
"""


def toy(folder: Path, **given: Any) -> list[str]:
    """A claim file in a search path of its own, and the line that asks it."""
    claim = {
        "arms": {"shallow": ["model.depth=2"], "deep": ["model.depth=4"]},
        "measure": {"metric": "cost/flops_a_token", "unit": "FLOPs a token"},
        "verdict": {"rule": "exact", "treatment": "deep", "control": "shallow", "ratio": 2, "within": 0},
    } | given
    (folder / "sweeps/toy").mkdir(parents=True)
    (folder / "sweeps/toy/sizes.yaml").write_text(TOY + yaml.safe_dump(claim, sort_keys=False), encoding="utf-8")
    return ["run.py", "-m", "--config-dir", str(folder), "sweeps=toy/sizes", f"store={folder / 'runs'}"]


@pytest.mark.slow
def test_the_command_line_computes_and_trains_nothing(
    tmp_path: Path,
    command: Callable[..., subprocess.CompletedProcess[str]],
    here: Callable[..., subprocess.CompletedProcess[str]],
    lmab: Callable[..., tuple[int, str, str]],
) -> None:
    line = toy(tmp_path)
    done = command(*line)
    assert (done.returncode, done.stderr) == (0, "")
    sentence, page = done.stdout.splitlines()[-2:]
    # by hand, of the smoke budget: 4 layers of 2 (4 D^2 + 2 D F + 2 T D) with D = 32, F = 64, T = 32
    flops = 4 * 2 * (4 * 32**2 + 2 * 32 * 64 + 2 * 32 * 32)
    deep, shallow = tables.compact(flops), tables.compact(flops / 2)
    assert sentence == (
        f"Reproduced at budget smoke: deep has {deep} FLOPs a token against {shallow} of shallow, 2.00 times as many "
        "(paper: 2)."
    )
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["reports"]
    text = (tmp_path / page).read_bytes()
    assert here(*line).stdout == done.stdout
    assert (tmp_path / page).read_bytes() == text
    other = here(*line, "model.dim=64").stdout.splitlines()[-2]
    assert other.startswith("Reproduced at budget smoke with model.dim=64: ")
    listed = lmab("--store", str(tmp_path / "runs"), "report", "toy/sizes")[1].splitlines()
    assert f"toy/sizes: {sentence}" in listed
    assert f"toy/sizes: {other}" in listed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "more", "words"),
    [
        ({"measure": {"metric": "cost/flops"}}, [], "did you mean cost/flops_a_token"),
        ({"arms": {"shallow": ["model.depth=4"], "deep": ["model.depth=4"]}}, [], "compose to the same run"),
        ({}, ["model.depth=3"], "is what the arm deep of toy/sizes is about"),
    ],
)
def test_the_command_line_refuses_in_one_sentence(
    given: dict[str, Any],
    more: list[str],
    words: str,
    tmp_path: Path,
    here: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = here(*toy(tmp_path, **given), *more)
    assert done.returncode == 2
    (said,) = done.stderr.splitlines()
    assert words in said
    assert not (tmp_path / "runs" / "reports").exists()
