"""Labelled texts to rows on disk: split, tokenizer, rows, each built once and kept by its fingerprint.

    <store>/data/<key>/examples    train.arrow validation.arrow test.arrow: number, text, pair, label; train.npy: the
                                   training examples in the order in which a smaller share takes them
    <store>/data/<key>/tokenizer   and
    <store>/data/<key>/rows        as of a corpus

Every example is a row and a document of its own, so that scores by document are scores by example.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from datasets import Dataset, Features, Value
from datasets.arrow_writer import ArrowWriter

from lmab.data import cache
from lmab.data.building import PARTS, VERSION, gathered, settings, taken, tokenized, write
from lmab.data.pairs import SPECIAL, kept
from lmab.data.segments import Row, roomy
from lmab.types import BadInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from tokenizers import Tokenizer

    from lmab.data.building import Prepared
    from lmab.data.labelled import Labelled, Task
    from lmab.data.prepare import Split
    from lmab.data.replace import Replacing
    from lmab.data.tokenizer import Learner
    from lmab.types import Vocabulary

_STORED = Features(
    {"number": Value("int32"), "text": Value("string"), "pair": Value("string"), "label": Value("float64")}
)
_BATCH = 1000  # examples that are tokenised together


class Stored(NamedTuple):
    """An example as it lies on disk."""

    number: int
    text: str
    pair: str | None
    label: float


class Augment(Protocol):
    """Makes more training examples of those there are: a frozen dataclass, whose fields are what can be ablated. What
    is made of an example has its number."""

    def __call__(self, examples: Iterable[Stored]) -> Iterator[Stored]: ...


def choose(examples: Iterable[Labelled], split: Split, held_out: float = 0.1) -> dict[int, str]:
    """Map an example's number to its part, those of a part in the order in which a smaller one takes them.

    A part that the source names is taken from it, whole up to the size in `split`. A held-out part that it does not
    name is taken out of the rest: by the hash of the text, as documents are, so that a text of a corpus stands on the
    same side in both; at most the share `held_out` of the rest. What is tested is never trained on, nor validated on:
    training loses every text of a held-out part, and holds exact duplicates once, the first. BadInput: too few for all
    parts.
    """
    key = split.seed.to_bytes(8, "little")
    named: dict[str, list[tuple[bytes, int]]] = {part: [] for part in PARTS}
    for number, example in enumerate(examples):
        # No byte of UTF-8 parts the texts, so that no two pairs are taken for one.
        content = b"\xff".join(text.encode() for text in example.texts)
        digest = hashlib.blake2b(content, digest_size=12, key=key).digest()
        named[example.part or "train"].append((digest, number))
    chosen: dict[str, list[int]] = {}
    held: set[bytes] = set()
    sizes = {"test": split.test, "validation": split.validation}
    for part, size in sizes.items():
        if named[part]:
            chosen[part] = [number for digest, number in sorted(named[part]) if digest not in held][:size]
            held |= {digest for digest, _ in named[part]}
            if not chosen[part]:
                raise BadInput("Every text of the validation part stands in the test part too: give it others.")
    first: dict[bytes, int] = {}
    for digest, number in named["train"]:
        if digest not in held:
            first.setdefault(digest, number)
    order = [first[digest] for digest in sorted(first)]
    drawn = [part for part in sizes if part not in chosen]
    if len(order) <= len(drawn):
        raise BadInput(
            f"The task has {len(order)} different examples for {' and '.join(['training', *drawn])}, and each of them "
            f"needs at least one: give it more."
        )
    most = max(1, int(held_out * len(order)))
    for part in drawn:
        size = min(sizes[part], most)
        chosen[part], order = order[:size], order[size:]
    chosen["train"] = order[: split.train]
    return {number: part for part in PARTS for number in chosen[part]}


def row(number: int, texts: list[list[int]], label: float, words: Vocabulary, *, length: int, last: bool) -> Row:
    """The row of an example: [CLS] A [SEP] or [CLS] A [SEP] B [SEP] (Devlin et al. 2018, section 4).

    texts: one or two, as token numbers. A text that is too long loses its end; of a pair the longer one does, token by
    token, of two equal ones the second. last: [CLS] stands at the end, as in XLNet (Yang et al. 2019, section 2.5).
    An image, whose vocabulary has no [CLS], is a row as it is. BadInput: one of another length.
    """
    if words.first < 0:
        if len(texts[0]) != length:
            raise BadInput(
                f"segments.length={length} does not fit images of {len(texts[0])} pixels: give "
                f"segments.length={len(texts[0])}."
            )
        return Row(texts[0], length, label, number)
    first, end = [words.first], [words.last]
    if len(texts) == 1:
        whole = texts[0][: length - 2] + end
        whole = whole + first if last else first + whole
        return Row(whole, len(whole), label, number)
    a, b = map(int, kept(np.array(len(texts[0])), np.array(len(texts[1])), length - SPECIAL))
    one, two = texts[0][:a] + end, texts[1][:b] + end
    if last:
        return Row(one + two + first, len(one), label, number)
    return Row(first + one + two, len(one) + 1, label, number)


def prepare_task(
    root: Path,
    *,
    task: Task,
    fingerprint: str,
    split: Split,
    learner: Learner,
    length: int,
    last: bool,
    augment: Augment | None = None,
    replace: Replacing | None = None,
) -> Prepared:
    """Build what is missing below `root` and return where everything lies. length, last: of the rows, as in `row`.
    augment: of the training examples, those that `split` leaves over. replace: of their rows.

    Its facts say also how the labels are shared out, how many examples were cut, and what one scores that always says
    the same: the share of hits of the commonest training class (`majority`), or the squared error of the mean training
    score (`constant`). BadInput: a task or a vocabulary that cannot work.
    """
    roomy(length)
    without = omitted(task.names, split.omit)
    stage = cache.key(VERSION, "task", fingerprint, split.train, split.validation, split.test, split.seed)
    source = cache.build(root / stage / "examples", lambda draft: _stored(task, split, draft))
    made = tokenized(root, stage, learner, _texts(source / "train.arrow"))
    folders: dict[str, Path] = {}
    for part in PARTS:

        def cut(draft: Path, part: str = part) -> None:
            examples = _examples(source / f"{part}.arrow")
            if part == "train":
                examples = _learnt(examples, source, split, without, augment)
            more = replace if part == "train" else None
            facts = _rows(examples, made.tokenizer, made.vocabulary, draft, length, last, more)
            if not facts["tokens"]:
                raise BadInput(f"The {part} part of the task holds no word that the tokenizer knows: give it another.")
            (draft / "facts.json").write_text(json.dumps(facts))

        more = None if augment is None else settings(augment)
        chosen = (split.share, sorted(without), more) if part == "train" else ()
        if part == "train" and replace is not None:
            chosen = (*chosen, replace.key)
        name = cache.key(made.stage, part, length, last, *chosen)
        folders[part] = cache.build(root / name / "rows", cut)
    prepared = gathered(folders, made)
    prepared.facts.update(_of_labels(task, folders))
    return prepared


def _stored(task: Task, split: Split, folder: Path) -> None:
    parts = choose(task.examples(), split, task.held_out)
    writers = {part: ArrowWriter(path=str(folder / f"{part}.arrow"), features=_STORED) for part in PARTS}
    labels: dict[str, set[float]] = {part: set() for part in PARTS}
    for number, example in enumerate(task.examples()):
        if part := parts.get(number):
            stored = Stored(
                number, *(example.texts if len(example.texts) == 2 else (*example.texts, None)), example.label
            )
            writers[part].write(stored._asdict())
            labels[part].add(example.label)
    for writer in writers.values():
        writer.finalize()
    np.save(folder / "train.npy", np.array([number for number, part in parts.items() if part == "train"]))
    if task.classes == 1:
        return
    for part in PARTS:
        if strange := labels[part] - labels["train"]:
            raise BadInput(
                f"The class {task.names[int(min(strange))]!r} occurs in the {part} part and not in the training part: "
                f"give the task more of it, a larger training part (split.train={split.train}), or another split.seed."
            )


def _examples(path: Path) -> Iterator[Stored]:
    """The examples of a part in the order of the file."""
    for batch in Dataset.from_file(str(path)).data.table.to_batches():
        for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            yield Stored(*values)


def omitted(names: list[str], omit: list[str]) -> set[float]:
    """The labels of the classes that `split.omit` names. BadInput: there is none of that name, or no other is left."""
    for name in omit:
        if name not in names:
            there = f"there is {', '.join(names)}" if names else "scores have no classes"
            raise BadInput(f"split.omit={name} is no class of this task: {there}.")
    if names and set(omit) == set(names):
        raise BadInput(f"split.omit={omit} leaves no class to learn: leave one of them out of it.")
    return {float(names.index(name)) for name in omit}


def _learnt(
    examples: Iterator[Stored], source: Path, split: Split, without: set[float], augment: Augment | None
) -> Iterator[Stored]:
    """The training examples of which rows are made. without: labels that are left out of the share."""
    if split.share < 1:
        numbers = taken(source, split.share)
        examples = (example for example in examples if example.number in numbers)
    if without:
        examples = (example for example in examples if example.label not in without)
    return examples if augment is None else augment(examples)


def _texts(path: Path) -> Iterator[str]:
    for example in _examples(path):
        yield example.text
        if example.pair is not None:
            yield example.pair


def _rows(
    examples: Iterator[Stored],
    tokenizer: Tokenizer,
    words: Vocabulary,
    folder: Path,
    length: int,
    last: bool,
    replace: Replacing | None,
) -> dict[str, Any]:
    cut = read = 0

    def rows() -> Iterator[Row]:
        nonlocal cut, read
        while batch := list(itertools.islice(examples, _BATCH)):
            texts = [text for example in batch for text in (example.text, example.pair) if text is not None]
            encoded = iter(tokenizer.encode_batch(texts, add_special_tokens=False))
            for example in batch:
                ids = [next(encoded).ids for _ in range(1 if example.pair is None else 2)]
                made = row(example.number, ids, example.label, words, length=length, last=last)
                special = 0 if words.first < 0 else 1 + len(ids)
                cut += len(made.tokens) < sum(map(len, ids)) + special
                read += 1
                yield made

    made = rows() if replace is None else replace(rows(), words)
    facts = write(made, words, folder, length=length, streams=False, nothing="The task left no rows.")
    return facts | {"cut": cut / read}


def _of_labels(task: Task, folders: dict[str, Path]) -> dict[str, Any]:
    """How the labels of each part are shared out, and what a guess scores that is always the same."""
    labels = {
        part: np.asarray(Dataset.from_file(str(folder / "rows.arrow")).data.table["label"])
        for part, folder in folders.items()
    }
    if task.classes == 1:
        mean = labels["train"].mean()
        return {
            "labels": {part: {"mean": float(x.mean()), "std": float(x.std())} for part, x in labels.items()},
            "constant": {part: float(((x - mean) ** 2).mean()) for part, x in labels.items()},
        }
    shares = {part: np.bincount(x.astype(int), minlength=task.classes) / len(x) for part, x in labels.items()}
    common = int(shares["train"].argmax())
    return {
        "labels": {part: dict(zip(task.names, x.tolist(), strict=True)) for part, x in shares.items()},
        "majority": {part: float(x[common]) for part, x in shares.items()},
    }
