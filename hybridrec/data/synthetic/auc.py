"""The area under the ROC curve, exact for a sample and streaming over a histogram."""

from __future__ import annotations

import numpy as np

BINS = 1 << 16


class StreamingAuc:
    """AUC of scores in [0, 1] against labels, in bounded memory: 65,536 equal bins, ties count one half.

    Two rows in the same bin count as tied, which moves the result by less than 1e-5 for smooth scores.

    >>> auc = StreamingAuc()
    >>> auc.add(np.array([0.1, 0.4, 0.6, 0.9]), np.array([0, 1, 0, 1]))
    >>> auc.value()
    0.75
    """

    def __init__(self) -> None:
        self.counts = np.zeros(2 * BINS, dtype=np.int64)  # interleaved: [bin, label]

    def add(self, scores: np.ndarray, labels: np.ndarray) -> None:
        """Count rows; `labels` are 0 or 1."""
        bins = np.minimum((scores * BINS).astype(np.int64), BINS - 1)
        self.counts += np.bincount(2 * bins + labels, minlength=2 * BINS)

    @property
    def positives(self) -> int:
        return int(self.counts[1::2].sum())

    def value(self) -> float | None:
        """The AUC, or None while one of the two classes is absent."""
        negatives, positives = self.counts[0::2].astype(np.float64), self.counts[1::2].astype(np.float64)
        pairs = negatives.sum() * positives.sum()
        if pairs == 0:
            return None
        below = np.cumsum(negatives) - negatives
        return float((positives * (below + 0.5 * negatives)).sum() / pairs)


def expected_auc(ascending: np.ndarray) -> float:
    """The AUC to expect when each row's label is drawn with its own probability; these come sorted.

    >>> round(expected_auc(np.array([0.2, 0.8])), 3)
    0.8
    """
    p = ascending
    negatives = np.cumsum(1 - p) - 0.5 * (1 - p)
    return float((p * negatives).sum() / (p.sum() * (1 - p).sum()))
