"""Samplers draw by the number of the trial: the same for the same number, and otherwise for another."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna
import pytest
import yaml

from lmab.lab.tuning import sampler, study
from lmab.types import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable

    from lmab.lab.tuning.plan import Plan

CONF = Path(__file__).parents[3] / "conf" / "hydra" / "sweeper"
NODES = {path.stem: yaml.safe_load(path.read_text()) for path in (CONF / "sampler").glob("*.yaml")}
PRUNERS = {path.stem: yaml.safe_load(path.read_text()) for path in (CONF / "pruner").glob("*.yaml")}
SPACE = ["x=interval(0,1)", "y=tag(log,interval(1e-3,1))"]
POINTS = ["x=range(0,4)", "y=a,b,c"]


def drawn(asked: Plan, count: int, kept: Any = None) -> list[dict[str, Any]]:
    """What is asked of a study of its own, each trial by a sampler made anew, as another process would."""
    kept = kept or optuna.create_study(storage=optuna.storages.InMemoryStorage())
    for _ in range(count):
        kept.sampler = sampler.of_plan(asked)
        trial = kept.ask(asked.space.distributions)
        kept.tell(trial, sum(x for x in trial.params.values() if isinstance(x, float)))
    return [t.params for t in kept.trials]


@pytest.mark.parametrize("name", NODES)
def test_a_study_that_is_taken_up_draws_what_it_would_have_drawn(name: str, plan: Callable[..., Plan]) -> None:
    asked = plan(*(POINTS if name in ("grid", "brute_force") else SPACE), sampler=NODES[name])
    points = drawn(asked, 12)
    assert points == drawn(asked, 12)
    assert len({str(point) for point in points}) >= 10  # trials differ; a model may come back to a good point
    kept = optuna.create_study(storage=optuna.storages.InMemoryStorage())
    drawn(asked, 7, kept)
    assert drawn(asked, 5, kept) == points
    if name not in ("grid", "brute_force"):
        assert points != drawn(plan(*SPACE, sampler=NODES[name] | {"seed": 1}), 12)
        return
    assert {(p["x"], p["y"]) for p in points} == {(x, y) for x in range(4) for y in "abc"}
    other = drawn(plan(*POINTS, sampler=NODES[name] | {"seed": 1}), 12)
    assert points != other
    assert sorted(map(str, points)) == sorted(map(str, other))


def test_two_workers_that_ask_at_once_draw_different_points(plan: Callable[..., Plan]) -> None:
    for name in ("random", "tpe", "gp", "nsgaii", "qmc", "cmaes"):
        asked = plan(*SPACE, sampler=NODES[name])
        kept = optuna.create_study(storage=optuna.storages.InMemoryStorage())
        kept.sampler = sampler.of_plan(asked)
        one = kept.ask(asked.space.distributions)
        kept.sampler = sampler.of_plan(asked)  # of the other worker, before the first one's trial has ended
        assert one.params != kept.ask(asked.space.distributions).params


def test_a_grid_forgets_no_point_of_a_worker_that_died(plan: Callable[..., Plan]) -> None:
    asked = plan("x=range(0,3)", sampler=NODES["grid"])
    kept = optuna.create_study(storage=optuna.storages.InMemoryStorage())
    kept.sampler = sampler.of_plan(asked)
    first = kept.ask(asked.space.distributions)
    study.give_up(kept, first, study.LOST, "the worker died")
    points = drawn(asked, 3, kept)
    assert points[0] == points[1]
    assert sorted(point["x"] for point in points[1:]) == [0, 1, 2]


@pytest.mark.parametrize("name", NODES)
def test_who_takes_limits(name: str, plan: Callable[..., Plan]) -> None:
    asked = plan(*POINTS, sampler=NODES[name], constraints={"cost/parameters": 9.0})
    if name in ("tpe", "gp", "nsgaii"):
        sampler.of_plan(asked)
        return
    with pytest.raises(BadInput, match="cannot keep to constraints: choose hydra/sweeper/sampler=tpe, gp or nsgaii"):
        sampler.of_plan(asked)


@pytest.mark.parametrize("name", NODES)
def test_a_setting_that_a_sampler_does_not_take_is_one_sentence(name: str, plan: Callable[..., Plan]) -> None:
    with pytest.raises(BadInput, match=r"Sampler cannot be made of these settings: .*n_startup") as refused:
        sampler.of_plan(plan(*POINTS, sampler=NODES[name] | {"n_startup": 3}))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", PRUNERS)
def test_every_pruner_can_be_made_of_its_file(name: str, plan: Callable[..., Plan]) -> None:
    given = PRUNERS[name] if name != "threshold" else PRUNERS[name] | {"upper": 3.0}
    made = sampler.pruner_of(plan(*POINTS, pruner=given))
    assert made is None if name == "none" else isinstance(made, optuna.pruners.BasePruner)
    if given:
        with pytest.raises(BadInput, match="cannot be made of these settings"):
            sampler.pruner_of(plan(*POINTS, pruner=given | {"patience": 3}))


def test_a_study_counts_its_points_to_the_end(plan: Callable[..., Plan]) -> None:
    """More than there are points of a grid are none: what is left is drawn again, and is for the worker to leave."""
    asked = plan(*POINTS, sampler=NODES["grid"])
    assert len({str(point) for point in drawn(asked, 14)}) == math.prod((4, 3))
