"""FirstOrder: the linear part of a model."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class FirstOrder(nn.Module):
    """Weights of ids [B, F * k] and dense numbers [B, n] to sums [B, k]: one weight per id, per number, and a bias.

    The weights of ids come out of tables; those of numbers are here, and begin at 0 as well.

    >>> FirstOrder(columns=1)(torch.tensor([[0.5, 0.25]]), torch.tensor([[3.0]]))
    tensor([[0.7500]], grad_fn=<AddBackward0>)
    """

    def __init__(self, columns: int, outputs: int = 1) -> None:
        super().__init__()
        self.outputs = outputs
        self.weight = nn.Parameter(torch.zeros(columns, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, ids: Tensor, numbers: Tensor) -> Tensor:
        return ids.unflatten(1, (-1, self.outputs)).sum(1) + numbers @ self.weight + self.bias
