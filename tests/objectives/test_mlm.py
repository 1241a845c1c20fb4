"""Masked LM: what the noise may touch and how often, and a loss that is the cross entropy by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from lmab.data.collate import Collate
from lmab.data.tokenizer import ByteLevelBPE, WordPiece, vocabulary
from lmab.nn.cross_entropy import cross_entropy
from lmab.objectives.mlm import MaskedLM, Masking
from lmab.rng import derive
from lmab.types import BadInput, Encoded, Example, Noised, Vocabulary

V = 60
SPECIAL = np.arange(V) < 5
# Every third ordinary type continues a word.
VOCABULARY = Vocabulary(V, 0, 1, 2, 3, 4, SPECIAL, (np.arange(V) % 3 == 0) & ~SPECIAL)


def masking(**changes: object) -> Masking:
    return Masking(**{"rate": 0.15, "mask": 0.8, "random": 0.1, "whole_words": False, "copies": None} | changes)


def block(tokens: np.ndarray, lengths: np.ndarray, *, first: int = 0, epoch: int = 0) -> Example:
    B = len(tokens)
    return Example(
        tokens=tokens,
        lengths=lengths,
        second=lengths,
        label=np.full(B, np.nan),
        document=np.zeros(B, dtype=np.int64),
        number=np.arange(first, first + B),
        epoch=np.full(B, epoch),
    )


def random_block(B: int, T: int, *, seed: int = 0, padded: bool = True, epoch: int = 0) -> Example:
    """Rows as segments make them: [CLS] first, [SEP] last and now and then inside, [UNK] here and there."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(3, T + 1, B) if padded else np.full(B, T)
    tokens = generator.integers(5, V, (B, T))
    tokens[generator.random((B, T)) < 0.05] = 1
    tokens[generator.random((B, T)) < 0.05] = 3
    tokens[:, 0] = 2
    tokens[np.arange(B), lengths - 1] = 3
    tokens[np.arange(T) >= lengths[:, None]] = 0
    return block(tokens, lengths, epoch=epoch)


blocks = st.builds(
    random_block, st.integers(1, 6), st.integers(3, 20), seed=st.integers(0, 999), epoch=st.integers(0, 30)
)
share = st.floats(0, 1)
noises = st.builds(
    lambda rate, mask, rest, whole_words, copies, ngram: masking(
        rate=rate, mask=mask, random=rest * (1 - mask), whole_words=whole_words, copies=copies, ngram=ngram
    ),
    share,
    share,
    st.floats(0, 0.99),
    st.booleans(),
    st.none() | st.integers(1, 12),
    st.integers(1, 4),
)
keys = st.integers(0, 2**64 - 1)


# What a noise may touch


@given(example=blocks, noise=noises, key=keys)
def test_targets_are_ordinary_tokens_and_answers_the_originals(example, noise, key):
    before = example.tokens.copy()
    noised = noise(example, VOCABULARY, key)
    assert np.array_equal(example.tokens, before)
    assert noised.places.dtype == noised.answers.dtype == noised.tokens.dtype == np.int64
    assert (np.diff(noised.places) > 0).all()
    assert np.array_equal(noised.answers, before.reshape(-1)[noised.places])
    assert not SPECIAL[noised.answers].any()
    row, place = np.divmod(noised.places, before.shape[1])
    assert (place < example.lengths[row]).all()
    # Elsewhere nothing changes, and what stands at a target is the mask, another ordinary token, or the original.
    rest = np.delete(noised.tokens.reshape(-1), noised.places)
    assert np.array_equal(rest, np.delete(before.reshape(-1), noised.places))
    read = noised.tokens.reshape(-1)[noised.places]
    assert ((read == VOCABULARY.mask) | ~SPECIAL[read]).all()


@given(example=blocks, key=keys)
def test_shares_of_nothing_and_of_all_are_exact(example, key):
    ordinary = np.flatnonzero(~SPECIAL[example.tokens])
    assert len(masking(rate=0.0)(example, VOCABULARY, key).places) == 0
    every = masking(rate=1.0, mask=1.0, random=0.0)(example, VOCABULARY, key)
    assert np.array_equal(every.places, ordinary)
    assert (every.tokens.reshape(-1)[ordinary] == VOCABULARY.mask).all()
    kept = masking(rate=1.0, mask=0.0, random=0.0)(example, VOCABULARY, key)
    assert np.array_equal(kept.tokens, example.tokens)
    assert np.array_equal(kept.places, ordinary)
    swapped = masking(rate=1.0, mask=0.0, random=1.0)(example, VOCABULARY, key)
    assert not SPECIAL[swapped.tokens.reshape(-1)[ordinary]].any()


