"""Lanes of contiguous text: which row is read where and when, and what was read there before it."""

from __future__ import annotations

import itertools
import math
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmab.data.collate import Collate
from lmab.data.module import Data
from lmab.data.order import HeldOut, Shuffled, Streamed, deal, training
from lmab.data.prepare import Prepared, Split, prepare
from lmab.data.rows import Rows
from lmab.data.segments import DocSentences, FullSentences
from lmab.data.streams import Streams
from lmab.data.tokenizer import WordPiece
from lmab.objectives.mlm import Masking
from lmab.types import BadInput, Vocabulary

if TYPE_CHECKING:
    from collections.abc import Callable

    from lmab.types import Batch, Example

WIDTH = 8
DYNAMIC = Masking(rate=0.3, mask=0.8, random=0.1, whole_words=False, copies=None)
special = np.arange(100_000) < 5
VOCABULARY = Vocabulary(len(special), 0, 1, 2, 3, 4, special, special & False)

# Tokens of some documents, the separator with them.
sizes = st.lists(st.integers(2, 40), min_size=1, max_size=12)


def stored(sizes: list[int], *, cross: bool) -> Rows:
    """Rows of documents of so many tokens, which count upwards but for the separators."""
    fresh = itertools.count(5)
    documents = [(3 * d, [[next(fresh) for _ in range(size - 1)]]) for d, size in enumerate(sizes)]
    columns = [
        {
            "tokens": row.tokens + [0] * (WIDTH - len(row.tokens)),
            "length": len(row.tokens),
            "second": row.second,
            "label": math.nan,
            "document": row.document,
            "past": row.past,
        }
        for row in Streams(length=WIDTH, cross=cross, bidirectional=False).rows(documents, VOCABULARY)
    ]
    types = {"tokens": pa.list_(pa.int32(), WIDTH), "label": pa.float64()}
    schema = pa.schema([(name, types.get(name, pa.int64())) for name in columns[0]])
    table = pa.Table.from_pylist(columns, schema=schema)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.arrow"
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema) as stream:
            for batch in table.to_batches(max_chunksize=3):  # a row and the next one may lie in different chunks
                stream.write_batch(batch)
        return Rows(path.parent)  # the file stays mapped


def everything(rows: Rows) -> Example:
    return rows.take(np.arange(len(rows)), np.zeros(len(rows), dtype=np.int64))


def streamed(rows: Rows, batch: int, *, micro: int | None = None, bidirectional: bool = False) -> Streamed:
    return Streamed(
        rows,
        Collate({}, VOCABULARY, 0),
        batch=batch,
        micro=micro or batch,
        steps=1_000,
        seed=0,
        bidirectional=bidirectional,
    )


# What a row knows of its stream


@given(sizes=sizes, cross=st.booleans())
def test_a_row_knows_what_came_before_and_what_follows(sizes, cross):
    if cross and sum(sizes) < WIDTH:
        return
    rows = stored(sizes, cross=cross)
    whole = everything(rows)
    text = [whole.tokens[i, :length].tolist() for i, length in enumerate(whole.lengths)]
    streams: list[list[int]] = []  # of rows
    for i in range(len(rows)):
        if rows.past[i] == 0:
            streams.append([])
        streams[-1].append(i)
    assert len(streams) == (1 if cross else len(sizes))
    for stream in streams:
        said = list(itertools.chain.from_iterable(text[i] for i in stream))
        at = 0
        for i in stream:
            stop = at + len(text[i])
            assert (rows.past[i], rows.rest[i]) == (at, len(said) - stop)
            assert whole.past[i] == at
            assert whole.ahead[i] == (said[stop] if stop < len(said) else -1)
            at = stop
    assert whole.backward is None


@given(sizes=sizes, cross=st.booleans(), flags=st.lists(st.booleans(), min_size=100, max_size=100))
def test_a_row_read_backwards_is_turned_round_and_so_is_what_it_knows(sizes, cross, flags):
    if cross and sum(sizes) < WIDTH:
        return
    rows = stored(sizes, cross=cross)
    index, epoch = np.arange(len(rows)), np.zeros(len(rows), dtype=np.int64)
    backward = np.array(flags[: len(rows)])
    plain, turned = everything(rows), rows.take(index, epoch, backward)
    assert turned.backward.tolist() == backward.tolist()
    for i, length in enumerate(plain.lengths):
        said = plain.tokens[i, :length]
        wanted = said[::-1] if backward[i] else said
        assert turned.tokens[i, :length].tolist() == wanted.tolist()
        assert not turned.tokens[i, length:].any()
        assert turned.past[i] == (rows.rest[i] if backward[i] else rows.past[i])
        before = plain.tokens[i - 1, plain.lengths[i - 1] - 1] if rows.past[i] else -1
        assert turned.ahead[i] == (before if backward[i] else plain.ahead[i])


