"""Configuration against signatures: the class that a file names says what it takes, and of what type.

So a misspelt key, a missing value or a wrong type is refused before any work, in words of the configuration.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import pydoc
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from lmab.fits import fits
from lmab.types import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# What a claim file adds to the configuration: the sweeper's, no part of a run.
CLAIM = ("claim", "source", "base", "arms", "measure", "verdict", "seeds", "reported", "plateau", "level", "tune")

# The parts of a run's configuration.
PARTS = ("model", "objective", "segments", "corpus", "tokenizer", "split", "evaluation", "optim", "schedule")
PARTS += (
    "precision",
    "trainer",
    "tracker",
    "budget",
    "seed",
    "name",
    "store",
    "display",
    "sweep",
    "task",
    "augment",
    "quantize",
    "start",
    "frozen",
    "transfer",
    "teacher",
    "plain",
    "cache",
)

Positive = Annotated[int, Field(gt=0)]


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """trainer=...: how long, how much at once, on what, and how often something is written down."""

    steps: Positive  # optimiser steps
    batch: Positive  # examples a step
    micro: Positive | None  # examples a forward pass; None: the whole batch
    clip: Annotated[float, Field(gt=0)] | None  # largest norm of the gradient
    val_every: Positive  # steps
    log_every: Positive
    checkpoint_every: Positive
    accelerator: Literal["auto", "cpu", "gpu", "cuda", "mps"]
    devices: Positive | str
    threads: Positive | None  # of the CPU; part of the signature, since it can change the last digits
    workers: Annotated[int, Field(ge=0)]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """evaluation: what held-out text is read how, and which weights are scored."""

    segments: dict[str, Any]
    noise: dict[str, dict[str, Any]]
    memory: Annotated[int, Field(ge=0)] | None
    reach: Positive | None
    batch: Positive
    seed: int
    checkpoint: str


@dataclass(frozen=True, kw_only=True)
class Precision:
    """precision=...: what Lightning calls it. Parameters stay in float32."""

    trainer: Literal["32-true", "bf16-mixed"]


_PLAIN: dict[str, Any] = {"trainer": Trainer, "evaluation": Evaluation, "precision": Precision}
_SCALARS: dict[str, Any] = {"seed": Annotated[int, Field(ge=0, strict=True)], "store": str, "display": bool}
_SCALARS |= {"frozen": bool, "plain": bool, "cache": bool}
_SCALARS |= dict.fromkeys(("start", "teacher"), str | list[str] | dict[str, Any] | None)


def nearest(word: str, known: list[str]) -> str:
    """A half sentence that names what was probably meant, or what there is."""
    close = difflib.get_close_matches(word, known, n=3, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(close)}?"
    listed = sorted(known)
    return f"there is {', '.join(listed[:12])}{' and more' if len(listed) > 12 else ''}."


def _typed(hint: Any, value: Any, path: str) -> Any:
    if value == "???":
        raise BadInput(f"{path} has no value: give {path}=...")
    try:
        return TypeAdapter(hint).validate_python(value)
    except ValidationError as error:
        problem = error.errors()[0]
        # Of a choice between types pydantic says which it tried, as in `literal['uniform','top']`: no key, so left out.
        keys = [p for p in problem["loc"] if isinstance(p, str) and p.islower() and p.isidentifier()]
        place = ".".join([path, *keys])
        says = problem["msg"][:1].lower() + problem["msg"][1:]
        raise BadInput(f"{place}={problem['input']!r} cannot work: {says}.") from error


def _parameters(target: str, path: str) -> dict[str, tuple[Any, bool]]:
    """Name -> (type hint, must be given) of what a class takes by keyword."""
    found = pydoc.locate(target)
    if not callable(found):
        raise BadInput(f"{path}._target_={target} is nothing that can be imported.")
    init = found.__init__ if inspect.isclass(found) else found
    scope = vars(importlib.import_module(init.__module__)) if hasattr(init, "__module__") else {}
    if hasattr(found, "__dataclass_fields__"):
        scope = vars(importlib.import_module(found.__module__))
    taken: dict[str, tuple[Any, bool]] = {}
    for name, parameter in inspect.signature(found).parameters.items():
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            continue
        hint = parameter.annotation
        if isinstance(hint, str):
            try:
                hint = eval(hint, dict(scope))
            except NameError:  # imported for the type checker alone
                hint = Any
        taken[name] = (Any if hint is inspect.Parameter.empty else hint, parameter.default is parameter.empty)
    return taken


def _node(node: Mapping[str, Any], path: str) -> dict[str, Any]:
    """A mapping with `_target_`, its values typed and its keys known."""
    taken = _parameters(node["_target_"], path)
    given = {k: v for k, v in node.items() if k not in ("_target_", "fingerprint")}
    for key in given:
        if key not in taken:
            raise BadInput(f"{path}.{key} is no argument of {node['_target_']}: {nearest(key, list(taken))}")
    for key, (_, needed) in taken.items():
        if needed and key not in given:
            raise BadInput(f"{path}.{key} has no value: give +{path}.{key}=...")
    return dict(node) | {k: _typed(taken[k][0], v, f"{path}.{k}") for k, v in given.items()}


def _walk(value: Any, path: str) -> Any:
    if isinstance(value, list):
        return [_walk(v, f"{path}.{i}") for i, v in enumerate(value)]
    if not isinstance(value, dict):
        return value
    value = {str(k): _walk(v, f"{path}.{k}" if path else str(k)) for k, v in value.items()}
    return _node(value, path) if "_target_" in value else value


def checked(config: dict[str, Any], begin: Callable[[dict[str, Any]], dict[str, Any]] = dict) -> dict[str, Any]:
    """The configuration with every value of its declared type. begin: gives it the sizes of its starting point.
    BadInput: the first thing that is wrong."""
    if config.get("claim"):
        raise BadInput("A claim is many runs: add -m, as in `python run.py -m sweeps=...`.")
    return fits(begin(typed(config)))


def typed(config: dict[str, Any]) -> dict[str, Any]:
    """Each part by itself: known keys, and values of their declared types."""
    for key in config:
        if key not in PARTS:
            raise BadInput(f"{key} is no part of a configuration: {nearest(key, [*PARTS, *CLAIM])}")
    config = _walk(config, "")
    for key, hint in _SCALARS.items():
        config[key] = _typed(hint, config[key], key)
    for key, shape in _PLAIN.items():
        known = list(shape.__dataclass_fields__)
        for name in config[key]:
            if name not in known:
                raise BadInput(f"{key}.{name} is not known: {nearest(name, known)}")
        config[key] = vars(_typed(shape, config[key], key))
    # An experiment may say how something is done that was then not chosen.
    for key in ("objective", "transfer"):
        config[key] = {name: node for name, node in (config.get(key) or {}).items() if "_target_" in node}
    return config
