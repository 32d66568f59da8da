"""What a cross layer does beside its products: one pass over memory forth, one back, and one for x0 at the end.

Passes without sums take numbers in the order of memory. Where columns are summed, a program has PART rows and COLUMNS
columns, and the sums of all programs are added in a fixed order, so that results repeat bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from hybridrec.ops.room import aligned_width

BLOCK, WARPS = 2048, 4  # numbers of a program that has no rows
PART = 128  # rows of a program that sums columns
STEP, COLUMNS = 32, 64  # rows that it has in hand at a time, and columns
TILE = 64  # rows and columns of a program that writes a transposed matrix


@triton.jit
def cross(x0, x, products, out, numbers, BLOCK: tl.constexpr):
    """x0 times the sum of the products, and x. Grid: blocks of the numbers."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = at < numbers
    total = tl.zeros([BLOCK], tl.float32)
    for layer in tl.static_range(len(products)):
        total += tl.load(products[layer] + at, mask=there, other=0.0).to(tl.float32)
    factor = tl.load(x0 + at, mask=there, other=0.0)
    result = factor * total + tl.load(x + at, mask=there, other=0.0)
    tl.store(out + at, result.to(out.dtype.element_ty), mask=there)


@triton.jit
def cross_backward(
    grad,  # [B, width]
    more,  # what layers above add to it, each [B, width]
    x0,
    dp,  # [B, width]
    dp_t,  # [width, stride_t], if TRANSPOSED
    sums,  # [parts, width]
    rows,
    width,
    stride_t,
    PART: tl.constexpr,
    STEP: tl.constexpr,
    COLUMNS: tl.constexpr,
    TRANSPOSED: tl.constexpr,
):
    """The gradient of a layer's product, and the sums of its columns. Grid: parts of the columns, parts of the rows."""
    part = tl.program_id(1)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([STEP, COLUMNS], tl.float32)
    for step in range(PART // STEP):
        row = (part * PART + step * STEP + tl.arange(0, STEP)).to(tl.int64)
        there = (row[:, None] < rows) & (column[None, :] < width)
        at = row[:, None] * width + column[None, :]
        g = tl.load(grad + at, mask=there, other=0.0).to(tl.float32)
        for layer in tl.static_range(len(more)):
            g += tl.load(more[layer] + at, mask=there, other=0.0).to(tl.float32)
        d = g * tl.load(x0 + at, mask=there, other=0.0)
        total += d
        tl.store(dp + at, d.to(dp.dtype.element_ty), mask=there)
        if TRANSPOSED:
            to = dp_t + column[:, None].to(tl.int64) * stride_t + row[None, :]
            tl.store(to, tl.trans(d).to(dp_t.dtype.element_ty), mask=tl.trans(there))
    tl.store(sums + part * width + column, tl.sum(total, 0), mask=column < width)


@triton.jit
def cross_backward_x0(grad, more, products, out, numbers, BLOCK: tl.constexpr):
    """The gradient of x0 from that of the last layer, what each layer adds to it, and all products; last ones first.

    x0 is the factor of every product, and what the first layer begins with. Grid: blocks of the numbers.
    """
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = at < numbers
    g = tl.load(grad + at, mask=there, other=0.0).to(tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for layer in tl.static_range(len(products)):
        total += g * tl.load(products[layer] + at, mask=there, other=0.0).to(tl.float32)
        g += tl.load(more[layer] + at, mask=there, other=0.0).to(tl.float32)
    tl.store(out + at, total + g, mask=there)


@triton.jit
def turn(matrix, out, rows, columns, stride, TILE: tl.constexpr):
    """A matrix [rows, columns] transposed, [columns, stride]. Grid: parts of the columns, parts of the rows."""
    row = (tl.program_id(1) * TILE + tl.arange(0, TILE)).to(tl.int64)
    column = (tl.program_id(0) * TILE + tl.arange(0, TILE)).to(tl.int64)
    there = (row[:, None] < rows) & (column[None, :] < columns)
    values = tl.load(matrix + row[:, None] * columns + column[None, :], mask=there, other=0.0)
    tl.store(out + column[:, None] * stride + row[None, :], tl.trans(values), mask=tl.trans(there))


def crossed(x0: Tensor, x: Tensor, products: Sequence[Tensor], kind: torch.dtype) -> Tensor:
    """x0 times the sum of the products, plus x, as numbers of a type: [B, n], like all that is given."""
    out = torch.empty_like(x0, dtype=kind)
    if numbers := x0.numel():
        grid = (triton.cdiv(numbers, BLOCK),)
        cross[grid](x0, x, tuple(products), out, numbers, BLOCK=BLOCK, num_warps=WARPS)
    return out


def of_product(grad: Tensor, more: Sequence[Tensor], x0: Tensor, dp: Tensor, dp_t: Tensor | None) -> Tensor:
    """Writes the gradient of a layer's product [B, n], also transposed if wanted; gives the sums of its columns [n].

    `grad` is that of the last layer, `more` what layers above this one add to it.
    """
    rows, width = x0.shape
    sums = x0.new_empty(triton.cdiv(rows, PART), width)
    other = dp if dp_t is None else dp_t
    if x0.numel():
        cross_backward[(triton.cdiv(width, COLUMNS), len(sums))](
            *(grad, tuple(more), x0, dp, other, sums, rows, width, other.stride(0)),
            PART=PART,
            STEP=STEP if dp_t is None else TILE,
            COLUMNS=COLUMNS if dp_t is None else TILE,
            TRANSPOSED=dp_t is not None,
            num_warps=WARPS,
        )
    return sums.sum(0)


def of_x0(grad: Tensor, more: Sequence[Tensor], products: Sequence[Tensor]) -> Tensor:
    """The gradient of x0 [B, n] as float32, in the memory of the last of `more` if that is of this type.

    Of each layer, the last one first, `products` has the product and `more` what it adds to the gradient.
    """
    out = more[-1] if more[-1].dtype == torch.float32 else torch.empty_like(grad, dtype=torch.float32)
    if numbers := grad.numel():
        grid = (triton.cdiv(numbers, BLOCK),)
        cross_backward_x0[grid](grad, tuple(more), tuple(products), out, numbers, BLOCK=BLOCK, num_warps=WARPS)
    return out


def room_for_turned(matrix: Tensor) -> Tensor:
    """Room for a matrix transposed, its lines at a distance that matrix units like."""
    rows, columns = matrix.shape
    return matrix.new_empty(columns, aligned_width(rows))[:, :rows]


def turned(matrix: Tensor) -> Tensor:
    """A matrix transposed in memory."""
    (rows, columns), out = matrix.shape, room_for_turned(matrix)
    if matrix.numel():
        grid = (triton.cdiv(columns, TILE), triton.cdiv(rows, TILE))
        turn[grid](matrix, out, rows, columns, out.stride(0), TILE=TILE, num_warps=WARPS)
    return out
