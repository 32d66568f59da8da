"""CrossLayer: one layer of the cross network of DCN v2; and several in turn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from hybridrec.models.layers.mlp import padded, watched
from hybridrec.ops.crosses.reference import Cross
from hybridrec.ops.pair_dots.op import kind_of
from hybridrec.ops.room import aligned_width


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

    def linears(self) -> list[nn.Linear]:
        """What multiplies, in turn."""
        return [self.weight] if isinstance(self.weight, nn.Linear) else list(self.weight)  # pyright: ignore

    def _product(self, x: Tensor) -> Tensor:
        linears = self.linears()
        zeros = x.shape[1] - linears[0].in_features
        if not zeros:
            return self.weight(x)
        behind = [zeros, *[0] * (len(linears) - 1), zeros]  # of each width between the layers
        for layer, (before, after) in zip(linears, pairwise(behind), strict=True):
            bias = None if layer.bias is None else padded(layer.bias, after)
            x = linear(x, padded(layer.weight, after, before), bias)
        return x


def crossed(x0: Tensor, layers: Iterable[nn.Module]) -> Tensor:
    """x0 [B, n] through cross layers in turn; on a GPU as one operator, if it takes them.

    >>> layers = [CrossLayer(6, rank=2), CrossLayer(6)]
    >>> x0 = torch.ones(2, 6)
    >>> torch.equal(crossed(x0, layers), layers[1](x0, layers[0](x0, x0)))
    True
    """
    layers = list(layers)
    if x0.is_cuda and (result := together(x0, layers)) is not None:
        return result
    x = x0
    for layer in layers:
        x = layer(x0, x)
    return x


def together(x0: Tensor, layers: Sequence[nn.Module]) -> Tensor | None:
    """The layers as one operator, their widths as matrix units like them; None where they are for torch.

    x0 [B, n] may have columns of zeros behind those that the layers know. Under autocast the result is of its type.
    """
    from hybridrec.ops.crosses.op import crosses, suits  # which needs Triton

    kind = kind_of(x0)
    if not suits(x0, kind):
        return None
    plain = [layer for layer in layers if _is_plain(layer)]
    if len(plain) < len(layers):
        return None
    return crosses(x0, [_numbers(layer.linears(), x0.shape[1], kind) for layer in plain])


def _is_plain(layer: nn.Module) -> TypeGuard[CrossLayer]:
    """Whether it is a cross layer as we make them, and nobody looks at what it or a part of it gives."""
    if type(layer) is not CrossLayer or any(map(watched, layer.modules())):
        return False
    linears = layer.linears()
    biases = [each.bias is not None for each in linears if type(each) is nn.Linear]
    return len(biases) == len(linears) and biases in ([True], [False, True])


def _numbers(linears: Sequence[nn.Linear], columns: int, kind: torch.dtype) -> Cross:
    """Those of a layer for inputs of so many columns, with zeros where they have none."""
    last, zeros = linears[-1], columns - linears[-1].out_features
    bias = padded(last.bias.to(kind), zeros)
    if len(linears) == 1:
        return Cross(padded(last.weight.to(kind), zeros, zeros), bias)
    down = linears[0].weight.to(kind)
    missing = aligned_width(len(down)) - len(down)
    return Cross(padded(last.weight.to(kind), zeros, missing), bias, padded(down, missing, zeros))
