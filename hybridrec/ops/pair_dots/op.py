"""Dot products of all pairs of vectors, written as the layers above read them: one pass each way."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hybridrec.ops.pair_dots import triton as kernels
from hybridrec.ops.room import aligned_width


def suits(below: Tensor | None, fields: Tensor, dim: int) -> bool:
    """Whether the kernels take these vectors: as many as a program can have in hand, of types for matrix units.

    Exact products of float32 are for torch: without matrix units the kernels are slower.
    """
    parts = [fields] if below is None else [below, fields]
    if any(part.dtype not in kernels.TYPES or part.stride(1) != 1 for part in parts):
        return False
    if kind_of(fields) == torch.float32 and torch.get_float32_matmul_precision() == "highest":
        return False
    return dim <= kernels.MOST_COLUMNS and fields.shape[1] // dim + len(parts) - 1 <= kernels.MOST_VECTORS


def kind_of(fields: Tensor) -> torch.dtype:
    """The type of products: that of autocast, or of the fields."""
    device = fields.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else fields.dtype


def pair_dots(below: Tensor | None, fields: Tensor, dim: int) -> Tensor:
    """below [B, dim], then the dot products of all pairs of it and the vectors of fields [B, F * dim], then zeros.

    There are zeros up to a multiple of 16 columns. Under autocast products and result are of its type, else of that of
    the fields. Differentiable once; see `reference.pair_dots`.
    """
    n = fields.shape[1] // dim + (below is not None)
    width = aligned_width(n * (n - 1) // 2 + (0 if below is None else dim))
    return _PairDots.apply(below, fields, dim, width, kind_of(fields))  # pyright: ignore[reportReturnType]


class _PairDots(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, below: Tensor | None, fields: Tensor, dim: int, width: int, kind: torch.dtype) -> Tensor:
        ctx.save_for_backward(*([fields] if below is None else [below, fields]))
        ctx.dim = dim
        return kernels.forward(below, fields, dim, width, kind)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, None, None, None]:
        *below, fields = ctx.saved_tensors
        grad = grad if grad.stride(1) == 1 else grad.contiguous()
        of_below, of_fields = kernels.backward(grad, below[0] if below else None, fields, ctx.dim)
        return of_below, of_fields, None, None, None
