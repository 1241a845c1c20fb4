"""Through a real network of three layers: a token moves what is predicted where it may be seen, and nowhere else."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from lmab.data.collate import Collate
from lmab.models.xlnet import XLNet
from lmab.objectives.clm import CausalLM
from lmab.objectives.mlm import MaskedLM
from lmab.objectives.plm import PermutationLM
from lmab.train.optim import AdamW, Constant
from lmab.train.stepping import Learning

if TYPE_CHECKING:
    from lmab.objectives.objective import Objective


def network_for(objective: Objective) -> torch.nn.Module:
    learning = Learning(
        objectives={objective.name: objective},
        optim=AdamW(lr=1e-3, beta1=0.9, beta2=0.999, epsilon=1e-8, weight_decay=0.0),
        schedule=Constant(warmup=0),
        steps=1,
        clip=None,
        seed=0,
        documents={},
    )
    model = XLNet(
        learning,
        vocab=60,
        dim=8,
        depth=3,
        heads=2,
        ffn=16,
        length=20,
        memory=0,
        clamp=None,
        dropout=0.0,
        inner_dropout=0.0,
        attention_dropout=0.0,
        epsilon=1e-12,
        std=0.3,
        embedding_std=0.3,
    )
    return model.double().eval().network


def moved_by(network: torch.nn.Module, batch, name: str) -> torch.Tensor:
    """[N, B * T] bool: does another token at a place change the hidden state of a target?"""
    targets = batch.targets[name]
    before = network(batch).of(targets)
    columns = []
    for place in range(batch.tokens.numel()):
        tokens = batch.tokens.clone()
        tokens.view(-1)[place] = 59 if tokens.view(-1)[place] != 59 else 58
        columns.append((network(replace(batch, tokens=tokens)).of(targets) != before).any(-1))
    return torch.stack(columns, 1)


@pytest.mark.parametrize(("k", "span"), [(1, 1), (2, 3), (6, 5)])
def test_a_query_is_moved_by_what_it_may_see_and_never_by_its_answer(rows, vocab, k, span):
    objective = PermutationLM(k=k, span=span, weight=1.0)
    batch = Collate({"plm": objective.noise}, vocab, 0)(rows(2, 14, seed=1))
    used = batch.view.queries >= 0
    seen = torch.zeros(int(used.sum()), 2, 14, dtype=torch.bool)
    row = used.nonzero()[:, 0]
    seen[range(len(row)), row] = batch.view.query_visible[:, 0][used]
    assert torch.equal(moved_by(network_for(objective), batch, "plm"), seen.flatten(1))
    answers = batch.targets["plm"].places
    assert len(answers) > 0
    assert not seen.flatten(1)[range(len(answers)), answers].any()


@pytest.mark.parametrize("causal_mask", [False, True])
def test_from_left_to_right_a_place_is_moved_by_itself_and_those_before_it(rows, vocab, causal_mask):
    if causal_mask:
        objective: Objective = MaskedLM(
            rate=0.5, mask=0.8, random=0.1, whole_words=False, copies=None, weight=1.0, ngram=1, causal=True
        )
    else:
        objective = CausalLM(half=False, weight=1.0)
    batch = Collate({objective.name: objective.noise}, vocab, 0)(rows(2, 14, seed=1))
    places = batch.targets[objective.name].places.tolist()
    wanted = [[other // 14 == place // 14 and other <= place for other in range(28)] for place in places]
    assert moved_by(network_for(objective), batch, objective.name).tolist() == wanted
