"""A run is a function: named, recorded, done once, and the same after it was killed."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from lmab.run import build_data, make, resolve, run
from lmab.store import Record, Store
from lmab.types import BadInput, Failed

if TYPE_CHECKING:
    from collections.abc import Callable

    from omegaconf import DictConfig

ROOT = Path(__file__).parents[1]
SMOKE = ["budget=smoke", "display=false"]
# Dropout, accumulation, and checkpoints that fall beside log points and inside epochs of 10 steps.
LONG = [*SMOKE, "trainer.steps=200", "trainer.checkpoint_every=37", "trainer.micro=8", "model.dropout=0.1"]
LONG += ["split.train=10", "evaluation.checkpoint=best", "trainer.val_every=50"]


def _only(store: Path) -> Record:
    (record,) = list(Store(store))
    return record


def _result(record: Record) -> dict[str, Any]:
    """Everything of a record that the machine's mood may not change."""
    keys = ("config", "metrics", "curves", "scores", "weights", "facts", "state", "step", "steps")
    return {k: getattr(record, k) for k in keys} | {"tokens": record.cost["tokens"]}


def _wait_for_step(store: Path, step: int) -> None:
    """Until a record below `store` says that it has come so far; the process' death ends the wait too."""
    for _ in range(6000):
        if any(r.step >= step for r in Store(store)):
            return
        time.sleep(0.01)
    pytest.fail("the run never came so far")


@pytest.mark.slow
def test_a_run_killed_in_mid_epoch_ends_as_if_it_had_not_been(
    composed: Callable[..., DictConfig], tmp_path: Path
) -> None:
    words = [*LONG, "tracker=csv"]
    run(composed(*words, f"store={tmp_path / 'whole'}"))
    killed = subprocess.Popen([sys.executable, "run.py", *words, f"store={tmp_path / 'killed'}"], cwd=ROOT)
    _wait_for_step(tmp_path / "killed", 60)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    half = _only(tmp_path / "killed")
    assert half.state == "running"
    assert 60 <= half.step < 200
    assert half.curves["train/mlm_loss"]  # what it had learnt by then can be read
    run(composed(*words, f"store={tmp_path / 'killed'}"))
    whole, resumed = _only(tmp_path / "whole"), _only(tmp_path / "killed")
    assert "goes on from step-" in (tmp_path / "killed" / resumed.signature / "run.log").read_text()
    whole.config["store"] = resumed.config["store"]
    assert _result(whole) == _result(resumed)
    tables = [(tmp_path / s / whole.signature / "metrics.csv").read_text() for s in ("whole", "killed")]
    assert tables[0] == tables[1]


def test_a_record_says_where_it_comes_from(composed: Callable[..., DictConfig], tmp_path: Path) -> None:
    record = run(composed(f"store={tmp_path}"), overrides=["budget=smoke"], hydra="hydra: {}")
    folder = tmp_path / record.signature
    assert record.state == "done"
    assert record.overrides == ["budget=smoke"]
    assert {"python", "torch", "lmab"} <= set(record.versions)
    assert record.code == {} or set(record.code) == {"revision", "dirty"}
    assert len(record.config["corpus"]["fingerprint"]) == 16
    assert "${" not in json.dumps(record.config)
    assert yaml.safe_load((folder / "config.yaml").read_text()) == record.config
    assert {p.name for p in (folder / ".hydra").iterdir()} == {"config.yaml", "overrides.yaml", "hydra.yaml"}
    assert not [p for p in folder.rglob("*") if "=" in p.name]
    assert record.cost["parameters"] > 0
    assert record.cost["flops_a_token"] > 0
    assert record.facts["mlm"]["masks"] == "dynamic"
    scores, weights = record.scores["test/mlm_loss"], record.weights["test/mlm_loss"]
    mean = sum(s * w for s, w in zip(scores, weights, strict=True) if w) / sum(weights)
    assert mean == pytest.approx(record.metrics["test/mlm_loss"], rel=1e-12)
    assert record.metrics["test/mlm_gain"] == record.facts["unigram_nats"]["test"] - record.metrics["test/mlm_loss"]


