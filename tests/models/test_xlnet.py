"""XLNet: one stream and two against transformers, with memory, segments, orders, padding and both directions."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from lmab.models.xlnet import XLNet
from lmab.objectives.mlm import MaskedLM
from lmab.objectives.plm import PermutationLM
from lmab.types import BadInput, Batch, Encoded, Targets, View

if TYPE_CHECKING:
    from torch import Tensor

    from lmab.nn.network import Network

SIZES = {"vocab": 50, "dim": 24, "depth": 2, "heads": 3, "ffn": 40, "length": 16, "memory": 5}
PLAIN = {
    "clamp": None,
    "dropout": 0.0,
    "inner_dropout": 0.0,
    "attention_dropout": 0.0,
    "epsilon": 1e-12,
    "std": 0.02,
    "embedding_std": 0.02,
}
B, T, P = 4, 7, 3
CPU = torch.device("cpu")
MASKED = {"rate": 0.15, "mask": 0.8, "random": 0.1, "whole_words": False, "copies": None, "weight": 1.0}
PERMUTED = PermutationLM(k=2, span=2, weight=1.0)


@pytest.fixture(scope="module")
def xlnet(learning):
    def made(*objectives, seed: int | None = 0, **changes: Any) -> XLNet:
        return XLNet(learning(*(objectives or (PERMUTED,)), seed=seed), **SIZES | PLAIN | changes)

    return made


@pytest.fixture(scope="module")
def network(xlnet, scatter):
    """In double precision, with weights that are all different and none special."""

    @cache
    def made(**changes: Any) -> Network:
        model = xlnet(memory=0, **changes).double().eval()
        scatter(model)
        return model.network

    return made


# Parity


@pytest.fixture
def paired(xlnet, twins):
    """Our model and theirs, with the same weights."""

    def made(*, two: bool, memory: int, clamp: int | None, backward: bool):
        config = transformers.XLNetConfig(
            vocab_size=SIZES["vocab"],
            d_model=SIZES["dim"],
            n_layer=SIZES["depth"],
            n_head=SIZES["heads"],
            d_inner=SIZES["ffn"],
            dropout=0.0,
            mem_len=memory,
            clamp_len=-1 if clamp is None else clamp,
            bi_data=backward,
            use_mems_train=memory > 0,
        )
        objective = PERMUTED if two else MaskedLM(**MASKED)
        found = twins(xlnet(objective, memory=memory, clamp=clamp), transformers.XLNetLMHeadModel(config).train())
        found.link("network.embedding.tokens.weight", "transformer.word_embedding.weight")
        found.link("network.query", "transformer.mask_emb", take=lambda t: t[0][0])
        found.link("network.head.bias", "lm_loss.bias")
        for number in range(SIZES["depth"]):
            ours, theirs = f"network.encoder.layers.{number}", f"transformer.layer.{number}"
            here, there = f"{ours}.attention", f"{theirs}.rel_attn"
            found.link(f"{here}.qkv.weight", *(f"{there}.{x}" for x in "qkv"), take=_stacked)
            found.link(f"{here}.position.project.weight", f"{there}.r", take=_stacked)
            found.link(f"{here}.out.weight", f"{there}.o", take=lambda t: t[0].flatten(1))
            for vector, name in {"u": "r_w_bias", "v": "r_r_bias", "s": "r_s_bias", "kinds": "seg_embed"}.items():
                found.link(f"{here}.position.{vector}", f"{there}.{name}")
            found.dense(f"{ours}.attention_norm", f"{there}.layer_norm")
            found.dense(f"{ours}.inner", f"{theirs}.ff.layer_1")
            found.dense(f"{ours}.outer", f"{theirs}.ff.layer_2")
            found.dense(f"{ours}.ffn_norm", f"{theirs}.ff.layer_norm")
        found.copy()
        return found

    return made


def _stacked(matrices: list[Tensor]) -> Tensor:
    """Of theirs [D, H, W] each, which hold a vector of each head in a column."""
    return torch.cat([matrix.flatten(1).T for matrix in matrices])


def both(*, two: bool, segments: bool, ordered: bool, backward: bool, padded: bool, seed: int) -> tuple[Batch, dict]:
    """Rows as ours and theirs are told of them.

    two: ask the query stream. ordered: who may see whom is drawn; everybody sees the first token, since a query that
    sees nothing sees everything there.
    """
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([7, 5, 6, 4]) if padded else torch.full((B,), T)
    real = torch.arange(T) < lengths[:, None]
    tokens = torch.where(real, torch.randint(6, 50, (B, T), generator=generator), 5)
    kinds = (torch.arange(T) >= torch.tensor([[2], [4], [3], [1]])).long()
    hidden = torch.rand(B, T, T, generator=generator) < 0.5
    hidden[:, :, 0] = False
    answers = torch.randint(6, 50, (B, T), generator=generator)
    queries = torch.tensor([[1, 4, 6], [2, 3, -1], [5, -1, -1], [1, 2, 3]])
    used = queries >= 0
    place = queries.clamp(min=0)
    told: dict[str, Any] = {"input_ids": tokens}
    if padded:
        told["attention_mask"] = real.float()
    if segments:
        told["token_type_ids"] = kinds
    if ordered:
        for row, slot in used.nonzero().tolist():
            hidden[row, queries[row, slot], queries[row, slot]] = True
        told["perm_mask"] = hidden.float()
    sees = real[:, None] & (~hidden if ordered else torch.ones(B, T, T, dtype=torch.bool))
    visible = sees | (torch.eye(T, dtype=torch.bool) & real[:, None])
    view = View(
        visible=visible[:, None] if ordered else real[:, None, None] if padded else None,
        past=torch.full((B,), 100),
        backward=torch.tensor([False, False, True, True]) if backward else None,
    )
    if two:
        told["target_mapping"] = torch.nn.functional.one_hot(place, T).float() * used[..., None]
        told["labels"] = torch.where(used, answers[:, :P], -100)
        seen = sees.gather(1, place[..., None].expand(B, P, T)) & used[..., None]
        view = replace(view, queries=queries, query_visible=seen[:, None])
        flat = (place + torch.arange(B)[:, None] * T)[used]
        targets = {"plm": Targets(flat, answers[:, :P][used], second=True)}
    else:
        asked = real & (torch.rand(B, T, generator=generator) < 0.5)
        told["labels"] = torch.where(asked, answers, -100)
        targets = {"mlm": Targets(asked.flatten().nonzero().flatten(), answers[asked])}
    batch = Batch(tokens, kinds if segments else None, view, targets, torch.arange(B), B, int(real.sum()))
    return batch, told


FLAGS = [*itertools.product([False, True], repeat=5)]


@pytest.mark.parametrize(("two", "segments", "ordered", "backward", "padded"), FLAGS)
@pytest.mark.parametrize(("memory", "clamp"), [(0, None), (P, None), (5, None), (9, 3)])
def test_scores_losses_memories_and_gradients_are_those_of_transformers(
    paired, memory, clamp, two, segments, ordered, backward, padded
):
    """Two rows of each stream, one after the other; the second finds what the first left behind, and may be padded."""
    pair = paired(two=two, memory=memory, clamp=clamp, backward=backward)
    learner, total, wanted, mems = pair.ours, torch.zeros(()), torch.zeros(()), None
    for number in range(2):
        ends = padded and number == 1
        batch, told = both(two=two, segments=segments, ordered=ordered, backward=backward, padded=ends, seed=number)
        said = pair.theirs(**told, mems=mems)
        encoded = learner.network(batch, memory=learner.memories.before("train", 0, B, CPU))
        (targets,) = batch.targets.values()
        scores = learner.network.token_logits(encoded.of(targets))
        torch.testing.assert_close(scores, said.logits[told["labels"] != -100], rtol=0, atol=1e-5)
        ((_, _, outcome),) = learner.outcomes(batch)
        torch.testing.assert_close(outcome.losses.mean(), said.loss, rtol=0, atol=1e-5)
        total, wanted, mems = total + outcome.losses.mean(), wanted + said.loss, said.mems
        left = learner.memories.before("train", 0, B, CPU)
        assert [layer.shape[1] for layer in left] == [min(memory, T * (number + 1))] * (SIZES["depth"] if memory else 0)
        # What is left of padding is another thing there; no row that follows may see it.
        kept = told.get("attention_mask", torch.ones(B, T)).bool()
        for ours, theirs in zip(left, mems or (), strict=True):
            last = min(T, ours.shape[1])
            seen = torch.cat([torch.ones(B, ours.shape[1] - last, dtype=torch.bool), kept[:, T - last :]], 1)
            torch.testing.assert_close(ours[seen], theirs.transpose(0, 1)[seen], rtol=0, atol=1e-5)
    total.backward()
    wanted.backward()
    pair.compare_gradients(1e-5)


# What the streams know


def rows_of(tokens: Tensor, **view: Any) -> Batch:
    return Batch(tokens, None, View(**view), {}, torch.arange(len(tokens)), len(tokens), tokens.numel())


@settings(max_examples=30)
@given(order=st.permutations(range(T)), place=st.integers(0, T - 1), data=st.data())
def test_a_query_never_knows_its_own_token_whatever_the_order(network, order, place, data):
    """At three layers: the target's token moves its content stream, later targets and nobody else's query."""
    model, rank = network(depth=3), torch.tensor(order)
    targets = sorted(data.draw(st.sets(st.integers(0, T - 1), min_size=1)) | {place})
    queries = torch.tensor([targets])
    tokens = torch.arange(10, 10 + T)[None]
    other = tokens.clone()
    other[0, place] = 40
    view = {
        "visible": (rank[None] <= rank[:, None])[None, None],
        "queries": queries,
        "query_visible": (rank[None] < rank[:, None])[targets][None, None],
    }
    one, two = (model(rows_of(given_, **view)) for given_ in (tokens, other))
    moved = (one.second != two.second).any(-1)
    assert moved.tolist() == [order[target] > order[place] for target in targets]
    assert (one.hidden != two.hidden).any(-1)[0].tolist() == [rank_ >= order[place] for rank_ in order]


@given(lengths=st.integers(1, T), seed=st.integers(0, 99))
def test_a_row_read_backwards_is_the_row_read_forwards_turned_round(network, lengths, seed):
    tokens = 6 + torch.randperm(44, generator=torch.Generator().manual_seed(seed))[None, :lengths]
    forwards = network()(rows_of(tokens, backward=torch.tensor([False]))).hidden
    backwards = network()(rows_of(tokens.flip(1), backward=torch.tensor([True]))).hidden
    torch.testing.assert_close(backwards.flip(1), forwards, rtol=0, atol=1e-12)
    if lengths > 1:  # and it does make a difference which way is said
        wrong = network()(rows_of(tokens.flip(1), backward=torch.tensor([False]))).hidden
        assert (wrong.flip(1) - forwards).abs().max() > 1e-6


def test_places_of_the_second_stream_that_are_not_used_change_nothing(network):
    model = network()
    tokens = torch.randint(6, 50, (2, T), generator=torch.Generator().manual_seed(1))
    sees = torch.rand(2, 1, P, T, generator=torch.Generator().manual_seed(2)) < 0.5
    some = torch.tensor([[1, 4, -1], [-1, 2, -1]])
    first = model(rows_of(tokens, queries=some, query_visible=sees))
    filled = model(rows_of(tokens, queries=torch.where(some < 0, 5, some), query_visible=sees))
    assert torch.equal(first.hidden, filled.hidden)
    assert torch.equal(first.second, filled.second[[0, 1, 4]])
    alone = [
        model(rows_of(tokens[r : r + 1], queries=torch.tensor([[q]]), query_visible=sees[r, :, s][None, None]))
        for r, s, q in ((0, 0, 1), (0, 1, 4), (1, 1, 2))
    ]
    torch.testing.assert_close(torch.cat([row.second for row in alone]), first.second, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_a_query_that_sees_nothing_gives_finite_values_and_gradients(xlnet, scatter, dtype, dropout):
    model = xlnet(dropout=dropout, attention_dropout=dropout, inner_dropout=dropout).to(dtype).train()
    scatter(model)
    batch, _ = both(two=True, segments=True, ordered=True, backward=True, padded=True, seed=0)
    visible, query_visible = batch.view.visible.clone(), batch.view.query_visible.clone()
    visible[1, 0, 3] = False
    visible[2] = False
    query_visible[0, 0, 1] = False
    query_visible[2] = False
    batch = replace(batch, view=replace(batch.view, visible=visible, query_visible=query_visible))
    with torch.random.fork_rng():
        encoded = model.network(batch)
        ((_, _, outcome),) = model.outcomes(batch)
        assert encoded.hidden.isfinite().all()
        assert encoded.second.isfinite().all()
        assert outcome.losses.isfinite().all()
        (outcome.losses.sum() + encoded.hidden.square().mean()).backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    assert all(parameter.grad.any() for parameter in model.parameters())


# Building


def test_parameters_are_counted_by_hand(xlnet):
    V, D, H = (SIZES[name] for name in ("vocab", "dim", "ffn"))
    layer = 5 * D * D + (3 + 2) * D + 2 * D * H + H + D + 2 * 2 * D  # q k v o r, biases of attention, two norms
    wanted = V * D + D + SIZES["depth"] * layer + V
    for changes in ({}, {"memory": 0}, {"length": 99}, {"clamp": 3}):
        assert sum(parameter.numel() for parameter in xlnet(**changes).parameters()) == wanted


@pytest.mark.parametrize("name", [name for name in SIZES if name != "memory"])
def test_sizes_that_build_nothing_are_refused(xlnet, name):
    with pytest.raises(BadInput, match=rf"^model\.{name}=0 builds nothing: give at least 1\.$"):
        xlnet(**{name: 0})


def test_a_negative_memory_is_refused(xlnet):
    with pytest.raises(
        BadInput, match=r"^model\.memory=-1 cannot work: give a number of places, 0 for no recurrence\.$"
    ):
        xlnet(memory=-1)


@pytest.mark.parametrize("places", [[0], [0, 7, 14, 21], [3, 8, 9]])
def test_a_further_objective_in_the_content_changes_no_dropout_of_the_query_stream(xlnet, places):
    model = xlnet(dropout=0.3, attention_dropout=0.2, inner_dropout=0.2).train()
    batch, _ = both(two=True, segments=True, ordered=True, backward=False, padded=True, seed=0)
    alone = batch.targets["plm"]
    other = Targets(torch.tensor(places), torch.zeros(len(places), dtype=torch.int64))
    beside = replace(batch, targets={"plm": alone, "nsp": other})

    def drawn(asked: Batch, wanted: Tensor | None) -> Encoded:
        with torch.random.fork_rng():
            torch.default_generator.manual_seed(3)
            return model.network(asked, wanted)

    assert not len(batch.asked())
    one, two = drawn(batch, batch.asked()), drawn(beside, beside.asked())
    assert torch.equal(one.of(alone), drawn(batch, batch.asked()).of(alone))
    assert torch.equal(one.of(alone), two.of(alone))
    # Nor does it matter for that objective which places are asked.
    everywhere = drawn(beside, None)
    assert torch.equal(everywhere.of(alone), two.of(alone))
    torch.testing.assert_close(everywhere.at(other.places), two.at(other.places), rtol=0, atol=1e-6)


def test_dropout_is_on_the_last_states_of_both_streams_in_training_alone(xlnet, scatter):
    model = xlnet(dropout=0.5)
    scatter(model)
    batch, _ = both(two=True, segments=True, ordered=True, backward=False, padded=False, seed=0)
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(3)
        loud, quiet = (model.train(mode).network(batch) for mode in (True, False))
    for one, other in ((loud.hidden, quiet.hidden), (loud.second, quiet.second)):
        assert (one == 0).double().mean().item() == pytest.approx(0.5, abs=0.1)
        assert (other != 0).all()
