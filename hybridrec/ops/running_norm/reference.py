"""Counting rows, and normalising them, by plain PyTorch: what runs on a CPU, and on ranks that count together."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Moments(NamedTuple):
    """Of the finite numbers of each column, float64 [n]: how many, their mean, and squared distances from it."""

    count: Tensor
    mean: Tensor
    squares: Tensor

    def merge(self, more: Moments) -> None:
        """Count those too, in place: the moments of two sets of rows, merged (Chan et al. 1979)."""
        total = (self.count + more.count).clamp(min=1)
        away = more.mean - self.mean
        self.squares.add_(more.squares + away.square() * self.count * more.count / total)
        self.mean.add_(away * more.count / total)
        self.count.add_(more.count)


def moments(numbers: Tensor) -> Moments:
    """Those of numbers [B, n].

    >>> moments(torch.tensor([[1.0], [3.0], [torch.nan]])).squares
    tensor([2.], dtype=torch.float64)
    """
    finite = numbers.isfinite()
    values = torch.where(finite, numbers, 0).double()
    count = finite.sum(0).double()
    mean = values.sum(0) / count.clamp(min=1)
    return Moments(count, mean, torch.where(finite, values - mean, 0).square().sum(0))


def count_in(numbers: Tensor, known: Moments) -> None:
    """Count these rows [B, n] among those that are known."""
    known.merge(moments(numbers))


def normalised(numbers: Tensor, known: Moments, eps: float, limit: float) -> Tensor:
    """(x - mean) / std of each column, float32 [B, n], within ± limit; NaN stays NaN."""
    variance = torch.where(known.squares > 0, known.squares / known.count.clamp(min=1), 1.0)
    scaled = (numbers - known.mean) * (variance + eps * eps).rsqrt()
    return scaled.clamp(-limit, limit).float()
