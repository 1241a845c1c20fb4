"""Students beside their teachers, and beside the same student without one, as tables of a report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmab.lab.tables import NOTHING, Table, compact, score, together

if TYPE_CHECKING:
    from lmab.lab.tables import Groups
    from lmab.store import Record

# What is recorded of an objective's held-out targets -> the head of its column.
_SAID = {
    "accuracy": "accuracy",
    "teacher_accuracy": "its teacher's",
    "plain_accuracy": "without a teacher",
    "loss": "loss",
    "teacher_loss": "its teacher's loss",
    "plain_loss": "loss without a teacher",
    "gap_closed": "gap closed",
    "agreement": "agreement",
    "divergence": "divergence",
    "ece": "ECE",
    "teacher_ece": "its teacher's ECE",
    "easy_accuracy": "accuracy on easy ones",
    "hard_accuracy": "on hard ones",
}
_COSTS = {"flops_a_token": "FLOPs a token", "latency_1": "time of a row", "latency_32": "time of 32 rows"}


def beside(groups: Groups) -> list[Table]:
    """What arms with a teacher have of it, a table an objective, and how much smaller they are than it. Nothing where
    no arm has one."""
    taught = {arm: [*runs.values()] for arm, runs in groups.items() if any(map(_objectives, runs.values()))}
    names = dict.fromkeys(name for records in taught.values() for r in records for name in _objectives(r))
    return [*(_held_out(name, taught) for name in names), *([_sizes(taught)] if taught else [])]


def _objectives(record: Record) -> list[str]:
    """Those that a teacher was asked for too."""
    ends = "_teacher_loss"
    return [key[len("test/") : -len(ends)] for key in record.metrics if key.startswith("test/") and key.endswith(ends)]


def _held_out(name: str, taught: dict[str, list[Record]]) -> Table:
    rows = {
        arm: [_mean([r.metrics.get(f"test/{name}_{quantity}") for r in records]) for quantity in _SAID]
        for arm, records in taught.items()
        if any(name in _objectives(record) for record in records)
    }
    known = [i for i in range(len(_SAID)) if any(values[i] is not None for values in rows.values())]
    heads = [*_SAID.values()]
    note = (
        "Means over seeds, of the test part. Gap closed: how much of what the teacher is better than the same student "
        "without one was handed on. Divergence: from the teacher's answers to the student's, in nats. Easy ones: the "
        "half of which the teacher is surest."
    )
    body = []
    for arm, values in rows.items():
        cells = [NOTHING if value is None else score(value) for value in values]
        body.append([arm, str(len(taught[arm])), *(cells[i] for i in known)])
    return Table(f"Students of {name}", ["arm", "n", *(heads[i] for i in known)], body, note)


def _sizes(taught: dict[str, list[Record]]) -> Table:
    rows = []
    for arm, records in taught.items():
        mine, theirs = (_cost(records, f"{whose}parameters") for whose in ("", "teacher_"))
        ratios = [_ratio(_cost(records, f"teacher_{key}"), _cost(records, key)) for key in ("parameters", *_COSTS)]
        rows.append([arm, *(NOTHING if size is None else compact(size) for size in (mine, theirs)), *ratios])
    head = ["arm", "parameters", "its teacher's", "teacher to student", *_COSTS.values()]
    note = "Beside its size, the teacher's costs in those of the student; times are of this machine."
    return Table("Sizes of teachers and students", head, rows, note)


def _cost(records: list[Record], key: str) -> float | None:
    return _mean([record.cost.get(key) for record in records])


def _mean(values: list[float | None]) -> float | None:
    """Over all n seeds, or none."""
    return None if None in values else together(values)


def _ratio(theirs: float | None, mine: float | None) -> str:
    return NOTHING if theirs is None or not mine else compact(theirs / mine)
