from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="GPU kernels need triton")

import triton
import triton.language as tl

from hybridrec.ops.features import TYPES
from hybridrec.ops.philox import reference
from hybridrec.ops.philox import triton as philox
from tests.gpu import DEVICE, needs_gpu

pytestmark = needs_gpu

KEY = 0xF123456789ABCDEF
ROWS = 32


@triton.jit
def round_rows(x, keys, rows, purposes, out, N: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, HALF: tl.constexpr):
    i, c = tl.arange(0, N), tl.arange(0, WIDTH)
    at, mask = i[:, None] * D + c[None, :], (i[:, None] >= 0) & (c[None, :] < D)
    key, row, purpose = tl.load(keys + i), tl.load(rows + i), tl.load(purposes + i)
    tl.store(out + at, philox.round_stochastic(tl.load(x + at, mask=mask, other=0.0), key, row, purpose, HALF), mask)


def rounded(x: torch.Tensor, rows: torch.Tensor, step: int, dtype: torch.dtype) -> np.ndarray:
    """The bits of the kernel."""
    dim = x.shape[1]
    keys, purposes = torch.full((ROWS,), KEY - 2**64), torch.full((ROWS,), 2 + step % (2**32 - 2))
    out = torch.empty(x.shape, dtype=dtype, device=DEVICE)
    given = [part.to(DEVICE) for part in (x, keys, rows, purposes)]
    round_rows[(1,)](*given, out, N=ROWS, D=dim, WIDTH=1 << (dim - 1).bit_length(), HALF=TYPES[dtype])  # pyright: ignore
    return out.cpu().view(torch.uint16).numpy()


def expected(x: torch.Tensor, rows: torch.Tensor, step: int, dtype: torch.dtype) -> np.ndarray:
    kind = "float16" if dtype == torch.float16 else "bfloat16"
    return reference.round_stochastic(KEY, rows.long().numpy(), x.numpy(), step, kind)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dim", [1, 4, 7, 8, 13, 64])
def test_any_bits_are_rounded_as_by_the_reference_bit_for_bit(dtype, dim):
    torch.manual_seed(dim)
    x = torch.randint(-(2**31), 2**31 - 1, (ROWS, dim), dtype=torch.int32).view(torch.float32)
    rows = torch.randint(0, 2**31 - 1, (ROWS,), dtype=torch.int32)
    for step in (1, 7, 2**32 - 3, 2**32 - 2):
        assert np.array_equal(rounded(x, rows, step, dtype), expected(x, rows, step, dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_borders_are_rounded_as_by_the_reference_bit_for_bit(dtype):
    """Subnormal numbers, zeros, infinities, NaN, and each side of what overflows."""
    borders = [0.0, 2.0**-149, 2.0**-126, 2.0**-41, 2.0**-40, 2.0**-25, 2.0**-24, 2.0**-15, 2.0**-14]
    borders += [1.0, 65504.0, 65519.996, 65520.0, 65536.0, 3.3895314e38, 3.396e38, torch.inf, torch.nan]
    sizes = torch.tensor(borders).view(torch.int32)
    around = torch.cat([sizes + shift for shift in (-1, 0, 1)]).clamp(min=0).view(torch.float32)
    x = torch.cat([around, -around]).repeat(ROWS, 1)
    rows = torch.arange(ROWS, dtype=torch.int32)
    assert np.array_equal(rounded(x, rows, 3, dtype), expected(x, rows, 3, dtype))
