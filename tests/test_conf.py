"""Every file below conf/ composes, shows every knob of its class, and takes two training steps."""

from __future__ import annotations

import inspect
import json
import math
import pydoc
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from omegaconf import OmegaConf

from lmab import teaching
from lmab.data.tokenizer import ByteLevelBPE
from lmab.run import resolve, run
from lmab.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from omegaconf import DictConfig

    from lmab.store import Record

CONF = Path(__file__).parents[1] / "conf"
GROUPS = sorted(p.name for p in CONF.iterdir() if p.is_dir() and p.name not in ("hydra", "sweeps", "recipe"))
GLUE = ("cola", "mnli", "mnli_mismatched", "mrpc", "qnli", "qqp", "rte", "sst2", "stsb", "wnli")
# What a choice cannot do without, beside the default ones.
NEEDS = {
    "augment=masked_lm": ["task=rotten_tomatoes", "objective=[classify]", "start=['trainer.steps=2']"],
    "corpus=files": ["corpus.path={reviews}"],
    "corpus=hub": ["corpus.name={folder}", "corpus.column=text"],
    "objective=[nsp]": ["segments=segment_pair", "segments@evaluation.segments=segment_pair"],
    "objective=[sop]": [
        "segments=segment_pair",
        "segments@evaluation.segments=segment_pair",
        "segments.negatives=swap",
        "evaluation.segments.negatives=swap",
    ],
    "objective=[plm]": ["model=xlnet"],
    "objective=[classify]": ["task=rotten_tomatoes"],
    "task=files": ["objective=[classify]", "task.path={labels}", "task.classes=2"],
    "task=hub": ["objective=[classify]", "task.name={tables}", "task.classes=2"],
    "tokenizer=ready": ["tokenizer.path={tokenizer}"],
    # What is for images stands or falls together, and digits are no text of words.
    **{choice: ["experiment=digits"] for choice in ("augment=shifts", "model=mlp", "task=digits", "tokenizer=levels")},
}
# These only choose sizes, or need the network: they are composed and not run.
UNRUN = ("budget=", "size=", *(f"task={name}" for name in GLUE))


# What all of a group need.
NEEDED = {"task": ["objective=[classify]"], "transfer": ["teacher=['trainer.steps=2']"]}


def _choices() -> Iterator[str]:
    for group in GROUPS:
        for path in sorted((CONF / group).glob("*.yaml")):
            choice = f"[{path.stem}]" if group in ("objective", "transfer") else path.stem
            yield f"{group}={choice}"