def test_a_run_that_is_done_is_found(composed: Callable[..., DictConfig], tmp_path: Path) -> None:
    first = run(composed(f"store={tmp_path}"))
    path = tmp_path / first.signature / "record.json"
    written = path.stat().st_mtime_ns
    assert run(composed(f"store={tmp_path}", "name=again")) == first
    assert path.stat().st_mtime_ns == written
    assert run(composed(f"store={tmp_path}", "seed=1")).signature != first.signature


def test_a_run_repeats_to_the_last_digit(composed: Callable[..., DictConfig], tmp_path: Path) -> None:
    records = [run(composed(f"store={tmp_path / name}", "model.dropout=0.1")) for name in ("one", "two")]
    records[0].config["store"] = records[1].config["store"]
    assert _result(records[0]) == _result(records[1])


def test_a_broken_record_or_checkpoint_goes_back_to_the_last_whole_one(
    composed: Callable[..., DictConfig], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    done = run(composed(f"store={tmp_path}"))
    folder = tmp_path / done.signature
    (folder / "record.json").write_text("{half a rec")
    newest = sorted((folder / "checkpoints").glob("step-*.ckpt"))[-1]
    newest.write_bytes(newest.read_bytes()[:-100])
    again = run(composed(f"store={tmp_path}"))
    assert "record.json cannot be read" in caplog.text
    assert f"{newest.name} is broken" in caplog.text
    assert _result(again) == _result(done)


def test_two_processes_that_want_one_run_do_it_once(
    tmp_path: Path, here: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    words = ["run.py", *SMOKE, "tracker=none", "trainer.steps=100", f"store={tmp_path}"]
    other = subprocess.Popen([sys.executable, *words], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    _wait_for_step(tmp_path, 1)
    mine = here(*words)  # while the other is at it
    said, _ = other.communicate()
    assert (mine.returncode, other.returncode) == (0, 0)
    assert mine.stdout == said
    assert (tmp_path / _only(tmp_path).signature / "run.log").read_text().count(" begins") == 1


def test_a_failure_is_recorded_with_its_traceback_and_tried_again(
    composed: Callable[..., DictConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    cfg = composed(f"store={tmp_path}")
    with monkeypatch.context() as patch:
        patch.setattr("lmab.facts.cost", lambda *_: 1 / 0)
        with pytest.raises(Failed, match="ZeroDivisionError"):
            run(cfg)
    record = _only(tmp_path)
    assert record.state == "failed"
    assert record.message == "ZeroDivisionError: division by zero"
    trace = (tmp_path / record.signature / "traceback.txt").read_text()
    assert "ZeroDivisionError" in trace
    assert trace.strip() in capsys.readouterr().err
    assert run(cfg).state == "done"
    assert not (tmp_path / record.signature / "traceback.txt").exists()


def test_divergence_is_an_outcome_and_keeps_its_curve(composed: Callable[..., DictConfig], tmp_path: Path) -> None:
    record = run(composed(f"store={tmp_path}", "optim.lr=1e30", "trainer.clip=null", "trainer.log_every=1"))
    assert record.state == "diverged"
    assert "at step" in record.message
    assert record.curves["train/mlm_loss"]
    assert run(composed(f"store={tmp_path}", "optim.lr=1e30", "trainer.clip=null", "trainer.log_every=1")) is not None
    assert _only(tmp_path).state == "diverged"  # it would diverge again: it is not done again


def test_bad_input_leaves_nothing_behind(composed: Callable[..., DictConfig], tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="not divisible"):
        run(composed(f"store={tmp_path}", "model.dim=33"))
    assert list(Store(tmp_path)) == []


def test_changed_text_is_another_run(composed: Callable[..., DictConfig], tmp_path: Path, reviews: list[str]) -> None:
    path, store = tmp_path / "own.txt", tmp_path / "store"
    cfg = composed(f"store={store}", "corpus=files", f"corpus.path={path}", "trainer.steps=2")
    path.write_text("\n\n".join(reviews), encoding="utf-8")
    first = run(cfg)
    moved = path.rename(tmp_path / "moved.txt")
    cfg.corpus.path = str(moved)
    from lmab import run as module

    module._fingerprint.cache_clear()
    assert run(cfg).signature == first.signature
    moved.write_text("\n\n".join(reviews[1:]), encoding="utf-8")
    module._fingerprint.cache_clear()
    assert run(cfg).signature != first.signature


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_full_disk_is_one_sentence(tmp_path: Path, command: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", tmp_path], check=False)
    if mounted.returncode:
        pytest.skip("this machine mounts no tmpfs")
    try:
        done = command("run.py", *SMOKE, "tracker=none", f"store={tmp_path / 'store'}")
    finally:
        subprocess.run(["umount", tmp_path], check=True)
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].startswith("lmab: No space is left")
    assert "Traceback" not in done.stderr


MEMORY = """
import gc, json, os, pathlib, sys
from hydra import compose, initialize_config_dir
from lmab.run import run

sizes = []
for seed in range(8):
    with initialize_config_dir(sys.argv[1], version_base="1.3"):
        cfg = compose("config", [*sys.argv[3:], f"store={sys.argv[2]}", f"seed={seed}"])
    run(cfg)
    gc.collect()
    assert not [o for o in gc.get_objects() if type(o).__name__ == "BERT"], "something holds a model"
    sizes.append(int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
print(json.dumps(sizes))
"""


@pytest.mark.slow
def test_memory_does_not_grow_from_run_to_run(tmp_path: Path) -> None:
    # A process of its own: in one that ran other tests, their garbage moves the heap.
    words = [sys.executable, "-c", MEMORY, str(ROOT / "conf"), str(tmp_path), *SMOKE, "tracker=none"]
    words += ["model.dim=128", "model.ffn=512", "trainer.steps=5"]
    words += ["split.train=4", "split.validation=4", "split.test=4"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    sizes = json.loads(done.stdout.splitlines()[-1])
    # A model of 0.5 million parameters that stayed behind with its optimiser would add 6 MB each time. The heap
    # itself goes up and down by some megabytes, so it is the run in the middle that counts, by half of that.
    growth = [after - before for before, after in pairwise(sizes[3:])]
    assert statistics.median(growth) < 3e6, sizes


def test_a_run_killed_while_it_was_scored_ends_as_if_it_had_not_been(
    composed: Callable[..., DictConfig], tmp_path: Path
) -> None:
    cfg = composed(f"store={tmp_path}", "tracker=csv")
    done = run(cfg)
    folder = tmp_path / done.signature
    table = (folder / "metrics.csv").read_text()
    (folder / "metrics.csv").unlink()
    half = Store(tmp_path).find(done.signature)
    assert half is not None
    half.state, half.metrics, half.scores, half.step = "running", {}, {}, 5
    Store(tmp_path).write(half)
    again = run(cfg)
    assert _result(again) == _result(done)
    assert (folder / "metrics.csv").read_text() == table


def test_a_broken_best_checkpoint_begins_the_run_anew(
    composed: Callable[..., DictConfig], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cfg = composed(f"store={tmp_path}", "evaluation.checkpoint=best")
    done = run(cfg)
    folder = tmp_path / done.signature
    (folder / "record.json").unlink()
    (folder / "checkpoints" / "best.ckpt").write_bytes(b"PK spoilt")
    assert _result(run(cfg)) == _result(done)
    assert "best.ckpt is broken" in caplog.text


def test_training_never_draws_the_masks_it_is_scored_on(composed: Callable[..., DictConfig], tmp_path: Path) -> None:
    config, _ = resolve(composed(f"store={tmp_path}", "objective.mlm.copies=1"))
    _, data = build_data(config, {name: make(node) for name, node in config["objective"].items()})
    assert config["seed"] == config["evaluation"]["seed"]
    seeds = {data.train.collate.seed, data.validation.collate.seed, data.test.collate.seed}
    assert len(seeds) == 3


def test_flops_and_parameters_are_the_same_for_every_seed(composed: Callable[..., DictConfig], tmp_path: Path) -> None:
    costs = [run(composed(f"store={tmp_path}", f"seed={seed}", "trainer.steps=1")).cost for seed in (0, 1)]
    assert costs[0]["flops_a_token"] == costs[1]["flops_a_token"] > 0
    assert costs[0]["parameters"] == costs[1]["parameters"] > 0
