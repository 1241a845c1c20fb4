"""The few things that travel between the rooms.

B  examples in a batch      T  positions      D  width of a hidden state
N  target places in a batch (all rows together)
P  places of a second stream in a row (XLNet's queries)
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    import torch


class BadInput(ValueError):  # noqa: N818  (said to a user: it names the input, not the code)
    """What the user gave cannot work. The message is one sentence that names the file, key or value and,
    where there is one, the nearest that would work. Front doors print it alone and exit with status 2."""


class Failed(RuntimeError):  # noqa: N818
    """A run failed after it began; its record and traceback are written. The message says where they are."""


class Example(NamedTuple):
    """A block of examples as arrays, before noise: what the segments cut and the collator takes.

    Everything a counter needs is here, so noise never asks which batch or worker it runs in.
    """

    tokens: np.ndarray  # [B, T] int64, padded with the padding token
    lengths: np.ndarray  # [B] real tokens in a row
    second: np.ndarray  # [B] where the second segment begins; `lengths` where there is none
    label: np.ndarray  # [B] float64: what a row as a whole is (next sentence, class, score), NaN where nothing is said
    document: np.ndarray  # [B] the document a row comes from (its first one where it crosses)
    number: np.ndarray  # [B] the example's number in its split
    epoch: np.ndarray  # [B] how often the example was seen before
    past: np.ndarray | None = None  # [B] tokens of its stream that were read just before; None: no stream
    ahead: np.ndarray | None = None  # [B] the token that its stream goes on with, -1 where it ends; None: no stream
    backward: np.ndarray | None = None  # [B] bool: read from the end of the text to its start; None: nowhere

    def rows(self, start: int, stop: int) -> Example:
        """Some of the examples."""
        return Example(*(None if column is None else column[start:stop] for column in self))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Vocabulary:
    """What a noise or a segmenter must know of a tokenizer: numbers only, -1 for a special type that it lacks."""

    size: int
    pad: int
    unknown: int
    first: int  # [CLS] or <s>
    last: int  # [SEP] or </s>
    mask: int
    special: np.ndarray = field(repr=False)  # [V] bool: never a target, never a random replacement
    continues: np.ndarray = field(repr=False)  # [V] bool: this type continues the word before it


class Noised(NamedTuple):
    """What a noise makes of a block of examples."""

    tokens: np.ndarray  # [B, T] what the network reads
    places: np.ndarray  # [N] target places, flat over B * T, ascending in each row
    answers: np.ndarray  # [N] what is to be predicted there
    visible: np.ndarray | None = None  # [B or 1, T, T] bool: who (row) may see whom (column); None: everybody
    queries: np.ndarray | None = None  # [B, P] int64 places of a second stream, -1 unused; the targets are its
    query_visible: np.ndarray | None = None  # [B, P, T] bool: whom each of them may see


def _moved(thing: Any, device: torch.device) -> Any:
    """A dataclass with every field that can move on `device`."""
    moved = {
        f.name: value.to(device, non_blocking=True)
        for f in fields(thing)
        if (value := getattr(thing, f.name)) is not None and hasattr(value, "to")
    }
    return replace(thing, **moved)


@dataclass(frozen=True)
class Targets:
    """Where an objective asks, and what the answer is.

    second: the targets are those of the second stream, in the order of its used places.
    """

    places: torch.Tensor  # [N] flat over B * T
    answers: torch.Tensor  # [N]
    second: bool = False

    def to(self, device: torch.device, *, non_blocking: bool = True) -> Targets:
        return _moved(self, device)


@dataclass(frozen=True)
class View:
    """Who may see whom: data, made by the collator; the network knows no word such as "causal".

    `visible` is boolean, True where the query (row) may see the key (column), or None where everybody sees
    everybody: then no mask is passed on at all. What a memory holds is seen by every query, as far as `past` goes.
    """

    visible: torch.Tensor | None = None  # [B or 1, 1, 1 or T, T]
    queries: torch.Tensor | None = None  # [B, P] places of a second stream, -1 unused
    query_visible: torch.Tensor | None = None  # [B, 1, P, T]
    past: torch.Tensor | None = None  # [B] tokens before the row that a memory may hold; None: all that it holds
    backward: torch.Tensor | None = None  # [B] bool: the row is read from the end of the text to its start

    def to(self, device: torch.device, *, non_blocking: bool = True) -> View:
        return _moved(self, device)


@dataclass(frozen=True)
class Batch:
    """One forward pass' worth of examples."""

    tokens: torch.Tensor  # [B, T] int64
    segments: torch.Tensor | None  # [B, T] 0 or 1, None where every row is one segment
    view: View
    targets: Mapping[str, Targets]  # objective's name -> its targets
    document: torch.Tensor  # [B] the document of each row
    examples: int  # rows
    real: int  # tokens that are not padding
    lengths: torch.Tensor | None = None  # [B] real tokens of each row; None: no row is padded
    number: torch.Tensor | None = None  # [B] the example's number in its split

    def asked(self) -> torch.Tensor:
        """[N] the places at which any objective asks the content, flat over B * T, ascending, each once."""
        places = [targets.places for targets in self.targets.values() if not targets.second]
        if len(places) == 1:
            return places[0]
        import torch  # here, so that reading records wants no torch

        return torch.unique(torch.cat(places)) if places else self.tokens.new_empty(0)

    def to(self, device: torch.device) -> Batch:
        return replace(_moved(self, device), targets={k: t.to(device) for k, t in self.targets.items()})


