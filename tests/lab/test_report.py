"""The report of a claim, comparisons, and what both say on a terminal, from records made by hand."""

from __future__ import annotations

import copy
import csv
import io
import itertools
import json
import math
import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from lmab.lab import claim as claims
from lmab.lab import compare, plots, report, tables
from lmab.lab.conclusion import Cell, Conclusion, conclude
from lmab.lab.stats import Interval
from lmab.store import Record, Store, signature
from lmab.types import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

METRIC = "test/mlm_loss"
SEEDS = range(7)
HOSTILE = "<script>alert('x')</script> & \"quoted\""
CLAIM: dict[str, Any] = {
    "claim": f"New masks in every epoch are at least as good. {HOSTILE}",
    "source": {"paper": "RoBERTa", "arxiv": "1907.11692", "where": "section 4.1, table 1"},
    "base": ["experiment=bert"],
    "arms": {
        "once": ["objective.mlm.copies=1"],
        "ten": ["objective.mlm.copies=10"],
        "dynamic": ["objective.mlm.copies=null"],
    },
    "measure": {"metric": METRIC, "better": "lower", "unit": "nats"},
    "verdict": [
        {"rule": "not_worse", "treatment": "dynamic", "control": "ten", "margin": 0.1},
        {"rule": "better", "treatment": "dynamic", "control": "once"},
    ],
    "seeds": len(SEEDS),
    "reported": {"columns": ["MNLI-m", "SST-2"], "once": None, "ten": [84.3, 92.5], "dynamic": [84.0, 92.9]},
}


def config(copies: int | None, seed: int, **changes: Any) -> dict[str, Any]:
    """A small configuration, of the shape that a run has. changes: key of objective.mlm or optim -> value."""
    mlm = {"_target_": "lmab.objectives.mlm.MaskedLM", "rate": 0.15, "copies": copies}
    made = {
        "objective": {"mlm": mlm},
        "optim": {"_target_": "lmab.train.optim.AdamW", "lr": 0.003},
        "trainer": {"steps": 40},
        "budget": {"name": "smoke"},
        "seed": seed,
        "sweep": {"name": "roberta/masking", "arm": str(copies)},
    }
    for key, value in changes.items():
        made["objective" if key in mlm else "optim"]["mlm" if key in mlm else key] = (
            {**mlm, key: value} if key in mlm else value
        )
    return made


def record(made: dict[str, Any], loss: float, *, state: Any = "done", message: str = "") -> Record:
    """A run that scored about `loss`; like a real one, a seed makes all its documents better or worse."""
    seed, copies = made["seed"], made["objective"]["mlm"]["copies"]
    documents = loss + 0.05 * np.random.default_rng(seed).standard_normal() + 0.2 * np.sin(np.arange(12))
    weights = 1.0 + np.arange(12) % 3
    done = state == "done"
    mean = float(documents @ weights / weights.sum())
    steps = range(4, 41, 4)
    return Record(
        signature=signature(made),
        state=state,
        config=made,
        overrides=["experiment=bert", f"objective.mlm.copies={tables.said(copies)}", f"seed={seed}"],
        seed=seed,
        step=40 if done else 8,
        steps=40,
        metrics={METRIC: mean, "test/mlm_accuracy": 0.2, "learnt/mlm_gain": 1.5} if done else {},
        curves={
            "val/mlm_loss": [(s, loss + 11 * math.exp(-s / 6)) for s in steps if s % 8 == 0],
            "train/mlm_loss": [(s, loss + 13 * math.exp(-s / 5) - 0.1 * seed) for s in steps],
        },
        scores={METRIC: documents.tolist()} if done else {},
        weights={METRIC: weights.tolist()} if done else {},
        facts={
            "types": 600,
            "train": {"rows": 944, "tokens": 28247},
            "unigram_nats": {"validation": 6.2, "test": 6.18},
            "blind_nats": {"mlm": {"validation": 5.7, "test": 5.68}},
            "epochs": 2.5,
            "mlm": {"masks": "static" if copies else "dynamic", "copies": copies, "rate": 0.149, "overlap": 0.1},
        },
        cost={"seconds": 1.5 + seed, "tokens": 10240, "tokens_a_second": 6800.0, "parameters": 39160}
        | {"latency_1": 0.00125, "latency_32": 0.02 + 0.001 * seed, "peak_memory": 600 * 2**20},
        versions={"python": "3.11.7", "torch": "2.13.0"},
        code={"revision": "96d89129a1ed", "dirty": True},
        message=message,
    )


