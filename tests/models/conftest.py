"""Models of transformers beside ours: the same weights on both sides, rows that both read, gradients compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from lmab.objectives.mlm import MaskedLM
from lmab.train.optim import AdamW, Constant
from lmab.train.stepping import Learning
from lmab.types import Batch, Targets, View

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor, nn

    from lmab.objectives.objective import Objective
    from lmab.train.learner import Learner

    Take = Callable[[list[Tensor]], Tensor]  # tensors of theirs to a tensor of ours

B, T = 4, 12
LENGTHS = (12, 7, 9, 1)
SECOND = ((5,), (3,), (9,), (1,))  # where the second segment of each row begins

# Part of our layer -> parts of theirs, with spaces between them.
BERT_LAYER = {
    "attention.qkv": "attention.self.query attention.self.key attention.self.value",
    "attention.out": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "inner": "intermediate.dense",
    "outer": "output.dense",
    "ffn_norm": "output.LayerNorm",
}


def scatter(module: nn.Module, size: float = 0.3) -> None:
    """Weights that are all different and none special, the norms and biases too."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            gain = parameter.dim() == 1 and name.endswith("weight")
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * size + gain)


class Twins:
    """A model of ours and one of theirs, and which of their parameters stand in which of ours."""

    def __init__(self, ours: Learner, theirs: nn.Module) -> None:
        self.ours, self.theirs = ours, theirs
        self.mine, self.yours = dict(ours.named_parameters()), dict(theirs.named_parameters())
        self._links: dict[str, tuple[tuple[str, ...], Take]] = {}

    def link(self, ours: str, *theirs: str, take: Take = torch.cat) -> None:
        self._links[ours] = theirs, take

    def dense(self, ours: str, *theirs: str, take: Take = torch.cat) -> None:
        """Weight and bias of a linear map or a norm; several of theirs stand one below another."""
        for kind in ("weight", "bias"):
            self.link(f"{ours}.{kind}", *(f"{name}.{kind}" for name in theirs), take=take)

    def embedding(self, there: str, *, offset: int = 0) -> None:
        """offset: rows of their table before the one of the first position."""
        here = "network.embedding"
        self.link(f"{here}.tokens.weight", f"{there}.word_embeddings.weight")
        self.link(f"{here}.positions.weight", f"{there}.position_embeddings.weight", take=lambda t: t[0][offset:])
        self.link(f"{here}.segments.weight", f"{there}.token_type_embeddings.weight")
        self.dense(f"{here}.norm", f"{there}.LayerNorm")

    def layer(self, number: int, there: str, table: Mapping[str, str] = BERT_LAYER) -> None:
        for ours, theirs in table.items():
            self.dense(f"network.encoder.layers.{number}.{ours}", *(f"{there}.{name}" for name in theirs.split()))

    def head(self, bias: str, transform: str, norm: str) -> None:
        """Of tokens. Its matrix is the embedding and no parameter of its own."""
        self.link("network.head.bias", bias)
        self.dense("network.head.transform", transform)
        self.dense("network.head.norm", norm)

    def pairs(self, objective: str, classifier: str) -> None:
        """Our class 1 is that the second segment follows the first, and theirs is 0."""
        self.dense(f"objectives.{objective}.classifier", classifier, take=lambda t: t[0].flip(0))

    def copy(self) -> None:
        """Give ours the weights of theirs. Nothing is left over on either side."""
        scatter(self.theirs)
        assert self._links.keys() == self.mine.keys()
        names = [name for theirs, _ in self._links.values() for name in theirs]
        assert len(names) == len(set(names))
        assert set(names) == self.yours.keys()
        with torch.no_grad():
            for ours, (theirs, take) in self._links.items():
                self.mine[ours].copy_(take([self.yours[name] for name in theirs]))

    def compare_gradients(self, tolerance: float) -> None:
        asked, large = 0, 0
        for ours, (theirs, take) in self._links.items():
            grads, found = [self.yours[name].grad for name in theirs], self.mine[ours].grad
            if all(grad is None for grad in grads):
                assert found is None, ours
                continue
            wanted = take([grad for grad in grads if grad is not None])
            torch.testing.assert_close(found, wanted, rtol=0, atol=tolerance, msg=lambda m, n=ours: f"{n}: {m}")
            asked, large = asked + 1, large + int(wanted.abs().max() > 100 * tolerance)
        # The comparison would be empty if hardly anything had a gradient.
        assert large > asked - 3
        assert asked > len(self.mine) - 6

    def compare(self, given: Batch, tolerance: float) -> None:
        """What a model with learned positions says of rows, the loss of all its objectives, and every gradient."""
        real = torch.ones(B, T, dtype=torch.bool) if given.view.visible is None else given.view.visible[:, 0, 0]
        mlm = given.targets["mlm"]
        labels = torch.full((B * T,), -100)
        labels[mlm.places] = mlm.answers
        known = {"nsp": "next_sentence_label", "sop": "sentence_order_label"}
        pairs = {known[name]: 1 - targets.answers for name, targets in given.targets.items() if name != "mlm"}
        said = self.theirs(
            input_ids=given.tokens,
            attention_mask=None if real.all() else real.long(),
            token_type_ids=given.segments,
            labels=labels.view(B, T),
            **pairs,
        )
        network = self.ours.network
        logits = network.token_logits(network(given).hidden.flatten(0, 1)).view(B, T, -1)
        scores = said.prediction_logits if pairs else said.logits
        torch.testing.assert_close(logits[real], scores[real], rtol=0, atol=tolerance)
        loss = sum(w * outcome.losses.sum() / len(outcome.losses) for _, w, outcome in self.ours.outcomes(given))
        assert isinstance(loss, torch.Tensor)
        torch.testing.assert_close(loss, said.loss, rtol=0, atol=tolerance)
        loss.backward()
        said.loss.backward()
        self.compare_gradients(tolerance)


