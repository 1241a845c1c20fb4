"""A run that learns from another: its teacher, its like without one, and what the record says of them."""

from __future__ import annotations

import json
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
from lmab.wiring import build_data, build_learner, made

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from omegaconf import DictConfig

    from lmab.data.corpus import Files

    Composed = Callable[..., DictConfig]

DIGITS = ["experiment=digits", "teacher=['experiment=digits_teacher']", "transfer=[labels,soft_targets]"]
OUTCOME = ("metrics", "curves", "scores", "weights", "facts")


@pytest.fixture(scope="module")
def student(composed: Composed, runs: Path) -> Record:
    """Of a teacher that was trained first, with its like without one beside it."""
    return run(composed(f"store={runs}", *DIGITS, "plain=true", "trainer.steps=4"))


def _told(record: Record) -> str:
    """What came of a run. As text, where NaN is NaN."""
    return json.dumps({key: getattr(record, key) for key in OUTCOME})


@pytest.mark.slow
def test_the_plain_student_is_done_once_and_is_what_a_student_without_soft_targets_is(
    student: Record, composed: Composed, runs: Path
) -> None:
    count = len(list(Store(runs)))
    labels = ["transfer.labels.weight=1", "transfer.soft_targets.weight=0"]
    other = run(composed(f"store={runs}", *DIGITS, *labels, "plain=true", "trainer.steps=4"))
    assert len(list(Store(runs))) == count + 1  # the student alone
    plain = Store(runs).find(resolve(teaching.without(composed(f"store={runs}", *DIGITS, "trainer.steps=4")))[1])
    assert plain is not None
    for record in (student, other):
        assert record.metrics["test/classify_plain_accuracy"] == plain.metrics["test/classify_accuracy"]
    assert plain.metrics.items() <= other.metrics.items()
    assert {name: other.curves[name] for name in plain.curves} == plain.curves
    assert not plain.metrics.items() <= student.metrics.items()


def _held(runs: Path, record: Record) -> dict[str, torch.Tensor]:
    """The weights in its last checkpoint."""
    path = Store(runs).folder(record.signature) / "checkpoints" / f"step-{record.steps:07d}.ckpt"
    return torch.load(path, weights_only=True)["state_dict"]


def test_a_checkpoint_and_its_count_of_parameters_are_those_of_the_student(student: Record, runs: Path) -> None:
    held = _held(runs, student)
    assert all(name.startswith("student.") for name in held)
    assert sum(tensor.numel() for tensor in held.values()) == student.cost["parameters"]
    assert student.cost["teacher_parameters"] > student.cost["parameters"]


@pytest.mark.slow
def test_a_teacher_that_learns_too_changes_and_is_kept(composed: Composed, runs: Path) -> None:
    record = run(composed(f"store={runs}", "experiment=apprentice", "plain=false"))
    taught = {name: tensor for name, tensor in _held(runs, record).items() if name.startswith("taught.")}
    own = record.config
    _, data = build_data(own, made(own["objective"]))
    learner = build_learner(own, made(own["objective"]), data, own["seed"])
    first = teaching.distiller(own, learner, data, own["seed"]).state_dict()
    assert taught.keys() == {name for name in first if name.startswith("taught.")}
    assert taught
    assert not any(torch.equal(first[name], tensor) for name, tensor in taught.items())


@pytest.mark.slow
def test_kept_answers_and_a_live_teacher_make_the_same_run(composed: Composed, runs: Path) -> None:
    line = [f"store={runs}", *DIGITS, "split.share=0.1", "trainer.steps=6"]  # so few that they come again
    kept, live = (run(composed(*line, name)) for name in ("cache=true", "cache=false"))
    assert kept.signature != live.signature
    logs = [(Store(runs).folder(record.signature) / "run.log").read_text() for record in (kept, live)]
    assert ["The teacher answers" in text for text in logs] == [True, False]
    for name, value in live.metrics.items():
        assert kept.metrics[name] == pytest.approx(value, rel=1e-5, nan_ok=True), name


