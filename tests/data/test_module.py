"""Batches are a function of the step: of nothing that was read before, and of no worker."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
import torch
from datasets import Dataset

from lmab.data.collate import Collate
from lmab.data.module import Data, From
from lmab.data.order import HeldOut, Shuffled
from lmab.data.rows import Rows
from lmab.objectives.mlm import Masking

if TYPE_CHECKING:
    from lmab.data.collate import Noise
    from lmab.data.prepare import Prepared
    from lmab.types import Batch

DYNAMIC = Masking(rate=0.3, mask=0.8, random=0.1, whole_words=False, copies=None)
STATIC = Masking(rate=0.3, mask=0.8, random=0.1, whole_words=False, copies=1)


def rows(prepared: Prepared, part: str = "train") -> Rows:
    return Rows(prepared.folders[part])


def shuffled(
    prepared: Prepared,
    *,
    batch: int,
    micro: int | None = None,
    steps: int = 10,
    seed: int = 0,
    noises: dict[str, Noise] | None = None,
) -> Shuffled:
    collate = Collate({"mlm": DYNAMIC} if noises is None else noises, prepared.vocabulary, seed)
    return Shuffled(rows(prepared), collate, batch=batch, micro=micro or batch, steps=steps, seed=seed)


def numbers(part: Shuffled, steps: int) -> np.ndarray:
    """The numbers of the examples in the order in which they are seen."""
    return np.concatenate([part.examples(step).number for step in range(steps)])


def same(one: Batch, other: Batch) -> bool:
    """Are two batches equal, each and every part?"""
    pairs = [(one.tokens, other.tokens), (one.document, other.document)]
    pairs += [(one.segments, other.segments), (one.view.visible, other.view.visible)]
    for name in one.targets:
        pairs += [(one.targets[name].places, other.targets[name].places)]
        pairs += [(one.targets[name].answers, other.targets[name].answers)]
    equal = all(a is b if a is None or b is None else torch.equal(a, b) for a, b in pairs)
    names = list(one.targets) == list(other.targets)
    return equal and names and (one.examples, one.real) == (other.examples, other.real)


# Order


@pytest.mark.parametrize("batch", [7, 16, 64])
def test_an_epoch_visits_every_example_once(prepared, batch):
    part = shuffled(prepared(), batch=batch)
    n = len(part.rows)
    seen = numbers(part, -(-3 * n // batch))
    for epoch in range(3):
        assert sorted(seen[epoch * n : (epoch + 1) * n].tolist()) == list(range(n))
    assert seen[:n].tolist() != seen[n : 2 * n].tolist()
    counted = np.concatenate([part.examples(step).epoch for step in range(-(-3 * n // batch))])
    assert counted.tolist() == [place // n for place in range(len(counted))]


def test_a_batch_larger_than_the_corpus_sees_it_several_times(prepared):
    part = shuffled(prepared(), batch=1_000)
    n = len(part.rows)
    assert n < 1_000
    assert numbers(part, 3).tolist() == numbers(shuffled(prepared(), batch=8), 375).tolist()
    whole = part.examples(1)
    assert set(whole.epoch.tolist()) == set(range(1_000 // n, 2_000 // n + 1))
    (batch,) = part[1]
    assert batch.examples == 1_000


def test_the_order_is_a_function_of_the_seed_and_the_step(prepared):
    straight = shuffled(prepared(), batch=48)
    order = [straight.examples(step).number.tolist() for step in range(40)]
    jumping = shuffled(prepared(), batch=48)
    for step in (39, 0, 17, 3, 38, 0):
        assert jumping.examples(step).number.tolist() == order[step]
    assert same(jumping[17][0], straight[17][0])
    other = shuffled(prepared(), batch=48, seed=1)
    assert other.examples(0).number.tolist() != order[0]


def test_the_order_does_not_depend_on_the_batch_size(prepared):
    small, large = numbers(shuffled(prepared(), batch=8), 60), numbers(shuffled(prepared(), batch=120), 4)
    assert small.tolist() == large.tolist()


@pytest.mark.parametrize("micro", [1, 5, 8, 12])
@pytest.mark.parametrize("cut", [True, False])
def test_micro_batches_together_are_the_batch(prepared, micro, cut):
    (whole,) = shuffled(prepared(cut=cut), batch=12)[3]
    parts = shuffled(prepared(cut=cut), batch=12, micro=micro)[3]
    assert [part.examples for part in parts] == [min(micro, 12 - start) for start in range(0, 12, micro)]
    assert torch.equal(torch.cat([part.tokens for part in parts]), whole.tokens)
    assert torch.equal(torch.cat([part.document for part in parts]), whole.document)
    width = whole.tokens.shape[1]
    places = [part.targets["mlm"].places + i * micro * width for i, part in enumerate(parts)]
    assert torch.equal(torch.cat(places), whole.targets["mlm"].places)
    assert torch.equal(torch.cat([part.targets["mlm"].answers for part in parts]), whole.targets["mlm"].answers)
    assert sum(part.real for part in parts) == whole.real
    if not cut:
        full = torch.ones(1, 1, 1, width, dtype=torch.bool)
        seen = [full.expand(p.examples, 1, 1, width) if p.view.visible is None else p.view.visible for p in parts]
        assert torch.equal(torch.cat(seen), whole.view.visible)


# Masks and epochs


def masks(prepared: Prepared, noise: Noise, epochs: int) -> list[dict[int, tuple[int, ...]]]:
    """For each epoch: an example's number -> its targets' places in the row."""
    part = shuffled(prepared, batch=32, noises={"mlm": noise})
    n = len(part.rows)
    found: list[dict[int, tuple[int, ...]]] = [{} for _ in range(epochs)]
    for step in range(-(-epochs * n // 32)):
        (batch,) = part[step]
        example = part.examples(step)
        row, place = np.divmod(batch.targets["mlm"].places.numpy(), batch.tokens.shape[1])
        for i, (number, epoch) in enumerate(zip(example.number, example.epoch, strict=True)):
            if epoch < epochs:
                found[epoch][int(number)] = tuple(place[row == i].tolist())
    return found


def test_static_masks_repeat_exactly(prepared):
    first, second, third = masks(prepared(), STATIC, 3)
    assert first == second == third
    assert len(set(first.values())) > 0.9 * len(first)  # by example they differ


def test_dynamic_masks_differ_by_epoch_and_by_example(prepared):
    first, second, third = masks(prepared(), DYNAMIC, 3)
    for one, other in ((first, second), (second, third), (first, third)):
        assert sum(one[number] == other[number] for number in one) < 0.1 * len(one)
    assert len(set(first.values())) > 0.9 * len(first)


def test_a_few_copies_come_back_in_turn(prepared):
    copies = Masking(rate=0.3, mask=0.8, random=0.1, whole_words=False, copies=2)
    first, second, third, fourth = masks(prepared(), copies, 4)
    assert [first, second] == [third, fourth]
    assert first != second
    assert first == masks(prepared(), DYNAMIC, 1)[0]


# Workers


def data(prepared: Prepared, workers: int) -> Data:
    # The second noise is applied to what the first one left; both must come out alike everywhere.
    part = shuffled(prepared, batch=24, micro=10, steps=9, noises={"dynamic": DYNAMIC, "static": STATIC})
    held = [
        HeldOut(rows(prepared, name), Collate({"mlm": STATIC}, prepared.vocabulary, 0), batch=16)
        for name in ("validation", "test")
    ]
    return Data(train=part, validation=held[0], test=held[1], workers=workers)


@pytest.mark.slow
def test_batches_are_the_same_with_and_without_workers(prepared):
    alone, two = data(prepared(), 0), data(prepared(), 2)
    loader = two.train_dataloader()
    assert loader.num_workers == 2
    wanted = list(alone.train_dataloader())
    found = list(loader)
    assert len(wanted) == len(found) == 9
    for one, other in zip(wanted, found, strict=True):
        assert len(one) == len(other) == 3
        assert all(same(a, b) for a, b in zip(one, other, strict=True))
    # Workers that stay give the same once more; a run that is taken up sees what is left.
    assert all(same(a, b) for one, other in zip(wanted, loader, strict=True) for a, b in zip(one, other, strict=True))
    alone.load_state_dict({"step": 6})
    rest = list(alone.train_dataloader())
    assert len(rest) == 3
    assert all(same(a, b) for one, other in zip(wanted[6:], rest, strict=True) for a, b in zip(one, other, strict=True))


def test_a_sampler_counts_the_steps_that_were_done():
    assert list(From(4, 7)) == [4, 5, 6]
    assert len(From(4, 7)) == 7


# Held-out parts


@pytest.mark.parametrize("batch", [1, 16, 1_000])
def test_held_out_rows_come_in_order_and_each_once(prepared, batch):
    found = prepared(cut=False)
    held = HeldOut(rows(found, "test"), Collate({}, found.vocabulary, 0), batch=batch)
    batches = [held[number] for number in range(len(held))]
    n = len(held.rows)
    assert [b.examples for b in batches] == [min(batch, n - start) for start in range(0, n, batch)]
    all_ = held.rows.take(np.arange(n), np.zeros(n, dtype=np.int64))
    start = 0
    for b in batches:
        width = b.tokens.shape[1]
        assert b.tokens.tolist() == all_.tokens[start : start + b.examples, :width].tolist()
        start += b.examples
    # Documents are counted in the order of the corpus.
    documents = torch.cat([b.document for b in batches]).tolist()
    known = sorted(set(held.rows.document.tolist()))
    assert documents == [known.index(d) for d in held.rows.document.tolist()]
    assert held.documents == len(known) == 6


def test_held_out_masks_are_those_of_the_first_epoch_for_every_kind(prepared):
    found = prepared()
    static, dynamic = (
        HeldOut(rows(found, "test"), Collate({"mlm": noise}, found.vocabulary, 3), batch=16)
        for noise in (STATIC, DYNAMIC)
    )
    assert all(same(static[number], dynamic[number]) for number in range(len(static)))


# Rows


def test_rows_that_were_pickled_are_a_path_and_read_the_same(prepared):
    here = rows(prepared(cut=False))
    packed = pickle.dumps(here)
    assert len(packed) < 500
    there = pickle.loads(packed)
    index, epoch = np.array([3, 0, len(here) - 1, 3]), np.array([0, 1, 2, 3])
    for one, other in zip(here.take(index, epoch), there.take(index, epoch), strict=True):
        assert np.array_equal(one, other, equal_nan=one is not None and one.dtype.kind == "f")
    assert np.array_equal(here.document, there.document)


def test_columns_that_are_padding_everywhere_are_not_carried_on(prepared):
    part = rows(prepared(cut=False))
    short, long = int(part.length.argmin()), int(part.length.argmax())
    assert part.length[short] < part.length[long]
    alone = part.take(np.array([short]), np.zeros(1, dtype=np.int64))
    assert alone.tokens.shape == (1, part.length[short])
    both = part.take(np.array([short, long]), np.zeros(2, dtype=np.int64))
    assert both.tokens.shape == (2, part.length[long])
    assert both.tokens[0, : part.length[short]].tolist() == alone.tokens[0].tolist()
    assert not both.tokens[0, part.length[short] :].any()


def test_rows_in_many_chunks_read_as_one(prepared, tmp_path):
    part = rows(prepared(cut=False))
    table = Dataset.from_file(str(part.folder / "rows.arrow")).data.table
    with pa.OSFile(str(tmp_path / "rows.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        for batch in table.to_batches(max_chunksize=50):
            stream.write_batch(batch)
    many = Rows(tmp_path)
    assert len(many._tokens) > 3
    index = np.random.default_rng(0).integers(0, len(part), 200)
    for one, other in zip(part.take(index, index), many.take(index, index), strict=True):
        assert np.array_equal(one, other, equal_nan=one is not None and one.dtype.kind == "f")
