"""Rows: the columns of one update, checked once and shared by all metrics that take them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from hybridrec.metrics.score_bins import score_bin


@dataclass(frozen=True, eq=False)
class Rows:
    """Columns of one length on one device; what several metrics derive from them is derived once."""

    scores: Tensor  # [n] float32 or float64
    labels: Tensor  # [n] float64
    weights: Tensor | None = None  # [n] float64
    groups: Tensor | None = None  # [n] int64

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def device(self) -> torch.device:
        return self.scores.device

    @cached_property
    def positive(self) -> Tensor:
        return self.labels != 0

    @cached_property
    def bins(self) -> Tensor:
        """The bin of each score, int64."""
        return score_bin(self.scores)

    @cached_property
    def cells(self) -> Tensor:
        """2 * bin + label: a place in a histogram of [bin, class]."""
        return self.bins.mul(2).add_(self.positive.long())

    @cached_property
    def mass(self) -> Tensor:
        """What each row counts, float64: its weight, or one."""
        return torch.ones_like(self.labels) if self.weights is None else self.weights

    @cached_property
    def weight(self) -> Tensor:
        """The sum of all masses."""
        count = torch.full((), len(self), dtype=torch.float64, device=self.device)
        return count if self.weights is None else self.weights.sum()

    @cached_property
    def log_loss(self) -> Tensor:
        """The sum of -log p of the true class, p kept away from 0 and 1 by the epsilon of the scores' type."""
        tiny = torch.finfo(self.scores.dtype).eps
        p = self.scores.double().clamp(tiny, 1 - tiny)
        return -self.total(torch.where(self.positive, p, 1 - p).log_())

    def total(self, values: Tensor) -> Tensor:
        """The weighted sum of `values` [n], float64."""
        return (values if self.weights is None else self.weights * values).sum(dtype=torch.float64)


def as_rows(scores: Tensor, labels: Tensor, weights: Tensor | None, groups: Tensor | None) -> Rows:
    """The columns as Rows, or an error that names the column of another shape, type or device."""
    if scores.dim() != 1:
        raise ValueError(f"scores must be [n], got {list(scores.shape)}; one metric takes one label's scores")
    for name, column in {"labels": labels, "weights": weights, "groups": groups}.items():
        if column is None:
            continue
        if column.shape != scores.shape:
            raise ValueError(f"{name} must be {list(scores.shape)} as scores are, got {list(column.shape)}")
        if column.device != scores.device:
            raise ValueError(f"{name} are on {column.device} but scores are on {scores.device}; move them with .to()")
    if groups is not None and (groups.is_floating_point() or groups.is_complex()):
        raise TypeError(f"groups must be integers, got {groups.dtype}; number or hash other values first")
    scores = scores.detach()
    scores = scores if scores.dtype in (torch.float32, torch.float64) else scores.float()
    weights = None if weights is None else weights.detach().double()
    return Rows(scores, labels.detach().double(), weights, None if groups is None else groups.long())
