"""What a claim may not tune, said before anything is trained; what tuning comes to is held with the claims."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from lmab.lab.claim import load
from lmab.store import Store
from lmab.types import BadInput

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

NAME = "albert/width"
GIVEN = yaml.safe_load((Path(__file__).parents[3] / "sweeps" / f"{NAME}.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"seeds": [100, 3]}, "tuned on seed 3 and judged by it"),
        ({"seeds": []}, "no params or no seeds"),
        ({"params": {}}, "no params or no seeds"),
        ({"direction": "down"}, "tune.direction"),
    ],
)
def test_a_claim_that_flatters_its_arms_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says) as refused:
        load(NAME, GIVEN | {"tune": GIVEN["tune"] | change})
    assert str(refused.value).startswith(f"sweeps/{NAME}.yaml")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"params": {"model.dim": "32,64"}}, "model.dim is tuned in every arm, and is what the arm first is about"),
        ({"params": {"optim.lr": "1e-3,1e-2", "trainer.steps": 3}}, "one value for trainer.steps=3: move it to base"),
        ({"params": {"objective.mlm.rate": "interval(0.1,0.5)"}}, "cannot tell which objective.mlm.rate is best"),
        ({"params": {"seed": "1,2"}}, "averages over seeds"),
        ({"metric": "test/mlm_loss"}, "give val/mlm_loss"),
        ({"trials": 0}, "give at least 1"),
        ({"trials": "few"}, "tune.trials=few is no number"),
        ({}, "which tunes optim.lr in every arm: leave it out"),
    ],
)
def test_what_cannot_be_tuned_is_one_sentence(
    change: dict[str, Any], says: str, here: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    file = tmp_path / "conf" / "sweeps" / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("# @package _global_\n" + yaml.safe_dump(GIVEN | {"tune": GIVEN["tune"] | change}))
    words = ["budget=smoke", "tracker=none", f"store={tmp_path / 'runs'}", "hydra/launcher=basic"]
    words += [] if change else ["optim.lr=0.1"]
    done = here("run.py", "-m", "--config-dir", str(tmp_path / "conf"), "sweeps=mine", *words)
    assert done.returncode == 2, done.stdout
    (sentence,) = done.stderr.strip().splitlines()
    assert says in sentence
    assert not (tmp_path / "runs" / "studies").exists()
    assert list(Store(tmp_path / "runs")) == []
