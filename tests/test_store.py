"""Records: written whole, found again, never half read; names that change exactly when a result could."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import signal
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmab.store import OUTSIDE, Record, Store, signature, write_whole
from lmab.types import BadInput

if TYPE_CHECKING:
    from pathlib import Path

NAME = "0123456789abcdef"


def _record(**more: object) -> Record:
    return Record(signature=NAME, state="done", config={"seed": 0, "model": {"dim": 8}}, **more)  # type: ignore[arg-type]


def test_a_record_comes_back_equal(tmp_path: Path) -> None:
    store = Store(tmp_path)
    record = _record(metrics={"test/mlm_loss": 0.1 + 0.2}, curves={"val/mlm_loss": [(1, 2.5), (2, 1 / 3)]})
    store.create(NAME)
    store.write(record)
    assert store.find(NAME) == record
    assert [r.signature for r in store] == [NAME]


def test_what_is_not_a_number_is_valid_json_and_comes_back_so(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.write(_record(metrics={"a": math.nan}, curves={"b": [(3, math.inf)]}, scores={"c": [1.0, math.nan]}))
    text = (tmp_path / NAME / "record.json").read_text()
    assert "NaN" not in text
    assert "Infinity" not in text
    found = store.find(NAME)
    assert found is not None
    assert math.isnan(found.metrics["a"])
    assert math.isnan(found.curves["b"][0][1])
    assert math.isnan(found.scores["c"][1])


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}', '{"format": 1, "curves": 3}', "\x00\x01"])
def test_a_record_that_cannot_be_read_is_said_and_taken_up_again(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(tmp_path)
    write_whole(store.create(NAME) / "record.json", text)
    assert store.find(NAME) is None
    assert "record.json cannot be read" in caplog.text


def test_another_format_is_refused_by_its_number(tmp_path: Path) -> None:
    Store(tmp_path).create(NAME)
    (tmp_path / "store.json").write_text('{"format": 99}')
    with pytest.raises(BadInput, match="format 99 and this lmab reads format 1"):
        Store(tmp_path)
    (tmp_path / "store.json").write_text('{"format": 1}')
    (tmp_path / NAME / "record.json").write_text('{"format": 99}')
    with pytest.raises(BadInput, match="format 99"):
        Store(tmp_path).find(NAME)


def test_a_full_disk_leaves_the_old_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "record.json"
    write_whole(path, "old")
    monkeypatch.setattr(os, "fsync", lambda fd: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["record.json"]


keys = st.dictionaries(st.sampled_from("abcdef"), st.integers() | st.text() | st.booleans() | st.none(), max_size=4)


@given(keys, keys)
def test_equal_configurations_and_only_they_have_equal_names(one: dict, other: dict) -> None:
    assert (signature(one) == signature(other)) == (
        json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    )


@pytest.mark.parametrize("path", OUTSIDE)
def test_keys_outside_the_signature_change_no_name(path: str) -> None:
    config = {"store": "a", "name": "b", "corpus": {"path": "c", "column": "d"}, "trainer": {"steps": 3}}
    config |= {"task": {"label": "e"}, "tokenizer": {"vocab": 4}, "start": {"run": "f"}, "teacher": {"run": "g"}}
    changed = json.loads(json.dumps(config))
    node = changed
    *above, last = path.split(".")
    for key in above:
        node = node.setdefault(key, {})
    node[last] = "something else"
    assert signature(config) == signature(changed)
    assert config["trainer"] == {"steps": 3}  # and what was handed in stays as it was


def test_a_beginning_selects_one_run_or_says_why_not(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for name in ("aa00000000000000", "ab00000000000000"):
        store.write(Record(signature=name, state="done", config={}))
    assert store.select("ab").signature == "ab00000000000000"
    with pytest.raises(BadInput, match="2 runs"):
        store.select("a")
    with pytest.raises(BadInput, match="No run"):
        store.select("c")


def _hold(root: Path, ready: multiprocessing.synchronize.Event) -> None:  # type: ignore[name-defined]
    with Store(root).lock(NAME):
        ready.set()
        time.sleep(60)


def test_a_lock_falls_away_with_the_process_that_held_it(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=_hold, args=(tmp_path, ready))
    process.start()
    assert ready.wait(60)
    assert Store(tmp_path).alive(NAME)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert not Store(tmp_path).alive(NAME)
    with Store(tmp_path).lock(NAME):
        pass
