"""Cross layers by plain PyTorch: what autograd gives for them is the rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear


class Cross(NamedTuple):
    """The numbers of a layer of n columns: W is `up` [n, n], or up [n, r] times `down` [r, n]."""

    up: Tensor
    bias: Tensor  # [n]
    down: Tensor | None = None


def crosses(x0: Tensor, layers: Sequence[Cross]) -> Tensor:
    """x0 [B, n] through the layers in turn: each gives x0 * (W x + b) + x, elementwise.

    >>> crosses(torch.tensor([[1.0, 2.0]]), [Cross(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([0.5, 0.0]))])
    tensor([[3.5000, 4.0000]])
    """
    x = x0
    for up, bias, down in layers:
        x = torch.addcmul(x, x0, linear(x if down is None else linear(x, down), up, bias))
    return x
