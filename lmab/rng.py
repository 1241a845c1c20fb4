"""Randomness as a pure function: a counter-based generator, vectorised, without state.

Philox 4x32 with ten rounds (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", section 3.3)
maps a 128-bit counter and a 64-bit key to 128 random bits. A counter made of (position, example, epoch,
stream) and a key made of the seed give noise that no worker, batch size or resumption can change.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

_MULTIPLY = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox(counter: tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike], key: int) -> NDArray[np.uint32]:
    """Return four random words for every counter.

    counter: four arrays of non-negative integers below 2**32 that broadcast together to a shape S.
    key: below 2**64. Returns [4, *S].
    """
    # The words live in uint64 so that a product of two never overflows.
    c0, c1, c2, c3 = np.broadcast_arrays(*(np.asarray(c, dtype=np.uint64) for c in counter))
    k0, k1 = key & 0xFFFFFFFF, key >> 32 & 0xFFFFFFFF
    for _ in range(10):
        left, right = c0 * _MULTIPLY[0], c2 * _MULTIPLY[1]
        c0, c1, c2, c3 = (
            (right >> _HALF) ^ c1 ^ np.uint64(k0),
            right & _LOW,
            (left >> _HALF) ^ c3 ^ np.uint64(k1),
            left & _LOW,
        )
        k0, k1 = (k0 + _WEYL[0]) & 0xFFFFFFFF, (k1 + _WEYL[1]) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3]).astype(np.uint32)


def uniform(words: NDArray[np.uint32]) -> NDArray[np.float64]:
    """Map random words to [0, 1), 32 bits deep, same shape."""
    return words.astype(np.float64) * 2.0**-32


def derive(*parts: object) -> int:
    """A 64-bit key that depends on every part and on nothing else: derive(seed, "layers.0.weight").

    Parts are told apart by their `repr`, so 1 and "1" differ.
    """
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def permutation(n: int, *parts: object) -> NDArray[np.int64]:
    """A permutation of range(n) that is a function of `parts` alone."""
    return np.random.Generator(np.random.Philox(key=derive(*parts))).permutation(n)
