"""Corpus to rows on disk: split, sentences, tokenizer, segments, each built once and kept by its fingerprint.

    <store>/data/<key>/sentences   train.arrow validation.arrow test.arrow: document, sentence; train.npy: the
                                   training documents in the order in which a smaller share takes them
    <store>/data/<key>/tokenizer   and
    <store>/data/<key>/rows        as building.py says

The split comes first, by document, before anything is learnt.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated

import numpy as np
from datasets import Dataset, Features, Value
from datasets.arrow_writer import ArrowWriter
from pydantic import Field
from sentencex import segment  # pyright: ignore[reportAttributeAccessIssue]  (compiled, without stubs)

from lmab.data import cache
from lmab.data.building import PARTS, VERSION, Prepared, gathered, settings, taken, tokenized, write
from lmab.data.streams import Streams
from lmab.types import BadInput

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lmab.data.building import Tokenized
    from lmab.data.corpus import Corpus
    from lmab.data.segments import Segments
    from lmab.data.tokenizer import Learner

Name = Annotated[str, Field(coerce_numbers_to_str=True)]  # a class may be called 3
_SENTENCE = Features({"document": Value("int32"), "sentence": Value("string")})


@dataclass(frozen=True, kw_only=True)
class Split:
    """Which document serves for what: a function of its text, so the same text never stands on two sides and
    a smaller training part lies inside a larger one.

    train, validation, test: documents at most; null takes all there are. A held-out part never takes more
    than a tenth of the corpus (but at least one document). Exact duplicates count once.
    share: of the training documents of which rows are made. The tokenizer is learnt from all of them, so that runs
    on more and on less text have one vocabulary. omit: classes of a task, by name, of which that share loses every
    example; held-out parts keep theirs (Hinton et al. 2015, section 3).
    """

    train: int | None
    validation: int
    test: int
    share: float = 1.0
    omit: list[Name] = field(default_factory=list)
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


def _documents(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The documents of a part in the order of the file, each with its sentences."""
    pairs = (
        (int(number), str(sentence))
        for batch in Dataset.from_file(str(path)).data.table.to_batches()
        for number, sentence in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    )
    for number, group in itertools.groupby(pairs, key=lambda pair: pair[0]):
        yield number, [sentence for _, sentence in group]


def _rows(made: Tokenized, segments: Segments, source: Path, folder: Path, share: float) -> None:
    """Write the rows of a part. source: its sentences. share: of its documents, for the training part."""
    chosen = None if share == 1 else taken(source.parent, share)
    read: dict[int, int] = {}  # document -> bytes of its text

    def numbered() -> Iterator[tuple[int, list[list[int]]]]:
        for number, sentences in _documents(source):
            if chosen is None or number in chosen:
                encoded = made.tokenizer.encode_batch(sentences, add_special_tokens=False)
                read[number] = len(" ".join(sentences).encode())
                yield number, [e.ids for e in encoded]

    facts = write(
        segments.rows(numbered(), made.vocabulary),
        made.vocabulary,
        folder,
        length=segments.length,
        streams=segments.contiguous,
        nothing=f"The corpus left no rows for {source.stem}: its documents hold no words, or too few for one row of "
        f"{type(segments).__name__}.",
    )
    (folder / "facts.json").write_text(json.dumps(facts | {"bytes": read}))


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
    stage = cache.key(VERSION, fingerprint, settings(replace(split, share=1.0)), version("sentencex"))
    source = cache.build(root / stage / "sentences", lambda draft: _sentences(corpus, split, draft))
    text = (sentence for _, sentences in _documents(source / "train.arrow") for sentence in sentences)
    made = tokenized(root, stage, learner, text)

    folders: dict[str, Path] = {}
    for part in PARTS:
        format_, share = (segments, split.share) if part == "train" else (held_out, 1.0)

        def cut(draft: Path, part: str = part, format_: Segments = format_, share: float = share) -> None:
            _rows(made, format_, source / f"{part}.arrow", draft, share)

        name = cache.key(made.stage, part, settings(format_), share)
        folders[part] = cache.build(root / name / "rows", cut)
    return gathered(folders, made)
