"""The calibration curve: what was predicted against what came, from the lowest scores to the highest."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from hybridrec.metrics.rows import Rows
from hybridrec.metrics.score_bins import BINS, bin_edges
from hybridrec.metrics.totals import Totals


@dataclass(frozen=True)
class Curve:
    """Points of a calibration curve, lowest scores first: point i holds the scores from edges[i] to edges[i + 1]."""

    edges: list[float]  # one more than points
    predicted: list[float]  # mean score
    observed: list[float]  # mean label
    count: list[float]  # weight of the rows

    def to_dict(self) -> dict[str, list[float]]:
        """The four lists by name, ready for JSON."""
        return asdict(self)


class CalibrationCurve(Totals):
    """A curve of about `points` points that hold equal weights of rows; its number is the calibration error (ECE).

    Equal weights rather than equal widths, as the scores of click models crowd near zero. A point is made of whole
    score bins, so rows of one score stay together, and there are fewer points than asked for where few scores
    are. The number is the weighted mean over points of |predicted - observed|.

    >>> curve = CalibrationCurve(points=2)
    >>> curve.update(torch.tensor([0.125, 0.25, 0.5, 0.75]), torch.tensor([0.0, 0.0, 1.0, 0.0]))
    >>> curve.curve().predicted, curve.curve().observed, curve.compute()
    ([0.1875, 0.625], [0.0, 0.5], 0.15625)
    """

    name = "ece"
    shape = (3, BINS)  # weight, sum of scores, sum of labels

    def __init__(self, points: int = 20) -> None:
        if points < 1:
            raise ValueError(f"points is {points}: a curve needs one or more")
        super().__init__()
        self.points = points

    def count(self, rows: Rows) -> None:
        mass = rows.mass
        for total, values in zip(self.totals, (mass, mass * rows.scores, mass * rows.labels), strict=True):
            total.scatter_add_(0, rows.bins, values)

    def value(self) -> float:
        curve = self.curve()
        gaps = zip(curve.count, curve.predicted, curve.observed, strict=True)
        weight = sum(curve.count)
        return sum(n * abs(p - o) for n, p, o in gaps) / weight if weight else math.nan

    def curve(self) -> Curve:
        """The points so far; none while nothing was counted."""
        self._faults.check()
        totals = self.totals.cpu()
        bins = totals[0].nonzero().flatten()
        if len(bins) == 0:
            return Curve([], [], [], [])
        starts, sums = _pooled(totals[:, bins], self.points)
        weight, predicted, observed = sums
        edges = bin_edges()
        ends = [edges[bins[starts]], edges[bins[-1:] + 1]]
        return Curve(torch.cat(ends).tolist(), *((s.tolist()) for s in (predicted / weight, observed / weight, weight)))


def _pooled(totals: Tensor, points: int) -> tuple[Tensor, Tensor]:
    """The first bin of each point, and the totals [3, points]; a bin goes where the middle of its weight lies."""
    weight = totals[0]
    middle = (weight.cumsum(0) - weight / 2) / weight.sum()
    place = (middle * points).long().clamp_(max=points - 1)
    _, point, sizes = place.unique_consecutive(return_inverse=True, return_counts=True)
    sums = torch.zeros(3, len(sizes), dtype=torch.float64).index_add_(1, point, totals)
    return sizes.cumsum(0) - sizes, sums
