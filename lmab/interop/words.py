"""The tokenizer of a Hugging Face checkpoint, in and out."""

from __future__ import annotations

import json
import os
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from lmab.data import cache
from lmab.data.readers import phrase
from lmab.data.tokenizer import Ready, vocabulary
from lmab.types import BadInput

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lmab.types import Vocabulary

_WORDPIECE = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_BYTES = ("<s>", "<pad>", "</s>", "<unk>")


def read(folder: Path) -> Path:
    """The tokenizer.json of a checkpoint. One that has only its vocabulary gets its own, in the user's cache.

    BadInput: there is none, and nothing that it can be built from.
    """
    if (folder / "tokenizer.json").is_file():
        return folder / "tokenizer.json"
    known = {_wordpiece: ("vocab.txt",), _bytes: ("vocab.json", "merges.txt")}
    usable = [build for build, names in known.items() if all((folder / name).is_file() for name in names)]
    if not usable:
        said = "only spiece.model" if (folder / "spiece.model").is_file() else "none"
        raise BadInput(
            f"{folder} must hold a tokenizer.json and has {said}: save it once more there with transformers' "
            f"AutoTokenizer.from_pretrained(...).save_pretrained(...), which writes one."
        )
    build, says = usable[0], settings(folder)
    paths = [folder / name for name in known[build]]
    name = cache.key([path.read_text(encoding="utf-8") for path in paths], says, version("tokenizers"))
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lmab" / "tokenizers"

    def make(draft: Path) -> None:
        try:
            tokenizer = build(paths, says)
        except Exception as error:  # the library raises nothing narrower
            raise BadInput(f"{paths[0]} is no vocabulary: {phrase(error)}") from error
        tokenizer.save(str(draft / "tokenizer.json"))

    return cache.build(root / name, make) / "tokenizer.json"


def settings(folder: Path) -> dict[str, Any]:
    """What tokenizer_config.json says, nothing where there is none."""
    path = folder / "tokenizer_config.json"
    return load(path) if path.is_file() else {}


def load(path: Path) -> dict[str, Any]:
    """A JSON object. BadInput: the file is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise BadInput(f"{path} is not JSON: {phrase(error)}.") from error
    if not isinstance(found, dict):
        raise BadInput(f"{path} is not a JSON object but {type(found).__name__}.")
    return found


def _wordpiece(paths: list[Path], says: Mapping[str, Any]) -> Tokenizer:
    """BERT's, from its vocab.txt."""
    lines = paths[0].read_text(encoding="utf-8").split("\n")
    types = {line.rstrip("\r"): number for number, line in enumerate(lines) if line}
    tokenizer = Tokenizer(models.WordPiece(types, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(
        handle_chinese_chars=says.get("tokenize_chinese_chars", True),
        strip_accents=says.get("strip_accents"),
        lowercase=says.get("do_lower_case", True),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens([name for name in _WORDPIECE if name in types])
    return tokenizer


def _bytes(paths: list[Path], says: Mapping[str, Any]) -> Tokenizer:
    """RoBERTa's, from its vocab.json and merges.txt."""
    tokenizer = Tokenizer(models.BPE.from_file(*map(str, paths)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=says.get("add_prefix_space", False))
    tokenizer.decoder = decoders.ByteLevel()
    types = tokenizer.get_vocab()
    tokenizer.add_special_tokens([name for name in _BYTES if name in types])
    if "<mask>" in types:  # it takes the space before it, as published
        tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True)])
    return tokenizer


def write(folder: Path, tokenizer: Path, kind: str, model: Mapping[str, Any]) -> Vocabulary:
    """Write a tokenizer as AutoTokenizer reads it, which puts the special tokens around a text as our rows have them:
    [CLS] A [SEP] B [SEP], for XLNet A [SEP] B [SEP] [CLS]. Returns what is known of it."""
    made = Ready(path=str(tokenizer)).learn([])
    words = vocabulary(made, model["vocab"])
    named = {
        "pad_token": words.pad,
        "unk_token": words.unknown,
        "cls_token": words.first,
        "sep_token": words.last,
        "mask_token": words.mask,
    }
    named = {name: made.id_to_token(number) for name, number in named.items()}
    first, last = named["cls_token"], named["sep_token"]
    two = int(kind == "xlnet" or model["segments"] > 1)  # where there is one kind of segment, both are of it
    single, pair = f"$A:0 {last}:0", f"$A:0 {last}:0 $B:{two} {last}:{two}"
    if kind == "xlnet":
        single, pair = f"{single} {first}:0", f"{pair} {first}:{two}"
    else:
        single, pair = f"{first}:0 {single}", f"{first}:0 {pair}"
    made.post_processor = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=[(first, words.first), (last, words.last)]
    )
    made.save(str(folder / "tokenizer.json"))
    says = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": model["length"],
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        **named,
    }
    dump(folder / "tokenizer_config.json", says)
    dump(folder / "special_tokens_map.json", named)
    return words


def dump(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
