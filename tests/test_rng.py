"""Randomness: the published vectors, the same numbers for one counter as for a million, and no state."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lmab.rng import derive, permutation, philox, uniform

MASK = 0xFFFFFFFF


def by_the_paper(counter: tuple[int, int, int, int], key: int) -> list[int]:
    """Philox 4x32-10 as section 3.3 writes it, in whole numbers of any size."""
    r0, l0, r1, l1 = counter
    k0, k1 = key & MASK, key >> 32
    for _ in range(10):
        first, second = r0 * 0xD2511F53, r1 * 0xCD9E8D57
        r0, l0, r1, l1 = (
            (second >> 32) ^ l0 ^ k0,
            second & MASK,
            (first >> 32) ^ l1 ^ k1,
            first & MASK,
        )
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    return [r0, l0, r1, l1]


# Philox


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_the_known_answers_of_random123(counter, key, words):
    c0, c1, c2, c3 = (int(word, 16) for word in counter.split())
    low, high = (int(word, 16) for word in key.split())
    found = philox((c0, c1, c2, c3), high << 32 | low)
    assert " ".join(f"{int(word):08x}" for word in found) == words


word = st.integers(0, MASK)


@given(counters=hnp.arrays(np.uint32, st.tuples(st.just(4), st.integers(1, 40))), key=st.integers(0, 2**64 - 1))
def test_a_block_holds_what_each_counter_gives_alone(counters, key):
    block = philox(tuple(counters), key)
    assert block.dtype == np.uint32
    alone = [by_the_paper(tuple(map(int, column)), key) for column in counters.T]
    assert block.T.tolist() == alone


@given(counter=st.tuples(word, word, word, word), key=st.integers(0, 2**64 - 1))
def test_plain_numbers_give_four_words(counter, key):
    found = philox(counter, key)
    assert found.shape == (4,)
    assert found.tolist() == by_the_paper(counter, key)


@given(shapes=hnp.mutually_broadcastable_shapes(num_shapes=4, max_dims=3, max_side=4))
def test_counters_broadcast_together(shapes):
    counter = tuple(np.arange(math.prod(shape)).reshape(shape) + 7 * i for i, shape in enumerate(shapes.input_shapes))
    found = philox(counter, 5)
    assert found.shape == (4, *shapes.result_shape)
    full = [np.broadcast_to(c, shapes.result_shape) for c in counter]
    for place in np.ndindex(shapes.result_shape):
        assert found[(slice(None), *place)].tolist() == by_the_paper(tuple(int(c[place]) for c in full), 5)


def test_counters_that_are_signed_give_the_same_as_unsigned_ones():
    signed = philox((np.arange(5), np.int64(3), np.int32(2), 0), 11)
    unsigned = philox((np.arange(5, dtype=np.uint32), np.uint8(3), np.uint64(2), np.uint32(0)), 11)
    assert np.array_equal(signed, unsigned)


def chi_square(counts: np.ndarray) -> float:
    """Pearson's statistic against equal shares, in standard deviations from its mean."""
    expected = counts.sum() / counts.size
    assert expected > 50
    freedom = counts.size - 1
    return (((counts - expected) ** 2).sum() / expected - freedom) / math.sqrt(2 * freedom)


@pytest.mark.parametrize("which", range(4))
@pytest.mark.parametrize("axis", range(4))
def test_every_word_is_uniform_along_every_part_of_the_counter(which, axis):
    counter = [np.zeros(1, dtype=np.int64)] * 4
    counter[axis] = np.arange(100_000)
    found = philox(tuple(counter), 2024)[which]
    shares = uniform(found)
    assert shares.min() >= 0
    assert shares.max() < 1
    assert abs(chi_square(np.bincount((shares * 256).astype(int), minlength=256))) < 4
    # The low bits as well, and each draw with the next.
    assert abs(chi_square(np.bincount(found & 255, minlength=256))) < 4
    pairs = (found[:-1] >> 28) * 16 + (found[1:] >> 28)
    assert abs(chi_square(np.bincount(pairs, minlength=256))) < 4


def test_neighbouring_keys_give_unrelated_words():
    place = np.arange(100_000)
    pairs = (philox((place, 0, 0, 0), 8)[0] >> 28) * 16 + (philox((place, 0, 0, 0), 9)[0] >> 28)
    assert abs(chi_square(np.bincount(pairs, minlength=256))) < 4


def test_uniform_is_open_above():
    assert uniform(np.array([0, MASK], dtype=np.uint32)).tolist() == [0.0, 1 - 2.0**-32]


# Keys


def test_a_key_is_the_hash_of_its_parts():
    digest = hashlib.blake2b(b"(3, 'noise', 'mlm')", digest_size=8).digest()
    assert derive(3, "noise", "mlm") == int.from_bytes(digest, "little")


parts = st.lists(st.one_of(st.integers(), st.text(max_size=8)), max_size=4).map(tuple)


@given(one=parts, other=parts)
def test_keys_are_equal_where_the_parts_are(one, other):
    assert 0 <= derive(*one) < 2**64
    assert (derive(*one) == derive(*other)) == (one == other)


def test_parts_are_told_apart_by_kind_and_by_where_they_end():
    keys = [derive(1), derive("1"), derive(1, 1), derive(11), derive("1", ""), derive("", "1"), derive()]
    assert len(set(keys)) == len(keys)


# Order


@given(n=st.integers(0, 200), seed=st.integers(0, 2**32))
def test_a_permutation_holds_each_number_once_and_repeats(n, seed):
    found = permutation(n, seed, "order", 0)
    assert sorted(found.tolist()) == list(range(n))
    assert np.array_equal(found, permutation(n, seed, "order", 0))


def test_a_permutation_depends_on_every_part():
    orders = [permutation(100, *p).tolist() for p in [(0, "order", 0), (0, "order", 1), (1, "order", 0), (0, "x", 0)]]
    assert len({tuple(order) for order in orders}) == 4


def test_every_place_of_a_permutation_takes_every_number_equally_often():
    orders = np.array([permutation(6, seed) for seed in range(3_000)])
    for place in range(6):
        assert abs(chi_square(np.bincount(orders[:, place], minlength=6))) < 4


def test_numpys_global_generator_is_left_alone():
    before = np.random.get_state()  # noqa: NPY002  (it is what must not be touched)
    permutation(50, 1)
    philox((np.arange(50), 0, 0, 0), 1)
    after = np.random.get_state()  # noqa: NPY002
    assert np.array_equal(before[1], after[1])
    assert before[2] == after[2]