@pytest.fixture(scope="session")
def twins() -> type[Twins]:
    return Twins


@pytest.fixture(scope="session", name="scatter")
def scatter_() -> Callable[..., None]:
    return scatter


@pytest.fixture(scope="session")
def learning() -> Callable[..., Learning]:
    """What a network is to learn: to fill in masks, unless told otherwise."""

    def made(*objectives: Objective, seed: int | None = 0, **changes: Any) -> Learning:
        masked = MaskedLM(rate=0.15, mask=0.8, random=0.1, whole_words=False, copies=None, weight=1.0)
        knobs: dict[str, Any] = {
            "objectives": {objective.name: objective for objective in objectives or (masked,)},
            "optim": AdamW(lr=1e-3, beta1=0.9, beta2=0.999, epsilon=1e-8, weight_decay=0.01),
            "schedule": Constant(warmup=0),
            "steps": 10,
            "clip": None,
            "seed": seed,
            "documents": {},
        }
        return Learning(**knobs | changes)

    return made


@pytest.fixture(scope="session")
def rows() -> Callable[..., Batch]:
    """Four rows of twelve tokens and some targets among the real ones.

    pad: the padding token. labels: name of an objective that asks the first place of every row."""

    def made(
        *, padded: bool = False, segments: bool = False, labels: str | None = None, pad: int = 0, seed: int = 0
    ) -> Batch:
        generator = torch.Generator().manual_seed(seed)
        lengths = torch.tensor(LENGTHS) if padded else torch.full((B,), T)
        real = torch.arange(T) < lengths[:, None]
        tokens = torch.where(real, torch.randint(5, 50, (B, T), generator=generator), pad)
        places = (real & (torch.rand(B, T, generator=generator) < 0.4)).flatten().nonzero().flatten()
        targets = {"mlm": Targets(places, torch.randint(5, 50, places.shape, generator=generator))}
        if labels is not None:
            targets[labels] = Targets(torch.arange(B) * T, torch.tensor([1, 0, 0, 1]))
        return Batch(
            tokens=tokens,
            segments=(torch.arange(T) >= torch.tensor(SECOND)).long() if segments else None,
            view=View(real[:, None, None] if padded else None),
            targets=targets,
            document=torch.arange(B),
            examples=B,
            real=int(lengths.sum()),
        )

    return made
