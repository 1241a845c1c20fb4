"""How the command line answers: a sentence and status 2 for bad input, status 1 for a run that failed."""

from __future__ import annotations

import errno
import logging
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

from hydra.errors import CompactHydraException, MissingConfigException, OverrideParseException
from omegaconf.errors import OmegaConfBaseException

from lmab.checks import CLAIM, nearest
from lmab.types import BadInput, Failed

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
_ROOT = Path(__file__).parents[2]


def enter(work: Callable[[], T]) -> T:
    """Do the work of a front door. Whatever a user could mend is one sentence on standard error."""
    # Hydra prints its own exceptions over many lines and leaves; so told, it hands them on.
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    logging.basicConfig(level=logging.WARNING, format="lmab: %(message)s", stream=sys.stderr)
    logging.getLogger("lmab").setLevel(logging.INFO)
    try:
        return work()
    except BadInput as error:
        _leave(2, str(error))
    except Failed as error:
        _leave(1, str(error))
    except (CompactHydraException, OmegaConfBaseException) as error:
        _leave(2, explained(error))
    except ValueError as error:
        if not str(error).startswith("Config group override must be"):
            raise
        _leave(2, "A group cannot be null: leave it out with a tilde, as in ~task or ~experiment.")
    except OSError as error:
        where = error.filename or "the store"
        if error.errno == errno.ENOSPC:
            _leave(2, f"No space is left for {where}: make room and give the same line again, runs go on.")
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
            raise
        _leave(2, f"{where} cannot be written ({error.strerror}): choose another folder with store=...")
    except KeyboardInterrupt:
        _leave(130, "Interrupted; the same line goes on from the last checkpoint.")


def _leave(status: int, sentence: str) -> NoReturn:
    print(f"lmab: {sentence}{'' if sentence.endswith(('.', '?')) else '.'}", file=sys.stderr)
    raise SystemExit(status)


def explained(error: Exception) -> str:
    """What Hydra or OmegaConf complains of, in one sentence that names the nearest right key or choice."""
    text = str(error)
    if isinstance(error, MissingConfigException) and error.options:
        group, _, choice = (error.missing_cfg_file or "").rpartition("/")
        return f"There is no {group}={choice}: {nearest(choice, [o.removesuffix('.yaml') for o in error.options])}"
    if isinstance(error, OverrideParseException):
        if error.override and error.override.startswith("start=["):
            return f"{error.override!r} cannot be read: quote each override in it, as in start=['experiment=bert']."
        return f"{error.override!r} cannot be read as key=value: {text.splitlines()[0]}."
    if found := re.search(r"Could not override '([^']+)'|full_key: (\S+)", text):
        key = found[1] or found[2]
        if key in CLAIM:
            return f"There is no key {key} here: a claim whose file does not give it takes it as +{key}=..."
        known = _of_search() if key.startswith("hydra.sweeper.") else _keys()
        group, _, rest = key.partition(".")
        others = [
            p.stem for p in sorted((_ROOT / "conf" / group).glob("*.yaml")) if f"\n{rest}:" in f"\n{p.read_text()}"
        ]
        if others and rest:
            return f"There is no key {key} under these choices: {' and '.join(f'{group}={o}' for o in others)} has it."
        return f"There is no key {key}: {nearest(key, known)}"
    if found := re.search(r"Could not (?:find|load) '([^']+)'", text):
        group, _, choice = found[1].partition("/")
        folder = _ROOT / ("sweeps" if group == "sweeps" else f"conf/{group}")
        known = [str(p.relative_to(folder).with_suffix("")) for p in sorted(folder.rglob("*.yaml"))]
        return f"There is no {group}={choice}: {nearest(choice, known)}"
    return " ".join(text.split()).rstrip(".") + "."


def _of_search() -> list[str]:
    """Every key of hydra.sweeper for a search."""
    from lmab.lab.tuning.settings import Settings

    return [f"hydra.sweeper.{key}" for key in Settings.__dataclass_fields__]


def _keys() -> list[str]:
    """Every key of the default configuration, and every group."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from omegaconf import OmegaConf

    from lmab.lab.guard import flat

    GlobalHydra.instance().clear()
    with initialize_config_dir(str(_ROOT / "conf"), version_base="1.3"):
        cfg = OmegaConf.to_container(compose("config"), resolve=False)
    assert isinstance(cfg, dict)
    groups = [p.name for p in (_ROOT / "conf").iterdir() if p.is_dir()]
    keys = [key for key, _ in flat({str(k): v for k, v in cfg.items()})]
    return [*keys, *groups, "sweeps"]
