"""The same weights say the same on both sides: published models here, and models from here in transformers."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers
from hydra.utils import get_class
from tokenizers import Tokenizer

from lmab.data.tokenizer import ByteLevelBPE, WordPiece, vocabulary
from lmab.interop import checkpoint
from lmab.interop.names import FAMILIES, links
from lmab.types import Batch, View

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lmab.train.learner import Learner

PADDING = {"bert": 0, "roberta": 1, "albert": 0, "xlnet": 5}
TEXT = ["The film was, above all, a long one.", "It had a cat; the cat had no lines.", "Nobody laughed at the end."]


@pytest.fixture
def tokenizer(tmp_path: Path, kind: str) -> Path:
    """A small tokenizer as our runs learn it: words for BERT and ALBERT, bytes for the others."""
    learner = WordPiece(vocab=60) if kind in ("bert", "albert") else ByteLevelBPE(vocab=300)
    path = tmp_path / "own.json"
    learner.learn(TEXT).save(str(path))
    return path


def test_a_published_model_says_the_same_here(
    kind: str, tokenizer: Path, theirs: Callable, ours: Callable, read_both: Callable, tmp_path: Path
) -> None:
    model = theirs(kind)
    model.save_pretrained(tmp_path / "model")
    tokenizer.rename(tmp_path / "model" / "tokenizer.json")
    found = checkpoint.read(tmp_path / "model")
    differences = read_both(model, ours(found.model, kind, found.weights), kind, PADDING[kind])
    assert len(differences) >= 5
    assert max(differences.values()) < 1e-5, differences
    # Every tensor of theirs is used, and every parameter of ours is filled.
    parameters = dict(ours(found.model, kind).named_parameters())
    assert found.weights.keys() == parameters.keys()
    assert sum(w.numel() for w in found.weights.values()) == sum(p.numel() for p in model.parameters()) - (
        (PADDING[kind] + 1) * 16 if kind == "roberta" else 0
    )
    # Every knob of the class is said.
    knobs = inspect.signature(get_class(found.model["_target_"])).parameters.keys() - {"learning"}
    assert found.model.keys() - {"_target_"} == knobs


@pytest.mark.parametrize("sharded", [False, True])
def test_a_model_without_heads(
    kind: str, sharded: bool, tokenizer: Path, theirs: Callable, ours: Callable, read_both: Callable, tmp_path: Path
) -> None:
    """Its tensors have no prefix; in shards they lie in several files. What it lacks begins by the model's rule."""
    model = theirs(kind).base_model
    model.save_pretrained(tmp_path / "model", max_shard_size="5KB" if sharded else "5GB")
    assert (tmp_path / "model" / "model.safetensors.index.json").exists() == sharded
    tokenizer.rename(tmp_path / "model" / "tokenizer.json")
    found = checkpoint.read(tmp_path / "model")
    assert not any(name.startswith(("network.head.", "objectives.")) for name in found.weights)
    differences = read_both(model, ours(found.model, kind, found.weights), kind, PADDING[kind])
    assert "tokens" not in differences
    assert max(differences.values()) < 1e-5, differences


VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("bert", {}),
    ("bert", {"segments": 1}),
    ("roberta", {}),
    ("roberta", {"segments": 2}),
    ("albert", {}),
    ("albert", {"groups": 3, "inner": 2, "activation": "gelu"}),
    ("albert", {"share": "none", "activation": "relu"}),
    ("albert", {"share": "none", "inner": 2}),
    ("albert", {"share": "attention", "groups": 3}),
    ("albert", {"depth": 4, "groups": 2}),
    ("albert", {"depth": 5, "groups": 3}),
    ("xlnet", {}),
    ("xlnet", {"memory": 0, "clamp": 3, "dropout": 0.0}),
]


@pytest.mark.parametrize(("kind", "knobs"), VARIANTS, ids=[f"{kind} {knobs}" for kind, knobs in VARIANTS])
def test_a_model_of_ours_says_the_same_there(
    kind: str,
    knobs: dict[str, Any],
    tokenizer: Path,
    nodes: dict[str, dict[str, Any]],
    ours: Callable[..., Learner],
    read_both: Callable,
    tmp_path: Path,
) -> None:
    vocab = {} if kind in ("bert", "albert") else {"vocab": 300}
    node = nodes[kind] | knobs | vocab
    learner = ours(node, kind)
    weights = learner.state_dict()
    assert checkpoint.write(tmp_path / "out" / "model", node, weights, tokenizer) == []
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model"]  # no draft is left
    pad = vocabulary(Tokenizer.from_file(str(tokenizer)), None).pad
    with_tokens = transformers.AutoModelForCausalLM if kind == "xlnet" else transformers.AutoModelForMaskedLM
    for auto in (with_tokens, transformers.AutoModel, transformers.AutoModelForPreTraining):
        model, info = auto.from_pretrained(tmp_path / "out" / "model", output_loading_info=True)
        # Only a class with a pooler that the run had no use for makes one of its own.
        assert all("pooler" in name for name in info["missing_keys"])
        assert not info["mismatched_keys"]
        differences = read_both(model.eval(), learner, kind, pad)
        assert max(differences.values()) < 1e-5, (auto, differences)
    if kind in ("bert", "albert"):
        assert "pairs" in differences
    found = checkpoint.read(tmp_path / "out" / "model")
    assert found.weights.keys() == weights.keys()
    assert all(torch.equal(found.weights[name], weights[name]) for name in weights)
    back = found.model
    same = back.keys() - {"positions", "embedding_std", "share", "groups", "inner_dropout", "attention_dropout"}
    assert {key: back[key] for key in same} == {key: node[key] for key in same}
    if node.get("share") == "none":
        assert (back["share"], back["groups"]) == ("all", node["depth"])


