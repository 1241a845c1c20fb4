"""A search from its line to what it found, in one process."""

from __future__ import annotations

import csv
import json
import math
import re
from typing import TYPE_CHECKING, Any

import optuna
import pytest
from optuna.trial import TrialState

from lmab.lab.tuning import study, worker
from lmab.store import Record, Store

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from optuna.study import Study
    from optuna.trial import FrozenTrial

    Line = Callable[..., subprocess.CompletedProcess[str]]

LR = "optim.lr=tag(log,interval(1e-4,1e-1))"
DIM = "model.dim=choice(4,8,16)"
LIMIT = "hydra.sweeper.constraints={cost/parameters:2000}"


@pytest.fixture
def search(here: Line, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """A search over digits, by one worker."""

    def ask(*words: str) -> subprocess.CompletedProcess[str]:
        line = ["run.py", "-m", "hydra/sweeper=optuna", "hydra.sweeper.n_jobs=1", "hydra.sweeper.study_name=s"]
        line += ["experiment=digits", "budget=smoke", "trainer.steps=6", "trainer.val_every=2", "tracker=none"]
        return here(*line, f"store={tmp_path}", *words)

    return ask


def opened(store: Path, name: str = "s") -> Study:
    return optuna.load_study(study_name=name, storage=study.storage(str(store / "studies" / name / "journal.log")))


def trials(store: Path) -> list[FrozenTrial]:
    return study.counted(opened(store))


def report(store: Path) -> Path:
    (page,) = (store / "reports").glob("s-*/report.html")
    return page.parent


def test_the_same_line_goes_on_to_as_many_in_all(search: Line, tmp_path: Path) -> None:
    """And draws what it would have drawn without a stop."""
    first = search(LR, DIM, "hydra.sweeper.n_trials=3")
    assert (first.returncode, len(trials(tmp_path))) == (0, 3)
    written = {r.signature: (tmp_path / r.signature / "record.json").stat().st_mtime_ns for r in Store(tmp_path)}
    assert search(LR, DIM, "hydra.sweeper.n_trials=5").returncode == 0
    after = {r.signature: (tmp_path / r.signature / "record.json").stat().st_mtime_ns for r in Store(tmp_path)}
    assert len(after) == 5
    assert written.items() <= after.items()
    again = search(LR, DIM, "hydra.sweeper.n_trials=5")
    assert len(trials(tmp_path)) == 5
    whole = search(LR, DIM, "hydra.sweeper.n_trials=5", f"store={tmp_path / 'whole'}")
    assert [t.params for t in trials(tmp_path)] == [t.params for t in trials(tmp_path / "whole")]
    assert [t.values for t in trials(tmp_path)] == [t.values for t in trials(tmp_path / "whole")]
    assert again.stdout.splitlines()[-3] == whole.stdout.splitlines()[-3]  # the best trial, in words


def test_the_best_trial_runs_again_to_the_last_digit(search: Line, here: Line, tmp_path: Path) -> None:
    assert search(LR, DIM, "hydra.sweeper.n_trials=4").returncode == 0
    best = min(trials(tmp_path), key=lambda t: t.values[0])
    with (report(tmp_path) / "trials.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["val/classify_loss"]) for row in rows] == [t.values[0] for t in trials(tmp_path)]
    done = here("run.py", "--config-dir", str(report(tmp_path)), "--config-name", "best", f"store={tmp_path / 'other'}")
    assert done.returncode == 0
    (again,) = Store(tmp_path / "other")
    (name,) = best.user_attrs[study.RUNS]
    before = Store(tmp_path).find(name)
    assert before is not None
    assert again.signature == name
    assert (again.metrics, again.curves, again.scores) == (before.metrics, before.curves, before.scores)
    assert again.curves["val/classify_loss"][-1][1] == best.values[0]


def _no_memory(record: Record) -> None:
    raise MemoryError("no more of it")


def _no_number(record: Record) -> None:
    record.curves["val/classify_loss"] = [(6, math.nan)]


def _diverged(record: Record) -> None:
    record.state, record.message = "diverged", "val/classify_loss is nan at step 2 of 6."


# What happens to a run, and what is said of its trial.
FAULTS: list[tuple[Callable[[Record], object], str]] = [
    (lambda record: 1 / 0, "ZeroDivisionError: division by zero"),
    (_no_memory, "MemoryError: no more of it"),
    (_no_number, "val/classify_loss is nan"),
    (_diverged, "diverged: val/classify_loss is nan at step 2 of 6."),
]


def test_a_trial_that_fails_stops_no_other_and_is_never_the_best(
    search: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = worker.run
    count = iter(range(99))

    def run(cfg: Any, **more: Any) -> Any:
        record = done(cfg, **more)
        if (number := next(count)) and number <= len(FAULTS):
            FAULTS[number - 1][0](record)
        return record

    monkeypatch.setattr(worker, "run", run)
    found = search(LR, "hydra.sweeper.n_trials=6")
    assert found.returncode == 0
    assert [t.state.name for t in trials(tmp_path)] == ["COMPLETE", *["FAIL"] * len(FAULTS), "COMPLETE"]
    for trial, (_, says) in zip(trials(tmp_path)[1:], FAULTS, strict=False):
        assert trial.user_attrs[study.WHY].endswith(says)
    best = min((t for t in trials(tmp_path) if t.values), key=lambda t: t.values[0])
    assert f"The best of 6 trials is {best.number}," in found.stdout
    assert (report(tmp_path) / "trials.csv").read_text().count(",failed,") == len(FAULTS)
    assert search(LR, "hydra.sweeper.n_trials=6", "hydra.sweeper.max_failure_rate=0.1").returncode == 1


def test_each_trial_is_a_run_of_the_studys_group_at_wandb(
    search: Line, told_to_wandb: Callable[[Path], Iterator[Any]], tmp_path: Path
) -> None:
    """Its real client, offline; the one that is pruned is closed too."""
    words = ["hydra/sweeper/pruner=threshold", "hydra.sweeper.pruner.upper=0", "tracker=wandb", "tracker.mode=offline"]
    assert search(LR, "hydra.sweeper.n_trials=1", *words).returncode == 1  # every trial is pruned
    (record,) = Store(tmp_path)
    assert record.state == "pruned"
    found = [
        one for one in told_to_wandb(tmp_path / record.signature) if one.WhichOneof("record_type") in ("run", "exit")
    ]
    first = found[0].run
    assert (first.run_id, first.run_group, first.job_type) == (record.signature, "s", "trial 0")
    config = {u.key: json.loads(u.value_json) for u in first.config.update}
    assert config["optim"]["lr"] == trials(tmp_path)[0].params["optim.lr"]
    assert found[-1].WhichOneof("record_type") == "exit"


def test_points_that_cannot_be_trained_are_said_and_passed_over(search: Line, tmp_path: Path) -> None:
    # Two rates that no one may have; a run that diverges is no trial with a value either.
    found = search("optim.lr=choice(-1,0.01,1e30)", "hydra/sweeper/sampler=grid", "trainer.clip=null")
    assert found.returncode == 0
    told = {t.params["optim.lr"]: t for t in trials(tmp_path)}
    assert told[0.01].state == TrialState.COMPLETE
    assert told[-1].state == TrialState.FAIL
    assert "lr" in told[-1].user_attrs[study.WHY]
    assert search("optim.lr=choice(-1,-2)", "hydra.sweeper.study_name=t", "hydra/sweeper/sampler=grid").returncode == 1


def test_pruning_happens_and_is_recorded(search: Line, here: Line, tmp_path: Path) -> None:
    words = ["hydra/sweeper/pruner=median", "hydra.sweeper.pruner.n_startup_trials=1", "tracker=csv"]
    assert search(LR, "hydra.sweeper.n_trials=8", *words).returncode == 0
    pruned = [t for t in trials(tmp_path) if t.state == TrialState.PRUNED]
    assert pruned
    (name,) = pruned[0].user_attrs[study.RUNS]
    record = Store(tmp_path).find(name)
    assert record is not None
    assert record.state == "pruned"
    points = record.curves["val/classify_loss"]
    assert 0 < len(points) < 3
    assert pruned[0].intermediate_values == dict(points)
    lines = (tmp_path / name / "metrics.csv").read_text().splitlines()
    assert lines[-1].split(",")[0] == str(record.step)
    assert "pruned" in (report(tmp_path) / "report.html").read_text()
    # Asked for by itself it goes on, and ends as if nobody had looked.
    knobs = ["experiment=digits", "budget=smoke", "trainer.steps=6", "trainer.val_every=2", "tracker=none"]
    knobs += ["display=false", f"optim.lr={pruned[0].params['optim.lr']}"]
    assert here("run.py", *knobs, f"store={tmp_path}").returncode == 0
    assert here("run.py", *knobs, f"store={tmp_path / 'other'}").returncode == 0
    on, whole = Store(tmp_path).find(name), Store(tmp_path / "other").find(name)
    assert on is not None
    assert whole is not None
    assert on.state == "done"
    assert (on.metrics, on.curves, on.scores) == (whole.metrics, whole.curves, whole.scores)


def test_a_grid_is_every_point_once(search: Line, tmp_path: Path) -> None:
    found = search("optim.lr=choice(0.001,0.01)", "model.dim=range(4,9,4)", "hydra/sweeper/sampler=grid")
    assert found.returncode == 0
    points = [(t.params["optim.lr"], t.params["model.dim"]) for t in trials(tmp_path)]
    assert sorted(points) == [(0.001, 4), (0.001, 8), (0.01, 4), (0.01, 8)]


def test_several_seeds_are_averaged(search: Line, tmp_path: Path) -> None:
    assert search(LR, "hydra.sweeper.n_trials=2", "hydra.sweeper.seeds=[3,5]").returncode == 0
    for trial in trials(tmp_path):
        records = [Store(tmp_path).find(name) for name in trial.user_attrs[study.RUNS]]
        assert [record.seed for record in records if record is not None] == [3, 5]
        ends = [record.curves["val/classify_loss"][-1][1] for record in records if record is not None]
        assert trial.values[0] == pytest.approx(sum(ends) / 2)


def test_a_point_over_its_limit_is_not_trained(search: Line, tmp_path: Path) -> None:
    words = ["model.dim=choice(4,64)", "hydra/sweeper/sampler=nsgaii", "hydra.sweeper.n_trials=4", LIMIT]
    found = search(*words)
    assert found.returncode == 0
    wide = [t for t in trials(tmp_path) if t.params["model.dim"] == 64]
    assert wide
    for trial in wide:
        assert trial.state == TrialState.PRUNED
        assert "cost/parameters is" in trial.user_attrs[study.WHY]
        assert study.RUNS not in trial.user_attrs
    assert {r.config["model"]["dim"] for r in Store(tmp_path)} == {4}
    assert "over a limit" in (report(tmp_path) / "trials.csv").read_text()


def test_several_metrics_have_a_front(search: Line, tmp_path: Path) -> None:
    both = "hydra.sweeper.metric=[val/classify_accuracy,cost/parameters]"
    found = search(LR, DIM, "hydra.sweeper.n_trials=6", both, "hydra.sweeper.direction=[maximize,minimize]")
    assert found.returncode == 0
    values = {t.number: t.values for t in trials(tmp_path)}
    front = {
        number
        for number, (accuracy, size) in values.items()
        if not any(a >= accuracy and s <= size and (a, s) != (accuracy, size) for a, s in values.values())
    }
    assert {int(path.stem.removeprefix("front-")) for path in report(tmp_path).glob("front-*.yaml")} == front
    page = (report(tmp_path) / "report.html").read_text()
    assert "surpassed by no other" in page
    for part in ("History", "Slices", "All trials", "What it cost"):
        assert part in page


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([LR, "hydra.sweeper.metric=test/classify_loss"], "give val/classify_loss"),
        ([LR, "hydra.sweeper.metric=val/clasify_loss"], "did you mean val/classify_loss"),
        ([LR, "hydra.sweeper.direction=[minimize,minimize]"], "give one direction for each"),
        ([LR, "hydra.sweeper.n_trials=0"], "give at least 1"),
        (
            [LR, "hydra.sweeper.constraints={cost/parameters:9}", "hydra/sweeper/sampler=cmaes"],
            "cannot keep to constraints",
        ),
        ([LR, "hydra/sweeper/sampler=grid"], "is an interval"),
        ([LR, "seed=0,1"], "hydra.sweeper.seeds="),
        (["optim.lrr=0.1,0.2"], "optim.lr"),
        ([LR, "+optim.lrr=0.1"], "lrr"),
        ([LR, "hydra.sweeper.n_trial=3"], "did you mean hydra.sweeper.n_trials"),
        ([LR, "+hydra.sweeper.trials=3"], "hydra.sweeper.trials is not known"),
        ([LR, "hydra.sweeper.n_trials=many"], "hydra.sweeper.n_trials='many' cannot work"),
        ([LR, "+hydra.sweeper.sampler.n_startup=3"], "cannot be made of these settings"),
        ([LR, "hydra.sweeper.study_name=../x"], "leaves the store"),
        (["model.dim=8"], "Nothing is searched"),
    ],
)
def test_what_cannot_be_searched_is_one_sentence(words: list[str], says: str, search: Line, tmp_path: Path) -> None:
    done = search(*words)
    assert done.returncode == 2, done.stdout
    (sentence,) = done.stderr.strip().splitlines()
    assert re.search(re.escape(says), sentence)
    assert list(Store(tmp_path)) == []


def test_another_question_under_the_same_name_is_refused(search: Line, tmp_path: Path) -> None:
    assert search(LR, "hydra.sweeper.n_trials=1").returncode == 0
    for words, differs in (([DIM], "configuration and space"), ([LR, "hydra.sweeper.seeds=[1]"], "seeds")):
        done = search(*words)
        assert done.returncode == 2
        assert f"was begun with another {differs}" in done.stderr


def test_what_the_space_changes_the_meaning_of_is_no_metric(here: Line, tmp_path: Path) -> None:
    line = ["run.py", "-m", "hydra/sweeper=optuna", "budget=smoke", "tracker=none", f"store={tmp_path}"]
    done = here(*line, "objective.mlm.rate=interval(0.1,0.5)")
    assert done.returncode == 2
    assert "val/mlm_loss cannot tell which objective.mlm.rate is best" in done.stderr


def depth(cfg: Any, trial: optuna.Trial) -> None:
    """What hydra.sweeper.custom_search_space names below: how deep depends on how wide."""
    trial.suggest_int("model.depth", 1, 2 if cfg.model.dim < 8 else 4)


def test_a_function_may_name_more_parameters(search: Line, here: Line, tmp_path: Path) -> None:
    own = f"hydra.sweeper.custom_search_space={__name__}.depth"
    words = ["model.dim=choice(4,8)", "hydra/sweeper/sampler=brute_force", "hydra.sweeper.n_trials=6"]
    assert search(*words, own).returncode == 0
    points = {(t.params["model.dim"], t.params["model.depth"]) for t in trials(tmp_path)}
    assert points == {(4, 1), (4, 2), (8, 1), (8, 2), (8, 3), (8, 4)}
    runs = {(r.config["model"]["dim"], r.config["model"]["depth"]) for r in Store(tmp_path)}
    assert runs == points
    with (report(tmp_path) / "trials.csv").open() as file:
        assert {(int(row["model.dim"]), int(row["model.depth"])) for row in csv.DictReader(file)} == points
    assert "val/classify_loss over model.depth" in (report(tmp_path) / "report.html").read_text()
    best = min(trials(tmp_path), key=lambda t: t.values[0])
    assert here("run.py", "--config-dir", str(report(tmp_path)), "--config-name", "best").returncode == 0
    assert len(list(Store(tmp_path))) == 6  # it is a run that there was
    assert f"depth: {best.params['model.depth']}" in (report(tmp_path) / "best.yaml").read_text()


def test_a_function_may_name_all_parameters(search: Line, tmp_path: Path) -> None:
    own = f"hydra.sweeper.custom_search_space={__name__}.depth"
    assert search(own, "hydra.sweeper.n_trials=3", "model.dim=8").returncode == 0
    assert all([*t.params] == ["model.depth"] for t in trials(tmp_path))
    done = search(own, "model.dim=choice(4,8)", "hydra/sweeper/sampler=grid", "hydra.sweeper.study_name=t")
    assert done.returncode == 2
    assert "hydra/sweeper/sampler=brute_force" in done.stderr


def test_what_is_worse_over_the_first_seeds_is_not_trained_with_the_others(search: Line, tmp_path: Path) -> None:
    words = ["hydra/sweeper/pruner=wilcoxon", "hydra.sweeper.seeds=[0,1,2,3,4,5]", "hydra/sweeper/sampler=grid"]
    assert search("optim.lr=choice(1e-2,1e-6)", *words, "hydra.sweeper.sampler.seed=1").returncode == 0
    good, bad = trials(tmp_path)
    assert (good.params["optim.lr"], bad.params["optim.lr"]) == (1e-2, 1e-6)
    assert good.state == TrialState.COMPLETE
    assert len(good.user_attrs[study.RUNS]) == 6
    # Worse in all of n seeds has a one-sided p of 1/2^n, which is under 0.1 from four on.
    assert bad.state == TrialState.PRUNED
    assert len(bad.user_attrs[study.RUNS]) == 4
    assert all(r.state == "done" for r in Store(tmp_path))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # selenium's own sockets
def test_pages_in_a_browser(search: Line, looked_at: Callable[[Path, int], None], tmp_path: Path) -> None:
    words = ["hydra/sweeper/pruner=median", "hydra.sweeper.pruner.n_startup_trials=1"]
    assert search(LR, DIM, "hydra.sweeper.n_trials=6", *words).returncode == 0
    looked_at(report(tmp_path) / "report.html", 4)  # history, curves, and a slice of each parameter
    both = [
        "hydra.sweeper.metric=[val/classify_accuracy,cost/parameters]",
        "hydra.sweeper.direction=[maximize,minimize]",
    ]
    assert search(LR, DIM, "hydra.sweeper.n_trials=6", *both, "hydra.sweeper.study_name=t").returncode == 0
    (page,) = (tmp_path / "reports").glob("t-*/report.html")
    looked_at(page, 5)  # the front, a history of each metric, and the slices


def test_a_study_without_a_name_is_one_of_its_sampler(search: Line, tmp_path: Path) -> None:
    words = ["hydra.sweeper.study_name=null", "model.dim=choice(4,8)", "hydra.sweeper.n_trials=1"]
    for sampler in ("qmc", "random", "qmc"):
        assert search(*words, f"hydra/sweeper/sampler={sampler}").returncode == 0
    assert len(list((tmp_path / "studies").iterdir())) == 2
    # A name is its user's, who may go on by another way.
    for count, sampler in enumerate(("qmc", "random"), start=1):
        assert (
            search(*words[1:2], f"hydra.sweeper.n_trials={count}", f"hydra/sweeper/sampler={sampler}").returncode == 0
        )
    assert len(trials(tmp_path)) == 2
