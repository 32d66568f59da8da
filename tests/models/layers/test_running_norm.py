from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from hybridrec.models.layers import RunningNorm


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(0, 1000))
def test_after_any_batches_it_knows_mean_and_variance_of_all_rows(sizes, seed):
    data = torch.randn(sum(sizes), 3, generator=torch.Generator().manual_seed(seed)) * 50 + 1000
    norm = RunningNorm(3)
    for part in data.split(sizes):
        norm(part)
    if len(data) > 1:
        assert torch.allclose(norm.mean, data.double().mean(0))
        assert torch.allclose(norm.squares / norm.count, data.double().var(0, correction=0), rtol=1e-6)


def test_training_and_evaluation_give_the_same_and_evaluation_counts_nothing():
    norm, data = RunningNorm(2), torch.randn(50, 2) * 3 + 5
    out = norm(data)
    before = norm.count.clone()
    assert torch.equal(norm.eval()(data), out)
    assert torch.equal(norm.count, before)
    assert torch.allclose(out.mean(0), torch.zeros(2), atol=1e-5)
    assert torch.allclose(out.var(0, correction=0), torch.ones(2), atol=1e-4)


def test_a_column_that_is_constant_becomes_zero():
    assert not RunningNorm(1)(torch.full((4, 1), 7.0)).any()


def test_one_row_and_no_rows_work():
    norm = RunningNorm(1)
    assert norm(torch.empty(0, 1)).shape == (0, 1)
    assert norm(torch.tensor([[3.0]])).item() == 0


def test_nan_stays_nan_and_spoils_no_statistics():
    norm = RunningNorm(1)
    out = norm(torch.tensor([[1.0], [float("nan")], [3.0], [float("inf")]]))
    assert out.isnan().flatten().tolist() == [False, True, False, False]
    assert norm.mean.item() == 2
    assert norm.count.item() == 2


def test_outliers_are_limited():
    norm = RunningNorm(1, limit=5.0)
    norm(torch.randn(100, 1))
    assert norm.eval()(torch.tensor([[1e9], [-1e9]])).flatten().tolist() == [5.0, -5.0]


def test_it_is_restored_exactly():
    norm, again = RunningNorm(2), RunningNorm(2)
    norm(torch.randn(10, 2) * 1e-3 + 1e3)
    again.load_state_dict(norm.state_dict())
    data = torch.randn(5, 2)
    assert torch.equal(norm(data), again(data))
