"""Gradients summed by row in plain PyTorch: what the kernels agree with, and what runs where order must not vary."""

from __future__ import annotations

from torch import Tensor


def sum_by_row(rows: Tensor, grads: Tensor) -> tuple[Tensor, Tensor]:
    """The different rows among int64 [N], ascending [U], and the sums of their gradients [N, D], [U, D].

    >>> import torch
    >>> sum_by_row(torch.tensor([7, 3, 7]), torch.tensor([[1.0], [2.0], [4.0]]))
    (tensor([3, 7]), tensor([[2.],
            [5.]]))
    """
    unique, inverse = rows.unique(return_inverse=True)
    return unique, grads.new_zeros(len(unique), grads.shape[1]).index_add_(0, inverse, grads)
