"""The pass over memory in the backward of a relu layer: one launch.

A program has PART rows and COLUMNS columns of a layer. It finds the gradient before the relu, writes it as it is and
transposed (matrix units want the batch to be contiguous for the gradient of weights), and sums its columns: the sums
of all programs are then added in a fixed order, so that results repeat bit for bit.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

PART = 128  # rows of a program
STEP, COLUMNS, WARPS = 64, 64, 4  # rows that it has in hand at a time, and columns; found best on an H200
TYPES = {torch.float32: tl.float32, torch.float64: tl.float64, torch.bfloat16: tl.float32, torch.float16: tl.float32}


@triton.jit
def relu_backward(
    grad,  # [B, width], rows at `stride`; with HEAD [B]
    weight,  # [width], with HEAD: the gradient is grad times weight
    out,  # [B, width]: what the relu gave
    dz,  # [B, width], if PLAIN
    dz_t,  # [width, stride_t], if TRANSPOSED
    sums,  # [parts, stride_sums]: of the columns of dz from `place`; of grad times out from `products`, if HEAD
    rows,
    width,
    stride,
    stride_t,
    stride_sums,
    place,
    products,
    PART: tl.constexpr,
    STEP: tl.constexpr,
    COLUMNS: tl.constexpr,
    SUM: tl.constexpr,
    RELU: tl.constexpr,
    HEAD: tl.constexpr,
    PLAIN: tl.constexpr,
    TRANSPOSED: tl.constexpr,
):
    """The gradient before a relu, and the sums of its columns. Grid: parts of the rows, parts of the columns."""
    part = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < width
    total = tl.zeros([STEP, COLUMNS], SUM)
    product = tl.zeros([STEP, COLUMNS], SUM)
    single = tl.zeros([STEP], SUM)
    if HEAD:
        factor = tl.load(weight + column, mask=inside, other=0.0).to(SUM)
    for step in range(PART // STEP):
        row = (part * PART + step * STEP + tl.arange(0, STEP)).to(tl.int64)
        there = (row[:, None] < rows) & inside[None, :]
        if RELU:
            y = tl.load(out + row[:, None] * width + column[None, :], mask=there, other=0.0).to(SUM)
        if HEAD:
            above = tl.load(grad + row * stride, mask=row < rows, other=0.0).to(SUM)
            x = above[:, None] * factor[None, :]
            product += above[:, None] * y
            single += above
        else:
            x = tl.load(grad + row[:, None] * stride + column[None, :], mask=there, other=0.0).to(SUM)
        if RELU:
            x = tl.where(y <= 0, 0.0, x)
        total += x
        if PLAIN:
            tl.store(dz + row[:, None] * width + column[None, :], x.to(dz.dtype.element_ty), mask=there)
        if TRANSPOSED:
            to = dz_t + column[:, None].to(tl.int64) * stride_t + row[None, :]
            tl.store(to, tl.trans(x).to(dz_t.dtype.element_ty), mask=tl.trans(there))
    to = sums + part * stride_sums + column
    tl.store(to + place, tl.sum(total, 0), mask=inside)
    if HEAD:
        tl.store(to + products, tl.sum(product, 0), mask=inside)
        if tl.program_id(1) == 0:
            tl.store(sums + part * stride_sums + products + width, tl.sum(single, 0))


def parts(rows: int) -> int:
    """Programs along the rows of a batch, each with its line of sums."""
    return -(-rows // PART)


class Sums:
    """The sums of columns that programs leave, for all layers: one tensor, added up by `total` at the end."""

    def __init__(self, like: Tensor, columns: int) -> None:
        kind = torch.float64 if like.dtype == torch.float64 else torch.float32
        self.there = torch.empty(parts(len(like)), columns, dtype=kind, device=like.device)

    def total(self) -> Tensor:
        """[columns], always added in the same order."""
        return self.there.sum(0)


class Head(NamedTuple):
    """A layer of one output above another: its weights [width], and where the sums of its products begin."""

    weight: Tensor
    products: int


def masked(
    grad: Tensor, out: Tensor | None, sums: Sums, place: int, transposed: Tensor | None, head: Head | None = None
) -> Tensor:
    """The gradient [B, width] before the relu that gave `out` (None: there was none), its sums from `place` on.

    With a head, `grad` [B, 1] is that of its output, and what comes to the relu is its product with the weights. The
    sums of grad times out, which are the gradient of those weights, begin where the head says; behind is that of grad.
    """
    rows, width = grad.shape if out is None else out.shape
    dz = grad if out is None else torch.empty_like(out)
    like = dz if transposed is None else transposed
    if rows:
        relu_backward[(parts(rows), -(-width // COLUMNS))](
            *(grad, grad if head is None else head.weight, grad if out is None else out, dz, like, sums.there),
            *(rows, width, grad.stride(0), like.stride(0), sums.there.stride(0), place),
            0 if head is None else head.products,
            PART=PART,
            STEP=STEP,
            COLUMNS=COLUMNS,
            SUM=TYPES[grad.dtype],
            RELU=out is not None,
            HEAD=head is not None,
            PLAIN=out is not None,
            TRANSPOSED=transposed is not None,
            num_warps=WARPS,
        )
    return dz
