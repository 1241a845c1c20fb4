"""A study that outlives the processes that work on it: where it is kept, what each trial counts for, and which were
left behind by a worker that died."""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import optuna
from filelock import FileLock, Timeout
from optuna.exceptions import ExperimentalWarning, UpdateFinishedTrialError
from optuna.storages import JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.storages.journal._file import BaseJournalFileLock
from optuna.trial import Trial, TrialState, create_trial

from lmab.types import BadInput

if TYPE_CHECKING:
    from collections.abc import Collection

    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler
    from optuna.storages import BaseStorage
    from optuna.study import Study
    from optuna.trial import FrozenTrial

    from lmab.lab.tuning.plan import Plan

RETRIES = 3  # how often a point is given to a worker that dies over it, out of memory perhaps
_ATTEMPTS = 5  # at a data base in which another worker is making the tables at the same moment

# What a trial says of itself beside its parameters.
LOST = "lost"  # its worker died: it was given to another and counts for nothing
SURPLUS = "surplus"  # one more than was asked for, since two workers asked at once, or a point that is being run
WORKER, BEAT, WHY, RUNS = "worker", "beat", "why", "runs"
_AGAIN = "again"  # how many workers died over this point before


class _Lock(BaseJournalFileLock):
    """The journal's lock, which falls away with a process that is killed. What such a one had half written is cut off,
    since the next line would be joined to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.inner = FileLock(path.with_name(f"{path.name}.filelock"))

    def acquire(self) -> bool:
        self.inner.acquire()
        _mend(self.path)
        return True

    def release(self) -> None:
        self.inner.release()


def _mend(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError), path.open("rb+") as file:
        size = file.seek(0, os.SEEK_END)
        if not size:
            return
        file.seek(-1, os.SEEK_END)
        if file.read(1) == b"\n":
            return
        file.seek(0)
        whole = file.read().rfind(b"\n") + 1
        file.truncate(whole)


def storage(where: str) -> BaseStorage:
    """Where studies are kept: `sqlite:///...`, `postgresql://...`, or the path of a journal. BadInput: it cannot be
    opened."""
    if "://" not in where:
        path = Path(where)
        path.parent.mkdir(parents=True, exist_ok=True)
        return JournalStorage(JournalFileBackend(str(path), lock_obj=_Lock(path)))
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return RDBStorage(where)
        except ImportError as error:
            raise BadInput(f"hydra.sweeper.storage={where} needs a driver that is not installed: {error}.") from error
        except Exception as error:  # each data base has errors of its own
            if attempt == _ATTEMPTS:
                says = " ".join(str(error).split()).rstrip(".")
                raise BadInput(f"hydra.sweeper.storage={where} cannot be opened: {says[:300]}.") from error
            time.sleep(0.2 * attempt)
    raise AssertionError


def opened(plan: Plan, sampler: BaseSampler | None = None, pruner: BasePruner | None = None) -> Study:
    """The study of a plan, made if it is not there. BadInput: one of this name asked something else."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.simplefilter("ignore", ExperimentalWarning)  # what is experimental was chosen by name
    study = optuna.create_study(
        storage=storage(plan.storage),
        study_name=plan.name,
        directions=plan.directions,
        sampler=sampler,
        pruner=pruner,
        load_if_exists=True,
    )
    asked = study.user_attrs.get("question")
    if asked is None:
        study.set_user_attr("question", plan.question)
        study.set_metric_names(plan.metrics)
    elif differing := [key for key in plan.question if asked.get(key) != plan.question[key]]:
        raise BadInput(
            f"The study {plan.name} in {plan.storage} was begun with another {' and '.join(differing)}: give this one "
            f"a name of its own with hydra.sweeper.study_name=..., or the line that began it."
        )
    return study


def counted(study: Study) -> list[FrozenTrial]:
    """The trials that count, in their order."""
    return [t for t in study.get_trials(deepcopy=False) if not void(t)]


def void(trial: FrozenTrial) -> bool:
    """Did a trial end so that it counts for nothing?"""
    return trial.state == TrialState.FAIL and bool({LOST, SURPLUS} & trial.user_attrs.keys())


def unfinished(study: Study, count: int) -> list[FrozenTrial]:
    """Of the first `count` that count, those that some worker has, or that wait for one."""
    return [t for t in counted(study)[:count] if not t.state.is_finished()]


def over(study: Study, count: int) -> bool:
    """Has a study that many trials, and all of them ended?"""
    return len(counted(study)) >= count and not unfinished(study, count)


