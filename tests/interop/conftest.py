"""Small random models of both sides, and the batches that both read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers

from lmab.objectives.nsp import NextSentence
from lmab.objectives.sop import SentenceOrder
from lmab.train.optim import AdamW, Linear
from lmab.train.stepping import Learning
from lmab.types import Batch, View
from lmab.wiring import make

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from lmab.train.learner import Learner

VOCAB = 60
_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 20,
}
# The largest of their classes, with every head that can be read.
THEIRS: dict[str, Callable[[], transformers.PreTrainedModel]] = {
    "bert": lambda: transformers.BertForPreTraining(transformers.BertConfig(**_SIZES)),
    "roberta": lambda: transformers.RobertaForMaskedLM(
        transformers.RobertaConfig(**_SIZES | {"type_vocab_size": 1, "layer_norm_eps": 1e-5})
    ),
    "albert": lambda: transformers.AlbertForPreTraining(
        transformers.AlbertConfig(**_SIZES, embedding_size=8, num_hidden_groups=3, inner_group_num=2)
    ),
    "xlnet": lambda: transformers.XLNetLMHeadModel(
        transformers.XLNetConfig(
            vocab_size=VOCAB, d_model=16, n_layer=3, n_head=2, d_inner=24, mem_len=4, clamp_len=5, dropout=0.0
        )
    ),
}
_COMMON: dict[str, Any] = {
    "vocab": VOCAB,
    "dim": 16,
    "depth": 3,
    "heads": 2,
    "ffn": 24,
    "length": 18,
    "dropout": 0.1,
    "attention_dropout": 0.2,
    "std": 0.02,
    "embedding_std": 0.1,
}
OURS: dict[str, dict[str, Any]] = {
    "bert": {
        **_COMMON,
        "_target_": "lmab.models.bert.BERT",
        "segments": 2,
        "epsilon": 1e-12,
        "positions": "sinusoidal",
    },
    "roberta": {
        **_COMMON,
        "_target_": "lmab.models.roberta.RoBERTa",
        "segments": 1,
        "epsilon": 1e-5,
        "positions": "normal",
    },
    "albert": {
        **_COMMON,
        "_target_": "lmab.models.albert.ALBERT",
        "embedding": 8,
        "segments": 2,
        "share": "all",
        "groups": 1,
        "inner": 1,
        "epsilon": 1e-12,
        "activation": "gelu_tanh",
        "positions": "normal",
    },
    "xlnet": {
        **_COMMON,
        "_target_": "lmab.models.xlnet.XLNet",
        "memory": 4,
        "clamp": None,
        "inner_dropout": 0.0,
        "epsilon": 1e-12,
    },
}
PAIRS = {"bert": NextSentence, "albert": SentenceOrder}


def _scattered(model: torch.nn.Module) -> None:
    """Give every weight a size that shows, that of the padding token too."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            drawn = torch.randn(parameter.shape, generator=generator)
            is_gain = parameter.dim() == 1 and name.endswith("weight")
            parameter.copy_(drawn * 0.1 + 1 if is_gain else drawn * 0.3)


@pytest.fixture(params=list(THEIRS))
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def theirs() -> Callable[[str], Any]:
    """A random model of transformers."""

    def made(kind: str) -> transformers.PreTrainedModel:
        model = THEIRS[kind]().eval()
        _scattered(model)
        return model

    return made


@pytest.fixture
def ours() -> Callable[..., Learner]:
    """A model of ours with every head: random, or with weights from elsewhere."""

    def made(node: Mapping[str, Any], kind: str, start: Mapping[str, Tensor] | None = None) -> Learner:
        objectives = {PAIRS[kind].name: PAIRS[kind](weight=1.0)} if kind in PAIRS else {}
        learning = Learning(
            objectives=objectives,
            optim=AdamW(lr=1e-3, beta1=0.9, beta2=0.99, epsilon=1e-8, weight_decay=0.0),
            schedule=Linear(warmup=1),
            steps=10,
            clip=None,
            seed=0,
            documents={},
            start=start,
        )
        learner = make(node, learning).eval()
        if start is None:
            _scattered(learner)
        return learner

    return made


@pytest.fixture
def nodes() -> dict[str, dict[str, Any]]:
    """A model of each kind as conf/model describes it."""
    return {kind: dict(node) for kind, node in OURS.items()}


@pytest.fixture
def read_both() -> Callable[..., dict[str, float]]:
    """Lets a model of theirs and one of ours read the same rows of different lengths, and returns the largest
    difference of everything that both say. pad: their padding token."""

    def read(model: Any, learner: Learner, kind: str, pad: int) -> dict[str, float]:
        generator = torch.Generator().manual_seed(2)
        B, T = 4, 12
        tokens = torch.randint(6, VOCAB, (B, T), generator=generator)
        lengths = torch.tensor([T, 9, 5, 1])
        real = torch.arange(T) < lengths[:, None]
        tokens = tokens.masked_fill(~real, pad)
        segments = ((torch.arange(T) >= lengths[:, None] // 2) & real).long()
        table = getattr(learner.network.embedding, "segments", None)
        if table is not None and table.num_embeddings == 1:
            segments = torch.zeros_like(segments)
        batch = Batch(
            tokens=tokens,
            segments=segments,
            view=View(real[:, None, None]),
            targets={},
            document=torch.zeros(B, dtype=torch.long),
            examples=B,
            real=int(real.sum()),
        )
        with torch.no_grad():
            said = model(
                input_ids=tokens, attention_mask=real.long(), token_type_ids=segments, output_hidden_states=True
            )
            hidden = learner.network(batch, keep=True)
            found = {
                f"layer {depth}": (mine - yours)[real]
                for depth, (mine, yours) in enumerate(zip(hidden.layers, said.hidden_states, strict=True))
            }
            logits = said.get("prediction_logits", said.get("logits"))
            if logits is not None:
                found["tokens"] = learner.network.token_logits(hidden.hidden[real]) - logits[real]
            pairs = said.get("seq_relationship_logits", said.get("sop_logits"))
            if pairs is not None:
                classifier = learner.objectives[PAIRS[kind].name].classifier
                scores = classifier(learner.network.pooled(hidden.hidden[:, 0]))
                found["pairs"] = scores.flip(-1) - pairs  # their class 0 is our class 1
        return {name: float(difference.abs().max()) for name, difference in found.items()}

    return read
