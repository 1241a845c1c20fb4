"""The plateau of a masked LM: what is lost by whoever knows how likely types are and what is read, and no context."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmab.objectives.mlm import Masking

SHARES = st.sampled_from([(0.8, 0.1), (1.0, 0.0), (0.0, 1.0), (0.0, 0.0), (0.8, 0.0), (0.8, 0.2), (0.5, 0.3)])


def masking(mask: float, random: float) -> Masking:
    return Masking(rate=0.15, mask=mask, random=random, whole_words=False, copies=None)


def shares(counts: list[int]) -> np.ndarray:
    """[V] with two special types in front."""
    return np.concatenate([[0.0, 0.0], np.array(counts) / sum(counts)])


@given(SHARES, st.lists(st.integers(1, 50), min_size=2, max_size=9))
def test_it_is_the_entropy_of_the_answer_given_what_is_read(how: tuple[float, float], counts: list[int]) -> None:
    p, (mask, random) = shares(counts), how
    V, keep = len(counts), 1 - mask - random
    # [read, answer]: the last row is [MASK].
    joint = np.zeros((V + 1, V))
    joint[V] = mask * p[2:]
    joint[:V] = keep * np.diag(p[2:]) + random / V * p[2:]
    told = joint / np.maximum(joint.sum(1, keepdims=True), 1e-300)
    entropy = -(joint * np.log(np.maximum(told, 1e-300))).sum()
    assert masking(mask, random).blind_nats(p, p) == pytest.approx(entropy, rel=1e-9, abs=1e-12)


def test_on_masks_alone_it_is_the_unigram_entropy_and_what_stays_gives_itself_away() -> None:
    p, q = shares([6, 3, 1]), shares([1, 1, 2])
    unigram = -(q[2:] * np.log(p[2:])).sum()
    assert masking(1.0, 0.0).blind_nats(p, q) == pytest.approx(unigram)
    assert masking(0.0, 1.0).blind_nats(p, q) == pytest.approx(unigram)
    assert masking(0.0, 0.0).blind_nats(p, q) == pytest.approx(0.0)
    assert masking(0.8, 0.0).blind_nats(p, q) == pytest.approx(0.8 * unigram)
    assert masking(0.8, 0.1).blind_nats(p, q) < unigram
