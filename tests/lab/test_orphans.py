"""Workers whose launcher is gone."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from lmab.store import Store

ROOT = Path(__file__).parents[2]
SWEEP = ["experiment=digits", "seed=0,1"]
SEARCH = ["experiment=digits", "hydra/sweeper=optuna", "optim.lr=tag(log,interval(1e-4,1e-2))"]


@pytest.mark.slow
@pytest.mark.parametrize("words", [SWEEP, SEARCH], ids=["sweep", "search"])
def test_workers_end_with_their_launcher(words: list[str], tmp_path: Path) -> None:
    line = ["run.py", "-m", *words, "hydra/launcher=cores", "budget=smoke", "tracker=none", f"store={tmp_path}"]
    process = subprocess.Popen([sys.executable, *line, "trainer.steps=10000000"], cwd=ROOT)
    store = Store(tmp_path)
    while not (runs := [record.signature for record in store if store.alive(record.signature)]):
        assert process.poll() is None
        time.sleep(0.05)
    process.terminate()  # it alone: what ends a whole session, as Ctrl-C does, reaches its workers too
    process.wait()
    while any(map(store.alive, runs)):  # the test's own limit of time ends this
        time.sleep(0.05)
