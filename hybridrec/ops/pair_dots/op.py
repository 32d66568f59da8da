"""Dot products of all pairs of vectors, written as the layers above read them: one pass each way."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hybridrec.ops.room import aligned_width


class Kernels(Protocol):
    """What `native.py` and `triton.py` have."""

    def suits(self, below: Tensor | None, fields: Tensor, dim: int) -> bool: ...

    def forward(self, below: Tensor | None, fields: Tensor, dim: int, width: int, kind: torch.dtype) -> Tensor: ...

    def backward(
        self, grad: Tensor, below: Tensor | None, fields: Tensor, dim: int
    ) -> tuple[Tensor | None, Tensor]: ...


def kernels_for(below: Tensor | None, fields: Tensor, dim: int) -> Kernels | None:
    """Those that take these vectors where they are; None where torch must."""
    if torch.compiler.is_compiling():
        return None
    if fields.is_cuda:
        from hybridrec.ops.pair_dots import triton as kernels
    else:
        from hybridrec.ops.pair_dots import native as kernels
    return kernels if kernels.suits(below, fields, dim) else None


def kind_of(fields: Tensor) -> torch.dtype:
    """The type of products: that of autocast, or of the fields."""
    device = fields.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else fields.dtype


def pair_dots(kernels: Kernels, below: Tensor | None, fields: Tensor, dim: int) -> Tensor:
    """below [B, dim], then the dot products of all pairs of it and the vectors of fields [B, F * dim], then zeros.

    There are zeros up to a multiple of 16 columns. Under autocast products and result are of its type, else of that of
    the fields. Differentiable once; see `reference.pair_dots`.
    """
    n = fields.shape[1] // dim + (below is not None)
    width = aligned_width(n * (n - 1) // 2 + (0 if below is None else dim))
    return _PairDots.apply(kernels, below, fields, dim, width, kind_of(fields))  # pyright: ignore[reportReturnType]


class _PairDots(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, kernels: Kernels, below: Tensor | None, fields: Tensor, dim: int, width: int, kind: torch.dtype
    ) -> Tensor:
        ctx.save_for_backward(*([fields] if below is None else [below, fields]))
        ctx.kernels, ctx.dim = kernels, dim
        return kernels.forward(below, fields, dim, width, kind)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor | None, Tensor, None, None, None]:
        *below, fields = ctx.saved_tensors
        grad = grad if grad.stride(1) == 1 else grad.contiguous()
        of_below, of_fields = ctx.kernels.backward(grad, below[0] if below else None, fields, ctx.dim)
        return None, of_below, of_fields, None, None, None
