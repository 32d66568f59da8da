"""Fewer points that draw the same line, and a smooth line through noisy ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, groupby

Point = tuple[float, float]
LIMIT = 320  # points of one line: more than a chart has pixels to show
SMOOTH_FROM = 60


def thin(points: Sequence[Point], limit: int = LIMIT) -> list[Point]:
    """At most about `limit` points: of every stretch of x the lowest and the highest, so that no spike is lost.

    Points come in the order of x. A stretch of nothing but NaN stays one NaN: a gap.

    >>> thin([(float(x), float(x % 7)) for x in range(100_000)], limit=4)
    [(0.0, 0.0), (6.0, 6.0), (50000.0, 6.0), (50001.0, 0.0)]
    """
    if len(points) <= limit:
        return list(points)
    first, last = points[0][0], points[-1][0]
    buckets = max(1, limit // 2)
    width = (last - first) / buckets or 1.0
    kept: list[Point] = []
    for _, group in groupby(points, key=lambda point: min(int((point[0] - first) / width), buckets - 1)):
        kept.extend(_extremes(list(group)))
    return kept


def _extremes(points: list[Point]) -> list[Point]:
    numbers = [point for point in points if math.isfinite(point[1])]
    if not numbers:
        return points[:1]
    low, high = min(numbers, key=lambda p: p[1]), max(numbers, key=lambda p: p[1])
    return sorted({low, high})


def smooth(points: Sequence[Point], window: int | None = None) -> list[Point]:
    """The running mean over `window` points around each, a fortieth of all unless stated; NaN stays a gap.

    >>> smooth([(0, 1.0), (1, 3.0), (2, 5.0)], window=3)
    [(0, 2.0), (1, 3.0), (2, 4.0)]
    """
    half = max(1, (window or len(points) // 40) // 2)
    finite = [math.isfinite(y) for _, y in points]
    sums = [0.0, *accumulate(y if ok else 0.0 for (_, y), ok in zip(points, finite, strict=True))]
    counts = [0, *accumulate(finite)]
    made: list[Point] = []
    for i, (x, _) in enumerate(points):
        low, high = max(0, i - half), min(len(points), i + half + 1)
        made.append((x, (sums[high] - sums[low]) / (counts[high] - counts[low]) if finite[i] else math.nan))
    return made
