"""A study outlives its processes: half a line is cut off, another question is refused, a dashboard reads it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from wsgiref.util import setup_testing_defaults

import optuna
import optuna_dashboard
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from optuna.trial import TrialState

from lmab.lab.tuning import found, study
from lmab.lab.tuning import plan as plans
from lmab.types import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lmab.lab.tuning.plan import Plan


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(left=st.integers(1, 200))
def test_a_journal_is_cut_off_where_it_is_half_written(
    left: int, plan: Callable[..., Plan], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("cut") / "journal.log"
    asked = plan("x=interval(0,1)", storage=str(path))
    kept = study.opened(asked)
    for value in (0.25, 0.5):
        kept.add_trial(
            optuna.create_trial(values=[value], params={"x": value}, distributions=asked.space.distributions)
        )
    whole = path.read_bytes()
    last = whole[:-1].rindex(b"\n") + 1
    path.write_bytes(whole[: last + min(left, len(whole) - last - 1)])
    again = study.opened(asked)
    assert [t.values for t in again.trials] == [[0.25]]
    again.add_trial(optuna.create_trial(values=[3.0], params={"x": 0.5}, distributions=asked.space.distributions))
    assert [t.values for t in study.opened(asked).trials] == [[0.25], [3.0]]


def test_another_question_under_one_name_is_refused_and_says_what_differs(plan: Callable[..., Plan]) -> None:
    question = {"space": 1, "metric": ["a"], "seeds": [0]}
    study.opened(plan("x=1,2", question=question))
    study.opened(plan("x=1,2", question=dict(question)))
    with pytest.raises(BadInput, match=r"begun with another metric and seeds: .*study_name=") as refused:
        study.opened(plan("x=1,2", question=question | {"metric": ["b"], "seeds": []}))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("where", ["nosuch://x", "sqlite:////no/such/folder/x.db"])
def test_a_storage_that_cannot_be_opened_is_one_sentence(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study.time, "sleep", lambda seconds: None)
    with pytest.raises(BadInput, match="cannot be opened") as refused:
        study.storage(where)
    assert "\n" not in str(refused.value)


def test_a_worker_is_given_what_waits_and_no_more_than_was_asked_for(plan: Callable[..., Plan], tmp_path: Path) -> None:
    asked = plan("x=interval(0,1)", trials=2)
    kept, workers = study.opened(asked), study.Workers(tmp_path / "workers")
    with workers.lock("one"):
        first = study.ask(kept, workers, "one", 2)
        assert first is not None
        assert kept.trials[0].user_attrs == {study.WORKER: "one"}
        assert workers.alive(kept.trials[0], grace=0)
        study.reap(kept, workers, 0, ["x"])
        assert kept.trials[0].state == TrialState.RUNNING
        first.suggest_float("x", 0, 1)
    assert not workers.alive(kept.trials[0], grace=1e9)
    study.reap(kept, workers, 1e9, ["x"])
    assert [t.state.name for t in kept.trials] == ["FAIL", "WAITING"]
    assert not study.over(kept, 1)
    again = study.ask(kept, workers, "two", 2)
    assert again is not None
    assert again.number == 1
    assert again.suggest_float("x", 0, 1) == first.params["x"]
    assert study.ask(kept, workers, "two", 2) is not None
    assert study.ask(kept, workers, "two", 2) is None
    assert len(study.counted(kept)) == 2
    kept.tell(1, 0.5)
    assert study.over(kept, 1)  # whatever another line has begun beyond
    assert not study.over(kept, 2)


def test_a_plan_is_read_as_it_was_written(plan: Callable[..., Plan], tmp_path: Path) -> None:
    asked = plan("x=range(-1,1,0.3)", "+y=choice(1,true,'a b',1.0)", "z=tag(log,int(interval(1,9)))", seeds=[1, 2])
    asked.write(tmp_path / "plan.json")
    again = plans.read(tmp_path / "plan.json")
    assert again == asked
    for axis, other in zip(asked.space.axes, again.space.axes, strict=True):
        assert [axis.line(value) for value in axis.values or ()] == [other.line(value) for value in other.values or ()]


VALUES = st.sampled_from([0.0, 1.0, 2.0, 3.0])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(
    rows=st.lists(st.tuples(VALUES, VALUES, st.sampled_from([-1.0, 0.0, 1.0])), min_size=1, max_size=8),
    directions=st.tuples(st.sampled_from(["minimize", "maximize"]), st.sampled_from(["minimize", "maximize"])),
    one=st.booleans(),
)
def test_the_best_are_those_that_none_surpasses(
    rows: list[tuple[float, float, float]], directions: tuple[str, str], one: bool, plan: Callable[..., Plan]
) -> None:
    """By the definition; a trial over a limit, or without a value, is none of them."""
    count = 1 if one else 2
    asked = plan("x=1,2", metrics=["a", "b"][:count], directions=[*directions[:count]], trials=99)
    kept = optuna.create_study(directions=asked.directions)
    for a, b, over in rows:
        trial = kept.ask()
        trial.set_constraint("size", over)
        kept.tell(trial, [a, b][:count])
    failed = kept.ask()
    kept.tell(failed, state=TrialState.FAIL)
    pruned = kept.ask()
    pruned.report(-9.0, 1) if one else None
    kept.tell(pruned, state=TrialState.PRUNED)
    fit = {i: row[:count] for i, row in enumerate(rows) if row[2] <= 0}

    def better(x: tuple[float, ...], y: tuple[float, ...]) -> bool:
        pairs = [(p, q) if d == "minimize" else (q, p) for p, q, d in zip(x, y, directions, strict=False)]
        return all(p <= q for p, q in pairs) and any(p < q for p, q in pairs)

    front = {i for i, row in fit.items() if not any(better(other, row) for other in fit.values())}
    best = [t.number for t in found.found(asked, kept).best]
    assert best == sorted(front)[:1] if one else {*best} == front


def test_a_study_opens_in_the_dashboard(plan: Callable[..., Plan]) -> None:
    asked = plan("x=interval(0,1)")
    kept = study.opened(asked)
    kept.add_trial(optuna.create_trial(values=[1.0], params={"x": 0.5}, distributions=asked.space.distributions))
    told: list[str] = []

    def page(path: str) -> Any:
        request: dict[str, Any] = {"PATH_INFO": path}
        setup_testing_defaults(request)
        app: Any = optuna_dashboard.wsgi(study.storage(asked.storage))
        return json.loads(b"".join(app(request, lambda status, *_: told.append(status))))

    (summary,) = page("/api/studies")["study_summaries"]
    assert summary["study_name"] == "s"
    (trial,) = page(f"/api/studies/{summary['study_id']}")["trials"]
    assert (trial["state"], trial["values"]) == ("Complete", [1.0])
    assert told == ["200 OK", "200 OK"]
