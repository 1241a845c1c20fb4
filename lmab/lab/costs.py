"""The table of `python -m lmab cost`: what models cost, said before anything is trained.

Sharing layers saves parameters and not one product of matrices (Lan et al. 2019, section 3.1): the table puts both
side by side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from lmab import checks, starting
from lmab.cost import formula, measured
from lmab.lab.tables import Table
from lmab.sizes import sizes

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    """Label -> overrides. asked: overrides of the user's own, which make one line beside the others."""
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


def table(budget: str, asked: Sequence[str] = (), *, clock: bool = False) -> Table:
    """clock: build every model and run it, too."""
    heads = ["model", "parameters", "encoder", "MFLOPs a token", "by formula", "parameters to BERT", "FLOPs to BERT"]
    if clock:
        heads += ["ms a row", "ms for 32", "tokens/s in training", "peak MiB"]
    rows = []
    against: dict[str, dict[str, float]] = {}
    for label, overrides in lines(budget, asked).items():
        this = config([f"budget={budget}", *overrides])
        found = sizes(this)
        size = label.partition(" ")[2]
        if label.startswith("bert"):
            against[size] = found
        # Against the BERT of the same size; where there is none, the largest there is.
        other = against.get(size) or (list(against.values())[-1] if against else found)
        row = [
            label,
            _millions(found["cost/parameters"]),
            _millions(found["cost/encoder_parameters"]),
            f"{found['cost/flops_a_token'] / 1e6:,.1f}",
            f"{formula(this['model']) / 1e6:,.1f}",
            f"1 : {other['cost/encoder_parameters'] / found['cost/encoder_parameters']:.1f}",
            f"1 : {other['cost/flops_a_token'] / found['cost/flops_a_token']:.2f}",
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
    return Table(f"Cost at budget {budget}", heads, rows)


def _millions(number: float) -> str:
    return f"{number / 1e6:,.2f}M"
