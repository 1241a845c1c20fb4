"""Where runs start from: another run, done first or named, whose weights, sizes and tokenizer go on."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from lmab import starting
from lmab.lab import grouping
from lmab.run import begun, resolve, run
from lmab.store import Record, Store
from lmab.types import BadInput, Failed
from lmab.wiring import build_data, build_learner, build_prepared, make

if TYPE_CHECKING:
    from collections.abc import Callable

    from omegaconf import DictConfig
    from torch import Tensor

    Composed = Callable[..., DictConfig]

ROOT = Path(__file__).parents[1]
FIRST = "start=['trainer.steps=3']"
HEADS = ("network.head.", "network.pooler.", "objectives.")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared by the tests of this file that count nothing: the text is prepared once."""
    return tmp_path_factory.mktemp("starting")


def _first(store: Path, record: Record) -> Record:
    found = Store(store).find(record.config["start"]["run"])
    assert found is not None
    return found


def _last(store: Path, record: Record) -> dict[str, Tensor]:
    return starting.last_weights(Store(store), record.signature, record.config)


def _begins(store: Path, record: Record) -> int:
    """How often a run was begun."""
    log = (store / record.signature / "run.log").read_text()
    return log.count(f"Run {record.signature} begins")


def _weights(config: dict[str, Any], start: dict[str, Tensor] | None) -> dict[str, Tensor]:
    """With which a run of a resolved configuration begins."""
    objectives = {name: make(node) for name, node in config["objective"].items()}
    _, data = build_data(config, objectives)
    return dict(build_learner(config, objectives, data, config["seed"], start).named_parameters())


def test_a_list_of_overrides_is_done_first_and_found_afterwards(composed: Composed, tmp_path: Path) -> None:
    line = [f"store={tmp_path}", "trainer.steps=2", "tracker=csv", "seed=3", "+sweep.name=s", "+sweep.arm=a"]
    one = run(composed(*line, FIRST, "optim.lr=0.001"))
    first = _first(tmp_path, one)
    assert (first.state, first.step, first.seed) == ("done", 3, 3)
    assert first.config["sweep"] == {"name": "s", "arm": "start of a"}
    for key in ("seed", "store", "tracker", "display", "budget"):
        assert first.config[key] == one.config[key]
    assert (tmp_path / first.signature / "metrics.csv").exists()
    assert first.overrides == ["trainer.steps=3"]
    run(composed(*line, FIRST, "optim.lr=0.002"))
    assert len(list(Store(tmp_path))) == 3
    assert _begins(tmp_path, first) == 1
    assert resolve(composed(*line, FIRST))[0]["start"]["run"] == first.signature
    # It is the run that its overrides alone would make.
    assert resolve(composed("seed=3", "trainer.steps=3"))[1] == first.signature


def test_what_the_first_run_says_of_itself_holds(composed: Composed) -> None:
    config, _ = resolve(composed("seed=3", "start=['seed=5','model.depth=1','budget.dim=16']"))
    first = config["start"]["config"]
    assert (config["seed"], first["seed"]) == (3, 5)
    assert config["model"]["depth"] == first["model"]["depth"] == 1
    assert config["model"]["dim"] == 16


def test_weights_go_on_and_what_the_first_run_had_not_begins_anew(composed: Composed, store: Path) -> None:
    config, _ = resolve(composed(f"store={store}", FIRST, "objective=[mlm,nsp]", "segments=segment_pair"))
    record = run(composed(f"store={store}", "trainer.steps=3"))
    assert config["start"]["run"] == record.signature
    trained = _last(store, record)
    mine, fresh = _weights(config, starting.weights(config)), _weights(config, None)
    assert set(trained) < set(mine)
    for name, tensor in mine.items():
        assert torch.equal(tensor, trained.get(name, fresh[name]))
    assert not torch.equal(trained["network.head.bias"], fresh["network.head.bias"])


