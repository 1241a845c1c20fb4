"""Files to values: each format read as a stream, and words for whatever is wrong with it.

A reader gives (where, value): the place in words for a user, and what stands there, text or not.
"""

from __future__ import annotations

import codecs
import csv
import difflib
import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING

from lmab.types import BadInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    Rows = Iterable[tuple[str, object]]  # where a value stands, in words for a user, and the value

SUFFIXES = (".txt", ".jsonl", ".csv", ".parquet")
BATCH = 256  # rows held at once: few, since one of them may be a book


def texts(rows: Rows, whole: str, largest: int | None = None) -> Iterator[str]:
    """The texts of the rows, each seen to be one; null and blank ones are none."""
    some = False
    for where, value in rows:
        if said := text(where, value, largest):
            some = True
            yield said
    if not some:
        raise BadInput(f"{whole} holds no document")


def text(where: str, value: object, largest: int | None = None) -> str:
    """A value as text, stripped; null is an empty one. BadInput: it is something else, or longer than `largest`."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise BadInput(f"{where} is not text but {type(value).__name__}")
    if largest is not None and len(value) > largest:
        raise _too_long(where, largest)
    return value.strip()


def read(path: Path, column: str, largest: int, *, whole: bool) -> Rows:
    """The values of a file by its suffix, one of SUFFIXES. whole: a .txt file is one document.

    BadInput: a file that is not what its suffix says, or more than `largest` characters in one value.
    """
    match path.suffix.lower():
        case ".txt":
            yield from _txt(path, largest, whole=whole)
        case ".jsonl":
            yield from _jsonl(path, column, largest)
        case ".csv":
            yield from _csv(path, column, largest)
        case ".parquet":
            yield from _parquet(path, column)


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
        one_of(column, row, f"{where} has no column")
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
    one_of(column, header, f"{path} has no column")
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
            one_of(column, file.schema_arrow.names, f"{path} has no column")
            batches = file.iter_batches(batch_size=BATCH, columns=[column])
            values = itertools.chain.from_iterable(batch.column(0).to_pylist() for batch in batches)
            for row, value in enumerate(values, start=1):
                yield f"{path}, row {row}, column {column!r}", value
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        raise BadInput(f"{path} is not readable as Parquet: {phrase(error)}") from None


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


def one_of(word: str, known: Iterable[str], complaint: str) -> None:
    """Refuse a word that is not known: the complaint, the word, and what would do."""
    if word in (known := list(known)):
        return
    near = difflib.get_close_matches(word, known, n=1)
    listed = ", ".join(map(repr, known[:9])) + ", ..." * (len(known) > 9)
    rest = f"the nearest is {near[0]!r} among {listed}" if near else f"there is only {listed or 'nothing'}"
    raise BadInput(f"{complaint} {word!r}; {rest}")


def phrase(error: Exception) -> str:
    """What another library says, cut to fit into a sentence."""
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".").replace(". ", ", ")


def existing(path: str | Path) -> Path:
    """The path with its ~ resolved, or a refusal that names the first part missing and its likeliest name."""
    path = Path(path).expanduser()
    if path.exists():
        return path
    missing = next(p for p in (path, *path.parents) if p.parent.exists())
    beside = [p.name for p in missing.parent.iterdir()] if missing.parent.is_dir() else []
    near = difflib.get_close_matches(missing.name, beside, n=1)
    found = f"the nearest is {near[0]!r}" if near else "there is nothing of a similar name"
    raise BadInput(f"{path} does not exist; instead of {missing.name!r} in {missing.parent}, {found}")
