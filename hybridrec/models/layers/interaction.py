"""Products of pairs of vectors: every dot product by itself, or the sum of all."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def dot_interaction(vectors: Tensor) -> Tensor:
    """The dot products of all pairs i < j of vectors [B, n, D]: [B, n (n - 1) / 2], pair by pair in order.

    >>> vectors = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]])
    >>> dot_interaction(vectors)
    tensor([[11., 17., 39.]])
    """
    n = vectors.shape[1]
    first, second = torch.triu_indices(n, n, offset=1, device=vectors.device)
    products = vectors @ vectors.transpose(1, 2)  # [B, n, n]
    return products.flatten(1).index_select(1, first * n + second)


def fm_interaction(*vectors: Tensor) -> Tensor:
    """The sum of the dot products of all pairs of vectors [B, n, D], of several tensors together: [B].

    The factorisation machine's identity: twice the sum over pairs is the square of the sum less the sum of squares.
    It takes time that grows with the number of vectors, not of pairs.

    >>> fm_interaction(torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]), torch.tensor([[[5.0, 6.0]]]))
    tensor([67.])
    """
    if torch.compiler.is_compiling():  # compilers fuse the passes themselves
        return _fm(*vectors)[0]
    return FMInteraction.apply(*vectors)  # pyright: ignore[reportReturnType]


def _fm(*vectors: Tensor) -> tuple[Tensor, Tensor]:
    """The interaction [B], and the sum of the vectors [B, D]."""
    total = sum((each.sum(1) for each in vectors[1:]), vectors[0].sum(1))
    squares = sum(torch.linalg.vector_norm(each.flatten(1), dim=1).square() for each in vectors)
    return 0.5 * (total.square().sum(1) - squares), total


class FMInteraction(torch.autograd.Function):
    """The identity with its gradient by hand, the sum less the vector: a third of the passes over memory."""

    @staticmethod
    def forward(ctx: Any, *vectors: Tensor) -> Tensor:
        out, total = _fm(*vectors)
        ctx.save_for_backward(total, *vectors)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        total, *vectors = ctx.saved_tensors
        return tuple((total.unsqueeze(1) - each).mul_(grad[:, None, None]) for each in vectors)
