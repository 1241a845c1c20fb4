"""Words replaced in copies of rows: which, by what, and that nothing else is touched."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lmab.data.labelled import Labelled
from lmab.data.prepare import Split
from lmab.data.replace import Replacement, Replacing, likeliest
from lmab.data.rows import Rows
from lmab.data.segments import Row
from lmab.data.tasks import prepare_task
from lmab.data.tokenizer import WordPiece
from lmab.rng import derive, philox, uniform
from lmab.types import BadInput, Vocabulary

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from lmab.types import Batch, Example

PAD, UNKNOWN, CLS, SEP, MASK = range(5)
THE, FILM, WAS, GOOD, BAD, LY, S = range(5, 12)
SIZE = 12
WORDS = Vocabulary(
    SIZE, PAD, UNKNOWN, CLS, SEP, MASK, special=np.arange(SIZE) < 5, continues=np.isin(np.arange(SIZE), [LY, S])
)
WHOLE = [THE, FILM, WAS, GOOD, BAD]
REVIEW = [CLS, THE, FILM, S, WAS, GOOD, SEP]


class Likes:
    """Scores types by how they stand in a list, whatever the row."""

    def __init__(self, *best: int) -> None:
        self.best = best
        self.batches: list[tuple[Batch, torch.Tensor]] = []

    def __call__(self, batch: Batch, places: torch.Tensor) -> torch.Tensor:
        self.batches.append((batch, places))
        scores = torch.zeros(len(places), SIZE)
        for rank, word in enumerate(self.best):
            scores[:, word] = len(self.best) - rank
        return scores


class Reads:
    """Scores depend on every token of the row, each by its place."""

    def __call__(self, batch: Batch, places: torch.Tensor) -> torch.Tensor:
        T = batch.tokens.shape[1]
        lengths = torch.full((len(places),), T) if batch.lengths is None else batch.lengths
        found = []
        for tokens, length, place in zip(batch.tokens.tolist(), lengths.tolist(), places.tolist(), strict=True):
            said = sum((number + 1) * token for number, token in enumerate(tokens[:length])) + place % T
            found.append([(said * (word + 3)) % 17 + word / 100 for word in range(SIZE)])
        return torch.tensor(found)


def by(predict: object, batch: int = 128, **knobs: float) -> Replacing:
    given_ = {"copies": 1, "rate": 1.0, "candidates": 1, "seed": 0} | knobs
    return Replacing(Replacement(**given_), "fake", lambda: predict, batch)  # type: ignore[arg-type]


def row(tokens: list[int], *, document: int = 0, second: int | None = None, label: float | None = 1.0) -> Row:
    return Row(tokens, len(tokens) if second is None else second, label, document)


def told(replacing: Replacing, rows: Iterable[Row]) -> list[Row]:
    return list(replacing(rows, WORDS))


def test_words_of_a_single_piece_become_the_likeliest_whole_word() -> None:
    likes = Likes(SEP, LY, BAD, GOOD)  # neither a special token nor a piece that goes on can be a word
    original = row(REVIEW)
    assert told(by(likes), [original]) == [original, row([CLS, BAD, FILM, S, BAD, BAD, SEP])]
    ((batch, places),) = likes.batches
    assert batch.tokens.tolist() == [
        [CLS, MASK, FILM, S, WAS, GOOD, SEP],
        [CLS, THE, FILM, S, MASK, GOOD, SEP],
        [CLS, THE, FILM, S, WAS, MASK, SEP],
    ]
    assert places.tolist() == [1, 7 + 4, 14 + 5]
    assert batch.lengths is None
    assert batch.segments is None


def test_a_word_is_replaced_where_its_own_number_says_so_and_by_that_candidate() -> None:
    likes = Likes(GOOD, WAS, BAD)
    found = told(by(likes, copies=3, rate=0.5, candidates=3, seed=7), [row(REVIEW, document=20)])
    sorted_ = sorted([GOOD, WAS, BAD])
    kinds = set()
    for copy in range(3):
        for place, before in enumerate(REVIEW):
            words = uniform(philox((place, 20, copy, 0), derive(7, "augment")))
            replaced = place in (1, 4, 5) and words[0] < 0.5
            assert found[1 + copy].tokens[place] == (sorted_[int(words[1] * 3)] if replaced else before)
            kinds.add((place in (1, 4, 5), bool(replaced)))
    assert kinds == {(True, True), (True, False), (False, False)}


def test_only_words_that_a_copy_replaces_are_asked_for() -> None:
    likes = Likes(GOOD)
    replacing = by(likes, rate=0.3, copies=2)
    block = [row(REVIEW, document=number) for number in range(40)]
    told(replacing, block)
    asked = sum(len(places) for _, places in likes.batches)
    numbers = uniform(philox((np.array([1, 4, 5]), np.arange(40)[:, None, None], np.arange(2)[:, None], 0), _key())[0])
    assert asked == int((numbers < 0.3).any(1).sum()) < 40 * 3


def _key() -> int:
    return derive(0, "augment")


def test_the_share_of_words_that_are_replaced_is_the_rate() -> None:
    block = [row([CLS, *[THE] * 30, SEP], document=number) for number in range(300)]
    copies = [r for r in told(by(Likes(BAD), rate=0.4, copies=2), block) if BAD in r.tokens]
    share = sum(r.tokens.count(BAD) for r in copies) / (600 * 30)
    assert abs(share - 0.4) < 4 * (0.4 * 0.6 / 18_000) ** 0.5


def test_candidates_are_drawn_alike_and_may_be_the_word_itself() -> None:
    block = [row([CLS, *[THE] * 30, SEP], document=number) for number in range(100)]
    drawn = [t for r in told(by(Likes(GOOD, THE, WAS, LY), candidates=3), block)[1::2] for t in r.tokens[1:-1]]
    assert set(drawn) == {GOOD, THE, WAS}
    for word in (GOOD, THE, WAS):
        assert abs(drawn.count(word) / 3000 - 1 / 3) < 4 * (2 / 9 / 3000) ** 0.5


def test_both_texts_of_a_pair_are_read_together_and_changed() -> None:
    likes = Likes(BAD)
    pair = row([CLS, THE, SEP, FILM, LY, WAS, SEP], second=3, label=0.25)
    _, copy = told(by(likes), [pair])
    assert copy == row([CLS, BAD, SEP, FILM, LY, BAD, SEP], second=3, label=0.25)
    ((batch, _),) = likes.batches
    assert batch.segments is not None
    assert batch.segments.tolist() == [[0, 0, 0, 1, 1, 1, 1]] * 2


def test_a_row_without_such_words_has_copies_that_are_itself() -> None:
    likes = Likes(BAD)
    original = row([CLS, UNKNOWN, FILM, S, SEP])
    assert told(by(likes, copies=2), [original]) == [original] * 3
    assert likes.batches == []


pieces = st.lists(st.sampled_from([UNKNOWN, *WHOLE, LY, S]), min_size=1, max_size=9)


@st.composite
def written(draw: st.DrawFn) -> list[Row]:
    """Rows of one text or of two, with numbers of their own."""
    found = []
    for number in draw(st.lists(st.integers(0, 10**6), min_size=1, max_size=5, unique=True)):
        first, second = [CLS, *draw(pieces), SEP], draw(st.none() | pieces)
        tokens = first if second is None else [*first, *second, SEP]
        found.append(row(tokens, document=number, second=len(first), label=draw(st.none() | st.floats(-1, 3))))
    return found


knobs = st.fixed_dictionaries(
    {
        "copies": st.integers(1, 4),
        "rate": st.floats(0.05, 1),
        "candidates": st.integers(1, 5),
        "seed": st.integers(0, 9),
    }
)


@given(rows=written(), chosen=knobs)
def test_nothing_but_whole_words_changes_and_only_to_a_candidate(rows: list[Row], chosen: dict) -> None:
    copies = chosen["copies"]
    found = told(by(Reads(), **chosen), rows)
    assert found[:: copies + 1] == rows
    assert len(found) == (copies + 1) * len(rows)
    for number, original in enumerate(rows):
        for copy in found[number * (copies + 1) + 1 : (number + 1) * (copies + 1)]:
            assert copy._replace(tokens=original.tokens) == original
            assert len(copy.tokens) == len(original.tokens)
            for place, (before, after) in enumerate(zip(original.tokens, copy.tokens, strict=True)):
                following = (*original.tokens, PAD)[place + 1]
                if before not in WHOLE or following in (LY, S):
                    assert after == before
                elif after != before:
                    assert after in _likely(original.tokens, place, chosen["candidates"])


def _likely(tokens: list[int], place: int, count: int) -> list[int]:
    masked = [MASK if number == place else token for number, token in enumerate(tokens)]
    said = sum((number + 1) * token for number, token in enumerate(masked)) + place
    return sorted(WHOLE, key=lambda word: (said * (word + 3)) % 17 + word / 100, reverse=True)[:count]


@given(rows=written(), chosen=knobs, batch=st.integers(1, 9))
def test_a_copy_is_its_own_whatever_stands_beside_it(rows: list[Row], chosen: dict, batch: int) -> None:
    found = told(by(Reads(), **chosen), rows)
    copies = chosen["copies"]
    alone = [told(by(Reads(), batch, **chosen), [one]) for one in rows]
    assert [line for lines in alone for line in lines] == found
    more = told(by(Reads(), batch, **chosen | {"copies": copies + 2}), reversed(rows))
    for number, lines in enumerate(reversed(alone)):
        assert more[number * (copies + 3) :][: copies + 1] == lines


@given(st.lists(st.floats(-9, 9), min_size=SIZE, max_size=SIZE, unique=True), st.integers(1, 5))
def test_the_likeliest_are_whole_words_by_their_numbers(scores: list[float], count: int) -> None:
    best = sorted(WHOLE, key=lambda word: -scores[word])[:count]
    assert likeliest(np.array([scores]), WORDS, count).tolist() == [sorted(best)]


# Rows on disk


@dataclass(frozen=True, kw_only=True)
class Given:
    """A task whose examples are given."""

    given: list[Labelled]
    classes: int = 2
    metrics: list[str] = field(default_factory=lambda: ["accuracy"])
    names: ClassVar[list[str]] = ["bad", "good"]
    held_out: ClassVar[float] = 0.1

    def fingerprint(self) -> str:
        return repr(self.given)

    def examples(self) -> Iterator[Labelled]:
        return iter(self.given)


TEXTS = [("a fine film", 1.0), ("a poor film", 0.0), ("fine words are few", 1.0), ("poor words are many", 0.0)]


def build(root: Path, replace: Replacing | None = None, **split: float) -> dict[str, Example]:
    parts = ("train", "train", "train", "train", "validation", "validation", "test", "test")
    texts = [*TEXTS, *((f"{said} {part}", label) for part in ("one", "two") for said, label in TEXTS[:2])]
    task = Given(given=[Labelled(part, (said,), label) for part, (said, label) in zip(parts, texts, strict=True)])  # type: ignore[arg-type]
    prepared = prepare_task(
        root,
        task=task,
        fingerprint=task.fingerprint(),
        split=Split(**{"train": None, "validation": 9, "test": 9} | split),
        learner=WordPiece(vocab=80, alphabet=40),
        length=12,
        last=False,
        replace=replace,
    )
    found = {}
    for part, folder in prepared.folders.items():
        rows = Rows(folder)
        found[part] = rows.take(np.arange(len(rows)), np.zeros(len(rows), dtype=np.int64))
        assert len(rows) == prepared.facts[part]["rows"]
        assert prepared.facts[part]["cut"] == 0
    return found


class First:
    """Likes the first ordinary types of any vocabulary."""

    asked = 0

    def __call__(self, batch: Batch, places: torch.Tensor) -> torch.Tensor:
        self.asked += 1
        return -torch.arange(80.0).repeat(len(places), 1)


def test_training_rows_alone_have_copies_and_are_built_once_for_whom_predicts(tmp_path: Path) -> None:
    first, how = First(), Replacement(copies=2, rate=0.9, candidates=2, seed=0)
    plain = build(tmp_path)
    more = build(tmp_path, Replacing(how, "one", lambda: first, 128))
    assert (more["train"].tokens[::3] == plain["train"].tokens).all()
    assert (more["train"].document == plain["train"].document.repeat(3)).all()
    assert (more["train"].label == plain["train"].label.repeat(3)).all()
    assert (more["train"].tokens[1::3] != plain["train"].tokens).any()
    for part in ("validation", "test"):
        assert (more[part].tokens == plain[part].tokens).all()
    assert (asked := first.asked) > 0
    again = build(tmp_path, Replacing(how, "one", lambda: pytest.fail("rows that are there were made anew"), 128))
    assert (again["train"].tokens == more["train"].tokens).all()
    build(tmp_path, Replacing(how, "another", lambda: first, 128))
    assert first.asked == 2 * asked
    assert len(build(tmp_path, Replacing(how, "one", lambda: first, 128), share=0.5)["train"].tokens) == 6


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"copies": 0}, "augment.copies=0 cannot work: give at least 1"),
        ({"candidates": 0}, "augment.candidates=0 cannot work: give at least 1"),
        ({"rate": 0.0}, r"augment.rate=0.0 .* above 0"),
        ({"rate": 1.5}, r"augment.rate=1.5 .* up to 1"),
        ({"seed": -1}, "augment.seed=-1 cannot work: give at least 0"),
    ],
)
def test_a_replacement_that_cannot_work_is_refused(knobs: dict, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        by(Likes(), **knobs)
