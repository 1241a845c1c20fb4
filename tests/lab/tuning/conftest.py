"""Searches that cost nothing: plans over made-up figures, and workers that are processes of their own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from lmab.lab.tuning import space, study
from lmab.lab.tuning.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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


def _binaries() -> Path | None:
    """Of Debian's PostgreSQL."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent if found else None


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The address of a PostgreSQL of our own on loopback."""
    place = _binaries()
    if place is None:
        pytest.skip("this machine has no PostgreSQL (apt-get install postgresql)")
    # It does not run as root; the folders of pytest are closed to others, so it has one of its own.
    user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    folder = Path(subprocess.run([*user, "mktemp", "-d"], capture_output=True, text=True, check=True).stdout.strip())
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    data, settings = str(folder / "data"), f"-p {port} -h 127.0.0.1 -k {folder} -F"
    quiet = {"check": True, "stdout": subprocess.DEVNULL}
    try:
        subprocess.run([*user, place / "initdb", "-N", "-D", data, "-A", "trust", "-U", "postgres"], **quiet)
        control = [*user, str(place / "pg_ctl"), "-D", data, "-w", "-l", str(folder / "log")]
        subprocess.run([*control, "-o", settings, "start"], **quiet)
        try:
            yield f"postgresql://postgres@127.0.0.1:{port}/postgres"
        finally:
            subprocess.run([*control, "-m", "immediate", "stop"], **quiet)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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
