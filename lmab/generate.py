"""A trained run goes on with a text.

A language model (clm) reads the text once and then one token after another, with what it remembers; without a memory
it reads the last row again for every token. A permutation language model (plm) is asked for the next place by its query
stream (Yang et al. 2019, section 2.3). A model that fills in blanks has no probability for a text that goes on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch

from lmab.data.tokenizer import Ready
from lmab.nn.position import Absolute
from lmab.rng import derive
from lmab.types import BadInput, Batch, Encoded, View
from lmab.wiring import make

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from torch import Tensor

    from lmab.nn.network import Network
    from lmab.trained import Trained


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How a token is drawn. temperature: of the softmax, 0 for the likeliest token. top_k: from so many of the
    likeliest alone, None for all. top_p: from the fewest whose probabilities reach this together. seed: of the draws.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise BadInput(f"--temperature {self.temperature} cannot work: give a number from 0 up.")
        if self.top_k is not None and self.top_k < 1:
            raise BadInput(f"--top-k {self.top_k} leaves no token: give at least 1.")
        if not 0 < self.top_p <= 1:
            raise BadInput(f"--top-p {self.top_p} is a share: give a number above 0, up to 1.")

    def draw(self, logits: Tensor, step: int) -> int:
        """logits: [V], -inf for tokens that may not come. The draw is a function of (seed, step, logits)."""
        if self.temperature == 0:
            return int(logits.argmax())
        heights = (logits.double() - logits.max()) / self.temperature  # so that none is infinite above
        values, numbers = heights.sort(descending=True, stable=True)
        shares = values.softmax(0)
        kept = shares.cumsum(0) - shares < self.top_p  # the first always is
        if self.top_k is not None:
            kept[self.top_k :] = False
        generator = torch.Generator().manual_seed(derive(self.seed, "generate", step))
        return int(numbers[torch.multinomial(shares * kept, 1, generator=generator)])


def scores(
    network: Network,
    objectives: Mapping[str, object],
    tokens: Sequence[int],
    *,
    length: int,
    memory: int,
    head: Sequence[int] = (),
) -> Generator[Tensor, int, None]:
    """First for `tokens`, then for every token that is sent in: the scores [V] of the one that follows.

    length: of a row, as in training. memory: places that are remembered. head: what a row begins with.
    BadInput: the objectives leave no way to go on with a text, or the model no way to remember.
    """
    reader = _reader(objectives)
    if memory and any(isinstance(part, Absolute) for part in network.modules()):
        raise BadInput(
            f"--memory {memory} cannot work: this model counts positions from the start of a row, which say nothing "
            f"about earlier rows, so give --memory 0."
        )
    return reader(network, length, memory, list(head)).read(list(tokens))


def _reader(objectives: Mapping[str, object]) -> type[_Reader]:
    """BadInput: the objectives leave no way to go on with a text."""
    if "clm" in objectives:
        return _Ahead
    if "plm" in objectives:
        return _Asked
    raise BadInput(
        f"A model of objective=[{','.join(objectives)}] has no probability for a text that goes on: generate from a "
        f"run with clm or plm, such as experiment=transformer_xl or experiment=xlnet."
    )


class _Reader:
    """Feeds a network with a text, row after row."""

    def __init__(self, network: Network, length: int, memory: int, head: list[int]) -> None:
        self.network, self.length, self.memory, self.head = network, length, memory, head
        self.held: tuple[Tensor, ...] = ()

    def forward(self, row: list[int], view: View, asked: list[int], *, remember: bool) -> Encoded:
        """asked: the places of the content that are wanted."""
        batch = Batch(torch.tensor([row]), None, view, {}, torch.zeros(1, dtype=torch.long), 1, len(row))
        places = torch.tensor(asked, dtype=torch.long)
        encoded = self.network(batch, places, memory=self.held, remember=self.memory if remember else 0)
        if remember:
            self.held = encoded.memory
        return encoded

    def last(self, text: list[int], places: int) -> list[int]:
        """The end of a text as a row of so many places at most."""
        return [*self.head, *text[len(self.head) - places :]]

    def read(self, text: list[int]) -> Generator[Tensor, int, None]:
        raise NotImplementedError


class _Ahead(_Reader):
    """A language model: the last place says what follows."""

    def read(self, text: list[int]) -> Generator[Tensor, int, None]:
        new = [*self.head, *text]
        while True:
            if not self.memory:
                new = self.last(text, self.length)
            *full, row = [new[start : start + self.length] for start in range(0, len(new), self.length)]
            for before in full:  # nothing is asked of them, and all is remembered
                self.forward(before, _causal(before), [], remember=True)
            encoded = self.forward(row, _causal(row), [len(row) - 1], remember=self.memory > 0)
            new = [(yield self.network.token_logits(encoded.hidden)[0])]
            text += new


def _causal(row: list[int]) -> View:
    return View(torch.ones(len(row), len(row), dtype=torch.bool).tril()[None, None])


class _Asked(_Reader):
    """A permutation language model: the query stream is asked for the place behind the text, which sees all of it;
    the text does not see that place. Rows that are full go into the memory."""

    def read(self, text: list[int]) -> Generator[Tensor, int, None]:
        row = [*self.head, *text]
        while True:
            if not self.memory:
                row = self.last(text, self.length - 1)
            while len(row) >= self.length:
                self.forward(row[: self.length], View(), [], remember=True)
                row = row[self.length :]
            T = len(row) + 1
            seen = torch.arange(T) < T - 1
            view = View(
                visible=seen.expand(1, 1, T, T),
                queries=torch.tensor([[T - 1]]),
                query_visible=seen[None, None, None],
            )
            encoded = self.forward([*row, 0], view, [], remember=False)
            assert encoded.second is not None
            sent = yield self.network.token_logits(encoded.second)[0]
            text.append(sent)
            row.append(sent)


@torch.no_grad()
def continued(
    reader: Generator[Tensor, int, None], sampling: Sampling, *, forbidden: Tensor, end: int, tokens: int
) -> list[int]:
    """What follows, as numbers, `tokens` at most; it stops where the model ends the text.

    reader: as `scores` gives it. forbidden: [V] bool, types that never come. end: the type that ends a text.
    """
    logits = next(reader)
    found: list[int] = []
    for step in range(tokens):
        drawn = sampling.draw(logits.masked_fill(forbidden, float("-inf")), step)
        if drawn == end:
            break
        found.append(drawn)
        if step + 1 < tokens:
            logits = reader.send(drawn)
    return found


def text(run: Trained, prompt: str, sampling: Sampling, *, tokens: int, memory: int | None) -> str:
    """The prompt and what a run makes of it. memory: places remembered, None for as many as in training.

    BadInput: a prompt without words, a run that cannot go on with one.
    """
    _reader(run.config["objective"])  # before the prompt is read: to a tokenizer of images no text says anything
    tokenizer, words = Ready(path=str(run.prepared.tokenizer)).learn([]), run.prepared.vocabulary
    start = tokenizer.encode(prompt, add_special_tokens=False).ids
    if not start or not prompt.strip():
        raise BadInput("--prompt holds no word that the tokenizer knows: give a text to go on with.")
    network, segments = cast("Network", run.learner.network), make(run.config["segments"])
    if memory is None:
        memory = network.memory if segments.contiguous else 0  # rows of no stream were read without one
    reader = scores(
        network,
        run.config["objective"],
        start,
        length=segments.length,
        memory=memory,
        head=[] if segments.contiguous or getattr(segments, "last", False) else [words.first],
    )
    forbidden = torch.from_numpy(words.special.copy())
    forbidden[words.last] = False
    numbers = continued(reader, sampling, forbidden=forbidden, end=words.last, tokens=tokens)
    # Decoded together, since whether a space stands between two tokens is known from both.
    whole, beginning = tokenizer.decode([*start, *numbers]), tokenizer.decode(start)
    return prompt + whole.removeprefix(beginning) if whole.startswith(beginning) else whole
