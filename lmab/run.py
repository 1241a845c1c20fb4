"""One run: a resolved configuration in, a record out."""

from __future__ import annotations

import errno
import json
import logging
import sys
import time
import traceback
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytorch_lightning as pl
import torch
from omegaconf import OmegaConf

from lmab import augmenting, checks, facts, starting, teaching
from lmab.cost import Peak
from lmab.machine import machine
from lmab.omitted import omitted
from lmab.store import FINAL, Record, Store, signature, write_whole
from lmab.train.callbacks import Bar, Checkpoints, Recorder, damage, last_whole
from lmab.train.learner import Diverged, Pruned
from lmab.transfer.distiller import Distiller
from lmab.types import BadInput, Failed
from lmab.wiring import build_data, build_learner, made, make, named

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from omegaconf import DictConfig

    from lmab.train.callbacks import Watch
    from lmab.train.stepping import Stepping

log = logging.getLogger("lmab")


def resolve(cfg: DictConfig) -> tuple[dict[str, Any], str]:
    """The configuration as plain values, checked, with the corpus named by its content and the sizes of its starting
    point; and its signature.

    BadInput: a key that no class takes, a value of another type, a corpus or a starting point that cannot be read.
    """
    config = checks.checked(_plain(cfg), begin=lambda config: taught(begun(config)))
    for key in ("corpus", "task"):
        if config[key] is not None:
            config[key]["fingerprint"] = _fingerprint(json.dumps(config[key]))
    if "path" in config["tokenizer"] and "fingerprint" not in config["tokenizer"]:
        config["tokenizer"]["fingerprint"] = _fingerprint(json.dumps(config["tokenizer"]))
    return config, signature(config)


def _plain(cfg: DictConfig) -> dict[str, Any]:
    config = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=False)
    assert isinstance(config, dict)
    return {str(k): v for k, v in config.items()}