@pytest.mark.slow
def test_a_second_stage_that_is_taken_up_again_ends_as_if_it_had_not_been_left(
    composed: Composed, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = [f"store={runs}", "experiment=fitnet", "plain=false"]
    whole = run(composed(*line))
    folder = Store(runs).folder(whole.signature)
    folder.rename(tmp_path / "whole")
    step, hint = Distiller.training_step, whole.config["transfer"]["hint"]["end"]
    left = int(hint * whole.steps) + 5

    def stopped(self: Distiller, batch: Any, batch_idx: int) -> Any:
        if self.global_step == left:
            raise RuntimeError("left")
        return step(self, batch, batch_idx)

    cfg = composed(*line, "trainer.checkpoint_every=3")
    with monkeypatch.context() as patch:
        patch.setattr(Distiller, "training_step", stopped)
        with pytest.raises(Failed):
            run(cfg)
    capsys.readouterr()
    again = run(cfg)
    assert f"goes on from step-{left // 3 * 3:07d}" in (folder / "run.log").read_text()
    assert left // 3 * 3 > hint * whole.steps
    assert again.signature == whole.signature
    assert _told(again) == _told(whole)
    whole_weights = torch.load(tmp_path / "whole" / "checkpoints" / f"step-{whole.steps:07d}.ckpt", weights_only=True)
    for name, tensor in _held(runs, again).items():
        assert torch.equal(tensor, whole_weights["state_dict"][name]), name


@pytest.mark.parametrize("more", [[], pytest.param(["quantize=ternary"], marks=pytest.mark.slow)])
def test_a_student_is_a_start_and_a_teacher_for_others(
    more: list[str], student: Record, composed: Composed, runs: Path
) -> None:
    if more:
        student = run(composed(f"store={runs}", *DIGITS, "trainer.steps=4", *more))
    held = starting.last_weights(Store(runs), student.signature, student.config)
    onward = run(composed(f"store={runs}", "experiment=digits", f"start={student.signature}", "trainer.steps=2"))
    assert onward.state == "done"
    first = starting.weights(onward.config)
    assert first is not None
    assert first.keys() == _held(runs, onward).keys()
    for name, tensor in quantize.full_precision(held).items():
        assert torch.equal(first[name], tensor)
    line = ["experiment=digits", f"teacher={student.signature}", "transfer=[soft_targets]", "trainer.steps=2"]
    pupil = run(composed(f"store={runs}", *line))
    assert pupil.metrics["test/classify_teacher_accuracy"] == student.metrics["test/classify_accuracy"]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A masked LM in the form of transformers."""
    folder = tmp_path_factory.mktemp("published")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "a", "film", "is", "was", "good", "bad", "of", "and"]
    (folder / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    sizes: dict[str, Any] = {
        "vocab_size": len(words),
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    shape = transformers.BertConfig(**sizes, intermediate_size=32, max_position_embeddings=32, initializer_range=0.3)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformers.BertForMaskedLM(shape).save_pretrained(folder)
    return folder


@pytest.mark.slow
def test_an_encoder_that_somebody_published_is_fine_tuned_first_and_gives_its_tokenizer(
    published: Path, composed: Composed, runs: Path
) -> None:
    record = run(composed(f"store={runs}", "experiment=hinton", f"teacher='hf:{published}'", "plain=false"))
    assert record.state == "done"
    assert record.config["model"]["vocab"] == 14
    teacher = Store(runs).find(record.config["teacher"]["run"])
    assert teacher is not None
    assert teacher.config["start"]["checkpoint"] == f"hf:{published}"
    assert teacher.config["model"]["depth"] == 2
    assert record.metrics["test/classify_teacher_accuracy"] == teacher.metrics["test/classify_accuracy"]


def test_a_masked_lm_that_somebody_published_teaches_its_like_as_it_is(
    published: Path, corpus: Files, composed: Composed, runs: Path
) -> None:
    line = [f"teacher='hf:{published}'", "transfer=[labels,soft_targets]", "corpus=files", f"corpus.path={corpus.path}"]
    record = run(composed(f"store={runs}", *line, "trainer.steps=2", "split.validation=6", "split.test=6"))
    assert record.config["teacher"]["checkpoint"] == f"hf:{published}"
    _, data = build_data(record.config, made(record.config["objective"]))
    theirs, lost, count = transformers.BertForMaskedLM.from_pretrained(published).eval(), 0.0, 0
    for number in range(len(data.test)):
        batch = data.test[number]
        seen = None if batch.lengths is None else torch.arange(batch.tokens.shape[1]) < batch.lengths[:, None]
        with torch.no_grad():
            logits = theirs(input_ids=batch.tokens, attention_mask=seen).logits.flatten(0, 1)
        targets = batch.targets["mlm"]
        lost += float(torch.nn.functional.cross_entropy(logits[targets.places], targets.answers, reduction="sum"))
        count += len(targets.places)
    assert record.metrics["test/mlm_teacher_loss"] == pytest.approx(lost / count, rel=1e-5)


# --- what is refused


def test_a_teacher_that_knows_less_than_the_commonest_class_is_refused(
    composed: Composed, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Distiller, "hits", lambda *_: {"classify": 0.01})
    with pytest.raises(BadInput, match=r"The teacher's classify is right for 0\.010 .* commonest class"):
        run(composed(f"store={runs}", *DIGITS, "trainer.steps=6"))


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["experiment=digits", "transfer=[soft_targets]"], "transfer=[soft_targets] has nobody to learn from: give te"),
        ([*DIGITS, "frozen=true", "start=['experiment=digits']"], "frozen=true leaves a student nothing to learn but"),
        (
            ["experiment=tinybert", "segments.length=64"],
            "segments.length=64 does not fit into the teacher's positions, 32: give shorter rows",
        ),
        (
            ["experiment=tinybert", "start=null", "model.heads=4"],
            "transfer=[attention] compares head by head, and the student has 4 heads where its teacher has 2: give "
            "model.heads=2.",
        ),
        (
            ["experiment=hinton", "teacher=['experiment=finetune','task=bbc']"],
            "The teacher tells the classes business, entertainment, politics, sports, tech apart and the student "
            "negative, positive: labels of another task",
        ),
        (
            ["experiment=hinton", "start=['experiment=bert','tokenizer.vocab=300']"],
            "The run that start names and the one that teacher names split text into different tokens",
        ),
    ],
)
def test_what_does_not_go_together_is_said_in_one_sentence(
    lines: list[str], says: str, composed: Composed, runs: Path
) -> None:
    before = len(list(Store(runs)))
    with pytest.raises(BadInput) as refused:
        run(composed(f"store={runs}", *lines))
    assert str(refused.value).startswith(says)
    assert "\n" not in str(refused.value)
    assert len(list(Store(runs))) == before


def test_classes_in_another_order_are_told_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teaching, "named", lambda task: SimpleNamespace(names=task["names"]))
    student = {"task": {"names": ["bad", "good"]}, "start": None, "segments": {"length": 8}, "model": {}}

    def teacher(*names: str) -> starting.Start:
        return starting.Start({"length": 8, "vocab": 9}, {}, {"run": "r", "config": {"task": {"names": [*names]}}})

    for names, says in ((("good", "bad"), "labels in another order"), (("bad", "fair", "good"), "of another task")):
        with pytest.raises(BadInput, match=f"{', '.join(names)} apart and the student bad, good: .*{says}"):
            teaching.applied(student, teacher(*names))
    assert teaching.applied(student, teacher("bad", "good"))["model"]["vocab"] == 9
