"""Root mean squared error."""

from __future__ import annotations

import math
from typing import ClassVar

from torch import Tensor

from hybridrec.metrics.rows import Rows
from hybridrec.metrics.totals import Sums


class RMSE(Sums):
    """The root of the mean of (score - label) squared; scores and labels are any finite numbers.

    >>> import torch
    >>> error = RMSE()
    >>> error.update(torch.tensor([3.0, 5.0]), torch.tensor([1.0, 5.0]))
    >>> round(error.compute(), 6)
    1.414214
    """

    name = "rmse"
    shape = (2,)
    binary: ClassVar[bool] = False

    def terms(self, rows: Rows) -> list[Tensor]:
        return [rows.total((rows.scores.double() - rows.labels).square()), rows.weight]

    def of_sums(self, *sums: float) -> float:
        squares, weight = sums
        return math.sqrt(squares / weight)
