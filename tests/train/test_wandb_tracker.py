"""W&B with its real client, offline: what a run leaves is one complete run under the record's name."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import wandb
import wandb.env

from lmab.run import run
from lmab.store import Record, Store
from lmab.train.wandb_tracker import WandbTracker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from omegaconf import DictConfig

    Told = Callable[[Path], Iterator[Any]]

ROOT = Path(__file__).parents[2]


def _read(records: Iterable[Any]) -> dict[str, Any]:
    """A run of W&B: its history by step, its config, its summary, its exit code."""
    found: dict[str, Any] = {"history": {}, "summary": {}, "config": {}, "exit": None}
    for record in records:
        kind = record.WhichOneof("record_type")
        if kind == "run":
            found["id"], found["group"], found["job"] = record.run.run_id, record.run.run_group, record.run.job_type
            found["config"] |= {u.key: json.loads(u.value_json) for u in record.run.config.update}
        elif kind == "history":
            items = {(i.key or ".".join(i.nested_key)): json.loads(i.value_json) for i in record.history.item}
            step = items.pop("_step")
            found["history"][step] = {k: v for k, v in items.items() if not k.startswith("_")}
        elif kind == "summary":
            found["summary"] |= {
                (u.key or ".".join(u.nested_key)): json.loads(u.value_json) for u in record.summary.update
            }
        elif kind == "exit":
            found["exit"] = record.exit.exit_code
    return found


def _curve(record: Record) -> dict[int, dict[str, float]]:
    steps: dict[int, dict[str, float]] = {}
    for name, points in record.curves.items():
        for step, value in points:
            steps.setdefault(step, {})[name] = value
    return steps


@pytest.mark.slow
def test_a_killed_and_resumed_run_is_one_complete_run(
    composed: Callable[..., DictConfig], told_to_wandb: Told, tmp_path: Path
) -> None:
    wandb.setup()  # this process has a service of its own, which the one that is killed below must not take up
    assert os.environ[wandb.env.SERVICE]
    words = [sys.executable, "run.py", "budget=smoke", "display=false", "trainer.steps=200", f"store={tmp_path}"]
    words += ["tracker=wandb", "sweep={name:'roberta/masking',arm:dynamic}"]
    process = subprocess.Popen(words, cwd=ROOT)
    while not any(record.step >= 60 for record in Store(tmp_path)):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    run(composed(*words[2:]))
    (record,) = list(Store(tmp_path))
    assert "goes on from" in (tmp_path / record.signature / "run.log").read_text()
    found = _read(told_to_wandb(tmp_path / record.signature))
    assert found["id"] == record.signature
    assert (found["group"], found["job"]) == ("roberta/masking", "dynamic")
    assert found["history"] == _curve(record)
    assert {k: v for k, v in found["summary"].items() if k in record.metrics} == record.metrics
    assert found["exit"] == 0
    assert found["config"]["model"]["dim"] == 32  # nested and typed
    assert "${" not in json.dumps(found["config"])


def test_two_runs_in_one_process_stay_two_and_a_failed_one_is_closed(told_to_wandb: Told, tmp_path: Path) -> None:
    for name, state in (("aaaaaaaaaaaaaaaa", "done"), ("bbbbbbbbbbbbbbbb", "failed")):
        record = Record(signature=name, state="running", config={"seed": 0, "sweep": None, "name": None})
        tracker = WandbTracker(mode="offline", project="lmab")
        folder = Store(tmp_path).create(name)
        tracker.open(record, folder)
        tracker.log(1, {"train/mlm_loss": 2.5 if state == "done" else 3.5})
        record.state = state  # type: ignore[assignment]
        tracker.close(record)
        tracker.close(record)  # closing twice is harmless
    done, failed = (_read(told_to_wandb(tmp_path / name)) for name in ("aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb"))
    assert done["history"] == {1: {"train/mlm_loss": 2.5}}
    assert failed["history"] == {1: {"train/mlm_loss": 3.5}}
    assert (done["exit"], failed["exit"]) == (0, 1)
