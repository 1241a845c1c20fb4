"""Labelled texts from tables: a file of your own, or a data set of the hub such as those of GLUE."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lmab.data import corpus
from lmab.data.labelled import PARTS, Judged, Labelled
from lmab.data.readers import BATCH, SUFFIXES, existing, one_of, read, text
from lmab.types import BadInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from lmab.data.labelled import Part

    Cells = list[tuple[str, object]]  # of a row: its texts, then its label, each with where it stands
    Table = Iterable[tuple[Part | None, Cells]]


@dataclass(frozen=True, kw_only=True)
class Files(Judged):
    """A .csv, .jsonl or .parquet file of your own: a row an example, without parts.

    text, text_pair, label: columns; text_pair null for single texts. Labels may be words or numbers: the classes are
    counted in the order of the alphabet, or of the numbers. With classes=1 they are scores.
    largest: characters in the longest text taken, as in corpus.Files.
    """

    path: str
    text: str
    text_pair: str | None
    label: str
    largest: int

    @cached_property
    def names(self) -> list[str]:
        return [] if self.classes == 1 else self.counted(_names(self._table()), self.path)

    def fingerprint(self) -> str:
        path = self._file()
        return corpus.digest(
            ("labelled", path.suffix.lower(), self.text, self.text_pair, self.label, self.classes), [path]
        )

    def examples(self) -> Iterator[Labelled]:
        return _examples(self._table(), self.classes, self.names, self.path, self.largest)

    def _file(self) -> Path:
        path = existing(self.path)
        if path.is_dir():
            raise BadInput(
                f"{path} is a folder, and task=files reads one file: task=hub task.name={path} reads a folder"
            )
        one_of(path.suffix.lower(), SUFFIXES[1:], f"{path} has no columns that could be read, unknown suffix")
        return path

    def _table(self) -> Table:
        path = self._file()
        columns = (
            read(path, column, self.largest, whole=False) for column in _chosen(self.text, self.text_pair, self.label)
        )
        for cells in zip(*columns, strict=True):
            yield None, list(cells)


@dataclass(frozen=True, kw_only=True)
class Hub(Judged):
    """A data set by its Hugging Face name, or a local folder, as in corpus.Hub.

    splits: part -> the data set's own name for it. A held-out part that is null is taken out of the training split.
    Of GLUE (Wang et al. 2018) the test labels are hidden: its validation split serves as test, and a share of its
    training split as validation.
    text, text_pair, label: columns, as in Files; classes that the data set names have its names and numbers.
    """

    name: str
    config: str | None
    revision: str | None
    splits: dict[str, str | None]
    text: str
    text_pair: str | None
    label: str

    def __post_init__(self) -> None:
        super().__post_init__()
        for part in self.splits:
            one_of(part, PARTS, "unknown task.splits")
        if self.splits.get("train") is None:
            raise BadInput("task.splits.train=null leaves nothing to learn from: give the name of a split")

    @cached_property
    def names(self) -> list[str]:
        if self.classes == 1:
            return []
        known = self._given_names(self._loaded()["train"])
        return self.counted(known or _names(self._table()), f"data set {self.name!r}")

    def fingerprint(self) -> str:
        parts = [(part, source.fingerprint()) for part, source in self._sources().items()]
        return corpus.digest(("labelled hub", parts, self.text_pair, self.label, self.classes), [])

    def examples(self) -> Iterator[Labelled]:
        return _examples(self._table(), self.classes, self.names, f"data set {self.name!r}")

    def _sources(self) -> dict[Part, corpus.Hub]:
        given: dict[Part, Any] = {part: self.splits.get(part) for part in PARTS}
        return {
            part: corpus.Hub(name=self.name, config=self.config, split=split, column=self.text, revision=self.revision)
            for part, split in given.items()
            if split is not None
        }

    def _loaded(self) -> dict[Part, Any]:
        found: dict[Part, Any] = {part: source.loaded()[0] for part, source in self._sources().items()}
        for rows in found.values():
            for column in _chosen(self.text_pair, self.label):
                one_of(column, rows.column_names, f"data set {self.name!r} has no column")
        return found

    def _given_names(self, rows: Any) -> list[str] | None:
        return None if self.classes == 1 else getattr(rows.features[self.label], "names", None)

    def _table(self) -> Table:
        columns = _chosen(self.text, self.text_pair, self.label)
        for part, rows in self._loaded().items():
            names = self._given_names(rows)
            batches = rows.with_format(None).select_columns(columns).iter(BATCH)
            values = (zip(*(batch[column] for column in columns), strict=True) for batch in batches)
            for row, cells in enumerate(itertools.chain.from_iterable(values), start=1):
                where = f"data set {self.name!r}, split {self.splits[part]!r}, row {row}, column"
                told = [(f"{where} {column!r}", cell) for column, cell in zip(columns, cells, strict=True)]
                yield part, told if names is None else [*told[:-1], _spelt(*told[-1], names)]


def _chosen(*columns: str | None) -> list[str]:
    return [column for column in columns if column is not None]


def _spelt(where: str, number: Any, names: list[str]) -> tuple[str, object]:
    """The label by its name, where the data set knows it by number."""
    if number is not None and not 0 <= number < len(names):
        raise BadInput(f"{where} is {number}, a hidden label: name a split in task.splits whose labels are public")
    return where, None if number is None else names[number]


def _examples(
    table: Table, classes: int, names: list[str], whole: str, largest: int | None = None
) -> Iterator[Labelled]:
    some = False
    for part, cells in table:
        said: Any = tuple(text(where, value, largest) for where, value in cells[:-1])
        if any(said):
            some = True
            yield Labelled(part, said, _score(*cells[-1]) if classes == 1 else _class(*cells[-1], names))
    if not some:
        raise BadInput(f"{whole} holds no example")


def _class(where: str, value: object, names: list[str]) -> float:
    name = _name(where, value)
    one_of(name, names, f"{where} holds an unknown class")
    return float(names.index(name))


def _names(table: Table) -> list[str]:
    """The classes of a table, in the order of the numbers if all of them are such, else of the alphabet."""
    found = {_name(*cells[-1]) for _, cells in table}
    numbers = {name: _number(name) for name in found}
    if None in numbers.values():
        return sorted(found)
    return sorted(found, key=lambda name: (numbers[name], name))


def _name(where: str, value: object) -> str:
    if value is None or value != value or not str(value).strip():
        raise BadInput(f"{where} holds no label")
    if not isinstance(value, str | int | float):
        raise BadInput(f"{where} is no label but {type(value).__name__}")
    return str(int(value) if isinstance(value, float) and value.is_integer() else value).strip()


def _score(where: str, value: object) -> float:
    number = _number(value)
    if number is None:
        raise BadInput(
            f"{where} is {value!r} and no number, as a score is: give task.classes=N for labels of N classes"
        )
    return number


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None
