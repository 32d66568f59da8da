"""Two launches count a batch, one normalises it; all in float64, as `reference.py` does.

A program has a tile of rows with all their columns, and leaves their moments; one program merges those of all tiles,
always in the same order, and then with those that are known.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hybridrec.ops.running_norm.reference import Moments

TILE, WARPS = 4096, 8  # numbers of a program
MOST = 128  # columns


def suits(numbers: Tensor, known: Moments) -> bool:
    """Whether these numbers are for the kernels; compilers and others are for torch."""
    plain = numbers.dtype == torch.float32 and numbers.dim() == 2 and numbers.stride(1) == 1 and numbers.numel() > 0
    there = known.mean.device == numbers.device and known.mean.dtype == torch.float64 and numbers.shape[1] <= MOST
    return plain and there and not numbers.requires_grad and not torch.compiler.is_compiling()


@triton.jit
def tile_moments(
    numbers,  # float32 [B, columns], rows at `stride`
    parts,  # float64 [3, tiles, columns]: counts, means, squares
    rows,
    columns,
    stride,
    tiles,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """The moments of a tile's finite numbers. Grid: tiles of the rows."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    there = (row[:, None] < rows) & (column[None, :] < columns)
    x = tl.load(numbers + row[:, None] * stride + column[None, :], mask=there, other=0.0)
    there = there & (x - x == 0)  # which NaN and infinity are not
    x = tl.where(there, x, 0.0).to(tl.float64)
    count = tl.sum(there.to(tl.float64), 0)
    mean = tl.sum(x, 0) / tl.maximum(count, 1.0)
    away = tl.where(there, x - mean[None, :], 0.0)
    to, inside = parts + tl.program_id(0) * columns + column, column < columns
    tl.store(to, count, mask=inside)
    tl.store(to + tiles * columns, mean, mask=inside)
    tl.store(to + 2 * tiles * columns, tl.sum(away * away, 0), mask=inside)


@triton.jit
def merge_moments(
    parts,
    known_count,  # float64 [columns]
    known_mean,
    known_squares,
    columns,
    tiles,
    STEP: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """The moments of all tiles together, and with those that are known, which they replace. One program."""
    column = tl.arange(0, COLUMNS)
    inside = column < columns
    counts = tl.zeros([STEP, COLUMNS], tl.float64)
    sums = tl.zeros([STEP, COLUMNS], tl.float64)
    for first in range(0, tiles, STEP):
        tile = first + tl.arange(0, STEP)
        there = (tile[:, None] < tiles) & inside[None, :]
        at = parts + tile[:, None] * columns + column[None, :]
        count = tl.load(at, mask=there, other=0.0)
        counts += count
        sums += count * tl.load(at + tiles * columns, mask=there, other=0.0)
    n = tl.sum(counts, 0)
    mean = tl.sum(sums, 0) / tl.maximum(n, 1.0)
    distances = tl.zeros([STEP, COLUMNS], tl.float64)
    for first in range(0, tiles, STEP):
        tile = first + tl.arange(0, STEP)
        there = (tile[:, None] < tiles) & inside[None, :]
        at = parts + tile[:, None] * columns + column[None, :]
        away = tl.load(at + tiles * columns, mask=there, other=0.0) - mean[None, :]
        distances += tl.load(at + 2 * tiles * columns, mask=there, other=0.0)
        distances += tl.load(at, mask=there, other=0.0) * away * away
    before = tl.load(known_count + column, mask=inside, other=0.0)
    middle = tl.load(known_mean + column, mask=inside, other=0.0)
    squares = tl.load(known_squares + column, mask=inside, other=0.0)
    total, shift = tl.maximum(before + n, 1.0), mean - middle
    tl.store(known_squares + column, squares + tl.sum(distances, 0) + shift * shift * before * n / total, mask=inside)
    tl.store(known_mean + column, middle + shift * n / total, mask=inside)
    tl.store(known_count + column, before + n, mask=inside)


@triton.jit
def normalise(
    numbers,
    known_count,
    known_mean,
    known_squares,
    out,  # float32 [B, columns]
    rows,
    columns,
    stride,
    EPS: tl.constexpr,
    LIMIT: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Less the mean, over the deviation, within limits; NaN stays. Grid: tiles of the rows."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    inside = column < columns
    there = (row[:, None] < rows) & inside[None, :]
    count = tl.load(known_count + column, mask=inside, other=1.0)
    squares = tl.load(known_squares + column, mask=inside, other=1.0)
    variance = tl.where(squares > 0, squares / tl.maximum(count, 1.0), 1.0)
    factor = 1.0 / tl.sqrt(variance + EPS * EPS)
    mean = tl.load(known_mean + column, mask=inside, other=0.0)
    x = tl.load(numbers + row[:, None] * stride + column[None, :], mask=there, other=0.0).to(tl.float64)
    y = (x - mean[None, :]) * factor[None, :]
    y = tl.where(y > LIMIT, LIMIT, tl.where(y < -LIMIT, -LIMIT, y))
    tl.store(out + row[:, None] * columns + column[None, :], y.to(tl.float32), mask=there)


def _tiles(numbers: Tensor) -> tuple[int, dict[str, int]]:
    """How many there are, and their shape."""
    columns = triton.next_power_of_2(numbers.shape[1])
    rows = TILE // columns
    return triton.cdiv(len(numbers), rows), {"ROWS": rows, "COLUMNS": columns}


def count_in(numbers: Tensor, known: Moments) -> None:
    """Count these rows [B, n] among those that are known."""
    tiles, shape = _tiles(numbers)
    (rows, columns), stride = numbers.shape, numbers.stride(0)
    parts = torch.empty(3, tiles, columns, dtype=torch.float64, device=numbers.device)
    tile_moments[(tiles,)](numbers, parts, rows, columns, stride, tiles, **shape, num_warps=WARPS)
    step = TILE // 4 // shape["COLUMNS"]
    merge_moments[(1,)](parts, *known, columns, tiles, STEP=step, COLUMNS=shape["COLUMNS"], num_warps=WARPS)


def normalised(numbers: Tensor, known: Moments, eps: float, limit: float) -> Tensor:
    """(x - mean) / std of each column, float32 [B, n], within ± limit; NaN stays NaN."""
    tiles, shape = _tiles(numbers)
    rows, columns = numbers.shape
    out = torch.empty(rows, columns, device=numbers.device)
    given = numbers, *known, out, rows, columns, numbers.stride(0)
    normalise[(tiles,)](*given, EPS=eps, LIMIT=limit, **shape, num_warps=WARPS)
    return out
