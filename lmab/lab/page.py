"""What every report is put together from: a page of tables and figures, its folder, and the terminal."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from rich.console import Console

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lmab.lab.plots import Figure
    from lmab.lab.tables import Table


@dataclass(frozen=True)
class Section:
    """A part of a page; its fields are shown in this order. A figure that could not be drawn is None."""

    title: str
    text: Sequence[str] = ()
    warning: str = ""
    command: str = ""
    tables: Sequence[Table] = ()
    figures: Sequence[Figure | None] = ()

    def __bool__(self) -> bool:
        return bool(self.text or self.warning or self.command or any(self.tables) or any(self.figures))


@dataclass(frozen=True, kw_only=True)
class Page:
    """What report.html.j2 shows; sections that hold nothing are left out.

    words: what the page is about. arxiv: a number to link to.
    """

    title: str
    words: str
    sections: Sequence[Section] = field(repr=False)
    source: str = ""
    arxiv: str = ""
    answer: str = ""
    sentence: str = ""

    def html(self) -> str:
        """One file that asks the network for nothing."""
        jinja = Environment(
            loader=FileSystemLoader(Path(__file__).parent),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        return jinja.get_template("report.html.j2").render(page=self).lstrip()


def folder(words: Iterable[str], signatures: Iterable[str]) -> str:
    """The name of a report's folder: some words, and eight digits of the signatures that it rests on."""
    digest = hashlib.blake2b(" ".join(sorted(signatures)).encode(), digest_size=4).hexdigest()
    safe = (re.sub(r"[^\w.=,]+", "-", word).strip("-.")[:60] for word in words)
    return "-".join([*safe, digest])


def console() -> Console:
    """Standard output. Lines into a file or a pipe are as long as they are: nothing is cut or folded."""
    out = Console(highlight=False)
    if not out.is_terminal:
        out.width = 10_000
    return out
