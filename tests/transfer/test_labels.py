"""What labels teach a student, and a teacher beside it, by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
import torch
import torch.nn.functional as F

from lmab.transfer.labels import Labels, TeacherLabels
from lmab.transfer.soft_targets import SoftTargets
from lmab.types import Ask, Batch, Encoded, Outcome, Seen, Targets, View

if TYPE_CHECKING:
    from torch import Tensor

    from lmab.train.learner import Learner
    from lmab.transfer.transfer import Transfer

SPAN: dict[str, Any] = {"begin": 0.0, "end": 1.0}


def learner(**weights: float) -> Learner:
    objectives = {name: SimpleNamespace(weight=weight, classes=3) for name, weight in weights.items()}
    return cast("Learner", SimpleNamespace(objectives=objectives))


def asked(**answers: list[int]) -> Batch:
    """A row for each place that any objective asks."""
    targets = {name: Targets(torch.arange(len(said)), torch.tensor(said)) for name, said in answers.items()}
    rows = max(map(len, answers.values()))
    tokens = torch.zeros(rows, 1, dtype=torch.int64)
    return Batch(tokens, None, View(), targets, torch.arange(rows), examples=rows, real=rows)


def seen(batch: Batch, **scores: Tensor) -> Seen:
    """What a learner makes of it that gives all answers these scores [N, C]."""
    outcomes = {}
    for name, found in scores.items():
        places, answers = batch.targets[name].places, batch.targets[name].answers
        losses = F.cross_entropy(found, answers, reduction="none")
        outcomes[name] = Outcome(losses, places, found.argmax(-1) == answers, None, found)
    return Seen(Encoded(torch.empty(0)), outcomes)


def free(rows: int, seed: int, answers: int = 3) -> Tensor:
    drawn = torch.Generator().manual_seed(seed)
    return torch.randn(rows, answers, generator=drawn, dtype=torch.float64).requires_grad_()


@pytest.mark.parametrize(("term", "prefix"), [(Labels, ""), (TeacherLabels, "teacher_")])
def test_each_objective_has_its_sum_its_weight_and_its_units(term: type[Transfer], prefix: str) -> None:
    labels = term(weight=1.0, **SPAN)
    mine, other = (learner(mlm=1.0, nsp=0.5), learner(clm=7.0))[:: 1 if term is Labels else -1]
    labels.build(mine, other)
    assert labels.ask() == Ask(outcomes=frozenset(["mlm", "nsp"]))
    batch = asked(mlm=[0, 2, 1], nsp=[1])
    assert labels.units(batch) == {f"{prefix}mlm": 3, f"{prefix}nsp": 1}
    scores = {"mlm": torch.log(torch.tensor([[0.5, 0.25, 0.25]] * 3)), "nsp": torch.log(torch.tensor([[0.1, 0.9]]))}
    nothing = Seen(Encoded(torch.empty(0)), {})
    told = seen(batch, **scores)
    found = {n: (w, float(t)) for n, w, t in labels(*((told, None) if term is Labels else (nothing, told)), batch)}
    # The answers have the shares 1/2, 1/4 and 1/4, and 0.9.
    assert found == {
        f"{prefix}mlm": (1.0, pytest.approx(5 * math.log(2))),
        f"{prefix}nsp": (0.5, pytest.approx(-math.log(0.9))),
    }


def test_who_asks_the_teacher_and_who_teaches_it() -> None:
    assert (Labels.alone, Labels.joint) == (True, False)
    assert (TeacherLabels.alone, TeacherLabels.joint) == (False, True)


def test_the_joint_loss_by_hand_and_what_it_teaches_whom() -> None:
    """alpha H(y, p_T) + beta H(y, p_A) + gamma H(z_T, p_A) (Mishra and Marr 2018, equation 1): with respect to scores,
    alpha (p_T - y) for the teacher and beta (p_A - y) + gamma (p_A - p_T) for the apprentice."""
    alpha, beta, gamma = 1.0, 0.5, 0.25
    soft: dict[str, Any] = {
        "temperature": 1.0,
        "loss": "cross_entropy",
        "factor": True,
        "objective": None,
        "until": None,
    }
    terms: list[Transfer] = [
        TeacherLabels(weight=alpha, **SPAN),
        Labels(weight=beta, **SPAN),
        SoftTargets(weight=gamma, course="constant", **soft, **SPAN),
    ]
    batch, theirs, mine = asked(classify=[2, 0, 1, 1]), free(4, 0), free(4, 1)
    total = torch.zeros(())
    for term in terms:
        term.build(learner(classify=1.0), learner(classify=1.0))
        for _, share, lost in term(seen(batch, classify=mine), seen(batch, classify=theirs), batch):
            total = total + term.weight * share * lost
    total.backward()
    y = F.one_hot(batch.targets["classify"].answers, 3)
    teacher, apprentice = theirs.detach().softmax(-1), mine.detach().softmax(-1)
    wanted = -(alpha * y * teacher.log() + (beta * y + gamma * teacher) * apprentice.log()).sum()
    torch.testing.assert_close(total.detach(), wanted)
    torch.testing.assert_close(theirs.grad, alpha * (teacher - y))
    torch.testing.assert_close(mine.grad, beta * (apprentice - y) + gamma * (apprentice - teacher))
