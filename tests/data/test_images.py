"""Digits to rows: who stands where, what a row holds, which classes and how many copies training sees."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from lmab.data.building import PARTS, Prepared
from lmab.data.images import Digits, Shifts
from lmab.data.labelled import Labelled
from lmab.data.prepare import Split
from lmab.data.rows import Rows
from lmab.data.tasks import Stored, choose, omitted, prepare_task
from lmab.data.tokenizer import Levels, Ready, WordPiece
from lmab.types import BadInput

if TYPE_CHECKING:
    from pathlib import Path

    from lmab.types import Example

SIZES = {"train": None, "validation": 200, "test": 800}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("digits")


def digits() -> Digits:
    return Digits(classes=10, metrics=["accuracy"])


def build(root: Path, *, augment: Shifts | None = None, vocab: int = 17, length: int = 64, **split: Any) -> Prepared:
    task = digits()
    return prepare_task(
        root,
        task=task,
        fingerprint=task.fingerprint(),
        split=Split(**SIZES | split),
        learner=Levels(vocab=vocab),
        length=length,
        last=False,
        augment=augment,
    )


def read(prepared: Prepared, part: str = "train") -> Example:
    rows = Rows(prepared.folders[part])
    return rows.take(np.arange(len(rows)), np.zeros(len(rows), dtype=np.int64))


# Rows


def test_rows_are_the_images_with_their_labels(root: Path) -> None:
    prepared, found = build(root), load_digits()
    assert {part: prepared.facts[part]["rows"] for part in PARTS} == {"train": 797, "validation": 200, "test": 800}
    seen = []
    for part in PARTS:
        example = read(prepared, part)
        assert (example.tokens == found.data[example.document]).all()
        assert (example.label == found.target[example.document]).all()
        assert (example.lengths == 64).all()
        assert (example.second == 64).all()
        assert prepared.facts[part]["cut"] == 0
        seen += example.document.tolist()
    assert sorted(seen) == list(range(1797))  # each once, on one side
    assert len(np.unique(found.data, axis=0)) == 1797  # so that no text stands on two


def test_facts_are_those_of_a_task(root: Path) -> None:
    facts = build(root).facts
    assert list(facts["labels"]["train"]) == list("0123456789")
    assert sum(facts["labels"]["test"].values()) == pytest.approx(1)
    assert facts["types"] == 17
    assert 0.05 < facts["majority"]["test"] < 0.15


def test_the_vocabulary_is_the_grey_levels_and_no_special_type(root: Path) -> None:
    prepared = build(root)
    words = prepared.vocabulary
    assert (words.size, words.pad, words.first, words.last, words.mask, words.unknown) == (17, 0, -1, -1, -1, -1)
    assert not words.special.any()
    assert not words.continues.any()
    again = Ready(path=str(prepared.tokenizer)).learn([])
    assert again.encode("0 16 3", add_special_tokens=False).ids == [0, 16, 3]


def test_what_is_held_out_does_not_depend_on_how_much_is_learnt(root: Path) -> None:
    smaller = build(root, train=100)
    assert read(smaller).tokens.shape == (100, 64)
    whole = build(root)
    for part in PARTS[1:]:
        assert read(smaller, part).document.tolist() == read(whole, part).document.tolist()
    assert set(read(smaller).document) < set(read(whole).document)
    other = build(root, seed=1)
    assert set(read(other, "test").document) != set(read(whole, "test").document)


def test_a_part_that_is_held_out_is_half_of_them_at_most() -> None:
    examples = list(digits().examples())
    parts = Counter(choose(examples, Split(train=None, validation=1, test=5000), Digits.held_out).values())
    assert parts == {"test": 898, "validation": 1, "train": 898}


def test_it_is_known_by_its_content() -> None:
    assert digits().fingerprint() == Digits(classes=10, metrics=["f1"]).fingerprint()
    assert len(digits().fingerprint()) == 16
    with pytest.raises(BadInput, match=r"task\.classes=9 does not fit this task, which has 10"):
        Digits(classes=9, metrics=["accuracy"])


def test_levels_and_lengths_that_do_not_fit_are_refused(root: Path) -> None:
    with pytest.raises(BadInput, match=r"tokenizer\.vocab=12 has no type for the grey level 16: give tokenizer\.vocab"):
        build(root, vocab=12)
    for length in (32, 66):
        with pytest.raises(BadInput, match=rf"segments\.length={length} does not fit images of 64 pixels"):
            build(root, length=length)


# Classes that are left out


@pytest.mark.parametrize("omit", [["3"], ["3", "7"], list("012345679")])
@pytest.mark.parametrize("share", [1.0, 0.125])
def test_training_loses_classes_and_nothing_else_does(root: Path, omit: list[str], share: float) -> None:
    whole, found = build(root, share=share), build(root, share=share, omit=omit)
    all_of, left = read(whole), read(found)
    kept = ~np.isin(all_of.label, [float(name) for name in omit])
    # The share is taken first, so that the rest of it stays what it was.
    assert left.document.tolist() == all_of.document[kept].tolist()
    assert 0 < len(left.document) < len(all_of.document)
    assert [found.folders[part] for part in PARTS[1:]] == [whole.folders[part] for part in PARTS[1:]]
    assert found.tokenizer == whole.tokenizer
    for name in omit:
        assert found.facts["labels"]["train"][name] == 0
        assert found.facts["labels"]["test"][name] > 0


def test_a_few_labels_lie_among_more(root: Path) -> None:
    few, more = (set(read(build(root, share=share)).document.tolist()) for share in (0.125, 0.5))
    assert (len(few), len(more)) == (100, 398)
    assert few < more


def test_what_cannot_be_left_out_is_said() -> None:
    assert omitted(["no", "yes"], []) == set()
    assert omitted(["no", "yes"], ["yes"]) == {1.0}
    with pytest.raises(BadInput, match=r"split\.omit=maybe is no class of this task: there is no, yes\."):
        omitted(["no", "yes"], ["maybe"])
    with pytest.raises(BadInput, match="leaves no class to learn"):
        omitted(["no", "yes"], ["yes", "no"])
    with pytest.raises(BadInput, match=r"split\.omit=1 is no class of this task: scores have no classes"):
        omitted([], ["1"])


# Copies that are shifted


def image(text: str) -> np.ndarray:
    return np.array(text.split(), dtype=int).reshape(8, 8)


def moved(flat: list[int], pixels: int) -> list[Stored]:
    return list(Shifts(pixels=pixels)([Stored(7, " ".join(map(str, flat)), None, 3.0)]))


@given(flat=st.lists(st.integers(0, 16), min_size=64, max_size=64), pixels=st.integers(1, 3))
def test_copies_are_the_image_moved_with_black_coming_in(flat: list[int], pixels: int) -> None:
    found = moved(flat, pixels)
    assert len(found) == (2 * pixels + 1) ** 2
    assert {(example.number, example.pair, example.label) for example in found} == {(7, None, 3.0)}
    assert found[0].text == " ".join(map(str, flat))
    whole = np.reshape(flat, (8, 8))
    wanted = []
    for down in range(-pixels, pixels + 1):
        for right in range(-pixels, pixels + 1):
            copy = np.zeros((8, 8), dtype=int)
            for row in range(8):
                for column in range(8):
                    if 0 <= row - down < 8 and 0 <= column - right < 8:
                        copy[row, column] = whole[row - down, column - right]
            wanted.append(copy.tolist())
    assert sorted(image(example.text).tolist() for example in found) == sorted(wanted)


def test_training_holds_the_copies_of_what_is_left_and_held_out_parts_none(root: Path) -> None:
    plain = build(root, omit=["3"], share=0.5)
    found = build(root, omit=["3"], share=0.5, augment=Shifts(pixels=1))
    assert found.facts["train"]["rows"] == 9 * plain.facts["train"]["rows"]
    assert [found.folders[part] for part in PARTS[1:]] == [plain.folders[part] for part in PARTS[1:]]
    before, after = read(plain), read(found)
    assert after.document.tolist() == np.repeat(before.document, 9).tolist()
    assert (after.tokens[::9] == before.tokens).all()
    assert found.facts["labels"] == plain.facts["labels"]
    assert (
        build(root, augment=Shifts(pixels=2)).folders["train"] != build(root, augment=Shifts(pixels=1)).folders["train"]
    )
    # A copy is nobody's image: what is tested is not learnt from in another place either.
    held = {tuple(row) for part in PARTS[1:] for row in read(found, part).tokens.tolist()}
    assert not held & {tuple(row) for row in after.tokens.tolist()}


def test_pixels_that_move_nothing_or_everything_are_refused() -> None:
    with pytest.raises(BadInput, match=r"augment\.pixels=0 moves nothing: give at least 1"):
        Shifts(pixels=0)
    with pytest.raises(BadInput, match=r"augment\.pixels=8 moves an image of 8 x 8 pixels out of sight: give .*=7"):
        moved([0] * 64, 8)
    assert len(moved([1] * 64, 7)) == 15**2


# Text


def test_a_task_of_texts_leaves_classes_out_too(tmp_path: Path, reviews: list[str]) -> None:
    class Halves(Digits):
        """Reviews under the names of two digits."""

        @property
        def names(self) -> list[str]:
            return ["even", "odd"]

        def examples(self):
            for number, review in enumerate(reviews):
                yield Labelled(None, (review,), float(number % 2))

    for omit, labels in (([], {0.0, 1.0}), (["odd"], {0.0})):
        found = prepare_task(
            tmp_path,
            task=Halves(classes=2, metrics=["accuracy"]),
            fingerprint="reviews",
            split=Split(train=None, validation=10, test=10, omit=omit),
            learner=WordPiece(vocab=400, alphabet=80),
            length=24,
            last=False,
        )
        assert set(read(found).label) == labels
        assert set(read(found, "test").label) == {0.0, 1.0}
