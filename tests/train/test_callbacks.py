"""Beside training: a run that was stopped ends as if it had not been, and what went wrong is on record."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any

import pytest
import pytorch_lightning as pl
import torch

from lmab.train.callbacks import last_whole
from lmab.train.learner import Diverged

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .conftest import Wired


class Stopped(Exception):  # noqa: N818
    """The machine went away."""


class StopAt(pl.Callback):
    """Ends training before the step after `step`; or in the middle of the validation that follows it."""

    def __init__(self, step: int, *, in_validation: bool = False) -> None:
        self.step, self.in_validation = step, in_validation

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step == self.step and not self.in_validation:
            raise Stopped

    def on_validation_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step == self.step and self.in_validation:
            raise Stopped


def alike(one: Wired, other: Wired) -> bool:
    """Is every figure and every weight the same to the last bit?"""
    assert one.record.curves.keys() == other.record.curves.keys()
    assert one.record.curves == other.record.curves
    for name, weight in one.weights().items():
        assert torch.equal(weight, other.weights()[name]), name
    assert one.recorder.tokens == other.recorder.tokens
    states = [wired.trainer.optimizers[0].state_dict()["state"] for wired in (one, other)]
    for number, state in states[0].items():
        assert all(torch.equal(value, states[1][number][key]) for key, value in state.items())
    return one.trainer.global_step == other.trainer.global_step


PLAIN = {"log_every": 3, "val_every": 4, "checkpoint_every": 5}
CASES = {
    # checkpoints that fall beside log points and validations; in the first epoch and in the second
    "mid_epoch": (8, PLAIN),
    "second_epoch": (12, PLAIN),
    "accumulated": (8, PLAIN | {"micro": 24}),
    "static": (12, PLAIN | {"copies": 1}),
    "half_precision": (8, PLAIN | {"precision": "bf16-mixed"}),
    "padded": (8, PLAIN | {"cut": False, "micro": 20}),
    # everything falls on the checkpoint's step
    "validated_at_the_checkpoint": (6, {"log_every": 2, "val_every": 4, "checkpoint_every": 4}),
    "at_the_checkpoint_itself": (5, PLAIN),
    "checkpoint_every_step": (7, PLAIN | {"checkpoint_every": 1}),
    "before_the_first_checkpoint": (3, PLAIN),
    # in the middle of streams, with what was read before; a lane begins anew after eight steps or more
    "with_a_memory": (8, PLAIN | {"memory": 40}),
    "with_a_memory_of_every_micro_batch": (8, PLAIN | {"memory": 40, "micro": 16}),
    "with_a_memory_in_half_precision": (8, PLAIN | {"memory": 40, "precision": "bf16-mixed"}),
    "with_a_memory_validated_at_the_checkpoint": (
        6,
        {"log_every": 2, "val_every": 4, "checkpoint_every": 4, "memory": 7},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_run_that_was_stopped_ends_as_if_it_had_not_been(wire: Callable[..., Wired], case):
    step, knobs = CASES[case]
    whole = wire("whole", **knobs).fit()
    assert whole.trainer.global_step == 13
    assert whole.recorder.tokens == sum(whole.data.train.examples(s).lengths.sum() for s in range(13))
    with pytest.raises(Stopped):
        wire("stopped", **knobs, callbacks=[StopAt(step)]).fit()
    saved = sorted(p.name for p in wire("stopped", **knobs).checkpoints.iterdir())
    every = knobs["checkpoint_every"]
    assert saved == [f"step-{s:07d}.ckpt" for s in range(every, step + 1, every)][-2:]
    resumed = wire("stopped", **knobs)
    assert alike(whole, resumed.fit())
    # It took up where the checkpoint was and did not begin anew.
    if saved:
        assert resumed.data.start == step - step % every


def test_a_run_stopped_in_the_middle_of_a_validation_ends_as_if_it_had_not_been(wire):
    whole = wire("whole", held_batch=8).fit()
    with pytest.raises(Stopped):
        wire("stopped", held_batch=8, callbacks=[StopAt(8, in_validation=True)]).fit()
    assert alike(whole, wire("stopped", held_batch=8).fit())


def test_a_run_stopped_again_and_again_ends_as_if_it_had_not_been(wire):
    knobs = {"checkpoint_every": 2, "micro": 40}
    whole = wire("whole", **knobs).fit()
    for step in (3, 4, 7, 12):
        with pytest.raises(Stopped):
            wire("stopped", **knobs, callbacks=[StopAt(step)]).fit()
    assert alike(whole, wire("stopped", **knobs).fit())


def test_a_run_that_had_only_to_be_scored_is_not_trained_again(wire):
    whole = wire("run").fit()
    again = wire("run")
    before = again.weights()
    assert not torch.equal(
        before["network.embedding.tokens.weight"], whole.weights()["network.embedding.tokens.weight"]
    )
    written = {p: p.stat().st_mtime_ns for p in again.checkpoints.iterdir()}
    again.fit()
    assert again.record.curves == whole.record.curves
    assert all(torch.equal(weight, whole.weights()[name]) for name, weight in again.weights().items())
    assert {p: p.stat().st_mtime_ns for p in again.checkpoints.iterdir()} == written


def test_how_often_a_checkpoint_is_written_changes_nothing(wire):
    assert alike(wire("one", checkpoint_every=1).fit(), wire("two", checkpoint_every=100).fit())


# Curves


def test_curves_are_means_over_the_targets_between_two_points(wire):
    run = wire(log_every=3, val_every=4, dropout=0.0)
    outputs: list[dict[str, Any]] = []

    class Keep(pl.Callback):
        def on_train_batch_end(self, trainer: pl.Trainer, module: Any, out: Any, *_: Any) -> None:
            outputs.append(out)

    run.trainer.callbacks.append(Keep())
    run.fit()
    loss = run.record.curves["train/mlm_loss"]
    assert [step for step, _ in loss] == [3, 6, 9, 12, 13]
    for (step, value), start in zip(loss, [0, 3, 6, 9, 12], strict=True):
        between = outputs[start:step]
        total = sum(out["totals"]["mlm"] for out in between)
        assert value == pytest.approx(sum(float(out["sums"]["mlm"]) for out in between) / total, rel=1e-6)
    assert [step for step, _ in run.record.curves["val/mlm_loss"]] == [4, 8, 12]
    assert [step for step, _ in run.record.curves["train/lr"]] == [3, 6, 9, 12, 13]
    found = run.store.find("run")
    assert found is not None
    assert found.curves == run.record.curves
    assert found.step == 13


def test_what_is_known_so_far_can_be_read_when_a_run_is_stopped(wire):
    with pytest.raises(Stopped):
        wire(callbacks=[StopAt(8)]).fit()
    found = wire().store.find("run")
    assert [step for step, _ in found.curves["train/mlm_loss"]] == [3, 6]
    assert [step for step, _ in found.curves["val/mlm_loss"]] == [4, 8]
    assert (found.state, found.step) == ("running", 8)


# Divergence


class Poison(pl.Callback):
    """Makes one weight no number before a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_start(self, trainer: pl.Trainer, module: Any, *_: Any) -> None:
        if trainer.global_step == self.step:
            module.network.head.bias.data[7] = math.nan


