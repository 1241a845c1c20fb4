"""Digits from a command line to a record: what a run of them says, and what cannot be done with one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lmab.run import resolve, run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from omegaconf import DictConfig

    from lmab.store import Record


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("digits")


@pytest.fixture(scope="module")
def digits(composed: Callable[..., DictConfig], store: Path) -> Callable[..., Record]:
    def made(*overrides: str) -> Record:
        return run(composed("experiment=digits", f"store={store}", *overrides))

    return made


def test_a_run_learns_and_says_what_it_was(digits: Callable[..., Record]) -> None:
    record = digits("model.dim=64", "trainer.steps=150")
    assert record.metrics["test/classify_accuracy"] > 0.8  # a guess has 0.1
    assert len(record.scores["test/classify_accuracy"]) == 200  # by image
    assert record.facts["train"]["rows"] == 1797 - 100 - 200
    assert record.cost["parameters"] == 64 * 64 + 64 + 64 * 64 + 64 + 10 * 64 + 10
    assert record.cost["flops_a_token"] == 3 * 2 * (2 * 64 * 64 + 10 * 64) / 64


def test_a_class_that_is_left_out_is_not_said(digits: Callable[..., Record]) -> None:
    record = digits("model.dim=64", "trainer.steps=150", "split.omit=[3]")
    assert record.facts["labels"]["train"]["3"] == 0
    threes = record.facts["labels"]["test"]["3"]
    assert record.metrics["test/classify_accuracy"] < 1 - threes + 1e-9


def test_the_teacher_is_larger_and_sees_every_image_nine_times(
    composed: Callable[..., DictConfig], store: Path, digits: Callable[..., Record]
) -> None:
    teacher = run(composed("experiment=digits_teacher", f"store={store}"))
    student = digits()
    assert teacher.cost["parameters"] > student.cost["parameters"]
    assert teacher.facts["train"]["rows"] == 9 * student.facts["train"]["rows"]
    assert teacher.value("model.dropout") == 0.5
    assert teacher.config["split"] == student.config["split"]  # what is tested is tested for both


def test_what_is_left_out_and_what_is_added_is_part_of_the_name(composed: Callable[..., DictConfig]) -> None:
    lines = [[], ["split.omit=[3]"], ["split.omit=[7]"], ["augment=shifts"], ["augment=shifts", "augment.pixels=2"]]
    names = [resolve(composed("experiment=digits", *line))[1] for line in lines]
    assert len(set(names)) == len(names)
    assert resolve(composed("experiment=digits", "split.omit=['3']"))[1] == names[1]


def test_a_transformer_reads_them_too(digits: Callable[..., Record]) -> None:
    record = digits("model=bert", "objective.classify.pool=mean", "trainer.steps=2")
    assert record.state == "done"
    assert record.value("model.vocab") == 17


def test_a_run_starts_from_another(digits: Callable[..., Record]) -> None:
    first = digits()
    second = digits(f"start={first.signature}", "trainer.steps=1", "optim.lr=1e-9")
    assert second.metrics["test/classify_loss"] == pytest.approx(first.metrics["test/classify_loss"], rel=1e-4)
    probe = digits(f"start={first.signature}", "frozen=true", "trainer.steps=5")
    assert probe.state == "done"


@pytest.mark.parametrize(
    ("model", "words", "says"),
    [
        ([], ["generate", "--prompt", "The film"], "no probability for a text that goes on"),
        ([], ["export"], "reads images"),
        (["model=bert", "objective.classify.pool=mean"], ["export"], "reads images"),
    ],
)
def test_what_text_is_for_is_refused_in_a_sentence(
    model: list[str],
    words: list[str],
    says: str,
    digits: Callable[..., Record],
    lmab: Callable[..., tuple[int, str, str]],
    store: Path,
    tmp_path: Path,
) -> None:
    record = digits(*model, "trainer.steps=2")
    folder = [str(tmp_path / "out")] if words == ["export"] else []
    status, out, err = lmab("--store", str(store), words[0], record.signature, *folder, *words[1:])
    assert (status, out) == (2, "")
    (sentence,) = err.strip().splitlines()
    assert says in sentence
