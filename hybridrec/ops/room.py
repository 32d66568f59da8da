"""Room behind pooled vectors: numbers put there lie beside them without a copy of the vectors.

A lookup on a GPU writes its vectors [B, W] into rows of W + n columns and more, up to a multiple of ALIGNED. Layers
that take the vectors together with n numbers then read all of it as one matrix, as matrix units like it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

ALIGNED = 16  # columns: what the matrix units of GPUs like; other widths are several times slower


def aligned_width(columns: int) -> int:
    """The next multiple of ALIGNED.

    >>> [aligned_width(columns) for columns in (0, 16, 17)]
    [0, 16, 32]
    """
    return columns + -columns % ALIGNED


@dataclass
class Room:
    """The room behind some vectors: who uses it, at which version, and what came of it."""

    stride: int  # columns of vectors and room together
    user: Tensor | None = None
    version: int = 0
    result: Tensor | None = None


def with_room(rows: int, width: int, stride: int, device: torch.device) -> Tensor:
    """New vectors [rows, width] with room behind each; autograd knows them as no part of another tensor."""
    return _part(torch.empty(rows, stride, device=device), width)


def mark(vectors: Tensor, stride: int) -> Tensor:
    """Say that these vectors have room behind them."""
    vectors._room = Room(stride)  # pyright: ignore[reportAttributeAccessIssue]
    return vectors


def join(vectors: Tensor, numbers: Tensor) -> Tensor | None:
    """Vectors [B, W] and numbers [B, n] as [B, W + n] with zeros up to a multiple of ALIGNED, in the vectors' own rows.

    None where they have no room, or too little, or where others have it: numbers that are in use are not overwritten.

    >>> vectors = mark(with_room(1, 2, 16, torch.device("cpu")).fill_(1), 16)
    >>> join(vectors, torch.full((1, 3), 2.0))
    tensor([[1., 1., 2., 2., 2., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0.]])
    >>> join(vectors, torch.zeros(1, 3))
    """
    room: Room | None = getattr(vectors, "_room", None)
    if room is None or room.stride != aligned_width(vectors.shape[1] + numbers.shape[1]):
        return None
    if numbers.dtype != vectors.dtype or vectors.stride() != (room.stride, 1):
        return None
    if room.user is None:
        result: Any = _Joined.apply(vectors, numbers, room.stride)
        room.user, room.version, room.result = numbers, numbers._version, result
    mine = room.user is numbers and room.version == numbers._version
    return room.result if mine else None


def at_stride(grad: Tensor, stride: int) -> Tensor:
    """A gradient [B, W] with rows at this stride, as kernels read it: copied only where it is not so."""
    if (
        grad.stride() == (stride, 1) or (stride == grad.shape[1] and grad.is_contiguous())
    ) and grad.data_ptr() % 16 == 0:
        return grad
    rows, width = grad.shape
    return with_room(rows, width, stride, grad.device).copy_(grad)


def _part(whole: Tensor, width: int) -> Tensor:
    """The first columns of a tensor that has its memory for itself, as a tensor of its own."""
    return whole.new_empty(0).set_(whole.untyped_storage(), 0, (len(whole), width), whole.stride())


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vectors: Tensor, numbers: Tensor, stride: int) -> Tensor:
        width, ctx.end = vectors.shape[1], vectors.shape[1] + numbers.shape[1]
        ctx.width = width
        whole = vectors.new_empty(0).set_(vectors.untyped_storage(), 0, (len(vectors), stride), (stride, 1))
        whole[:, width : ctx.end] = numbers
        whole[:, ctx.end :] = 0
        return whole

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None]:
        of_numbers = grad[:, ctx.width : ctx.end] if ctx.needs_input_grad[1] else None
        return grad[:, : ctx.width], of_numbers, None
