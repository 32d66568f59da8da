"""How much a model predicts for each positive that comes."""

from __future__ import annotations

from torch import Tensor

from hybridrec.metrics.rows import Rows
from hybridrec.metrics.totals import Sums


class Calibration(Sums):
    """The sum of scores over the sum of labels: 1 is calibrated, 1.1 predicts a tenth too much.

    Both sums are weighted; nan without positives.

    >>> import torch
    >>> calibration = Calibration()
    >>> calibration.update(torch.tensor([0.5, 0.75]), torch.tensor([0.0, 1.0]))
    >>> calibration.compute()
    1.25
    """

    name = "calibration"
    shape = (2,)

    def terms(self, rows: Rows) -> list[Tensor]:
        return [rows.total(rows.scores), rows.total(rows.labels)]

    def of_sums(self, *sums: float) -> float:
        predicted, observed = sums
        return predicted / observed
