"""From numbers to places on a chart: the range shown, and ticks at round numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

OUTLIERS_FROM = 50  # values; fewer are shown in full
OUTLIER_RATIO = 4.0  # the range shrinks to the middle 98 % where the whole is that many times wider


@dataclass(frozen=True)
class Scale:
    """A linear map from [low, high] to [start, end].

    >>> Scale(0, 10, 100, 200)(5), Scale(0, 1, 50, 0)(0.25)
    (150.0, 37.5)
    """

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers from low to high: multiples of 1, 2 or 5 times a power of ten.

    >>> ticks(0.0, 1.0), ticks(3, 47, 4)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [10.0, 20.0, 30.0, 40.0])
    """
    step = _round_step((high - low) / count)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    places = max(0, -math.floor(math.log10(step)))
    return [round(i * step, places) + 0.0 for i in range(first, last + 1)]


def _round_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return min((m * power for m in (1, 2, 5, 10)), key=lambda step: abs(math.log(step / rough)))


def tick_labels(values: Sequence[float]) -> list[str]:
    """Ticks with as many decimals as they need, all alike.

    >>> tick_labels([0.0, 0.25, 0.5]), tick_labels([0, 5000, 10000]), tick_labels([1e-6, 2e-6])
    (['0.00', '0.25', '0.50'], ['0', '5k', '10k'], ['1e-06', '2e-06'])
    """
    top = max(map(abs, values), default=0.0)
    if top >= 10_000 or (values and top >= 1000 and all(v % 500 == 0 for v in values)):
        return [_thousands(v) for v in values]
    if 0 < top < 1e-3:
        return [f"{v:.4g}" for v in values]
    places = next((p for p in range(9) if all(math.isclose(round(v, p), v, abs_tol=1e-12) for v in values)), 9)
    return [f"{v:.{places}f}" for v in values]


def _thousands(value: float) -> str:
    for scale, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= scale:
            return f"{value / scale:.10g}{unit}"
    return f"{value:g}"


def span(values: Sequence[float], pad: float = 0.06) -> tuple[float, float]:
    """The range to show for these finite values: all of them, or the middle 98 % where a few lie far away.

    >>> span([1.0, 2.0], pad=0), span([5.0]), span([])
    ((1.0, 2.0), (4.5, 5.5), (0.0, 1.0))
    """
    if not values:
        return 0.0, 1.0
    ordered = sorted(values)
    low, high = ordered[0], ordered[-1]
    if len(ordered) >= OUTLIERS_FROM:
        inner_low, inner_high = ordered[len(ordered) // 100], ordered[-1 - len(ordered) // 100]
        if high - low > OUTLIER_RATIO * (inner_high - inner_low) > 0:
            low, high, pad = inner_low, inner_high, max(pad, 0.25)
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        half = abs(low) * 0.1 or 0.5
        return low - half, high + half
    return low - pad * (high - low), high + pad * (high - low)
