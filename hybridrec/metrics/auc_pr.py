"""The area under the precision-recall curve, over a histogram of the scores."""

from __future__ import annotations

from hybridrec.metrics.ranking import average_precision, average_precision_error
from hybridrec.metrics.score_bins import BINS
from hybridrec.metrics.totals import ClassHistogram


class AUCPR(ClassHistogram):
    """Average precision: the mean over positives of the precision among rows that score no less, in 1.6 MB.

    As scikit-learn's `average_precision_score`, without interpolation; nan without positives. Rows in one of
    98,305 bins count as ties, and `error()` bounds what this can have moved, whatever the weights within a bin.

    >>> import torch
    >>> area = AUCPR()
    >>> area.update(torch.tensor([0.1, 0.4, 0.6, 0.9]), torch.tensor([0.0, 1.0, 0.0, 1.0]))
    >>> round(area.compute(), 4)
    0.8333
    """

    name = "auc_pr"
    shape = (BINS, 2)

    def value(self) -> float:
        return average_precision(*self.classes())

    def error(self) -> float:
        """The most by which `compute` can differ from the average precision of the same float32 scores."""
        return average_precision_error(*self.classes())
