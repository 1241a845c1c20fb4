"""The attention core: softmax by hand, who is seen and who is not, queries that see nobody."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmab.nn.attention import Attention, width
from lmab.nn.position import Absolute, Distances, Relative
from lmab.nn.sight import Sight
from lmab.types import BadInput

HEADS, WIDTH = 2, 4
DIM = HEADS * WIDTH
BOTH = pytest.mark.parametrize("kind", ["absolute", "relative"])


def attention(scatter, kind: str, *, dropout: float = 0.0, bias: bool = True) -> Attention:
    position: torch.nn.Module = Absolute()
    if kind == "relative":
        u, v = (torch.nn.Parameter(torch.empty(HEADS, WIDTH)) for _ in range(2))
        position = Relative(dim=DIM, u=u, v=v)
    found = Attention(dim=DIM, heads=HEADS, dropout=dropout, position=position, bias=bias)
    scatter(found, 0.5)
    return found


def sight(content: int, memory: int, mask: torch.Tensor | None, dtype: torch.dtype) -> Sight:
    """Of content alone, with its distances as vectors."""
    plain = Sight(content, memory, mask)
    encoded = Distances(dim=DIM, clamp=None, dropout=0.0)(plain, torch.device("cpu"))
    return Sight(content, memory, mask, encoded=encoded.to(dtype))


def states(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def coins(*shape: int, seed: int = 2, share: float = 0.5) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < share


# Values


@settings(max_examples=30)
@given(
    content=st.integers(1, 6),
    memory=st.integers(0, 4),
    masked=st.booleans(),
    bias=st.booleans(),
    seed=st.integers(0, 99),
)
@BOTH
def test_it_is_the_softmax_of_what_is_seen(scatter, kind, content, memory, masked, bias, seed):
    model = attention(scatter, kind, bias=bias).double()
    hidden, before = states(2, content, seed=seed), states(2, memory, seed=seed + 100)
    source = torch.cat([before, hidden], 1)
    mask = coins(2, 1, content, memory + content, seed=seed) if masked else None
    at = sight(content, memory, mask, torch.float64)
    with torch.no_grad():
        found = model(hidden, at, source if memory else None)
        shift = 0 if model.qkv.bias is None else model.qkv.bias
        q, k, v = (
            (rows @ model.qkv.weight.T + shift).view(2, -1, 3, HEADS, WIDTH)[:, :, part]
            for part, rows in enumerate((hidden, source, source))
        )
        query, added = model.position(q.transpose(1, 2), at)
        for row, i in itertools.product(range(2), range(content)):
            heads = []
            for head in range(HEADS):
                seen = [j for j in range(memory + content) if mask is None or mask[row, 0, i, j]]
                scores = [float(query[row, head, i] @ k[row, j, head]) / math.sqrt(WIDTH) for j in seen]
                if added is not None:
                    scores = [score + float(added[row, head, i, j]) for score, j in zip(scores, seen, strict=True)]
                shares = torch.tensor(scores, dtype=torch.float64).exp()
                shares = shares / shares.sum()
                values = [share * v[row, j, head] for share, j in zip(shares, seen, strict=True)]
                heads.append(sum(values, torch.zeros(WIDTH, dtype=torch.float64)))
            torch.testing.assert_close(found[row, i], model.out(torch.cat(heads)), rtol=0, atol=1e-12)


@BOTH
def test_at_some_places_it_is_what_it_is_there(scatter, kind):
    model, hidden = attention(scatter, kind).double(), states(3, 5)
    at = sight(5, 0, coins(3, 1, 5, 5), torch.float64)
    places = torch.tensor([0, 3, 7, 14])
    torch.testing.assert_close(model(hidden, at, None, places), model(hidden, at).flatten(0, 1)[places])


@BOTH
def test_a_source_that_is_the_same_is_as_good_as_none(scatter, kind):
    model, hidden = attention(scatter, kind).double(), states(3, 5)
    at = sight(5, 0, None, torch.float64)
    torch.testing.assert_close(model(hidden, at, hidden.clone()), model(hidden, at))


# Who is seen


@settings(max_examples=60)
@given(
    content=st.integers(1, 6),
    memory=st.integers(0, 4),
    share=st.sampled_from([0.1, 0.5, 0.9]),
    seed=st.integers(0, 999),
    data=st.data(),
)
@BOTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_what_a_query_may_not_see_moves_no_bit_of_it(scatter, kind, dtype, content, memory, share, seed, data):
    """And what it may see does, in double precision."""
    model = attention(scatter, kind).to(dtype).eval()
    source = states(2, memory + content, seed=seed, dtype=dtype)
    mask = coins(2, 1, content, memory + content, seed=seed, share=share)
    row, key = data.draw(st.integers(0, 1)), data.draw(st.integers(0, memory + content - 1))
    other = source.clone()
    other[row, key] += torch.linspace(0.5, 1.5, DIM).to(dtype)
    at = sight(content, memory, mask, dtype)
    # The query asks what it asked: only what is looked at has changed.
    with torch.no_grad():
        one, two = (model(source[:, memory:], at, given_) for given_ in (source, other))
    moved = (one != two).any(-1)
    assert not moved[1 - row].any()
    assert not moved[row][~mask[row, 0, :, key]].any()
    if dtype == torch.float64:
        assert torch.equal(moved[row], mask[row, 0, :, key])


@BOTH
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("memory", [0, 3])
def test_a_query_that_sees_nobody_gets_zeros_and_teaches_nothing(scatter, kind, dtype, dropout, memory):
    model = attention(scatter, kind, dropout=dropout).to(dtype).train()
    hidden = states(2, 4, dtype=dtype).requires_grad_()
    source = states(2, memory + 4, seed=5, dtype=dtype).requires_grad_()
    mask = torch.ones(2, 1, 4, memory + 4, dtype=torch.bool)
    mask[0, 0, 2] = False
    mask[1] = False
    with torch.random.fork_rng():
        found = model(hidden, sight(4, memory, mask, dtype), source)
    assert torch.equal(found[0, 2], model.out.bias)
    assert torch.equal(found[1], model.out.bias.expand(4, DIM))
    assert found.isfinite().all()
    found.square().sum().backward()
    for parameter in model.parameters():
        assert parameter.grad.isfinite().all()
    assert source.grad.isfinite().all()
    assert hidden.grad.isfinite().all()
    assert not source.grad[1].any()
    assert not hidden.grad[1].any()
    assert not hidden.grad[0, 2].any()
    assert source.grad[0].any()


def test_dropout_of_the_weights_is_there_in_training_alone(scatter):
    model, hidden = attention(scatter, "absolute", dropout=0.5), states(2, 5, dtype=torch.float32)
    at = Sight(5, 0)
    still = attention(scatter, "absolute")(hidden, at)
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(0)
        assert not torch.allclose(model.train()(hidden, at), still)
    assert torch.equal(model.eval()(hidden, at), still)


@pytest.mark.parametrize(("dim", "heads", "near"), [(9, 2, "dim=8 and dim=10"), (1, 2, "dim=2")])
def test_heads_that_do_not_divide_the_width_are_refused(dim, heads, near):
    assert width(8, 2) == 4
    with pytest.raises(BadInput, match=rf"^dim={dim} is not divisible by heads={heads}: the nearest .* {near}\.$"):
        Attention(dim=dim, heads=heads, dropout=0.0, position=Absolute())
