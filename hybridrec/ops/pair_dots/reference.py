"""Dot products of pairs by plain PyTorch: what autograd gives for them is the rule."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad


def pair_dots(below: Tensor | None, fields: Tensor, dim: int, width: int) -> Tensor:
    """below [B, dim], then the dot products of all pairs of it and the vectors of fields [B, F * dim], then zeros.

    Pairs i < j are in the order of `torch.triu_indices`; the result has `width` columns.

    >>> pair_dots(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0, 5.0, 6.0]]), dim=2, width=6)
    tensor([[ 1.,  2., 11., 17., 39.,  0.]])
    """
    vectors = fields.unflatten(1, (-1, dim))
    if below is not None:
        vectors = torch.cat([below.unsqueeze(1), vectors], 1)
    n = vectors.shape[1]
    first, second = torch.triu_indices(n, n, offset=1, device=fields.device)
    dots = (vectors @ vectors.transpose(1, 2))[:, first, second]
    joined = dots if below is None else torch.cat([below, dots], 1)
    return pad(joined, (0, width - joined.shape[1]))
