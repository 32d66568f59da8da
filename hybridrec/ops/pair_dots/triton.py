"""Dot products of pairs on the GPU: a program has all vectors of one row in hand, and multiplies them by themselves.

The vectors are read once and the products written where the layers above read them. In the backward the gradients of
the pairs are a symmetric matrix, whose product with the vectors is their gradient.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from hybridrec.ops.pair_dots.op import kind_of

MOST_VECTORS, MOST_COLUMNS = 64, 256  # what a program can have in hand
LEAST = 16  # of each side of a product
WARPS = 4
TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


@triton.jit
def vectors_of(below, fields, r, c, n, D: tl.constexpr, BELOW: tl.constexpr, KIND: tl.constexpr):
    """Vectors r of a row, their columns c: the one from below first, if there is one, then those of the fields."""
    inside = (r[:, None] >= BELOW) & (r[:, None] < n) & (c[None, :] < D)
    x = tl.load(fields + (r[:, None] - BELOW) * D + c[None, :], mask=inside, other=0.0).to(tl.float32)
    if BELOW:
        first = tl.load(below + c, mask=c < D, other=0.0).to(tl.float32)
        x = tl.where(r[:, None] == 0, first[None, :], x)
    return x.to(KIND)


@triton.jit
def place_of(i, j, n):
    """Where the pair of vectors i < j is among all pairs."""
    return i * n - i * (i + 1) // 2 + j - i - 1


@triton.jit
def dot_pairs(
    below,  # [B, D], if BELOW
    fields,  # [B, (n - BELOW) * D]
    out,  # [B, width]: below, then the pairs, then zeros
    stride_below,
    stride_fields,
    n,
    width,
    D: tl.constexpr,
    VECTORS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BELOW: tl.constexpr,
    KIND: tl.constexpr,
    LEAST: tl.constexpr,
):
    """One row per program; VECTORS and COLUMNS are n and D or the next powers of two."""
    row = tl.program_id(0).to(tl.int64)
    r, c = tl.arange(0, VECTORS), tl.arange(0, COLUMNS)
    below += row * stride_below
    x = vectors_of(below, fields + row * stride_fields, r, c, n, D, BELOW, KIND)
    products = tl.dot(x, tl.trans(x), input_precision="tf32")
    to = out + row * width
    i, j = r[:, None], r[None, :]
    tl.store(to + BELOW * D + place_of(i, j, n), products.to(out.dtype.element_ty), mask=(i < j) & (j < n))
    if BELOW:
        tl.store(to + c, tl.load(below + c, mask=c < D, other=0.0).to(out.dtype.element_ty), mask=c < D)
    behind = BELOW * D + n * (n - 1) // 2 + tl.arange(0, LEAST)
    tl.store(to + behind, tl.zeros([LEAST], out.dtype.element_ty), mask=behind < width)


@triton.jit
def dot_pairs_backward(
    grad,  # [B, width]
    below,
    fields,
    of_below,  # [B, D], if BELOW
    of_fields,  # [B, (n - BELOW) * D]
    stride_grad,
    stride_below,
    stride_fields,
    n,
    D: tl.constexpr,
    VECTORS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BELOW: tl.constexpr,
    KIND: tl.constexpr,
):
    """One row per program, as in the forward."""
    row = tl.program_id(0).to(tl.int64)
    r, c = tl.arange(0, VECTORS), tl.arange(0, COLUMNS)
    x = vectors_of(below + row * stride_below, fields + row * stride_fields, r, c, n, D, BELOW, KIND)
    i, j = r[:, None], r[None, :]
    place = place_of(tl.minimum(i, j), tl.maximum(i, j), n)
    grad += row * stride_grad
    g = tl.load(grad + BELOW * D + place, mask=(i != j) & (i < n) & (j < n), other=0.0).to(KIND)
    result = tl.dot(g, x, input_precision="tf32")
    inside = (i >= BELOW) & (i < n) & (c[None, :] < D)
    to = of_fields + row * (n - BELOW) * D + (i - BELOW) * D + c[None, :]
    tl.store(to, result.to(of_fields.dtype.element_ty), mask=inside)
    if BELOW:
        straight = tl.load(grad + c, mask=c < D, other=0.0).to(tl.float32)
        first = straight[None, :] + result
        to = of_below + row * D + i * 0 + c[None, :]
        tl.store(to, first.to(of_below.dtype.element_ty), mask=(i == 0) & (c[None, :] < D))


def suits(below: Tensor | None, fields: Tensor, dim: int) -> bool:
    """Whether the kernels take these vectors: as many as a program can have in hand, of types for matrix units.

    Exact products of float32 are for torch: without matrix units the kernels are slower.
    """
    parts = [fields] if below is None else [below, fields]
    if any(part.dtype not in TYPES or part.stride(1) != 1 for part in parts):
        return False
    if kind_of(fields) == torch.float32 and torch.get_float32_matmul_precision() == "highest":
        return False
    return dim <= MOST_COLUMNS and fields.shape[1] // dim + len(parts) - 1 <= MOST_VECTORS


def _room(count: int) -> int:
    """The next power of two, but no fewer than a product takes."""
    return max(LEAST, 1 << (count - 1).bit_length())


def shape_of(vectors: int, dim: int, below: bool, kind: torch.dtype) -> dict[str, Any]:
    """The constants of a program."""
    return {
        "D": dim,
        "VECTORS": _room(vectors),
        "COLUMNS": _room(dim),
        "BELOW": int(below),
        "KIND": TYPES[kind],
        "num_warps": WARPS,
    }


def forward(below: Tensor | None, fields: Tensor, dim: int, width: int, kind: torch.dtype) -> Tensor:
    """[B, width] of type `kind`."""
    rows, n = len(fields), fields.shape[1] // dim + (below is not None)
    out = fields.new_empty(rows, width, dtype=kind)
    first = fields if below is None else below
    if rows:
        shape = shape_of(n, dim, below is not None, kind)
        dot_pairs[(rows,)](first, fields, out, first.stride(0), fields.stride(0), n, width, **shape, LEAST=LEAST)
    return out


def backward(grad: Tensor, below: Tensor | None, fields: Tensor, dim: int) -> tuple[Tensor | None, Tensor]:
    """The gradients of below and fields, for that of what `forward` gave."""
    rows, n = len(fields), fields.shape[1] // dim + (below is not None)
    of_fields = torch.empty(fields.shape, dtype=fields.dtype, device=fields.device)
    of_below = None if below is None else torch.empty(below.shape, dtype=below.dtype, device=below.device)
    first = fields if below is None else below
    if rows:
        dot_pairs_backward[(rows,)](
            *(grad, first, fields, of_fields if of_below is None else of_below, of_fields),
            *(grad.stride(0), first.stride(0), fields.stride(0), n),
            **shape_of(n, dim, below is not None, grad.dtype),
        )
    return of_below, of_fields
