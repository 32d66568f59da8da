"""Log loss, and the same relative to knowing the base rate alone."""

from __future__ import annotations

import math

from torch import Tensor

from hybridrec.metrics.rows import Rows
from hybridrec.metrics.totals import Sums


class LogLoss(Sums):
    """The mean of -log p of the true class, in nats.

    Scores are kept away from 0 and 1 by the epsilon of their type (float32 1.2e-7, float64 2.2e-16), as
    scikit-learn's `log_loss` does.

    >>> import torch
    >>> loss = LogLoss()
    >>> loss.update(torch.tensor([0.5, 0.5]), torch.tensor([0.0, 1.0]))
    >>> round(loss.compute(), 6)
    0.693147
    """

    name = "logloss"
    shape = (2,)

    def terms(self, rows: Rows) -> list[Tensor]:
        return [rows.log_loss, rows.weight]

    def of_sums(self, *sums: float) -> float:
        loss, weight = sums
        return loss / weight


class NormalizedEntropy(Sums):
    """Log loss divided by the entropy of the base rate: 1 for a model that knows the rate alone, less is better.

    From "Practical lessons from predicting clicks on ads at Facebook" (He and others, 2014). The base rate is the
    weighted mean of the labels seen; nan without both classes.

    >>> import torch
    >>> entropy = NormalizedEntropy()
    >>> entropy.update(torch.full((4,), 0.25), torch.tensor([0.0, 0.0, 1.0, 0.0]))
    >>> round(entropy.compute(), 6)
    1.0
    """

    name = "ne"
    shape = (3,)

    def terms(self, rows: Rows) -> list[Tensor]:
        return [rows.log_loss, rows.weight, rows.total(rows.labels)]

    def of_sums(self, *sums: float) -> float:
        loss, weight, positives = sums
        negatives = weight - positives
        if positives <= 0 or negatives <= 0:
            return math.nan
        return -loss / (positives * math.log(positives / weight) + negatives * math.log(negatives / weight))
