"""Things that are built once, under a lock, and read by all: a folder is whole or it is not there."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from typing import TYPE_CHECKING, Any, TypeVar

from filelock import FileLock

from lmab.types import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

T = TypeVar("T")


def key(*parts: Any) -> str:
    """16 hex digits that name whatever is made from these parts (plain values)."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def readable(folder: Path, read: Callable[[], T]) -> T:
    """What `read` makes of a folder built here. BadInput: a file in it is damaged; it names the folder."""
    try:
        return read()
    except MemoryError:
        raise
    except Exception as error:  # each library has its own words for a damaged file
        raise BadInput(
            f"The prepared data in {folder} cannot be read ({' '.join(str(error).split())[:200]}): delete that folder, "
            f"it is built anew."
        ) from error


def build(folder: Path, make: Callable[[Path], None]) -> Path:
    """Return `folder`, made by `make(draft)` if it is not there yet.

    `make` fills a draft folder that is renamed when it is complete, so a process that is killed in the
    middle leaves nothing that another would read. Processes that want the same folder make it once.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f".{folder.name}.lock")):
        if folder.is_dir():
            return folder
        draft = folder.with_name(f".{folder.name}.{os.getpid()}")
        for left in folder.parent.glob(f".{folder.name}.[0-9]*"):  # by processes that were killed: we hold the lock
            shutil.rmtree(left, ignore_errors=True)
        draft.mkdir()
        try:
            make(draft)
            draft.rename(folder)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
    return folder