@pytest.mark.parametrize(
    ("poisoned", "said"), [(4, "train/mlm_loss is nan at step 6 of 13"), (6, "val/mlm_loss is nan at step 8 of 13")]
)
def test_a_loss_that_is_no_number_ends_the_run_and_is_on_record(wire, poisoned, said):
    run = wire(callbacks=[Poison(poisoned)])
    with pytest.raises(Diverged, match=said):
        run.fit()
    name, step = said.split()[0], int(said.split()[5])
    curve = run.store.find("run").curves[name]
    assert curve[-1][0] == step
    assert math.isnan(curve[-1][1])
    assert all(math.isfinite(value) for _, value in curve[:-1])


# Checkpoints


def test_only_the_last_two_checkpoints_are_kept_and_no_name_holds_an_equals_sign(wire):
    run = wire(checkpoint_every=3).fit()
    names = sorted(p.name for p in run.checkpoints.iterdir())
    assert names == ["step-0000012.ckpt", "step-0000013.ckpt"]
    assert not [p for p in run.store.root.rglob("*") if "=" in p.name]
    assert last_whole(run.checkpoints).name == "step-0000013.ckpt"


def test_the_best_weights_are_those_of_the_lowest_validation_loss(wire):
    class Spoil(pl.Callback):
        def on_train_batch_start(self, trainer: pl.Trainer, module: Any, *_: Any) -> None:
            if trainer.global_step == 9:
                module.network.head.bias.data.uniform_(-3, 3, generator=torch.Generator().manual_seed(0))

    kept: dict[int, dict[str, torch.Tensor]] = {}

    class Keep(pl.Callback):
        def on_validation_end(self, trainer: pl.Trainer, module: Any) -> None:
            kept[trainer.global_step] = {n: p.clone() for n, p in module.state_dict().items()}

    run = wire(best="val/mlm_loss", callbacks=[Spoil(), Keep()]).fit()
    curve = dict(run.record.curves["val/mlm_loss"])
    assert curve[12] > curve[8] < curve[4]
    best = torch.load(run.checkpoints / "best.ckpt", weights_only=True)
    assert best.keys() == kept[8].keys()
    assert all(torch.equal(best[name], kept[8][name]) for name in best)
    assert not [p for p in run.checkpoints.iterdir() if p.name.startswith(".")]


