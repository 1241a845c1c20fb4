"""What a model knows of classes that its training text left out (Hinton, Vinyals and Dean 2015, section 3).

Such classes never win, since nothing ever raised them. One number is added to the scores of all of them, as to their
biases; the paper chose it on the test set, and here it is chosen on the validation part.

N  targets of a part   C  classes
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from lmab.types import Ask

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lmab.data.order import HeldOut
    from lmab.train.learner import Learner

    # Metric -> (its value for each document, how many targets the document has for it)
    Documents = dict[str, tuple[list[float], list[float]]]

GRID = np.arange(-10.0, 15.01, 0.25)  # what is tried; the paper's two figures are 3.5 and 7.6
QUANTITIES = ("omitted_accuracy", "shifted_accuracy", "shifted_omitted_accuracy")


def omitted(
    learner: Learner, name: str, validation: HeldOut, test: HeldOut, classes: Sequence[int]
) -> tuple[float, Documents]:
    """The number that is chosen, and of the test part the accuracy over the classes left out, with the number over all,
    and with it over those left out. name: the objective that tells classes apart. classes: those left out."""
    scores, answers, _ = _scores(learner, name, validation, "validation")
    shift = chosen(scores, answers, classes)
    scores, answers, document = _scores(learner, name, test, "test")
    hits = {
        "omitted_accuracy": scores.argmax(1) == answers,
        "shifted_accuracy": shifted(scores, classes, shift).argmax(1) == answers,
    }
    hits["shifted_omitted_accuracy"] = hits["shifted_accuracy"]
    of_these = np.isin(answers, classes)
    found: Documents = {}
    for quantity, hit in hits.items():
        counted = of_these if quantity.endswith("omitted_accuracy") else np.ones_like(of_these)
        weights = np.bincount(document[counted], minlength=test.documents).astype(float)
        sums = np.bincount(document[counted], hit[counted], minlength=test.documents)
        with np.errstate(invalid="ignore"):
            found[f"test/{name}_{quantity}"] = ((sums / weights).tolist(), weights.tolist())
    return shift, found


def shifted(scores: np.ndarray, classes: Sequence[int], shift: float) -> np.ndarray:
    """Scores [N, C] with one number added to those of some classes."""
    raised = scores.copy()
    raised[:, list(classes)] += shift
    return raised


def chosen(scores: np.ndarray, answers: np.ndarray, classes: Sequence[int]) -> float:
    """The number of the grid with the fewest errors; of several the middle one."""
    errors = np.array([(shifted(scores, classes, shift).argmax(1) != answers).sum() for shift in GRID])
    best = GRID[errors == errors.min()]
    return float(best[len(best) // 2])


def _scores(learner: Learner, name: str, part: HeldOut, which: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores [N, C], answers [N] and documents [N] of a part."""
    columns: Mapping[str, list[np.ndarray]] = {"scores": [], "answers": [], "document": []}
    learner.eval()
    with torch.no_grad():
        for number in range(len(part)):
            batch = part[number].to(learner.device)
            found = learner.seen(batch, which, ask=Ask(scores=frozenset([name]))).outcomes[name]
            targets = batch.targets[name]
            assert found.scores is not None
            columns["scores"].append(found.scores.float().cpu().numpy())
            columns["answers"].append(targets.answers.cpu().numpy())
            columns["document"].append(batch.document[targets.places // batch.tokens.shape[1]].cpu().numpy())
    scores, answers, document = (np.concatenate(values) for values in columns.values())
    return scores, answers, document
