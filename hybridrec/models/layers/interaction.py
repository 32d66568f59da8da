"""Products of pairs of vectors: every dot product by itself, or the sum of all."""

from __future__ import annotations

import torch
from torch import Tensor


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


def fm_interaction(vectors: Tensor) -> Tensor:
    """The sum of the dot products of all pairs of vectors [B, n, D]: [B], in time that grows with n.

    The factorisation machine's identity: twice the sum over pairs is the square of the sum less the sum of squares.

    >>> fm_interaction(torch.tensor([[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]]))
    tensor([67.])
    """
    return 0.5 * (vectors.sum(1).square() - vectors.square().sum(1)).sum(1)