def test_a_checkpoint_that_cannot_be_written_leaves_no_draft_and_the_old_one(wire, monkeypatch):
    run = wire()

    def full(path: Path, *_: Any, **__: Any) -> None:
        path.write_bytes(b"half a check")
        raise OSError(28, "No space left on device")

    class Fill(pl.Callback):
        def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
            if trainer.global_step == 7:
                monkeypatch.setattr(trainer, "save_checkpoint", full)

    run.trainer.callbacks.append(Fill())
    with pytest.raises(OSError, match="No space left"):
        run.fit()
    assert [p.name for p in run.checkpoints.iterdir()] == ["step-0000005.ckpt"]


CONTENT = {"state_dict": {"a": torch.arange(300.0)}, "callbacks": {"Recorder": {"curves": {"x": [(1, 2.0)]}}}}


@pytest.fixture
def folder(tmp_path) -> Path:
    """Two checkpoints."""
    for step in (5, 10):
        torch.save(CONTENT, tmp_path / f"step-{step:07d}.ckpt")
    return tmp_path


def test_the_newest_checkpoint_is_taken(folder, tmp_path):
    assert last_whole(folder).name == "step-0000010.ckpt"
    assert last_whole(tmp_path / "nothing") is None


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.9, 0.999])
def test_a_truncated_checkpoint_is_passed_over_and_named(folder, caplog, keep):
    newest = folder / "step-0000010.ckpt"
    whole = newest.read_bytes()
    newest.write_bytes(whole[: int(keep * len(whole))])
    with caplog.at_level(logging.WARNING):
        assert last_whole(folder).name == "step-0000005.ckpt"
    assert f"The checkpoint {newest} is broken" in caplog.text
    assert "goes back to the one before it" in caplog.text


def test_where_no_checkpoint_is_whole_a_run_begins_anew(folder, caplog):
    for path in folder.iterdir():
        path.write_bytes(b"")
    assert last_whole(folder) is None
    assert caplog.text.count("is broken") == 2


def test_a_flipped_bit_in_the_weights_is_found(folder, caplog):
    newest = folder / "step-0000010.ckpt"
    bits = bytearray(newest.read_bytes())
    bits[bits.find(torch.arange(300.0).numpy().tobytes()) + 401] ^= 4
    newest.write_bytes(bits)
    assert torch.load(newest, weights_only=True)["state_dict"]["a"].tolist() != CONTENT["state_dict"]["a"].tolist()
    assert last_whole(folder).name == "step-0000005.ckpt"
    assert f"The checkpoint {newest} is broken" in caplog.text


def test_whichever_bit_is_flipped_a_checkpoint_is_passed_over_or_says_the_same(folder, monkeypatch):
    # Between the parts stand headers without a checksum: a flip there broke readers in a dozen ways.
    monkeypatch.setattr(logging.getLogger("lmab.train.callbacks"), "disabled", True)
    newest = folder / "step-0000010.ckpt"
    whole = newest.read_bytes()
    found = {"taken": 0, "passed over": 0}
    for place in range(0, len(whole), 3):
        bits = bytearray(whole)
        bits[place] ^= 1 << place % 8
        newest.write_bytes(bits)
        taken = last_whole(folder)
        found["taken" if taken == newest else "passed over"] += 1
        assert taken is not None
        said = torch.load(taken, weights_only=True)
        assert torch.equal(said["state_dict"]["a"], CONTENT["state_dict"]["a"])
        assert said["callbacks"] == CONTENT["callbacks"]
    assert min(found.values()) > 50
