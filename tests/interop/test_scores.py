"""The scores that attention takes its softmax of are those of transformers, in every depth."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from lmab.interop import checkpoint
from lmab.types import Batch, View

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

B, T = 3, 10
LENGTHS = torch.tensor([T, 7, 1])


def softmaxed(scores: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """What a row shares among its real tokens: [B, H, T, T]."""
    return scores.masked_fill(~real[:, None, None], -math.inf).softmax(-1)


@pytest.mark.parametrize("padded", [False, True])
def test_their_softmax_is_what_theirs_shares_out(
    kind: str, padded: bool, theirs: Callable, ours: Callable, tmp_path: Path
) -> None:
    model = theirs(kind).base_model
    model.set_attn_implementation("eager")  # the only one that gives its shares
    model.save_pretrained(tmp_path / "model")
    Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]")).save(str(tmp_path / "model" / "tokenizer.json"))
    found = checkpoint.read(tmp_path / "model")
    learner = ours(found.model, kind, found.weights)
    pad = {"roberta": 1, "xlnet": 5}.get(kind, 0)
    real = torch.arange(T) < (LENGTHS if padded else torch.full((B,), T))[:, None]
    tokens = torch.randint(6, 60, (B, T), generator=torch.Generator().manual_seed(3)).masked_fill(~real, pad)
    view = View(real[:, None, None] if padded else None)
    batch = Batch(tokens, None, view, {}, torch.arange(B), B, int(real.sum()))
    with torch.no_grad():
        said = model(input_ids=tokens, attention_mask=real.long(), output_attentions=True).attentions
        mine = learner.network(batch, attention=True).attention
    shares = [depth for part in said for depth in (part if isinstance(part, tuple) else (part,))]
    assert len(mine) == len(shares) == len(learner.network.heads)
    for scores, shared, heads in zip(mine, shares, learner.network.heads, strict=True):
        assert scores.shape == (B, heads, T, T)
        rows = real[:, None, :, None].expand(B, heads, T, T)
        torch.testing.assert_close(softmaxed(scores, real)[rows], shared[rows], rtol=0, atol=1e-6)
    # Else the comparison would say nothing: shares differ from place to place, and from depth to depth.
    assert all(float(shared[0].std()) > 1e-3 for shared in shares)
    assert not torch.allclose(mine[0], mine[1], atol=1e-2)
