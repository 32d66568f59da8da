"""RunningNorm: dense columns to mean 0 and variance 1, by what training has seen of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from hybridrec.ops.running_norm import reference
from hybridrec.ops.running_norm.reference import Moments
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
        known = Moments(self.count, self.mean, self.squares)
        run: Any = reference
        if numbers.is_cuda and not torch.compiler.is_compiling():
            from hybridrec.ops.running_norm import triton as kernels

            run = kernels if kernels.suits(numbers, known) else reference
        if self.training:
            self._count(numbers, known, run)
        return run.normalised(numbers, known, self.eps, self.limit)

    @torch.no_grad()
    def _count(self, numbers: Tensor, known: Moments, run: Any) -> None:
        """Count these rows, and those of all ranks."""
        together = ranks()
        if together is None or not self.columns:
            return run.count_in(numbers, known)
        for part in together.stacked(torch.stack(reference.moments(numbers))):
            known.merge(Moments(*part))

    def extra_repr(self) -> str:
        return f"{self.columns} columns, limit={self.limit}"
