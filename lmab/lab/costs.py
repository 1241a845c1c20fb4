"""The table of `python -m lmab cost`: what models cost, said before anything is trained.

Sharing layers saves parameters and not one product of matrices (Lan et al. 2019, section 3.1): the table puts both
side by side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from lmab import checks, starting
from lmab.cost import formula, measured, sizes
from lmab.lab.tables import NOTHING, Table, number
from lmab.types import BadInput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PAPERS = ("bert", "roberta", "albert", "xlnet", "transformer_xl")
# The sizes that the papers name; Transformer-XL has one, its recipe's.
PUBLISHED = {
    "bert": ("base", "large"),
    "roberta": ("base", "large"),
    "albert": ("base", "large", "xlarge", "xxlarge"),
    "xlnet": ("base", "large"),
    "transformer_xl": (None,),
}


def lines(budget: str, asked: Sequence[str]) -> dict[str, list[str]]:
    """Label -> overrides. asked: overrides of the user's own, which make one line beside the others. BadInput: a budget
    among them."""
    for override in asked:
        key, _, value = override.partition("=")
        if key.lstrip("+~") == "budget":
            raise BadInput(f"{override} holds for all lines alike: give it as --budget {value}.")
    found: dict[str, list[str]] = {}
    for paper in PAPERS:
        for size in PUBLISHED[paper] if budget == "paper" else (None,):
            found[f"{paper} {size}" if size else paper] = [f"experiment={paper}", *([f"size={size}"] if size else [])]
    return {" ".join(asked): [*asked]} | found if asked else found


def config(overrides: Sequence[str]) -> dict[str, Any]:
    """A configuration that is composed and checked; no corpus is read. BadInput: one that cannot work."""
    plain = OmegaConf.to_container(starting.composed(overrides), resolve=True)
    assert isinstance(plain, dict)
    return checks.checked({str(key): value for key, value in plain.items()})


_HEAD = [
    "model",
    "layers x dim x heads",
    "M parameters",
    "M in the encoder",
    "of BERT's encoder",
    "MFLOPs a token",
    "by formula",
    "of BERT's FLOPs",
]
_CLOCK = ["ms a row", "ms for 32", "tokens/s in training", "peak MiB in training"]
_NOTE = (
    "M: millions; in the encoder: without the heads that predict. FLOPs: of one forward pass of the encoder over one "
    "full row, by torch's counter and by the formula. Of BERT's: against the BERT of as many layers of the same shape."
)


def table(budget: str, asked: Sequence[str] = (), *, clock: bool = False) -> Table:
    """clock: build every model and run it, too. BadInput: overrides that cannot work."""
    configs = {label: config([f"budget={budget}", *overrides]) for label, overrides in lines(budget, asked).items()}
    found = {label: sizes(this) for label, this in configs.items()}
    berts = {_shape(configs[label]): found[label] for label in configs if label.partition(" ")[0] == "bert"}
    rows = []
    for label, this in configs.items():
        mine, bert = found[label], berts.get(_shape(this), {})
        row = [
            label,
            " x ".join(str(this["model"][key]) for key in ("depth", "dim", "heads") if key in this["model"]),
            _millions(mine["cost/parameters"]),
            _millions(mine["cost/encoder_parameters"]),
            _share(mine, bert, "cost/encoder_parameters"),
            number(mine["cost/flops_a_token"] / 1e6),
            number(formula(this["model"]) / 1e6),
            _share(mine, bert, "cost/flops_a_token"),
        ]
        if clock:
            seen = measured(this)
            row += [
                f"{seen['cost/latency_1'] * 1e3:.1f}",
                f"{seen['cost/latency_32'] * 1e3:.1f}",
                f"{seen['cost/tokens_a_second']:,.0f}",
                f"{seen['cost/peak_memory'] / 2**20:,.0f}",
            ]
        rows.append(row)
    return Table(f"Cost at budget {budget}", _HEAD + (_CLOCK if clock else []), rows, _NOTE)


def _shape(config: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(config["model"].get(key, 0) for key in ("depth", "dim", "heads", "ffn"))


def _share(mine: Mapping[str, float], bert: Mapping[str, float], figure: str) -> str:
    return f"{100 * mine[figure] / bert[figure]:.0f}%" if bert else NOTHING


def _millions(count: float) -> str:
    return f"{count / 1e6:,.2f}"