def test_a_probe_trains_fresh_heads_alone(composed: Composed, store: Path) -> None:
    record = run(composed(f"store={store}", FIRST, "frozen=true", "optim.lr=0.01", "trainer.steps=4"))
    before, after = _last(store, _first(store, record)), _last(store, record)
    fresh = _weights(record.config, None)
    began = _weights(record.config, starting.weights(record.config))
    assert set(before) == set(after)
    for name in after:
        if name.startswith(HEADS):
            assert torch.equal(began[name], fresh[name])
            assert not torch.equal(after[name], fresh[name]), name
            assert not torch.equal(before[name], fresh[name]), name
        else:
            assert torch.equal(after[name], before[name]), name


def test_sizes_are_those_of_the_first_run_and_dropout_is_ones_own(composed: Composed, store: Path) -> None:
    first = "start=['model.dim=48','model.depth=1','model.dropout=0.3','tokenizer.vocab=500','trainer.steps=2']"
    line = [f"store={store}", first, "model.dim=16", "model.dropout=0.2", "trainer.steps=2"]
    record = run(composed(*line))
    model = record.config["model"]
    assert (model["dim"], model["depth"], model["vocab"], model["dropout"]) == (48, 1, 500, 0.2)
    assert record.config["tokenizer"]["vocab"] == 500
    assert _last(store, record)["network.embedding.tokens.weight"].shape == (500, 48)


def test_the_tokenizer_is_that_of_the_first_run_on_any_text(composed: Composed, store: Path) -> None:
    first = "start=['corpus=rotten_tomatoes','split.seed=4','tokenizer=byte_bpe','trainer.steps=2']"
    config, _ = resolve(composed(f"store={store}", first))
    assert config["tokenizer"]["_target_"].endswith("ByteLevelBPE")
    mine, its = build_prepared(config), build_prepared(config["start"]["config"])
    own = build_prepared(resolve(composed(f"store={store}", "tokenizer=byte_bpe"))[0])
    assert mine.tokenizer.read_bytes() == its.tokenizer.read_bytes() != own.tokenizer.read_bytes()
    assert mine.vocabulary.size == config["model"]["vocab"]
    assert mine.facts["train"] != its.facts["train"]


@pytest.mark.parametrize("form", ["run:{}", "{}"])
def test_a_run_is_named_by_how_its_signature_begins(form: str, composed: Composed, store: Path) -> None:
    record = run(composed(f"store={store}", "trainer.steps=3"))
    given = form.format(record.signature[:9])
    named, name = resolve(composed(f"store={store}", f"start='{given}'"))
    listed, same = resolve(composed(f"store={store}", FIRST))
    assert named["start"] == {"run": record.signature, "config": record.config}
    assert named["model"] == listed["model"]
    assert name == same


def test_a_run_that_is_not_done_is_no_start(composed: Composed, tmp_path: Path) -> None:
    record = run(composed(f"store={tmp_path}", "trainer.steps=2"))
    record.state = "running"
    Store(tmp_path).write(record)
    with pytest.raises(BadInput, match=r"running, not done"):
        resolve(composed(f"store={tmp_path}", f"start='{record.signature}'"))


def test_a_run_that_diverged_leaves_those_that_start_from_it_without_an_outcome(
    composed: Composed, tmp_path: Path
) -> None:
    first = "start=['optim.lr=1e30','trainer.clip=null','trainer.log_every=1']"
    record = run(composed(f"store={tmp_path}", first))
    assert record.state == "diverged"
    assert record.config["start"]["run"] in record.message
    assert _first(tmp_path, record).state == "diverged"
    assert run(composed(f"store={tmp_path}", first)).state == "diverged"


