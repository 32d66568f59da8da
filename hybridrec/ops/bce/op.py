"""The loss as one autograd function, with its gradient by hand."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hybridrec.ops.bce import triton as kernels


def suits(x: Tensor, y: Tensor, rows: Tensor | None, columns: Tensor | None) -> bool:
    """Whether these are for `bce`: float32, in the order of memory, and but the logits want gradients; else torch."""
    if torch.compiler.is_compiling() or x.dim() not in (1, 2):
        return False
    others = [part for part in (y, rows, columns) if part is not None]
    plain = all(part.dtype == torch.float32 and part.device == x.device for part in (x, *others))
    return plain and all(part.is_contiguous() for part in (x, *others)) and not any(p.requires_grad for p in others)


def bce(x: Tensor, y: Tensor, rows: Tensor | None, columns: Tensor | None, total: float | Tensor) -> Tensor:
    """The cross entropies of logits x and labels y, [B] or [B, k], times the weights of rows, summed, over `total`.

    Several labels of a row count by the weights of columns [k], or by their mean. The same numbers as `reference.bce`
    within float order, bit for bit the same when repeated; differentiable once, for x.
    """
    return _Bce.apply(x, y, rows, columns, total)  # pyright: ignore[reportReturnType]


class _Bce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, y: Tensor, rows: Tensor | None, columns: Tensor | None, total: float | Tensor
    ) -> Tensor:
        ctx.save_for_backward(x, y, rows, columns)
        ctx.total = total  # no input of autograd's: a number, or one that stays where it is
        return kernels.forward(x, y, rows, columns, total)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        x, y, rows, columns = ctx.saved_tensors
        return kernels.backward(grad, x, y, rows, columns, ctx.total), None, None, None, None