def test_rows_of_other_formats_belong_to_no_stream(prepared):
    rows = Rows(prepared().folders["train"])
    assert rows.past is None
    assert rows.rest is None
    example = rows.take(np.arange(3), np.zeros(3, dtype=np.int64))
    assert (example.past, example.ahead, example.backward) == (None, None, None)


# Lanes


@given(sizes=sizes, cross=st.booleans(), batch=st.integers(1, 6))
def test_lanes_read_every_row_at_most_once_an_epoch_and_in_order(sizes, cross, batch):
    if cross and sum(sizes) < WIDTH:
        return
    rows = stored(sizes, cross=cross)
    if len(rows) < batch:
        return
    part = streamed(rows, batch)
    each = len(rows) // batch
    whole = everything(rows)
    for epoch in range(2):
        seen = np.stack([part.examples(epoch * each + place).number for place in range(each)], 1)
        assert seen.reshape(-1).tolist() == list(range(batch * each))  # lane after lane
        for lane in range(batch):
            said: list[int] = []
            for place in range(each):
                example = part.examples(epoch * each + place)
                past = int(example.past[lane])
                row = int(example.number[lane])
                tokens = example.tokens[lane, : example.lengths[lane]].tolist()
                assert tokens == whole.tokens[row, : whole.lengths[row]].tolist()
                assert example.epoch[lane] == epoch
                # Of the row's stream the lane has read this much, and these tokens were the last of it.
                assert past == min(rows.past[row], len(said))
                if past:
                    assert said[-1] == whole.tokens[row - 1, whole.lengths[row - 1] - 1]
                assert example.ahead[lane] == whole.ahead[row]
                said += tokens


@given(sizes=sizes, batch=st.sampled_from([2, 4, 6]))
def test_bidirectional_lanes_read_all_text_both_ways(sizes, batch):
    if sum(sizes) < WIDTH * batch:
        return
    rows = stored(sizes, cross=True)
    part = streamed(rows, batch, bidirectional=True)
    each, half = len(rows) // batch, batch // 2
    text = everything(rows).tokens[: batch * each].reshape(batch, -1)  # [lanes, tokens]
    for epoch in range(3):
        examples = [part.examples(epoch * each + place) for place in range(each)]
        said = np.concatenate([example.tokens for example in examples], 1)
        turned = np.arange(batch) >= half if epoch % 2 == 0 else np.arange(batch) < half
        for lane in range(batch):
            assert said[lane].tolist() == (text[lane, ::-1] if turned[lane] else text[lane]).tolist()
        for place, example in enumerate(examples):
            assert example.backward.tolist() == turned.tolist()
            assert example.past.tolist() == [place * WIDTH] * batch
            if place < each - 1:
                assert example.ahead.tolist() == said[:, (place + 1) * WIDTH].tolist()
        # At a lane's end the text may go on, though the lane does not.
        for lane in range(batch):
            row = int(examples[-1].number[lane])
            following = row - 1 if turned[lane] else row + 1
            there = 0 <= following < len(rows)
            edge = everything(rows).tokens[following, -1 if turned[lane] else 0] if there else -1
            assert examples[-1].ahead[lane] == edge


def test_a_step_is_a_function_of_its_number():
    rows = stored([30, 9, 50, 41], cross=True)
    for bidirectional in (False, True):
        order = [streamed(rows, 4, bidirectional=bidirectional).examples(step) for step in range(20)]
        jumping = streamed(rows, 4, bidirectional=bidirectional)
        for step in (17, 0, 19, 3):
            for one, other in zip(jumping.examples(step), order[step], strict=True):
                assert one is other is None or np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


@pytest.mark.parametrize("micro", [1, 2, 3, 6])
def test_micro_batches_are_groups_of_lanes(micro):
    rows = stored([30, 9, 50, 41, 60], cross=True)
    part = streamed(rows, 6, micro=micro, bidirectional=True)
    for step in range(2 * part.each):
        whole, parts = part.examples(step), part[step]
        assert len(parts) == 6 // micro
        assert torch.cat([p.tokens for p in parts]).tolist() == whole.tokens.tolist()
        assert torch.cat([p.view.past for p in parts]).tolist() == whole.past.tolist()
        assert torch.cat([p.view.backward for p in parts]).tolist() == whole.backward.tolist()
        assert all(p.view.visible is None for p in parts)


