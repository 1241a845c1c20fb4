"""What may be compared: a metric that two runs measured on the same text, in the same way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from omegaconf import OmegaConf

from lmab.lab import guard
from lmab.run import resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from omegaconf import DictConfig


MORE = ("optim.lr=0.001", "optim.lr=0.002")


def _plain(cfg: DictConfig) -> Mapping[str, Any]:
    values = OmegaConf.to_container(cfg, resolve=True)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


@pytest.mark.parametrize(
    ("override", "keys"),
    [
        ("split.share=0.25", []),  # one tokenizer, one held-out text
        ("evaluation.batch=3", []),
        ("optim.lr=0.1", []),
        ("split.train=10", ["split.train"]),
        ("split.seed=1", ["split.seed"]),
        ("tokenizer.vocab=500", ["tokenizer.vocab"]),
        ("evaluation.seed=1", ["evaluation.seed"]),
        ("objective.mlm.rate=0.2", ["objective.mlm.rate"]),
        ("objective.mlm.copies=1", []),
    ],
)
def test_what_changes_the_measure_is_named(override: str, keys: list[str], composed: Callable[..., DictConfig]) -> None:
    configs = [_plain(composed(*more)) for more in ((), (override,))]
    assert guard.redefined("test/mlm_loss", configs) == keys


@pytest.mark.parametrize(("knob", "keys"), [("rate=0.2", []), ("mask=0.5", ["objective.mlm.mask"])])
def test_a_knob_that_held_out_text_has_fixed_is_no_part_of_the_measure(
    knob: str, keys: list[str], composed: Callable[..., DictConfig]
) -> None:
    lines = "+evaluation.noise.mlm.rate=0.15", f"objective.mlm.{knob}"
    configs = [_plain(composed(*lines[:n])) for n in (1, 2)]
    assert guard.redefined("test/mlm_loss", configs) == keys


def test_labels_compare_whatever_the_tokens_but_not_over_tasks(composed: Callable[..., DictConfig]) -> None:
    task = ["task=rotten_tomatoes", "objective=[classify]"]
    one, other, third = (
        {**_plain(composed(*task, *more)), "task": {"fingerprint": fingerprint}}
        for fingerprint, *more in (("a",), ("a", "tokenizer=byte_bpe", "corpus=rotten_tomatoes"), ("b",))
    )
    assert guard.redefined("test/classify_accuracy", [one, other]) == []
    assert guard.redefined("test/classify_accuracy", [one, third]) == ["task.fingerprint"]


def test_bits_of_a_text_compare_models_that_split_it_otherwise(composed: Callable[..., DictConfig]) -> None:
    one, other = (_plain(composed("objective=[clm]", f"tokenizer.vocab={size}")) for size in (500, 600))
    assert guard.redefined("test/clm_loss", [one, other]) == ["tokenizer.vocab"]
    assert guard.redefined("test/clm_bits_per_byte", [one, other]) == []
    assert "test/clm_bits_per_byte" in guard.metrics(one)
    assert "test/mlm_bits_per_byte" not in guard.metrics(_plain(composed()))


@pytest.mark.parametrize(
    ("other", "metric", "keys"),
    [
        ("model=bert,corpus=bbc", "test/mlm_loss", ["start"]),
        ("model=bert,tokenizer=byte_bpe", "test/mlm_loss", ["start"]),
        ("model=bert,split.share=0.5", "test/mlm_loss", []),  # one tokenizer for both
        ("model=bert,model.depth=1", "test/mlm_loss", []),
    ],
)
def test_runs_that_start_elsewhere_split_text_as_their_starts_do(
    other: str, metric: str, keys: list[str], composed: Callable[..., DictConfig]
) -> None:
    """The tokenizer is that of the run a model starts from: two of them make two texts of one."""
    arms = [resolve(composed(f"start={start.split(',')}"))[0] for start in ("model=bert", other)]
    found = guard.redefined(metric, arms)
    assert [key for key in found if key.split(".")[0] == "start"] == keys


def test_token_losses_on_the_texts_of_a_task_are_no_labels(composed: Callable[..., DictConfig]) -> None:
    arms = [resolve(composed("task=rotten_tomatoes", f"tokenizer.vocab={size}"))[0] for size in (500, 600)]
    assert guard.redefined("test/mlm_loss", arms) == ["tokenizer.vocab"]
    labels = [
        resolve(composed("task=rotten_tomatoes", "objective=[classify]", f"tokenizer.vocab={size}"))[0]
        for size in (500, 600)
    ]
    assert guard.redefined("test/classify_accuracy", labels) == []


def test_of_a_student_is_told_what_was_measured_beside_its_teacher(composed: Callable[..., DictConfig]) -> None:
    config = {**_plain(composed("objective=[mlm,nsp]", "segments=segment_pair")), "teacher": None}
    plain = ["test/mlm_loss", "test/mlm_accuracy", "test/nsp_loss", "test/nsp_accuracy"]
    assert guard.metrics(config) == plain
    more = {"agreement", "divergence", "teacher_loss", "teacher_accuracy", "easy_accuracy", "hard_accuracy"}
    taught = guard.metrics({**config, "teacher": ["experiment=bert"]})
    assert {*taught} == {*plain} | {f"test/{name}_{quantity}" for name in ("mlm", "nsp") for quantity in more}
    scores = _plain(composed("task=rotten_tomatoes", "objective=[classify]", "objective.classify.classes=1"))
    found = guard.metrics({**scores, "teacher": ["experiment=finetune"]})
    assert found == [
        f"test/classify_{quantity}" for quantity in ("loss", "accuracy", "teacher_loss", "teacher_accuracy")
    ]


@pytest.mark.parametrize(
    ("metric", "keys"),
    [
        ("test/classify_agreement", ["teacher"]),
        ("test/classify_hard_accuracy", ["teacher"]),
        ("test/soft_targets_pull", ["teacher"]),
        ("test/classify_accuracy", []),
        ("test/classify_teacher_accuracy", []),
    ],
)
def test_what_holds_a_student_against_its_teacher_ranks_none_of_different_teachers(
    metric: str, keys: list[str], composed: Callable[..., DictConfig]
) -> None:
    arms = [resolve(composed("experiment=hinton", f"teacher=['experiment=finetune','{more}']"))[0] for more in MORE]
    assert [key for key in guard.redefined(metric, arms) if key == "teacher"] == keys
    assert guard.redefined(metric, arms[:1] * 2) == []