def within(hits: int, n: int, p: float) -> bool:
    """Is a count within five standard deviations of a binomial's mean?"""
    return abs(hits - n * p) < 5 * math.sqrt(n * p * (1 - p)) + 1e-9


@pytest.mark.parametrize("rate", [0.05, 0.15, 0.4])
@pytest.mark.parametrize(("mask", "random"), [(0.8, 0.1), (0.5, 0.5), (0.1, 0.2)])
def test_rates_are_those_asked_for(rate, mask, random):
    example = random_block(800, 128, padded=False)
    noise = masking(rate=rate, mask=mask, random=random)
    noised = noise(example, VOCABULARY, 7)
    eligible, n = int((~SPECIAL[example.tokens]).sum()), len(noised.places)
    assert eligible > 80_000
    assert within(n, eligible, rate)
    read = noised.tokens.reshape(-1)[noised.places]
    # A random token is the original once in as many times as there are ordinary types.
    again = random / (V - 5)
    assert within(int((read == VOCABULARY.mask).sum()), n, mask)
    assert within(int((read == noised.answers).sum()), n, 1 - mask - random + again)
    # Every place of a row is as likely as every other.
    inside = ~SPECIAL[example.tokens]
    chosen = np.zeros(example.tokens.size, dtype=bool)
    chosen[noised.places] = True
    by_place = chosen.reshape(inside.shape).sum(0)
    assert all(within(hits, total, rate) for hits, total in zip(by_place[1:-1], inside.sum(0)[1:-1], strict=True))


def test_random_tokens_are_all_ordinary_types_equally_often():
    example = random_block(400, 128, padded=False)
    noised = masking(rate=1.0, mask=0.0, random=1.0)(example, VOCABULARY, 3)
    counts = np.bincount(noised.tokens.reshape(-1)[noised.places], minlength=V)
    assert not counts[SPECIAL].any()
    assert all(within(count, len(noised.places), 1 / (V - 5)) for count in counts[~SPECIAL])


def test_types_that_the_vocabulary_lacks_are_never_drawn():
    special = SPECIAL | (np.arange(V) >= 50)
    smaller = Vocabulary(V, 0, 1, 2, 3, 4, special, VOCABULARY.continues & ~special)
    example = random_block(200, 64, padded=False)
    example.tokens[example.tokens >= 50] = 7
    noised = masking(rate=1.0, mask=0.0, random=1.0)(example, smaller, 3)
    assert noised.tokens.max() == 49


# A pure function


