"""Real text, small: sixty film reviews, prepared once for all tests."""

from __future__ import annotations

import functools
import itertools
import json
import os
import runpy
import struct
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sentencex
import torch
from hydra import compose, initialize_config_dir
from hypothesis import settings
from wandb.proto import wandb_internal_pb2

from lmab.__main__ import main
from lmab.data.corpus import Files, Movies
from lmab.data.prepare import Prepared, Split, prepare
from lmab.data.segments import DocSentences, FullSentences
from lmab.data.tokenizer import WordPiece

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from omegaconf import DictConfig

# One thread a process: two test processes with two threads each would wait for each other at every step.
os.environ["OMP_NUM_THREADS"] = "1"
torch.set_num_threads(1)

# No test depends on a clock, and the first example of a property may wait for a library to load.
settings.register_profile("lmab", deadline=None)
settings.load_profile("lmab")

ROOT = Path(__file__).parents[1]

LENGTH = 32  # of a row
VOCAB = 600


@pytest.fixture(scope="session", autouse=True)
def movies_are_read_once() -> Iterator[None]:
    """Most tests prepare their text in a store of their own, and to read 25,000 reviews takes longer than a run."""
    read = Movies.labelled

    @functools.cache
    def kept(path: Path, corpus: Movies) -> list[tuple[str, int]]:
        return list(read(corpus))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Movies, "labelled", lambda corpus: iter(kept(corpus._path(), corpus)))
        yield


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


@pytest.fixture(scope="session")
def composed() -> Callable[..., DictConfig]:
    """A configuration as the command line composes it, at the smoke budget and without tracker or display."""

    def compose_overrides(*overrides: str) -> DictConfig:
        with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
            return compose("config", ["budget=smoke", "tracker=none", "display=false", *overrides])

    return compose_overrides


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of many tests: texts are prepared once, and teachers trained once."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="session")
def command() -> Callable[..., subprocess.CompletedProcess[str]]:
    """`python <line>` in the repository's root, as a user gives it."""

    def run_line(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False)

    return run_line


@pytest.fixture
def here(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`python run.py <words>` in this process, which saves importing everything anew."""

    def run_line(*words: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", [*words])
        capsys.readouterr()
        status = 0
        try:
            runpy.run_path(str(ROOT / words[0]), run_name="__main__")
        except SystemExit as leaving:
            status = int(leaving.code or 0)
        said = capsys.readouterr()
        return subprocess.CompletedProcess(words, status, said.out, said.err)

    return run_line


@pytest.fixture
def lmab(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    """`lmab <line>` in this process, which is quicker: status, standard output, standard error."""

    def entered(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["lmab", *words])
        status = 0
        try:
            main()
        except SystemExit as leaving:
            status = int(leaving.code or 0)
        said = capsys.readouterr()
        return status, said.out, said.err

    return entered


_BLOCK = 32768  # bytes


@pytest.fixture
def told_to_wandb() -> Callable[[Path], Iterator[Any]]:
    """The records that W&B's client keeps of the one offline run in a run's folder."""
    return _told


def _told(folder: Path) -> Iterator[Any]:
    """A file of theirs is a header of seven bytes, then LevelDB's log format in blocks of 32 KiB."""
    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    data = path.read_bytes()
    assert data[:4] == b":W&B"
    place, parts = 7, b""
    while place + 7 <= len(data):
        if _BLOCK - place % _BLOCK < 7:  # the rest of a block is too short for a header
            place += _BLOCK - place % _BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + 7])
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last of several
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            yield record
            parts = b""
