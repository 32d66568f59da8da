"""RunningNorm: dense columns to mean 0 and variance 1, by what training has seen of them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hybridrec.parallel.ranks import ranks


class RunningNorm(nn.Module):
    """(x - mean) / std of each column of [B, n], with mean and variance over all rows seen in training.

    A training batch is counted first and normalised after, by the same numbers as evaluation would: rows do not depend
    on their neighbours, and batches of one row or none work, as they do not with BatchNorm. After an epoch the numbers
    are those of the data. They are buffers (float64), saved and restored exactly. Values that are not finite are
    not counted, and NaN stays NaN. Results are limited to ± `limit`, for columns with far outliers. Ranks that train
    together count the rows of all of them.

    >>> norm = RunningNorm(1)
    >>> norm(torch.tensor([[1.0], [3.0]]))
    tensor([[-1.],
            [ 1.]])
    >>> norm.eval()(torch.tensor([[2.0]]))
    tensor([[0.]])
    """

    count: Tensor
    mean: Tensor
    squares: Tensor

    def __init__(self, columns: int, *, limit: float = 10.0, eps: float = 1e-6) -> None:
        super().__init__()
        self.columns, self.limit, self.eps = columns, limit, eps
        for name in ("count", "mean", "squares"):  # squares: the sum of squared distances from the mean
            self.register_buffer(name, torch.zeros(columns, dtype=torch.float64))

    def forward(self, numbers: Tensor) -> Tensor:
        if self.training:
            self.update(numbers)
        variance = torch.where(self.squares > 0, self.squares / self.count.clamp(min=1), 1.0)
        scaled = (numbers - self.mean) * (variance + self.eps * self.eps).rsqrt()
        return scaled.clamp(-self.limit, self.limit).float()

    @torch.no_grad()
    def update(self, numbers: Tensor) -> None:
        """Count these rows: the means and squares of two sets of rows, merged (Chan et al. 1979)."""
        finite = numbers.isfinite()
        values = torch.where(finite, numbers, 0).double()
        count = finite.sum(0).double()
        mean = values.sum(0) / count.clamp(min=1)
        squares = torch.where(finite, values - mean, 0).square().sum(0)
        together = ranks()
        if together is None or not self.columns:
            return self._merge(count, mean, squares)
        for part in together.stacked(torch.stack([count, mean, squares])):
            self._merge(*part)

    def _merge(self, count: Tensor, mean: Tensor, squares: Tensor) -> None:
        total = (self.count + count).clamp(min=1)
        away = mean - self.mean
        self.squares += squares + away.square() * self.count * count / total
        self.mean += away * count / total
        self.count += count

    def extra_repr(self) -> str:
        return f"{self.columns} columns, limit={self.limit}"
