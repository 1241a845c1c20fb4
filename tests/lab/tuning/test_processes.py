"""Several workers on one study: they share its points, wait for none, and one that is killed loses nothing."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import optuna
import pytest
from optuna.trial import TrialState

from lmab.lab.tuning import study
from lmab.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from optuna.study import Study

ROOT = Path(__file__).parents[3]
LINE = ["run.py", "-m", "hydra/sweeper=optuna", "hydra.sweeper.n_jobs=1", "hydra.sweeper.study_name=s", "tracker=none"]
LINE += ["experiment=digits", "budget=smoke", "optim.lr=tag(log,interval(1e-4,1e-1))"]
LONG = ["trainer.steps=400", "trainer.val_every=100", "trainer.checkpoint_every=100"]


def _binaries() -> Path | None:
    """Of Debian's PostgreSQL."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent if found else None


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
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
    subprocess.run(
        [*user, place / "initdb", "-D", data, "-A", "trust", "-U", "postgres"], check=True, capture_output=True
    )
    control = [*user, str(place / "pg_ctl"), "-D", data, "-w", "-l", str(folder / "log")]
    subprocess.run([*control, "-o", settings, "start"], check=True, stdout=subprocess.DEVNULL)
    try:
        yield f"postgresql://postgres@127.0.0.1:{port}/postgres"
    finally:
        subprocess.run([*control, "-m", "immediate", "stop"], check=False, stdout=subprocess.DEVNULL)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["journal", "postgres"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "journal":
        return str(tmp_path / "studies" / "s" / "journal.log")
    return request.getfixturevalue("postgres")


def _start(store: Path, where: str, *words: str) -> subprocess.Popen[bytes]:
    line = [sys.executable, *LINE, f"store={store}", f"hydra.sweeper.storage={where}", *words]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(line, cwd=ROOT, start_new_session=True, **quiet)  # type: ignore[call-overload]


def _until(what: Callable[[], bool], *processes: subprocess.Popen[bytes]) -> None:
    """Wait for something that comes while at least one of the processes lives."""
    while not what():
        assert any(process.poll() is None for process in processes)
        time.sleep(0.02)


@contextlib.contextmanager
def _opened(where: str) -> Iterator[Study]:
    kept = study.storage(where)
    try:
        yield optuna.load_study(study_name="s", storage=kept)
    finally:
        if isinstance(kept, optuna.storages.RDBStorage):  # whose connections pytest misses otherwise
            kept.remove_session()
            kept.engine.dispose()


def _ended(store: Path) -> int:
    return sum(record.state == "done" for record in Store(store))


def _whole(where: str, store: Path, count: int) -> None:
    """As many trials as were asked for, each with a value and a run of its own, and no point run twice."""
    with _opened(where) as known:
        trials = study.counted(known)
        assert not [t for t in known.get_trials() if t.state in (TrialState.RUNNING, TrialState.WAITING)]
    assert len(trials) == count
    assert all(trial.state == TrialState.COMPLETE for trial in trials)
    assert max(Counter(str(trial.params) for trial in trials).values()) == 1
    names = [name for trial in trials for name in trial.user_attrs[study.RUNS]]
    assert len(set(names)) == count
    for name in names:
        record = Store(store).find(name)
        assert record is not None
        assert record.state == "done"
        # Begun by one worker, and taken up by another if that was killed.
        assert (store / name / "run.log").read_text().count(" begins") <= 2


@pytest.mark.slow
def test_killed_in_the_middle_it_ends_with_as_many_as_were_asked_for(tmp_path: Path) -> None:
    where = str(tmp_path / "studies" / "s" / "journal.log")
    first = _start(tmp_path, where, "hydra.sweeper.n_trials=6", *LONG)
    _until(lambda: _ended(tmp_path) >= 3, first)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    assert 3 <= _ended(tmp_path) < 6
    assert _start(tmp_path, where, "hydra.sweeper.n_trials=6", *LONG).wait() == 0
    _whole(where, tmp_path, 6)


@pytest.mark.slow
def test_two_processes_share_a_study_and_one_that_is_killed_loses_nothing(where: str, tmp_path: Path) -> None:
    both = [_start(tmp_path, where, "hydra.sweeper.n_trials=8", *LONG) for _ in range(2)]
    _until(lambda: _ended(tmp_path) >= 2, *both)
    _until(lambda: len(_workers(where)) == 2, *both)
    os.killpg(both[1].pid, signal.SIGKILL)
    both[1].wait()
    assert both[0].wait() == 0
    _whole(where, tmp_path, 8)
    assert len(_workers(where)) == 2


def _workers(where: str) -> set[str]:
    """Who had a trial so far."""
    with _opened(where) as known:
        return {t.user_attrs[study.WORKER] for t in known.get_trials() if study.WORKER in t.user_attrs}


SLOW = """
import sys
from pathlib import Path
from lmab.lab.tuning import worker

done = worker.run
gate = Path(sys.argv.pop(1))

def run(cfg, **more):
    if cfg.model.dim == 64:  # until the others are through
        while not gate.exists():
            import time
            time.sleep(0.02)
    return done(cfg, **more)

worker.run = run
import runpy
runpy.run_path("run.py", run_name="__main__")
"""


@pytest.mark.slow
def test_a_slow_trial_leaves_the_other_worker_at_work(tmp_path: Path) -> None:
    where, gate = str(tmp_path / "studies" / "s" / "journal.log"), tmp_path / "gate"
    words = [
        *LINE[1:-1],
        "model.dim=64,4,8,12,16",
        "hydra/sweeper/sampler=grid",
        "trainer.steps=2",
        f"store={tmp_path}",
    ]
    both = [subprocess.Popen([sys.executable, "-c", SLOW, str(gate), *words], cwd=ROOT) for _ in range(2)]
    _until(lambda: _ended(tmp_path) == 4, *both)  # all but the slow one, which waits for this
    assert {r.config["model"]["dim"] for r in Store(tmp_path) if r.state == "done"} == {4, 8, 12, 16}
    gate.touch()
    assert [process.wait() for process in both] == [0, 0]
    _whole(where, tmp_path, 5)


def test_a_study_opens_in_the_dashboard(tmp_path: Path) -> None:
    import json

    import optuna_dashboard

    where = str(tmp_path / "journal.log")
    kept = study.storage(where)
    optuna.create_study(storage=kept, study_name="s").add_trial(
        optuna.create_trial(values=[1.0], params={}, distributions={})
    )
    told: list[str] = []
    asked = {"REQUEST_METHOD": "GET", "PATH_INFO": "/api/studies", "SERVER_NAME": "h", "SERVER_PORT": "80"}
    asked |= {"wsgi.url_scheme": "http", "wsgi.input": None, "wsgi.errors": sys.stderr}  # type: ignore[dict-item]
    body = b"".join(optuna_dashboard.wsgi(kept)(asked, lambda status, *_: told.append(status)))
    assert told == ["200 OK"]
    assert [one["study_name"] for one in json.loads(body)["study_summaries"]] == ["s"]