LOSS = {"once": 4.6, "ten": 4.2, "dynamic": 4.15}
COPIES = {"once": 1, "ten": 10, "dynamic": None}


def concluded(
    change: Callable[[str, Record], Record | None] = lambda arm, r: r, **given: Any
) -> tuple[Conclusion, list[Cell], dict[str, Record]]:
    """The claim judged on 21 runs. change: what becomes of the record of an arm. given: of the claim."""
    claim = claims.load("roberta/masking", {**copy.deepcopy(CLAIM), **given})
    cells, records = [], {}
    for seed, arm in itertools.product(SEEDS, claim.arms):
        place = list(claim.arms).index(arm)
        name = list(COPIES)[place]
        made = record(config(COPIES[name], seed), LOSS[name] + 0.01 * (seed * (place + 1) % 5))
        cells.append(Cell(arm, seed, [*made.overrides], made.signature, made.config))
        if (kept := change(arm, made)) is not None:
            records[made.signature] = kept
    return conclude(claim, cells, records), cells, records


def broken(arm: str, made: Record) -> Record | None:
    """Seed 0 of `ten` failed, seed 1 diverged, seed 2 never ran."""
    fates = {0: ("failed", f"OSError: {HOSTILE}"), 1: ("diverged", "the loss is nan at step 8")}
    if arm != "ten" or made.seed > 2:
        return made
    return record(made.config, 5.0, state=fates[made.seed][0], message=fates[made.seed][1]) if made.seed < 2 else None


class Reader(HTMLParser):
    """Every tag with its attributes and the text of a page; refuses tags that do not match."""

    VOID = frozenset({"meta", "link", "br", "img", "path", "use", "rect"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs)
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text += data


def harmless(page: str) -> Reader:
    """What a page must be, whatever stands in it: whole, alone, without script."""
    read = Reader(page)
    for tag, attributes in read.tags:
        assert tag not in ("script", "iframe", "object", "img", "base", "form")
        assert not [name for name in attributes if name.startswith("on") or name in ("src", "srcset")]
        for name, value in attributes.items():
            local = name == "xlink:href" and (value or "").startswith("#")
            if "://" in (value or ""):
                assert (tag, name) == ("a", "href")
            elif name.endswith("href"):
                assert local or value == "data:,"
    style = page[page.index("<style>") : page.index("</style>")]
    assert "@import" not in style
    assert "url(" not in style
    ids = [attributes["id"] for _, attributes in read.tags if "id" in attributes]
    assert len(set(ids)) == len(ids)
    assert set(re.findall(r'(?:href="|url\()#([\w-]+)', page)) <= set(ids)
    return read


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[report.Paths, Conclusion, list[Cell]]:
    conclusion, cells, _ = concluded(broken)
    root = tmp_path_factory.mktemp("reports")
    away = {"objective.mlm.rate": (0.15, 0.3)}
    line = ["sweeps=roberta/masking", "budget=smoke", "tags=[a b]"]
    return report.write(root, conclusion, cells, line, away), conclusion, cells


def test_the_page_is_whole_and_says_everything(written: Any) -> None:
    paths, conclusion, cells = written
    read = harmless(paths.html.read_text(encoding="utf-8"))
    text = read.text
    assert conclusion.sentence in text
    assert conclusion.answer.capitalize() in text
    assert CLAIM["claim"] in text  # and so escaped
    assert ("a", {"href": "https://arxiv.org/abs/1907.11692", "rel": "noreferrer"}) in read.tags
    for words in ("section 4.1, table 1", "96d89129a1ed", "uncommitted changes in 18 of 18 runs", "2.13.0"):
        assert words in text
    assert "python run.py -m sweeps=roberta/masking budget=smoke 'tags=[a b]'" in text
    for cell in cells:
        assert cell.signature in text
    for arm, runs in conclusion.arms.items():
        assert arm in text
        for made in runs.values():
            assert f"{made.metrics[METRIC]:.4f}" in text
    for words in ("failed", f"OSError: {HOSTILE}", "diverged", "the loss is nan at step 8", "never ran"):
        assert words in text
    for words in ("SST-2", "92.9", "0.1490", "objective.mlm.copies", "objective.mlm.rate", "28,247", "39,160"):
        assert words in text


def test_figures_are_named_and_show_every_seed(written: Any) -> None:
    paths, _, _ = written
    page = paths.html.read_text(encoding="utf-8")
    figures = re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)
    assert len(figures) == 4
    assert all('role="img" aria-label="' in figure for figure in figures)
    points = {str(i): len(re.findall(rf"<use [^>]*var\(--arm{i}\)[^>]*opacity", figures[0])) for i in range(3)}
    assert points == {"0": 7, "1": 4, "2": 7}
    assert not re.search(r"#[0-9a-f]{6}\b", "".join(figures))  # a colour of its own would not follow the page
    assert "DejaVu" not in page