def begun(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration with the sizes and the tokenizer of its starting point, if it has one."""
    given = config["start"]
    if given is None or isinstance(given, dict):
        return config
    if isinstance(given, list):
        first = starting.runs_first(config)
        assert first is not None
        found = starting.of_run(*resolve(first))
    elif starting.ready(given):
        found = starting.of_checkpoint(given)
    else:
        found = starting.of_run(*starting.done(Store(config["store"]), given))
    return starting.applied(config, found)


def taught(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration with the tokenizer of its teacher, if it has one."""
    given = config["teacher"]
    if given is None or isinstance(given, dict):
        return config
    if (first := starting.runs_first(config, "teacher")) is not None:
        found = starting.of_run(*resolve(first))
    elif starting.ready(given):
        found = starting.of_checkpoint(given)
    else:
        found = starting.of_run(*starting.done(Store(config["store"]), given))
    return teaching.applied(config, found)


@cache
def _fingerprint(source: str) -> str:
    """Read once a process, however many cells a sweep has. source: of text, its configuration as JSON."""
    return named(json.loads(source)).fingerprint()


def rehearse(config: Mapping[str, Any]) -> None:
    """Build the data, and a model without weights, so that what cannot work is said before anything is trained.

    BadInput: a corpus, a vocabulary, sizes.
    """
    for source in (config["start"], config["teacher"]):
        if source is not None and "run" in source:
            rehearse(source["config"])
    objectives = made(config["objective"])
    prepared, data = build_data(augmenting.without(config), objectives)
    if config["augment"] is not None:
        augmenting.refuse(make(config["augment"]), prepared.vocabulary)
    learner = build_learner(config, objectives, data, None)
    if config["teacher"] is not None:
        teaching.distiller(config, learner, data, None)
    make(config["tracker"])


def run(cfg: DictConfig, *, overrides: Sequence[str] = (), hydra: str = "", watch: Watch | None = None) -> Record:
    """Train, score and record what `cfg` describes, or find that it was done.

    A run that is done is not done again; one that was killed goes on from its last whole checkpoint. While
    another process works on the same run, this one waits and then finds it. A run that it starts from is done first.

    overrides, hydra: what was asked, and Hydra's own configuration as YAML, for the files beside the record. watch: is
    told of every validation, and may prune the run; asked for without one who does, it goes on.
    BadInput: said before anything is trained. Failed: anything else that went wrong, recorded with its traceback.
    """
    log.setLevel(logging.INFO)  # for the run's own log; a worker has no front door that would do it
    config, name = resolve(cfg)
    if config["start"] is not None:
        starting.refuse(overrides)
    store = Store(config["store"])
    found = store.find(name)
    if found is not None and found.state in FINAL:
        return found
    rehearse(config)
    with store.lock(name):
        found = store.find(name)
        if found is not None and found.state in FINAL:
            return found
        code = facts.code()
        if found is not None and found.code != code:
            code = {**code, "dirty": True}  # begun by other code: no revision gives the whole run back
        record = Record(
            signature=name,
            state="running",
            config=config,
            overrides=list(overrides),
            seed=config["seed"],
            steps=config["trainer"]["steps"],
            versions=facts.versions(),
            code=code,
        )
        return _recorded(record, store, cfg, hydra, watch)


def _recorded(record: Record, store: Store, cfg: DictConfig, hydra: str, watch: Watch | None) -> Record:
    """Do the run; whatever happens is in the record when this returns or raises."""
    folder = store.folder(record.signature)
    write_whole(folder / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(record.config)))
    write_whole(folder / ".hydra" / "config.yaml", OmegaConf.to_yaml(cfg))
    write_whole(folder / ".hydra" / "overrides.yaml", OmegaConf.to_yaml(OmegaConf.create(record.overrides)))
    write_whole(folder / ".hydra" / "hydra.yaml", hydra)
    (folder / "traceback.txt").unlink(missing_ok=True)
    store.write(record)
    handler = logging.FileHandler(folder / "run.log", encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.getLogger().addHandler(handler)
    log.info("Run %s begins: %s", record.signature, " ".join(record.overrides))
    tracker = make(record.config["tracker"])
    try:
        plain = _before(record, cfg)
        with machine(record.config["trainer"]["threads"]):
            _trained(record, store, tracker, plain, watch)
        record.state = "done"
    except Diverged as error:
        record.state, record.message = "diverged", str(error)
        log.warning("%s diverged: %s", record.signature, error)
    except Pruned as error:
        record.state, record.message = "pruned", str(error)
    except Failed as error:  # the run that it starts from, which has said why
        record.state, record.message = "failed", str(error)
        raise
    except Exception as error:
        record.state, record.message = "failed", f"{type(error).__name__}: {error}"
        if isinstance(error, BadInput) or getattr(error, "errno", None) == errno.ENOSPC:
            raise
        # Said at once and kept beside the record: the sweep may have hours to go.
        text = traceback.format_exc()
        print(f"run {record.signature} failed:\n{text}", file=sys.stderr)
        write_whole(folder / "traceback.txt", text)
        raise Failed(f"Run {record.signature} failed ({record.message}): see {folder / 'traceback.txt'}.") from error
    finally:
        try:
            tracker.close(record)
        finally:
            store.write(record)
            logging.getLogger().removeHandler(handler)
            handler.close()
    return record


def _before(record: Record, cfg: DictConfig) -> Record | None:
    """Do the runs that this one starts from and learns from, if they are not done, and the same student without a
    teacher, if that was asked for. Returns the last. Diverged: one of them did, and so this one has no outcome."""
    asked, config = _plain(cfg), record.config
    sources = {"start": "from which it starts"}
    if not teaching.joint(config):
        sources["teacher"] = "from which it learns"
    for key, words in sources.items():
        if (first := starting.runs_first(asked, key)) is not None:
            _done(first, starting.overrides(asked, key) or [], words)
    if not config["plain"]:
        return None
    return _done(teaching.without(cfg), [*record.overrides, *teaching.PLAIN], "its like without a teacher")


def _done(cfg: DictConfig, overrides: list[str], words: str) -> Record:
    before = run(cfg, overrides=overrides)
    if before.state != "done":
        raise Diverged(f"run {before.signature}, {words}, {before.state}: {before.message}")
    return before


def _trained(record: Record, store: Store, tracker: Any, plain: Record | None, watch: Watch | None) -> None:
    config = record.config
    train, held = config["trainer"], config["evaluation"]
    objectives = made(config["objective"])
    prepared, data = build_data(config, objectives)
    record.facts = facts.of_data(prepared, data, objectives, config["seed"])
    student = build_learner(config, objectives, data, config["seed"], starting.weights(config))
    learner: Stepping = student
    if config["teacher"] is not None:
        learner = distiller = teaching.distiller(config, student, data, config["seed"])
        teaching.refuse_worse(distiller, prepared, data)
        teaching.at_hand(distiller, config, data)
    folder = store.folder(record.signature) / "checkpoints"
    recorder = Recorder(record, store, tracker, every=train["log_every"], watch=watch)
    checkpoints = Checkpoints(
        folder,
        record,
        every=train["checkpoint_every"],
        best=[f"val/{name}_loss" for name in objectives] if held["checkpoint"] == "best" else [],
    )
    callbacks: list[pl.Callback] = [recorder, checkpoints]
    if config["display"]:
        callbacks.append(Bar(record))
    trainer = pl.Trainer(
        accelerator=train["accelerator"],
        devices=train["devices"],
        precision=config["precision"]["trainer"],
        max_steps=train["steps"],
        max_epochs=1,
        val_check_interval=min(train["val_every"], train["steps"]),
        num_sanity_val_steps=0,
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=bool(config["display"]),
        enable_model_summary=False,
        use_distributed_sampler=False,
        default_root_dir=str(folder.parent),
    )
    record.facts["device"] = str(trainer.strategy.root_device)  # what accelerator=auto came to
    peak = Peak(trainer.strategy.root_device)
    peak.reset()
    best = folder / "best.ckpt"
    if held["checkpoint"] == "best" and best.exists() and (broken := damage(best)):
        # The weights it held are those of a step that lies behind: only from the start do they come again.
        log.warning("%s is broken (%s): the run begins anew.", best, broken)
        for path in folder.glob("*.ckpt"):
            path.replace(path.with_suffix(".broken"))
    resume = last_whole(folder)
    if resume is not None:
        log.info("Run %s goes on from %s.", record.signature, resume.name)
    trainer.fit(learner, data, ckpt_path=str(resume) if resume else None)
    record.step = trainer.global_step  # also where nothing was left to train
    if held["checkpoint"] == "best":
        learner.load_state_dict(torch.load(best, weights_only=True))
    began = time.perf_counter()
    trainer.test(learner, data, verbose=False)
    means = learner.test_means()
    documents = learner.test_documents()
    if config["split"]["omit"]:
        names = [*named(config["task"]).names]
        classes = [names.index(name) for name in config["split"]["omit"]]
        for name in objectives:
            shift, known = omitted(student, name, data.validation, data.test, classes)
            means[f"learnt/{name}_shift"] = shift
            documents |= known
            means |= {key: float(np.nansum(np.multiply(x, w)) / np.sum(w)) for key, (x, w) in known.items()}
    whole = facts.bits_per_byte(documents, objectives, prepared, data)
    documents |= whole
    means |= {name: float(np.average(bits, weights=sizes)) for name, (bits, sizes) in whole.items()}
    record.metrics = means | facts.gains(record, objectives, means)
    record.scores = {name: score for name, (score, _) in documents.items()}
    record.weights = {name: weight for name, (_, weight) in documents.items()}
    record.cost |= facts.cost(student, data, recorder.tokens, record.cost.get("seconds", 0.0), peak)
    if isinstance(learner, Distiller):
        teaching.beside(record, learner, plain)
    record.cost["test_seconds"] = time.perf_counter() - began