def test_lanes_that_cannot_work_are_refused():
    rows = stored([30, 9, 50], cross=True)
    assert len(rows) == 11
    with pytest.raises(BadInput, match=r"trainer\.batch=12 .* 11 rows: give trainer\.batch=11 at most"):
        streamed(rows, 12)
    with pytest.raises(BadInput, match=r"trainer\.batch=12 .* 11 rows: give trainer\.batch=10 at most"):
        streamed(rows, 12, bidirectional=True)
    with pytest.raises(BadInput, match=r"trainer\.batch=5 has no half.*trainer\.batch=6"):
        streamed(rows, 5, bidirectional=True)
    with pytest.raises(BadInput, match=r"trainer\.batch=10 is no multiple of trainer\.micro=4.*nearest is 8"):
        streamed(rows, 10, micro=4)


def test_a_format_is_read_in_the_order_that_it_wants(prepared):
    found = prepared()
    shuffled = Rows(found.folders["train"])
    contiguous = stored([300], cross=True)
    knobs = {"batch": 4, "micro": 2, "steps": 3, "seed": 0}
    collate = Collate({}, found.vocabulary, 0)
    for segments in (FullSentences(length=WIDTH), DocSentences(length=WIDTH)):
        assert isinstance(training(shuffled, collate, segments, **knobs), Shuffled)
    for bidirectional in (False, True):
        segments = Streams(length=WIDTH, cross=True, bidirectional=bidirectional)
        part = training(contiguous, collate, segments, **knobs)
        assert isinstance(part, Streamed)
        assert (part.bidirectional, part.batch, part.micro, len(part)) == (bidirectional, 4, 2, 3)


# On real text


@pytest.fixture(scope="module")
def real(corpus, data_root) -> Callable[..., Prepared]:
    def make(*, cross: bool, bidirectional: bool = False) -> Prepared:
        return prepare(
            data_root,
            corpus=corpus,
            fingerprint=corpus.fingerprint(),
            split=Split(train=None, validation=6, test=6),
            learner=WordPiece(vocab=600, alphabet=100),
            segments=Streams(length=32, cross=cross, bidirectional=bidirectional),
            held_out=Streams(length=32, cross=False, bidirectional=False),
        )

    return make


def data(found: Prepared, workers: int, *, bidirectional: bool) -> Data:
    collate = Collate({"mlm": DYNAMIC}, found.vocabulary, 0)
    rows = {part: Rows(folder) for part, folder in found.folders.items()}
    part = Streamed(rows["train"], collate, batch=96, micro=32, steps=9, seed=0, bidirectional=bidirectional)
    held = [HeldOut(rows[name], collate, batch=4) for name in ("validation", "test")]
    return Data(train=part, validation=held[0], test=held[1], workers=workers)


def same(one: Batch, other: Batch) -> bool:
    pairs = [(one.tokens, other.tokens), (one.document, other.document), (one.view.visible, other.view.visible)]
    pairs += [(one.view.past, other.view.past), (one.view.backward, other.view.backward)]
    pairs += [(one.targets["mlm"].places, other.targets["mlm"].places)]
    return all(a is b if a is None or b is None else torch.equal(a, b) for a, b in pairs)


@pytest.mark.slow
def test_lanes_are_the_same_with_and_without_workers_and_after_a_resume(real):
    found = real(cross=True, bidirectional=True)
    alone, two = data(found, 0, bidirectional=True), data(found, 2, bidirectional=True)
    assert alone.train.each < 9  # the steps reach into the second epoch
    wanted, there = list(alone.train_dataloader()), list(two.train_dataloader())
    assert len(wanted) == len(there) == 9
    for one, other in zip(wanted, there, strict=True):
        assert len(one) == len(other) == 3
        assert all(same(a, b) for a, b in zip(one, other, strict=True))
    alone.load_state_dict({"step": 5})
    rest = list(alone.train_dataloader())
    assert all(same(a, b) for one, other in zip(wanted[5:], rest, strict=True) for a, b in zip(one, other, strict=True))