def test_the_same_records_give_the_same_bytes(written: Any, tmp_path: Path) -> None:
    paths, _, _ = written
    conclusion, cells, _ = concluded(broken)
    line = ["sweeps=roberta/masking", "budget=smoke", "tags=[a b]"]
    again = report.write(tmp_path, conclusion, cells, line, {"objective.mlm.rate": (0.15, 0.3)})
    assert again.html.parent.name == paths.html.parent.name
    assert re.fullmatch(r"roberta-masking-smoke-[0-9a-f]{8}", again.html.parent.name)
    for old, new in zip(paths, again, strict=True):
        assert old.read_bytes() == new.read_bytes()


def test_the_csv_keeps_every_digit(written: Any) -> None:
    paths, conclusion, _ = written
    rows = {row["arm"]: row for row in csv.DictReader(io.StringIO(paths.csv.read_text(encoding="utf-8")))}
    assert list(rows) == ["once", "ten", "dynamic"]
    for arm, runs in conclusion.arms.items():
        scores = {seed: made.metrics[METRIC] for seed, made in runs.items()}
        assert {seed: float(rows[arm][f"seed {seed}"]) for seed in scores} == scores
        assert [rows[arm][f"seed {seed}"] for seed in SEEDS if seed not in scores] == [""] * (7 - len(scores))
        assert float(rows[arm]["mean"]) == pytest.approx(np.mean(list(scores.values())))
        assert int(rows[arm]["n"]) == len(scores)
        assert float(rows[arm]["low"]) == conclusion.verdict.arms[arm].low
    gain = conclusion.verdict.judged[1].gain
    assert float(rows["dynamic"]["gain over once"]) == gain.estimate
    assert rows["ten"]["gain over once"] == ""


def test_the_verdict_is_data(written: Any) -> None:
    paths, conclusion, _ = written
    data = json.loads(paths.verdict.read_text(encoding="utf-8"), parse_constant=pytest.fail)
    assert data["answer"] == conclusion.answer
    assert data["sentence"] == conclusion.sentence
    assert data["budget"] == "smoke"
    assert data["claim"]["name"] == "roberta/masking"
    assert len(data["verdict"]["judged"]) == 2
    assert {arm: len(scores) for arm, scores in data["scores"].items()} == {"once": 7, "ten": 4, "dynamic": 7}
    assert [m["why"] for m in data["missing"]][1:] == ["diverged: the loss is nan at step 8", "never ran"]


