"""Faults: values that no metric can count, found without making a device wait."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hybridrec.metrics.rows import Rows


class Faults:
    """Raises for scores, labels or weights outside their range; on the CPU at once, else when asked.

    On a device it keeps the smallest and largest value of each column, so that an update never waits; `check`
    brings them to the host. `binary` asks for scores in [0, 1] and labels 0 or 1, else for finite numbers.
    """

    def __init__(self, binary: bool) -> None:
        self.binary = binary
        self.seen: Tensor | None = None  # [3, 2]: lowest and highest score, label (less 1), weight

    def take(self, rows: Rows) -> None:
        """Look at rows before they are counted."""
        if len(rows) == 0:
            return
        ranges = _ranges(rows, self.binary)
        if ranges.device.type == "cpu":
            _raise_for(ranges, self.binary)
        else:
            self.seen = ranges if self.seen is None else _widened(self.seen.to(ranges.device), ranges)

    def check(self) -> None:
        """Raise for what a device has met since `reset`."""
        if self.seen is not None:
            _raise_for(self.seen.cpu(), self.binary)

    def reset(self) -> None:
        self.seen = None


def _ranges(rows: Rows, binary: bool) -> Tensor:
    odd = rows.labels - rows.positive.double() if binary else rows.labels  # what a label other than 0 is above 1
    columns = [rows.scores, odd] if rows.weights is None else [rows.scores, odd, rows.weights]
    found = torch.stack([end.double() for column in columns for end in column.aminmax()])
    return found.view(-1, 2) if len(columns) == 3 else torch.nn.functional.pad(found, (0, 2)).view(3, 2)


def _widened(a: Tensor, b: Tensor) -> Tensor:
    """The ranges that hold both; NaN stays NaN."""
    return torch.stack([torch.minimum(a[:, 0], b[:, 0]), torch.maximum(a[:, 1], b[:, 1])], dim=1)


def _raise_for(ranges: Tensor, binary: bool) -> None:
    (score, label, weight) = ranges.tolist()
    limits = (0.0, 1.0) if binary else (-math.inf, math.inf)
    if (bad := _outside(score, *limits)) is not None:
        rule = "probabilities in [0, 1]; pass torch.sigmoid(logits)" if binary else "finite numbers"
        raise ValueError(f"a score is {bad}: scores must be {rule}{_diverged(bad)}")
    if (bad := _outside(label, *((0.0, 0.0) if binary else limits))) is not None:
        bad = float(f"{bad + binary:.9g}")
        raise ValueError(f"a label is {bad}: labels must be {'0 or 1' if binary else 'finite numbers'}")
    if (bad := _outside(weight, 0.0, math.inf)) is not None:
        raise ValueError(f"a weight is {bad}: weights must be finite and not negative; 0 leaves a row out")


def _outside(ends: list[float], low: float, high: float) -> float | None:
    """An end of the range that lies outside the limits or is not finite."""
    return next((end for end in ends if not (low <= end <= high and math.isfinite(end))), None)


def _diverged(bad: float) -> str:
    return "" if math.isfinite(bad) else "; if the model made it, its training has diverged"
