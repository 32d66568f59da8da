"""Areas under the curves of a ranking, of the weights of both classes at each score, and how far bins can move them.

All take float64 [k] `negatives` and `positives`: the weights at k scores, lowest score first. Precisions want no score
without a weight; areas of ROC do not mind it, and are computed where the weights are.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def roc_area(negatives: Tensor, positives: Tensor) -> float:
    """The chance that a positive scores above a negative, ties as one half; nan without both classes.

    >>> roc_area(torch.tensor([1.0, 1.0]).double(), torch.tensor([0.0, 2.0]).double())
    0.75
    """
    return _share_of_pairs(negatives, positives, negatives.cumsum(0) - negatives / 2)


def roc_error(negatives: Tensor, positives: Tensor) -> float:
    """The most that an order within the scores could move `roc_area`: half of the pairs that share a score.

    >>> roc_error(torch.tensor([1.0, 1.0]).double(), torch.tensor([0.0, 2.0]).double())
    0.25
    """
    return _share_of_pairs(negatives, positives, negatives / 2)


def average_precision(negatives: Tensor, positives: Tensor) -> float:
    """The mean over positives of the precision among all rows that score no less; nan without positives.

    >>> average_precision(torch.tensor([1.0, 1.0]).double(), torch.tensor([0.0, 2.0]).double())
    0.6666666666666666
    """
    above, false = _from_top(positives), _from_top(negatives)
    total = float(positives.sum())
    return float(positives @ (above / (above + false))) / total if total > 0 else math.nan


def average_precision_error(negatives: Tensor, positives: Tensor) -> float:
    """The most that an order within the scores could move `average_precision`.

    At best the positives of a score stand together before its negatives; at worst they come after them, one by
    one, and smaller weights make that worse up to the integral of (P + x) / (P + x + N).

    >>> round(average_precision_error(torch.tensor([1.0]).double(), torch.tensor([1.0]).double()), 4)
    0.5
    """
    above, false, total = _from_top(positives), _from_top(negatives), float(positives.sum())
    if total == 0:
        return math.nan
    best = positives * above / (above + false - negatives)
    worst = positives - false * torch.log1p(positives / (above - positives + false))
    worst = torch.where(false > 0, worst, positives)
    actual = average_precision(negatives, positives)
    ends = [float(torch.nan_to_num(end).sum()) / total for end in (best, worst)]
    return max(ends[0] - actual, actual - ends[1])


def _share_of_pairs(negatives: Tensor, positives: Tensor, lost: Tensor) -> float:
    """Pairs of a positive with `lost` negatives each, as a share of all; one transfer from a device."""
    found, no, yes = torch.stack([positives @ lost, negatives.sum(), positives.sum()]).tolist()
    return found / (no * yes) if no * yes > 0 else math.nan


def _from_top(weights: Tensor) -> Tensor:
    """At each score, the weight of it and of all above."""
    return weights.flip(0).cumsum(0).flip(0)