def test_what_was_spent() -> None:
    """Means over seeds, in units that one reads; what a record does not say is no zero."""
    conclusion = concluded()[0]
    table = tables.cost(conclusion.arms)
    assert table.head[2:] == [
        *("seconds", "tokens read", "tokens/s", "parameters, each once", "FLOPs a token"),
        *("ms a row", "ms for 32 rows", "MiB at most"),
    ]
    assert [row[0] for row in table.rows] == list(CLAIM["arms"])
    for row in table.rows:
        assert row[1:] == ["7", "4.500", "10,240", "6,800", "39,160", "\u2013", "1.250", "23.00", "600.0"]


def test_the_markdown_table_has_as_many_cells_as_columns(written: Any) -> None:
    lines = written[0].markdown.read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith("| ")]
    assert len(rows) == 5 + 4
    for start, end in ((0, 5), (5, 9)):
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows[start:end]}) == 1
    assert tables.Table("", ["a|b", "c"], [["<b>", "x\ny"]]).markdown().splitlines()[::2] == [
        r"| a\|b | c |",
        r"| \<b> | x<br>y |",
    ]


def test_hostile_names_stay_words(tmp_path: Path) -> None:
    name = 'a"--><script>alert(1)</script> $x_1$ \\'
    arms = {name: ["a=1"], "ten": ["a=2"], "<b>c</b>": ["a=3"]}
    rules = [{"rule": "better", "treatment": name, "control": "<b>c</b>"}]
    source = {"paper": HOSTILE, "arxiv": 'javascript:alert(1)"', "where": HOSTILE}
    conclusion, cells, _ = concluded(
        arms=arms, verdict=rules, source=source, reported={name: {HOSTILE: 1.0}, "ten": 2, "x": [3, 4]}
    )
    paths = report.write(tmp_path, conclusion, cells, [HOSTILE], {HOSTILE: (HOSTILE, None)})
    read = harmless(paths.html.read_text(encoding="utf-8"))
    assert name in read.text
    assert not [tag for tag, _ in read.tags if tag in ("a", "b")]
    assert paths.html.parent.parent == tmp_path


