"""A search space in Hydra's own words: choice(), range(), interval() and tag(), read as plain Hydra reads them."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, RangeSweep, Transformer
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution, distribution_to_json

from lmab.types import BadInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hydra.core.override_parser.overrides_parser import OverridesParser
    from optuna.distributions import BaseDistribution

Value = None | bool | int | float | str


@dataclass(frozen=True)
class Axis:
    """A parameter of a search. key: as on the command line, with its plus signs. values: those that plain Hydra would
    run, in its order; None for an interval. written: value -> what stands behind the equals sign, where that is not the
    value itself."""

    key: str
    distribution: BaseDistribution
    values: tuple[Value, ...] | None
    written: Mapping[Value, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Of the parameter in the study."""
        return self.key.lstrip("+")

    def line(self, value: Any) -> str:
        """The override that gives the parameter a value. A number of a range is Hydra's own, not one that lies a
        rounding away from it."""
        if self.values is not None and isinstance(self.distribution, FloatDistribution):
            value = min(self.values, key=lambda known: abs(known - value))  # type: ignore[operator]
        return f"{self.key}={self.written.get(value, value)}"


@dataclass(frozen=True)
class Space:
    """What is searched, one axis a parameter."""

    axes: tuple[Axis, ...]

    @property
    def distributions(self) -> dict[str, BaseDistribution]:
        return {axis.name: axis.distribution for axis in self.axes}

    def lines(self, params: Mapping[str, Any]) -> list[str]:
        """The overrides of a trial. params: name -> value."""
        return [*(axis.line(params[axis.name]) for axis in self.axes), *self.more(params)]

    def more(self, params: Mapping[str, Any]) -> list[str]:
        """Those of parameters that a function of the user's named (`custom_search_space`)."""
        known = {axis.name for axis in self.axes}
        return [f"{key}={value}" for key, value in params.items() if key not in known]

    def names(self, found: Iterable[Mapping[str, Any]]) -> list[str]:
        """Of all parameters. found: those of trials, of which some may have more than there are axes."""
        return [*{name: None for params in (self.distributions, *found) for name in params}]

    def corner(self, *, last: bool = False) -> list[str]:
        """The overrides of one point of it: of each range the first value, of an interval the lower end; or the last
        and the upper ones."""
        return [axis.line(_end(axis, last=last)) for axis in self.axes]

    @property
    def finite(self) -> bool:
        """Can its points be counted?"""
        return all(axis.values is not None for axis in self.axes)

    def grid(self) -> dict[str, list[Value]]:
        """Name -> all its values. BadInput: an interval has no end of them."""
        for axis in self.axes:
            if axis.values is None:
                raise BadInput(
                    f"{axis.key} is an interval, of which a grid has no values: give choice() or range(), or another "
                    f"hydra/sweeper/sampler."
                )
        return {axis.name: list(axis.values or ()) for axis in self.axes}

    def described(self) -> dict[str, Any]:
        """What tells it from another one."""
        return {axis.key: json.loads(distribution_to_json(axis.distribution)) for axis in self.axes}


def _end(axis: Axis, *, last: bool) -> Any:
    if axis.values is not None:
        return axis.values[-1 if last else 0]
    assert isinstance(axis.distribution, FloatDistribution | IntDistribution)
    return axis.distribution.high if last else axis.distribution.low


def read(
    parser: OverridesParser, params: Mapping[str, Any], arguments: Sequence[str], *, empty: bool = False
) -> tuple[Space, list[str]]:
    """The space, and the overrides that every trial shares. params: key -> sweep, as in `hydra.sweeper.params`.
    arguments: of the command line, which count over them. empty: may it have no axes? BadInput: nothing is searched, or
    a sweep of no values."""
    lines = {str(key).lstrip("+"): f"{key}={_text(value)}" for key, value in params.items()}
    asked = parser.parse_overrides([*lines.values()])
    chosen = {o.get_key_element().lstrip("+"): o for o in asked}
    for override in parser.parse_overrides([*arguments]):
        chosen[override.get_key_element().lstrip("+")] = override
    axes = [axis(o) for o in chosen.values() if o.is_sweep_override()]
    if not axes and not empty:
        raise BadInput(
            "Nothing is searched: give a key some values, as in 'optim.lr=tag(log, interval(1e-4, 1e-2))', or several "
            "in hydra.sweeper.params."
        )
    return Space(tuple(axes)), [o.input_line or "" for o in chosen.values() if not o.is_sweep_override()]


def _text(value: Any) -> str:
    """A value of YAML in Hydra's grammar: only text can be a sweep there."""
    if isinstance(value, str):
        return value
    return json.dumps(value)


def axis(override: Override) -> Axis:
    """One parameter. BadInput: it has no values, or ends that a logarithm cannot take."""
    key, value = override.get_key_element(), override.value()
    if isinstance(value, IntervalSweep):
        return Axis(key, _interval(key, value), None)
    if isinstance(value, RangeSweep):
        numbers = tuple(value.range())
        if not numbers:
            raise BadInput(f"{override.input_line} has no values: give it at least one.")
        return Axis(key, _range(numbers, abs(value.step)), numbers)
    known: dict[Value, str]
    if isinstance(value, ChoiceSweep):
        value.shuffle = False  # one order in every process, since a space with another is another space
        lines = [*override.sweep_string_iterator()]
        known = dict(zip(map(_plain, value.list), lines, strict=True))
        if len(known) < len({*lines}):  # 1, 1.0 and true are three values, and one key
            known = {line: line for line in lines}
    else:
        known = {line: line for line in override.sweep_string_iterator()}
    if not known:
        raise BadInput(f"{override.input_line} has no values: give it at least one.")
    return Axis(key, CategoricalDistribution([*known]), tuple(known), known)


def _plain(value: Any) -> Value:
    """What Optuna can keep: a number as such, and anything else as it is written."""
    return value if isinstance(value, bool | int | float) else str(Transformer.encode(value))


def _range(numbers: Sequence[float], step: float) -> BaseDistribution:
    low, high = min(numbers), max(numbers)
    if all(isinstance(number, int) for number in numbers):
        return IntDistribution(int(low), int(high), step=int(step))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of a range whose sums are a rounding away from its step
        return FloatDistribution(low, high, step=step)


def _interval(key: str, value: IntervalSweep) -> BaseDistribution:
    low, high, log = value.start, value.end, "log" in value.tags
    assert low is not None
    assert high is not None
    if low > high or (log and low <= 0):
        raise BadInput(
            f"{key}=interval({low}, {high}) cannot be searched{' by its logarithm' if log else ''}: give a lower end "
            f"{'above 0 and ' if log else ''}below the upper one."
        )
    if "int" in value.tags or (isinstance(low, int) and isinstance(high, int)):
        return IntDistribution(int(low), int(high), log=log)
    return FloatDistribution(float(low), float(high), log=log)