def test_a_first_run_that_failed_is_said_and_tried_again(
    composed: Composed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg = composed(f"store={tmp_path}", FIRST, "trainer.steps=2")
    with monkeypatch.context() as patch:
        patch.setattr("lmab.facts.cost", lambda *_: 1 / 0)
        with pytest.raises(Failed, match="ZeroDivisionError"):
            run(cfg)
    assert {r.state for r in Store(tmp_path)} == {"failed"}
    assert len(list(Store(tmp_path))) == 2
    assert run(cfg).state == "done"
    assert {r.state for r in Store(tmp_path)} == {"done"}


def test_a_probe_on_a_run_that_starts_from_another(composed: Composed, tmp_path: Path) -> None:
    nested = """start=['objective=[mlm]','trainer.steps=2','start=["model.dim=48","trainer.steps=3"]']"""
    record = run(composed(f"store={tmp_path}", nested, "frozen=true", "trainer.steps=1"))
    middle = _first(tmp_path, record)
    first = _first(tmp_path, middle)
    assert [r.step for r in (first, middle, record)] == [3, 2, 1]
    assert {r.config["model"]["dim"] for r in (first, middle, record)} == {48}
    name = "network.encoder.layers.0.inner.weight"
    assert torch.equal(_last(tmp_path, record)[name], _last(tmp_path, middle)[name])
    assert not torch.equal(_last(tmp_path, first)[name], _last(tmp_path, middle)[name])
    # Asked to begin at nothing trained, the chain composes at the published sizes too.
    paper = begun(resolve(composed("budget=paper"))[0] | {"start": ["experiment=bert"]})
    assert paper["start"]["config"]["model"]["depth"] == 12


def test_probes_of_several_seeds_are_one_group(composed: Composed, store: Path) -> None:
    records = [
        run(composed(f"store={store}", FIRST, "frozen=true", "trainer.steps=2", f"seed={seed}", f"optim.lr={lr}"))
        for seed in (0, 1)
        for lr in (0.001, 0.002)
    ]
    groups = grouping.groups(records, ["optim.lr"])
    assert {label: sorted(runs) for label, runs in groups.items()} == {"lr=0.001": [0, 1], "lr=0.002": [0, 1]}
    other = run(
        composed(f"store={store}", "start=['trainer.steps=2']", "frozen=true", "trainer.steps=2", "optim.lr=0.001")
    )
    with pytest.raises(BadInput, match=r"start\.config\.trainer\.steps"):
        grouping.groups([*records, other], ["optim.lr"])


@pytest.mark.slow
def test_a_sweep_over_cores_and_another_process_train_a_shared_first_run_once(
    composed: Composed, tmp_path: Path
) -> None:
    words = ["budget=smoke", "tracker=none", f"store={tmp_path}", "trainer.steps=5", "start=['trainer.steps=100']"]
    line = [sys.executable, "run.py", "-m", *words, "hydra/launcher=cores", "optim.lr=0.001,0.002"]
    sweep = subprocess.Popen(line, cwd=ROOT, stdout=subprocess.DEVNULL)
    while not list(Store(tmp_path)):  # until a worker has begun
        assert sweep.poll() is None
        time.sleep(0.01)
    run(composed(*words, "optim.lr=0.003"))  # while the workers want the same first run
    assert sweep.wait() == 0
    records = list(Store(tmp_path))
    (first,) = [r for r in records if r.config["start"] is None]
    assert [r.state for r in records] == ["done"] * 4
    assert _begins(tmp_path, first) == 1
    assert {r.config["start"]["run"] for r in records if r is not first} == {first.signature}


@pytest.mark.slow
def test_a_run_killed_in_its_second_stage_ends_as_if_it_had_not_been(composed: Composed, tmp_path: Path) -> None:
    words = ["budget=smoke", "tracker=none", "display=false", FIRST, "trainer.steps=200", "model.dropout=0.1"]
    words += ["trainer.checkpoint_every=25"]
    line = [sys.executable, "run.py", *words, f"store={tmp_path / 'killed'}"]
    killed = subprocess.Popen(line, cwd=ROOT, stdout=subprocess.DEVNULL)
    for _ in range(6000):
        if any(r.config["start"] and r.step >= 60 for r in Store(tmp_path / "killed")):
            break
        assert killed.poll() is None
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    run(composed(*words[3:], f"store={tmp_path / 'killed'}"))
    whole = run(composed(*words[3:], f"store={tmp_path / 'whole'}"))
    resumed = Store(tmp_path / "killed").find(whole.signature)
    assert resumed is not None
    assert "goes on from step-" in (tmp_path / "killed" / resumed.signature / "run.log").read_text()
    assert _begins(tmp_path / "killed", _first(tmp_path / "killed", resumed)) == 1
    assert (resumed.metrics, resumed.curves, resumed.scores) == (whole.metrics, whole.curves, whole.scores)
