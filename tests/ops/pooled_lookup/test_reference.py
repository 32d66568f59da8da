from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hybridrec.ops.pooled_lookup.reference import COMBINERS, Combiner, pool

POOLED: list[Combiner] = ["sum", "mean", "sqrtn", "max"]
RAGGED = st.lists(st.lists(st.integers(-1, 6), max_size=5), max_size=6)  # -1 is a missing id


def packed(bags: list[list[int]]) -> tuple[Tensor, Tensor]:
    """The slots and the offsets of these bags."""
    flat = [slot for bag in bags for slot in bag]
    lengths = torch.tensor([0, *map(len, bags)])
    return torch.tensor(flat, dtype=torch.int64), lengths.cumsum(0)


def table(rows: int = 7, dim: int = 3, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(rows, dim, generator=torch.Generator().manual_seed(0), dtype=dtype)


def some_weights(count: int) -> Tensor:
    return torch.rand(count, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.5


def by_hand(rows: Tensor, bag: list[int], weights: list[float], combiner: Combiner) -> Tensor:
    """One bag, entry by entry."""
    entries = [w * (rows[slot] if slot >= 0 else rows[0] * 0) for slot, w in zip(bag, weights, strict=True)]
    divisor = {"mean": sum(weights), "sqrtn": sum(w * w for w in weights) ** 0.5}.get(combiner, 1.0)
    if not entries or divisor == 0:
        return torch.zeros(rows.shape[1], dtype=rows.dtype)
    return torch.stack(entries).amax(0) if combiner == "max" else torch.stack(entries).sum(0) / divisor


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("combiner", POOLED)
@given(bags=RAGGED)
def test_any_bags_pool_as_by_hand(combiner, weighted, bags):
    slots, offsets = packed(bags)
    weights = some_weights(len(slots)) if weighted else None
    out = pool(table(), slots, offsets, weights, combiner)
    parts = torch.ones(len(slots)) if weights is None else weights
    expected = [
        by_hand(table(), bag, parts[offsets[i] : offsets[i + 1]].tolist(), combiner) for i, bag in enumerate(bags)
    ]
    assert out.shape == (len(bags), 3)
    for got, want in zip(out, expected, strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("weighted", [False, True])
@given(bags=RAGGED)
def test_without_pooling_each_entry_keeps_its_weighted_row(weighted, bags):
    slots, offsets = packed(bags)
    weights = some_weights(len(slots)) if weighted else None
    out = pool(table(), slots, offsets, weights, "none")
    padded = torch.cat([table(), torch.zeros(1, 3)])
    expected = padded[slots] if weights is None else padded[slots] * weights[:, None]
    assert torch.equal(out, expected)


@pytest.mark.parametrize(("combiner", "weighted"), [("sum", False), ("sum", True), ("mean", False), ("max", False)])
def test_outputs_and_gradients_are_those_of_embedding_bag(combiner, weighted):
    slots, offsets = packed([[1, 2, 2], [], [0], [6, 5, 4, 6], [3]])
    results = []
    for ours in [True, False]:
        rows = table().requires_grad_()
        weights = some_weights(len(slots)).requires_grad_() if weighted else None
        if ours:
            out = pool(rows, slots, offsets, weights, combiner)
        else:
            out = torch.nn.functional.embedding_bag(
                slots, rows, offsets, mode=combiner, per_sample_weights=weights, include_last_offset=True
            )
        (out * torch.arange(1.0, 16).view(5, 3)).sum().backward()
        results.append([out, rows.grad, weights.grad if weights is not None else None])
    for got, want in zip(*results, strict=True):
        assert (got is None) == (want is None)
        if got is not None:
            torch.testing.assert_close(got, want)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("combiner", COMBINERS)
def test_gradients_pass_gradcheck(combiner, weighted):
    slots, offsets = packed([[1, 2, 2], [], [0, -1], [6, 5, 4, 6], [-1]])
    rows, weights = table().requires_grad_(), some_weights(len(slots)).requires_grad_()
    if weighted:
        assert torch.autograd.gradcheck(lambda r, w: pool(r, slots, offsets, w, combiner), (rows, weights))
    else:
        assert torch.autograd.gradcheck(lambda r: pool(r, slots, offsets, None, combiner), (rows,))


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_the_gradient_of_a_weight_is_that_of_the_formula(combiner):
    slots, offsets = packed([[1, 2, 2, -1]])
    weights = some_weights(4).requires_grad_()
    out = pool(table(), slots, offsets, weights, combiner)
    g = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    out.backward(g[None])
    x, w = torch.cat([table(), torch.zeros(1, 3)])[slots], weights.detach()
    squares = w.square().sum()
    expected = {
        "sum": x @ g,
        "mean": (x - out) @ g / w.sum(),
        "sqrtn": (x / squares.sqrt() - out * w[:, None] / squares) @ g,
    }[combiner]
    torch.testing.assert_close(weights.grad, expected.detach())


# -- the cases of others ---------------------------------------------------------------------------------------


def test_the_embedding_layer_of_distributed_embeddings_gives_the_same():
    rows = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    assert pool(rows, *packed([[0], [1], [0]]), None, "sum").tolist() == [[1, 2], [3, 4], [1, 2]]
    assert pool(rows, *packed([[0, 1], [2, 0]]), None, "sum").tolist() == [[4, 6], [6, 8]]
    assert pool(rows, *packed([[0, 1], [2, 0], [1, 2]]), None, "mean").tolist() == [[2, 3], [3, 4], [4, 5]]
    rows = torch.tensor([[0.0, 3.0], [1.0, 5.0], [7.0, 2.0]])
    assert pool(rows, *packed([[1, 2, 2], [0], [1, 2]]), None, "mean").tolist() == [[5, 3], [0, 3], [4, 3.5]]


def test_duplicates_count_twice_and_an_empty_sample_is_zero_as_in_persia():
    rows = table().requires_grad_()
    out = pool(rows, *packed([[3, 3], []]), None, "sqrtn")
    torch.testing.assert_close(out[0], 2 * table()[3] / 2**0.5)
    assert out[1].tolist() == [0, 0, 0]
    out.sum().backward()
    assert rows.grad is not None
    assert torch.isfinite(rows.grad).all()
    torch.testing.assert_close(rows.grad[3], torch.full((3,), 2**0.5, dtype=torch.float64))


# -- the borders -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("combiner", ["mean", "sqrtn"])
def test_a_divisor_of_zero_gives_zeros_and_zero_gradients(combiner):
    slots, offsets = packed([[1, 2], [3]])
    zero_sum = [2.0, -2.0, 1.0] if combiner == "mean" else [0.0, 0.0, 1.0]
    rows, weights = table().requires_grad_(), torch.tensor(zero_sum, dtype=torch.float64, requires_grad=True)
    out = pool(rows, slots, offsets, weights, combiner)
    assert out[0].tolist() == [0, 0, 0]
    torch.testing.assert_close(out[1], table()[3])
    out.sum().backward()
    assert rows.grad is not None
    assert weights.grad is not None
    assert rows.grad[1:3].tolist() == [[0, 0, 0], [0, 0, 0]]
    assert weights.grad[:2].tolist() == [0, 0]
    assert rows.grad[3].tolist() == [1, 1, 1]


@pytest.mark.parametrize("combiner", COMBINERS)
def test_missing_ids_count_and_take_no_gradient(combiner):
    rows = (table().abs() + 1).requires_grad_()
    slots, offsets = packed([[2, -1, -1, -1]])
    out = pool(rows, slots, offsets, None, combiner)
    divisor = {"mean": 4, "sqrtn": 2}.get(combiner, 1)
    torch.testing.assert_close(out[0], rows.detach()[2] / divisor)
    out.sum().backward()
    assert rows.grad is not None
    assert rows.grad.abs().sum(1).nonzero().flatten().tolist() == [2]


def test_a_missing_id_can_win_the_maximum():
    rows = torch.tensor([[-1.0, 2.0]], requires_grad=True)
    out = pool(rows, *packed([[0, -1]]), None, "max")
    assert out.tolist() == [[0, 2]]
    out.sum().backward()
    assert rows.grad is not None
    assert rows.grad.tolist() == [[0, 1]]


def test_the_first_of_equal_entries_takes_the_gradient_of_the_maximum():
    rows = torch.tensor([[5.0, 1.0], [5.0, 2.0], [5.0, 2.0]], requires_grad=True)
    weights = torch.ones(3, requires_grad=True)
    pool(rows, *packed([[2, 1, 0]]), weights, "max").sum().backward()
    assert rows.grad is not None
    assert weights.grad is not None
    assert rows.grad.tolist() == [[0, 0], [0, 0], [1, 1]]
    assert weights.grad.tolist() == [7, 0, 0]


def test_a_nan_wins_the_maximum_and_is_seen():
    rows = torch.tensor([[1.0, 1.0], [float("nan"), 0.0]])
    out = pool(rows, *packed([[0, 1, 0], [0]]), None, "max")
    assert out.isnan().tolist() == [[True, False], [False, False]]


@pytest.mark.parametrize("combiner", COMBINERS)
def test_a_table_without_rows_and_a_batch_without_bags_work(combiner):
    nothing = torch.empty(0, 3)
    out = pool(nothing, *packed([[-1, -1], []]), None, combiner)
    assert out.abs().sum() == 0
    assert pool(table(), *packed([]), None, combiner).shape == (0, 3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("combiner", COMBINERS)
def test_half_rows_are_pooled_in_float32(combiner, dtype):
    half = table(dtype=torch.float32).to(dtype)
    slots, offsets = packed([[1, 2, 3], [4, 4]])
    out = pool(half, slots, offsets, None, combiner)
    assert out.dtype == torch.float32
    assert torch.equal(out, pool(half.float(), slots, offsets, None, combiner))


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn", "none"])
def test_an_id_of_several_rows_counts_once(combiner):
    whole = table(4)
    halves = torch.stack([0.25 * whole, 0.75 * whole], 1).flatten(0, 1)  # id i is rows 2 i and 2 i + 1
    slots, offsets = packed([[0, 1, 1], [], [3]])
    weights = some_weights(4)
    spread = torch.stack([2 * slots, 2 * slots + 1], 1).flatten()
    out = pool(halves, spread, 2 * offsets, weights.repeat_interleave(2), combiner, group=2)
    torch.testing.assert_close(out, pool(whole, slots, offsets, weights, combiner))


def test_what_cannot_be_pooled_is_refused():
    with pytest.raises(ValueError, match="'median' is unknown; choose one of sum, mean, sqrtn, max, none"):
        pool(table(), *packed([[1]]), None, "median")  # pyright: ignore[reportArgumentType]  (what is tested)
    with pytest.raises(ValueError, match="'max' has no meaning for ids of 2 rows each"):
        pool(table(), *packed([[1, 2]]), None, "max", group=2)
