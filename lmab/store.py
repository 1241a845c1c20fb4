"""Where runs are kept: their names, their records, and who may write them.

runs/<signature>/
    record.json       everything that is known of the run; written whole or not at all
    config.yaml       the resolved configuration
    .hydra/           config, overrides and hydra's own part, as Hydra's users expect
    run.log           what the run said
    traceback.txt     beside a failed run
    checkpoints/      step-000500.ckpt, best.ckpt
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import logging
import math
import os
import re
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from filelock import FileLock, Timeout

from lmab.types import BadInput

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

log = logging.getLogger(__name__)

FORMAT = 1

# Keys that cannot change a result, and so stand outside the signature. This is the only list. (How a text is stored,
# and which of its columns is read, is named by the fingerprint too; those keys stay in, so the same text in two forms
# is two runs: work done twice, never a wrong result.)
OUTSIDE = (
    "store",  # where the records lie
    "name",  # what a person calls the run
    "sweep",  # which claim or multirun asked for it, and for which arm
    "tracker",  # who else is told
    "display",  # what is shown meanwhile
    "budget",  # its values are interpolated to where they act
    "corpus.path",  # the text is named by its content: corpus.fingerprint
    "corpus.name",
    "task.path",
    "task.name",
    "tokenizer.path",  # named by tokenizer.fingerprint
    "start.config",  # named by start.run
    "start.checkpoint",  # named by start.fingerprint
    "teacher.config",  # named by teacher.run
    "teacher.checkpoint",  # named by teacher.fingerprint
    "trainer.workers",  # batches are a function of the step
    "trainer.checkpoint_every",  # a resumed run equals an uninterrupted one
)

State = Literal["running", "done", "failed", "diverged", "pruned"]
FINAL: tuple[State, ...] = ("done", "diverged")  # one that was pruned goes on where it is asked for by itself


def signature(config: Mapping[str, Any]) -> str:
    """The name of a run: 16 hex digits of the hash of its resolved configuration less `OUTSIDE`."""
    config = copy.deepcopy(dict(config))
    for path in OUTSIDE:
        *above, last = path.split(".")
        node: Any = config
        for key in above:
            node = node.get(key) if isinstance(node, dict) else None
        if isinstance(node, dict):
            node.pop(last, None)
    text = json.dumps(config, sort_keys=True, ensure_ascii=False)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def splitter(config: Mapping[str, Any]) -> Any:
    """What tells how a run splits text: what its tokenizer was learnt from, or the checkpoint that it came with."""
    while source := config.get("start") or config.get("teacher"):
        if "run" not in source:
            return source["fingerprint"]
        config = source["config"]
    split = {key: value for key, value in config["split"].items() if key not in ("share", "omit")}
    source = config["task"] or config["corpus"]
    return [config["tokenizer"], source.get("fingerprint"), split]


@dataclass(kw_only=True)
class Record:
    """What is known of a run. Plain values only: it travels between processes and outlives the code."""

    signature: str
    state: State
    config: dict[str, Any]  # resolved, nested, typed
    overrides: list[str] = field(default_factory=list)
    seed: int = 0
    step: int = 0
    steps: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    curves: dict[str, list[tuple[int, float]]] = field(default_factory=dict)  # metric -> (step, value)
    # metric -> its mean for each held-out document, with the weights that make the metric of them
    scores: dict[str, list[float]] = field(default_factory=dict)
    weights: dict[str, list[float]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)  # of the data and the noise: rates, overlap, sizes
    cost: dict[str, float] = field(default_factory=dict)  # seconds, tokens, parameters, FLOPs
    versions: dict[str, str] = field(default_factory=dict)
    code: dict[str, Any] = field(default_factory=dict)  # git revision, and whether the tree was dirty
    message: str = ""  # why it failed or diverged, in a sentence
    format: int = FORMAT

    def value(self, key: str) -> Any:
        """The configuration's value at a dotted key, None where there is none."""
        node: Any = self.config
        for part in key.split("."):
            node = node.get(part) if isinstance(node, dict) else None
        return node


