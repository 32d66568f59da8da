"""The share of rows on the right side of a threshold."""

from __future__ import annotations

from torch import Tensor

from hybridrec.metrics.rows import Rows
from hybridrec.metrics.totals import Sums


class Accuracy(Sums):
    """The share of rows where (score > threshold) is the label; a score at the threshold counts as 0.

    >>> import torch
    >>> accuracy = Accuracy()
    >>> accuracy.update(torch.tensor([0.2, 0.5, 0.7, 0.9]), torch.tensor([0.0, 1.0, 1.0, 1.0]))
    >>> accuracy.compute()
    0.75
    """

    shape = (2,)

    def __init__(self, threshold: float = 0.5) -> None:
        if not 0 <= threshold <= 1:
            raise ValueError(f"threshold is {threshold}: it must be in [0, 1], as scores are")
        super().__init__()
        self.threshold = threshold
        self.name = "accuracy" if threshold == 0.5 else f"accuracy:{threshold}"

    def terms(self, rows: Rows) -> list[Tensor]:
        return [rows.total((rows.scores > self.threshold) == rows.positive), rows.weight]

    def of_sums(self, *sums: float) -> float:
        right, weight = sums
        return right / weight
