"""What a student learns from: a network that is asked in every step, or its answers, computed once and kept.

None of them is a module, so that a teacher is in no checkpoint, in no count of parameters and with no optimiser.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from typing import TYPE_CHECKING

import torch

from lmab.data import cache
from lmab.data.building import settings
from lmab.transfer.answers import Answers, answer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from lmab.data.collate import Collate, Noise
    from lmab.data.rows import Rows
    from lmab.train.learner import Learner
    from lmab.types import Ask, Batch, Seen

log = logging.getLogger(__name__)

_FORM = 1  # part of every key: raise it when the same settings would make other files


class Joint:
    """A teacher that learns too: in training text it has gradients, and whoever trains it sets its mode."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner

    def see(self, batch: Batch, ask: Ask, part: str = "train", micro: int = 0) -> Seen:
        """What it makes of a batch. part, micro: whose memory it takes up, where rows belong to streams."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and part == "train"):
            return self.learner.seen(batch, part, micro, ask)

    def forget(self, part: str) -> None:
        """Begin a part anew, without memory of what was read there before."""
        self.learner.memories.forget(part)


class Live(Joint):
    """A teacher that stays as it is: in evaluation mode and without gradients. It follows a batch to its device."""

    def __init__(self, learner: Learner) -> None:
        super().__init__(learner.eval().requires_grad_(False))

    @torch.no_grad()
    def see(self, batch: Batch, ask: Ask, part: str = "train", micro: int = 0) -> Seen:
        if self.learner.device != batch.tokens.device:
            self.learner.to(batch.tokens.device)
        return super().see(batch, ask, part, micro)


class Cached:
    """A teacher of which answers to the training text are at hand: it says what was kept, of what it is asked.
    Held-out text it is asked in person."""

    def __init__(self, live: Live, answers: Answers) -> None:
        self.live, self.answers = live, answers
        self.learner = live.learner

    def see(self, batch: Batch, ask: Ask, part: str = "train", micro: int = 0) -> Seen:
        if part != "train":
            return self.live.see(batch, ask, part, micro)
        asked = (ask.outcomes | ask.scores) & {*self.answers.rows}
        return self.answers.seen(batch, [name for name in batch.targets if name in asked], layers=ask.layers)

    def forget(self, part: str) -> None:
        self.live.forget(part)


def cacheable(rows: Rows, noises: Iterable[Noise], ask: Ask) -> bool:
    """Does a teacher say the same of an example whenever it is seen? Not where the noise is drawn anew, nor where it
    remembers what it read before; and attention takes up the square of a row's length, so it is not kept."""
    return rows.past is None and not ask.attention and all(noise.draws != "anew" for noise in noises)


def pays(rows: Rows, *, steps: int, batch: int) -> bool:
    """Is any example seen twice? Otherwise all rows cost more passes than the training has."""
    return steps * batch > len(rows)


def cached(
    root: Path,
    live: Live,
    rows: Rows,
    collate: Collate,
    ask: Ask,
    *,
    key: Sequence[str],
    batch: int,
    device: torch.device,
    depths: Sequence[int] | None = None,
) -> Cached:
    """A teacher with its answers to all rows, computed if they are not below `root`, as data is: whole or not at all.

    collate: what the rows go through in training. ask: all that will be asked of it there. key: what the teacher's
    answers depend on, as its run's signature and its precision. batch, device: rows at once, and where; they change no
    more than rounding. depths: whose states are kept where layers are asked for, -1 for the last; None for all.
    """
    drawn = any(noise.draws != "never" for noise in collate.noises.values())
    name = cache.key(
        _FORM,
        list(key),
        rows.folder.parent.name,  # which tells these rows from any others
        [[name, settings(noise)] for name, noise in collate.noises.items()],
        collate.seed if drawn else None,
        [sorted(ask.outcomes | ask.scores), sorted(ask.scores), ask.layers],
        None if depths is None else sorted(depths),
    )

    def make(draft: Path) -> None:
        log.info("The teacher answers %s rows, once for all.", f"{len(rows):,}")
        answer(draft, live, rows, collate, ask, depths=depths, batch=batch, device=device)

    return Cached(live, _whole(root / name, make))


def _whole(folder: Path, make: Callable[[Path], None]) -> Answers:
    """The answers in a folder, made if they are not there, and anew if they are damaged."""
    cache.build(folder, make)
    try:
        return Answers(folder)
    except (OSError, ValueError, EOFError) as error:
        log.warning("What the teacher answered cannot be read in %s (%s): it is asked again.", folder, error)
    with contextlib.suppress(FileNotFoundError):  # another process was quicker
        aside = folder.rename(folder.with_name(f".{folder.name}.{os.getpid()}"))
        shutil.rmtree(aside)
    return Answers(cache.build(folder, make))
