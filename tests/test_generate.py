"""A text goes on: scores token by token are those of one forward pass, draws are what was asked for."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from scipy.stats import chi2

from lmab import checks
from lmab.generate import Sampling, continued, scores, text
from lmab.run import run
from lmab.store import Store
from lmab.trained import opened
from lmab.types import BadInput, Batch, View
from lmab.wiring import bare_learner

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from omegaconf import DictConfig
    from torch import Tensor

    from lmab.nn.network import Network

    Build = Callable[..., tuple[Network, dict[str, Any]]]

L, V = 8, 600  # places of a row, types
GENERATOR = torch.Generator().manual_seed(0)
TEXT = torch.randint(5, V, (29,), generator=GENERATOR).tolist()
FIRST = 3 * L + 2  # tokens of the text that are given at once: three rows, and the beginning of a fourth


@pytest.fixture(scope="session")
def build(composed: Callable[..., DictConfig]) -> Build:
    """A small network whose weights are large enough to tell places apart, and its objectives by name."""

    def made(*overrides: str) -> tuple[Network, dict[str, Any]]:
        config = OmegaConf.to_container(composed(*overrides, f"segments.length={L}"), resolve=True)
        assert isinstance(config, dict)
        config = checks.checked({str(key): value for key, value in config.items()})
        learner = bare_learner(config, seed=0).eval()
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in learner.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
        return cast("Network", learner.network), config["objective"]

    return made


def batch(tokens: Sequence[int], view: View) -> Batch:
    return Batch(torch.tensor([[*tokens]]), None, view, {}, torch.zeros(1, dtype=torch.long), 1, len(tokens))


def causal(T: int) -> View:
    return View(torch.ones(T, T, dtype=torch.bool).tril()[None, None])


@torch.no_grad()
def read(
    build: Build, overrides: Sequence[str], text: Sequence[int] = TEXT, first: int = FIRST, **given: Any
) -> Tensor:
    """The scores after the first tokens, and after each that follows them: [len(text) - first + 1, V]."""
    network, objectives = build(*overrides)
    reader = scores(network, objectives, text[:first], length=L, **given)
    return torch.stack([next(reader), *(reader.send(token) for token in text[first:])])


def close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
    # Scores of one place are not those of another, or the comparison would say nothing.
    assert (wanted[1:] - wanted[:-1]).abs().max() > 0.1


# --- a language model

XL = ["experiment=transformer_xl", "model.memory=32"]


@pytest.mark.parametrize("more", [[], ["model.positions=shaw"], ["model.untied=true", "model.cutoffs=[100,300]"]])
@torch.no_grad()
def test_with_all_in_memory_it_reads_as_in_one_pass(build: Build, more: list[str]) -> None:
    network, _ = build(*XL, *more)
    whole = network(batch(TEXT, causal(len(TEXT)))).hidden[0]  # [T, D]
    close(read(build, [*XL, *more], memory=len(TEXT)), network.token_logits(whole[FIRST - 1 :]))


@torch.no_grad()
def test_with_a_shorter_memory_it_reads_as_rows_do(build: Build) -> None:
    network, _ = build(*XL)
    held: tuple[Tensor, ...] = ()
    wanted = []
    for start, stop in [
        *((i * L, i * L + L) for i in range(3)),
        (3 * L, FIRST),
        *((i, i + 1) for i in range(FIRST, 29)),
    ]:
        encoded = network(batch(TEXT[start:stop], causal(stop - start)), memory=held, remember=5)
        held = encoded.memory
        wanted.append(network.token_logits(encoded.hidden[0, -1:])[0])
    found = read(build, XL, memory=5)
    close(found, torch.stack(wanted[3:]))
    assert (found - read(build, XL, memory=29)).abs().max() > 0.1


@pytest.mark.parametrize(
    "overrides",
    [
        XL,
        ["experiment=transformer_xl", "model.memory=0", "model.positions=sinusoidal"],
        ["model=bert", "objective=[clm]"],
    ],
)
@torch.no_grad()
def test_without_memory_it_reads_the_last_row_again(build: Build, overrides: list[str]) -> None:
    network, _ = build(*overrides)
    rows = [TEXT[stop - L : stop] for stop in range(FIRST, len(TEXT) + 1)]
    wanted = torch.stack([network.token_logits(network(batch(row, causal(L))).hidden[0, -1:])[0] for row in rows])
    close(read(build, overrides, memory=0), wanted)


@torch.no_grad()
def test_a_text_shorter_than_a_row_is_a_shorter_row(build: Build) -> None:
    network, _ = build(*XL)
    wanted = network.token_logits(network(batch(TEXT[:6], causal(6))).hidden[0, 2:])
    for memory in (0, 32):
        close(read(build, XL, TEXT[:6], 3, memory=memory), wanted)


@torch.no_grad()
def test_every_row_begins_as_in_training(build: Build) -> None:
    """BERT's rows have [CLS] first, and so has every row that is read again."""
    overrides = ["model=bert", "objective=[clm]"]
    network, _ = build(*overrides)
    ends = range(L - 2, 2 * L)
    rows = [[2, *TEXT[max(0, end - L + 1) : end]] for end in ends]
    wanted = [network.token_logits(network(batch(row, causal(len(row)))).hidden[0, -1:])[0] for row in rows]
    close(read(build, overrides, TEXT[: ends[-1]], ends[0], memory=0, head=[2]), torch.stack(wanted))


