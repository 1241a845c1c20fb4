"""Labelled texts to rows: who stands on which side, what a row holds, what is known of it, and what is kept."""

from __future__ import annotations

import csv
import itertools
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from tokenizers import Tokenizer

from lmab.data.labelled import Labelled, Reviews
from lmab.data.prepare import PARTS, Prepared, Split
from lmab.data.rows import Rows
from lmab.data.tables import Files, Hub
from lmab.data.tasks import choose, prepare_task, row
from lmab.data.tokenizer import ByteLevelBPE, Ready, WordPiece
from lmab.types import BadInput, Vocabulary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from omegaconf import DictConfig

    from lmab.types import Example

PAD, UNKNOWN, CLS, SEP, MASK = range(5)
SPECIAL = np.arange(1000) < 5
WORDS = Vocabulary(1000, PAD, UNKNOWN, CLS, SEP, MASK, SPECIAL, SPECIAL & False)


@dataclass(frozen=True, kw_only=True)
class Given:
    """A task whose examples are given."""

    given: list[Labelled]
    classes: int = 2
    metrics: list[str] = field(default_factory=lambda: ["accuracy"])
    held_out: ClassVar[float] = 0.1

    @property
    def names(self) -> list[str]:
        return [f"class {number}" for number in range(self.classes)] if self.classes > 1 else []

    def fingerprint(self) -> str:
        return json.dumps(self.given)

    def examples(self) -> Iterator[Labelled]:
        return iter(self.given)


# Who stands where


def sides(examples: list[Labelled], split: Split) -> dict[str, list[int]]:
    """Part -> the numbers of its examples."""
    parts = choose(examples, split)
    return {part: [number for number, p in parts.items() if p == part] for part in PARTS}


texts = st.tuples(st.text("ab", min_size=1, max_size=4)) | st.tuples(
    st.text("ab", max_size=3), st.text("ab", max_size=3)
)
parts = st.sampled_from([None, "train", "validation", "test"])
labelled = st.lists(st.builds(Labelled, parts, texts, st.just(0.0)), min_size=1, max_size=60)


