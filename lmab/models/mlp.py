"""The nets of Hinton, Vinyals and Dean (2015, arXiv 1503.02531, section 3): rectified linear layers on the pixels of
digits; deep and thin, a stand-in for the students of FitNets (Romero et al. 2014, arXiv 1412.6550).

paper                          here
hidden layers                  depth
units of a hidden layer        dim
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

import torch

from lmab.nn.network import initialise, positive
from lmab.nn.perceptron import Perceptron, rectified
from lmab.train.learner import Learner
from lmab.types import BadInput

if TYPE_CHECKING:
    from lmab.train.stepping import Learning


class MLP(Learner):
    """A row is one vector: its tokens are grey levels, and every objective asks the row as a whole.

    vocab: grey levels, black being 0. length: pixels. dim: units of a hidden layer. depth: hidden layers. dropout: on
    hidden units. input_dropout: on pixels. gain: of the first weights; 1 keeps the size of a signal through the layers
    (He et al. 2015), less lets it fade, so that a deep net is hard to train.
    """

    images: ClassVar[bool] = True  # it reads images and nothing else

    def __init__(
        self,
        learning: Learning,
        *,
        vocab: int,
        length: int,
        dim: int,
        depth: int,
        dropout: float,
        input_dropout: float,
        gain: float,
    ) -> None:
        positive(length=length, dim=dim, depth=depth)
        if vocab < 2:
            raise BadInput(f"model.vocab={vocab} leaves no grey level beside black: give at least 2.")
        if not 0 < gain < math.inf:
            raise BadInput(f"model.gain={gain} cannot work: give a number above 0, 1 to keep a signal as it is.")
        with torch.device("meta"):
            network = Perceptron(
                levels=vocab - 1, length=length, dim=dim, depth=depth, dropout=dropout, input_dropout=input_dropout
            )
        super().__init__(network, learning)
        initialise(self, learning.seed, rectified(gain), learning.start)