CHOICES = list(_choices())


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory, reviews: list[str]) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("texts")
    (folder / "reviews.txt").write_text("\n\n".join(reviews), encoding="utf-8")
    (folder / "tables").mkdir()
    lines = [{"text": review, "label": number % 2} for number, review in enumerate(reviews)]
    (folder / "tables" / "train.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    ByteLevelBPE(vocab=400).learn(reviews).save(str(folder / "tokenizer.json"))
    return {
        "reviews": str(folder / "reviews.txt"),
        "folder": str(folder),
        "labels": str(folder / "tables" / "train.jsonl"),
        "tables": str(folder / "tables"),
        "tokenizer": str(folder / "tokenizer.json"),
    }


def _chosen(choice: str, texts: dict[str, str]) -> list[str]:
    group = choice.partition("=")[0]
    needs = NEEDS.get(choice, NEEDED.get(group, []))
    return [choice, *(need.format(**texts) for need in needs)]


def _targets(node: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(node, dict):
        if "_target_" in node:
            yield path, node
        for key, value in node.items():
            yield from _targets(value, f"{path}.{key}".lstrip("."))
    elif isinstance(node, list):
        for i, value in enumerate(node):
            yield from _targets(value, f"{path}.{i}")


@pytest.mark.parametrize("choice", CHOICES)
def test_a_choice_shows_every_knob_of_its_class(
    choice: str, composed: Callable[..., DictConfig], texts: dict[str, str]
) -> None:
    # The last budget that is named counts, so a budget under test replaces the smoke budget.
    config = OmegaConf.to_container(composed(*_chosen(choice, texts)), resolve=True)
    for path, node in _targets(config):
        takes = inspect.signature(pydoc.locate(node["_target_"])).parameters.values()  # type: ignore[arg-type]
        knobs = {p.name for p in takes if p.kind is p.KEYWORD_ONLY}
        assert knobs == set(node) - {"_target_"}, f"{path} hides or invents a knob of {node['_target_']}"


@pytest.mark.parametrize("choice", [c for c in CHOICES if not c.startswith(UNRUN)])
def test_a_choice_takes_two_steps_and_is_scored(
    choice: str, composed: Callable[..., DictConfig], texts: dict[str, str], runs: Path
) -> None:
    cfg = composed(*_chosen(choice, texts), "trainer.steps=2", f"store={runs}")
    record = run(cfg)
    assert record.state == "done"
    assert record.step == 2
    # Two steps teach nothing, but the first weights may not be worse than a guess by much.
    losses = {name: value for name, value in record.metrics.items() if re.fullmatch("test/.*_loss", name)}
    assert losses
    for name, value in losses.items():
        tokens = name.startswith(("test/mlm_", "test/clm_", "test/plm_"))
        classes = record.config["task"]["classes"] if record.config["task"] else 2
        assert value < math.log(record.config["model"]["vocab"] if tokens else classes) + 0.5
    if record.config["plain"]:
        _held_against_its_like(record, Store(runs), resolve(teaching.without(cfg))[1])


def _held_against_its_like(record: Record, store: Store, name: str) -> None:
    """What a record says of a student beside its teacher, and beside the run of the same one without, `name`."""
    plain, told = store.find(name), record.metrics
    assert plain is not None
    assert plain.state == "done"
    before = plain.config
    while before is not None:  # nor did what it starts from learn from anyone
        assert {*before["transfer"]} <= {"labels"}
        before = (before["start"] or {}).get("config")
    plainly, student, teacher = (told[f"test/classify_{whose}accuracy"] for whose in ("plain_", "", "teacher_"))
    assert plainly == plain.metrics["test/classify_accuracy"]
    closed = (student - plainly) / (teacher - plainly) if teacher > plainly else math.nan
    assert told["test/classify_gap_closed"] == pytest.approx(closed, nan_ok=True)
    assert {f"test/classify_{what}" for what in ("agreement", "ece", "easy_accuracy", "hard_accuracy")} <= told.keys()
    assert record.cost["teacher_latency_32"] > 0
    if not teaching.joint(record.config):
        trained = store.find(record.config["teacher"]["run"])
        assert trained is not None
        assert teacher == pytest.approx(trained.metrics["test/classify_accuracy"])
        assert record.cost["teacher_parameters"] == trained.cost["parameters"]


@pytest.mark.parametrize("budget", sorted(p.stem for p in (CONF / "budget").glob("*.yaml")))
def test_every_budget_says_the_same_things(budget: str, composed: Callable[..., DictConfig]) -> None:
    config, _ = resolve(composed(f"budget={budget}"))
    smoke, _ = resolve(composed())
    assert set(config["budget"]) == set(smoke["budget"])
    assert config["budget"]["name"] == budget


@pytest.mark.parametrize("recipe", sorted(p.stem for p in (CONF / "recipe").glob("*.yaml")))
def test_a_recipe_belongs_to_a_budget_and_a_model_and_says_nothing_new(
    recipe: str, composed: Callable[..., DictConfig]
) -> None:
    budget, _, model = recipe.partition("_")
    said = OmegaConf.load(CONF / "recipe" / f"{recipe}.yaml")
    values = composed(f"budget={budget}", f"model={model}").budget
    assert set(said) <= set(composed().budget)
    assert OmegaConf.merge(values, said) == values


def test_the_budget_alone_is_no_part_of_the_signature(composed: Callable[..., DictConfig]) -> None:
    _, plain = resolve(composed())
    _, renamed = resolve(composed("budget.name=other", "name=mine", "store=elsewhere", "trainer.workers=1"))
    _, changed = resolve(composed("budget.dim=64"))
    assert plain == renamed != changed
