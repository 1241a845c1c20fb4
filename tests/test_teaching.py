"""A run that learns from another: its teacher, its like without one, and what the record says of them."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers

from lmab import starting, teaching
from lmab.nn import quantize
from lmab.run import resolve, run
from lmab.store import Record, Store
from lmab.transfer.distiller import Distiller
from lmab.types import BadInput, Failed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from omegaconf import DictConfig

    Composed = Callable[..., DictConfig]

DIGITS = ["experiment=digits", "teacher=['experiment=digits_teacher']", "transfer=[labels,soft_targets]"]
OUTCOME = ("metrics", "curves", "scores", "weights", "facts")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("teaching")


def _told(record: Record) -> str:
    """What came of a run. As text, where NaN is NaN."""
    return json.dumps({key: getattr(record, key) for key in OUTCOME})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hinton", "fitnet", "apprentice", "tinybert"])
def test_an_experiment_trains_teacher_and_student_and_holds_it_against_the_plain_one(
    name: str, composed: Composed, store: Path
) -> None:
    record = run(composed(f"store={store}", f"experiment={name}"))
    assert record.state == "done"
    told = record.metrics
    plain_run = resolve(teaching.without(composed(f"store={store}", f"experiment={name}")))[1]
    plain = Store(store).find(plain_run)
    assert plain is not None
    assert plain.state == "done"
    assert told["test/classify_plain_accuracy"] == plain.metrics["test/classify_accuracy"]
    teacher, student = told["test/classify_teacher_accuracy"], told["test/classify_accuracy"]
    if teacher > told["test/classify_plain_accuracy"]:
        closed = (student - told["test/classify_plain_accuracy"]) / (teacher - told["test/classify_plain_accuracy"])
        assert told["test/classify_gap_closed"] == pytest.approx(closed)
    else:
        assert math.isnan(told["test/classify_gap_closed"])
    assert {"test/classify_agreement", "test/classify_ece", "test/classify_hard_accuracy"} <= told.keys()
    assert record.cost["teacher_parameters"] > 0
    assert record.cost["teacher_latency_32"] > 0
    if not teaching.joint(record.config):
        before = Store(store).find(record.config["teacher"]["run"])
        assert before is not None
        assert teacher == pytest.approx(before.metrics["test/classify_accuracy"])
        assert record.cost["teacher_parameters"] == before.cost["parameters"]


def test_the_plain_student_is_done_once(composed: Composed, store: Path) -> None:
    line = [f"store={store}", *DIGITS, "plain=true", "trainer.steps=4"]
    one = run(composed(*line, "transfer.soft_targets.temperature=2"))
    count = len(list(Store(store)))
    other = run(composed(*line, "transfer.soft_targets.temperature=3"))
    assert len(list(Store(store))) == count + 1  # the student alone
    key = "test/classify_plain_accuracy"
    assert one.metrics[key] == other.metrics[key]


def test_the_teacher_stays_as_it_was_trained(composed: Composed, store: Path) -> None:
    record = run(composed(f"store={store}", *DIGITS, "trainer.steps=3"))
    said = record.config["teacher"]
    before = starting.last_weights(Store(store), said["run"], said["config"])
    folder = Store(store).folder(record.signature) / "checkpoints"
    (last,) = folder.glob("step-*3.ckpt")
    held = torch.load(last, weights_only=True)
    assert all(name.startswith(("student.", "terms.")) for name in held["state_dict"])
    run(composed(f"store={store}", *DIGITS, "trainer.steps=4"))
    after = starting.last_weights(Store(store), said["run"], said["config"])
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    student = starting.last_weights(Store(store), record.signature, record.config)
    assert sum(t.numel() for t in student.values()) == record.cost["parameters"]


def test_a_teacher_that_learns_too_changes_and_is_kept(composed: Composed, store: Path) -> None:
    record = run(composed(f"store={store}", "experiment=apprentice", "plain=false", "trainer.steps=3"))
    (last,) = (Store(store).folder(record.signature) / "checkpoints").glob("step-*3.ckpt")
    held = torch.load(last, weights_only=True)["state_dict"]
    taught = {name for name in held if name.startswith("taught.")}
    assert taught
    longer = run(composed(f"store={store}", "experiment=apprentice", "plain=false", "trainer.steps=5"))
    (last,) = (Store(store).folder(longer.signature) / "checkpoints").glob("step-*5.ckpt")
    later = torch.load(last, weights_only=True)["state_dict"]
    assert any(not torch.equal(later[name], held[name]) for name in taught)


def test_kept_answers_and_a_live_teacher_make_the_same_run(composed: Composed, store: Path) -> None:
    line = [f"store={store}", *DIGITS, "trainer.steps=10"]
    kept, live = run(composed(*line)), run(composed(*line, "cache=false"))
    assert kept.signature != live.signature
    assert list((store / "teachers").iterdir())
    for name, value in live.metrics.items():
        assert kept.metrics[name] == pytest.approx(value, rel=1e-5, nan_ok=True), name


def test_micro_batches_change_nothing_but_rounding(composed: Composed, store: Path) -> None:
    line = [f"store={store}", *DIGITS, "trainer.steps=5", "trainer.batch=24"]
    whole, parts = run(composed(*line)), run(composed(*line, "trainer.micro=8"))
    assert parts.metrics["test/classify_loss"] == pytest.approx(whole.metrics["test/classify_loss"], rel=1e-5)


def test_a_second_stage_that_is_taken_up_again_ends_as_if_it_had_not_been_left(
    composed: Composed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["experiment=fitnet", "plain=false", "trainer.checkpoint_every=3"]
    whole = run(composed(f"store={tmp_path / 'whole'}", *line))
    step, hint = Distiller.training_step, whole.config["transfer"]["hint"]["end"]
    left = int(hint * whole.steps) + 5

    def stopped(self: Distiller, batch: Any, batch_idx: int) -> Any:
        if self.global_step == left:
            raise RuntimeError("left")
        return step(self, batch, batch_idx)

    cfg = composed(f"store={tmp_path / 'left'}", *line)
    with monkeypatch.context() as patch:
        patch.setattr(Distiller, "training_step", stopped)
        with pytest.raises(Failed):
            run(cfg)
    capsys.readouterr()
    again = run(cfg)
    assert "goes on from step-" in (tmp_path / "left" / again.signature / "run.log").read_text()
    assert again.signature == whole.signature
    assert _told(again) == _told(whole)


@pytest.mark.parametrize("more", [[], ["quantize=ternary"]])
def test_a_student_is_a_start_and_a_teacher_for_others(more: list[str], composed: Composed, store: Path) -> None:
    student = run(composed(f"store={store}", *DIGITS, "trainer.steps=3", *more))
    named = f"{student.signature}"
    onward = run(composed(f"store={store}", "experiment=digits", f"start={named}", "trainer.steps=2"))
    assert onward.state == "done"
    first = starting.weights(onward.config)
    assert first is not None
    held = starting.last_weights(Store(store), student.signature, student.config)
    assert first.keys() == quantize.full_precision(held).keys()
    line = ["experiment=digits", f"teacher={named}", "transfer=[soft_targets]", "trainer.steps=2"]
    pupil = run(composed(f"store={store}", *line))
    key = "test/classify_teacher_accuracy"
    assert pupil.metrics[key] == pytest.approx(student.metrics["test/classify_accuracy"])


@pytest.mark.slow
def test_an_encoder_that_somebody_published_is_fine_tuned_first_and_gives_its_tokenizer(
    composed: Composed, tmp_path: Path
) -> None:
    folder = tmp_path / "published"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "a", "film", "is", "was", "good", "bad", "of", "and"]
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"vocab_size": len(words), "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    shape = transformers.BertConfig(**sizes, intermediate_size=32, max_position_embeddings=32)
    transformers.BertForMaskedLM(shape).save_pretrained(folder)
    record = run(composed(f"store={tmp_path / 'runs'}", "experiment=hinton", f"teacher='hf:{folder}'", "plain=false"))
    assert record.state == "done"
    assert record.config["model"]["vocab"] == len(words)
    teacher = Store(tmp_path / "runs").find(record.config["teacher"]["run"])
    assert teacher is not None
    assert teacher.config["start"]["checkpoint"] == f"hf:{folder}"
    assert teacher.config["model"]["depth"] == 2
    assert record.metrics["test/classify_teacher_accuracy"] == teacher.metrics["test/classify_accuracy"]


# --- what is refused


def test_a_teacher_that_knows_less_than_the_commonest_class_is_refused(
    composed: Composed, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Distiller, "hits", lambda *_: {"classify": 0.01})
    with pytest.raises(BadInput, match=r"The teacher's classify is right for 0\.010 .* commonest class"):
        run(composed(f"store={store}", *DIGITS, "trainer.steps=6"))


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["experiment=digits", "transfer=[soft_targets]"], "teacher="),
        ([*DIGITS, "frozen=true", "start=['experiment=digits']"], "frozen=true leaves a student nothing to learn"),
        (["experiment=tinybert", "segments.length=64"], "does not fit into the teacher's positions"),
        (["experiment=tinybert", "model.heads=4", "start=null", "model.dim=16"], "heads"),
        (["experiment=tinybert", "transfer.hidden.map=[0,9]"], "transfer.hidden.map"),
        (["experiment=hinton", "teacher=['experiment=finetune','task=bbc']"], "of another task"),
    ],
)
def test_what_does_not_go_together_is_said_in_one_sentence(
    lines: list[str], says: str, composed: Composed, store: Path
) -> None:
    before = len(list(Store(store)))
    with pytest.raises(BadInput, match=says.replace("[", r"\[").replace("]", r"\]")) as refused:
        run(composed(f"store={store}", *lines))
    assert "\n" not in str(refused.value)
    assert len(list(Store(store))) == before


def test_classes_in_another_order_are_told_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teaching, "named", lambda task: SimpleNamespace(names=task["names"]))
    student = {"task": {"names": ["bad", "good"]}, "start": None, "segments": {"length": 8}, "model": {}}

    def teacher(*names: str) -> starting.Start:
        return starting.Start({"length": 8, "vocab": 9}, {}, {"run": "r", "config": {"task": {"names": [*names]}}})

    for names, says in ((("good", "bad"), "labels in another order"), (("bad", "fair", "good"), "of another task")):
        with pytest.raises(BadInput, match=f"{', '.join(names)} apart and the student bad, good: .*{says}"):
            teaching.applied(student, teacher(*names))
    assert teaching.applied(student, teacher("bad", "good"))["model"]["vocab"] == 9