@given(example=blocks, noise=noises, key=keys, more=st.integers(1, 9))
def test_noise_does_not_depend_on_the_batch_or_its_padding(example, noise, key, more):
    whole = noise(example, VOCABULARY, key)
    T = example.tokens.shape[1]
    for i, length in enumerate(example.lengths):
        row = example.rows(i, i + 1)
        narrow = row._replace(tokens=row.tokens[:, :length])
        wide = row._replace(tokens=np.pad(row.tokens, ((0, 0), (0, more))))
        mine = whole.places[whole.places // T == i] - i * T
        for alone in (row, narrow, wide):
            noised = noise(alone, VOCABULARY, key)
            assert np.array_equal(noised.places, mine)
            assert np.array_equal(noised.tokens[0, :length], whole.tokens[i, :length])


def noised_at(noise: Masking, epoch: int, key: int = 5) -> Noised:
    return noise(random_block(30, 40, epoch=epoch), VOCABULARY, key)


def alike(one: Noised, other: Noised) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("whole_words", [False, True])
@pytest.mark.parametrize("copies", [1, 3, 10])
def test_copies_come_back_in_turn_and_differ_among_themselves(copies, whole_words):
    static, dynamic = (masking(copies=c, whole_words=whole_words) for c in (copies, None))
    first = [noised_at(static, epoch) for epoch in range(copies)]
    for epoch in range(2 * copies + 1):
        assert alike(noised_at(static, epoch), first[epoch % copies])
        assert alike(noised_at(static, epoch), noised_at(dynamic, epoch % copies))
    assert all(not alike(first[a], first[b]) for a in range(copies) for b in range(a))
    every = [noised_at(dynamic, epoch) for epoch in range(12)]
    assert all(not alike(every[a], every[b]) for a in range(12) for b in range(a))


def test_noise_depends_on_the_key_and_on_the_example():
    assert not alike(noised_at(masking(), 0, key=5), noised_at(masking(), 0, key=6))
    example = random_block(1, 400, padded=False)
    other = example._replace(number=example.number + 1)
    assert not alike(masking()(example, VOCABULARY, 5), masking()(other, VOCABULARY, 5))


# Whole words


def words_of(tokens: np.ndarray, vocabulary: Vocabulary) -> list[list[int]]:
    """The words of a row as lists of places: an ordinary token, and the continuing ones right after it."""
    words: list[list[int]] = []
    for place, token in enumerate(tokens):
        if vocabulary.special[token]:
            continue
        if vocabulary.continues[token] and words and words[-1][-1] == place - 1:
            words[-1].append(place)
        else:
            words.append([place])
    return words


def never_split(noise: Masking, example: Example, vocabulary: Vocabulary, key: int) -> tuple[int, int]:
    """All pieces of a word are targets or none; returns how many words are, and how many there were."""
    noised = noise(example, vocabulary, key)
    T = example.tokens.shape[1]
    hit = total = 0
    for i, row in enumerate(example.tokens):
        places = set((noised.places[noised.places // T == i] - i * T).tolist())
        for word in words_of(row, vocabulary):
            assert len(places & set(word)) in (0, len(word))
            hit += word[0] in places
            total += 1
    return hit, total


@given(example=blocks, rate=share, ngram=st.integers(1, 4), key=keys)
def test_a_word_is_never_split(example, rate, ngram, key):
    hit, total = never_split(masking(rate=rate, whole_words=True, ngram=ngram), example, VOCABULARY, key)
    assert hit <= total


@pytest.mark.parametrize("ngram", [1, 3])
@pytest.mark.parametrize("learner", [WordPiece(vocab=400, alphabet=80), ByteLevelBPE(vocab=400)])
def test_a_word_of_real_text_is_never_split_and_words_are_chosen_at_the_rate(sentences, learner, ngram):
    tokenizer = learner.learn(sentences)
    vocab = vocabulary(tokenizer, 400)
    ids = [number for e in tokenizer.encode_batch(sentences, add_special_tokens=False) for number in e.ids]
    width = 30  # rows are cut anywhere, so that some begin within a word
    text = np.array(ids[: len(ids) // width * width]).reshape(-1, width)
    edge = np.ones((len(text), 1), dtype=np.int64)
    example = block(np.hstack([2 * edge, text, 3 * edge]), np.full(len(text), width + 2))
    hit, total = never_split(masking(rate=0.2, whole_words=True, ngram=ngram), example, vocab, 11)
    assert max(len(word) for row in example.tokens for word in words_of(row, vocab)) > 3
    assert total > 3_000
    # Words that are selected together make the variance of a count at most so many times as large.
    assert within(hit // ngram, total // ngram, 0.2)


# What a record says of it


@pytest.mark.parametrize("whole_words", [False, True])
def test_a_noise_describes_what_it_did(whole_words):
    example = random_block(500, 100)
    noise = masking(whole_words=whole_words, rate=0.2)
    said = noise.describe(example, VOCABULARY, 9)
    first, second = (noise(example._replace(epoch=np.full(500, e)), VOCABULARY, 9) for e in (0, 1))
    read, n = first.tokens.reshape(-1)[first.places], len(first.places)
    assert said["masks"] == "dynamic"
    assert said["copies"] is None
    assert said["rate"] == n / (~SPECIAL[example.tokens]).sum()
    assert said["mask"] == (read == 4).sum() / n
    assert said["kept"] == (read == first.answers).sum() / n
    assert said["mask"] + said["random"] + said["kept"] == pytest.approx(1)
    a, b = set(first.places.tolist()), set(second.places.tolist())
    assert said["overlap"] == len(a & b) / len(a | b)
    # Two independent choices at a rate r share r / (2 - r) of what either holds.
    assert said["overlap"] == pytest.approx(0.2 / 1.8, abs=0.02)


@pytest.mark.parametrize(("copies", "overlaps"), [(1, True), (2, False), (10, False)])
def test_static_masks_are_called_so(copies, overlaps):
    said = masking(copies=copies).describe(random_block(100, 50), VOCABULARY, 9)
    assert said["masks"] == "static"
    assert said["copies"] == copies
    assert (said["overlap"] == 1.0) == overlaps


def test_a_noise_that_does_nothing_says_so():
    said = masking(rate=0.0).describe(random_block(10, 20), VOCABULARY, 9)
    assert [said[name] for name in ("rate", "mask", "random", "kept", "overlap")] == [0.0] * 5


# The loss


class Scores(torch.nn.Module):
    """A network whose scores are a linear map of its hidden states."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(V, 6, generator=torch.Generator().manual_seed(1)))

    def token_losses(self, hidden: torch.Tensor, answers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return cross_entropy(hidden @ self.weight.T, answers)


def objective(**changes: object) -> MaskedLM:
    given = {"rate": 0.3, "mask": 0.8, "random": 0.1, "whole_words": False, "copies": None, "weight": 0.5}
    return MaskedLM(**given | changes)


@pytest.mark.parametrize("rate", [0.3, 1e-9])
def test_the_loss_is_the_cross_entropy_at_the_targets(rate):
    loss, network = objective(rate=rate), Scores()
    assert loss.weight == 0.5
    example = random_block(5, 12)
    batch = Collate({"mlm": loss.noise}, VOCABULARY, 3)(example)
    hidden = torch.randn(5, 12, 6, generator=torch.Generator().manual_seed(2), requires_grad=True)
    outcome = loss(network, Encoded(hidden), batch)
    logits = hidden @ network.weight.T
    row, place = np.divmod(loss.noise(example, VOCABULARY, derive(3, "noise", "mlm")).places, 12)
    assert (len(row) > 5) == (rate == 0.3)
    answers = torch.from_numpy(example.tokens)[row, place]
    wanted = -torch.log_softmax(logits[row, place], -1).gather(1, answers[:, None])[:, 0]
    torch.testing.assert_close(outcome.losses, wanted)
    assert torch.equal(outcome.places, torch.from_numpy(row * 12 + place))
    assert torch.equal(outcome.hits, logits[row, place].argmax(-1) == answers)
    outcome.losses.sum().backward()
    assert (hidden.grad.abs().sum(-1).flatten() > 0).nonzero().flatten().tolist() == outcome.places.tolist()


def test_the_mean_loss_is_torchs_with_labels_at_every_place():
    loss, network, example = objective(), Scores(), random_block(5, 12)
    batch = Collate({"mlm": loss.noise}, VOCABULARY, 3)(example)
    hidden = torch.randn(5, 12, 6, generator=torch.Generator().manual_seed(2))
    labels = torch.full((60,), -100)
    labels[batch.targets["mlm"].places] = batch.targets["mlm"].answers
    wanted = F.cross_entropy((hidden @ network.weight.T).flatten(0, 1), labels, ignore_index=-100)
    torch.testing.assert_close(loss(network, Encoded(hidden), batch).losses.mean(), wanted)


# Refusals


@pytest.mark.parametrize("name", ["rate", "mask", "random"])
@pytest.mark.parametrize("value", [-0.1, 1.5, math.nan])
def test_shares_beyond_their_bounds_are_refused(name, value):
    with pytest.raises(BadInput, match=rf"objective\.mlm\.{name}={value} is a share: give a number from 0 to 1"):
        objective(**{"mask": 0.0, "random": 0.0} | {name: value})


def test_shares_that_exceed_one_together_are_refused_with_what_would_do():
    with pytest.raises(BadInput, match=r"mask=0\.8 and objective\.mlm\.random=0\.3 .* lower random to 0\.2"):
        objective(random=0.3)
    assert objective(random=0.2).noise.random == 0.2
    assert objective(mask=0.9, random=0.1).noise.mask == 0.9


@pytest.mark.parametrize("copies", [0, -1])
def test_no_copies_are_refused(copies):
    with pytest.raises(BadInput, match=rf"objective\.mlm\.copies={copies} masks nothing"):
        objective(copies=copies)
