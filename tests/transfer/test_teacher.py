"""A teacher that answers in every step, and one whose answers are kept: they say the same."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lmab.data.collate import Collate
from lmab.data.labelled import Labelled
from lmab.data.order import Shuffled
from lmab.data.prepare import Prepared, Split
from lmab.data.rows import Rows
from lmab.data.tasks import prepare_task
from lmab.data.tokenizer import WordPiece
from lmab.models.bert import BERT
from lmab.models.mlp import MLP
from lmab.objectives.classify import Classify
from lmab.objectives.clm import CausalLM
from lmab.objectives.mlm import MaskedLM
from lmab.objectives.nsp import NextSentence
from lmab.objectives.plm import PermutationLM
from lmab.train.optim import AdamW, Linear
from lmab.train.stepping import Learning
from lmab.transfer import answers
from lmab.transfer.teacher import Cached, Joint, Live, cacheable, cached, pays
from lmab.types import Ask, BadInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from lmab.objectives.objective import Objective
    from lmab.train.learner import Learner
    from lmab.types import Batch, Seen

CPU = torch.device("cpu")
LENGTH = 40
ONE_AFTER_ANOTHER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)


@dataclass(frozen=True, kw_only=True)
class Short:
    """Sentences of many lengths: does one say "the"?"""

    given: list[str]
    classes: int = 2
    metrics: list[str] = field(default_factory=lambda: ["accuracy"])
    held_out: ClassVar[float] = 0.1

    @property
    def names(self) -> list[str]:
        return ["no", "yes"]

    def fingerprint(self) -> str:
        return str(len(self.given))

    def examples(self) -> Iterator[Labelled]:
        for sentence in self.given:
            yield Labelled(None, (sentence,), float(" the " in sentence))


@dataclass
class Taught:
    """All that a teacher needs."""

    learner: Learner
    rows: Rows
    collate: Collate

    def keep(self, root: Path, *, batch: int = 16, key: str = "a run", **more: Any) -> Cached:
        ask = more.pop("ask", Ask(scores=frozenset(self.collate.noises)))
        live = Live(self.learner)
        return cached(root, live, self.rows, self.collate, ask, key=[key], batch=batch, device=CPU, **more)

    def batch(self, numbers: list[int], epoch: int = 0) -> Batch:
        return self.collate(self.rows.take(np.array(numbers), np.full(len(numbers), epoch)))


def bert(objective: Objective, prepared: Prepared) -> BERT:
    learning = Learning(
        objectives={objective.name: objective},
        optim=AdamW(lr=1e-3, beta1=0.9, beta2=0.999, epsilon=1e-8, weight_decay=0.0),
        schedule=Linear(warmup=0),
        steps=1,
        clip=None,
        seed=3,
        documents={"validation": 9},
    )
    sizes: dict[str, Any] = {"vocab": prepared.vocabulary.size, "dim": 16, "depth": 2, "heads": 2, "ffn": 32}
    sizes |= {"dropout": 0.3, "attention_dropout": 0.3, "epsilon": 1e-12, "std": 0.1, "embedding_std": 0.1}
    return BERT(learning, length=LENGTH, segments=2, positions="normal", **sizes)


def masked(copies: int | None) -> MaskedLM:
    return MaskedLM(rate=0.3, mask=0.8, random=0.1, whole_words=False, copies=copies, weight=1.0)


def classifier(**knobs: Any) -> Classify:
    return Classify(
        **{
            "classes": 2,
            "pool": "first",
            "head": "linear",
            "layers": [-1],
            "dropout": 0.3,
            "causal": False,
            "weight": 1.0,
        }
        | knobs
    )


@pytest.fixture(scope="session")
def short(sentences: list[str], data_root: Path) -> Prepared:
    return prepare_task(
        data_root,
        task=Short(given=[*dict.fromkeys(sentences)][:150]),
        fingerprint="short",
        split=Split(train=None, validation=5, test=5),
        learner=WordPiece(vocab=600, alphabet=100),
        length=LENGTH,
        last=False,
    )


@pytest.fixture(scope="session", params=["classify", "mlm"])
def taught(request: pytest.FixtureRequest, short: Prepared, prepared: Callable[..., Prepared]) -> Taught:
    """A classifier on sentences, or a masked LM with static masks on whole sentences; many rows are padded."""
    found = short if request.param == "classify" else prepared(cut=False)
    objective = classifier() if request.param == "classify" else masked(1)
    rows = Rows(found.folders["train"])
    assert (rows.length < rows.width).mean() > 0.3
    collate = Collate({objective.name: objective.noise}, found.vocabulary, 11)
    return Taught(bert(objective, found), rows, collate)


def same(one: Seen, other: Seen) -> None:
    assert one.outcomes.keys() == other.outcomes.keys()
    for name, mine in one.outcomes.items():
        theirs = other.outcomes[name]
        assert torch.equal(mine.places, theirs.places)
        assert torch.equal(mine.hits, theirs.hits)
        torch.testing.assert_close(mine.losses, theirs.losses, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(mine.scores, theirs.scores, rtol=1e-5, atol=1e-6)
        if mine.said is not None:
            assert torch.equal(mine.said, theirs.said)


# A teacher that is asked


def test_a_live_teacher_stays_as_it_is_and_has_no_dropout(taught: Taught) -> None:
    taught.learner.train()
    live, batch, ask = Live(taught.learner), taught.batch([3, 1, 4]), Ask(scores=frozenset(taught.collate.noises))
    before = {name: value.clone() for name, value in taught.learner.state_dict().items()}
    state = torch.random.get_rng_state()
    same(live.see(batch, ask), live.see(batch, ask))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not any(module.training for module in taught.learner.modules())
    assert not any(parameter.requires_grad for parameter in taught.learner.parameters())
    assert all(outcome.losses.grad_fn is None for outcome in live.see(batch, ask).outcomes.values())
    assert all(torch.equal(value, before[name]) for name, value in taught.learner.state_dict().items())


def test_a_live_teacher_is_asked_no_more_than_is_wanted(taught: Taught) -> None:
    live, batch = Live(taught.learner), taught.batch([3, 1, 4])
    (name,) = taught.collate.noises
    assert live.see(batch, Ask()).outcomes == {}
    assert live.see(batch, Ask(outcomes=frozenset([name]))).outcomes[name].scores is None
    assert len(live.see(batch, Ask(layers=True)).encoded.layers) == 3


def test_a_teacher_that_learns_has_gradients_on_training_text_alone(short: Prepared) -> None:
    objective = classifier()
    collate = Collate({"classify": objective.noise}, short.vocabulary, 0)
    taught = Taught(bert(objective, short), Rows(short.folders["train"]), collate)
    joint, batch, ask = Joint(taught.learner), taught.batch([0, 1]), Ask(outcomes=frozenset(["classify"]))
    assert joint.see(batch, ask).outcomes["classify"].losses.requires_grad
    assert not joint.see(batch, ask, "validation").outcomes["classify"].losses.requires_grad
    with torch.no_grad():
        assert not joint.see(batch, ask).outcomes["classify"].losses.requires_grad


# A teacher whose answers are kept


@pytest.mark.parametrize(("size", "micro"), [(7, 7), (32, 12)])
def test_kept_and_live_answers_are_the_same_in_any_order(taught: Taught, size: int, micro: int, tmp_path: Path) -> None:
    kept, live = taught.keep(tmp_path), Live(taught.learner)
    steps = 2 * len(taught.rows) // size + 1  # every row twice, and more
    order = Shuffled(taught.rows, taught.collate, batch=size, micro=micro, steps=steps, seed=5)
    ask = Ask(scores=frozenset(taught.collate.noises))
    seen = []
    for step in range(steps):
        for number, batch in enumerate(order[step]):
            same(kept.see(batch, ask, "train", number), live.see(batch, ask, "train", number))
            seen += batch.number.tolist() if batch.number is not None else []
    assert set(seen) == set(range(len(taught.rows)))


@ONE_AFTER_ANOTHER
@given(data=st.data())
def test_a_row_has_the_same_answers_in_whatever_batch_it_stands(taught: Taught, data, tmp_path_factory) -> None:
    root = tmp_path_factory.getbasetemp() / "kept" / "-".join(taught.collate.noises)
    kept = taught.keep(root, ask=Ask(scores=frozenset(taught.collate.noises), layers=True))
    numbers = data.draw(st.lists(st.integers(0, len(taught.rows) - 1), min_size=1, max_size=9))
    ask = Ask(scores=frozenset(taught.collate.noises), layers=True)
    together = taught.batch(numbers, epoch=data.draw(st.integers(0, 3)))
    seen = kept.see(together, ask)
    row = {name: outcome.places // together.tokens.shape[1] for name, outcome in seen.outcomes.items()}
    for place, number in enumerate(numbers):
        alone = kept.see(taught.batch([number]), ask)
        for name, outcome in seen.outcomes.items():
            here = row[name] == place
            for column in ("losses", "hits", "scores"):
                assert torch.equal(getattr(outcome, column)[here], getattr(alone.outcomes[name], column))
        length = taught.rows.length[number]
        for mine, theirs in zip(seen.encoded.layers, alone.encoded.layers, strict=True):
            assert torch.equal(mine[place, :length], theirs[0, :length])


@pytest.mark.parametrize(("depths", "wanted"), [(None, {0, 1, 2}), ([-1], {2}), ([1, 0], {0, 1})])
def test_chosen_states_are_those_of_the_live_teacher(
    taught: Taught, depths: list[int] | None, wanted: set[int], tmp_path: Path
) -> None:
    ask = Ask(layers=True)
    kept, live = taught.keep(tmp_path, ask=ask, depths=depths), Live(taught.learner)
    batch = taught.batch([5, 0, 9, 5])
    found, there = kept.see(batch, ask).encoded, live.see(batch, ask).encoded
    assert len(found.layers) == len(there.layers) == 3
    assert batch.lengths is not None
    real = torch.arange(batch.tokens.shape[1]) < batch.lengths[:, None]
    for depth in range(3):
        if depth in wanted:
            torch.testing.assert_close(found.layers[depth][real], there.layers[depth][real], rtol=1e-5, atol=1e-5)
        else:
            assert found.layers[depth].numel() == 0
    if 2 in wanted:
        assert found.hidden is found.layers[-1]


def test_states_of_rows_as_a_whole_are_kept_as_such(short: Prepared, tmp_path: Path) -> None:
    objective = classifier()
    learning = bert(objective, short).learning
    sizes: dict[str, Any] = {"vocab": 600, "length": LENGTH, "dim": 7, "depth": 2, "dropout": 0.0}
    learner = MLP(learning, input_dropout=0.0, gain=1.0, **sizes)
    full = [number for number, length in enumerate(Rows(short.folders["train"]).length) if length == LENGTH]
    rows = Rows(short.folders["train"])
    rows.length[:] = LENGTH  # as images, which are all of one size
    taught = Taught(learner, rows, Collate({"classify": objective.noise}, short.vocabulary, 0))
    ask = Ask(scores=frozenset(["classify"]), layers=True)
    kept, batch = taught.keep(tmp_path, ask=ask), taught.batch(full[:3])
    found, there = kept.see(batch, ask), Live(learner).see(batch, ask)
    same(found, there)
    assert [layer.shape[1] for layer in found.encoded.layers] == [1, 1, 1]
    for mine, theirs in zip(found.encoded.layers, there.encoded.layers, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_what_was_not_kept_is_not_said(taught: Taught, tmp_path: Path) -> None:
    (name,) = taught.collate.noises
    kept, batch = taught.keep(tmp_path, ask=Ask(outcomes=frozenset([name]))), taught.batch([1, 2])
    seen = kept.see(batch, Ask(outcomes=frozenset(["another"]), scores=frozenset([name]), layers=True))
    assert seen.outcomes.keys() == {name}
    assert seen.outcomes[name].scores is None
    assert seen.encoded.layers == ()


def test_held_out_text_is_answered_in_person(taught: Taught, tmp_path: Path) -> None:
    kept, batch = taught.keep(tmp_path), taught.batch([1, 2])
    (name,) = taught.collate.noises
    ask = Ask(scores=frozenset([name]))
    first = next(iter(taught.learner.parameters()))
    before = first.detach().clone()
    was = kept.live.see(batch, ask)
    with torch.no_grad():
        first.mul_(0.5)
    then, now, live = kept.see(batch, ask), kept.see(batch, ask, "validation"), kept.live.see(batch, ask)
    with torch.no_grad():
        first.copy_(before)
    same(then, was)  # what was kept stays
    same(now, live)
    assert not torch.allclose(now.outcomes[name].losses, was.outcomes[name].losses)


# What is on disk


@pytest.fixture
def passes(taught: Taught, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of every batch that the teacher was asked."""
    asked: list[int] = []
    see = Live.see

    def counted(self: Live, batch: Batch, *more: Any) -> Seen:
        asked.append(batch.examples)
        return see(self, batch, *more)

    monkeypatch.setattr(Live, "see", counted)
    return asked


