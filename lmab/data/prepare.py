"""Corpus to rows on disk: split, sentences, tokenizer, segments, each built once and kept by its fingerprint.

    <store>/data/<key>/sentences   train.arrow validation.arrow test.arrow: document, sentence; train.npy: the
                                   training documents in the order in which a smaller share takes them
    <store>/data/<key>/tokenizer   tokenizer.json, from the training split alone
    <store>/data/<key>/rows        one Arrow file, memory-mapped and shared by every run

The split comes first, by document, before anything is learnt.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
from datasets import Dataset, Features, List, Value
from datasets.arrow_writer import ArrowWriter
from sentencex import segment  # pyright: ignore[reportAttributeAccessIssue]  (compiled, without stubs)
from tokenizers import Tokenizer

from lmab.data import cache
from lmab.data.streams import Streams
from lmab.data.tokenizer import vocabulary
from lmab.types import BadInput

if TYPE_CHECKING:
    from collections.abc import Container, Iterator
    from pathlib import Path

    from lmab.data.corpus import Corpus
    from lmab.data.segments import Segments
    from lmab.data.tokenizer import Learner
    from lmab.types import Vocabulary

PARTS = ("train", "validation", "test")
# Part of every key: raise it when the same settings would make other files.
_VERSION = 4
_SENTENCE = Features({"document": Value("int32"), "sentence": Value("string")})


@dataclass(frozen=True, kw_only=True)
class Split:
    """Which document serves for what: a function of its text, so the same text never stands on two sides and
    a smaller training part lies inside a larger one.

    train, validation, test: documents at most; null takes all there are. A held-out part never takes more
    than a tenth of the corpus (but at least one document). Exact duplicates count once.
    share: of the training documents of which rows are made. The tokenizer is learnt from all of them, so that runs
    on more and on less text have one vocabulary.
    """

    train: int | None
    validation: int
    test: int
    share: float = 1.0
    language: str = "en"  # of the sentence splitter
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("train", 1), ("validation", 1), ("test", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise BadInput(f"split.{name}={value} splits nothing: give at least {least}.")
        if not 0 < self.share <= 1:
            raise BadInput(f"split.share={self.share} is a share: give a number above 0 and up to 1.")

    def choose(self, texts: Iterator[str]) -> dict[int, str]:
        """Map a document's number in the corpus to its part, those of a part in the order in which a smaller one
        takes them. BadInput: fewer than three documents."""
        key = self.seed.to_bytes(8, "little")
        ranks: dict[bytes, int] = {}
        for number, text in enumerate(texts):
            digest = hashlib.blake2b(text.encode(), digest_size=12, key=key).digest()
            ranks.setdefault(digest, number)
        order = [ranks[digest] for digest in sorted(ranks)]
        if len(order) < 3:
            raise BadInput(
                f"The corpus holds {len(order)} different documents, and training, validation and test need "
                f"at least one each: give at least 3 (in a .txt file blank lines part them)."
            )
        most = max(1, len(order) // 10)
        test, validation = min(self.test, most), min(self.validation, most)
        held = test + validation
        last = None if self.train is None else held + self.train
        return (
            dict.fromkeys(order[:test], "test")
            | dict.fromkeys(order[test:held], "validation")
            | dict.fromkeys(order[held:last], "train")
        )


def _sentences(corpus: Corpus, split: Split, folder: Path) -> None:
    parts = split.choose(corpus.documents())
    writers = {part: ArrowWriter(path=str(folder / f"{part}.arrow"), features=_SENTENCE) for part in PARTS}
    for number, text in enumerate(corpus.documents()):
        if number in parts:
            for sentence in segment(split.language, text):
                if stripped := sentence.strip():
                    writers[parts[number]].write({"document": number, "sentence": stripped})
    for writer in writers.values():
        writer.finalize()
    np.save(folder / "train.npy", np.array([number for number, part in parts.items() if part == "train"]))


def _share(source: Path, share: float) -> set[int]:
    """The numbers of the first training documents, at least one."""
    order = np.load(source / "train.npy")
    return set(order[: max(1, round(share * len(order)))].tolist())


def _documents(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The documents of a part in the order of the file, each with its sentences."""
    pairs = (
        (int(number), str(sentence))
        for batch in Dataset.from_file(str(path)).data.table.to_batches()
        for number, sentence in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    )
    for number, group in itertools.groupby(pairs, key=lambda pair: pair[0]):
        yield number, [sentence for _, sentence in group]