@pytest.mark.parametrize("seeds", [0, 1, 2])
def test_few_or_no_scores_still_make_a_report(seeds: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    conclusion, cells, _ = concluded(lambda _, made: made if made.seed < seeds else None)
    paths = report.write(tmp_path, conclusion, cells, ["sweeps=roberta/masking"])
    read = harmless(paths.html.read_text(encoding="utf-8"))
    assert conclusion.sentence in read.text
    assert not re.search(r"\b(nan|None|inf)\b", read.text.replace(conclusion.sentence, ""))
    report.say(conclusion, paths)
    said = capsys.readouterr().out
    assert said.count("never ran") == 3 * (7 - seeds)
    assert ("unbounded" in said) == (seeds > 0)


def test_say_without_a_terminal_loses_nothing(written: Any, capsys: pytest.CaptureFixture[str]) -> None:
    paths, conclusion, _ = written
    report.say(conclusion, paths)
    lines = capsys.readouterr().out.splitlines()
    assert conclusion.sentence in lines
    assert lines[-1] == str(paths.html)
    assert any("ten seed 1" in line and "diverged: the loss is nan at step 8" in line for line in lines)
    at = next(i for i, line in enumerate(lines) if line.strip().startswith("dynamic"))
    row = lines[at] + lines[at + 1]  # one line for each comparison
    interval, judged = conclusion.verdict.arms["dynamic"], conclusion.verdict.judged[1]
    for number in (interval.estimate, interval.low, interval.high):
        assert f"{number:.4f}" in row
    for number in (judged.gain.estimate, judged.gain.low, judged.gain.high):
        assert tables.score(number, "+") in row
    assert f"d_z {judged.effect:.2f}, over once" in row


def test_say_on_a_narrow_terminal_folds(
    written: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    paths, conclusion, _ = written
    report.say(conclusion, paths)
    said = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)
    table = said[: said.index(conclusion.sentence[:12])]
    assert max(map(len, table.splitlines())) <= 80
    assert "…" not in said
    for interval in (conclusion.verdict.arms[arm] for arm in ("once", "dynamic")):
        assert f"[{interval.low:.4f}, {interval.high:.4f}]" in table
    assert str(paths.html) in said.splitlines()  # though it is longer than the terminal is wide


def test_say_runs(capsys: pytest.CaptureFixture[str]) -> None:
    made = [record(config(copies, seed), 4.0) for copies in (1, None) for seed in (0, 1)]
    lost = record(config(10, 0), 4.0, state="failed", message="OSError: [Errno 5] it broke")
    report.say_runs([*made, lost], ["objective.mlm.copies", "optim", "experiment"])
    said = capsys.readouterr().out
    lines = said.splitlines()
    for each in made:
        row = next(line for line in lines if each.signature in line)
        assert f"{each.metrics[METRIC]:.4f}" in row
        assert "AdamW" in row
        assert "bert" in row
        assert "40/40" in row
    assert "failed" in next(line for line in lines if lost.signature in line)
    assert f"{lost.signature} failed: OSError: [Errno 5] it broke" in lines
    mean = np.mean([each.metrics[METRIC] for each in made[:2]])
    assert any(f"{mean:.4f}" in line and re.search(r"\b2\b", line) for line in lines)
    assert lines[-1] == "python -m lmab compare --by objective.mlm.copies --by optim --by sweep.arm"
    report.say_runs([], [])


def test_say_runs_gives_no_means_of_single_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    report.say_runs([record(config(1, 0), 4.0), record(config(2, 0), 4.0)], ["objective.mlm.copies"])
    assert "mean" not in capsys.readouterr().out


def test_curves_from_1_to_17_nats_are_drawn_with_plain_numbers() -> None:
    made = record(config(1, 0), 1.0)
    made.curves = {"val/mlm_loss": [(1, 17.0), (2, math.nan), (3, 6.0), (4, math.inf), (5, 1.0)]}
    figure = plots.curves("Loss", {"a": {0: made}, "never ran": {}}, "val/mlm_loss", [5.7])
    assert figure is not None
    numbers = re.findall(r">([\d.,]+)</text>", figure.svg)
    assert {"1", "2", "5"} <= set(numbers)
    assert "never ran" not in figure.svg
    assert plots.curves("Loss", {"a": {0: made}}, "val/nsp_loss") is None


@pytest.mark.parametrize("value", [0.0, 5.0, -3.0, 1e6])
def test_one_value_is_a_figure(value: float) -> None:
    interval = Interval(estimate=value, low=-math.inf, high=math.inf, n=1)
    assert plots.rows("One", [plots.Row("a", [value], interval, [0.1])], "x", zero=True).svg
    made = record(config(1, 0), 1.0)
    made.curves = {"val/x": [(5, value)]}
    assert plots.curves("One", {"a": {0: made}}, "val/x")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, tables.NOTHING),
        (math.nan, tables.NOTHING),
        (math.inf, "∞"),
        (28247, "28,247"),
        (0.15, "0.1500"),
        (5.69999, "5.700"),
        (26167.3, "26,167"),
        (1.5e12, "1.500e+12"),
        (2.0, "2.000"),
        (True, "true"),
        ("static", "static"),
    ],
)
def test_numbers(value: Any, words: str) -> None:
    assert tables.number(value) == words


def test_a_share_of_a_drop_is_told_and_drawn(tmp_path: Path) -> None:
    rule = {"rule": "share", "whole": ["dynamic", "once"], "part": ["ten", "once"], "least": 0.5}
    conclusion, cells, _ = concluded(verdict=rule)
    assert conclusion.answer == "reproduced"
    words = "the step from ten to once accounts for at least 0.5 of the drop from dynamic to once"
    assert "dynamic is better than once: gain +0.4" in conclusion.sentence
    assert words in conclusion.sentence
    paths = report.write(tmp_path, conclusion, cells, ["sweeps=roberta/masking"])
    read = harmless(paths.html.read_text(encoding="utf-8"))
    label = "ten over once, less 0.5 of dynamic over once"
    for said in (words, label, "to the right the first is more"):
        assert said in read.text
    assert label in paths.markdown.read_text(encoding="utf-8")
    rows = {row["arm"]: row for row in csv.DictReader(io.StringIO(paths.csv.read_text(encoding="utf-8")))}
    means = {arm: float(row["mean"]) for arm, row in rows.items()}
    gain = (means["once"] - means["ten"]) - 0.5 * (means["once"] - means["dynamic"])
    assert float(rows["once"][f"gain of {label}"]) == pytest.approx(gain)
    assert rows["ten"][f"gain of {label}"] == ""
    figure = (paths.html.parent / "differences.svg").read_text(encoding="utf-8")
    assert len(re.findall(r"<use [^>]*opacity", figure)) == 2 * len(SEEDS)
    data = json.loads(paths.verdict.read_text(encoding="utf-8"))
    assert data["verdict"]["judged"][1]["statement"]["contrast"] == {"once": -0.5, "ten": 1, "dynamic": -0.5}


