"""Transformer-XL: parity with the published model, a memory that the learner carries on, sizes and refusals.

B  streams   T  places   M  places of memory   D  width   N  depth
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from lmab.models.transformer_xl import TransformerXL
from lmab.nn.position import Shaw
from lmab.nn.sight import Sight
from lmab.objectives.clm import CausalLM
from lmab.types import BadInput, Batch, Targets, View

# Made by the script beside it, which says what is in it.
FOUND = np.load(Path(__file__).parents[1] / "reference" / "transformer_xl.npz")
# Case -> (segments, what our model has, keys that a query sees at most).
CASES = {
    "plain": (2, {}, None),
    "adaptive": (2, {"cutoffs": [10, 25]}, None),
    "same_length": (3, {"clamp": 4}, 6),
    "untied": (2, {"untied": True}, None),
}
SIZES = {"vocab": 40, "dim": 16, "depth": 3, "heads": 2, "ffn": 24, "length": 5, "memory": 6}
KNOBS = {"positions": "relative", "untied": False, "clamp": None, "cutoffs": [], "dropout": 0.0}
KNOBS |= {"attention_dropout": 0.0, "epsilon": 1e-5, "std": 0.02, "embedding_std": 0.02}


@pytest.fixture
def build(learning):
    def made(seed: int | None = 0, *, start: dict | None = None, reach: int | None = None, **changes: object):
        asks = learning(
            CausalLM(half=False, weight=1.0), seed=seed, start=start, reach=reach, documents={"validation": 3}
        )
        return TransformerXL(asks, **SIZES | KNOBS | changes)

    return made


def batch(tokens: Tensor, answers: Tensor, past: Tensor | None = None) -> Batch:
    """Rows in which each place sees itself and those before it, and has a target."""
    B, T = tokens.shape
    visible = torch.ones(T, T, dtype=torch.bool).tril()[None, None]
    targets = Targets(torch.arange(B * T), answers.reshape(-1))
    return Batch(tokens, None, View(visible, past=past), {"clm": targets}, torch.arange(B), B, B * T)


def near(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


# Parity


def theirs(*, untied: bool, adaptive: bool) -> dict[str, str]:
    """Our parameter -> the published one."""
    names = {
        "embedding.tokens.weight": "transformer.word_emb.emb_layers.0.weight",
        "head.bias": "crit.out_layers.0.bias",
    }
    if adaptive:
        names |= {f"head.clusters.{kind}": f"crit.cluster_{kind}" for kind in ("weight", "bias")}
    for i in range(SIZES["depth"]):
        here, there = f"encoder.layers.{i}", f"transformer.layers.{i}"
        names |= {
            f"{here}.attention.qkv.weight": f"{there}.dec_attn.qkv_net.weight",
            f"{here}.attention.out.weight": f"{there}.dec_attn.o_net.weight",
            f"{here}.attention.position.project.weight": f"{there}.dec_attn.r_net.weight",
        }
        if untied or i == 0:  # shared, they are found once
            owner = f"{there}.dec_attn" if untied else "transformer"
            names |= {f"{here}.attention.position.{x}": f"{owner}.r_{y}_bias" for x, y in (("u", "w"), ("v", "r"))}
        for kind in ("weight", "bias"):
            names |= {
                f"{here}.attention_norm.{kind}": f"{there}.dec_attn.layer_norm.{kind}",
                f"{here}.inner.{kind}": f"{there}.pos_ff.CoreNet.0.{kind}",
                f"{here}.outer.{kind}": f"{there}.pos_ff.CoreNet.3.{kind}",
                f"{here}.ffn_norm.{kind}": f"{there}.pos_ff.layer_norm.{kind}",
            }
    return {f"network.{ours}": found for ours, found in names.items()}


def found(name: str, dtype: torch.dtype | None = None) -> Tensor:
    return torch.from_numpy(FOUND[name]).to(dtype)


@pytest.fixture
def published(build):
    """Our model with the weights of a case, and the names of its parameters there."""

    def made(case: str, reach: int | None = None) -> tuple[TransformerXL, dict[str, str]]:
        changes = CASES[case][1]
        names = theirs(untied=changes.get("untied", False), adaptive="cutoffs" in changes)
        model = build(start={ours: found(f"weight/{there}") for ours, there in names.items()}, reach=reach, **changes)
        assert set(names) == {name for name, _ in model.named_parameters()}
        assert set(names.values()) == {name.split("/")[-1] for name in FOUND if name.startswith(f"{case}/gradient/")}
        return model, names

    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", CASES)
def test_everything_is_as_published(published, case, dtype):
    model, names = published(case)
    model.to(dtype).train()
    segments, _, reach = CASES[case]
    memory = tuple(found(f"{case}/memory", dtype))
    lost = []
    for here in (f"{case}/{number}" for number in range(segments)):
        tokens, answers = found(f"{here}/tokens"), found(f"{here}/answers")
        given = batch(tokens, answers)
        encoded = model.network(given, memory=memory, remember=SIZES["memory"], reach=reach)
        memory, flat = encoded.memory, encoded.hidden.flatten(0, 1)
        near(encoded.hidden, found(f"{here}/hidden", dtype))
        near(torch.stack(memory), found(f"{here}/memory", dtype))
        scores = model.network.token_logits(flat).log_softmax(-1)
        near(scores.to(dtype), found(f"{here}/scores", dtype).flatten(0, 1))
        losses, hits = model.network.token_losses(flat, answers.flatten())
        near(losses.to(dtype), found(f"{here}/losses", dtype).flatten())
        if case != "adaptive":  # which ranks clusters before their types
            assert torch.equal(hits, scores.argmax(-1) == answers.flatten())
        lost.append(losses)
    torch.cat(lost).mean().backward()
    for name, parameter in model.named_parameters():
        near(parameter.grad, found(f"{case}/gradient/{names[name]}", dtype))
    assert all(parameter.grad.abs().max() > 1e-3 for parameter in model.parameters())  # no empty comparison


@pytest.mark.parametrize("part", ["train", "validation"])
@pytest.mark.parametrize("case", ["plain", "same_length", "untied"])
def test_the_learner_carries_the_memory_on(published, case, part):
    segments, _, reach = CASES[case]
    model, _ = published(case, reach)
    for number in range(segments):
        given = batch(found(f"{case}/{number}/tokens"), found(f"{case}/{number}/answers"), torch.full((3,), 5 * number))
        ((_, _, outcome),) = model.outcomes(given, part)
        wanted = found(f"{case}/{number}/losses").flatten()
        if part == "train" and reach and number:  # only held-out text is read with a reach
            assert (outcome.losses - wanted).abs().max() > 1e-2
        else:
            near(outcome.losses.detach(), wanted)


@pytest.mark.parametrize(("untied", "count"), [(False, 151_107_538), (True, 151_119_838)])
def test_the_parameters_of_the_published_base_model_are_counted(build, untied, count):
    """WikiText-103; as transformers 4.33.3 counts them."""
    sizes = {"vocab": 267735, "dim": 410, "depth": 16, "heads": 10, "ffn": 2100, "length": 150, "memory": 150}
    model = build(None, untied=untied, cutoffs=[20000, 40000, 200000], **sizes)
    assert sum(parameter.numel() for parameter in model.parameters()) == count


# What is not in the published model


@pytest.mark.parametrize("backward", [False, True])
def test_shaw_has_a_vector_for_every_distance_up_to_the_longest(backward):
    scheme = Shaw(heads=2, width=3, length=3).double()
    generator = torch.Generator().manual_seed(7)
    query = torch.randn(1, 2, 4, 3, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        scheme.vectors.copy_(torch.randn(7, 2, 3, generator=generator, dtype=torch.float64))
        asked, bias = scheme(query, Sight(4, 2, backward=torch.tensor([True]) if backward else None))
    assert torch.equal(asked, query)
    for h, i, j in np.ndindex(2, 4, 6):
        behind = (2 + i - j) * (-1 if backward else 1)  # the content begins after two places of memory
        vector = scheme.vectors[max(-3, min(3, behind)) + 3, h]
        assert bias[0, h, i, j].item() == pytest.approx(float(query[0, h, i] @ vector.detach()) / math.sqrt(3))


def test_dropout_is_everywhere_and_only_in_training(build, scatter):
    model = build(dropout=0.5).eval()
    scatter(model)
    given = batch(found("plain/0/tokens"), found("plain/0/answers"))
    quiet = model.network(given).hidden
    assert torch.equal(model.network(given).hidden, quiet)
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(3)
        loud = model.train().network(given).hidden
    assert (loud == 0).double().mean().item() == pytest.approx(0.5, abs=0.15)  # on the last layer too
    assert (loud != quiet).all()


def test_sinusoids_of_the_place_in_a_row_are_added_to_the_scaled_vectors_of_tokens(build):
    model, tokens = build(positions="sinusoidal", memory=0).eval(), found("plain/0/tokens")
    embedding = model.network.embedding
    added = embedding(batch(tokens, tokens)) - math.sqrt(16) * embedding.tokens.weight[tokens]
    for b, p, i in np.ndindex(3, 5, 8):
        angle = p / 10000 ** (2 * i / 16)
        assert added[b, p, 2 * i : 2 * i + 2].tolist() == pytest.approx([math.sin(angle), math.cos(angle)], abs=1e-5)


# Refusals


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"memory": -1}, r"model\.memory=-1 cannot work: give a number of places, 0 for no recurrence\."),
        ({"positions": "sinusoidal"}, r"model\.memory=6 cannot work: .* give model\.memory=0, or .*relative\."),
        ({"cutoffs": [10, 10]}, r"model\.cutoffs=\[10, 10\] do not rise from 1 to below model\.vocab=40\."),
        ({"cutoffs": [40]}, r"model\.cutoffs=\[40\] do not rise from 1 to below model\.vocab=40\."),
        ({"dim": 15}, r"dim=15 is not divisible by heads=2: the nearest are dim=14 and dim=16\."),
    ],
)
def test_what_cannot_work_is_refused_in_one_sentence(build, changes, said):
    with pytest.raises(BadInput, match=f"^{said}$"):
        build(**changes)