def test_the_facts_of_streams_leave_the_separators_out(real):
    found = real(cross=True)
    for part in ("train", "validation", "test"):
        rows = Rows(found.folders[part])
        whole = everything(rows)
        real_tokens = whole.tokens[np.arange(32) < whole.lengths[:, None]]
        assert found.facts[part] == {"rows": len(rows), "tokens": int((real_tokens >= 5).sum())}
        assert found.counts[part][:5].tolist() == [0] * 5
    assert 3 < found.unigram_nats("test") < math.log(600)


def test_held_out_text_in_one_stream_is_refused(corpus, tmp_path):
    with pytest.raises(BadInput, match=r"evaluation\.segments\.cross=true.*cross=false"):
        prepare(
            tmp_path,
            corpus=corpus,
            fingerprint=corpus.fingerprint(),
            split=Split(train=None, validation=6, test=6),
            learner=WordPiece(vocab=600, alphabet=100),
            segments=Streams(length=32, cross=True, bidirectional=False),
            held_out=Streams(length=32, cross=True, bidirectional=False),
        )


# Held-out streams

counts = st.lists(st.integers(1, 9), min_size=1, max_size=20)


@given(counts=counts, lanes=st.integers(1, 25))
def test_documents_are_dealt_out_evenly(counts, lanes):
    hands = deal(counts, lanes)
    assert sorted(itertools.chain.from_iterable(hands)) == list(range(len(counts)))
    assert len(hands) == min(lanes, len(counts))
    rows = [sum(counts[d] for d in hand) for hand in hands]
    assert rows == sorted(rows, reverse=True)
    # Every lane got its last document when no lane had fewer rows.
    assert all(total - counts[hand[-1]] <= rows[-1] for total, hand in zip(rows, hands, strict=True))


def test_known_documents_are_dealt_out_in_a_known_way():
    assert deal([1, 5, 2, 4, 2], 2) == [[1, 4], [3, 2, 0]]
    assert deal([3, 3, 3], 5) == [[0], [1], [2]]
    assert deal([2, 1], 1) == [[0, 1]]


def held(rows: Rows, batch: int) -> list[Example]:
    """The items of a held-out part, uncollated."""
    part = HeldOut(rows, lambda example: example, batch=batch)  # type: ignore[arg-type]
    return [part[number] for number in range(len(part))]


@given(sizes=sizes, batch=st.integers(1, 15))
def test_held_out_items_are_the_next_rows_of_the_first_lanes(sizes, batch):
    rows = stored(sizes, cross=False)
    items = held(rows, batch)
    widths = [len(item.number) for item in items]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] == min(batch, len(sizes))
    assert sorted(n for item in items for n in item.number.tolist()) == list(range(len(rows)))
    for lane in range(widths[0]):
        read = [int(item.number[lane]) for item in items if lane < len(item.number)]
        for before, after in itertools.pairwise(read):
            # A document is read to its end, without a gap, before another begins.
            assert after == before + 1 if rows.rest[before] else rows.past[after] == 0
    assert [d for item in items for d in item.document.tolist()] == [
        rows.document[n] // 3 for item in items for n in item.number.tolist()
    ]


def remembering(items: list[Example], memory: int) -> dict[int, tuple[list[int], list[int]]]:
    """What a model with a memory of so many places sees of each row: the tokens before it, and the row."""
    seen: dict[int, tuple[list[int], list[int]]] = {}
    held = np.zeros((len(items[0].tokens), 0), dtype=np.int64)
    for item in items:
        held = held[: len(item.tokens)]
        for i, number in enumerate(item.number.tolist()):
            past = min(int(item.past[i]), held.shape[1])
            seen[number] = (held[i, held.shape[1] - past :].tolist(), item.tokens[i, : item.lengths[i]].tolist())
        held = np.concatenate([held, item.tokens], 1)
        held = held[:, max(0, held.shape[1] - memory) :]
    return seen


@settings(max_examples=50)
@given(sizes=sizes, batch=st.integers(1, 15), memory=st.integers(0, 30))
def test_what_a_memory_shows_does_not_depend_on_the_batch(sizes, batch, memory):
    rows = stored(sizes, cross=False)
    found = remembering(held(rows, batch), memory)
    assert found == remembering(held(rows, 1), memory)
    whole = everything(rows)
    for number, (before, tokens) in found.items():
        own = [n for n in range(number) if rows.document[n] == rows.document[number]]
        text = [token for n in own for token in whole.tokens[n, : whole.lengths[n]].tolist()]
        assert before == text[max(0, len(text) - memory) :]
        assert tokens == whole.tokens[number, : whole.lengths[number]].tolist()
