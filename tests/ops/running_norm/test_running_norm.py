"""Counting and normalising against plain PyTorch, on a card or through Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hybridrec.ops.running_norm import reference
from hybridrec.ops.running_norm.reference import Moments
from tests.gpu import DEVICE, needs_gpu

pytest.importorskip("triton", reason="the kernels come with triton")

from hybridrec.ops.running_norm import triton as kernels

pytestmark = needs_gpu

EPS, LIMIT = 1e-6, 10.0


def nothing(columns: int) -> Moments:
    return Moments(*(torch.zeros(columns, dtype=torch.float64, device=DEVICE) for _ in range(3)))


def drawn(rows: int, columns: int) -> Tensor:
    """Columns far from zero, with few and many spoilt numbers, one constant."""
    x = 1000 * torch.arange(columns, device=DEVICE) + torch.randn(rows, columns, device=DEVICE)
    x[torch.rand(rows, columns, device=DEVICE) < 0.1] = torch.nan
    x[:: max(1, rows // 3), 0] = torch.inf
    x[:, -1] = 7.0
    return x


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (9, 3), (700, 13), (300, 16), (50, 128)])
def test_batches_are_counted_and_normalised_as_torch_does(rows, columns):
    torch.manual_seed(rows)
    ours, expected = nothing(columns), nothing(columns)
    for _ in range(3):
        x = drawn(rows, columns)
        assert kernels.suits(x, ours)
        kernels.count_in(x, ours)
        reference.count_in(x, expected)
        torch.testing.assert_close(ours, expected, atol=1e-7, rtol=1e-12)
        made = kernels.normalised(x, expected, EPS, LIMIT)
        torch.testing.assert_close(
            made, reference.normalised(x, expected, EPS, LIMIT), rtol=1e-6, atol=0, equal_nan=True
        )


def test_rows_of_another_stride_are_read_where_they_are(monkeypatch):
    monkeypatch.setattr(kernels, "TILE", 256)  # so that there are many tiles, and steps of the merge
    wide = torch.full((500, 9), torch.nan, device=DEVICE)
    wide[:, :5] = torch.randn(500, 5, device=DEVICE)
    first, second = nothing(5), nothing(5)
    kernels.count_in(wide[:, :5], first)
    kernels.count_in(wide[:, :5], second)
    assert all(map(torch.equal, first, second))
    torch.testing.assert_close(first, reference.moments(wide[:, :5]), atol=1e-12, rtol=1e-12)
    made = kernels.normalised(wide[:, :5], first, EPS, LIMIT)
    torch.testing.assert_close(made, reference.normalised(wide[:, :5], first, EPS, LIMIT), rtol=1e-6, atol=0)


def test_a_column_without_finite_numbers_stays_unknown():
    known, x = nothing(2), torch.full((4, 2), torch.nan, device=DEVICE)
    kernels.count_in(x, known)
    assert not any(part.any() for part in known)
    assert kernels.normalised(x, known, EPS, LIMIT).isnan().all()


@pytest.mark.parametrize("spoil", [torch.Tensor.double, lambda x: x.requires_grad_(), lambda x: x[:0], lambda x: x.t()])
def test_numbers_of_another_kind_are_for_torch(spoil):
    assert not kernels.suits(spoil(torch.rand(3, 3, device=DEVICE)), nothing(3))
