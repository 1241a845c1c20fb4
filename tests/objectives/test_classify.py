"""Labels of rows: what is read off a row, through which head, and what is said of it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from lmab.data.collate import Collate
from lmab.objectives.classify import Classify
from lmab.types import BadInput, Encoded

LABELS = np.array([2, math.nan, 0, 1, 2, 1])
ASKED = [0, 2, 3, 4, 5]


def built(**changes: Any) -> Classify:
    given = {"classes": 3, "pool": "first", "head": "linear", "layers": [-1], "dropout": 0.0, "causal": False}
    loss = Classify(**given | {"weight": 1.0} | changes)
    loss.build(6)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in loss.parameters():
            parameter.normal_(0, 1, generator=generator)
    return loss.double()


@pytest.fixture
def batch(rows, vocab):
    """A batch of six padded rows of up to nine tokens, five of them labelled."""

    def collated(loss: Classify, labels: np.ndarray = LABELS, *, padded: bool = True):
        return Collate({"classify": loss.noise}, vocab, 0)(rows(6, 9, padded=padded)._replace(label=labels))

    return collated


@pytest.fixture
def lengths(rows) -> list[int]:
    return rows(6, 9).lengths.tolist()


# What is read


def test_one_place_is_read_of_each_labelled_row(batch, lengths, states):
    hidden = states(6, 9)
    for pool, place in (("first", [0] * 6), ("last", [n - 1 for n in lengths])):
        loss = built(pool=pool)
        assert (loss.everywhere, loss.layered, loss.pools) == (False, False, False)
        given = batch(loss)
        assert given.targets["classify"].places.tolist() == [9 * i + place[i] for i in ASKED]
        wanted = hidden[ASKED, [place[i] for i in ASKED]]
        assert torch.equal(loss.features(Encoded(hidden), given), wanted)
        places = given.asked()
        assert torch.equal(loss.features(Encoded(hidden.flatten(0, 1)[places], places), given), wanted)


@pytest.mark.parametrize("padded", [True, False])
def test_a_mean_is_over_the_real_tokens(batch, lengths, states, padded):
    hidden = states(6, 9)
    real = lengths if padded else [9] * 6
    mean = torch.stack([hidden[i, : real[i]].mean(0) for i in ASKED])
    loss = built(pool="mean")
    assert loss.everywhere
    torch.testing.assert_close(loss.features(Encoded(hidden), batch(loss, padded=padded)), mean)
    loss = built(pool="first_and_mean")
    assert loss.everywhere
    assert loss.out.in_features == 12
    both = torch.cat([hidden[ASKED, 0], mean], -1)
    torch.testing.assert_close(loss.features(Encoded(hidden), batch(loss, padded=padded)), both)


@pytest.mark.parametrize("pool", ["first", "last", "mean", "first_and_mean"])
def test_layers_stand_side_by_side(batch, states, pool):
    layers = tuple(states(6, 9, seed=s) for s in range(4))
    alone = [built(pool=pool).features(Encoded(one), batch(built(pool=pool))) for one in layers]
    loss = built(pool=pool, layers=[0, -2, 3])
    assert loss.layered
    assert loss.everywhere
    features = loss.features(Encoded(layers[-1], layers=layers), batch(loss))
    torch.testing.assert_close(features, torch.cat([alone[0], alone[2], alone[3]], -1))
    assert loss.out.in_features == features.shape[1]


def test_what_stands_in_padding_changes_nothing(batch, lengths, states):
    for pool in ("first", "last", "mean", "first_and_mean"):
        loss, hidden = built(pool=pool), states(6, 9)
        given = batch(loss)
        before = loss.features(Encoded(hidden), given)
        with torch.no_grad():
            for i, length in enumerate(lengths):
                hidden[i, length:] = 1e6
        assert torch.equal(loss.features(Encoded(hidden), given), before)


# Heads


def test_heads_by_hand(batch, network, states):
    hidden = states(6, 9)
    x = hidden[ASKED, 0]

    def scores(loss: Classify) -> torch.Tensor:
        outcome = loss(network, Encoded(hidden), batch(loss))
        return outcome.losses

    def wanted(loss: Classify, features: torch.Tensor) -> torch.Tensor:
        chances = torch.softmax(features @ loss.out.weight.T + loss.out.bias, -1)
        return -chances[range(5), [2, 0, 1, 2, 1]].log()

    linear, dense, pooler = (built(head=head) for head in ("linear", "dense", "pooler"))
    torch.testing.assert_close(scores(linear), wanted(linear, x))
    inside = torch.tanh(x @ dense.dense.weight.T + dense.dense.bias)
    torch.testing.assert_close(scores(dense), wanted(dense, inside))
    torch.testing.assert_close(scores(pooler), wanted(pooler, torch.tanh(x @ network.pooler.T)))
    assert pooler.pools
    assert not linear.pools
    assert {name for name, _ in linear.named_parameters()} == {"out.weight", "out.bias"}


def test_a_dense_head_has_the_width_of_the_network(states):
    loss = built(head="dense", pool="first_and_mean", layers=[0, 1, -1], classes=4)
    assert tuple(loss.dense.weight.shape) == (6, 36)
    assert tuple(loss.out.weight.shape) == (4, 6)


def test_dropout_is_of_training_alone(batch, network, states):
    loss, hidden = built(dropout=0.5, head="dense"), states(6, 9)
    given = batch(loss)
    plain = built(head="dense")(network, Encoded(hidden), given).losses
    with torch.random.fork_rng():
        torch.manual_seed(0)
        loss.train()
        assert not torch.equal(loss(network, Encoded(hidden), given).losses, plain)
        loss.eval()
        assert torch.equal(loss(network, Encoded(hidden), given).losses, plain)


# What is said


def test_classes(batch, network, states):
    loss, hidden = built(), states(6, 9)
    outcome = loss(network, Encoded(hidden), batch(loss))
    scores = hidden[ASKED, 0] @ loss.out.weight.T + loss.out.bias
    assert torch.equal(outcome.said, scores.argmax(-1))
    assert outcome.hits.tolist() == [s == a for s, a in zip(outcome.said.tolist(), [2, 0, 1, 2, 1], strict=True)]
    outcome.losses.sum().backward()
    wanted = torch.softmax(scores, -1) - torch.eye(3, dtype=torch.float64)[[2, 0, 1, 2, 1]]
    torch.testing.assert_close(loss.out.bias.grad, wanted.sum(0).detach())
    torch.testing.assert_close(hidden.grad[ASKED, 0], (wanted @ loss.out.weight).detach())
    assert sorted(loss.metrics()) == ["f1", "mcc"]


def test_scores(batch, network, states):
    loss, hidden = built(classes=1), states(6, 9)
    labels = np.array([0.25, math.nan, -1.5, 3.0, 4.75, 0.0])
    given = batch(loss, labels)
    assert given.targets["classify"].answers.dtype == torch.float32
    outcome = loss(network, Encoded(hidden), given)
    scores = (hidden[ASKED, 0] @ loss.out.weight.T + loss.out.bias)[:, 0].float()
    answers = torch.tensor([0.25, -1.5, 3.0, 4.75, 0.0])
    torch.testing.assert_close(outcome.said, scores)
    torch.testing.assert_close(outcome.losses, (scores - answers) ** 2)
    assert outcome.hits.tolist() == ((scores - answers).abs() < 0.5).tolist()
    outcome.losses.sum().backward()
    torch.testing.assert_close(loss.out.bias.grad, 2 * (scores - answers).sum().detach().double()[None])
    assert sorted(loss.metrics()) == ["pearson", "spearman"]


@pytest.mark.parametrize("classes", [1, 2])
@pytest.mark.parametrize("pool", ["first", "mean"])
def test_rows_without_labels_teach_nothing(batch, network, states, classes, pool):
    loss, hidden = built(classes=classes, pool=pool), states(6, 9)
    outcome = loss(network, Encoded(hidden), batch(loss, np.full(6, math.nan)))
    assert len(outcome.losses) == len(outcome.said) == 0
    outcome.losses.sum().backward()
    assert not hidden.grad.any()


def test_metrics_are_of_the_whole_set(batch, network, states):
    """Two batches whose F1 is 2/3 and 0 have 1/2 together, not 1/3."""
    metric = built(classes=2).metrics()["f1"]
    metric.update(torch.tensor([1, 1]), torch.tensor([1, 0]))
    metric.update(torch.tensor([0]), torch.tensor([1]))
    assert float(metric.compute()) == 0.5


# From left to right


def test_an_encoder_may_read_from_left_to_right(batch, lengths):
    assert batch(built()).view.visible.shape == (6, 1, 1, 9)
    view = batch(built(causal=True, pool="last")).view.visible
    for i, length in enumerate(lengths):
        for query in range(9):
            assert view[i, 0, query].nonzero().flatten().tolist() == list(range(min(query + 1, length)))


@pytest.mark.parametrize("pool", ["first", "first_and_mean"])
def test_a_first_token_that_sees_only_itself_is_refused(batch, rows, vocab, pool):
    loss = built(causal=True, pool=pool)
    with pytest.raises(BadInput, match=r"objective\.classify reads the first token.*causal=true: give pool=last"):
        batch(loss)
    example = rows(3, 9, padded=False)._replace(label=np.zeros(3))
    example.tokens[:, [0, 8]] = [7, vocab.first]
    assert loss.noise(example, vocab, 0).places.tolist() == [8, 17, 26]


# Refusals


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"classes": 0}, r"objective\.classify\.classes=0 tells nothing apart: give at least 2, or 1"),
        ({"layers": []}, r"objective\.classify\.layers=\[\] reads nothing: give \[-1\]"),
        ({"dropout": 1.0}, r"objective\.classify\.dropout=1\.0 cannot work"),
        ({"weight": math.inf}, r"objective\.classify\.weight=inf cannot work"),
        ({"head": "pooler", "pool": "mean"}, r"head=pooler reads one place .* not pool=mean .* give head=dense"),
        ({"head": "pooler", "layers": [0, 1]}, r"head=pooler reads .* layers=\[0, 1\]: give head=dense"),
    ],
)
def test_what_cannot_work_is_refused(changes, says):
    with pytest.raises(BadInput, match=says):
        built(**changes)


@pytest.mark.parametrize("layer", [4, -5])
def test_a_depth_that_the_model_lacks_is_refused(batch, states, layer):
    loss = built(layers=[layer])
    with pytest.raises(BadInput, match=rf"layers=\[{layer}\] names a depth that the model lacks.* to 3"):
        loss.features(Encoded(states(6, 9), layers=(states(6, 9),) * 4), batch(loss))


@pytest.mark.parametrize(("strange", "classes"), [(3.0, 4), (7.0, 8), (0.5, 1), (-1.0, 1)])
def test_labels_beyond_the_classes_are_refused_with_what_would_take_them(batch, strange, classes):
    labels = np.where(np.isnan(LABELS), strange, LABELS)
    with pytest.raises(BadInput, match=rf"0 to 2 apart, and a row has {strange:g}: .*classes={classes} would"):
        batch(built(), labels)