# --- a permutation language model

XLNET = ["experiment=xlnet", "model.memory=32"]


def asking(T: int) -> View:
    """T places that see each other, and a query for the one behind them."""
    seen = torch.tensor([True] * T + [False])
    return View(seen.expand(1, 1, T + 1, T + 1), torch.tensor([[T]]), seen[None, None, None])


@torch.no_grad()
def test_the_query_stream_is_asked_for_the_next_place(build: Build) -> None:
    network, _ = build(*XLNET)
    wanted = []
    for end in range(4, L):
        encoded = network(batch([*TEXT[:end], 0], asking(end)))
        wanted.append(network.token_logits(encoded.second)[0])
        other = network(batch([*TEXT[:end], 77], asking(end)))  # what stands at that place is nobody's business
        assert torch.equal(encoded.second, other.second)
    for memory in (0, 32):
        close(read(build, XLNET, TEXT[: L - 1], 4, memory=memory), torch.stack(wanted))


@torch.no_grad()
def test_without_memory_the_query_sees_the_row_before_it(build: Build) -> None:
    network, _ = build(*XLNET)
    wanted = []
    for end in range(FIRST, len(TEXT) + 1):
        encoded = network(batch([*TEXT[end - L + 1 : end], 0], asking(L - 1)))
        wanted.append(network.token_logits(encoded.second)[0])
    close(read(build, XLNET, memory=0), torch.stack(wanted))


@torch.no_grad()
def test_full_rows_go_into_the_memory(build: Build) -> None:
    """Also the row that becomes full on the way."""
    network, _ = build(*XLNET)
    held: tuple[Tensor, ...] = ()
    wanted = {}
    for start in range(0, len(TEXT), L):
        row = TEXT[start : start + L]
        for end in range(len(row)):
            encoded = network(batch([*row[:end], 0], asking(end)), memory=held)
            wanted[start + end] = network.token_logits(encoded.second)[0]
        held = network(batch(row, View()), memory=held, remember=12).memory
    ends = range(L - 2, len(TEXT))
    close(read(build, XLNET, TEXT[: ends[-1]], ends[0], memory=12), torch.stack([wanted[end] for end in ends]))


def test_what_is_in_the_memory_counts_and_what_is_beyond_does_not(build: Build) -> None:
    """Two layers with L places each see rows through rows: what lies two rows further back is out of reach."""
    one = read(build, XLNET, memory=L)[0]
    for place, counts in (
        (3 * L, True),
        (3 * L - 1, True),
        (2 * L, True),
        (2 * L - 1, True),
        (L - 1, False),
        (0, False),
    ):
        other = [*TEXT]
        other[place] = 5 + (other[place] - 4) % (V - 5)
        assert (not torch.equal(read(build, XLNET, other, memory=L)[0], one)) is counts, place


# --- draws

LOGITS = torch.tensor([0.3, 2.0, -1.0, 1.0, 0.3, -3.0])
DRAWS = 4000


def drawn(sampling: Sampling, logits: Tensor, times: int = 200) -> np.ndarray:
    """How often each token came. [V]"""
    return np.bincount([sampling.draw(logits, step) for step in range(times)], minlength=len(logits))


@pytest.mark.parametrize("given", [{"temperature": 0.0}, {"top_k": 1}, {"top_p": 1e-9}, {"temperature": 1e-320}])
def test_the_likeliest_token(given: dict[str, Any]) -> None:
    assert drawn(Sampling(**given), LOGITS)[1] == 200


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_distribution(temperature: float) -> None:
    shares = (LOGITS.double() / temperature).softmax(0).numpy()
    found = drawn(Sampling(temperature=temperature, seed=1), LOGITS, DRAWS)
    surprise = ((found - DRAWS * shares) ** 2 / (DRAWS * shares)).sum()
    assert surprise < chi2.ppf(0.999, len(shares) - 1)
    flat = np.full(len(shares), 1 / len(shares))  # and the test would see another distribution
    assert ((found - DRAWS * flat) ** 2 / (DRAWS * flat)).sum() > chi2.ppf(0.999, len(shares) - 1)