def test_a_round_trip_changes_no_tensor(
    kind: str, tokenizer: Path, nodes: dict[str, dict[str, Any]], ours: Callable, tmp_path: Path
) -> None:
    node = nodes[kind] | {"vocab": 300}
    weights = ours(node, kind).state_dict()
    checkpoint.write(tmp_path / "a", node, weights, tokenizer)
    first = checkpoint.read(tmp_path / "a")
    checkpoint.write(tmp_path / "b", first.model, first.weights, first.tokenizer)
    second = checkpoint.read(tmp_path / "b")
    assert first.model == second.model
    assert all(torch.equal(first.weights[name], second.weights[name]) for name in weights)
    assert first.fingerprint == second.fingerprint
    for name in ("model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    some = next(iter(weights))
    changed = weights | {some: weights[some] + 1}
    checkpoint.write(tmp_path / "c", node, changed, tokenizer)
    assert checkpoint.read(tmp_path / "c").fingerprint != first.fingerprint


def test_the_tokenizer_there_makes_our_rows(
    kind: str, tokenizer: Path, nodes: dict[str, dict[str, Any]], ours: Callable, tmp_path: Path
) -> None:
    node = nodes[kind] | {"vocab": 300}
    checkpoint.write(tmp_path / "model", node, ours(node, kind).state_dict(), tokenizer)
    there = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    own = Tokenizer.from_file(str(tokenizer))
    words = vocabulary(own, None)
    a, b = (own.encode(text, add_special_tokens=False).ids for text in TEXT[:2])
    first, last = [words.first], [words.last]
    one, two = [*a, *last], [*a, *last, *b, *last]
    if kind == "xlnet":
        assert there(TEXT[0])["input_ids"] == one + first
        assert there(TEXT[0], TEXT[1])["input_ids"] == two + first
    else:
        assert there(TEXT[0])["input_ids"] == first + one
        assert there(TEXT[0], TEXT[1])["input_ids"] == first + two
    types = there(TEXT[0], TEXT[1])["token_type_ids"]
    assert max(types) == (0 if kind == "roberta" else 1)
    assert sum(types) == (0 if kind == "roberta" else len(b) + 1 + (kind == "xlnet"))
    assert there.mask_token_id == words.mask
    assert there.pad_token_id == words.pad
    assert there.model_max_length == node["length"]
    padded = there(TEXT, padding=True)["input_ids"]
    assert padded[-1][-1] == words.pad
    assert there.decode(a).strip().lower() == own.decode(a).strip().lower()
    model = transformers.AutoModel.from_pretrained(tmp_path / "model")
    assert model(**there(TEXT[:1], TEXT[1:2], truncation=True, return_tensors="pt")).last_hidden_state.isfinite().all()


@pytest.mark.parametrize("kind", ["xlnet"])
def test_two_streams_and_a_memory_of_a_published_xlnet(
    kind: str, tokenizer: Path, theirs: Callable, ours: Callable, tmp_path: Path
) -> None:
    model = theirs(kind)
    model.save_pretrained(tmp_path / "model")
    tokenizer.rename(tmp_path / "model" / "tokenizer.json")
    found = checkpoint.read(tmp_path / "model")
    learner = ours(found.model, kind, found.weights)
    generator = torch.Generator().manual_seed(3)
    B, T, P = 3, 7, 3
    tokens = torch.randint(6, 60, (B, T), generator=generator)
    hidden_from = (torch.rand(B, T, T, generator=generator) < 0.3) | torch.eye(T, dtype=torch.bool)
    queries = torch.stack([torch.randperm(T, generator=generator)[:P].sort().values for _ in range(B)])
    memory = [torch.randn(B, 4, 16, generator=generator) for _ in range(3)]
    with torch.no_grad():
        said = model(
            input_ids=tokens,
            perm_mask=hidden_from.float(),
            target_mapping=torch.nn.functional.one_hot(queries, T).float(),
            mems=[m.transpose(0, 1) for m in memory],
            use_mems=False,
        )
        seen = ~hidden_from
        view = View(
            visible=(seen | torch.eye(T, dtype=torch.bool))[:, None],
            queries=queries,
            query_visible=seen.gather(1, queries[..., None].expand(B, P, T))[:, None],
        )
        batch = Batch(tokens, None, view, {}, torch.zeros(B, dtype=torch.long), B, B * T)
        second = learner.network(batch, memory=memory).second
        assert second is not None
        logits = learner.network.token_logits(second).view(B, P, -1)
    assert float((logits - said.logits).abs().max()) < 1e-5


def test_links_name_every_parameter_once(kind: str, nodes: dict[str, dict[str, Any]], ours: Callable) -> None:
    names = [link.ours for link in links(kind, nodes[kind], pad=0)]
    assert len(names) == len(set(names))
    # No objective of the test asks RoBERTa's pooler.
    assert {name for name in names if kind != "roberta" or "pooler" not in name} == {
        name for name, _ in ours(nodes[kind], kind).named_parameters()
    }
    theirs = [name for link in links(kind, nodes[kind], pad=0) for name in link.theirs]
    assert len(theirs) == len(set(theirs))
    assert FAMILIES[kind].target == nodes[kind]["_target_"]
