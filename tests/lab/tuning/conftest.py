"""Searches that cost nothing: plans over made-up figures, and workers that are processes of their own."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import warnings
from typing import TYPE_CHECKING, Any

import optuna
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from lmab.lab.tuning import space, study
from lmab.lab.tuning.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PARSER = OverridesParser.create()


@pytest.fixture
def plan(tmp_path: Path) -> Callable[..., Plan]:
    """A plan over `words`, in a journal."""

    def make(*words: str, **more: Any) -> Plan:
        given = {
            "name": "s",
            "storage": str(tmp_path / "studies" / "s" / "journal.log"),
            "store": str(tmp_path),
            "base": [],
            "metrics": ["val/classify_loss"],
            "directions": ["minimize"],
            "trials": 6,
            "sampler": {"_target_": "optuna.samplers.RandomSampler", "seed": 0},
            "grace": 1e9,  # nobody is taken for dead because of a clock
            "question": {"space": [*words]},
        }
        return Plan(**given | {"space": space.read(PARSER, {}, words)[0], **more})

    return make


@pytest.fixture
def known() -> Callable[..., contextlib.AbstractContextManager[optuna.Study]]:
    """Open a study that is there."""
    return _known


@contextlib.contextmanager
def _known(where: str, name: str = "s") -> Iterator[optuna.Study]:
    """With no connection left open."""
    kept = study.storage(where)
    try:
        yield optuna.load_study(study_name=name, storage=kept)
    finally:
        if isinstance(kept, optuna.storages.RDBStorage):
            kept.remove_session()
            kept.engine.dispose()


class Process:
    """A copy of this process that does some work and ends, which is quicker than to import everything anew."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.status: int | None = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads, of which none does anything here
            self.pid = os.fork()
        if self.pid:
            return
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)

    def ended(self) -> bool:
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = os.waitstatus_to_exitcode(status) if pid else None
        return self.status is not None

    def kill(self) -> None:
        if not self.ended():
            os.kill(self.pid, signal.SIGKILL)
            self.wait()

    def wait(self) -> int:
        while not self.ended():
            time.sleep(0.01)
        assert self.status is not None
        return self.status


@pytest.fixture
def until() -> Callable[..., None]:
    """Wait for something that comes while at least one of the processes lives."""

    def wait(what: Callable[[], object], *processes: Process) -> None:
        while not what():
            assert not all(process.ended() for process in processes)
            time.sleep(0.01)

    return wait


@pytest.fixture
def beside() -> Iterator[Callable[[Callable[[], object]], Process]]:
    """Start work in a process of its own, which ends with the test."""
    started: list[Process] = []

    def start(work: Callable[[], object]) -> Process:
        started.append(Process(work))
        return started[-1]

    yield start
    for process in started:
        process.kill()
