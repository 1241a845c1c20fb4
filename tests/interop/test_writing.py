"""What can be written, what is left out, and what is refused; and the command that does it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer

from lmab.data.tokenizer import WordPiece
from lmab.export import export
from lmab.interop import checkpoint
from lmab.run import run
from lmab.store import Store
from lmab.types import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from omegaconf import DictConfig

TEXT = ["The film was, above all, a long one.", "It had a cat; the cat had no lines.", "Nobody laughed at the end."]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    path = tmp_path / "own.json"
    WordPiece(vocab=60).learn(TEXT).save(str(path))
    return path


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("bert", {"_target_": "lmab.models.transformer_xl.TransformerXL"}, "model=transformer_xl has no like"),
    ("albert", {"share": "attention"}, "model.share=attention"),
    ("albert", {"share": "ffn", "groups": 2}, "model.share=ffn"),
    ("albert", {"depth": 18, "groups": 14}, "model.groups=14"),
    ("xlnet", {"clamp": 0}, "model.clamp=0"),
    ("bert", {"depth": 4}, "network.encoder.layers.3.attention.qkv.weight is not among the weights"),
    ("bert", {"vocab": 10}, "smaller than the tokenizer"),
]


@pytest.mark.parametrize(("kind", "knobs", "said"), REFUSED, ids=[said for _, _, said in REFUSED])
def test_what_theirs_cannot_be(
    kind: str,
    knobs: dict[str, Any],
    said: str,
    nodes: dict[str, dict[str, Any]],
    ours: Callable,
    tokenizer: Path,
    tmp_path: Path,
) -> None:
    few = kind == "bert" or "clamp" in knobs  # the weights are those of the model without these knobs
    node = nodes[kind] | knobs
    weights = ours(nodes[kind] if few else node, kind).state_dict()
    with pytest.raises(BadInput) as refused:
        checkpoint.write(tmp_path / "out" / "model", node, weights, tokenizer)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "out").exists() or list((tmp_path / "out").iterdir()) == []


def test_nothing_is_overwritten(
    nodes: dict[str, dict[str, Any]], ours: Callable, tokenizer: Path, tmp_path: Path
) -> None:
    weights = ours(nodes["bert"], "bert").state_dict()
    folder = tmp_path / "model"
    folder.mkdir()
    checkpoint.write(folder, nodes["bert"], weights, tokenizer)  # an empty one is filled
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for there in (folder, tokenizer):
        with pytest.raises(BadInput, match="not empty"):
            checkpoint.write(there, nodes["bert"], weights, tokenizer)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert sorted(before) == [
        "config.json",
        "model.safetensors",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]


def test_the_class_is_the_one_whose_heads_are_there(
    nodes: dict[str, dict[str, Any]], ours: Callable, tokenizer: Path, tmp_path: Path
) -> None:
    weights = ours(nodes["bert"], "bert").state_dict()
    task = {"objectives.classify.out.weight": torch.zeros(2, 16), "objectives.sop.classifier.bias": torch.zeros(2)}

    def written(*without: str) -> tuple[str, list[str]]:
        kept = {name: weight for name, weight in (weights | task).items() if not name.startswith(without)}
        folder = tmp_path / "-".join(without)
        left = checkpoint.write(folder, nodes["bert"], kept, tokenizer)
        (architecture,) = transformers.AutoConfig.from_pretrained(folder).architectures
        _, info = getattr(transformers, architecture).from_pretrained(folder, output_loading_info=True)
        assert not {name for name in info["missing_keys"] if "pooler" not in name}
        return architecture, left

    assert written("none") == ("BertForPreTraining", sorted(task))
    assert written("objectives.") == ("BertForMaskedLM", [])
    assert written("objectives.", "network.pooler.") == ("BertForMaskedLM", [])
    assert written("network.head.") == (
        "BertModel",
        sorted([*task, "objectives.nsp.classifier.weight", "objectives.nsp.classifier.bias"]),
    )


@pytest.mark.slow
def test_a_run_is_exported_and_started_from(
    lmab: Callable[..., tuple[int, str, str]], composed: Callable[..., DictConfig], tmp_path: Path
) -> None:
    store, model = Store(tmp_path / "runs"), tmp_path / "model"
    few = ("trainer.steps=2", f"store={store.root}")
    record = run(composed("experiment=bert", *few))
    assert lmab("--store", str(store.root), "export", record.signature[:6], str(model))[:2] == (0, f"{model}\n")
    (last, *_) = (store.folder(record.signature) / "checkpoints").glob("step-*2.ckpt")
    weights = torch.load(last, weights_only=True)["state_dict"]
    there = transformers.AutoModelForPreTraining.from_pretrained(model)
    assert torch.equal(there.bert.embeddings.word_embeddings.weight, weights["network.embedding.tokens.weight"])
    assert torch.equal(there.cls.seq_relationship.bias, weights["objectives.nsp.classifier.bias"].flip(0))
    words = transformers.AutoTokenizer.from_pretrained(model)
    (file,) = (store.root / "data").glob("*/tokenizer/tokenizer.json")
    own = Tokenizer.from_file(str(file))
    assert words("It was long.", add_special_tokens=False)["input_ids"] == own.encode("It was long.").ids
    with pytest.raises(BadInput, match="not empty"):
        export(store, record.signature, model)
    with pytest.raises(BadInput, match="No run"):
        export(store, "zz", tmp_path / "other")
    # A classifier that starts from it is exported as one, without scores over the vocabulary, which it did not learn.
    tuned = run(composed("experiment=finetune", f"start=hf:{model}", *few))
    assert tuned.state == "done"
    assert export(store, tuned.signature, tmp_path / "tuned") == [
        "network.head",
        "network.head.norm",
        "network.head.transform",
    ]
    architectures = transformers.AutoConfig.from_pretrained(tmp_path / "tuned").architectures
    assert architectures == ["BertForSequenceClassification"]
