"""Corpus to rows: who stands on which side, what is learnt from whom, and that everything is built once."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import sentencex
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from lmab.data.corpus import Files
from lmab.data.pairs import SegmentPair
from lmab.data.prepare import PARTS, Prepared, Split, prepare
from lmab.data.rows import Rows
from lmab.data.segments import DocSentences, FullSentences
from lmab.data.streams import Streams
from lmab.data.tokenizer import ByteLevelBPE, WordPiece
from lmab.types import BadInput, Vocabulary

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


# Split

texts = st.lists(st.text("ab", min_size=1, max_size=5), min_size=3, max_size=60)
sizes = st.integers(1, 12)


def chosen(split: Split, documents: list[str]) -> dict[str, list[int]]:
    """Part -> the numbers of its documents."""
    parts = split.choose(iter(documents))
    return {part: [number for number, p in parts.items() if p == part] for part in PARTS}


@given(documents=texts, validation=sizes, test=sizes, train=st.none() | sizes, seed=st.integers(0, 9))
def test_a_split_takes_every_text_once_and_holds_out_at_most_a_tenth(documents, validation, test, train, seed):
    split = Split(train=train, validation=validation, test=test, seed=seed)
    different = set(documents)
    if len(different) < 3:
        with pytest.raises(BadInput, match=f"holds {len(different)} different documents.*at least 3"):
            split.choose(iter(documents))
        return
    parts = chosen(split, documents)
    taken = [documents[number] for numbers in parts.values() for number in numbers]
    assert len(taken) == len(set(taken))
    most = max(1, len(different) // 10)
    assert len(parts["test"]) == min(test, most)
    assert len(parts["validation"]) == min(validation, most)
    left = len(different) - len(parts["test"]) - len(parts["validation"])
    assert len(parts["train"]) == (left if train is None else min(train, left))
    # The document that counts is the first of its duplicates.
    assert all(documents.index(documents[number]) == number for number in itertools.chain(*parts.values()))


@given(
    documents=st.lists(st.text("abc", min_size=1, max_size=5), min_size=30, max_size=60, unique=True), data=st.data()
)
def test_the_side_of_a_text_does_not_depend_on_where_it_stands(documents, data):
    split = Split(train=None, validation=2, test=2)
    moved = data.draw(st.permutations(documents))
    sides = {documents[number]: part for number, part in split.choose(iter(documents)).items()}
    assert sides == {moved[number]: part for number, part in split.choose(iter(moved)).items()}


@given(documents=st.lists(st.text("abc", min_size=1, max_size=5), min_size=8, max_size=40, unique=True), n=sizes)
def test_a_smaller_training_part_lies_inside_a_larger_one(documents, n):
    small = chosen(Split(train=n, validation=2, test=2), documents)
    large = chosen(Split(train=n + 3, validation=2, test=2), documents)
    assert set(small["train"]) <= set(large["train"])
    assert [small["validation"], small["test"]] == [large["validation"], large["test"]]


def test_another_seed_splits_otherwise(reviews):
    splits = [chosen(Split(train=None, validation=6, test=6, seed=seed), reviews)["test"] for seed in range(5)]
    assert len({frozenset(part) for part in splits}) == 5


@pytest.mark.parametrize("share", [0.0, -0.5, 1.5, math.nan])
def test_a_share_that_is_none_is_refused(share):
    with pytest.raises(BadInput, match=r"split\.share=.*above 0 and up to 1"):
        Split(train=None, validation=4, test=4, share=share)


# Building


def build(root: Path, corpus: Files, **changes: object) -> Prepared:
    settings = {
        "split": Split(train=None, validation=4, test=4),
        "learner": WordPiece(vocab=400, alphabet=80),
        "segments": FullSentences(length=24, cut=True),
        "held_out": DocSentences(length=24, cut=True),
    }
    return prepare(root, corpus=corpus, fingerprint=corpus.fingerprint(), **settings | changes)


def contents(root: Path) -> dict[str, tuple[int, bytes]]:
    """Every file below root with its time and its bytes."""
    files = (path for path in sorted(root.rglob("*")) if path.is_file() and not path.name.endswith(".lock"))
    return {str(path.relative_to(root)): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def write(path: Path, documents: list[str]) -> Files:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents), encoding="utf-8")
    return Files(path=path)


def test_everything_is_built_once(tmp_path, corpus):
    first = build(tmp_path, corpus)
    before = contents(tmp_path)
    assert {name.split("/")[1] for name in before} == {"sentences", "tokenizer", "rows"}
    second = build(tmp_path, corpus)
    assert contents(tmp_path) == before
    assert second.folders == first.folders
    assert second.facts == first.facts


def test_what_a_change_does_not_touch_is_kept(tmp_path, corpus):
    first = build(tmp_path, corpus)
    before = contents(tmp_path)
    longer = build(tmp_path, corpus, segments=FullSentences(length=40, cut=True))
    assert longer.tokenizer == first.tokenizer
    assert longer.folders["test"] == first.folders["test"]
    assert longer.folders["train"] != first.folders["train"]
    other = build(tmp_path, corpus, learner=ByteLevelBPE(vocab=400))
    assert other.tokenizer != first.tokenizer
    assert not set(other.folders.values()) & set(first.folders.values())
    after = contents(tmp_path)
    assert {name: after[name] for name in before} == before
    assert sum(name.endswith("train.arrow") for name in after) == 1


@pytest.mark.parametrize(("share", "documents"), [(0.5, 26), (0.25, 13), (0.1, 5), (0.001, 1)])
def test_a_share_of_the_training_text_is_read_with_the_tokenizer_of_all_of_it(
    tmp_path, corpus, reviews, share, documents
):
    def split(share: float) -> Split:
        return Split(train=52, validation=4, test=4, share=share)

    whole = build(tmp_path, corpus, split=split(1.0), segments=DocSentences(length=24))
    before = contents(tmp_path)
    part = build(tmp_path, corpus, split=split(share), segments=DocSentences(length=24))
    assert part.tokenizer == whole.tokenizer
    assert {name: part.folders[name] == whole.folders[name] for name in PARTS} == {
        "train": False,
        "validation": True,
        "test": True,
    }
    assert {name: data for name, data in contents(tmp_path).items() if name in before} == before
    # The first of them are read, so less text lies inside more, and the rows are those that they have in the whole.
    first = [n for n, side in split(1.0).choose(iter(reviews)).items() if side == "train"][:documents]
    rows, all_ = Rows(part.folders["train"]), Rows(whole.folders["train"])
    assert set(rows.document.tolist()) == set(first)
    kept = np.flatnonzero(np.isin(all_.document, first))
    assert len(kept) == len(rows) == part.facts["train"]["rows"]
    wanted = all_.take(kept, np.zeros_like(kept)).tokens
    assert rows.take(np.arange(len(rows)), np.zeros(len(rows), dtype=np.int64)).tokens.tolist() == wanted.tolist()
    assert part.facts["unigram_nats"]["test"] == part.unigram_nats("test")


def test_labels_and_second_segments_come_back_from_disk(tmp_path, corpus):
    pairs = SegmentPair(length=32, negatives="random", copies=2, short=0.1, last=False, seed=0)
    found = build(tmp_path, corpus, segments=pairs, held_out=replace(pairs, negatives="swap", copies=1))
    for part in PARTS:
        rows = Rows(found.folders[part])
        example = rows.take(np.arange(len(rows)), np.zeros(len(rows), dtype=np.int64))
        assert set(example.label.tolist()) == {0.0, 1.0}
        place = np.arange(len(rows))
        assert (example.tokens[place, example.second - 1] == found.vocabulary.last).all()
        assert (example.tokens[place, example.lengths - 1] == found.vocabulary.last).all()
        assert (example.second < example.lengths).all()
        assert (example.past, example.ahead) == (None, None)
    assert found.facts["train"]["rows"] > 2 * found.facts["test"]["rows"]


def test_text_too_short_for_a_row_of_the_format_is_said(tmp_path):
    silent = write(tmp_path / "r.jsonl", ["One.", "Two.", "Three."])
    streams = Streams(length=500, cross=True, bidirectional=False)
    with pytest.raises(BadInput, match=r"left no rows for train: .* too few for one row of Streams"):
        build(tmp_path / "data", silent, learner=WordPiece(vocab=60), segments=streams)


def same_side(split: Split, documents: list[str], number: int) -> list[str]:
    """The documents with one of them rewritten so that nobody changes sides."""
    sides = split.choose(iter(documents))
    for attempt in itertools.count():
        changed = [*documents]
        changed[number] = " ".join([f"Zyzzyva quixotic jukebox {attempt}."] * 40)
        if split.choose(iter(changed)) == sides:
            return changed
    raise AssertionError


def test_a_tokenizer_is_learnt_from_the_training_part_alone(tmp_path, reviews):
    split = Split(train=None, validation=4, test=4)
    sides = split.choose(iter(reviews))

    def vocabulary(documents: list[str]) -> bytes:
        return build(tmp_path, write(tmp_path / "r.jsonl", documents), split=split).tokenizer.read_bytes()

    plain = vocabulary(reviews)
    for part, touched in (("test", False), ("validation", False), ("train", True)):
        number = next(n for n, side in sides.items() if side == part)
        assert (vocabulary(same_side(split, reviews, number)) != plain) == touched


def test_rows_on_disk_are_those_of_the_segments(tmp_path, corpus, reviews):
    split = Split(train=20, validation=4, test=4)
    segments, held_out = FullSentences(length=24), DocSentences(length=30, cut=True)
    found = build(tmp_path, corpus, split=split, segments=segments, held_out=held_out)
    tokenizer = Tokenizer.from_file(str(found.tokenizer))
    sides = split.choose(iter(reviews))
    for part in PARTS:
        documents = [
            (n, [tokenizer.encode(s, add_special_tokens=False).ids for s in sentencex.segment("en", text)])
            for n, text in enumerate(reviews)
            if sides.get(n) == part
        ]
        format_ = segments if part == "train" else held_out
        wanted = list(format_.rows(documents, found.vocabulary))
        rows = Rows(found.folders[part])
        assert len(rows) == len(wanted) == found.facts[part]["rows"]
        for number, row in enumerate(wanted):
            example = rows.take(np.array([number]), np.array([3]))
            assert example.tokens.tolist() == [row.tokens]
            assert [example.lengths, example.second, example.document] == [
                [len(row.tokens)],
                [row.second],
                [row.document],
            ]
            assert np.isnan(example.label).all() == (row.label is None)
            assert (example.number.tolist(), example.epoch.tolist()) == ([number], [3])
        counts = np.bincount([t for row in wanted for t in row.tokens], minlength=400)
        counts[:5] = 0
        assert found.counts[part].tolist() == counts.tolist()
        assert found.facts[part]["tokens"] == counts.sum()


@pytest.mark.parametrize("learner", [WordPiece(vocab=400, alphabet=80), ByteLevelBPE(vocab=400)])
def test_a_text_that_names_special_tokens_gives_none(tmp_path, reviews, learner):
    said = "We write [MASK] and <mask>, [SEP] and </s>, [CLS] and <s>, [PAD] and <pad>. "
    found = build(tmp_path, write(tmp_path / "r.jsonl", [said + review for review in reviews]), learner=learner)
    rows = Rows(found.folders["train"])
    example = rows.take(np.arange(len(rows)), np.zeros(len(rows), dtype=np.int64))
    place = np.arange(24)
    real = place < example.lengths[:, None]
    assert (example.tokens[real] != found.vocabulary.mask).all()
    assert ((example.tokens == found.vocabulary.first) == (place == 0)).all()
    assert (example.tokens[real] != found.vocabulary.pad).all()
    # A separator ends a row or a document, and says nothing else.
    inside = (example.tokens == found.vocabulary.last)[:, 1:-1].sum()
    assert inside <= len(reviews) + len(rows) // 24


class Breaking(Files):
    """A corpus whose disk fails in the middle, when it is read for the second time."""

    reads = 0

    def documents(self) -> Iterator[str]:
        type(self).reads += 1
        for number, text in enumerate(super().documents()):
            if type(self).reads == 2 and number == 30:
                raise OSError("the disk is gone")
            yield text


def test_a_build_that_raises_leaves_nothing_behind(tmp_path, corpus):
    broken = Breaking(path=corpus.path)
    with pytest.raises(OSError, match="the disk is gone"):
        build(tmp_path, broken)
    assert contents(tmp_path) == {}
    assert list(tmp_path.rglob("*.arrow")) == []
    whole = build(tmp_path, corpus)
    assert {part: whole.facts[part]["rows"] > 0 for part in PARTS} == dict.fromkeys(PARTS, True)


def test_a_vocabulary_that_cannot_work_leaves_nothing_of_it_behind(tmp_path, corpus):
    with pytest.raises(BadInput, match=r"tokenizer\.vocab=20 is smaller"):
        build(tmp_path, corpus, learner=WordPiece(vocab=20))
    assert {name.split("/")[1] for name in contents(tmp_path)} == {"sentences"}


def test_parts_without_words_are_refused(tmp_path):
    silent = write(tmp_path / "r.jsonl", ["\u200b", "\u200c", "\u200d", "\u2060"])
    with pytest.raises(BadInput, match="left no rows for train: its documents hold no words"):
        build(tmp_path / "data", silent, learner=WordPiece(vocab=20))


@pytest.mark.parametrize(("key", "value"), [("train", 0), ("validation", 0), ("test", -1), ("seed", -1)])
def test_sizes_that_leave_a_part_empty_are_refused(key, value):
    given = {"train": None, "validation": 4, "test": 4, "seed": 0} | {key: value}
    with pytest.raises(BadInput, match=rf"split\.{key}={value} "):
        Split(**given)


PREPARE = """
import json, pathlib, sys
from lmab.data.corpus import Files
from lmab.data.prepare import Split, prepare
from lmab.data.segments import DocSentences, FullSentences
from lmab.data.tokenizer import WordPiece
corpus = Files(path=sys.argv[2])
found = prepare(
    pathlib.Path(sys.argv[1]),
    corpus=corpus,
    fingerprint=corpus.fingerprint(),
    split=Split(train=None, validation=4, test=4),
    learner=WordPiece(vocab=400, alphabet=80),
    segments=FullSentences(length=24, cut=True),
    held_out=DocSentences(length=24, cut=True),
)
print(json.dumps([{k: str(v) for k, v in found.folders.items()}, found.facts]))
"""


def test_two_processes_that_build_at_once_give_one_result(tmp_path, corpus):
    words = [sys.executable, "-c", PREPARE, str(tmp_path / "shared"), str(corpus.path)]
    racing = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate()[0] for process in racing]
    assert [process.returncode for process in racing] == [0, 0]
    assert said[0] == said[1]
    # And what they built together is what one alone builds, to the last byte.
    alone = build(tmp_path / "alone", corpus)
    together = {name: data for name, (_, data) in contents(tmp_path / "shared").items()}
    assert together == {name: data for name, (_, data) in contents(tmp_path / "alone").items()}
    assert json.loads(said[0])[1] == json.loads(json.dumps(alone.facts))


# The plateau


counts = st.lists(st.integers(0, 50), min_size=8, max_size=8)


@settings(max_examples=50)
@given(train=counts, held=counts)
def test_the_unigram_entropy_is_what_one_computes_by_hand(train, held):
    held[-1] += 1
    special = np.arange(8) < 5
    for row in (train, held):
        row[:5] = [0] * 5
    vocabulary = Vocabulary(8, 0, 1, 2, 3, 4, special, special & False)
    both = {"train": np.array(train), "test": np.array(held)}
    prepared = Prepared({}, None, vocabulary, both, {}, {})
    total = sum(train) + 3
    nats = [-math.log((n + 1) / total) for n in train[5:]]
    wanted = sum(n * x for n, x in zip(held[5:], nats, strict=True)) / sum(held)
    assert prepared.unigram_nats() == pytest.approx(wanted, rel=1e-12)


def test_the_unigram_entropy_of_real_text_lies_between_its_bounds(tmp_path, corpus):
    found = build(tmp_path, corpus)
    for part in ("validation", "test"):
        share = found.counts[part] / found.counts[part].sum()
        entropy = -(share[share > 0] * np.log(share[share > 0])).sum()
        assert entropy < found.facts["unigram_nats"][part] < math.log(395)
        assert found.unigram_nats(part) == found.facts["unigram_nats"][part]


@pytest.mark.parametrize("name", ["tokenizer/tokenizer.json", "rows/rows.arrow"])
def test_damaged_files_are_named_with_their_folder(name, corpus, tmp_path):
    def make() -> None:
        found = prepare(
            tmp_path,
            corpus=corpus,
            fingerprint=corpus.fingerprint(),
            split=Split(train=None, validation=6, test=6),
            learner=WordPiece(vocab=600, alphabet=100),
            segments=FullSentences(length=32, cut=True),
            held_out=DocSentences(length=32, cut=True),
        )
        for folder in found.folders.values():
            Rows(folder)

    make()
    for path in tmp_path.glob(f"*/{name}"):
        path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(BadInput, match="delete that folder") as refused:
        make()
    assert name.partition("/")[0] in str(refused.value)