# Comparisons


def stored(root: Path, *made: Record) -> Store:
    store = Store(root)
    for each in made:
        store.create(each.signature)
        store.write(each)
    return store


def grid(*, seeds: int = 6, **changes: Any) -> Iterator[Record]:
    for seed, (copies, loss) in itertools.product(range(seeds), ((10, 4.2), (1, 4.6), (None, 4.1))):
        yield record(config(copies, seed, **changes), loss + 0.02 * (seed * (copies or 3) % 4))


def test_groups_are_paired_by_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lost = record(config(10, 9), 4.0, state="failed")
    store = stored(tmp_path, *grid(), lost)
    found = compare.compare(store, ["objective.mlm.copies"])
    assert found.metric == METRIC
    assert list(found.groups) == ["copies=1", "copies=10", "copies=null"]
    assert [len(runs) for runs in found.groups.values()] == [6, 6, 6]
    ours, base = found.groups["copies=10"], found.groups["copies=1"]
    expected = float(np.mean([ours[s].metrics[METRIC] - base[s].metrics[METRIC] for s in range(6)]))
    assert found.differences["copies=10"].estimate == pytest.approx(expected)
    assert found.differences["copies=10"].high < 0
    assert found.sentence == ""
    line = compare.line(store, ["objective.mlm.copies"], None, [])
    paths = compare.write(tmp_path / "reports", found, line)
    assert paths.html.parent.parent == tmp_path / "reports"
    assert paths.html.parent.name.startswith("compare-objective.mlm.copies-")
    read = harmless(paths.html.read_text(encoding="utf-8"))
    assert line in read.text
    rows = list(csv.DictReader(io.StringIO(paths.csv.read_text(encoding="utf-8"))))
    assert float(rows[1]["seed 3"]) == ours[3].metrics[METRIC]
    assert float(rows[1]["difference"]) == found.differences["copies=10"].estimate
    before = [path.read_bytes() for path in paths]
    again = compare.write(tmp_path / "reports", compare.compare(store, ["objective.mlm.copies"]), line)
    assert [path.read_bytes() for path in again] == before
    compare.say(found, paths)
    said = capsys.readouterr().out
    assert tables.score(expected, "+") in said
    assert said.splitlines()[-1] == str(paths.html)


def test_pairs_are_the_seeds_that_both_have(tmp_path: Path) -> None:
    made = [r for r in grid() if not (r.value("objective.mlm.copies") == 1 and r.seed < 2)]
    found = compare.compare(stored(tmp_path, *made), ["objective.mlm.copies"])
    assert found.differences["copies=10"].n == 4
    alone = [r for r in grid() if (r.value("objective.mlm.copies") == 1) == (r.seed < 2)]
    found = compare.compare(stored(tmp_path / "b", *alone), ["objective.mlm.copies"])
    assert found.differences["copies=10"].n == 0
    assert harmless(compare.write(tmp_path / "r", found, "").html.read_text(encoding="utf-8"))


