"""What a folder of a checkpoint may look like, and what is refused, in one sentence that names what is wrong."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import huggingface_hub
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from lmab.data.tokenizer import WordPiece, vocabulary
from lmab.interop import checkpoint, words
from lmab.types import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TEXT = ["The film was, above all, a long one.", "It had a cat; the cat had no lines.", "Nobody laughed at the end."]


@pytest.fixture
def folders(theirs: Callable, tmp_path: Path) -> Callable[[str], Path]:
    """A checkpoint of each kind as save_pretrained writes it, with a tokenizer."""

    def made(kind: str) -> Path:
        theirs(kind).save_pretrained(tmp_path / kind)
        WordPiece(vocab=60).learn(TEXT).save(str(tmp_path / kind / "tokenizer.json"))
        return tmp_path / kind

    return made


def change(path: Path, **values: Any) -> None:
    """Give keys of a JSON file other values; ... takes a key out."""
    said = json.loads(path.read_text()) | values
    path.write_text(json.dumps({key: value for key, value in said.items() if value is not ...}))


def retensor(folder: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    save_file(change(load_file(folder / "model.safetensors")), folder / "model.safetensors")


CONFIGS: list[tuple[str, dict[str, Any], list[str]]] = [
    ("bert", {"model_type": "distilbert"}, ["model_type='distilbert'", "bert, roberta, albert, xlnet"]),
    ("bert", {"model_type": ...}, ["model_type=None"]),
    ("bert", {"hidden_act": "silu"}, ["hidden_act='silu'", "hidden_act='gelu'"]),
    ("albert", {"hidden_act": "silu"}, ["hidden_act='silu'", "'gelu_new'"]),
    ("bert", {"position_embedding_type": "relative_key"}, ["position_embedding_type='relative_key'", "'absolute'"]),
    ("roberta", {"is_decoder": True}, ["is_decoder=True", "False"]),
    ("bert", {"tie_word_embeddings": False}, ["tie_word_embeddings=False"]),
    ("bert", {"hidden_size": ...}, ["no hidden_size"]),
    ("bert", {"hidden_size": "16"}, ["hidden_size='16'", "whole number"]),
    ("bert", {"num_hidden_layers": 2}, ["the tensor encoder.layer.2.", "config.json"]),
    ("bert", {"num_hidden_layers": 4}, ["lacks the tensor encoder.layer.3.", "config.json"]),
    ("albert", {"inner_group_num": 1}, ["the tensor encoder.albert_layer_groups.0.albert_layers.1."]),
    ("albert", {"num_hidden_layers": 18, "num_hidden_groups": 14}, ["num_hidden_groups=14", "divides"]),
    ("xlnet", {"attn_type": "uni"}, ["attn_type='uni'", "attn_type='bi'"]),
    ("xlnet", {"d_head": 4}, ["d_head=4", "8"]),
]


@pytest.mark.parametrize(("kind", "values", "said"), CONFIGS, ids=[f"{kind} {values}" for kind, values, _ in CONFIGS])
def test_a_config_that_ours_cannot_be(
    kind: str, values: dict[str, Any], said: list[str], folders: Callable[[str], Path]
) -> None:
    folder = folders(kind)
    change(folder / "config.json", **values)
    with pytest.raises(BadInput) as refused:
        checkpoint.read(folder)
    sentence = str(refused.value)
    assert "\n" not in sentence
    assert str(folder) in sentence
    for part in said:
        assert part in sentence


def test_what_a_config_leaves_out_is_as_in_transformers(kind: str, folders: Callable[[str], Path]) -> None:
    folder = folders(kind)
    whole = checkpoint.read(folder).model
    change(
        folder / "config.json",
        layer_norm_eps=...,
        initializer_range=...,
        hidden_act=... if kind != "albert" else "gelu_pytorch_tanh",
        is_decoder=...,
        pad_token_id=...,
        pruned_heads={},
        position_embedding_type="absolute",
    )
    left = checkpoint.read(folder).model
    assert left == whole | {"epsilon": 1e-12}


@pytest.mark.parametrize(
    ("act", "ours"), [("gelu_new", "gelu_tanh"), ("gelu_pytorch_tanh", "gelu_tanh"), ("gelu", "gelu"), ("relu", "relu")]
)
def test_activations_of_albert(act: str, ours: str, folders: Callable[[str], Path]) -> None:
    folder = folders("albert")
    change(folder / "config.json", hidden_act=act)
    assert checkpoint.read(folder).model["activation"] == ours


def test_an_xlnet_says_its_longest_row_in_its_tokenizer_if_anywhere(folders: Callable[[str], Path]) -> None:
    folder = folders("xlnet")
    found = checkpoint.read(folder).model
    assert (found["length"], found["memory"], found["clamp"]) == (512, 4, 5)
    for said, length in ((64, 64), (int(1e30), 512), (None, 512)):
        (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": said}))
        assert checkpoint.read(folder).model["length"] == length
    change(folder / "config.json", mem_len=None, clamp_len=-1)
    found = checkpoint.read(folder).model
    assert (found["memory"], found["clamp"]) == (0, None)


def test_pickles_are_not_opened(folders: Callable[[str], Path]) -> None:
    folder = folders("bert")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(BadInput, match=r"no model.safetensors.*can run code.*save_pretrained"):
        checkpoint.read(folder)


def test_broken_files_are_named(folders: Callable[[str], Path], tmp_path: Path) -> None:
    folder = folders("bert")
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-100])
    with pytest.raises(BadInput, match=r"model\.safetensors cannot be read"):
        checkpoint.read(folder)
    file.unlink()
    weight_map = {"a": "one.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(BadInput, match=r"one\.safetensors does not exist"):
        checkpoint.read(folder)
    for text in ("[]", "{"):
        (folder / "config.json").write_text(text)
        with pytest.raises(BadInput, match=r"config\.json is not"):
            checkpoint.read(folder)
    with pytest.raises(BadInput, match="does not exist"):
        checkpoint.read(tmp_path / "nowhere")


def test_older_files_name_norms_otherwise_and_hold_more(folders: Callable[[str], Path]) -> None:
    folder = folders("bert")
    new = checkpoint.read(folder)

    def older(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        found = {
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
            for name, tensor in tensors.items()
        }
        found["bert.embeddings.position_ids"] = torch.arange(20)[None]
        found["cls.predictions.decoder.weight"] = found["bert.embeddings.word_embeddings.weight"].clone()
        found["cls.predictions.decoder.bias"] = found.pop("cls.predictions.bias")
        found["classifier.weight"] = torch.zeros(3, 16)
        return {name: tensor.half() if tensor.is_floating_point() else tensor for name, tensor in found.items()}

    retensor(folder, older)
    old = checkpoint.read(folder)
    assert old.weights.keys() == new.weights.keys()
    for name, weight in old.weights.items():
        assert weight.dtype == torch.float32
        assert torch.equal(weight, new.weights[name].half().float())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t | {"bert.encoder.layer.0.adapter.weight": torch.zeros(2)}, "encoder.layer.0.adapter.weight"),
        (lambda t: t | {"cls.predictions.decoder.weight": torch.zeros(60, 16)}, "in our models they are one"),
        (lambda t: {k: x for k, x in t.items() if "1.output.dense.bias" not in k}, "lacks the tensor encoder.layer.1."),
        (lambda t: {k: x for k, x in t.items() if "transform.dense.bias" not in k}, "lacks the tensor cls.predictions"),
    ],
)
def test_tensors_that_do_not_fit(change: Callable, said: str, folders: Callable[[str], Path]) -> None:
    folder = folders("bert")
    retensor(folder, change)
    with pytest.raises(BadInput) as refused:
        checkpoint.read(folder)
    assert said in str(refused.value)


def test_the_fingerprint_is_of_what_is_inside(folders: Callable[[str], Path], tmp_path: Path) -> None:
    folder = folders("bert")
    name = checkpoint.read(folder).fingerprint
    assert len(name) == 16
    moved = tmp_path / "moved"
    shutil.copytree(folder, moved)
    change(moved / "config.json", transformers_version="0", use_cache=False)
    assert checkpoint.read(moved).fingerprint == name
    text = (moved / "tokenizer.json").read_text()
    (moved / "tokenizer.json").write_text(text + "\n")
    assert checkpoint.read(moved).fingerprint != name
    (moved / "tokenizer.json").write_text(text)
    change(moved / "config.json", num_attention_heads=4)
    assert checkpoint.read(moved).fingerprint != name


def test_a_tokenizer_is_built_from_vocab_txt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    learnt = WordPiece(vocab=60, lowercase=False).learn(TEXT)
    types = sorted(learnt.get_vocab().items(), key=lambda item: item[1])
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "vocab.txt").write_text("".join(f"{name}\n" for name, _ in types))
    told = {"do_lower_case": False, "tokenize_chinese_chars": True, "strip_accents": None}
    (folder / "tokenizer_config.json").write_text(json.dumps(told | {"tokenizer_class": "BertTokenizer"}))
    made = words.read(folder)
    assert made.is_relative_to(tmp_path / "cache")
    own, there = Tokenizer.from_file(str(made)), transformers.BertTokenizer.from_pretrained(folder)
    for text in (*TEXT, "Caf\u00e9, THE cat \u4e2d\u6587 was [MASK]."):
        assert own.encode(text).ids == there(text, add_special_tokens=False)["input_ids"]
    assert vocabulary(own, None).mask == there.mask_token_id
    assert words.read(folder) == made  # built once
    (folder / "tokenizer_config.json").unlink()
    assert words.read(folder) != made  # lower case, as transformers has it


def test_a_roberta_with_its_vocabulary_goes_there_and_back(
    theirs: Callable, ours: Callable, read_both: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its padding token is number 1, from which its positions are counted."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "model"
    model = theirs("roberta")
    model.save_pretrained(folder)
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    types = [*special, *"abcdefghijklmnopqrstuvwxyz", "\u0120", ".", ",", "th", "the", "\u0120the"]
    (folder / "vocab.json").write_text(json.dumps({name: number for number, name in enumerate(types)}))
    (folder / "merges.txt").write_text("#version: 0.2\nt h\nth e\n\u0120 the\n")
    found = checkpoint.read(folder)
    own, there = Tokenizer.from_file(str(found.tokenizer)), transformers.RobertaTokenizer.from_pretrained(folder)
    assert own.encode(" the <mask>").ids == [types.index("\u0120the"), 4]  # as with the published tokenizer.json
    for text in ("the cat, the end.", " the end", "a <s>"):
        assert own.encode(text).ids == there(text, add_special_tokens=False)["input_ids"]
    assert found.model["length"] == 18
    learner = ours(found.model, "roberta", found.weights)
    checkpoint.write(tmp_path / "back", found.model, learner.state_dict(), found.tokenizer)
    again = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "back").eval()
    assert again.config.max_position_embeddings == 20
    assert again.config.pad_token_id == 1
    for name, tensor in model.state_dict().items():
        unread = 2 if "position_embeddings" in name else 0
        assert torch.equal(again.state_dict()[name][unread:], tensor[unread:])
    assert max(read_both(again, learner, "roberta", 1).values()) < 1e-5


def test_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"has none: save it once more"):
        words.read(tmp_path)
    (tmp_path / "spiece.model").write_bytes(b"")
    with pytest.raises(BadInput, match=r"only spiece.model: save it once more.*AutoTokenizer"):
        words.read(tmp_path)


def test_names_are_folders_first_and_then_the_hubs(
    folders: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folders("bert")
    asked = {}

    def download(name: str, **given: Any) -> str:
        asked.update(given, name=name)
        if name == "someone/else":
            raise OSError("We couldn't connect to the hub.\nCheck your connection.")
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert checkpoint.find(str(folder)) == folder
    assert not asked
    assert checkpoint.find("google-bert/bert-base-uncased") == folder
    assert asked["name"] == "google-bert/bert-base-uncased"
    assert "*.bin" not in asked["allow_patterns"]
    with pytest.raises(BadInput) as refused:
        checkpoint.find("someone/else")
    assert "someone/else is no folder here" in str(refused.value)
    assert "couldn't connect to the hub" in str(refused.value)
    assert "\n" not in str(refused.value)
    asked.clear()
    with pytest.raises(BadInput, match="does not exist"):
        checkpoint.find(str(tmp_path / "brt"))
    assert not asked
