"""Whom augment=masked_lm asks for words, and that a run trains on the copies it then has."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from lmab import augmenting, starting
from lmab.data.collate import Collate
from lmab.data.replace import likeliest
from lmab.run import resolve, run
from lmab.store import Store
from lmab.types import BadInput
from lmab.wiring import bare_learner, build_data, made

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from omegaconf import DictConfig

    from lmab.data.rows import Rows
    from lmab.types import Example

    Composed = Callable[..., DictConfig]

BERT = "start=['trainer.steps=2']"
JOINT = "transfer=[labels,teacher_labels]"
TASK = ["task=rotten_tomatoes", "objective=[classify]", "augment=masked_lm"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("augmenting")


def _resolved(composed: Composed, store: Path, *line: str) -> dict[str, Any]:
    return resolve(composed(f"store={store}", *line))[0]


@pytest.mark.parametrize(
    ("line", "way"),
    [
        ([*TASK, BERT], ("start",)),
        (["experiment=tinybert", "augment=masked_lm"], ("teacher", "start")),
        (["experiment=hinton", "augment=masked_lm"], ("teacher", "start")),
        ([*TASK, BERT, JOINT, "teacher=['experiment=finetune']"], ("start",)),  # its teacher knows nothing yet
        ([*TASK, "start=['start=[\"trainer.steps=2\"]','trainer.steps=3']"], ("start",)),
    ],
)
def test_the_masked_lm_is_the_nearest_that_came_before(
    line: list[str], way: tuple[str, ...], composed: Composed, store: Path
) -> None:
    config = _resolved(composed, store, *line)
    said = augmenting.source(config)
    for key in way:
        config = config[key] if "run" not in config else config["config"][key]
    assert said == config
    assert "mlm" in said["config"]["objective"]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (TASK, "asks a masked LM for words, and this run has none before it: let its teacher start from one"),
        ([*TASK, "start=['objective=[clm]']"], "this run has none before it"),
        ([*TASK, "start=minilm"], "or from a checkpoint with its token head"),
        (["augment=masked_lm"], "makes more training examples of a task, and there is none"),
        ([*TASK, BERT, "augment.candidates=5000"], "augment.candidates=5000 are more than the"),
        ([*TASK, BERT, "augment.rate=0"], "augment.rate=0.* is the share of words to replace"),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_trained(
    line: list[str], says: str, composed: Composed, store: Path
) -> None:
    before = sorted(record.signature for record in Store(store))
    with pytest.raises(BadInput, match=re.escape(says).replace(r"\.\*", ".*")):
        run(composed(f"store={store}", *line))
    assert sorted(record.signature for record in Store(store)) == before


def test_a_run_trains_on_its_examples_and_their_copies(composed: Composed, tmp_path: Path) -> None:
    line = [f"store={tmp_path}", *TASK, BERT, "split.train=20", "split.validation=6", "split.test=6", "trainer.steps=2"]
    record = run(composed(*line))
    assert record.state == "done"
    bare = build_data({**record.config, "augment": None}, made(record.config["objective"]))[1].train.rows
    config = record.config
    prepared, data = build_data(config, made(config["objective"]))
    rows = data.train.rows
    copies = config["augment"]["copies"]
    assert len(rows) == (1 + copies) * len(bare)
    assert len(data.validation.rows) == 6
    every, original = _all(rows), _all(bare)
    np.testing.assert_array_equal(every.tokens[:: 1 + copies], original.tokens)
    np.testing.assert_array_equal(every.label, np.repeat(original.label, 1 + copies))
    assert (every.tokens != np.repeat(original.tokens, 1 + copies, axis=0)).any()

    # What stands in a copy is among what the run that came first holds likely there.
    said = config["start"]
    first = bare_learner({**said["config"], "store": config["store"]}, 0)
    first.load_state_dict(starting.last_weights(Store(tmp_path), said["run"], said["config"]))
    network, words = first.eval().network, prepared.vocabulary
    count = 0
    for number, place in np.argwhere(every.tokens[1 :: 1 + copies] != original.tokens)[:20]:
        one = bare.take(np.array([number]), np.array([0]))
        tokens = one.tokens[:, : one.lengths[0]].copy()
        tokens[0, place] = words.mask
        with torch.no_grad():
            hidden = network(Collate({}, words, 0)(one._replace(tokens=tokens)), torch.tensor([int(place)])).hidden
            scores = network.token_logits(hidden).numpy()  # type: ignore[operator]
        said_likely = likeliest(scores, words, config["augment"]["candidates"])[0]
        assert every.tokens[(1 + copies) * number + 1, place] in said_likely
        count += 1
    assert count > 5


def _all(rows: Rows) -> Example:
    numbers = np.arange(len(rows))
    return rows.take(numbers, np.zeros_like(numbers))


@pytest.mark.slow
def test_the_rows_are_made_once_for_a_student_and_its_like_without_a_teacher(
    composed: Composed, store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    record = run(composed(f"store={store}", "experiment=hinton", "augment=masked_lm", "trainer.steps=3"))
    assert record.state == "done"
    assert "test/classify_gap_closed" in record.metrics
    assert caplog.text.count("is asked for other words") == 1
    teacher = record.config["teacher"]
    assert f"A masked LM, {teacher['config']['start']['run']}," in caplog.text
    assert teacher["config"]["augment"] is None
