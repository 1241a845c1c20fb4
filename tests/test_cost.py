"""What a model costs: the count without weights, the formula and the paper's arithmetic agree, and a table says it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from lmab import checks
from lmab.cost import Peak, counted, formula, measured, row, sizes
from lmab.lab import costs
from lmab.machine import machine
from lmab.run import run
from lmab.wiring import bare_learner

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from omegaconf import DictConfig

    from lmab.lab.tables import Table

BERT = ["experiment=bert", "budget=paper", "corpus=files"]  # the corpus has no path: it is never opened


def config(composed: Callable[..., DictConfig], *overrides: str) -> dict[str, Any]:
    plain = OmegaConf.to_container(composed(*overrides, "corpus.path=/nowhere.txt"), resolve=True)
    assert isinstance(plain, dict)
    return checks.checked({str(key): value for key, value in plain.items()})


def test_bert_base_has_the_published_sizes(composed: Callable[..., DictConfig]) -> None:
    found = sizes(config(composed, *BERT))
    assert found["cost/encoder_parameters"] == 109_482_240  # of bert-base-uncased, with its pooler
    # and beside it the token head's transform, norm and bias, and a head of two for the next sentence
    assert found["cost/parameters"] == 109_482_240 + 768 * 768 + 768 + 2 * 768 + 30_522 + 2 * 768 + 2


@settings(max_examples=10, deadline=None)
@given(dim=st.sampled_from([8, 24]), depth=st.integers(1, 3), ffn=st.integers(1, 40), length=st.integers(8, 40))
def test_the_count_is_that_of_the_formula(
    composed: Callable[..., DictConfig], dim: int, depth: int, ffn: int, length: int
) -> None:
    """A product of [m, k] and [k, n] is 2 m k n operations; norms, sums and activations are not counted."""
    given_ = [f"model.{k}={v}" for k, v in {"dim": dim, "depth": depth, "ffn": ffn, "length": length}.items()]
    found = sizes(
        config(
            composed,
            *("experiment=roberta", "corpus=files", "model.heads=2", *given_),
            *(f"segments.length={length}", f"evaluation.segments.length={length}"),
        )
    )
    vocab, kinds, positions = 600, 1, length
    layer = 4 * (dim * dim + dim) + (2 * dim * ffn + ffn + dim) + 4 * dim
    assert found["cost/encoder_parameters"] == (vocab + positions + kinds) * dim + 2 * dim + depth * layer
    assert found["cost/flops_a_token"] == depth * 2 * (4 * dim * dim + 2 * dim * ffn + 2 * length * dim)


def test_sharing_saves_parameters_and_no_arithmetic(composed: Callable[..., DictConfig]) -> None:
    plain = ["model=albert", "corpus=files", "model.depth=6"]
    none, all_ = (sizes(config(composed, *plain, f"model.share={share}")) for share in ("none", "all"))
    one = sizes(config(composed, "model=albert", "corpus=files", "model.depth=1"))
    assert all_["cost/flops_a_token"] == none["cost/flops_a_token"]
    assert all_["cost/encoder_parameters"] == one["cost/encoder_parameters"] < none["cost/encoder_parameters"]


EXPERIMENTS = ["bert", "roberta", "albert", "xlnet", "transformer_xl"]


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_a_count_needs_no_memory_and_is_that_of_the_model(experiment: str, composed: Callable[..., DictConfig]) -> None:
    made = config(composed, f"experiment={experiment}", "corpus=files")
    found = sizes(made)
    learner = bare_learner(made, seed=0).eval()
    assert found["cost/parameters"] == sum(p.numel() for p in learner.parameters())
    assert 0 < found["cost/encoder_parameters"] < found["cost/parameters"]
    length = made["model"]["length"]
    with counted() as counter:  # with real weights
        learner.network(row(length, 1, "cpu"))
    assert counter.get_total_flops() == length * found["cost/flops_a_token"]


# --- the formula

KINDS: dict[str, list[str]] = {
    **{name: [f"experiment={name}"] for name in EXPERIMENTS},
    "albert, groups": ["experiment=albert", "model.groups=2", "model.depth=5"],
    "albert, layers of a group": ["experiment=albert", "model.groups=2", "model.inner=3"],
    "albert, nothing shared": ["experiment=albert", "model.share=none"],
    "transformer_xl, shaw": ["experiment=transformer_xl", "model.positions=shaw"],
    "transformer_xl, sinusoidal": ["experiment=transformer_xl", "model.positions=sinusoidal", "model.memory=0"],
    "transformer_xl, untied": ["experiment=transformer_xl", "model.untied=true", "model.clamp=3"],
    "transformer_xl, clusters": ["experiment=transformer_xl", "model.cutoffs=[50,200]"],
}
SIZES = [
    {"dim": 8, "heads": 2, "ffn": 24, "length": 8, "depth": 2},
    {"dim": 30, "heads": 5, "ffn": 7, "length": 13, "depth": 3},
    {"dim": 64, "heads": 1, "ffn": 65, "length": 40, "depth": 7},
]


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"dim={size['dim']}")
@pytest.mark.parametrize("kind", KINDS)
def test_the_formula_is_the_count(kind: str, size: dict[str, int], composed: Callable[..., DictConfig]) -> None:
    lines = [f"model.{key}={value}" for key, value in size.items()]
    lengths = [f"segments.length={size['length']}"]
    made = config(composed, "corpus=files", *lines, *lengths, *KINDS[kind])
    assert formula(made["model"]) == pytest.approx(sizes(made)["cost/flops_a_token"], rel=1e-14)


@pytest.mark.parametrize(("dim", "depth"), [(8, 1), (30, 2), (25, 11)])
def test_the_formula_and_the_parameters_of_a_perceptron(
    dim: int, depth: int, composed: Callable[..., DictConfig]
) -> None:
    made = config(composed, "experiment=digits", f"model.dim={dim}", f"model.depth={depth}", "corpus=files")
    found = sizes(made)
    weights = 64 * dim + (depth - 1) * dim * dim
    assert found["cost/encoder_parameters"] == weights + depth * dim
    assert found["cost/parameters"] == weights + depth * dim + 10 * dim + 10
    assert formula(made["model"]) == found["cost/flops_a_token"] == 2 * weights / 64
    assert all(value > 0 for value in measured(made).values())


def test_the_table_has_a_line_for_a_perceptron() -> None:
    line = costs.table("smoke", ["experiment=digits"], clock=True).rows[0]
    assert line[:2] == ["experiment=digits", "2 x 16"]
    assert costs.NOTHING in line  # no BERT has its shape
    assert len(line) == 12
    assert all(float(cell.replace(",", "")) >= 0 for cell in line[8:])  # a millisecond is long for it


@pytest.mark.parametrize("paper", costs.PAPERS)
def test_the_formula_is_the_count_at_the_published_sizes(paper: str) -> None:
    for size in costs.PUBLISHED[paper]:
        made = costs.config(["budget=paper", f"experiment={paper}", *([f"size={size}"] if size else [])])
        assert formula(made["model"]) == pytest.approx(sizes(made)["cost/flops_a_token"], rel=1e-14)


def test_the_formula_by_hand() -> None:
    model = {"_target_": "lmab.models.bert.BERT", "dim": 2, "ffn": 3, "length": 5, "depth": 7}
    assert formula(model) == 2 * 7 * (4 * 2 * 2 + 2 * 2 * 3 + 2 * 5 * 2)
    # 9 distances for 5 tokens: each is projected once a row, and held against every query
    relative = model | {"_target_": "lmab.models.xlnet.XLNet"}
    assert formula(relative) == pytest.approx(formula(model) + 2 * 7 * (9 / 5 * 2 * 2 + 9 * 2))
    albert = model | {"_target_": "lmab.models.albert.ALBERT", "inner": 2, "embedding": 11}
    assert formula(albert) == 2 * formula(model) + 2 * 11 * 2


# --- the table


def column(table: Table, head: str) -> dict[str, str]:
    return {line[0]: line[table.head.index(head)] for line in table.rows}


@pytest.fixture(scope="module")
def paper() -> Table:
    return costs.table("paper", ["experiment=albert", "size=large"])


PARAMETERS = {  # as printed in the papers, in millions; rounded to as many digits
    "bert base": "110",
    "roberta base": "125",
    "roberta large": "355",
    "albert base": "12",
    "albert large": "18",
    "transformer_xl": "151",
}


def test_the_table_has_the_published_sizes(paper: Table) -> None:
    assert [line[0] for line in paper.rows] == [
        "experiment=albert size=large",
        *("bert base", "bert large", "roberta base", "roberta large"),
        *("albert base", "albert large", "albert xlarge", "albert xxlarge"),
        *("xlnet base", "xlnet large", "transformer_xl"),
    ]
    found = column(paper, "M parameters")
    assert {label: f"{float(found[label]):.0f}" for label in PARAMETERS} == PARAMETERS
    encoder = column(paper, "M in the encoder")
    # The checkpoints of BERT, the official code of ALBERT and transformers' XLNet, which the papers round further.
    assert (encoder["bert base"], encoder["bert large"]) == ("109.48", "335.14")
    assert (encoder["albert xlarge"], encoder["albert xxlarge"]) == ("58.72", "222.60")
    assert (encoder["xlnet base"], encoder["xlnet large"]) == ("116.72", "360.27")
    shapes = column(paper, "layers x dim x heads")
    assert shapes["albert xxlarge"] == "12 x 4096 x 64"
    assert shapes["transformer_xl"] == "16 x 410 x 10"
    assert column(paper, "MFLOPs a token") == column(paper, "by formula")


def test_the_table_says_what_sharing_saves(paper: Table) -> None:
    parameters, flops = (column(paper, f"of BERT's {what}") for what in ("encoder", "FLOPs"))
    assert (parameters["albert large"], flops["albert large"]) == ("5%", "100%")  # 19 times fewer, and none
    assert (parameters["albert base"], flops["albert base"]) == ("11%", "100%")
    assert (parameters["bert large"], flops["bert large"]) == ("100%", "100%")
    assert flops["xlnet base"] == "125%"  # of distances
    for label in ("albert xlarge", "albert xxlarge", "transformer_xl"):  # no BERT has their shape
        assert parameters[label] == flops[label] == "\u2013"
    for name, cells in (("mine", paper.rows[0][1:]), ("theirs", paper.rows[6][1:])):
        assert cells == paper.rows[6][1:], name


def test_the_clock_runs_every_model() -> None:
    table = costs.table("smoke", clock=True)
    assert [line[0] for line in table.rows] == list(costs.PAPERS)
    assert {len(line) for line in table.rows} == {len(table.head)} == {12}
    for line in table.rows:
        assert all(float(cell.replace(",", "")) > 0 for cell in line[8:])
    assert len(costs.table("smoke").head) == 8


def test_what_is_measured(composed: Callable[..., DictConfig]) -> None:
    made = config(composed, "experiment=roberta", "corpus=files")
    found = measured(made)
    assert set(found) == {f"cost/{name}" for name in ("latency_1", "latency_32", "tokens_a_second", "peak_memory")}
    assert all(value > 0 for value in found.values())


def test_a_run_records_what_it_took(composed: Callable[..., DictConfig], tmp_path: Path) -> None:
    record = run(composed("experiment=roberta", "trainer.steps=2", f"store={tmp_path / 'runs'}"))
    assert record.cost["latency_32"] > record.cost["latency_1"] > 0
    assert record.cost["peak_memory"] > 2**20
    # At least the layers below the last everywhere, and three times over: forward, and twice that backward.
    whole = formula(record.config["model"])
    assert 1.5 * whole < record.cost["flops_a_token"] < 6 * whole


def test_the_peak_is_that_since_the_reset() -> None:
    """Also where the process keeps what it no longer needs, as it does for the sake of speed."""
    peak = Peak(torch.device("cpu"))
    with machine(None):
        peak.reset()
        low = peak.bytes()
        torch.ones(2**26)  # 256 MiB, held for a moment
        high = peak.bytes()
        assert 0.9 * 2**28 < high - low < 2**29  # a little may lie where memory was free before
        peak.reset()
        assert abs(peak.bytes() - low) < 2**26


# --- through the command line


@pytest.mark.slow
def test_the_command_line_prints_it(lmab: Callable[..., tuple[int, str, str]], paper: Table) -> None:
    status, said, error = lmab("cost", "experiment=albert", "size=large", "--budget", "paper")
    assert (status, error) == (0, "")
    for line in paper.rows:
        assert any(all(cell in printed for cell in line) for printed in said.splitlines())
    assert paper.note in said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["experiment=albrt"], "There is no experiment=albrt: did you mean albert"),
        (["model.dpeth=3"], "did you mean model.depth"),
        (["model.depth=three"], "model.depth"),
        (["model.dim=30", "model.heads=4"], "not divisible by heads=4"),
        (["model.groups=2"], "model=albert has it"),
        (["--budget", "papr"], "There is no budget=papr: did you mean paper"),
        (["large"], "'large'"),
        (["budget=paper"], "--budget paper"),
        (["sweeps=roberta/masking"], "is many runs"),
    ],
)
def test_what_cannot_work_is_one_sentence_and_status_2(
    words: list[str], says: str, lmab: Callable[..., tuple[int, str, str]]
) -> None:
    status, out, err = lmab("cost", *words)
    assert (status, out) == (2, "")
    (sentence,) = err.splitlines()
    assert says in sentence