def test_a_teacher_is_asked_once_for_all(taught: Taught, passes: list[int], tmp_path: Path) -> None:
    taught.keep(tmp_path, batch=16)
    assert sum(passes) == len(taught.rows)
    assert max(passes) == 16
    passes.clear()
    taught.keep(tmp_path, batch=5)
    assert not passes
    assert len([path for path in tmp_path.iterdir() if not path.name.startswith(".")]) == 1


def test_what_changes_an_answer_has_answers_of_its_own(taught: Taught, passes: list[int], tmp_path: Path) -> None:
    (name,) = taught.collate.noises
    for count, more in enumerate(
        [{}, {"key": "another"}, {"ask": Ask(outcomes=frozenset([name]))}, {"ask": Ask(layers=True)}], start=1
    ):
        taught.keep(tmp_path, **more)
        assert sum(passes) == count * len(taught.rows)
    passes.clear()
    other = Taught(taught.learner, taught.rows, Collate(taught.collate.noises, taught.collate.vocabulary, 12))
    other.keep(tmp_path)
    # Another seed draws other masks; a label is drawn by nobody.
    assert sum(passes) == (len(taught.rows) if name == "mlm" else 0)


@pytest.mark.parametrize("damage", ["scores", "losses", "rows", "kept", "gone"])
def test_a_damaged_file_is_made_anew(taught: Taught, passes: list[int], tmp_path: Path, damage: str) -> None:
    (name,) = taught.collate.noises
    ask, batch = Ask(scores=frozenset([name])), taught.batch([0, 7, 3])
    whole = taught.keep(tmp_path).see(batch, ask)
    (folder,) = [path for path in tmp_path.iterdir() if not path.name.startswith(".")]
    path = {"kept": folder / "kept.json", "gone": folder / name / "hits.npy"}.get(
        damage, folder / name / f"{damage}.npy"
    )
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-7])
    passes.clear()
    same(taught.keep(tmp_path).see(batch, ask), whole)
    assert sum(passes) == len(taught.rows)
    passes.clear()
    taught.keep(tmp_path)
    assert not passes


