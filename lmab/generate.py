"""A trained run goes on with a text.

A language model (clm) reads the text once and then one token after another, with what it remembers; without a memory
it reads the last row again for every token. A permutation language model (plm) is asked for the next place by its query
stream (Yang et al. 2019, section 2.3). A model that fills in blanks has no probability for a text that goes on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from lmab.data.tokenizer import Ready
from lmab.types import BadInput, Batch, Encoded, View

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
        if not self.temperature >= 0:
            raise BadInput(f"--temperature {self.temperature} cannot work: give a number from 0 up.")
        if self.top_k is not None and self.top_k < 1:
            raise BadInput(f"--top-k {self.top_k} leaves no token: give at least 1.")
        if not 0 < self.top_p <= 1:
            raise BadInput(f"--top-p {self.top_p} is a share: give a number above 0, up to 1.")

    def draw(self, logits: Tensor, step: int) -> int:
        """logits: [V], -inf for tokens that may not come. The draw is a function of (seed, step, logits)."""
        if self.temperature == 0:
            return int(logits.argmax())
        values, numbers = (logits.double() / self.temperature).sort(descending=True, stable=True)
        shares = values.softmax(0)
        kept = shares.cumsum(0) - shares < self.top_p  # the first always is
        if self.top_k is not None:
            kept[self.top_k :] = False
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        return int(numbers[torch.multinomial(shares * kept, 1, generator=generator)])


def scores(
    network: Network, objectives: Mapping[str, object], tokens: Sequence[int], *, memory: int
) -> Generator[Tensor, int, None]:
    """First for `tokens`, then for every token that is sent in: the scores [V] of the one that follows.

    memory: places that are remembered. BadInput: the objectives leave no way to go on with a text.
    """
    reader = _Ahead if "clm" in objectives else _Asked if "plm" in objectives else None
    if reader is None:
        raise BadInput(
            f"A model of objective=[{','.join(objectives)}] fills in blanks that it sees from both sides, and has no "
            f"probability for a text that goes on: generate from a run of experiment=transformer_xl or xlnet."
        )
    return reader(network, memory).read(list(tokens))


class _Reader:
    """Feeds a network with a text, row after row.

    length: of a row at most.
    """

    def __init__(self, network: Network, memory: int, length: int = 64) -> None:
        self.network, self.memory = network, memory
        positions = getattr(network.embedding, "positions", None)
        self.length = length if positions is None else positions.num_embeddings
        self.held: tuple[Tensor, ...] = ()

    def forward(self, tokens: list[int], view: View, places: Tensor | None, *, remember: bool) -> Encoded:
        row = torch.tensor([tokens])
        batch = Batch(row, None, view, {}, torch.zeros(1, dtype=torch.long), 1, len(tokens))
        kept = self.memory if remember else 0
        encoded = self.network(batch, places, memory=self.held, remember=kept)
        if kept:
            self.held = encoded.memory
        return encoded

    def read(self, tokens: list[int]) -> Generator[Tensor, int, None]:
        raise NotImplementedError


class _Ahead(_Reader):
    """A language model: the last place says what follows."""

    def read(self, tokens: list[int]) -> Generator[Tensor, int, None]:
        new = tokens
        while True:
            if not self.memory:
                new = tokens[-self.length :]
            for start in range(0, len(new), self.length):
                row = new[start : start + self.length]
                causal = torch.ones(len(row), len(row), dtype=torch.bool).tril()[None, None]
                last = torch.tensor([len(row) - 1])
                encoded = self.forward(row, View(causal), last, remember=bool(self.memory))
            sent = yield self.network.token_logits(encoded.hidden)[0]
            tokens.append(sent)
            new = [sent]


class _Asked(_Reader):
    """A permutation language model: the query stream is asked for the place behind the text, which sees all of it;
    the text does not see that place. Rows that are full go into the memory."""

    def read(self, tokens: list[int]) -> Generator[Tensor, int, None]:
        row: list[int] = []
        while True:
            row += tokens
            while self.memory and len(row) >= self.length:
                self.forward(row[: self.length], View(), None, remember=True)
                row = row[self.length :]
            row = row[-(self.length - 1) :] if not self.memory else row
            T = len(row) + 1
            seen = torch.arange(T) < T - 1
            view = View(
                visible=seen.expand(1, 1, T, T),
                queries=torch.tensor([[T - 1]]),
                query_visible=seen[None, None, None],
            )
            encoded = self.forward([*row, 0], view, torch.empty(0, dtype=torch.long), remember=False)
            assert encoded.second is not None
            tokens = [(yield self.network.token_logits(encoded.second)[0])]


@torch.no_grad()
def continued(
    network: Network,
    objectives: Mapping[str, object],
    prompt: Sequence[int],
    sampling: Sampling,
    *,
    forbidden: Tensor,
    end: int,
    tokens: int,
    memory: int,
) -> list[int]:
    """The prompt's continuation as numbers, `tokens` at most; it stops where the model ends the text.

    forbidden: [V] bool, types that never come. end: the type that ends a text. memory: places remembered.
    """
    if not prompt:
        raise BadInput("--prompt holds no word that the tokenizer knows: give a text to go on with.")
    reader = scores(network, objectives, prompt, memory=memory)
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
    """The prompt and what a run makes of it. memory: places remembered, None for as many as in training."""
    tokenizer, words = Ready(path=str(run.prepared.tokenizer)).learn([]), run.prepared.vocabulary
    start = tokenizer.encode(prompt, add_special_tokens=False).ids
    forbidden = torch.from_numpy(words.special.copy())
    forbidden[words.last] = False
    numbers = continued(
        run.learner.network,
        run.config["objective"],
        start,
        sampling,
        forbidden=forbidden,
        end=words.last,
        tokens=tokens,
        memory=run.learner.network.memory if memory is None else memory,
    )
    # Decoded together, since whether a space stands between two tokens is known from both.
    whole, head = tokenizer.decode([*start, *numbers]), tokenizer.decode(start)
    return prompt + whole.removeprefix(head) if whole.startswith(head) else whole
