"""BERT: parity with transformers, who sees whom, and first weights that are a function of their names."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import transformers

from lmab.models.bert import BERT
from lmab.nn.position import sinusoids
from lmab.objectives.mlm import MaskedLM
from lmab.objectives.nsp import NextSentence
from lmab.types import BadInput, Batch, Targets, View

SIZES = {"vocab": 50, "dim": 32, "depth": 2, "heads": 4, "ffn": 48, "length": 16, "segments": 2}
PLAIN = {"dropout": 0.0, "attention_dropout": 0.0, "epsilon": 1e-12, "std": 0.02, "embedding_std": 0.02}


@pytest.fixture
def bert(learning):
    def made(*objectives, seed: int | None = 0, **changes: object) -> BERT:
        return BERT(learning(*objectives, seed=seed), **SIZES | PLAIN | {"positions": "normal"} | changes)

    return made


# Parity


def config(attention: str) -> transformers.BertConfig:
    return transformers.BertConfig(
        vocab_size=SIZES["vocab"],
        hidden_size=SIZES["dim"],
        num_hidden_layers=SIZES["depth"],
        num_attention_heads=SIZES["heads"],
        intermediate_size=SIZES["ffn"],
        max_position_embeddings=SIZES["length"],
        type_vocab_size=SIZES["segments"],
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        layer_norm_eps=PLAIN["epsilon"],
        attn_implementation=attention,
    )


@pytest.fixture
def paired(twins):
    """Our model and theirs, with the same weights."""

    def made(ours: BERT, theirs: transformers.PreTrainedModel, dtype: torch.dtype):
        found = twins(ours.to(dtype), theirs.to(dtype).train())
        found.embedding("bert.embeddings")
        for number in range(SIZES["depth"]):
            found.layer(number, f"bert.encoder.layer.{number}")
        there = "cls.predictions"
        found.head(f"{there}.bias", f"{there}.transform.dense", f"{there}.transform.LayerNorm")
        if ours.network.pooler is not None:
            found.dense("network.pooler.dense", "bert.pooler.dense")
            found.pairs("nsp", "cls.seq_relationship")
        found.copy()
        return found

    return made


PRECISIONS = pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])


@PRECISIONS
@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_scores_loss_and_every_gradient_are_those_of_transformers(
    bert, paired, rows, attention, padded, segments, dtype, tolerance
):
    both = paired(bert(), transformers.BertForMaskedLM(config(attention)), dtype)
    both.compare(rows(padded=padded, segments=segments), tolerance)


@PRECISIONS
@pytest.mark.parametrize("padded", [False, True])
def test_masked_lm_and_next_sentence_together_are_those_of_transformers(bert, paired, rows, padded, dtype, tolerance):
    masked = MaskedLM(rate=0.15, mask=0.8, random=0.1, whole_words=False, copies=None, weight=1.0)
    ours = bert(masked, NextSentence(weight=1.0))
    both = paired(ours, transformers.BertForPreTraining(config("sdpa")), dtype)
    both.compare(rows(padded=padded, segments=True, labels="nsp"), tolerance)


@pytest.mark.parametrize(
    "change", [{}, {"depth": 5}, {"vocab": 77}, {"ffn": 96}, {"dim": 64, "heads": 8}, {"length": 9}]
)
def test_the_parameters_are_counted_by_hand(bert, change):
    V, D, H, T, S = ((SIZES | change)[name] for name in ("vocab", "dim", "ffn", "length", "segments"))
    layer = 4 * (D * D + D) + 2 * D * H + H + D + 2 * 2 * D
    head = D * D + D + 2 * D + V  # the embedding serves as its matrix and is counted once
    wanted = (V + T + S) * D + 2 * D + (SIZES | change)["depth"] * layer + head
    assert sum(parameter.numel() for parameter in bert(**change).parameters()) == wanted


# Who sees whom


def hidden(model: BERT, given: Batch) -> torch.Tensor:
    return model.network(given).hidden


def test_changing_a_padding_token_changes_nothing(bert, rows, scatter):
    model = bert().eval()
    scatter(model, 0.3)
    given = rows(padded=True)
    real = given.view.visible[:, 0, 0]
    other = given.tokens.clone()
    other[~real] = torch.arange(5, 5 + int((~real).sum())) % 50
    changed = Batch(**vars(given) | {"tokens": other})
    assert torch.equal(hidden(model, given)[real], hidden(model, changed)[real])
    hidden(model, changed)[real].square().sum().backward()
    unseen = sorted(set(other[~real].tolist()) - set(other[real].tolist()))
    assert len(unseen) > 3
    assert not model.network.embedding.tokens.weight.grad[unseen].any()


def test_changing_a_real_token_changes_every_real_place_of_its_row_and_no_other_row(bert, rows, scatter):
    model = bert().eval()
    scatter(model, 0.3)
    given = rows(padded=True)
    other = given.tokens.clone()
    other[1, 2] = 5 + (other[1, 2] - 4) % 45
    moved = (hidden(model, given) - hidden(model, Batch(**vars(given) | {"tokens": other}))).abs().amax(-1)
    assert (moved[1, :7] > 0).all()
    assert not moved[[0, 2, 3]].any()


def test_wider_padding_changes_nothing_to_rounding(bert, rows, scatter):
    model = bert().double().eval()
    scatter(model, 0.3)
    given = rows(padded=True)
    wide = Batch(
        **vars(given)
        | {
            "tokens": torch.nn.functional.pad(given.tokens, (0, 4), value=9),
            "view": View(torch.nn.functional.pad(given.view.visible, (0, 4), value=False)),
        }
    )
    real = given.view.visible[:, 0, 0]
    torch.testing.assert_close(hidden(model, wide)[:, :12][real], hidden(model, given)[real], rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("by_query", [False, True])
def test_a_query_that_may_see_nothing_gives_finite_values_and_gradients(bert, rows, scatter, dtype, dropout, by_query):
    model = bert(attention_dropout=dropout).to(dtype).train()
    scatter(model, 0.3)
    given = rows(padded=True)
    visible = given.view.visible.clone()
    visible[3] = False
    if by_query:  # one query of a row is blind and the others are not
        visible = visible.expand(4, 1, 12, 12).clone()
        visible[0, 0, 4] = False
    given = Batch(**vars(given) | {"view": View(visible)})
    ((_, _, outcome),) = model.outcomes(given)
    assert outcome.losses.isfinite().all()
    assert hidden(model, given).isfinite().all()
    (outcome.losses.sum() + hidden(model, given).square().mean()).backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


# First weights


def weights(model: BERT) -> dict[str, torch.Tensor]:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("change", [{"depth": 4}, {"ffn": 96}, {"dropout": 0.3}, {"positions": "sinusoidal"}])
def test_what_two_networks_share_begins_alike(bert, change):
    one, other = weights(bert()), weights(bert(**change))
    shared = {name for name in one if name in other and one[name].shape == other[name].shape}
    assert len(shared) > 20
    different = {name for name in shared if not torch.equal(one[name], other[name])}
    assert different == ({"network.embedding.positions.weight"} if "positions" in change else set())


def test_first_weights_depend_on_the_seed_and_on_the_name(bert):
    one, other = weights(bert(seed=0)), weights(bert(seed=1))
    matrices = [name for name in one if one[name].dim() == 2]
    assert all(not torch.equal(one[name], other[name]) for name in matrices)
    a, b = (one[f"network.encoder.layers.{i}.inner.weight"] for i in (0, 1))
    assert not torch.equal(a, b)
    assert all(torch.equal(one[name], weights(bert(seed=0))[name]) for name in one)


def test_building_leaves_the_global_generator_alone(bert):
    before = torch.get_rng_state()
    bert()
    bert(seed=None)
    assert torch.equal(torch.get_rng_state(), before)


def test_first_weights_have_the_spread_that_was_asked_for(bert):
    found = weights(bert(vocab=500, dim=64, ffn=256, length=128, std=0.03, embedding_std=0.07))
    for name, weight in found.items():
        if weight.dim() == 1:
            norm = name.endswith("norm.weight")
            assert torch.equal(weight, torch.full_like(weight, float(norm))), name
            continue
        std = 0.07 if ".embedding." in name else 0.03
        n = weight.numel()
        # Within five standard deviations of the estimate, of the mean and of the spread.
        assert abs(weight.mean()) < 5 * std / math.sqrt(n), name
        assert abs(weight.std() - std) < 5 * std / math.sqrt(2 * n), name


def test_sinusoidal_positions_begin_as_the_formula_scaled_to_the_others(bert):
    found = weights(bert(length=200, dim=64, embedding_std=0.1, positions="sinusoidal"))
    table = found["network.embedding.positions.weight"]
    for p, i in [(0, 0), (3, 0), (3, 1), (150, 20), (199, 31)]:
        angle = p / 10000 ** (2 * i / 64)
        pair = [0.1 * math.sqrt(2) * f(angle) for f in (math.sin, math.cos)]
        assert table[p, 2 * i : 2 * i + 2].tolist() == pytest.approx(pair, abs=1e-5)
    assert table.square().mean().sqrt() == pytest.approx(0.1, rel=1e-5)


@pytest.mark.parametrize("dim", [1, 5, 8])
def test_sinusoids_come_at_every_width(dim):
    table = sinusoids(7, dim)
    assert table.shape == (7, dim)
    assert table[0].tolist() == [float(place % 2) for place in range(dim)]


# Refusals


@pytest.mark.parametrize("name", list(SIZES))
def test_sizes_that_build_nothing_are_refused(bert, name):
    with pytest.raises(BadInput, match=rf"model\.{name}=0 builds nothing: give at least 1"):
        bert(**{name: 0})


@pytest.mark.parametrize(
    ("dim", "heads", "near"), [(30, 4, r"are dim=28 and dim=32"), (3, 4, r"is dim=4"), (10, 3, r"are dim=9 and dim=12")]
)
def test_a_width_that_heads_do_not_divide_is_refused_with_the_nearest(bert, dim, heads, near):
    with pytest.raises(BadInput, match=rf"dim={dim} is not divisible by heads={heads}: the nearest {near}\."):
        bert(dim=dim, heads=heads)


def test_a_refusal_is_one_sentence_that_names_the_key(bert):
    with pytest.raises(BadInput) as caught:
        bert(depth=-1)
    assert str(caught.value) == "model.depth=-1 builds nothing: give at least 1."


def test_the_last_layer_at_some_places_is_the_last_layer_there(bert, rows, scatter):
    model = bert().eval()
    scatter(model, 0.3)
    given = rows(padded=True)
    mlm = given.targets["mlm"]
    other = Targets(torch.tensor([0, 13, 25]), torch.zeros(3, dtype=torch.int64))
    both = replace(given, targets={"mlm": mlm, "other": other})
    places = both.asked()
    assert places.tolist() == sorted(set(mlm.places.tolist()) | {0, 13, 25})
    whole, some = model.network(both), model.network(both, places)
    for targets in (mlm, other):
        torch.testing.assert_close(some.at(targets.places), whole.at(targets.places), rtol=0, atol=1e-6)
    assert given.asked() is mlm.places  # one objective: nothing is looked up twice


def test_a_further_objective_changes_no_dropout_of_the_first(bert, rows):
    model = bert(dropout=0.3, attention_dropout=0.2).train()
    given = rows(padded=True)
    mlm = given.targets["mlm"]
    both = replace(given, targets={"mlm": mlm, "other": Targets(torch.tensor([0, 13]), torch.zeros(2).long())})

    def drawn(asked: Batch, places: torch.Tensor | None) -> torch.Tensor:
        with torch.random.fork_rng():
            torch.default_generator.manual_seed(3)
            return model.network(asked, places).at(mlm.places)

    alone = drawn(given, given.asked())
    assert torch.equal(alone, drawn(given, given.asked()))
    torch.testing.assert_close(alone, drawn(both, both.asked()), rtol=0, atol=1e-6)
    torch.testing.assert_close(alone, drawn(given, None), rtol=0, atol=1e-6)
