"""Real text, small: sixty film reviews, prepared once for all tests."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING

import pytest
import sentencex

from lmab.data.corpus import Files, Movies
from lmab.data.prepare import Prepared, Split, prepare
from lmab.data.segments import DocSentences, FullSentences
from lmab.data.tokenizer import WordPiece

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LENGTH = 32  # of a row
VOCAB = 600


@pytest.fixture(scope="session")
def reviews() -> list[str]:
    """Sixty reviews from IMDB."""
    return list(itertools.islice(Movies(source="imdb").documents(), 60))


@pytest.fixture(scope="session")
def sentences(reviews: list[str]) -> list[str]:
    return [sentence for review in reviews for sentence in sentencex.segment("en", review)]


@pytest.fixture(scope="session")
def corpus(reviews: list[str], tmp_path_factory: pytest.TempPathFactory) -> Files:
    """The reviews as a file of the user's own."""
    path = tmp_path_factory.mktemp("corpus") / "reviews.jsonl"
    path.write_text("".join(json.dumps({"text": review}) + "\n" for review in reviews), encoding="utf-8")
    return Files(path=path)


@pytest.fixture(scope="session")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="session")
def prepared(corpus: Files, data_root: Path) -> Callable[..., Prepared]:
    """The reviews as rows: cut, so that no training row is padded, or whole sentences, so that most are."""

    def make(*, cut: bool = True) -> Prepared:
        return prepare(
            data_root,
            corpus=corpus,
            fingerprint=corpus.fingerprint(),
            split=Split(train=None, validation=6, test=6),
            learner=WordPiece(vocab=VOCAB, alphabet=100),
            segments=FullSentences(length=LENGTH, cut=cut),
            held_out=DocSentences(length=LENGTH, cut=cut),
        )

    return make
