"""Classifiers of whole rows: from transformers, back to it, and as teachers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers

from lmab import starting
from lmab.data.tokenizer import WordPiece
from lmab.export import export
from lmab.interop import checkpoint
from lmab.run import resolve, run
from lmab.store import Store
from lmab.types import Ask, BadInput
from lmab.wiring import build_data, build_learner, made

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from omegaconf import DictConfig
    from torch import Tensor

    from lmab.types import Batch

    Composed = Callable[..., DictConfig]

VOCAB = 300
SIZES: dict[str, Any] = {"vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
SIZES |= {"intermediate_size": 24, "max_position_embeddings": 40}
XLNET = {"vocab_size": VOCAB, "d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 24}
CONFIGS: dict[str, Callable[..., transformers.PretrainedConfig]] = {
    "bert": lambda **more: transformers.BertConfig(**SIZES, **more),
    "roberta": lambda **more: transformers.RobertaConfig(**SIZES, type_vocab_size=1, pad_token_id=0, **more),
    "albert": lambda **more: transformers.AlbertConfig(**SIZES, embedding_size=8, **more),
    "xlnet": lambda **more: transformers.XLNetConfig(**XLNET, pad_token_id=0, **more),
}
HEADS = {"bert": ("first", "pooler"), "roberta": ("first", "dense")}
HEADS |= {"albert": ("first", "pooler"), "xlnet": ("last", "dense")}
LAST = ["segments=segment_pair", "segments.last=true"]
NAMES = {"id2label": {0: "Negative", 1: "Positive"}, "label2id": {"Negative": 0, "Positive": 1}}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("classifiers")


@pytest.fixture
def folder(tmp_path: Path, sentences: list[str]) -> Callable[..., Path]:
    """A random classifier of a kind, as save_pretrained writes it."""

    def write(kind: str, seed: int = 0, **more: Any) -> Path:
        torch.manual_seed(seed)
        config = CONFIGS[kind](**NAMES | more)
        model = transformers.AutoModelForSequenceClassification.from_config(config)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
        path = tmp_path / kind
        model.save_pretrained(path)
        WordPiece(vocab=VOCAB).learn(sentences).save(str(path / "tokenizer.json"))
        return path

    return write


def line(kind: str, path: Path | str) -> list[str]:
    pool, head = HEADS[kind]
    knobs = [f"objective.classify.pool={pool}", f"objective.classify.head={head}"]
    # [CLS] stands where the classifier reads.
    return ["experiment=finetune", f"start='hf:{path}'", *knobs, *(LAST if pool == "last" else [])]


def scores(config: dict[str, Any], weights: dict[str, Tensor] | None = None) -> tuple[Batch, Tensor, Any]:
    """A batch of held-out rows, and what the model of a resolved configuration scores them."""
    objectives = made(config["objective"])
    _, data = build_data(config, objectives)
    start = starting.weights(config) if weights is None else weights
    learner = build_learner(config, objectives, data, 0, start).eval()
    batch = data.validation[0]
    with torch.no_grad():
        seen = learner.seen(batch, "validation", 0, Ask(scores=frozenset(["classify"])))
    return batch, seen.outcomes["classify"].scores, learner


def there(path: Path, batch: Batch) -> Tensor:
    model = transformers.AutoModelForSequenceClassification.from_pretrained(path).eval()
    found = []
    lengths = [batch.tokens.shape[1]] * len(batch.tokens) if batch.lengths is None else batch.lengths.tolist()
    for number, (row, length) in enumerate(zip(batch.tokens, lengths, strict=True)):
        more = {}
        if batch.segments is not None and model.config.model_type != "roberta":
            more["token_type_ids"] = batch.segments[number : number + 1, :length].long()
        with torch.no_grad():
            found.append(model(row[None, :length].long(), **more).logits)
    return torch.cat(found)


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_classifier_says_the_same_here(
    kind: str, folder: Callable[..., Path], composed: Composed, store: Path
) -> None:
    path = folder(kind)
    found = checkpoint.read(path)
    assert found.labels == ("Negative", "Positive")
    config, _ = resolve(composed(f"store={store}", *line(kind, path)))
    batch, ours, _ = scores(config)
    theirs = there(path, batch)
    assert theirs.std() > 0.01
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("kind", "head"), [("bert", "pooler"), ("roberta", "dense"), ("roberta", "pooler"), ("albert", "pooler")]
)
def test_a_run_is_exported_with_its_classifier(
    kind: str, head: str, composed: Composed, store: Path, tmp_path: Path
) -> None:
    before = f"start=['experiment={kind}','trainer.steps=2']"
    record = run(
        composed(f"store={store}", "experiment=finetune", before, f"objective.classify.head={head}", "trainer.steps=2")
    )
    left = export(Store(store), record.signature, tmp_path / "out")
    assert not any(name.startswith("objectives.classify") for name in left)
    said = json.loads((tmp_path / "out" / "config.json").read_text())
    assert said["id2label"] == {"0": "negative", "1": "positive"}
    assert said["problem_type"] == "single_label_classification"
    weights = starting.last_weights(Store(store), record.signature, record.config)
    batch, ours, _ = scores(record.config, weights)
    torch.testing.assert_close(there(tmp_path / "out", batch), ours, atol=1e-5, rtol=1e-5)
    # And it starts another run, head and all.
    if head == HEADS[kind][1]:
        config, _ = resolve(composed(f"store={store}", *line(kind, tmp_path / "out"), "frozen=false"))
        again = starting.weights(config)
        assert again is not None
        for name, tensor in again.items():
            assert torch.equal(tensor, weights[name]), name
        assert "objectives.classify.out.weight" in again


def test_what_low_precision_left_is_exported(composed: Composed, store: Path, tmp_path: Path) -> None:
    before = "start=['experiment=bert','trainer.steps=2']"
    record = run(composed(f"store={store}", "experiment=finetune", before, "quantize=ternary", "trainer.steps=2"))
    export(Store(store), record.signature, tmp_path / "out")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    values = model.bert.encoder.layer[0].intermediate.dense.weight
    assert len(values.unique()) == 3


def test_a_classifier_of_another_build_is_left_out(composed: Composed, store: Path, tmp_path: Path) -> None:
    before = "start=['experiment=bert','trainer.steps=2']"
    line_ = ["experiment=finetune", before, "objective.classify.head=linear", "objective.classify.pool=mean"]
    record = run(composed(f"store={store}", *line_, "trainer.steps=2"))
    assert "objectives.classify.out" in export(Store(store), record.signature, tmp_path / "out")
    assert transformers.AutoConfig.from_pretrained(tmp_path / "out").architectures == ["BertModel"]


@pytest.mark.parametrize(
    ("names", "order"),
    [(["NEGATIVE", "positive"], [0, 1]), (["positive", "negative"], [1, 0]), (["LABEL_0", "LABEL_1"], [0, 1])],
)
def test_a_start_is_taken_by_the_names_of_its_classes(
    names: list[str], order: list[int], folder: Callable[..., Path], composed: Composed, store: Path
) -> None:
    path = folder("bert", id2label=dict(enumerate(names)), label2id={name: n for n, name in enumerate(names)})
    config, _ = resolve(composed(f"store={store}", *line("bert", path)))
    batch, ours, _ = scores(config)
    torch.testing.assert_close(ours, there(path, batch)[:, order], atol=1e-5, rtol=1e-5)


def test_a_classifier_of_other_classes_is_no_start_for_these(
    folder: Callable[..., Path], composed: Composed, store: Path
) -> None:
    path = folder("bert", id2label={0: "a", 1: "b", 2: "c"}, label2id={"a": 0, "b": 1, "c": 2})
    config, _ = resolve(composed(f"store={store}", *line("bert", path)))
    found = starting.weights(config)
    assert found is not None
    assert "network.pooler.dense.weight" in found
    assert not any(name.startswith("objectives.classify") for name in found)


def test_a_classifier_is_a_teacher_as_it_is(
    folder: Callable[..., Path], composed: Composed, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder("roberta")
    from lmab import teaching

    monkeypatch.setattr(teaching, "refuse_worse", lambda *_: None)  # a random one may well be
    cfg = composed(f"store={store}", "experiment=hinton", f"teacher='hf:{path}'", "plain=false", "trainer.steps=2")
    record = run(cfg)
    assert record.state == "done"
    assert "run" not in record.config["teacher"]
    assert record.config["teacher"]["labels"] == ["Negative", "Positive"]
    assert record.config["model"]["vocab"] == VOCAB
    _, data = build_data(record.config, made(record.config["objective"]))
    hits = targets = 0
    for number in range(len(data.test)):
        batch = data.test[number]
        said = there(path, batch).argmax(-1)
        hits += int((said == batch.targets["classify"].answers).sum())
        targets += len(said)
    assert record.metrics["test/classify_teacher_accuracy"] == pytest.approx(hits / targets)


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["positive", "negative"], "labels in another order"),
        (["good", "bad"], "labels of another task"),
        (["a", "b", "c"], "labels of another task"),
    ],
)
def test_a_teacher_of_other_labels_is_refused(
    names: list[str], says: str, folder: Callable[..., Path], composed: Composed, store: Path
) -> None:
    path = folder("bert", id2label=dict(enumerate(names)), label2id={name: n for n, name in enumerate(names)})
    with pytest.raises(BadInput, match=f"{', '.join(names)} apart and the student negative, positive: {says}"):
        resolve(composed(f"store={store}", "experiment=hinton", f"teacher='hf:{path}'"))


def test_a_classifier_that_ours_cannot_be(folder: Callable[..., Path]) -> None:
    path = folder("xlnet", summary_type="mean")
    with pytest.raises(BadInput, match="summary_type='mean'"):
        checkpoint.read(path)
    said = json.loads((folder("bert") / "config.json").read_text())
    said["id2label"] = {"0": "a", "2": "b"}
    (path.parent / "bert" / "config.json").write_text(json.dumps(said))
    with pytest.raises(BadInput, match="which are not 0 to 1"):
        checkpoint.read(path.parent / "bert")
