from __future__ import annotations

import pytest
import torch

from hybridrec.models.layers import AttentionPooling
from hybridrec.models.layers.attention import row_softmax


def row_by_row(pool: AttentionPooling, query, keys, offsets):
    """The paper's activation unit as a loop over rows and items."""
    out = []
    for row in range(len(query)):
        items = keys[offsets[row] : offsets[row + 1]]
        q = query[row]
        scores = [pool.score(torch.cat([q, k, q - k, q * k])) for k in items]
        if not scores:
            out.append(torch.zeros_like(q))
            continue
        weights = torch.cat(scores)
        weights = weights.softmax(0) if pool.softmax else weights
        out.append((weights[:, None] * items).sum(0))
    return torch.stack(out)


@pytest.mark.parametrize("softmax", [False, True])
def test_it_is_the_loop_over_rows_and_items(softmax):
    pool = AttentionPooling(3, (5,), softmax=softmax)
    query, keys, offsets = torch.randn(4, 3), torch.randn(6, 3), torch.tensor([0, 2, 2, 5, 6])
    assert torch.allclose(pool(query, keys, offsets), row_by_row(pool, query, keys, offsets), atol=1e-6)


@pytest.mark.parametrize("softmax", [False, True])
def test_gradients_are_those_of_the_loop(softmax):
    pool = AttentionPooling(3, (5,), softmax=softmax).double()
    query, keys = (torch.randn(n, 3, dtype=torch.float64, requires_grad=True) for n in (3, 4))
    offsets = torch.tensor([0, 3, 3, 4])
    wanted = torch.autograd.grad(row_by_row(pool, query, keys, offsets).square().sum(), (query, keys))
    got = torch.autograd.grad(pool(query, keys, offsets).square().sum(), (query, keys))
    assert all(torch.allclose(a, b) for a, b in zip(wanted, got, strict=True))


def test_rows_without_items_and_batches_without_rows_give_zeros():
    pool = AttentionPooling(3)
    assert not pool(torch.randn(2, 3), torch.empty(0, 3), torch.tensor([0, 0, 0])).any()
    assert pool(torch.empty(0, 3), torch.empty(0, 3), torch.tensor([0])).shape == (0, 3)


def test_the_softmax_of_a_row_sums_to_one_and_bears_large_scores():
    row = torch.tensor([0, 0, 2])
    shares = row_softmax(torch.tensor([[1000.0], [1000.0], [-1000.0]]), row, rows=3)
    assert shares.flatten().tolist() == [0.5, 0.5, 1.0]