def test_answers_that_were_broken_off_leave_nothing(
    taught: Taught, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    see, asked = Live.see, 0

    def killed(self: Live, *words: Any) -> Seen:
        nonlocal asked
        asked += 1
        if asked == 3:
            raise KeyboardInterrupt
        return see(self, *words)

    with monkeypatch.context() as patched:
        patched.setattr(Live, "see", killed)
        with pytest.raises(KeyboardInterrupt):
            taught.keep(tmp_path)
    assert [path for path in tmp_path.iterdir() if path.suffix != ".lock"] == []
    taught.keep(tmp_path)


def test_a_full_disk_is_said_before_anything_is_written(
    taught: Taught, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = answers.shutil.disk_usage(tmp_path)._replace(free=100)
    monkeypatch.setattr(answers.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(BadInput, match=r"would take 0\.0 GB .* 0\.0 GB are free"):
        taught.keep(tmp_path)


def test_a_depth_that_is_not_there_is_refused(taught: Taught, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="0, its embedding, to 2, and 3 is none of them"):
        taught.keep(tmp_path, ask=Ask(layers=True), depths=[3])


def test_a_noise_that_was_drawn_anew_is_told_from_the_one_that_was_kept(
    prepared: Callable[..., Prepared], tmp_path: Path
) -> None:
    found = prepared(cut=False)
    objective = masked(None)
    taught = Taught(
        bert(objective, found),
        Rows(found.folders["train"]),
        Collate({"mlm": objective.noise}, found.vocabulary, 0),
    )
    with pytest.raises(RuntimeError, match="places of these rows"):
        taught.keep(tmp_path).see(taught.batch([*range(20)], epoch=1), Ask(scores=frozenset(["mlm"])))


# Whether it can be done, and whether it pays


class Fake:
    """Rows, as far as the question goes."""

    def __init__(self, rows: int, past: np.ndarray | None = None) -> None:
        self.rows, self.past = rows, past

    def __len__(self) -> int:
        return self.rows


@pytest.mark.parametrize(
    ("objectives", "wanted"),
    [
        ([classifier()], True),
        ([NextSentence(weight=1.0), masked(1)], True),
        ([CausalLM(half=False, weight=1.0)], True),
        ([masked(1)], True),
        ([masked(10)], False),
        ([masked(None)], False),
        ([classifier(), masked(None)], False),
        ([PermutationLM(k=6, span=5, weight=1.0)], False),
    ],
)
def test_answers_are_kept_where_an_example_is_always_the_same(objectives: list[Any], wanted: bool) -> None:
    noises = [objective.noise for objective in objectives]
    assert cacheable(Fake(10), noises, Ask()) is wanted
    assert not cacheable(Fake(10, np.zeros(10)), noises, Ask())  # streams: what was read before is remembered
    assert not cacheable(Fake(10), noises, Ask(attention=True))


def test_it_pays_where_an_example_is_seen_again() -> None:
    assert pays(Fake(100), steps=11, batch=10)
    assert not pays(Fake(100), steps=10, batch=10)
