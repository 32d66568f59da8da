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
def round_rows(
    x, keys, ids, purposes, columns, out,
    N: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, HALF: tl.constexpr, ANYWHERE: tl.constexpr,
):  # fmt: skip
    i, c = tl.arange(0, N), tl.arange(0, WIDTH)
    at, mask = i[:, None] * D + c[None, :], (i[:, None] >= 0) & (c[None, :] < D)
    key, id, purpose, column = tl.load(keys + i), tl.load(ids + i), tl.load(purposes + i), tl.load(columns + i)
    values = tl.load(x + at, mask=mask, other=0.0)
    tl.store(out + at, philox.round_stochastic(values, key, id, purpose, column, HALF, ANYWHERE), mask)


def rounded(x: torch.Tensor, ids: torch.Tensor, step: int, dtype: torch.dtype, column: int = 0) -> np.ndarray:
    """The bits of the kernel."""
    dim = x.shape[1]
    keys, purposes = torch.full((ROWS,), KEY - 2**64), torch.full((ROWS,), 2 + step % (2**32 - 2))
    out = torch.empty(x.shape, dtype=dtype, device=DEVICE)
    given = [part.to(DEVICE) for part in (x, keys, ids, purposes, torch.full((ROWS,), column))]
    sizes = {"N": ROWS, "D": dim, "WIDTH": 1 << (dim - 1).bit_length(), "HALF": TYPES[dtype]}
    round_rows[(1,)](*given, out, **sizes, ANYWHERE=column % 8 != 0)  # pyright: ignore
    return out.cpu().view(torch.uint16).numpy()


def expected(x: torch.Tensor, ids: torch.Tensor, step: int, dtype: torch.dtype, column: int = 0) -> np.ndarray:
    kind, whole = "float16" if dtype == torch.float16 else "bfloat16", torch.nn.functional.pad(x, (column, 0))
    return reference.round_stochastic(KEY, ids.long().numpy(), whole.numpy(), step, kind)[:, column:]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dim", [1, 4, 7, 8, 13, 64])
def test_any_bits_are_rounded_as_by_the_reference_bit_for_bit(dtype, dim):
    torch.manual_seed(dim)
    x = torch.randint(-(2**31), 2**31 - 1, (ROWS, dim), dtype=torch.int32).view(torch.float32)
    ids = torch.randint(0, 2**31 - 1, (ROWS,), dtype=torch.int32)
    for step in (1, 7, 2**32 - 3, 2**32 - 2):
        assert np.array_equal(rounded(x, ids, step, dtype), expected(x, ids, step, dtype))


@pytest.mark.parametrize("dim", [1, 4, 7, 13])
@pytest.mark.parametrize("column", [3, 8, 24, 30])
def test_columns_and_ids_of_a_larger_table_have_the_draws_that_they_have_there(column, dim):
    torch.manual_seed(dim)
    x, ids = torch.randn(ROWS, dim), torch.randint(0, 2**40, (ROWS,))
    for dtype in (torch.float16, torch.bfloat16):
        assert np.array_equal(rounded(x, ids, 5, dtype, column), expected(x, ids, 5, dtype, column))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_borders_are_rounded_as_by_the_reference_bit_for_bit(dtype):
    """Subnormal numbers, zeros, infinities, NaN, and each side of what overflows."""
    borders = [0.0, 2.0**-149, 2.0**-126, 2.0**-41, 2.0**-40, 2.0**-25, 2.0**-24, 2.0**-15, 2.0**-14]
    borders += [1.0, 65504.0, 65519.996, 65520.0, 65536.0, 3.3895314e38, 3.396e38, torch.inf, torch.nan]
    sizes = torch.tensor(borders).view(torch.int32)
    around = torch.cat([sizes + shift for shift in (-1, 0, 1)]).clamp(min=0).view(torch.float32)
    x = torch.cat([around, -around]).repeat(ROWS, 1)
    ids = torch.arange(ROWS, dtype=torch.int32)
    assert np.array_equal(rounded(x, ids, 3, dtype), expected(x, ids, 3, dtype))