@given(examples=labelled, train=st.none() | st.integers(1, 9), held=st.integers(1, 9), seed=st.integers(0, 3))
def test_no_text_stands_on_two_sides_and_parts_that_are_named_are_kept(examples, train, held, seed):
    split = Split(train=train, validation=held, test=held, seed=seed)
    # Whatever is left over, there is enough of it.
    examples = [*examples, *(Labelled(None, (f"more {number}",), 0.0) for number in range(9))]
    named = {example.texts for example in examples if example.part == "test"}
    validated = {example.texts for example in examples if example.part == "validation"}
    if validated and validated <= named:
        with pytest.raises(BadInput, match="Every text of the validation part stands in the test part too"):
            choose(examples, split)
        return
    found = sides(examples, split)
    by_part = {part: [examples[number].texts for number in numbers] for part, numbers in found.items()}
    for one, other in itertools.combinations(PARTS, 2):
        assert not set(by_part[one]) & set(by_part[other])
    assert len(by_part["train"]) == len(set(by_part["train"])) >= 1
    of_test = [number for number, example in enumerate(examples) if example.part == "test"]
    if of_test:
        assert set(found["test"]) <= set(of_test)
        assert len(found["test"]) == min(held, len(of_test))
        # Also what a larger test part would take is learnt from nowhere else.
        assert not {examples[number].texts for number in of_test} & {*by_part["train"], *by_part["validation"]}
    else:
        rest = [example.texts for example in examples if example.part in (None, "train")]
        assert 1 <= len(found["test"]) <= max(1, len(set(rest)) // 10)
    assert found["validation"]
    assert train is None or len(found["train"]) <= train


many = st.lists(st.text("abc", min_size=1, max_size=5), min_size=30, max_size=60, unique=True)


@given(documents=many, data=st.data(), pair=st.booleans())
def test_the_side_of_a_text_depends_neither_on_its_place_nor_on_the_size_of_the_training_part(documents, data, pair):
    whole = [Labelled(None, (text, text[::-1]) if pair else (text,), 0.0) for text in documents]
    moved = data.draw(st.permutations(whole))
    split = Split(train=None, validation=2, test=2)
    found = {whole[number].texts: part for number, part in choose(whole, split).items()}
    assert found == {moved[number].texts: part for number, part in choose(moved, split).items()}
    smaller = choose(whole, Split(train=5, validation=2, test=2))
    assert all(found[whole[number].texts] == part for number, part in smaller.items())
    assert Counter(smaller.values()) == {"train": 5, "validation": 2, "test": 2}
    # The parts of a smaller share of the training text come first in it.
    assert list(choose(whole, split))[:5] == list(smaller)[:5]


@given(documents=st.lists(st.text("abc", min_size=1, max_size=3), min_size=30, max_size=60), seed=st.integers(0, 3))
def test_a_task_holds_out_the_texts_that_a_corpus_of_them_does(documents, seed):
    split = Split(train=None, validation=3, test=3, seed=seed)
    if len(set(documents)) < 10:
        return
    assert choose([Labelled(None, (text,), 0.0) for text in documents], split) == split.choose(iter(documents))


def test_texts_of_a_pair_are_told_apart():
    pairs = [("ab", "c"), ("a", "bc"), ("abc", ""), ("", "abc")]
    found = choose([Labelled(None, pair, 0.0) for pair in pairs], Split(train=None, validation=1, test=1))
    assert sorted(found.values()) == ["test", "train", "train", "validation"]


def test_a_test_part_keeps_its_duplicates_and_training_gives_up_what_is_in_it():
    named = [("test", "a"), ("test", "a"), ("test", "b"), ("validation", "b"), ("validation", "c")]
    named += [("train", "a"), ("train", "c"), ("train", "d"), ("train", "d"), ("train", "e")]
    examples = [Labelled(part, (text,), 0.0) for part, text in named]
    found = sides(examples, Split(train=None, validation=9, test=9))
    assert {part: sorted(numbers) for part, numbers in found.items()} == {
        "test": [0, 1, 2],
        "validation": [4],
        "train": [7, 9],
    }


def test_a_task_of_too_few_examples_is_refused():
    split = Split(train=None, validation=1, test=1)
    with pytest.raises(BadInput, match="has 2 different examples for training and test and validation"):
        choose([Labelled(None, (text,), 0.0) for text in ("a", "b", "a")], split)
    with pytest.raises(BadInput, match="has 0 different examples for training, and each"):
        choose([Labelled(part, (part,), 0.0) for part in ("validation", "test")], split)


# What a row holds


def test_rows_by_hand():
    a, b = [11, 12, 13, 14, 15], [21, 22, 23]
    # A single text keeps its head.
    assert row(7, [a], 1.0, WORDS, length=8, last=False) == ([CLS, *a, SEP], 7, 1.0, 7, -1)
    assert row(7, [a], 1.0, WORDS, length=6, last=False) == ([CLS, 11, 12, 13, 14, SEP], 6, 1.0, 7, -1)
    assert row(7, [a], 1.0, WORDS, length=6, last=True) == ([11, 12, 13, 14, SEP, CLS], 6, 1.0, 7, -1)
    # Of a pair the longer text gives way until both are equally long, then the second one first.
    assert row(0, [a, b], 0.5, WORDS, length=11, last=False) == ([CLS, *a, SEP, *b, SEP], 7, 0.5, 0, -1)
    assert row(0, [a, b], 0.5, WORDS, length=9, last=False).tokens == [CLS, *a[:3], SEP, *b, SEP]
    assert row(0, [a, b], 0.5, WORDS, length=8, last=False).tokens == [CLS, *a[:3], SEP, *b[:2], SEP]
    assert row(0, [b, a], 0.5, WORDS, length=8, last=False).tokens == [CLS, *b, SEP, *a[:2], SEP]
    assert row(0, [a, b], 0.5, WORDS, length=8, last=True) == ([*a[:3], SEP, *b[:2], SEP, CLS], 4, 0.5, 0, -1)
    # Half a pair is a pair.
    assert row(0, [a, []], 0.0, WORDS, length=8, last=False) == ([CLS, *a, SEP, SEP], 7, 0.0, 0, -1)


sizes = st.integers(0, 30)


@given(one=sizes, two=sizes, length=st.integers(8, 40), last=st.booleans())
def test_a_pair_is_cut_as_the_published_code_does(one, two, length, last):
    a, b = list(range(100, 100 + one)), list(range(200, 200 + two))
    found = row(3, [a, b], 1.0, WORDS, length=length, last=last)
    while len(a) + len(b) > length - 3:  # _truncate_seq_pair of google-research/bert
        (a if len(a) > len(b) else b).pop()
    assert found.tokens == ([*a, SEP, *b, SEP, CLS] if last else [CLS, *a, SEP, *b, SEP])
    assert found.tokens[found.second : found.second + len(b) + 1] == [*b, SEP]


# Preparation


def task_of(reviews: list[str], **changes: Any) -> Given:
    """Two classes: a review is of class 1 if it is long. Their middle halves what the text says by itself."""
    middle = sorted(map(len, reviews))[len(reviews) // 3]
    return Given(given=[Labelled(None, (review,), float(len(review) > middle)) for review in reviews], **changes)


def build(root: Path, task: Any, **changes: Any) -> Prepared:
    given: dict[str, Any] = {
        "split": Split(train=None, validation=5, test=5),
        "learner": WordPiece(vocab=400, alphabet=80),
        "length": 24,
        "last": False,
    }
    return prepare_task(root, task=task, fingerprint=task.fingerprint(), **given | changes)


def read(folder: Path) -> Example:
    rows = Rows(folder)
    return rows.take(np.arange(len(rows)), np.zeros(len(rows), dtype=np.int64))


def files_below(root: Path) -> dict[str, int]:
    found = (path for path in root.rglob("*") if path.is_file() and path.suffix != ".lock")
    return {str(path.relative_to(root)): path.stat().st_mtime_ns for path in found}


@pytest.mark.parametrize("pair", [False, True])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("learner", [WordPiece(vocab=400, alphabet=80), ByteLevelBPE(vocab=400)])
def test_rows_on_disk_are_the_examples_with_their_labels(tmp_path, reviews, pair, last, learner):
    task = task_of(reviews)
    if pair:
        task = Given(given=[Labelled(None, (e.texts[0][:40], e.texts[0][-90:]), e.label) for e in task.given])
    found = build(tmp_path, task, last=last, learner=learner)
    tokenizer = Tokenizer.from_file(str(found.tokenizer))
    split = choose(task.given, Split(train=None, validation=5, test=5))
    for part in PARTS:
        example = read(found.folders[part])
        numbers = sorted(number for number, p in split.items() if p == part)
        assert example.document.tolist() == numbers
        assert example.label.tolist() == [task.given[number].label for number in numbers]
        for i, number in enumerate(numbers):
            ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in task.given[number].texts]
            wanted = row(number, ids, 0.0, found.vocabulary, length=24, last=last)
            assert example.tokens[i, : example.lengths[i]].tolist() == wanted.tokens
            assert (example.tokens[i, example.lengths[i] :] == PAD).all()
            assert example.second[i] == wanted.second
        assert found.facts[part]["rows"] == len(numbers)
        assert found.counts[part].sum() == found.facts[part]["tokens"] > 0
    assert set(found.facts["unigram_nats"]) == {"validation", "test"}
    assert 0 < found.facts["unigram_nats"]["test"] < np.log(400) + 1


def test_facts_say_how_labels_are_shared_out_and_what_the_commonest_scores(tmp_path):
    # The third class is the commonest one in training and the rarest one in the test part.
    labels = {"train": [2, 2, 2, 1, 1, 0], "validation": [0, 2], "test": [0, 1, 1, 2]}
    texts = iter(f"{'word ' * n}here" for n in range(20))
    given = [Labelled(part, (next(texts),), float(label)) for part, of in labels.items() for label in of]
    found = build(tmp_path, Given(given=given, classes=3), learner=WordPiece(vocab=40), length=8)
    assert found.facts["labels"]["train"] == pytest.approx({"class 0": 1 / 6, "class 1": 1 / 3, "class 2": 1 / 2})
    assert found.facts["labels"]["test"] == {"class 0": 0.25, "class 1": 0.5, "class 2": 0.25}
    assert found.facts["majority"] == {"train": 0.5, "validation": 0.5, "test": 0.25}
    # Rows of eight places hold six words: of 0 to 5 + 1 words none is cut, of more all are.
    assert [found.facts[part]["cut"] for part in PARTS] == [0.0, 1.0, 1.0]
    assert json.loads(json.dumps(found.facts)) == found.facts


def test_facts_of_scores_say_what_the_mean_scores(tmp_path):
    scores = {"train": [1.0, 2.0, 3.0], "validation": [2.0], "test": [0.0, 5.0]}
    texts = iter(f"{'word ' * n}here" for n in range(20))
    given = [Labelled(part, (next(texts),), score) for part, of in scores.items() for score in of]
    found = build(tmp_path, Given(given=given, classes=1), learner=WordPiece(vocab=40))
    assert found.facts["labels"]["test"] == {"mean": 2.5, "std": 2.5}
    assert found.facts["constant"] == pytest.approx({"train": 2 / 3, "validation": 0.0, "test": 6.5})
    assert sorted(read(found.folders["test"]).label.tolist()) == [0.0, 5.0]


def test_everything_is_built_once_and_what_a_change_does_not_touch_is_kept(tmp_path, reviews):
    task = task_of(reviews)
    first = build(tmp_path, task)
    before = files_below(tmp_path)
    assert {name.split("/")[1] for name in before} == {"examples", "tokenizer", "rows"}
    again = build(tmp_path, task)
    assert files_below(tmp_path) == before
    assert (again.folders, again.facts) == (first.folders, first.facts)
    other = build(tmp_path, task, length=12)
    assert other.tokenizer == first.tokenizer
    assert not set(other.folders.values()) & set(first.folders.values())
    assert build(tmp_path, task, last=True).folders != first.folders
    changed = Given(given=[Labelled(e.part, e.texts, 1 - e.label) for e in task.given])
    assert build(tmp_path, changed).tokenizer != first.tokenizer
    assert before.items() <= files_below(tmp_path).items()


def test_a_share_of_the_training_examples_has_the_tokenizer_of_all(tmp_path, reviews):
    task = task_of(reviews)
    whole = build(tmp_path, task)
    half = build(tmp_path, task, split=Split(train=None, validation=5, test=5, share=0.5))
    assert half.tokenizer == whole.tokenizer
    assert [half.folders[part] for part in PARTS[1:]] == [whole.folders[part] for part in PARTS[1:]]
    assert half.facts["train"]["rows"] == round(whole.facts["train"]["rows"] / 2)
    smaller = build(tmp_path, task, split=Split(train=half.facts["train"]["rows"], validation=5, test=5))
    assert read(half.folders["train"]).document.tolist() == read(smaller.folders["train"]).document.tolist()


def test_a_tokenizer_is_learnt_from_the_training_examples_alone(tmp_path):
    words = {"train": "aa bb", "validation": "cc dd", "test": "ee ff"}
    given = [Labelled(p, (f"{w} {i}", w[::-1]), float(i % 2)) for p, w in words.items() for i in range(4)]
    found = build(tmp_path, Given(given=given), learner=WordPiece(vocab=60))
    types = set(Tokenizer.from_file(str(found.tokenizer)).get_vocab())
    assert {"aa", "bb"} <= types
    assert not {"c", "d", "e", "f"} & types


def test_a_class_that_is_only_tested_is_refused_and_leaves_nothing_behind(tmp_path):
    given = [Labelled("train", (f"text {i}",), float(i % 2)) for i in range(9)]
    given += [Labelled("validation", ("text",), 0.0), Labelled("test", ("text 10",), 2.0)]
    with pytest.raises(BadInput, match=r"The class 'class 2' occurs in the test part and not in the training part"):
        build(tmp_path, Given(given=given, classes=3))
    assert files_below(tmp_path) == {}
    # Scores are of no class.
    assert build(tmp_path, Given(given=given, classes=1)).facts["test"]["rows"] == 1


def test_texts_without_words_are_refused(tmp_path):
    silent = [Labelled(None, (text,), float(i % 2)) for i, text in enumerate(["\u200b", "\u200c", "\u200d", "\u2060"])]
    with pytest.raises(BadInput, match="The train part of the task holds no word that the tokenizer knows"):
        build(tmp_path, Given(given=silent, classes=1), learner=WordPiece(vocab=20))


def test_rows_without_room_are_refused(tmp_path, reviews):
    with pytest.raises(BadInput, match="length=7 leaves no room"):
        build(tmp_path, task_of(reviews), length=7)


def test_a_ready_tokenizer_is_taken_as_it_is(tmp_path, reviews, sentences):
    path = tmp_path / "tokenizer.json"
    WordPiece(vocab=600, alphabet=100).learn(sentences).save(str(path))
    found = build(tmp_path / "data", task_of(reviews), learner=Ready(path=str(path)))
    assert found.vocabulary.size == 600
    assert Tokenizer.from_file(str(found.tokenizer)).get_vocab() == Tokenizer.from_file(str(path)).get_vocab()
    moved = path.rename(tmp_path / "moved.json")
    assert build(tmp_path / "data", task_of(reviews), learner=Ready(path=str(moved))).folders == found.folders
    ByteLevelBPE(vocab=500).learn(sentences).save(str(moved))
    assert build(tmp_path / "data", task_of(reviews), learner=Ready(path=str(moved))).tokenizer != found.tokenizer


def test_reviews_are_prepared_whole(tmp_path):
    task = Reviews(source="rotten_tomatoes", classes=2, metrics=["accuracy"])
    found = build(tmp_path, task, split=Split(train=300, validation=100, test=200))
    assert [found.facts[part]["rows"] for part in PARTS] == [300, 100, 200]
    assert set(found.facts["labels"]["train"]) == {"negative", "positive"}
    assert 0.4 < found.facts["majority"]["test"] < 0.6


def test_a_file_of_one_s_own_is_prepared(tmp_path):
    path = tmp_path / "mine.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        pairs = [
            ["question", "answer", "right"],
            *([f"what is {i}", f"it is {i}", ["no", "yes"][i % 2]] for i in range(30)),
        ]
        csv.writer(file).writerows(pairs)
    task = Files(
        path=str(path),
        text="question",
        text_pair="answer",
        label="right",
        classes=2,
        metrics=["f1"],
        largest=1000,
    )
    found = build(tmp_path / "data", task, learner=WordPiece(vocab=60))
    assert [found.facts[part]["rows"] for part in PARTS] == [24, 3, 3]
    example = read(found.folders["train"])
    assert (example.second < example.lengths).all()
    assert example.label.tolist() == [number % 2 for number in example.document.tolist()]