def _rows(
    tokenizer: Tokenizer,
    words: Vocabulary,
    segments: Segments,
    source: Path,
    folder: Path,
    chosen: Container[int] | None,
) -> None:
    """Write the rows of a part. chosen: numbers of the documents that are read; None for all."""
    columns = {
        # Padded on disk to one length, so that memory is mapped as a matrix.
        "tokens": List(Value("int32"), length=segments.length),
        "length": Value("int32"),
        "second": Value("int32"),
        "label": Value("float64"),
        "document": Value("int32"),
    }
    if segments.contiguous:
        columns["past"] = Value("int64")

    def numbered() -> Iterator[tuple[int, list[list[int]]]]:
        for number, sentences in _documents(source):
            if chosen is None or number in chosen:
                encoded = tokenizer.encode_batch(sentences, add_special_tokens=False)
                yield number, [e.ids for e in encoded]

    counts = np.zeros(words.size, dtype=np.int64)
    writer = ArrowWriter(path=str(folder / "rows.arrow"), features=Features(columns), writer_batch_size=10_000)
    for row in segments.rows(numbered(), words):
        counts += np.bincount(row.tokens, minlength=words.size)
        missing = segments.length - len(row.tokens)
        stored = {
            "tokens": row.tokens + [words.pad] * missing,
            "length": len(row.tokens),
            "second": row.second,
            "label": math.nan if row.label is None else row.label,
            "document": row.document,
        }
        writer.write(stored | {"past": row.past} if segments.contiguous else stored)
    written, _ = writer.finalize()
    if not written:
        raise BadInput(
            f"The corpus left no rows for {source.stem}: its documents hold no words, or too few for one row of "
            f"{type(segments).__name__}."
        )
    counts[words.special] = 0
    facts = {"rows": written, "tokens": int(counts.sum()), "counts": counts.tolist()}
    (folder / "facts.json").write_text(json.dumps(facts))


@dataclass(frozen=True)
class Prepared:
    """Where the rows of a corpus lie, and what is known of them."""

    folders: dict[str, Path]  # part -> folder of its rows
    tokenizer: Path
    vocabulary: Vocabulary
    counts: dict[str, np.ndarray]  # part -> [V] how often each type stands there, special ones left out
    facts: dict[str, Any]

    def unigram_nats(self, part: str = "test") -> float:
        """Cross entropy of a part under the training split's unigram distribution (add-one), in nats a token:
        the plateau on which a masked LM first sits."""
        train, held = self.counts["train"] + ~self.vocabulary.special, self.counts[part]
        with np.errstate(divide="ignore"):
            nats = -np.log(train / train.sum())
        return float((held * np.where(held > 0, nats, 0.0)).sum() / held.sum())


def _settings(thing: Any) -> list[Any]:
    return [type(thing).__name__, asdict(thing)]


def prepare(
    root: Path,
    *,
    corpus: Corpus,
    fingerprint: str,
    split: Split,
    learner: Learner,
    segments: Segments,
    held_out: Segments,
) -> Prepared:
    """Build what is missing below `root` and return where everything lies.

    fingerprint: of the corpus. segments: of the training rows; held_out: of validation and test.
    BadInput: a corpus or a vocabulary that cannot work, held-out rows that belong to no one document.
    """
    if isinstance(held_out, Streams) and held_out.cross:
        raise BadInput(
            "evaluation.segments.cross=true joins documents to one stream, and held-out scores are kept by document: "
            "give evaluation.segments.cross=false."
        )
    stage = cache.key(_VERSION, fingerprint, _settings(replace(split, share=1.0)), version("sentencex"))
    source = cache.build(root / stage / "sentences", lambda draft: _sentences(corpus, split, draft))

    stage = cache.key(stage, _settings(learner), version("tokenizers"))

    def learn(draft: Path) -> None:
        text = (s for _, sentences in _documents(source / "train.arrow") for s in sentences)
        learner.learn(text).save(str(draft / "tokenizer.json"))

    path = cache.build(root / stage / "tokenizer", learn) / "tokenizer.json"
    tokenizer = cache.readable(path.parent, lambda: Tokenizer.from_file(str(path)))
    tokenizer.encode_special_tokens = True  # a text that says [MASK] is text
    words = vocabulary(tokenizer, learner.vocab)

    folders: dict[str, Path] = {}
    counts: dict[str, np.ndarray] = {}
    facts: dict[str, Any] = {"types": tokenizer.get_vocab_size()}
    for part in PARTS:
        format_, share = (segments, split.share) if part == "train" else (held_out, 1.0)
        name = cache.key(stage, part, _settings(format_), share)

        def cut(draft: Path, part: str = part, format_: Segments = format_, share: float = share) -> None:
            chosen = None if share == 1 else _share(source, share)
            _rows(tokenizer, words, format_, source / f"{part}.arrow", draft, chosen)

        folders[part] = cache.build(root / name / "rows", cut)
        known = json.loads((folders[part] / "facts.json").read_text())
        counts[part] = np.array(known.pop("counts"))
        facts[part] = known
    prepared = Prepared(folders, path, words, counts, facts)
    facts["unigram_nats"] = {part: prepared.unigram_nats(part) for part in ("validation", "test")}
    return prepared
