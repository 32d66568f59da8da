"""Products of pairs of vectors: every dot product by itself, or the sum of all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hybridrec.ops.pair_dots.op import kernels_for, pair_dots


def dot_interaction(*vectors: Tensor) -> Tensor:
    """The dot products of all pairs i < j of vectors [B, n, D], of one tensor or several in turn: [B, n (n - 1) / 2].

    >>> dot_interaction(torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]), torch.tensor([[[5.0, 6.0]]]))
    tensor([[11., 17., 39.]])
    """
    joined, n = _joined(vectors, False)
    return _dots(joined, n, 0)


ALIGNED = {"cuda": 8, "cpu": 4}  # vectors whose number is no multiple of it keep processors from their best products
PAIRS = 8  # the same for the columns of a matrix on a CPU: by others the gradient takes twice the time


def _joined(vectors: Sequence[Tensor], roomy: bool) -> tuple[Tensor, int]:
    """All vectors [B, m, D] with zeros behind them, at least one where it is to be `roomy`; and how many are given."""
    n, like = sum(each.shape[1] for each in vectors), vectors[0]
    missing = -n % ALIGNED[like.device.type] if like.is_cuda or roomy else 0
    missing = missing or (ALIGNED[like.device.type] if roomy else 0)
    room = [like.new_zeros(1, 1, 1).expand(like.shape[0], missing, like.shape[2])] if missing else []
    parts = [*vectors, *room]
    return (parts[0] if len(parts) == 1 else torch.cat(parts, 1)), n


def _dots(joined: Tensor, n: int, behind: int) -> Tensor:
    """The dot products of all pairs of the first n vectors, with so many columns of zeros behind them."""
    if torch.compiler.is_compiling():
        return _pairs(joined, n, behind)
    if torch.is_autocast_enabled(joined.device.type):
        joined = joined.to(torch.get_autocast_dtype(joined.device.type))
    return _Pairs.apply(joined, n, behind)  # pyright: ignore[reportReturnType]


def _pairs(vectors: Tensor, n: int, behind: int) -> Tensor:
    """One formula, compiled or not: all products of [B, m, D], and of the first n those of pairs; then zeros, which
    are products of vectors that are none."""
    m = vectors.shape[1]
    first, second = torch.triu_indices(n, n, offset=1, device=vectors.device)
    picked = torch.nn.functional.pad(first * m + second, (0, behind), value=m * m - 1)
    products = vectors @ vectors.transpose(1, 2)  # [B, m, m]
    return products.flatten(1).index_select(1, picked)


class _Pairs(torch.autograd.Function):
    """The products with their gradient by hand: it is symmetric, so there is one matrix product, not two."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, n: int, behind: int) -> Tensor:
        ctx.save_for_backward(vectors)
        ctx.n, ctx.behind = n, behind
        return _pairs(vectors, n, behind)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (vectors,) = ctx.saved_tensors
        m, pairs = vectors.shape[1], grad.shape[1] - ctx.behind
        first, second = torch.triu_indices(ctx.n, ctx.n, offset=1, device=grad.device)
        order = torch.arange(pairs, device=grad.device)
        place = torch.full((m * m,), pairs, device=grad.device)  # of each product among the pairs; others have none
        place[first * m + second] = order
        place[second * m + first] = order
        if not ctx.behind or bool(grad[:, pairs].any()):  # there is no column of zeros
            grad = torch.cat([grad[:, :pairs], grad.new_zeros(grad.shape[0], 1)], 1)
        return grad.index_select(1, place).unflatten(1, (m, m)) @ vectors, None, None


def pairs_beside(below: Tensor | None, vectors: Tensor, dim: int) -> tuple[Tensor, ...]:
    """below [B, dim], and the dot products of all pairs of it and the vectors of [B, F * dim]: inputs for an `MLP`.

    Kernels make one tensor of them in one pass, torch two. Columns of zeros are behind them, as processors like it.

    >>> (both,) = pairs_beside(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0, 5.0, 6.0]]), dim=2)
    >>> both.shape, both[:, :6]
    (torch.Size([1, 16]), tensor([[ 1.,  2., 11., 17., 39.,  0.]]))
    """
    if (kernels := kernels_for(below, vectors, dim)) is not None:
        return (pair_dots(kernels, below, vectors, dim),)
    fields = vectors.unflatten(1, (-1, dim))  # [B, F, dim]
    parts = [fields] if below is None else [below.unsqueeze(1), fields]
    n = sum(each.shape[1] for each in parts)
    behind = 0 if vectors.is_cuda else -(n * (n - 1) // 2) % PAIRS
    dots = _dots(*_joined(parts, behind > 0), behind)
    return (dots,) if below is None else (below, dots)


class FieldSums(NamedTuple):
    """Of the vectors [B, n, D] of some fields, what a factorisation machine needs: all that a pair's partner sees."""

    total: Tensor  # [B, D], the sum of the vectors
    squares: Tensor  # [B], the sum of their squared lengths


def fm_interaction(*fields: Tensor | FieldSums) -> Tensor:
    """The sum of the dot products of all pairs of vectors [B, n, D], of several tensors or sums together: [B].

    The factorisation machine's identity: twice the sum over pairs is the square of the sum less the sum of squares.
    It takes time that grows with the number of vectors, not of pairs.

    >>> fm_interaction(torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]), torch.tensor([[[5.0, 6.0]]]))
    tensor([67.])
    """
    sums = [each if isinstance(each, FieldSums) else field_sums(each) for each in fields]
    total, squares = sums[0]
    for each in sums[1:]:
        total, squares = total + each.total, squares + each.squares
    return 0.5 * (total.square().sum(1) - squares)


def field_sums(vectors: Tensor) -> FieldSums:
    """The sums of vectors [B, n, D].

    >>> sums = field_sums(torch.tensor([[[3.0, 4.0], [0.0, 0.0]]]))
    >>> sums.total, sums.squares
    (tensor([[3., 4.]]), tensor([25.]))
    """
    if torch.compiler.is_compiling():  # compilers fuse the passes themselves
        return FieldSums(*_sums(vectors))
    return FieldSums(*_Sums.apply(vectors))  # pyright: ignore[reportGeneralTypeIssues]


def _sums(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """One formula, compiled or not: an exported model gives the scores of the model."""
    return vectors.sum(1), torch.linalg.vector_norm(vectors.flatten(1), dim=1).square()


class _Sums(torch.autograd.Function):
    """Both sums with their gradient by hand: one pass over memory where autograd makes three."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(vectors)
        return _sums(vectors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, total: Tensor, squares: Tensor) -> Tensor:
        (vectors,) = ctx.saved_tensors
        return torch.addcmul(total.unsqueeze(1), vectors, squares[:, None, None], value=2)