@given(
    logits=st.lists(st.integers(-32, 32).map(lambda eighths: eighths / 8), min_size=2, max_size=8),  # some are equal
    top_p=st.floats(0.01, 1.0),
    top_k=st.none() | st.integers(1, 9),
)
def test_what_may_come_at_all(logits: list[float], top_p: float, top_k: int | None) -> None:
    """Of the likeliest tokens the fewest whose shares reach top_p together, and top_k of them at most."""
    heights = [math.exp(x - max(logits)) for x in logits]
    kept, reached = [], 0.0
    for number in sorted(range(len(logits)), key=lambda i: (-heights[i], i)):
        if reached >= top_p * (1 - 1e-12) or len(kept) == (top_k or len(logits)):
            break
        kept.append(number)
        reached += heights[number] / sum(heights)
    found = np.flatnonzero(drawn(Sampling(top_p=top_p, top_k=top_k), torch.tensor(logits), 60))
    assert set(found) <= set(kept)
    assert kept[0] in found or heights[kept[0]] / sum(heights[i] for i in kept) < 0.5


def test_every_token_that_may_come_does() -> None:
    assert (drawn(Sampling(top_k=3, temperature=3.0), LOGITS) > 0).tolist() == [True, True, False, True, False, False]
    shares = LOGITS.softmax(0).sort(descending=True).values.cumsum(0)
    for few in range(1, 7):  # just enough, and a little more than just enough
        for more, count in ((-1e-4, few), (1e-4, few + 1)):
            top_p = float(shares[few - 1]) + more
            if top_p < 1:
                assert (drawn(Sampling(top_p=top_p, seed=2), LOGITS, DRAWS) > 0).sum() == count


def test_a_draw_is_a_function_of_seed_and_step() -> None:
    flat = torch.zeros(1000)
    one, two = ([Sampling(seed=seed).draw(flat, step) for step in range(20)] for seed in (0, 1))
    assert one == [Sampling(seed=0).draw(flat, step) for step in range(20)]
    assert sum(a == b for a, b in zip(one, two, strict=True)) < 3
    assert len(set(one)) > 15
    Sampling(seed=-(10**30)).draw(flat, 0)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"temperature": -0.1}, "--temperature -0.1"),
        ({"temperature": math.inf}, "from 0 up"),
        ({"temperature": math.nan}, "--temperature nan"),
        ({"top_k": 0}, "at least 1"),
        ({"top_p": 0.0}, "above 0, up to 1"),
        ({"top_p": 1.1}, "--top-p 1.1"),
        ({"top_p": math.nan}, "--top-p nan"),
    ],
)
def test_draws_that_cannot_be(given: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        Sampling(**given)


# --- a whole text


def test_forbidden_tokens_never_come_and_the_end_stops(build: Build) -> None:
    network, objectives = build(*XL)

    def go_on(forbidden: Tensor, end: int, tokens: int = 40) -> list[int]:
        reader = scores(network, objectives, TEXT, length=L, memory=32)
        return continued(reader, Sampling(temperature=2.0), forbidden=forbidden, end=end, tokens=tokens)

    none = torch.zeros(V, dtype=torch.bool)
    free = go_on(none, end=-1)
    assert len(free) == 40
    assert go_on(none, end=free[7]) == free[: free.index(free[7])]
    assert go_on(none, end=-1, tokens=3) == free[:3]
    few = torch.arange(V) % 50 > 0
    assert not few[go_on(few, end=-1)].any()
    assert few[free].any()


def test_what_cannot_go_on(build: Build) -> None:
    for overrides in (["experiment=bert"], ["experiment=roberta"], ["experiment=albert"]):
        network, objectives = build(*overrides)
        with pytest.raises(BadInput, match=r"objective=\[mlm.*no probability for a text that goes on: .*xlnet"):
            scores(network, objectives, TEXT, length=L, memory=0)
    for overrides in (["model=bert", "objective=[clm]"], [*XL, "model.memory=0", "model.positions=sinusoidal"]):
        network, objectives = build(*overrides)
        with pytest.raises(BadInput, match="give --memory 0"):
            scores(network, objectives, TEXT, length=L, memory=4)


# --- through the command line

PROMPT = "The film was"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, composed: Callable[..., DictConfig]) -> tuple[Path, dict[str, str]]:
    """A store, and the names of runs of two steps in it."""
    store = tmp_path_factory.mktemp("generate") / "runs"
    lines = {
        "transformer_xl": ["experiment=transformer_xl"],
        "xlnet": ["experiment=xlnet"],
        "bert": ["experiment=bert"],
        "left_to_right": ["model=bert", "objective=[clm]"],
    }
    done = {name: run(composed(*line, "trainer.steps=2", f"store={store}")) for name, line in lines.items()}
    return store, {name: record.signature for name, record in done.items()}


