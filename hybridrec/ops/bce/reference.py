"""The loss by plain PyTorch: what autograd gives for it is the rule."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def bce(x: Tensor, y: Tensor, rows: Tensor | None, columns: Tensor | None, total: float | Tensor) -> Tensor:
    """The cross entropies of logits x and labels y, [B] or [B, k], times the weights of rows, summed, over `total`.

    Several labels of a row count by the weights of columns [k], or by their mean.

    >>> import torch
    >>> bce(torch.zeros(2), torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0]), None, total=1.0)
    tensor(0.6931)
    """
    values = F.binary_cross_entropy_with_logits(x, y, reduction="none")
    if values.dim() == 2:
        values = values.mean(1) if columns is None else values @ columns
    return (values if rows is None else values * rows).sum() / total
