"""Initial values by the kernel: those of the reference, bit for bit."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="GPU kernels need triton")

from hybridrec.ops.philox import initial_triton, reference_torch
from hybridrec.ops.philox.part import Part
from tests.gpu import DEVICE, needs_gpu

pytestmark = needs_gpu

KEYS = [0xFEDCBA9876543210, 1 << 32 | 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dim", [1, 6, 32])
@pytest.mark.parametrize("draw", ["uniform", "normal"])
def test_all_rows_are_those_of_the_reference(draw, dim, dtype):
    for key in KEYS:
        rows = torch.full((100, dim), torch.nan, dtype=dtype, device=DEVICE)
        getattr(initial_triton, f"{draw}_")(rows, key, 0.3)
        expected = getattr(reference_torch, draw)(key, torch.arange(100), dim, 0.3).to(dtype)
        assert torch.equal(rows.cpu(), expected)


@pytest.mark.parametrize("draw", ["uniform", "normal"])
def test_listed_rows_are_filled_and_no_others(draw):
    rows = torch.full((300, 5), torch.nan, device=DEVICE)
    ids = torch.tensor([299, 0, 77])
    getattr(initial_triton, f"{draw}_")(rows, KEYS[0], 0.3, ids.to(DEVICE))
    assert torch.equal(rows[ids].cpu(), getattr(reference_torch, draw)(KEYS[0], ids, 5, 0.3))
    assert int(rows.isfinite().sum()) == 15


@pytest.mark.parametrize("part", [Part(1, 3), Part(column=4), Part(0, 2, 3), Part(2**33 + 5, 7, 9)])
@pytest.mark.parametrize("dim", [1, 4, 6])
def test_a_part_of_a_table_has_the_values_of_its_ids_and_columns(part, dim):
    ids = part.first + part.stride * torch.arange(80)
    for draw in ("uniform", "normal"):
        expected = getattr(reference_torch, draw)(KEYS[0], ids, part.column + dim, 0.3)[:, part.column :]
        fill, rows = getattr(initial_triton, f"{draw}_"), torch.full((80, dim), torch.nan, device=DEVICE)
        fill(rows, KEYS[0], 0.3, part=part)
        assert torch.equal(rows.cpu(), expected)
        listed = torch.tensor([79, 0, 40], device=DEVICE)
        again = torch.full((80, dim), torch.nan, device=DEVICE)
        fill(again, KEYS[0], 0.3, listed, part)
        assert torch.equal(again[listed], rows[listed])
        assert int(again.isfinite().sum()) == 3 * dim


def test_no_rows_are_no_launch():
    initial_triton.uniform_(torch.empty(0, 4, device=DEVICE), 7, 0.1)
    initial_triton.normal_(torch.ones(2, 4, device=DEVICE), 7, 0.1, torch.empty(0, dtype=torch.int64, device=DEVICE))
