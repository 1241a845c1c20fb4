"""Hugging Face's config.json to the node of a model, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lmab.interop.names import FAMILIES, groups
from lmab.types import BadInput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from lmab.types import Vocabulary

# Knob of ours -> (key of theirs, what theirs is where the file does not say it; None: it must).
_BERT: dict[str, tuple[str, Any]] = {
    "vocab": ("vocab_size", None),
    "dim": ("hidden_size", None),
    "depth": ("num_hidden_layers", None),
    "heads": ("num_attention_heads", None),
    "ffn": ("intermediate_size", None),
    "length": ("max_position_embeddings", None),
    "segments": ("type_vocab_size", 2),
    "dropout": ("hidden_dropout_prob", 0.1),
    "attention_dropout": ("attention_probs_dropout_prob", 0.1),
    "epsilon": ("layer_norm_eps", 1e-12),
    "std": ("initializer_range", 0.02),
}
_KNOBS: dict[str, dict[str, tuple[str, Any]]] = {
    "bert": _BERT,
    "roberta": _BERT,
    "albert": {
        **_BERT,
        "embedding": ("embedding_size", None),
        "groups": ("num_hidden_groups", 1),
        "inner": ("inner_group_num", 1),
        "dropout": ("hidden_dropout_prob", 0.0),
        "attention_dropout": ("attention_probs_dropout_prob", 0.0),
    },
    "xlnet": {
        "vocab": ("vocab_size", None),
        "dim": ("d_model", None),
        "depth": ("n_layer", None),
        "heads": ("n_head", None),
        "ffn": ("d_inner", None),
        "dropout": ("dropout", 0.1),
        "epsilon": ("layer_norm_eps", 1e-12),
        "std": ("initializer_range", 0.02),
    },
}
_PADDING = {"bert": 0, "roberta": 1, "albert": 0, "xlnet": 5}  # where the file does not say it
# Key -> the values of theirs that our models have; where the file does not say it, it has the first.
_EVERY: dict[str, tuple[Any, ...]] = {
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "tie_word_embeddings": (True,),
    "pruned_heads": ({}, None),
}
_ABSOLUTE = {"position_embedding_type": ("absolute", None)}
_FIXED: dict[str, dict[str, tuple[Any, ...]]] = {
    "bert": {**_EVERY, **_ABSOLUTE, "hidden_act": ("gelu",)},
    "roberta": {**_EVERY, **_ABSOLUTE, "hidden_act": ("gelu",)},
    "albert": {**_EVERY, **_ABSOLUTE, "hidden_act": ("gelu_new", "gelu_pytorch_tanh", "gelu", "relu")},
    "xlnet": {**_EVERY, "attn_type": ("bi",), "ff_activation": ("gelu",)},
}
_ACTIVATIONS = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu", "relu": "relu"}
LONGEST = 512  # a row of an XLNet whose files do not say it


def kind(config: Mapping[str, Any], file: Path) -> str:
    """Of what family a checkpoint is. BadInput: of none of ours."""
    found = config.get("model_type")
    if found not in FAMILIES:
        raise BadInput(f"{file} has model_type={found!r}, and what can be read is {', '.join(FAMILIES)}.")
    return found


def padding(config: Mapping[str, Any], kind: str) -> int:
    """The number of the padding token."""
    found = config.get("pad_token_id")
    return _PADDING[kind] if found is None else found


def node(config: Mapping[str, Any], kind: str, file: Path, longest: int) -> dict[str, Any]:
    """The node of the model that a config.json describes, every knob in it. longest: a row of an XLNet, for which the
    file has no key. BadInput: something that our models do not have, by its key."""
    for key, values in _FIXED[kind].items():
        if config.get(key, values[0]) not in values:
            known = " or ".join(repr(value) for value in values if value is not None)
            raise BadInput(f"{file} has {key}={config[key]!r}, and model={kind} has {key}={known} alone.")
    model: dict[str, Any] = {"_target_": FAMILIES[kind].target}
    for ours, (theirs, default) in _KNOBS[kind].items():
        value = config.get(theirs, default)
        if value is None:
            raise BadInput(f"{file} has no {theirs}, which a checkpoint of model_type={kind!r} must say.")
        wanted = float if isinstance(default, float) else int
        if isinstance(value, bool) or not isinstance(value, wanted | int):
            raise BadInput(f"{file} has {theirs}={value!r}, which is no {'whole ' * (wanted is int)}number.")
        model[ours] = value
    model["embedding_std"] = model["std"]
    if kind == "xlnet":
        return model | _xlnet(config, model, file, longest)
    model["positions"] = "normal"
    if kind == "roberta":
        model["length"] -= padding(config, kind) + 1  # rows of the table that no text reads
    if kind == "albert":
        model |= {"share": "all", "activation": _ACTIVATIONS[config.get("hidden_act", "gelu_new")]}
        _grouped(model, f"{file} has num_hidden_layers={model['depth']} and num_hidden_groups={model['groups']}")
    return model


def _xlnet(config: Mapping[str, Any], model: Mapping[str, Any], file: Path, longest: int) -> dict[str, Any]:
    width = model["dim"] // model["heads"]
    if (config.get("d_head") or width) != width:
        raise BadInput(
            f"{file} has d_head={config['d_head']}, and model=xlnet has d_head=d_model/n_head={width} alone."
        )
    clamp = config.get("clamp_len", -1)
    return {
        "length": longest,
        "memory": config.get("mem_len", 512) or 0,
        "clamp": clamp if clamp > 0 else None,
        "inner_dropout": model["dropout"],
        "attention_dropout": model["dropout"],
    }


def _grouped(model: Mapping[str, Any], complaint: str) -> None:
    """BadInput: a number of groups with which their rounding puts a layer into another group than the paper does."""
    depth, parts = model["depth"], groups(model)
    if any(int(i / (depth / parts)) != i * parts // depth for i in range(depth)):
        raise BadInput(
            f"{complaint}, which Hugging Face's code divides unevenly: only a number of groups that divides the layers "
            f"is safe, such as 1."
        )


# What is summarised in a row of an XLNet, where its classifier is one that ours can be.
_SUMMARY = {"summary_type": "last", "summary_use_proj": True, "summary_activation": "tanh"}


def labels(config: Mapping[str, Any], kind: str, file: Path) -> tuple[str, ...] | None:
    """The names of the classes that a checkpoint tells apart, by their numbers; None where it is no classifier of whole
    rows. BadInput: one that ours cannot be, or whose numbers are not 0, 1, 2 and on."""
    if FAMILIES[kind].labels not in (config.get("architectures") or []):
        return None
    for key, value in _SUMMARY.items() if kind == "xlnet" else ():
        if config.get(key, value) != value:
            raise BadInput(f"{file} has {key}={config[key]!r}, and a classifier here has {key}={value!r} alone.")
    named = config.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}  # what theirs are without a word
    if sorted(named) != sorted(map(str, range(len(named)))):
        raise BadInput(f"{file} numbers its labels {', '.join(sorted(named))}, which are not 0 to {len(named) - 1}.")
    return tuple(str(named[str(number)]) for number in range(len(named)))


def described(
    kind: str,
    model: Mapping[str, Any],
    words: Vocabulary,
    architecture: str,
    classes: Sequence[str] | None = None,
) -> dict[str, Any]:
    """The config.json of a model. architecture: the class that the tensors are for. classes: that it tells apart, one
    for a score. BadInput: a model that theirs cannot be.

    Theirs have one dropout where XLNet has three: that of the sublayers is written.
    """
    found: dict[str, Any] = {
        "architectures": [architecture],
        "model_type": kind,
        **{theirs: model[ours] for ours, (theirs, _) in _KNOBS[kind].items()},
        "pad_token_id": words.pad,
        "tie_word_embeddings": True,
        "dtype": "float32",
    }
    if classes is not None:
        found |= {
            "id2label": {str(number): name for number, name in enumerate(classes)},
            "label2id": {name: number for number, name in enumerate(classes)},
            "problem_type": "regression" if len(classes) == 1 else "single_label_classification",
            **(_SUMMARY if kind == "xlnet" else {}),
        }
    if kind != "bert":
        found |= {"bos_token_id": words.first, "eos_token_id": words.last}
    if kind == "xlnet":
        if model["clamp"] is not None and model["clamp"] < 1:
            raise BadInput(f"model.clamp={model['clamp']} has no like in Hugging Face's XLNet: it clamps from 1 up.")
        return found | {
            "ff_activation": "gelu",
            "attn_type": "bi",
            "clamp_len": -1 if model["clamp"] is None else model["clamp"],
            "mem_len": model["memory"] or None,
            "use_mems_eval": model["memory"] > 0,
        }
    if kind == "albert":
        if model["share"] in ("attention", "ffn") and model["groups"] < model["depth"]:
            raise BadInput(
                f"model.share={model['share']} has no like in Hugging Face's ALBERT, which shares whole layers: export "
                f"a run with model.share=all or model.share=none."
            )
        _grouped(model, f"model.depth={model['depth']} falls into model.groups={model['groups']}")
        activations = {ours: theirs for theirs, ours in reversed(_ACTIVATIONS.items())}
        return found | {"num_hidden_groups": groups(model), "hidden_act": activations[model["activation"]]}
    if kind == "roberta":
        found["max_position_embeddings"] += words.pad + 1
    return found | {"hidden_act": "gelu"}
