"""Sentence order prediction: do two consecutive segments stand in the order of the text, or are they swapped?
(Lan et al. 2019, section 3.1.)"""

from __future__ import annotations

from typing import ClassVar

from lmab.objectives.pair import Pair


class SentenceOrder(Pair):
    """Both segments are of one document, so their topic says nothing. weight: of the loss."""

    name = "sop"
    negatives: ClassVar[str] = "swap"