def _plain(value: Any) -> Any:
    """JSON has no NaN: what is not finite becomes null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value


def _revived(found: dict[str, Any]) -> Record:
    """The record that a JSON object holds; null becomes NaN again."""
    known = {f.name for f in fields(Record)}
    record = Record(**{k: v for k, v in found.items() if k in known})
    record.curves = {
        k: [(int(s), math.nan if v is None else v) for s, v in points] for k, points in record.curves.items()
    }
    record.metrics = {k: math.nan if v is None else v for k, v in record.metrics.items()}
    record.scores = {k: [math.nan if v is None else v for v in row] for k, row in record.scores.items()}
    return record


def write_whole(path: Path, text: str) -> None:
    """Replace a file in one step: a reader finds the old text or the new, never half of it.

    OSError: the disk is full or may not be written; the old text is then still there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


class Store:
    """A folder of runs. BadInput: another version of lmab wrote it."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        marker = self.root / "store.json"
        if not marker.exists():
            return
        try:
            written = json.loads(marker.read_text(encoding="utf-8"))["format"]
        except (ValueError, KeyError, TypeError):
            written = "unreadable"
        if written != FORMAT:
            raise BadInput(
                f"The store {self.root} has format {written} and this lmab reads format {FORMAT}: "
                f"choose another folder with store=..., or use the lmab that wrote it."
            )

    def folder(self, name: str) -> Path:
        return self.root / name

    def create(self, name: str) -> Path:
        """Make the folder of a run."""
        folder = self.folder(name)
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        if not (self.root / "store.json").exists():
            write_whole(self.root / "store.json", json.dumps({"format": FORMAT}))
        return folder

    def write(self, record: Record) -> None:
        text = json.dumps(_plain(asdict(record)), ensure_ascii=False, allow_nan=False)
        write_whole(self.folder(record.signature) / "record.json", text)

    def find(self, name: str) -> Record | None:
        """The record of a run, None where there is none or it cannot be read (which is said)."""
        path = self.folder(name) / "record.json"
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            if found["format"] != FORMAT:
                raise BadInput(
                    f"{path} has format {found['format']} and this lmab reads format {FORMAT}: "
                    f"choose another folder with store=..., or use the lmab that wrote it."
                )
            return _revived(found)
        except FileNotFoundError:
            return None
        except BadInput:
            raise
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            log.warning("The record %s cannot be read (%r): the run is taken up again.", path, error)
            return None

    def __iter__(self) -> Iterator[Record]:
        """Every readable record, the oldest first."""
        paths = self.root.glob("*/record.json")
        named = [p for p in paths if re.fullmatch(r"[0-9a-f]{16}", p.parent.name)]
        for path in sorted(named, key=lambda p: (p.stat().st_mtime, p.parent.name)):
            if record := self.find(path.parent.name):
                yield record

    def select(self, start: str) -> Record:
        """The one record whose signature begins so. BadInput: there is none, or more than one."""
        hits = [r for r in self if r.signature.startswith(start)]
        if len(hits) == 1:
            return hits[0]
        if hits:
            names = ", ".join(r.signature for r in hits[:4])
            raise BadInput(f"{start!r} begins the names of {len(hits)} runs ({names}): give more digits.")
        raise BadInput(f"No run in {self.root} begins with {start!r}: `lmab list` shows those there are.")

    def lock(self, name: str) -> FileLock:
        """Held by the process that works on a run; it falls away with the process, however that ends."""
        return FileLock(self.create(name) / "lock")

    def alive(self, name: str) -> bool:
        """Is a process at work on this run?"""
        if not (self.folder(name) / "lock").exists():
            return False
        lock = FileLock(self.folder(name) / "lock")
        with contextlib.suppress(Timeout):
            lock.acquire(timeout=0)
            lock.release()
            return False
        return True