# GLUE

GLUE = {
    "cola": (["sentence"], 2, "mcc"),
    "sst2": (["sentence"], 2, "accuracy"),
    "mrpc": (["sentence1", "sentence2"], 2, "f1"),
    "stsb": (["sentence1", "sentence2"], 1, "pearson"),
    "qqp": (["question1", "question2"], 2, "f1"),
    "mnli": (["premise", "hypothesis"], 3, "accuracy"),
    "mnli_mismatched": (["premise", "hypothesis"], 3, "accuracy"),
    "qnli": (["question", "sentence"], 2, "accuracy"),
    "rte": (["sentence1", "sentence2"], 2, "accuracy"),
    "wnli": (["sentence1", "sentence2"], 2, "accuracy"),
}


@pytest.mark.parametrize("name", GLUE)
def test_glue_s_tasks_name_their_columns_and_are_tested_where_labels_are_public(
    name: str, composed: Callable[..., DictConfig]
) -> None:
    columns, classes, metric = GLUE[name]
    node: Any = OmegaConf.to_container(composed(f"task={name}").task, resolve=True)
    assert node.pop("_target_") == "lmab.data.tables.Hub"
    task = Hub(**node)
    assert (task.name, task.config) == ("nyu-mll/glue", name.split("_")[0])
    assert [column for column in (task.text, task.text_pair) if column] == columns
    assert (task.classes, task.metrics[0]) == (classes, metric)
    held = {"mnli": "validation_matched", "mnli_mismatched": "validation_mismatched"}.get(name, "validation")
    assert task.splits == {"train": "train", "validation": None, "test": held}
