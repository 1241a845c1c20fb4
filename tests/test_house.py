"""The shape of the house: imports only fall, each library has its rooms, files stay small."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "lmab").rglob("*.py"))

# One run: from a configuration to a record, and what is done with one that is there.
_RUN = {"run", "wiring", "starting", "teaching", "checks", "fits", "facts", "machine", "cost", "trained", "generate"}
_RUN |= {"export", "omitted", "augmenting"}

# Room -> floor. A room may import what lies on a lower floor, and itself.
FLOORS = {
    **dict.fromkeys(("types", "store", "rng"), 0),
    **dict.fromkeys(("nn", "train", "data"), 1),
    **dict.fromkeys(("models", "objectives", "interop", "transfer"), 2),
    **dict.fromkeys(_RUN, 3),
    "lab": 4,
    "__main__": 5,
}
# Rooms that stand on one floor because they make up one thing.
TOGETHER = [{"types", "store", "rng"}, _RUN]

LIBRARIES = {
    "hydra": {"lmab/wiring.py", "lmab/starting.py", "lmab/lab"},
    "omegaconf": {"lmab/run.py", "lmab/starting.py", "lmab/teaching.py", "lmab/lab"},
    "pytorch_lightning": {"lmab/train", "lmab/data/module.py", "lmab/run.py"},
    "datasets": {"lmab/data"},
    "tokenizers": {"lmab/data", "lmab/interop"},
    "sentencex": {"lmab/data"},
    "sklearn": {"lmab/data/images.py"},
    "optuna": {"lmab/lab"},
    "scipy": {"lmab/lab"},
    "matplotlib": {"lmab/lab"},
    "safetensors": {"lmab/interop"},
    "huggingface_hub": {"lmab/interop"},
    "transformers": set(),  # checkpoints go to and from it, and tests compare with it
    "wandb": {"lmab/train/wandb_tracker.py"},
}


def _imports(path: Path) -> set[str]:
    """Every module that a file names in an import, also those for the type checker alone."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names if node.module == "lmab"}
    return found


def _room(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_fall(path: Path) -> None:
    room = path.relative_to(ROOT / "lmab").parts[0].removesuffix(".py")
    if room == "__init__":
        assert not _imports(path)
        return
    for module in _imports(path):
        if module.split(".")[0] == "lmab" and (other := _room(module)) and other != room:
            allowed = FLOORS[other] < FLOORS[room] or any({room, other} <= rooms for rooms in TOGETHER)
            assert allowed, f"{path.name} in {room} imports {module}, which lies no lower"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_libraries_stay_in_their_rooms(path: Path) -> None:
    place = path.relative_to(ROOT).as_posix()
    for module in _imports(path):
        rooms = LIBRARIES.get(module.split(".")[0])
        assert rooms is None or any(place.startswith(room) for room in rooms), f"{place} imports {module}"


def test_files_stay_small_and_have_names_of_their_own() -> None:
    for path in FILES:
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 300, path
        assert not {"utils", "common", "helpers", "misc"} & set(path.with_suffix("").parts), path


def test_every_module_says_what_it_is_for() -> None:
    for path in [*FILES, *sorted((ROOT / "bench").glob("*.py")), ROOT / "run.py", ROOT / "hydra_plugins" / "lmab.py"]:
        text = path.read_text(encoding="utf-8")
        assert not text or ast.get_docstring(ast.parse(text)), path
