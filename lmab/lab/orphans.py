"""A process that a launcher started ends with it: nobody is left to hear its answer, and it would go on for hours."""

from __future__ import annotations

import functools
import multiprocessing
import os
import threading
import time

_GLANCE = 1.0  # seconds between two looks


@functools.cache
def end_with_parent() -> None:
    """Once a process: from now on it ends, at once, when the one that started it has. What it was at goes on from its
    last checkpoint, as after any death. Of a process that nobody's launcher started, such as one of a shell, nothing
    is asked.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end, args=(parent.pid,), daemon=True).start()


def _end(parent: int | None) -> None:
    while os.getppid() == parent:
        time.sleep(_GLANCE)
    os._exit(1)
