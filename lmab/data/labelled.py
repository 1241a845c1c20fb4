"""Labelled texts in: what fine-tuning learns from, each one text or a pair with a class or a score.

Like a corpus, a task streams, and is known by what it says: where a file lies is no part of its fingerprint.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, Protocol

from lmab.data import corpus
from lmab.data.readers import one_of
from lmab.types import BadInput

if TYPE_CHECKING:
    from collections.abc import Iterator

    Part = Literal["train", "validation", "test"]

PARTS = ("train", "validation", "test")
METRICS = {"classes": ("accuracy", "f1", "mcc"), "scores": ("pearson", "spearman")}


class Labelled(NamedTuple):
    """One example. part: None where the source has no parts. label: number of its class, or the score."""

    part: Part | None
    texts: tuple[str] | tuple[str, str]
    label: float


class Task(Protocol):
    """Examples and their identity. All raise BadInput where the user's words lead nowhere.

    classes: labels count from 0 below it; 1 for scores. metrics: what the task is judged by, the first one above all.
    held_out: the share of all examples that a held-out part takes at most, where the source does not name it.
    """

    classes: int
    metrics: list[str]
    held_out: ClassVar[float]

    @property
    def names(self) -> list[str]:
        """What the classes are called, in the order of their numbers; none of scores."""
        ...

    def fingerprint(self) -> str:
        """16 hexadecimal digits that tell these examples from any other."""
        ...

    def examples(self) -> Iterator[Labelled]:
        """Every example once, its texts stripped; at least one. Where all texts are blank there is none."""
        ...


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What every task says of its labels, in its file, so that the head and a claim can read it there."""

    classes: int
    metrics: list[str]
    held_out: ClassVar[float] = 0.1

    def __post_init__(self) -> None:
        if self.classes < 1:
            raise BadInput(f"task.classes={self.classes} tells nothing apart: give 2 or more, or 1 for scores")
        kind = "scores" if self.classes == 1 else "classes"
        if not self.metrics:
            raise BadInput(f"task.metrics=[] judges nothing: give one of {', '.join(METRICS[kind])}")
        for metric in self.metrics:
            one_of(metric, METRICS[kind], f"unknown task.metrics of {kind} (task.classes={self.classes})")

    def counted(self, names: list[str], whole: str) -> list[str]:
        """The names of the classes, seen to be as many as `classes` says."""
        listed = ", ".join(map(repr, names[:9])) + ", ..." * (len(names) > 9)
        if len(names) == 1:
            raise BadInput(f"{whole} has one class alone, {listed}, so there is nothing to tell apart")
        if len(names) != self.classes:
            raise BadInput(
                f"task.classes={self.classes} does not fit {whole}, which has {len(names)}, {listed}: "
                f"give task.classes={len(names)}"
            )
        return names


@dataclass(frozen=True, kw_only=True)
class Reviews(Judged):
    """Is a film review positive? Those of corpus.Movies, as many negative as positive ones."""

    source: str

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self.source, corpus.SOURCES, "unknown task.source")
        self.counted(self.names, f"task.source={self.source}")

    @property
    def names(self) -> list[str]:
        return ["negative", "positive"]

    def fingerprint(self) -> str:
        return corpus.digest(("reviews", corpus.Movies(source=self.source).fingerprint()), [])

    def examples(self) -> Iterator[Labelled]:
        for said, label in corpus.Movies(source=self.source).labelled():
            yield Labelled(None, (said,), float(label))


@dataclass(frozen=True, kw_only=True)
class Topics(Judged):
    """Of which of five topics is a BBC article? Without its title, as in corpus.News: a headline says it alone."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.counted(self.names, "this task")

    @property
    def names(self) -> list[str]:
        return list(corpus.TOPICS)

    def fingerprint(self) -> str:
        return corpus.digest(("topics", corpus.News().fingerprint()), [])

    def examples(self) -> Iterator[Labelled]:
        for label, topic in enumerate(corpus.TOPICS):
            for said in corpus.News(topic=topic).documents():
                yield Labelled(None, (said,), float(label))
