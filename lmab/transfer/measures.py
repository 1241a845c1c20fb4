"""What is measured of a student beside its teacher: do they say the same, how sure are they, and where is it right?

N  targets   C  answers   M  bins
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torchmetrics import Metric

from lmab.train.scores import DocumentLoss

if TYPE_CHECKING:
    from torch import Tensor

    from lmab.types import Batch, Outcome

# What is recorded for each document, of any objective, and of those whose answers are told apart by scores.
OF_TEACHER = ("teacher_loss", "teacher_accuracy")
OF_BOTH = ("agreement", "divergence", "easy_accuracy", "hard_accuracy")

_AT_ONCE = 2**20  # scores that are held in double precision


def gap_closed(plain: float, student: float, teacher: float) -> float:
    """(student - plain) / (teacher - plain): how much of what a teacher is better than the same student without one
    was handed on. Of a metric that is to be high; NaN where the teacher is not above the plain student."""
    return (student - plain) / (teacher - plain) if teacher > plain else math.nan


class Compared(NamedTuple):
    """agrees: [N] both say the same. divergence: [N] KL(teacher || student) at T = 1, in nats. confidence,
    teacher_confidence: [N] the share that each gives to its own answer."""

    agrees: Tensor
    divergence: Tensor
    confidence: Tensor
    teacher_confidence: Tensor


@torch.no_grad()
def compared(student: Tensor, teacher: Tensor) -> Compared:
    """student, teacher: scores [N, C]. In double precision, some targets at a time."""
    parts = []
    size = max(1, _AT_ONCE // student.shape[1])
    for mine, theirs in zip(student.split(size), teacher.split(size), strict=True):
        p, q = theirs.double().log_softmax(-1), mine.double().log_softmax(-1)
        parts.append(
            Compared(
                mine.argmax(-1) == theirs.argmax(-1),
                (p.exp() * (p - q)).sum(-1),
                q.amax(-1).exp(),
                p.amax(-1).exp(),
            )
        )
    return Compared(*map(torch.cat, zip(*parts, strict=True)))


class Calibration(Metric):
    """Expected calibration error (Guo et al. 2017, section 2): sum_m |B_m| / N |acc(B_m) - conf(B_m)|, with B_m the
    targets whose confidence lies in ((m - 1) / M, m / M].

    Not torchmetrics', which keeps every confidence, in single precision, and takes scores that happen to lie between 0
    and 1 for shares. bins: M.
    """

    counts: Tensor
    hits: Tensor
    confidence: Tensor
    full_state_update = False

    def __init__(self, bins: int = 15) -> None:
        super().__init__()
        self.bins = bins
        for name in ("counts", "hits", "confidence"):
            self.add_state(name, default=torch.zeros(bins, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, confidence: Tensor, hits: Tensor) -> None:
        """confidence: [N] float64. hits: [N] bool."""
        inner = torch.arange(1, self.bins, dtype=torch.float64, device=confidence.device) / self.bins
        bin_ = torch.bucketize(confidence, inner)  # the upper edge belongs to a bin
        self.counts.index_add_(0, bin_, torch.ones_like(confidence))
        self.hits.index_add_(0, bin_, hits.double())
        self.confidence.index_add_(0, bin_, confidence)

    def compute(self) -> Tensor:
        return (self.hits - self.confidence).abs().sum() / self.counts.sum()


class Halves(Metric):
    """Hits of a student on easy targets, the half of which its teacher is surest, and on the other, hard ones. Targets
    of which it is as sure as of the last easy one are easy too, so that the order of targets decides nothing; the easy
    half is then the larger one.

    documents: how many there are.
    """

    confidence: list[Tensor]
    hits: list[Tensor]
    document: list[Tensor]
    full_state_update = False

    def __init__(self, documents: int) -> None:
        super().__init__()
        self.documents = documents
        for name in ("confidence", "hits", "document"):
            self.add_state(name, default=[], dist_reduce_fx="cat")

    def update(self, confidence: Tensor, hits: Tensor, document: Tensor) -> None:
        """confidence: [N] the teacher's. hits: [N] bool, the student's. document: [N]."""
        self.confidence.append(confidence)
        self.hits.append(hits)
        self.document.append(document)

    def compute(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Half -> ([documents] its hits, [documents] its targets)."""
        confidence, hits, document = map(torch.cat, (self.confidence, self.hits, self.document))
        last = confidence.sort(descending=True).values[(len(confidence) - 1) // 2]
        easy = confidence >= last

        def by_document(targets: Tensor) -> Tensor:
            return torch.bincount(document[targets], minlength=self.documents).double()

        return {name: (by_document(half & hits), by_document(half)) for name, half in (("easy", easy), ("hard", ~easy))}


class Beside:
    """All that is said of a student beside its teacher, of one objective on one held-out part.

    agreement: the share of targets at which both say the same. divergence: as in `Compared`. ece, teacher_ece: as in
    `Calibration`. easy_accuracy, hard_accuracy: as in `Halves`. teacher_loss, teacher_accuracy: as of any learner, and
    all that there is where an answer is one number. Nothing is said of what has no targets. documents: as in `Scores`.
    """

    def __init__(self, documents: int) -> None:
        self.teacher = DocumentLoss(documents)
        self.both = DocumentLoss(documents)  # for losses the divergence, for hits whether they agree
        self.ece, self.teacher_ece = Calibration(), Calibration()
        self.halves = Halves(documents)

    def reset(self, device: torch.device) -> None:
        for metric in (self.teacher, self.both, self.ece, self.teacher_ece, self.halves):
            metric.to(device).reset()

    def update(self, student: Outcome, teacher: Outcome, batch: Batch) -> None:
        """Both with their scores [N, C], which are not kept."""
        self.teacher.update(teacher, batch)
        assert student.scores is not None
        assert teacher.scores is not None
        if student.scores.shape[1] == 1:
            return
        found = compared(student.scores, teacher.scores)
        self.both.update(replace(student, losses=found.divergence, hits=found.agrees), batch)
        self.ece.update(found.confidence, student.hits)
        self.teacher_ece.update(found.teacher_confidence, teacher.hits)
        document = batch.document[student.places // batch.tokens.shape[1]]
        self.halves.update(found.teacher_confidence, student.hits, document)

    def means(self) -> dict[str, float]:
        """Quantity -> its value over the whole part."""
        found = {name: _mean(*columns) for name, columns in self._sums().items() if columns[1].sum()}
        if self.both.counts.sum():
            found |= {"ece": float(self.ece.compute()), "teacher_ece": float(self.teacher_ece.compute())}
        return found

    def documents(self) -> dict[str, tuple[list[float], list[float]]]:
        """Quantity -> (its mean for each document, NaN where it has no target there; the document's targets)."""
        return {
            name: ((sums / counts).tolist(), counts.tolist())
            for name, (sums, counts) in self._sums().items()
            if counts.sum()
        }

    def _sums(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Quantity -> ([documents] its sum over targets, [documents] targets)."""
        found = {
            "teacher_loss": (self.teacher.sums, self.teacher.counts),
            "teacher_accuracy": (self.teacher.hits, self.teacher.counts),
            "agreement": (self.both.hits, self.both.counts),
            "divergence": (self.both.sums, self.both.counts),
        }
        if self.both.counts.sum():
            found |= {f"{half}_accuracy": columns for half, columns in self.halves.compute().items()}
        return found


def _mean(sums: Tensor, counts: Tensor) -> float:
    return float(sums.sum() / counts.sum())
