"""RoBERTa: parity with transformers, whose positions begin behind the padding token's number."""

from __future__ import annotations

import pytest
import torch
import transformers

from lmab.models.bert import BERT
from lmab.models.roberta import RoBERTa

SIZES = {"vocab": 50, "dim": 32, "depth": 2, "heads": 4, "ffn": 48, "length": 16, "segments": 1}
PLAIN = {"dropout": 0.0, "attention_dropout": 0.0, "epsilon": 1e-5, "std": 0.02, "embedding_std": 0.02}
PAD = 1


@pytest.fixture
def roberta(learning):
    def made(**changes: object) -> RoBERTa:
        return RoBERTa(learning(), **SIZES | PLAIN | {"positions": "normal"} | changes)

    return made


@pytest.fixture
def paired(roberta, twins):
    """Our model and theirs, with the same weights."""

    def made(dtype: torch.dtype):
        config = transformers.RobertaConfig(
            vocab_size=SIZES["vocab"],
            hidden_size=SIZES["dim"],
            num_hidden_layers=SIZES["depth"],
            num_attention_heads=SIZES["heads"],
            intermediate_size=SIZES["ffn"],
            max_position_embeddings=SIZES["length"] + PAD + 1,
            type_vocab_size=1,
            pad_token_id=PAD,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            layer_norm_eps=PLAIN["epsilon"],
        )
        theirs = transformers.RobertaForMaskedLM(config).to(dtype).train()
        found = twins(roberta().to(dtype), theirs)
        found.embedding("roberta.embeddings", offset=PAD + 1)
        for number in range(SIZES["depth"]):
            found.layer(number, f"roberta.encoder.layer.{number}")
        found.head("lm_head.bias", "lm_head.dense", "lm_head.layer_norm")
        found.copy()
        return found

    return made


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize("padded", [False, True])
def test_scores_loss_and_every_gradient_are_those_of_transformers(paired, rows, padded, dtype, tolerance):
    both = paired(dtype)
    both.compare(rows(padded=padded, pad=PAD), tolerance)
    # The rows of their table that no text reads have no gradient; ours has no such rows.
    unread = both.theirs.roberta.embeddings.position_embeddings.weight.grad[: PAD + 1]
    assert not unread.any()


def test_two_segments_are_one_to_it(roberta, rows, scatter):
    model = roberta().eval()
    scatter(model)
    one, two = rows(padded=True), rows(padded=True, segments=True)
    assert two.segments.any()
    assert torch.equal(model.network(one).hidden, model.network(two).hidden)


def test_it_is_a_bert_with_a_name_of_its_own(roberta, learning):
    ours = roberta()
    other = BERT(learning(), **SIZES | PLAIN | {"positions": "normal"})
    assert isinstance(ours, BERT)
    assert ours.network.embedding.norm.eps == 1e-5
    for (name, weight), (other_name, other_weight) in zip(
        ours.named_parameters(), other.named_parameters(), strict=True
    ):
        assert name == other_name
        assert torch.equal(weight, other_weight)
