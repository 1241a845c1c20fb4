"""README says what is there: its commands compose, and its tables name every claim, experiment and task."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from lmab import __main__ as door
from lmab import checks
from lmab.lab.costs import config

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
LINES = [shlex.split(line, comments=True) for block in BLOCKS for line in block.splitlines()]
RUNS = [line[2:] for line in LINES if line[:2] == ["python", "run.py"]]
LMAB = [line[3:] for line in LINES if line[:3] == ["python", "-m", "lmab"]]


def first(table: str) -> set[str]:
    """The words that a table, which begins with these, names in its first column."""
    rows = README.partition(table)[2].partition("\n\n")[0].splitlines()[2:]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])}


def files(folder: str) -> set[str]:
    return {str(path.relative_to(ROOT / folder).with_suffix("")) for path in (ROOT / folder).rglob("*.yaml")}


def test_every_claim_is_listed() -> None:
    assert first("| `sweeps=` |") | first("| search |") == files("sweeps")


def test_every_experiment_is_listed() -> None:
    assert first("| `experiment=` |") == files("conf/experiment")


def test_every_task_is_named() -> None:
    (tasks,) = re.findall(r"\*\*Tasks\*\*: (.*?)\n\n", README, re.DOTALL)
    named = {name.removeprefix("task=") for name in re.findall(r"`([a-z_0-9=]+)`", tasks)}
    assert named == files("conf/task")


@pytest.mark.parametrize("words", [line for line in RUNS if "-m" not in line], ids=" ".join)
def test_a_run_composes(words: list[str]) -> None:
    assert config(["budget=smoke", *words])["objective"]


@pytest.mark.parametrize("words", [line[1:] for line in RUNS if "-m" in line[:1]], ids=" ".join)
def test_many_runs_name_what_is_there(words: list[str]) -> None:
    claims = [word.partition("=")[2] for word in words if word.startswith("sweeps=")]
    assert set(claims) <= files("sweeps")
    plain = [word for word in words if word.partition("=")[0] not in ("sweeps", *checks.CLAIM)]
    assert config(["budget=smoke", *(word.partition(",")[0] for word in plain)])["objective"]


@pytest.mark.parametrize("words", LMAB, ids=" ".join)
def test_a_command_is_one_of_ours(words: list[str]) -> None:
    group = door.lmab.make_context("lmab", [*words])
    door.lmab.commands[words[0]].make_context(words[0], words[1:], parent=group)


def test_there_are_commands() -> None:
    assert len(RUNS) > 10
    assert {line[0] for line in LMAB} >= {"list", "compare", "cost", "generate", "export"}


def test_files_that_are_linked_are_there() -> None:
    for link in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / link).exists(), link