@dataclass(frozen=True)
class Encoded:
    """What a network made of a batch: the last layer everywhere, or at the places that were asked for."""

    hidden: torch.Tensor  # [B, T, D], or [N, D] where `places` are given
    places: torch.Tensor | None = None  # [N] flat over B * T, ascending, each once
    second: torch.Tensor | None = None  # [M, D] the second stream at its used places, row by row
    memory: tuple[torch.Tensor, ...] = ()  # for every depth [B, M, D], what the next rows of the streams may see
    layers: tuple[torch.Tensor, ...] = ()  # embedding and every depth, [B, T, D] each, where they were asked for
    attention: tuple[torch.Tensor, ...] = ()  # of every depth [B, H, T, S], its scores before the softmax

    def at(self, places: torch.Tensor) -> torch.Tensor:
        """The hidden states [M, D] at places [M] that are among those asked for."""
        if self.places is None:
            return self.hidden.flatten(0, 1).index_select(0, places)
        if places is self.places:
            return self.hidden
        import torch

        return self.hidden[torch.searchsorted(self.places, places)]

    def of(self, targets: Targets) -> torch.Tensor:
        """The hidden states [N, D] at the targets of an objective, in whichever stream they are."""
        if not targets.second:
            return self.at(targets.places)
        assert self.second is not None
        return self.second


@dataclass(frozen=True)
class Outcome:
    """What an objective says of a batch: losses in nats, one for each target, not yet averaged.

    Averages are taken by whoever knows the whole: the learner over an accumulated batch or a held-out set.
    """

    losses: torch.Tensor  # [N]
    places: torch.Tensor  # [N] flat over B * T, so that a loss finds its row and document
    hits: torch.Tensor = field(repr=False)  # [N] bool: the answer had the highest score
    said: torch.Tensor | None = field(default=None, repr=False)  # [N] what was answered, for metrics of a whole set
    scores: torch.Tensor | None = field(default=None, repr=False)  # [N, C] of all answers, where they were asked for


@dataclass(frozen=True)
class Ask:
    """What is wanted of a forward pass. outcomes: of which objectives; scores: of which also what every answer scored.
    layers: what every depth made. attention: its scores before the softmax."""

    outcomes: frozenset[str] = frozenset()
    scores: frozenset[str] = frozenset()
    layers: bool = False
    attention: bool = False

    def __or__(self, other: Ask) -> Ask:
        return Ask(*(mine | theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True)
class Seen:
    """What a learner made of a batch. outcomes: objective's name -> what it says."""

    encoded: Encoded
    outcomes: Mapping[str, Outcome]