@pytest.fixture
def call(
    runs: tuple[Path, dict[str, str]], lmab: Callable[..., tuple[int, str, str]]
) -> Callable[..., tuple[int, str, str]]:
    """`lmab generate` for one of the runs: status, standard output, standard error."""
    store, names = runs
    return lambda name, *words: lmab(
        "--store", str(store), "generate", names.get(name, name), "--prompt", PROMPT, *words
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["transformer_xl", "xlnet"])
def test_two_processes_go_on_with_a_prompt_in_the_same_way(
    runs: tuple[Path, dict[str, str]],
    name: str,
    command: Callable[..., subprocess.CompletedProcess[str]],
    lmab: Callable[..., tuple[int, str, str]],
) -> None:
    store, names = runs
    line = ("--store", str(store), "generate", names[name][:8], "--prompt", PROMPT, "--seed", "3")
    other = command("-m", "lmab", *line)
    assert (other.returncode, other.stderr) == (0, "")
    assert other.stdout.startswith(PROMPT)
    assert len(other.stdout) > len(PROMPT) + 20
    assert lmab(*line) == (0, other.stdout, "")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["transformer_xl", "xlnet", "left_to_right"])
def test_what_is_drawn_is_what_was_asked_for(name: str, call: Callable[..., tuple[int, str, str]]) -> None:
    def said(*words: str) -> str:
        status, out, err = call(name, "--tokens", "50", *words)
        assert (status, err) == (0, "")
        assert out.startswith(PROMPT)
        return out

    text = said()
    assert said("--seed", "0") == text
    assert said("--seed", "1") != text
    assert said("--temperature", "0", "--seed", "2") == said("--top-k", "1")
    assert len(said("--tokens", "1")) < len(text) / 5
    if name != "left_to_right":
        assert said("--memory", "0") != said("--memory", "30")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words", "says"),
    [
        ("bert", [], "has no probability for a text that goes on"),
        ("transformer_xl", ["--top-p", "1.5"], "--top-p 1.5 is a share"),
        ("transformer_xl", ["--top-p", "much"], "'much' is not a valid float"),
        ("transformer_xl", ["--tokens", "0"], "0 is not in the range"),
        ("transformer_xl", ["--prompt", ""], "--prompt holds no word"),
        ("xlnet", ["--prompt", " \n "], "--prompt holds no word"),
        ("left_to_right", ["--memory", "8"], "give --memory 0"),
        ("zz", [], "`lmab list` shows"),
    ],
)
def test_what_cannot_work_is_one_sentence_and_status_2(
    name: str, words: list[str], says: str, call: Callable[..., tuple[int, str, str]]
) -> None:
    status, out, err = call(name, *words)
    assert (status, out) == (2, "")
    (sentence,) = err.splitlines()
    assert sentence.startswith("lmab: ")
    assert says in sentence


@pytest.mark.slow
def test_a_store_that_was_moved_is_opened_where_it_lies(tmp_path: Path, composed: Callable[..., DictConfig]) -> None:
    """Also where a run read its text through the tokenizer of another."""
    line = ["experiment=finetune", "start=['experiment=transformer_xl','trainer.steps=1']", "trainer.steps=1"]
    record = run(composed(*line, f"store={tmp_path / 'old'}"))
    (tmp_path / "old").rename(tmp_path / "new")
    found = opened(Store(tmp_path / "new"), record.signature)
    assert found.prepared.tokenizer.is_relative_to(tmp_path / "new")
    assert not (tmp_path / "old").exists()
    with pytest.raises(BadInput, match=r"objective=\[classify\] has no probability"):
        text(found, PROMPT, Sampling(), tokens=1, memory=None)


@pytest.mark.slow
def test_a_run_that_is_not_done_goes_on_with_nothing(
    runs: tuple[Path, dict[str, str]], call: Callable[..., tuple[int, str, str]]
) -> None:
    store = Store(runs[0])
    record = store.select(runs[1]["xlnet"])
    record.state = "running"
    store.write(record)
    status, _, err = call("xlnet")
    record.state = "done"
    store.write(record)
    assert status == 2
    assert err == f"lmab: Run {record.signature} is running, not done: finish it first.\n"
