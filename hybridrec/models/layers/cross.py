"""CrossLayer: one layer of the cross network of DCN v2."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from hybridrec.models.layers.mlp import padded


class CrossLayer(nn.Module):
    """x0 * (W x + b) + x, elementwise; each layer raises the degree of the polynomial in x0 by one.

    With `rank` r, W is the product U V of [width, r] and [r, width]. Inputs may have columns of zeros behind their own,
    which stay zeros.

    >>> x = torch.ones(2, 6)
    >>> CrossLayer(6)(x, x).shape, sum(p.numel() for p in CrossLayer(6, rank=2).parameters())
    (torch.Size([2, 6]), 30)
    """

    def __init__(self, width: int, rank: int | None = None) -> None:
        super().__init__()
        if rank is not None and not 1 <= rank <= width:
            raise ValueError(f"rank is {rank}; it must be from 1 to the width, {width}, or None for a full matrix")
        if rank is None:
            self.weight: nn.Module = nn.Linear(width, width)
        else:
            self.weight = nn.Sequential(nn.Linear(width, rank, bias=False), nn.Linear(rank, width))

    def forward(self, x0: Tensor, x: Tensor) -> Tensor:
        return torch.addcmul(x, x0, self._product(x))

    def _product(self, x: Tensor) -> Tensor:
        linears = [self.weight] if isinstance(self.weight, nn.Linear) else list(self.weight)  # pyright: ignore
        zeros = x.shape[1] - linears[0].in_features
        if not zeros:
            return self.weight(x)
        behind = [zeros, *[0] * (len(linears) - 1), zeros]  # of each width between the layers
        for layer, (before, after) in zip(linears, pairwise(behind), strict=True):
            bias = None if layer.bias is None else padded(layer.bias, after)
            x = linear(x, padded(layer.weight, after, before), bias)
        return x
