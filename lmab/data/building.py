"""What every preparation ends in: a tokenizer, rows on disk, and what is known of them.

<store>/data/<key>/tokenizer   tokenizer.json, from the training split alone, or one that was ready
<store>/data/<key>/rows        one Arrow file, memory-mapped and shared by every run
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from datasets import Features, List, Value
from datasets.arrow_writer import ArrowWriter
from tokenizers import Tokenizer

from lmab.data import cache
from lmab.data.tokenizer import vocabulary
from lmab.types import BadInput

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from lmab.data.segments import Row
    from lmab.data.tokenizer import Learner
    from lmab.types import Vocabulary

PARTS = ("train", "validation", "test")
# Part of every key: raise it when the same settings would make other files.
VERSION = 5


@dataclass(frozen=True)
class Prepared:
    """Where the rows of a corpus or a task lie, and what is known of them."""

    folders: dict[str, Path]  # part -> folder of its rows
    tokenizer: Path
    vocabulary: Vocabulary
    counts: dict[str, np.ndarray]  # part -> [V] how often each type stands there, special ones left out
    facts: dict[str, Any]
    bytes: dict[str, dict[int, int]]  # part -> document -> bytes of its text; empty for a task

    def likely(self) -> np.ndarray:
        """[V] the training split's unigram distribution (add-one), 0 for special types."""
        train = self.counts["train"] + ~self.vocabulary.special
        return train / train.sum()

    def unigram_nats(self, part: str = "test") -> float:
        """Cross entropy of a part under the training split's unigram distribution (add-one), in nats a token:
        the plateau on which a masked LM first sits."""
        held = self.counts[part]
        with np.errstate(divide="ignore"):
            nats = -np.log(self.likely())
        return float((held * np.where(held > 0, nats, 0.0)).sum() / held.sum())


class Tokenized(NamedTuple):
    """A tokenizer that is built, and the key of what is made with it."""

    stage: str
    path: Path
    tokenizer: Tokenizer
    vocabulary: Vocabulary


def settings(thing: Any) -> list[Any]:
    """What the work of a dataclass depends on, as plain values: of a file what stands in it, not where it lies."""
    knobs = asdict(thing)
    if hasattr(thing, "fingerprint"):
        knobs["path"] = thing.fingerprint()
    return [type(thing).__name__, knobs]


def tokenized(root: Path, stage: str, learner: Learner, text: Iterable[str]) -> Tokenized:
    """The tokenizer that `learner` makes of the training text, built below `root` if it is not there; only then is the
    text read.

    stage: the key of that text. BadInput: a vocabulary that cannot work.
    """
    stage = cache.key(stage, settings(learner), version("tokenizers"))
    folder = cache.build(
        root / stage / "tokenizer", lambda draft: learner.learn(text).save(str(draft / "tokenizer.json"))
    )
    path = folder / "tokenizer.json"
    tokenizer = cache.readable(folder, lambda: Tokenizer.from_file(str(path)))
    tokenizer.encode_special_tokens = True  # a text that says [MASK] is text
    return Tokenized(stage, path, tokenizer, vocabulary(tokenizer, learner.vocab))


def taken(source: Path, share: float) -> set[int]:
    """The numbers of the first training documents, those of train.npy, at least one."""
    order = np.load(source / "train.npy")
    return set(order[: max(1, round(share * len(order)))].tolist())


def write(
    rows: Iterable[Row], words: Vocabulary, folder: Path, *, length: int, streams: bool, nothing: str
) -> dict[str, Any]:
    """Write rows.arrow, rows of at most `length` tokens, and return what is known of it.

    streams: they belong to streams of text. nothing: what is said where there are none.
    """
    columns = {
        # Padded on disk to one length, so that memory is mapped as a matrix.
        "tokens": List(Value("int32"), length=length),
        "length": Value("int32"),
        "second": Value("int32"),
        "label": Value("float64"),
        "document": Value("int32"),
    }
    if streams:
        columns["past"] = Value("int64")
    counts = np.zeros(words.size, dtype=np.int64)
    writer = ArrowWriter(path=str(folder / "rows.arrow"), features=Features(columns), writer_batch_size=10_000)
    for row in rows:
        counts += np.bincount(row.tokens, minlength=words.size)
        stored = {
            "tokens": row.tokens + [words.pad] * (length - len(row.tokens)),
            "length": len(row.tokens),
            "second": row.second,
            "label": math.nan if row.label is None else row.label,
            "document": row.document,
        }
        writer.write(stored | {"past": row.past} if streams else stored)
    written, _ = writer.finalize()
    counts[words.special] = 0
    if not written:
        raise BadInput(nothing)
    return {"rows": written, "tokens": int(counts.sum()), "counts": counts.tolist()}


def gathered(folders: dict[str, Path], made: Tokenized) -> Prepared:
    """The rows of all parts, with what their facts.json say."""
    facts: dict[str, Any] = {"types": made.tokenizer.get_vocab_size()}
    counts: dict[str, np.ndarray] = {}
    read: dict[str, dict[int, int]] = {}
    for part, folder in folders.items():
        known = json.loads((folder / "facts.json").read_text())
        counts[part] = np.array(known.pop("counts"))
        read[part] = {int(number): size for number, size in known.pop("bytes", {}).items()}
        facts[part] = known
    prepared = Prepared(folders, made.path, made.vocabulary, counts, facts, read)
    facts["unigram_nats"] = {part: prepared.unigram_nats(part) for part in ("validation", "test")}
    return prepared
