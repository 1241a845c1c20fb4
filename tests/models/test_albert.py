"""ALBERT: parity with transformers for every way in which both share, and what is shared is one and the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from lmab.models.albert import ALBERT
from lmab.objectives.mlm import MaskedLM
from lmab.objectives.sop import SentenceOrder
from lmab.types import BadInput

if TYPE_CHECKING:
    from torch import nn

SIZES = {"vocab": 50, "embedding": 12, "dim": 32, "depth": 3, "heads": 4, "ffn": 48, "length": 16, "segments": 2}
PLAIN = {
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "epsilon": 1e-12,
    "activation": "gelu_tanh",
    "std": 0.02,
    "embedding_std": 0.02,
    "positions": "normal",
}
LAYER = {
    "attention.qkv": "attention.query attention.key attention.value",
    "attention.out": "attention.dense",
    "attention_norm": "attention.LayerNorm",
    "inner": "ffn",
    "outer": "ffn_output",
    "ffn_norm": "full_layer_layer_norm",
}
PARTS = {"attention": ("attention", "attention_norm"), "ffn": ("inner", "outer", "ffn_norm")}
SHARED = {"none": (), "attention": ("attention",), "ffn": ("ffn",), "all": ("attention", "ffn")}
MASKED = {"rate": 0.15, "mask": 0.8, "random": 0.1, "whole_words": False, "copies": None, "weight": 1.0}


@pytest.fixture(scope="session")
def albert(learning):
    def made(*objectives, seed: int | None = 0, **changes: Any) -> ALBERT:
        knobs = SIZES | PLAIN | {"share": "all", "groups": 1, "inner": 1}
        return ALBERT(learning(*objectives, seed=seed), **knobs | changes)

    return made


# Parity


@pytest.fixture
def paired(twins):
    """Our model and theirs, with the same weights. kind: whose class it is there."""

    def made(ours: ALBERT, kind: str, depth: int, groups: int, inner: int, dtype: torch.dtype):
        config = transformers.AlbertConfig(
            vocab_size=SIZES["vocab"],
            embedding_size=SIZES["embedding"],
            hidden_size=SIZES["dim"],
            num_hidden_layers=depth,
            num_hidden_groups=groups,
            inner_group_num=inner,
            num_attention_heads=SIZES["heads"],
            intermediate_size=SIZES["ffn"],
            max_position_embeddings=SIZES["length"],
            type_vocab_size=SIZES["segments"],
            hidden_act="gelu_new",
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            classifier_dropout_prob=0.0,
            layer_norm_eps=PLAIN["epsilon"],
        )
        found = twins(ours.to(dtype), getattr(transformers, kind)(config).to(dtype).train())
        found.embedding("albert.embeddings")
        found.dense("network.embedding.project", "albert.encoder.embedding_hidden_mapping_in")
        for number in range(groups * inner):
            there = f"albert_layer_groups.{number // inner}.albert_layers.{number % inner}"
            found.layer(number, f"albert.encoder.{there}", LAYER)
        found.head("predictions.bias", "predictions.dense", "predictions.LayerNorm")
        if ours.network.pooler is not None:
            found.dense("network.pooler.dense", "albert.pooler")
            found.pairs("sop", "sop_classifier.classifier")
        found.copy()
        return found

    return made


# Depth, groups, layers in a group.
MAPS = [(3, 1, 1), (3, 1, 2), (3, 2, 1), (3, 2, 2), (3, 3, 1), (3, 3, 2), (5, 3, 1), (5, 2, 2), (1, 1, 1), (6, 4, 1)]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize(("depth", "groups", "inner"), MAPS)
def test_the_loss_and_every_gradient_are_those_of_transformers(
    albert, paired, rows, depth, groups, inner, dtype, tolerance
):
    ours = albert(MaskedLM(**MASKED), SentenceOrder(weight=1.0), depth=depth, groups=groups, inner=inner)
    both = paired(ours, "AlbertForPreTraining", depth, groups, inner, dtype)
    both.compare(rows(padded=True, segments=True, labels="sop"), tolerance)


@pytest.mark.parametrize("inner", [1, 2])
@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_layers_that_share_nothing_are_groups_of_one(albert, paired, rows, padded, segments, inner):
    both = paired(albert(share="none", inner=inner), "AlbertForMaskedLM", 3, 3, inner, torch.float32)
    both.compare(rows(padded=padded, segments=segments), 1e-5)


def test_hidden_states_and_the_pooled_one_are_those_of_the_bare_model(albert, paired, rows):
    ours = albert(MaskedLM(**MASKED), SentenceOrder(weight=1.0), groups=2)
    both = paired(ours, "AlbertForPreTraining", SIZES["depth"], 2, 1, torch.float32)
    given_ = rows(padded=True, segments=True)
    real = given_.view.visible[:, 0, 0]
    base = both.theirs.albert
    assert isinstance(base, transformers.AlbertModel)
    said = base(given_.tokens, attention_mask=real.long(), token_type_ids=given_.segments, output_hidden_states=True)
    found = ours.network(given_, keep=True)
    assert len(found.layers) == len(said.hidden_states) == SIZES["depth"] + 1
    for mine, yours in zip(found.layers, said.hidden_states, strict=True):
        torch.testing.assert_close(mine[real], yours[real], rtol=0, atol=1e-5)
    torch.testing.assert_close(ours.network.pooled(found.hidden[:, 0]), said.pooler_output, rtol=0, atol=1e-5)


# Sharing

kinds = st.sampled_from(sorted(SHARED))
depths = st.integers(1, 6)


def walk(model: ALBERT) -> list[nn.Module]:
    """The layer that is used at every step through the stack."""
    encoder = model.network.encoder
    return [encoder.layers[number] for number in encoder.order]


def weights(layer: nn.Module) -> dict[str, nn.Parameter]:
    """Part.name of a parameter -> the parameter, attention and ffn each with its norm."""
    return {
        f"{part}.{name}": parameter
        for part, modules in PARTS.items()
        for module in modules
        for name, parameter in layer.get_submodule(module).named_parameters(prefix=module)
    }


def owner(step: int, part: str, share: str, depth: int, groups: int, inner: int) -> int:
    """The first step that uses the same weights of a part: by hand, the first round of the group."""
    if part not in SHARED[share]:
        return step
    rounds = [round_ for round_ in range(depth) if round_ * groups // depth == step // inner * groups // depth]
    return rounds[0] * inner + step % inner


@settings(max_examples=40)
@given(share=kinds, depth=depths, groups=st.integers(1, 6), inner=st.integers(1, 2))
def test_exactly_what_is_shared_is_the_same_storage(albert, share, depth, groups, inner):
    groups = min(groups, depth)
    model = albert(share=share, depth=depth, groups=groups, inner=inner)
    steps = walk(model)
    assert len(steps) == depth * inner
    storage = [{name: p.data_ptr() for name, p in weights(layer).items()} for layer in steps]
    assert len(storage[0]) == 12
    for step in range(len(steps)):
        for name in storage[step]:
            mine = owner(step, name.split(".")[0], share, depth, groups, inner)
            alike = [other for other in range(len(steps)) if storage[other][name] == storage[step][name]]
            assert min(alike) == mine, (step, name)
    # No two parameters of other names, nor of other modules, lie in one place; nothing else is in the encoder.
    everything = {pointer for row in storage for pointer in row.values()}
    kept = {p.data_ptr() for p in model.network.encoder.parameters()}
    assert kept == everything
    assert len(kept) == len(list(model.network.encoder.parameters()))


@pytest.mark.parametrize("inner", [1, 2])
@pytest.mark.parametrize("groups", [1, 2, 3])
@pytest.mark.parametrize("share", ["attention", "ffn", "all"])
def test_a_shared_gradient_is_the_sum_of_those_of_a_twin_that_shares_nothing(
    albert, rows, scatter, share, groups, inner
):
    depth = 4
    ours = albert(share=share, depth=depth, groups=groups, inner=inner).double()
    twin = albert(share="none", depth=depth, groups=1, inner=inner).double()
    scatter(ours)
    mine, yours = ([weights(layer) for layer in walk(model)] for model in (ours, twin))
    others = dict(ours.named_parameters())
    with torch.no_grad():
        for name, parameter in twin.named_parameters():
            if ".encoder." not in name:
                parameter.copy_(others[name])
        for shared, own in zip(mine, yours, strict=True):
            for name, parameter in own.items():
                parameter.copy_(shared[name])
    assert len({p.data_ptr() for row in yours for p in row.values()}) == depth * inner * 12
    batch = rows(padded=True, segments=True)
    losses = [next(iter(model.outcomes(batch)))[2].losses for model in (ours, twin)]
    assert torch.equal(*losses)
    for loss in losses:
        loss.sum().backward()
    for name in mine[0]:
        owners = [owner(step, name.split(".")[0], share, depth, groups, inner) for step in range(depth * inner)]
        for step, parameters in enumerate(mine):
            parts = [row[name].grad for row, other in zip(yours, owners, strict=True) if other == owners[step]]
            assert all(part.abs().max() > 1e-6 for part in parts)
            torch.testing.assert_close(parameters[name].grad, sum(parts), rtol=1e-9, atol=1e-12)


def test_what_is_shared_begins_as_in_the_first_layer_of_a_model_that_shares_nothing(albert):
    none = albert(share="none", depth=4)
    first = weights(walk(none)[0])
    for share in ("attention", "ffn", "all"):
        found = walk(albert(share=share, depth=4))
        for step, layer in enumerate(found):
            own = weights(walk(none)[step])
            for name, parameter in weights(layer).items():
                wanted = first if name.split(".")[0] in SHARED[share] else own
                assert torch.equal(parameter, wanted[name])


@pytest.mark.parametrize("share", sorted(SHARED))
@pytest.mark.parametrize(("groups", "inner"), [(1, 1), (2, 1), (2, 2)])
def test_parameters_are_counted_by_hand(albert, share, groups, inner):
    V, H, D, T, S = (SIZES[name] for name in ("vocab", "embedding", "dim", "length", "segments"))
    ffn, depth = SIZES["ffn"], SIZES["depth"]
    size = {"attention": 4 * (D * D + D) + 2 * D, "ffn": 2 * D * ffn + ffn + D + 2 * D}
    layers = sum(size[part] * inner * (groups if part in SHARED[share] else depth) for part in size)
    head = D * H + H + 2 * H + V
    wanted = (V + T + S) * H + 2 * H + H * D + D + layers + head
    model = albert(share=share, groups=groups, inner=inner)
    assert sum(parameter.numel() for parameter in model.parameters()) == wanted


# Refusals


@pytest.mark.parametrize("name", [*SIZES, "groups", "inner"])
def test_sizes_that_build_nothing_are_refused(albert, name):
    with pytest.raises(BadInput, match=rf"^model\.{name}=0 builds nothing: give at least 1\.$"):
        albert(**{name: 0})


def test_more_groups_than_layers_are_refused(albert):
    with pytest.raises(BadInput, match=r"^model\.groups=4 is more .* give at most model\.depth=3\.$"):
        albert(groups=4)
