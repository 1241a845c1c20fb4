"""Which tensors of a Hugging Face checkpoint hold which parameter of ours: BERT, RoBERTa, ALBERT and XLNet.

Theirs keep query, key and value apart, and ours hold them in one matrix. XLNet's are products over heads, [D, H, W].

    D  width of a hidden state   H  heads   W = D / H
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import Tensor

# What of a checkpoint can be there or not, each whole: embedding and encoder, the pooler, the scores over the
# vocabulary, the classifier of two segments, and that of whole rows.
Part = Literal["base", "pooler", "tokens", "pairs", "labels"]


@dataclass(frozen=True)
class Link:
    """A parameter of ours and the tensors of theirs that hold it, and the way between them."""

    part: Part
    ours: str
    theirs: tuple[str, ...]
    take: Callable[[list[Tensor]], Tensor]  # theirs to ours
    give: Callable[[Tensor], Sequence[Tensor]]  # ours to theirs


@dataclass(frozen=True)
class Family:
    """What a kind of model is called there.

    target: the class here. prefix: of embedding, encoder and pooler in a model that has heads. base, tokens, pairs,
    labels: classes without heads, with scores over the vocabulary, with the classifier of two segments beside them
    (None: there is none), and with one of whole rows. pool: which place that one reads. head: what it is here, a linear
    map of the pooler, or a dense layer of its own below. copies: tensors that some files hold twice, and of what.
    heads: prefixes of heads that are not ours.
    """

    target: str
    prefix: str
    base: str
    tokens: str
    pairs: str | None
    labels: str
    pool: Literal["first", "last"]
    head: Literal["pooler", "dense"]
    copies: Mapping[str, str]
    heads: tuple[str, ...]


FAMILIES = {
    "bert": Family(
        target="lmab.models.bert.BERT",
        prefix="bert.",
        base="BertModel",
        tokens="BertForMaskedLM",
        pairs="BertForPreTraining",
        labels="BertForSequenceClassification",
        pool="first",
        head="pooler",
        copies={
            "cls.predictions.decoder.weight": "embeddings.word_embeddings.weight",
            "cls.predictions.decoder.bias": "cls.predictions.bias",
        },
        heads=("classifier.", "qa_outputs."),
    ),
    "roberta": Family(
        target="lmab.models.roberta.RoBERTa",
        prefix="roberta.",
        base="RobertaModel",
        tokens="RobertaForMaskedLM",
        pairs=None,
        labels="RobertaForSequenceClassification",
        pool="first",
        head="dense",
        copies={
            "lm_head.decoder.weight": "embeddings.word_embeddings.weight",
            "lm_head.decoder.bias": "lm_head.bias",
        },
        heads=("classifier.", "qa_outputs."),
    ),
    "albert": Family(
        target="lmab.models.albert.ALBERT",
        prefix="albert.",
        base="AlbertModel",
        tokens="AlbertForMaskedLM",
        pairs="AlbertForPreTraining",
        labels="AlbertForSequenceClassification",
        pool="first",
        head="pooler",
        copies={
            "predictions.decoder.weight": "embeddings.word_embeddings.weight",
            "predictions.decoder.bias": "predictions.bias",
        },
        heads=("classifier.", "qa_outputs."),
    ),
    "xlnet": Family(
        target="lmab.models.xlnet.XLNet",
        prefix="transformer.",
        base="XLNetModel",
        tokens="XLNetLMHeadModel",
        pairs=None,
        labels="XLNetForSequenceClassification",
        pool="last",
        head="dense",
        copies={"lm_loss.weight": "word_embedding.weight"},
        heads=("sequence_summary.", "logits_proj.", "classifier.", "qa_outputs.", "start_", "end_", "answer_class."),
    ),
}

_BERT_LAYER = {
    "attention.qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "attention.out": ("attention.output.dense",),
    "attention_norm": ("attention.output.LayerNorm",),
    "inner": ("intermediate.dense",),
    "outer": ("output.dense",),
    "ffn_norm": ("output.LayerNorm",),
}
_ALBERT_LAYER = {
    "attention.qkv": ("attention.query", "attention.key", "attention.value"),
    "attention.out": ("attention.dense",),
    "attention_norm": ("attention.LayerNorm",),
    "inner": ("ffn",),
    "outer": ("ffn_output",),
    "ffn_norm": ("full_layer_layer_norm",),
}
_XLNET_LAYER = {
    "attention_norm": ("rel_attn.layer_norm",),
    "inner": ("ff.layer_1",),
    "outer": ("ff.layer_2",),
    "ffn_norm": ("ff.layer_norm",),
}
_XLNET_VECTORS = {"u": "r_w_bias", "v": "r_r_bias", "s": "r_s_bias", "kinds": "seg_embed"}


def groups(model: Mapping[str, Any]) -> int:
    """Into how many groups of one layer each an ALBERT falls; layers that share nothing are all groups of their own."""
    return model["depth"] if model["share"] == "none" else model["groups"]


def links(kind: str, model: Mapping[str, Any], pad: int) -> list[Link]:
    """Every link of a model. model: its node, with its sizes. pad: the number of the padding token, from which RoBERTa
    counts positions."""
    match kind:
        case "bert":
            return [*_bert(model, 0), *_bert_heads()]
        case "roberta":
            return [*_bert(model, pad + 1), *_roberta_heads()]
        case "albert":
            return [*_albert(model)]
        case _:
            return [*_xlnet(model)]


def classifier(kind: str, head: str) -> list[Link]:
    """The links of a classifier of whole rows. head: what it is here; a pooler of ours is a dense layer in those of
    theirs that have none."""
    dense = "network.pooler.dense" if head == "pooler" else "objectives.classify.dense"
    match kind:
        case "roberta":
            pairs = {dense: "classifier.dense", "objectives.classify.out": "classifier.out_proj"}
        case "xlnet":
            pairs = {dense: "sequence_summary.summary", "objectives.classify.out": "logits_proj"}
        case _:
            pairs = {"objectives.classify.out": "classifier"}
    return [link for ours, theirs in pairs.items() for link in _dense("labels", ours, theirs)]


def _bert(model: Mapping[str, Any], offset: int) -> Iterator[Link]:
    yield from _embedding(offset)
    for number in range(model["depth"]):
        yield from _layer(number, f"encoder.layer.{number}.", _BERT_LAYER)
    yield from _dense("pooler", "network.pooler.dense", "pooler.dense")


def _bert_heads() -> Iterator[Link]:
    yield _same("tokens", "network.head.bias", "cls.predictions.bias")
    yield from _dense("tokens", "network.head.transform", "cls.predictions.transform.dense")
    yield from _dense("tokens", "network.head.norm", "cls.predictions.transform.LayerNorm")
    yield from _pair("objectives.nsp.classifier", "cls.seq_relationship")


def _roberta_heads() -> Iterator[Link]:
    yield _same("tokens", "network.head.bias", "lm_head.bias")
    yield from _dense("tokens", "network.head.transform", "lm_head.dense")
    yield from _dense("tokens", "network.head.norm", "lm_head.layer_norm")


def _albert(model: Mapping[str, Any]) -> Iterator[Link]:
    yield from _embedding(0)
    yield from _dense("base", "network.embedding.project", "encoder.embedding_hidden_mapping_in")
    inner = model["inner"]
    for number in range(groups(model) * inner):
        place = f"encoder.albert_layer_groups.{number // inner}.albert_layers.{number % inner}."
        yield from _layer(number, place, _ALBERT_LAYER)
    yield from _dense("pooler", "network.pooler.dense", "pooler")
    yield _same("tokens", "network.head.bias", "predictions.bias")
    yield from _dense("tokens", "network.head.transform", "predictions.dense")
    yield from _dense("tokens", "network.head.norm", "predictions.LayerNorm")
    yield from _pair("objectives.sop.classifier", "sop_classifier.classifier")


def _xlnet(model: Mapping[str, Any]) -> Iterator[Link]:
    heads = (model["heads"], -1)
    yield _same("base", "network.embedding.tokens.weight", "word_embedding.weight")
    yield Link("base", "network.query", ("mask_emb",), lambda t: t[0][0], lambda x: (x[None],))
    for number in range(model["depth"]):
        ours, theirs = f"network.encoder.layers.{number}.", f"layer.{number}.rel_attn."
        yield Link(
            "base",
            f"{ours}attention.qkv.weight",
            tuple(f"{theirs}{name}" for name in "qkv"),
            lambda t: torch.cat([x.flatten(1).T for x in t]),
            lambda x: [part.T.unflatten(1, heads) for part in x.chunk(3)],
        )
        yield Link(
            "base",
            f"{ours}attention.position.project.weight",
            (f"{theirs}r",),
            lambda t: t[0].flatten(1).T,
            lambda x: (x.T.unflatten(1, heads),),
        )
        yield Link(
            "base",
            f"{ours}attention.out.weight",
            (f"{theirs}o",),
            lambda t: t[0].flatten(1),
            lambda x: (x.unflatten(1, heads),),
        )
        for vector, name in _XLNET_VECTORS.items():
            yield _same("base", f"{ours}attention.position.{vector}", f"{theirs}{name}")
        yield from _layer(number, f"layer.{number}.", _XLNET_LAYER)
    yield _same("tokens", "network.head.bias", "lm_loss.bias")


def _embedding(offset: int) -> Iterator[Link]:
    """offset: rows of theirs before the one of the first position, which no text reads."""
    yield _same("base", "network.embedding.tokens.weight", "embeddings.word_embeddings.weight")
    yield Link(
        "base",
        "network.embedding.positions.weight",
        ("embeddings.position_embeddings.weight",),
        lambda t: t[0][offset:],
        lambda x: (torch.cat([x.new_zeros(offset, x.shape[1]), x]),),
    )
    yield _same("base", "network.embedding.segments.weight", "embeddings.token_type_embeddings.weight")
    yield from _dense("base", "network.embedding.norm", "embeddings.LayerNorm")


def _layer(number: int, place: str, table: Mapping[str, tuple[str, ...]]) -> Iterator[Link]:
    for ours, theirs in table.items():
        yield from _dense("base", f"network.encoder.layers.{number}.{ours}", *(place + name for name in theirs))


def _same(part: Part, ours: str, theirs: str) -> Link:
    return Link(part, ours, (theirs,), lambda t: t[0], lambda x: (x,))


def _dense(part: Part, ours: str, *theirs: str) -> Iterator[Link]:
    """Weight and bias of a linear map or a norm; of several of theirs, one below the other."""
    for kind in ("weight", "bias"):
        names = tuple(f"{name}.{kind}" for name in theirs)
        yield Link(part, f"{ours}.{kind}", names, torch.cat, lambda x: x.chunk(len(theirs)))


def _pair(ours: str, theirs: str) -> Iterator[Link]:
    """Our class 1 is that the second segment follows the first, and theirs is 0."""
    for kind in ("weight", "bias"):
        yield Link("pairs", f"{ours}.{kind}", (f"{theirs}.{kind}",), lambda t: t[0].flip(0), lambda x: (x.flip(0),))