def ask(study: Study, workers: Workers, worker: str, count: int) -> Trial | None:
    """A trial for a worker, without parameters yet: one that waits, or a new one. None: `count` are begun.

    From its first moment it says whose it is, so one whose worker dies while it draws is known to be left behind.
    """
    kept = study._storage
    with workers.turn():
        for waits in (t for t in unfinished(study, count) if t.state == TrialState.WAITING):
            with contextlib.suppress(UpdateFinishedTrialError):
                kept.set_trial_user_attr(waits._trial_id, WORKER, worker)
                if kept.set_trial_state_values(waits._trial_id, TrialState.RUNNING):
                    return Trial(study, waits._trial_id)
        if len(counted(study)) >= count:
            return None
        begun = create_trial(state=TrialState.RUNNING, user_attrs={WORKER: worker})
        trial = kept.create_new_trial(study._study_id, begun)
    frozen = kept.get_trial(trial)
    if frozen.number in {t.number for t in counted(study)[:count]}:
        return Trial(study, trial)
    # A worker on a machine that does not see the turn asked at the same moment. Trials are numbered by the storage, so
    # all agree which is one too many.
    give_up(study, frozen, SURPLUS, "one more than was asked for")
    return None


def drawing(study: Study, trial: FrozenTrial | Trial, names: Collection[str]) -> FrozenTrial | None:
    """An earlier trial that has not all its parameters yet: until it has, nobody knows whether two are at one
    point."""
    earlier = (t for t in counted(study) if t.number < trial.number and t.state == TrialState.RUNNING)
    return next((t for t in earlier if not t.params.keys() >= {*names}), None)


def give_up(study: Study, trial: FrozenTrial | Trial, attribute: str, why: str) -> bool:
    """End a trial that is to count for nothing. False: another worker ended it first."""
    kept = study._storage
    try:
        kept.set_trial_user_attr(trial._trial_id, attribute, True)
        kept.set_trial_user_attr(trial._trial_id, WHY, why)
        kept.set_trial_state_values(trial._trial_id, TrialState.FAIL)
    except UpdateFinishedTrialError:
        return False
    return True


def reap(study: Study, workers: Workers, grace: float, names: Collection[str]) -> None:
    """Give the points of workers that died to others. names: of the parameters; one that has not all of them is no
    point yet, and another is drawn in its place."""
    for trial in counted(study):
        if trial.state != TrialState.RUNNING or workers.alive(trial, grace):
            continue
        again = trial.user_attrs.get(_AGAIN, 0) + 1
        why = f"the worker died, {again} of {RETRIES} times"
        if again == RETRIES:
            fail(study, trial, why)
            continue
        with workers.turn():  # or another worker would find one too few, and begin one
            if give_up(study, trial, LOST, why) and trial.params.keys() >= {*names}:
                study.enqueue_trial(trial.params, user_attrs={_AGAIN: again})


def fail(study: Study, trial: FrozenTrial | Trial, why: str) -> None:
    """End a trial without a value: it counts, and is never the best."""
    with contextlib.suppress(UpdateFinishedTrialError, RuntimeError, ValueError):
        study._storage.set_trial_user_attr(trial._trial_id, WHY, why)
        study.tell(trial.number, state=TrialState.FAIL)


def twin(study: Study, trial: FrozenTrial | Trial, states: Collection[TrialState]) -> FrozenTrial | None:
    """Another trial with the same parameters that is in one of these states; of those that run, an earlier one."""
    alike = (t for t in counted(study) if t.state in states and t.params == trial.params and t.number != trial.number)
    return next((t for t in alike if t.state != TrialState.RUNNING or t.number < trial.number), None)


class Workers:
    """Who is at work: each holds a lock of its own beside the study for as long as its process lives, and says from
    time to time that it does, for those on machines that cannot see the lock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir(parents=True, exist_ok=True)

    def alive(self, trial: FrozenTrial, grace: float) -> bool:
        """Is somebody at work on a trial that runs?"""
        worker = trial.user_attrs.get(WORKER)
        if worker is not None and (path := self.folder / f"{worker}.lock").exists():
            lock = FileLock(path)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                return True
            lock.release()
            return False
        began = trial.datetime_start.timestamp() if trial.datetime_start is not None else 0.0
        return time.time() - trial.user_attrs.get(BEAT, began) < grace

    def turn(self) -> FileLock:
        """Held while trials are counted and one is begun, which takes a moment."""
        return FileLock(self.folder / "turn")

    def lock(self, worker: str) -> FileLock:
        """Held while a worker is at work."""
        return FileLock(self.folder / f"{worker}.lock")
