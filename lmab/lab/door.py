"""How the command line answers: a sentence and status 2 for bad input, status 1 for a run that failed."""

from __future__ import annotations

import errno
import logging
import os
import re
import sys
from typing import TYPE_CHECKING, NoReturn

from hydra.errors import CompactHydraException, MissingConfigException
from omegaconf.errors import OmegaConfBaseException

from lmab.checks import nearest
from lmab.types import BadInput, Failed

if TYPE_CHECKING:
    from collections.abc import Callable


def enter(main: Callable[[], object]) -> None:
    """Call a front door. Whatever a user could mend is one sentence on standard error."""
    # Hydra prints its own exceptions over many lines and leaves; so told, it hands them on.
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    logging.basicConfig(level=logging.WARNING, format="lmab: %(message)s", stream=sys.stderr)
    try:
        main()
    except BadInput as error:
        _refuse(str(error))
    except Failed as error:
        print(f"lmab: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    except (CompactHydraException, OmegaConfBaseException) as error:
        _refuse(explained(error))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _refuse(f"No space is left on the disk of {error.filename or 'the store'}: make room and give the same line again; runs go on from their last checkpoint.")
    except KeyboardInterrupt:
        print("lmab: interrupted; the same line goes on from the last checkpoint.", file=sys.stderr)
        raise SystemExit(130) from None


def _refuse(sentence: str) -> NoReturn:
    print(f"lmab: {sentence}", file=sys.stderr)
    raise SystemExit(2) from None


def explained(error: Exception) -> str:
    """What Hydra or OmegaConf complains of, in one sentence that names the nearest right key or choice."""
    text = str(error)
    if isinstance(error, MissingConfigException) and error.options:
        wanted = (error.missing_cfg_file or "").rpartition("/")
        options = [o.removesuffix(".yaml") for o in error.options]
        return f"There is no {wanted[0]}={wanted[2]}: {nearest(wanted[2], options)}"
    if found := re.search(r"Could not override '([^']+)'", text):
        return f"There is no key {found[1]}: {nearest(found[1], _keys())}"
    if found := re.search(r"Key '([^']+)' is not in struct\s+full_key: (\S+)", text):
        return f"There is no key {found[2]}: {nearest(found[2], _keys())}"
    if found := re.search(r"In '([^']+)': Could not find '([^']+)'", text):
        return f"{found[1]} asks for {found[2]}, which does not exist."
    return " ".join(text.split()).rstrip(".") + "."


def _keys() -> list[str]:
    """Every key of the default configuration, and every group."""
    from pathlib import Path

    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from omegaconf import OmegaConf

    from lmab.lab.guard import flat

    root = Path(__file__).parents[2] / "conf"
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(root), version_base="1.3"):
        cfg = OmegaConf.to_container(compose("config"), resolve=False)
    assert isinstance(cfg, dict)
    groups = [p.name for p in root.iterdir() if p.is_dir()]
    keys = [key for key, _ in flat({str(k): v for k, v in cfg.items()})]
    return [*keys, *groups, "sweeps"]
