"""Several workers on one study: they share its points, wait for none, and one that is killed loses nothing."""

from __future__ import annotations

import ast
import os
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from optuna.trial import TrialState

from lmab.lab.tuning import sampler, study, worker
from lmab.store import Store

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from optuna.trial import FrozenTrial

    from lmab.lab.tuning.plan import Plan

    Beside = Callable[[Callable[[], object]], Any]
    Plans = Callable[..., Plan]
    Until = Callable[..., None]
    Whole = Callable[[Plan, int], list[FrozenTrial]]

X = "x=interval(0,1)"
GRID = {"_target_": "optuna.samplers.GridSampler", "seed": 0}


@pytest.fixture(params=["journal", "sqlite", "postgres"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """What a plan says of a storage; each is empty."""
    if request.param == "journal":
        return {}
    if request.param == "sqlite":
        return {"storage": f"sqlite:///{tmp_path / 'studies.db'}", "name": tmp_path.name}
    return {"storage": request.getfixturevalue("postgres"), "name": tmp_path.name}


class Points:
    """Stands for training: writes down who began and who ended which point. act: what happens between."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def _write(self, name: str, trial: Any) -> None:
        with (self.place / name).open("a") as file:
            file.write(f"{sorted(trial.params.items())}\n")

    def lines(self, name: str) -> list[str]:
        path = self.place / name
        return path.read_text().splitlines() if path.exists() else []

    def worker(self, plan: Plan, act: Callable[[Any], object] = lambda trial: None) -> Callable[[], None]:
        """What a worker does in a process of its own."""
        path = self.place / f"{plan.trials}.json"
        plan.write(path)

        def values(_: Any, trial: Any, __: Any) -> tuple[TrialState, list[float]]:
            self._write("begun", trial)
            act(trial)
            self._write("ended", trial)
            return TrialState.COMPLETE, [1.0]

        def work() -> None:
            worker._values = values  # type: ignore[assignment]
            worker.work(path)

        return work


def for_ever(*_: Any) -> None:
    """Until it is killed."""
    while True:
        time.sleep(1)


@pytest.fixture
def whole(known: Callable[..., Any]) -> Whole:
    """As many trials as were asked for, each with a value and a point of its own, and none left over."""

    def found(plan: Plan, count: int) -> list[FrozenTrial]:
        with known(plan.storage, plan.name) as kept:
            trials = study.counted(kept)
            assert all(t.state.is_finished() for t in kept.get_trials())
        assert [t.state for t in trials] == [TrialState.COMPLETE] * count
        assert len({str(sorted(t.params.items())) for t in trials}) == count
        return trials

    return found


def test_killed_after_three_of_six_it_ends_with_six(
    plan: Plans, where: dict[str, str], beside: Beside, until: Until, whole: Whole, tmp_path: Path
) -> None:
    asked, points = plan(X, **where), Points(tmp_path)

    def stuck(_: Any) -> None:
        if len(points.lines("ended")) == 3:
            for_ever()

    first = beside(points.worker(asked, stuck))
    until(lambda: len(points.lines("begun")) == 4, first)
    first.kill()
    assert beside(points.worker(asked)).wait() == 0
    whole(asked, 6)
    # What was ended is not begun again, and the point that was lost is.
    begun = Counter(points.lines("begun"))
    assert len(begun) == 6
    assert begun == Counter(points.lines("ended")) + Counter({points.lines("begun")[3]: 1})
    assert beside(points.worker(asked)).wait() == 0  # asked once more it has nothing to do
    assert len(points.lines("begun")) == 7


def test_of_two_workers_one_is_killed_and_the_other_takes_over(
    plan: Plans, where: dict[str, str], beside: Beside, until: Until, whole: Whole, tmp_path: Path
) -> None:
    asked, points = plan(X, trials=8, **where), Points(tmp_path)
    victim = beside(points.worker(asked, for_ever))
    until(lambda: points.lines("begun"), victim)
    (lost,) = points.lines("begun")
    survivor = beside(points.worker(asked))
    until(lambda: len(points.lines("ended")) == 7, survivor)  # all the rest
    assert not survivor.ended()
    victim.kill()
    assert survivor.wait() == 0
    whole(asked, 8)
    assert Counter(points.lines("begun")) == Counter(points.lines("ended")) + Counter({lost: 1})


def test_many_workers_visit_each_point_of_a_grid_once(
    plan: Plans, where: dict[str, str], beside: Beside, until: Until, whole: Whole, tmp_path: Path
) -> None:
    asked, points = plan("x=range(0,4)", "y=a,b,c", trials=12, sampler=GRID, **where), Points(tmp_path)
    victim = beside(points.worker(asked, for_ever))
    until(lambda: points.lines("begun"), victim)
    others = [beside(points.worker(asked)) for _ in range(3)]
    until(lambda: len(points.lines("ended")) >= 2, *others)
    victim.kill()
    assert [process.wait() for process in others] == [0, 0, 0]
    trials = whole(asked, 12)
    assert {(t.params["x"], t.params["y"]) for t in trials} == {(x, y) for x in range(4) for y in "abc"}
    assert Counter(points.lines("ended")).most_common(1)[0][1] == 1


def test_a_slow_trial_leaves_the_other_worker_at_work(
    plan: Plans, beside: Beside, until: Until, whole: Whole, tmp_path: Path
) -> None:
    asked, points, gate = plan(X), Points(tmp_path), tmp_path / "gate"

    def slow(_: Any) -> None:
        while not gate.exists():
            time.sleep(0.01)

    one = beside(points.worker(asked, slow))
    until(lambda: points.lines("begun"), one)
    other = beside(points.worker(asked))
    until(lambda: len(points.lines("ended")) == 5, other)
    assert not one.ended()
    gate.touch()
    assert (one.wait(), other.wait()) == (0, 0)
    assert whole(asked, 6)[0].params == dict(ast.literal_eval(points.lines("begun")[0]))


def test_one_that_is_killed_while_it_draws_is_missed_at_once(
    plan: Plans, where: dict[str, str], beside: Beside, until: Until, whole: Whole, tmp_path: Path
) -> None:
    asked, points = plan("x=range(0,3)", "y=range(0,2)", sampler=GRID, **where), Points(tmp_path)
    path, drawing = tmp_path / "plan.json", tmp_path / "drawing"
    asked.write(path)

    def stuck() -> None:
        drawn = sampler.Every.sample_independent

        def draw(self: Any, kept: Any, trial: Any, name: str, kind: Any) -> Any:
            if name == "y":  # when x is told already
                drawing.touch()
                for_ever()
            return drawn(self, kept, trial, name, kind)

        sampler.Every.sample_independent = draw  # type: ignore[method-assign]
        worker.work(path)

    victim = beside(stuck)
    until(drawing.exists, victim)
    victim.kill()
    assert beside(points.worker(asked)).wait() == 0
    whole(asked, 6)


def test_a_point_that_kills_its_worker_is_given_up_after_three(
    plan: Plans, beside: Beside, known: Callable[..., Any], tmp_path: Path
) -> None:
    asked, points = plan("x=range(0,3)", trials=3, sampler=GRID), Points(tmp_path)

    def deadly(trial: Any) -> None:
        if trial.params["x"] == 1:
            os._exit(9)

    ends = []
    while not ends or ends[-1]:
        ends.append(beside(points.worker(asked, deadly)).wait())
    assert ends == [9, 9, 9, 0]
    with known(asked.storage) as kept:
        states = {t.params["x"]: t for t in study.counted(kept)}
    assert {x: t.state.name for x, t in states.items()} == {0: "COMPLETE", 1: "FAIL", 2: "COMPLETE"}
    assert "died, 3 of 3 times" in states[1].user_attrs[study.WHY]


def test_of_two_that_drew_one_point_the_later_gives_way(plan: Plans, tmp_path: Path) -> None:
    """Also where the earlier one takes longer to draw it."""
    asked = plan("x=range(0,2)", trials=2, sampler=GRID)
    kept = study.opened(asked, sampler.of_plan(asked))
    workers = study.Workers(tmp_path / "workers")
    with workers.lock("one"), workers.lock("two"):
        early, late = (study.ask(kept, workers, name, 2) for name in ("one", "two"))
        assert early is not None
        assert late is not None
        assert study.ask(kept, workers, "two", 2) is None  # as many as were asked for
        late._suggest("x", asked.space.distributions["x"])
        before = study.drawing(kept, late, ["x"])
        assert before is not None
        assert before.number == early.number

        done: list[bool] = []
        thread = threading.Thread(target=lambda: done.append(outcome(late)))

        def outcome(trial: Any) -> bool:
            return worker._outcome(kept, asked, workers, trial, patient=False)

        thread.start()
        kept.sampler.inner.point = dict(late.params)  # type: ignore[attr-defined]
        early._suggest("x", asked.space.distributions["x"])
        thread.join()
        assert early.params == late.params
        assert done == [False]
        assert [t.number for t in study.counted(kept)] == [early.number]
        again = study.ask(kept, workers, "two", 2)
        assert again is not None
        assert again._suggest("x", asked.space.distributions["x"]) != early.params["x"]


@pytest.mark.slow
def test_a_search_that_is_killed_ends_with_as_many_runs(
    here: Callable[..., subprocess.CompletedProcess[str]],
    beside: Beside,
    until: Until,
    known: Callable[..., Any],
    tmp_path: Path,
) -> None:
    """The whole line: of six trials three are done, the fourth is in the middle of its steps."""
    line = ["run.py", "-m", "hydra/sweeper=optuna", "hydra.sweeper.n_jobs=1", "hydra.sweeper.study_name=s"]
    line += ["experiment=digits", "budget=smoke", "trainer.steps=6", "trainer.val_every=2", "tracker=none"]
    line += ["optim.lr=tag(log,interval(1e-4,1e-1))", "trainer.checkpoint_every=2", f"store={tmp_path}"]
    done = worker.run

    def run(cfg: Any, **more: Any) -> Any:
        def stuck(step: int, _: Any) -> bool:
            if step == 4:
                (tmp_path / "stuck").touch()
                for_ever()
            return False

        if sum(record.state == "done" for record in Store(tmp_path)) == 3:
            more["watch"] = stuck
        return done(cfg, **more)

    def first() -> None:
        worker.run = run
        here(*line, "hydra.sweeper.n_trials=6")

    process = beside(first)
    until((tmp_path / "stuck").exists, process)
    process.kill()
    written = {r.signature: (tmp_path / r.signature / "record.json").stat().st_mtime_ns for r in Store(tmp_path)}
    states = Counter(r.state for r in Store(tmp_path))
    assert states == {"done": 3, "running": 1}
    assert here(*line, "hydra.sweeper.n_trials=6").returncode == 0
    with known(str(tmp_path / "studies" / "s" / "journal.log")) as kept:
        trials = study.counted(kept)
        assert all(t.state.is_finished() for t in kept.get_trials())
    assert [t.state for t in trials] == [TrialState.COMPLETE] * 6
    assert Counter(r.state for r in Store(tmp_path)) == {"done": 6}
    assert {name for t in trials for name in t.user_attrs[study.RUNS]} == {r.signature for r in Store(tmp_path)}
    again = {name for name in written if (tmp_path / name / "record.json").stat().st_mtime_ns != written[name]}
    (one,) = again  # the one that was in the middle, from its checkpoint
    assert "goes on from step-0000002.ckpt" in (tmp_path / one / "run.log").read_text()
