"""Which layer of the teacher each layer of the student learns from (Jiao et al. 2020, section 3.1: n = g(m)).

M  layers of the student   N  layers of the teacher
"""

from __future__ import annotations

from typing import Literal

from lmab.types import BadInput

Map = Literal["uniform", "top", "bottom"] | list[int]


def depths(map: Map, students: int, teachers: int, *, term: str, lowest: int) -> tuple[int, ...]:  # noqa: A002
    """g(1), ..., g(M): uniform m N / M, top N - M + m, bottom m, or the numbers of a list.

    term: whose map it is. lowest: depth of the teacher that a list may name, 0 where there is something to learn from
    what its first layer reads. BadInput: the map does not fit these two.
    """
    M, N = students, teachers
    key = f"transfer.{term}.map"
    if isinstance(map, list):
        if len(map) != M:
            spread = [max(lowest, round(m * N / M)) for m in range(1, M + 1)]
            raise BadInput(
                f"{key}={map} has {len(map)} numbers, and the student has {M} layers: give one for each, as in "
                f"{spread}."
            )
        for number in map:
            if not lowest <= number <= N:
                raise BadInput(
                    f"{key}={map} names layer {number}, and the teacher has {lowest} to {N}: the nearest is "
                    f"{min(max(number, lowest), N)}."
                )
        return tuple(map)
    if M > N:
        raise BadInput(
            f"{key}={map} cannot lay {M} layers of the student beside {N} of the teacher: give at most "
            f"model.depth={N}, or a list that names some of them twice."
        )
    if map == "uniform" and N % M:
        near = [f"model.depth={d}" for d in _divisors(N, M)]
        raise BadInput(
            f"{key}=uniform takes every N/M-th layer of the teacher, and the student's {M} do not divide its {N}: the "
            f"nearest that do are {' and '.join(near)}."
        )
    step, first = {"uniform": (N // M, 0), "top": (1, N - M), "bottom": (1, 0)}[map]
    return tuple(first + step * m for m in range(1, M + 1))


def _divisors(whole: int, near: int) -> tuple[int, int]:
    """The next below and above a number that divide a larger one."""
    found = [number for number in range(1, whole + 1) if whole % number == 0]
    return max(d for d in found if d < near), min(d for d in found if d > near)
