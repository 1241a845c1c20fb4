"""At the published sizes every model has the parameters that transformers' has, and no memory is needed to say so."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from lmab.models.albert import ALBERT
from lmab.models.bert import BERT
from lmab.models.roberta import RoBERTa
from lmab.models.xlnet import XLNet
from lmab.objectives.mlm import MaskedLM
from lmab.objectives.nsp import NextSentence
from lmab.objectives.plm import PermutationLM
from lmab.objectives.sop import SentenceOrder
from lmab.train.learner import Learner

COMMON = {"dropout": 0.1, "attention_dropout": 0.1, "std": 0.02, "embedding_std": 0.02}
BERT_LIKE = COMMON | {"length": 512, "positions": "normal"}
SIZES: dict[str, dict[str, Any]] = {
    "base": {"dim": 768, "depth": 12, "heads": 12, "ffn": 3072},
    "large": {"dim": 1024, "depth": 24, "heads": 16, "ffn": 4096},
    "xlarge": {"dim": 2048, "depth": 24, "heads": 32, "ffn": 8192},
    "xxlarge": {"dim": 4096, "depth": 12, "heads": 64, "ffn": 16384},
}
BASE_AND_LARGE = pytest.mark.parametrize("size", ["base", "large"])


def config(kind: type[transformers.PreTrainedConfig], size: str, **more: Any) -> Any:
    sizes = SIZES[size]
    return kind(
        hidden_size=sizes["dim"],
        num_hidden_layers=sizes["depth"],
        num_attention_heads=sizes["heads"],
        intermediate_size=sizes["ffn"],
        **more,
    )


def count(model: torch.nn.Module) -> int:
    if isinstance(model, Learner):
        assert all(parameter.is_meta for parameter in model.parameters())
    return sum(parameter.numel() for parameter in model.parameters())


def masked() -> MaskedLM:
    return MaskedLM(rate=0.15, mask=0.8, random=0.1, whole_words=False, copies=None, weight=1.0)


@BASE_AND_LARGE
def test_bert(learning, size):
    """Uncased, with the heads of both tasks and without any."""
    knobs = SIZES[size] | BERT_LIKE | {"vocab": 30522, "segments": 2, "epsilon": 1e-12}
    ours = BERT(learning(masked(), NextSentence(weight=1.0), seed=None), **knobs)
    published = config(transformers.BertConfig, size, vocab_size=30522)
    with torch.device("meta"):
        theirs = transformers.BertForPreTraining(published)
    assert count(ours) == count(theirs)
    assert count(theirs.bert) == {"base": 109_482_240, "large": 335_141_888}[size]
    assert sum(count(part) for name, part in ours.network.named_children() if name != "head") == count(theirs.bert)


@BASE_AND_LARGE
def test_roberta(learning, size):
    """Theirs has two more positions: it counts them from behind the padding token's number, 1, up to 513, and so the
    first two rows of its table stand for no place of a text. Ours counts from 0."""
    ours = RoBERTa(
        learning(masked(), seed=None),
        **SIZES[size] | BERT_LIKE | {"vocab": 50265, "segments": 1, "epsilon": 1e-5},
    )
    published = config(
        transformers.RobertaConfig,
        size,
        vocab_size=50265,
        max_position_embeddings=514,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
    )
    with torch.device("meta"):
        theirs = transformers.RobertaForMaskedLM(published)
    assert count(ours) + 2 * SIZES[size]["dim"] == count(theirs)
    assert count(theirs) == {"base": 124_697_433, "large": 355_412_057}[size]


@pytest.mark.parametrize("size", list(SIZES))
def test_albert(learning, size):
    """Version 2."""
    knobs = {"vocab": 30000, "embedding": 128, "segments": 2, "share": "all", "groups": 1, "inner": 1}
    knobs |= {"epsilon": 1e-12, "activation": "gelu_tanh"}
    ours = ALBERT(
        learning(masked(), SentenceOrder(weight=1.0), seed=None),
        **SIZES[size] | BERT_LIKE | knobs,
    )
    published = config(transformers.AlbertConfig, size, vocab_size=30000, embedding_size=128, inner_group_num=1)
    with torch.device("meta"):
        theirs = transformers.AlbertForPreTraining(published)
    assert count(ours) == count(theirs)
    encoder = {"base": 11_683_584, "large": 17_683_968, "xlarge": 58_724_864, "xxlarge": 222_595_584}[size]
    assert count(theirs.albert) == encoder


@BASE_AND_LARGE
def test_xlnet(learning, size):
    knobs = COMMON | {"vocab": 32000, "length": 512, "memory": 384, "clamp": None, "inner_dropout": 0.1}
    ours = XLNet(
        learning(PermutationLM(k=6, span=5, weight=1.0), seed=None),
        **SIZES[size] | knobs | {"epsilon": 1e-12},
    )
    sizes = SIZES[size]
    published = transformers.XLNetConfig(
        vocab_size=32000,
        d_model=sizes["dim"],
        n_layer=sizes["depth"],
        n_head=sizes["heads"],
        d_inner=sizes["ffn"],
    )
    with torch.device("meta"):
        theirs = transformers.XLNetLMHeadModel(published)
    assert count(ours) == count(theirs)
    assert count(theirs) == {"base": 116_750_336, "large": 360_300_800}[size]
