"""RoBERTa (Liu et al. 2019, arXiv 1907.11692): BERT's network, trained otherwise.

What is new stands in other files: masks that are drawn anew (objective.mlm.copies), text without next sentence
prediction (segments), bytes as the alphabet (tokenizer), large batches and Adam's second moment (trainer, optim).
The network itself has one kind of segment and a norm with a larger epsilon.
"""

from __future__ import annotations

from lmab.models.bert import BERT


class RoBERTa(BERT):
    """As BERT; it has a name of its own, so that checkpoints go to and from RoBERTa's own format."""
