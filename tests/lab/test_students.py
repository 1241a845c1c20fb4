"""What a report says of students and teachers, from records made by hand."""

from __future__ import annotations

import math

from lmab.lab.students import beside
from lmab.lab.tables import NOTHING
from lmab.store import Record

HELD_OUT = {
    "test/classify_accuracy": 0.8,
    "test/classify_loss": 0.5,
    "test/classify_teacher_accuracy": 0.9,
    "test/classify_teacher_loss": 0.3,
    "test/classify_agreement": 0.85,
}
COST = {"parameters": 1000, "latency_1": 0.001, "teacher_parameters": 20_000, "teacher_latency_1": 0.004}


def record(seed: int, *, cost: dict[str, float] = COST, **more: float) -> Record:
    metrics = HELD_OUT | {f"test/classify_{key}": value for key, value in more.items()}
    return Record(signature=f"{seed:016x}", state="done", config={"seed": seed}, metrics=metrics, cost=cost)


def test_students_stand_beside_their_teachers() -> None:
    alone = Record(signature="f" * 16, state="done", config={}, metrics={"test/classify_accuracy": 0.7})
    gaps = {0: record(0, gap_closed=0.25, accuracy=0.7), 1: record(1, gap_closed=0.75, accuracy=0.8)}
    groups = {"alone": {0: alone}, "taught": {0: record(0), 1: record(1, teacher_accuracy=0.8)}, "gaps": gaps}
    held_out, sizes = beside(groups)
    found = {row[0]: dict(zip(held_out.head, row, strict=True)) for row in held_out.rows}
    assert list(found) == ["taught", "gaps"]  # who has no teacher stands in the other tables
    assert found["taught"] == {
        "arm": "taught",
        "n": "2",
        "accuracy": "0.8000",
        "its teacher's": "0.8500",
        "loss": "0.5000",
        "its teacher's loss": "0.3000",
        "gap closed": NOTHING,
        "agreement": "0.8500",
    }
    assert (found["gaps"]["accuracy"], found["gaps"]["gap closed"]) == ("0.7500", "0.5000")
    assert dict(zip(sizes.head, sizes.rows[0], strict=True)) == {
        "arm": "taught",
        "parameters": "1K",
        "its teacher's": "20K",
        "teacher to student": "20",
        "FLOPs a token": NOTHING,
        "time of a row": "4",
        "time of 32 rows": NOTHING,
    }


def test_a_mean_is_over_all_seeds_or_none() -> None:
    held_out, _ = beside({"arm": {0: record(0, gap_closed=0.5), 1: record(1)}})
    row = dict(zip(held_out.head, held_out.rows[0], strict=True))
    assert (row["n"], row["accuracy"]) == ("2", "0.8000")
    assert "gap closed" not in row


def test_each_objective_has_a_table() -> None:
    words = Record(
        signature="a" * 16,
        state="done",
        config={},
        metrics={"test/mlm_loss": 5.0, "test/mlm_teacher_loss": 4.0, "test/mlm_plain_loss": 5.5},
    )
    first, second, _ = beside({"words": {0: words}, "task": {0: record(0, gap_closed=math.nan)}})
    assert [row[0] for row in first.rows] == ["words"]
    assert first.head == ["arm", "n", "loss", "its teacher's loss", "loss without a teacher"]
    assert [row[0] for row in second.rows] == ["task"]
    assert second.rows[0][second.head.index("gap closed")] == NOTHING


def test_nothing_is_said_without_a_teacher() -> None:
    alone = Record(signature="a" * 16, state="done", config={}, metrics={"test/mlm_loss": 5.0})
    assert beside({"a": {0: alone}, "b": {}}) == []
