"""Next sentence and sentence order: one label a row, read off the first token through the pooler."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from lmab.data.collate import Collate
from lmab.objectives.mlm import Masking
from lmab.objectives.nsp import NextSentence
from lmab.objectives.sop import SentenceOrder
from lmab.types import BadInput, Encoded

both = pytest.mark.parametrize("kind", [NextSentence, SentenceOrder])
NAN = math.nan


def built(kind, weight: float = 0.5):
    loss = kind(weight=weight)
    loss.build(6)
    with torch.no_grad():
        loss.classifier.weight.copy_(torch.arange(12).reshape(2, 6) / 10 - 0.5)
        loss.classifier.bias.copy_(torch.tensor([0.1, -0.2]))
    return loss.double()


@both
def test_every_labelled_row_is_asked_at_its_first_token(rows, vocab, kind):
    example = rows(5, 9)._replace(label=np.array([1, NAN, 0, 0, NAN]))
    noised = kind(weight=1.0).noise(example, vocab, 0)
    assert noised.tokens is example.tokens
    assert noised.places.tolist() == [0, 18, 27]
    assert noised.answers.tolist() == [1, 0, 0]
    assert noised.answers.dtype == noised.places.dtype == np.int64
    assert noised.visible is None


@both
def test_the_first_token_is_found_where_a_model_wants_it(rows, vocab, kind):
    example = rows(3, 9)._replace(label=np.array([1.0, 0.0, 1.0]))
    for i, length in enumerate(example.lengths):  # XLNet's rows end with it
        example.tokens[i, [0, length - 1]] = [7, vocab.first]
    places = kind(weight=1.0).noise(example, vocab, 0).places
    assert places.tolist() == [9 * i + length - 1 for i, length in enumerate(example.lengths)]


@both
def test_the_loss_is_the_cross_entropy_of_two_classes(rows, vocab, network, states, kind):
    loss = built(kind)
    assert loss.weight == 0.5
    assert loss.pools
    assert not loss.nats_a_token
    labels = np.array([1, NAN, 0, 0, 1])
    batch = Collate({loss.name: loss.noise}, vocab, 0)(rows(5, 9)._replace(label=labels))
    hidden = states(5, 9)
    outcome = loss(network, Encoded(hidden), batch)
    pooled = torch.tanh(hidden[[0, 2, 3, 4], 0] @ network.pooler.T)
    scores = pooled @ loss.classifier.weight.T + loss.classifier.bias
    answers = torch.tensor([1, 0, 0, 1])
    margin = scores[range(4), 1 - answers] - scores[range(4), answers]
    torch.testing.assert_close(outcome.losses, torch.log1p(margin.exp()))
    assert outcome.said.tolist() == (scores[:, 1] > scores[:, 0]).long().tolist()
    assert torch.equal(outcome.hits, outcome.said == answers)
    assert outcome.places.tolist() == [0, 18, 27, 36]
    # Only the first places of labelled rows learn, and so does the classifier: softmax - onehot on its bias.
    outcome.losses.sum().backward()
    assert (hidden.grad.abs().sum(-1) > 0).nonzero().tolist() == [[0, 0], [2, 0], [3, 0], [4, 0]]
    wanted = torch.softmax(scores, -1).sum(0) - torch.tensor([2.0, 2.0])
    torch.testing.assert_close(loss.classifier.bias.grad, wanted.detach())


@both
def test_rows_without_labels_teach_nothing(rows, vocab, network, states, kind):
    loss, hidden = built(kind), states(4, 9)
    batch = Collate({loss.name: loss.noise}, vocab, 0)(rows(4, 9))
    outcome = loss(network, Encoded(hidden), batch)
    assert len(outcome.losses) == len(outcome.places) == len(outcome.hits) == len(outcome.said) == 0
    assert batch.targets[loss.name].answers.dtype == torch.int64
    outcome.losses.sum().backward()
    assert not hidden.grad.any()


def test_it_stands_beside_a_masked_lm_and_changes_nothing_for_it(rows, vocab, network, states):
    masking = Masking(rate=0.4, mask=0.8, random=0.1, whole_words=False, copies=None)
    example = rows(6, 12)._replace(label=np.array([1.0, 0, 1, 0, 1, 0]))
    loss = built(SentenceOrder)
    alone = Collate({"mlm": masking}, vocab, 3)(example)
    beside = Collate({"sop": loss.noise, "mlm": masking}, vocab, 3)(example)
    assert torch.equal(alone.tokens, beside.tokens)
    assert torch.equal(alone.targets["mlm"].places, beside.targets["mlm"].places)
    # Only the places that anyone asks for are at hand.
    places = beside.asked()
    hidden = states(6, 12)
    some = Encoded(hidden.flatten(0, 1)[places], places)
    torch.testing.assert_close(loss(network, some, beside).losses, loss(network, Encoded(hidden), beside).losses)


@both
def test_labels_that_are_none_of_two_are_refused(rows, vocab, kind):
    noise = kind(weight=1.0).noise
    example = rows(3, 9)._replace(label=np.array([0.0, 1.0, 2.0]))
    with pytest.raises(BadInput, match=rf"objective\.{kind.name} .* 0 to 1 apart, and a row has 2.*classes=3"):
        noise(example, vocab, 0)


@both
def test_rows_without_a_first_token_are_refused(rows, vocab, kind):
    example = rows(3, 9)._replace(label=np.zeros(3))
    example.tokens[1, 0] = 7
    with pytest.raises(BadInput, match=rf"objective\.{kind.name} reads the first token, \[CLS\], and a row has none"):
        kind(weight=1.0).noise(example, vocab, 0)
    kind(weight=1.0).noise(example._replace(label=np.array([0, NAN, 1])), vocab, 0)
