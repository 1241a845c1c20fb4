"""The cache: a folder is whole or it is not there, and whatever is wanted twice is made once."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from lmab.data import cache


def visible(folder) -> list[str]:
    """What a reader could take for built."""
    return sorted(p.name for p in folder.iterdir() if not p.name.startswith("."))


def test_a_key_names_the_parts_and_their_order():
    assert re.fullmatch("[0-9a-f]{16}", cache.key(1, "a", {"b": None}))
    assert cache.key({"a": 1, "b": 2}) == cache.key({"b": 2, "a": 1})
    others = [
        cache.key("a", "b"),
        cache.key("b", "a"),
        cache.key("ab"),
        cache.key(["a", "b"]),
        cache.key("a", 1),
    ]
    assert len({*others, cache.key("a", "1")}) == 6


def test_a_folder_is_made_once(tmp_path):
    made = []

    def make(draft):
        made.append(draft)
        (draft / "file").write_text("words", encoding="utf-8")

    folder = tmp_path / "deep" / "folder"
    assert cache.build(folder, make) == cache.build(folder, make) == folder
    assert len(made) == 1
    assert (folder / "file").read_text(encoding="utf-8") == "words"
    assert visible(folder.parent) == ["folder"]
    assert not made[0].exists()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_build_that_raises_leaves_nothing_behind(tmp_path, error):
    def break_off(draft):
        (draft / "half").touch()
        raise error

    with pytest.raises(error):
        cache.build(tmp_path / "folder", break_off)
    assert [p.name for p in tmp_path.iterdir()] in ([".folder.lock"], [])
    cache.build(tmp_path / "folder", lambda draft: (draft / "whole").touch())
    assert visible(tmp_path / "folder") == ["whole"]


# Makes a folder under the lock, having told that it began, and leaves its own number in it.
BUILDER = """
import os, pathlib, sys, time
from lmab.data import cache
root, patience = pathlib.Path(sys.argv[1]), float(sys.argv[2])
def make(draft):
    with open(root / "log", "a") as log:
        log.write("made\\n")
    (draft / "half").write_text(str(os.getpid()))
    time.sleep(patience)
    (draft / "whole").write_text(str(os.getpid()))
folder = cache.build(root / "folder", make)
print((folder / "whole").read_text())
"""


def builder(root, patience: float) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", BUILDER, str(root), str(patience)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def test_processes_that_want_the_same_folder_make_it_once(tmp_path):
    racing = [builder(tmp_path, 0.3) for _ in range(3)]
    said = {process.communicate()[0] for process in racing}
    assert [process.returncode for process in racing] == [0, 0, 0]
    assert len(said) == 1
    assert (tmp_path / "log").read_text(encoding="utf-8") == "made\n"
    assert visible(tmp_path) == ["folder", "log"]


def test_a_process_that_is_killed_in_the_middle_leaves_nothing_that_is_read(tmp_path):
    process = builder(tmp_path, 60)
    while not list(tmp_path.glob(".folder.*/half")):
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert visible(tmp_path) == ["log"]
    cache.build(tmp_path / "folder", lambda draft: (draft / "whole").touch())
    assert visible(tmp_path / "folder") == ["whole"]
