"""Next sentence prediction: does the second segment follow the first in the text, or was it drawn from elsewhere?
(Devlin et al. 2018, section 3.1, task 2.)"""

from __future__ import annotations

from typing import ClassVar

from lmab.objectives.pair import Pair


class NextSentence(Pair):
    """Told apart by topic as well as by coherence (Lan et al. 2019, section 3.1). weight: of the loss."""

    name = "nsp"
    negatives: ClassVar[str] = "random"