def test_a_metric_that_the_groups_redefine_ranks_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = [record(config(1, seed, rate=rate), 4 + rate) for seed in range(6) for rate in (0.15, 0.4)]
    found = compare.compare(stored(tmp_path, *made), ["objective.mlm.rate"])
    assert not found.differences
    paths = compare.write(tmp_path / "reports", found, "")
    compare.say(found, paths)
    said = capsys.readouterr().out
    assert "cannot be compared between them" in said
    assert "objective.mlm.rate" in said
    page = paths.html.read_text(encoding="utf-8")
    assert "cannot be compared between them" in harmless(page).text
    assert "less rate=0.15" not in page
    assert "<svg" not in page


def test_only_seeds_may_differ_inside_a_group(tmp_path: Path) -> None:
    store = stored(tmp_path, *grid(seeds=2), *grid(seeds=2, lr=0.1))
    with pytest.raises(BadInput, match=r"copies=1 differ in optim\.lr .*--where optim\.lr=.*--by optim\.lr"):
        compare.compare(store, ["objective.mlm.copies"])
    assert len(compare.compare(store, ["objective.mlm.copies", "optim.lr"]).groups) == 6
    found = compare.compare(store, ["objective.mlm"], where=["optim.lr=1e-1", "budget.name=smoke"])
    assert found.by == ["objective.mlm.copies"]
    assert all(r.value("optim.lr") == 0.1 for runs in found.groups.values() for r in runs.values())
    # sweep and name stand outside the signature: they tell no runs apart, but may be grouped by
    assert len(compare.compare(store, ["sweep.arm"], where=["optim.lr=0.1"]).groups) == 3


def test_groups_that_differ_in_something_else_say_so(tmp_path: Path) -> None:
    made = [record(config(c, s, lr=0.1 * c), 4.0) for c in (1, 2) for s in range(3)]
    found = compare.compare(stored(tmp_path, *made), ["objective.mlm.copies"])
    assert found.sentence == "The groups differ in optim.lr as well: a difference may be owed to that."


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"by": ["objective.mlm.copie"]}, r"did you mean objective\.mlm\.copies"),
        ({"by": ["seed"]}, "makes no groups"),
        ({"by": ["trainer"]}, "do not differ in anything below trainer"),
        ({"by": ["objective.mlm.copies"], "metric": "test/mlm_los"}, "did you mean test/mlm_loss"),
        ({"by": ["objective.mlm.copies"], "where": ["optim.lr"]}, "no condition"),
        ({"by": ["objective.mlm.copies"], "where": ["optim=x"]}, "group of keys"),
        ({"by": ["objective.mlm.copies"], "where": ["optim.lr=7"]}, r"there is 0\.003"),
        ({"by": ["objective.mlm.copies"], "where": ["optim.l=7"]}, r"did you mean optim\.lr"),
    ],
)
def test_refusals(asked: dict[str, Any], words: str, tmp_path: Path) -> None:
    store = stored(tmp_path, *grid(seeds=1))
    with pytest.raises(BadInput, match=words) as refusal:
        compare.compare(store, **asked)
    assert "\n" not in str(refusal.value)


def test_metrics_that_only_some_runs_have(tmp_path: Path) -> None:
    made = list(grid(seeds=2))
    made[0].metrics["test/nsp_accuracy"] = 0.5
    store = stored(tmp_path, *made)
    with pytest.raises(BadInput, match="5 of 6 runs have no test/nsp_accuracy"):
        compare.compare(store, ["objective.mlm.copies"], "test/nsp_accuracy")
    # a metric that is kept for the whole test set only
    found = compare.compare(store, ["objective.mlm.copies"], "test/mlm_accuracy")
    assert found.intervals["copies=1"].estimate == pytest.approx(0.2)
    with pytest.raises(BadInput, match="nothing to compare"):
        compare.compare(Store(tmp_path / "empty"), ["objective.mlm.copies"])


# In a browser


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # selenium's own sockets
def test_in_a_browser(
    written: Any, looked_at: Callable[[Path, int], None], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("compared")
    made = [*grid(seeds=3), *grid(seeds=3, lr=0.1), *grid(seeds=3, lr=0.2)]
    found = compare.compare(stored(root, *made), ["objective.mlm.copies", "optim.lr"])
    for page in (written[0].html, compare.write(root, found, "").html):
        looked_at(page, 4)
