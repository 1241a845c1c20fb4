"""What is counted without weights is what the weights are, and what the paper's arithmetic gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from lmab import checks
from lmab.sizes import sizes

if TYPE_CHECKING:
    from collections.abc import Callable

    from omegaconf import DictConfig

BERT = ["experiment=bert", "budget=paper", "corpus=files"]  # the corpus has no path: it is never opened


def config(composed: Callable[..., DictConfig], *overrides: str) -> dict[str, Any]:
    plain = OmegaConf.to_container(composed(*overrides, "corpus.path=/nowhere.txt"), resolve=True)
    assert isinstance(plain, dict)
    return checks.checked({str(key): value for key, value in plain.items()})


def test_bert_base_has_the_published_sizes(composed: Callable[..., DictConfig]) -> None:
    found = sizes(config(composed, *BERT))
    assert found["cost/encoder_parameters"] == 109_482_240  # of bert-base-uncased, with its pooler
    # and beside it the token head's transform, norm and bias, and a head of two for the next sentence
    assert found["cost/parameters"] == 109_482_240 + 768 * 768 + 768 + 2 * 768 + 30_522 + 2 * 768 + 2


@settings(max_examples=10, deadline=None)
@given(dim=st.sampled_from([8, 24]), depth=st.integers(1, 3), ffn=st.integers(1, 40), length=st.integers(8, 40))
def test_the_count_is_that_of_the_formula(
    composed: Callable[..., DictConfig], dim: int, depth: int, ffn: int, length: int
) -> None:
    """A product of [m, k] and [k, n] is 2 m k n operations; norms, sums and activations are not counted."""
    given_ = [f"model.{k}={v}" for k, v in {"dim": dim, "depth": depth, "ffn": ffn, "length": length}.items()]
    found = sizes(
        config(
            composed,
            *("experiment=roberta", "corpus=files", "model.heads=2", *given_),
            *(f"segments.length={length}", f"evaluation.segments.length={length}"),
        )
    )
    vocab, kinds, positions = 600, 1, length
    layer = 4 * (dim * dim + dim) + (2 * dim * ffn + ffn + dim) + 4 * dim
    assert found["cost/encoder_parameters"] == (vocab + positions + kinds) * dim + 2 * dim + depth * layer
    assert found["cost/flops_a_token"] == depth * 2 * (4 * dim * dim + 2 * dim * ffn + 2 * length * dim)


def test_sharing_saves_parameters_and_no_arithmetic(composed: Callable[..., DictConfig]) -> None:
    plain = ["model=albert", "corpus=files", "model.depth=6"]
    none, all_ = (sizes(config(composed, *plain, f"model.share={share}")) for share in ("none", "all"))
    one = sizes(config(composed, "model=albert", "corpus=files", "model.depth=1"))
    assert all_["cost/flops_a_token"] == none["cost/flops_a_token"]
    assert all_["cost/encoder_parameters"] == one["cost/encoder_parameters"] < none["cost/encoder_parameters"]


@pytest.mark.parametrize("experiment", ["bert", "roberta", "albert", "xlnet", "transformer_xl"])
def test_a_count_needs_no_memory_and_is_that_of_the_model(experiment: str, composed: Callable[..., DictConfig]) -> None:
    from lmab.wiring import bare_learner

    made = config(composed, f"experiment={experiment}", "corpus=files")
    found = sizes(made)
    assert found["cost/parameters"] == sum(p.numel() for p in bare_learner(made, seed=0).parameters())
    assert 0 < found["cost/encoder_parameters"] < found["cost/parameters"]
    assert found["cost/flops_a_token"] > 0
