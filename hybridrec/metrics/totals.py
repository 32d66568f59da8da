"""Metrics whose state is one tensor of sums: sums of a few terms, or a histogram."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Self

import torch
from torch import Tensor

from hybridrec.metrics.metric import Gathers, Metric
from hybridrec.metrics.rows import Rows


class Totals(Metric):
    """A metric of one float64 tensor that updates add to; counts are exact up to 2**53."""

    shape: ClassVar[tuple[int, ...]]

    @torch.inference_mode(False)  # the tensor outlives the mode it is made in
    def __init__(self) -> None:
        super().__init__()
        self.totals = torch.zeros(self.shape, dtype=torch.float64)

    def add(self, rows: Rows) -> None:
        if self.totals.device != rows.device:
            self.totals = self.totals.to(rows.device)
        if len(rows) > 0:
            self.count(rows)

    @abstractmethod
    def count(self, rows: Rows) -> None:
        """Add rows, at least one, to `totals`."""

    def _merge(self, other: Self) -> None:
        self.totals.add_(other.totals.to(self.totals.device))

    @torch.inference_mode(False)
    def together(self, ranks: Gathers) -> Self:
        self._faults.check()
        made = self.like()
        made.totals = ranks.sum(self.totals.detach().cpu().clone())
        return made

    def _clear(self) -> None:
        self.totals = torch.zeros_like(self.totals)

    def _state(self) -> dict[str, Tensor]:
        return {"totals": self.totals.clone()}

    def _load(self, state: Mapping[str, Tensor]) -> None:
        totals = state["totals"]
        if totals.shape != self.totals.shape or totals.dtype != torch.float64:
            rule = f"float64 {list(self.totals.shape)}"
            raise ValueError(f"the totals of {self.name} are {rule}, got {totals.dtype} {list(totals.shape)}")
        self.totals = totals.clone()


class Sums(Totals):
    """A metric of a few weighted sums over rows."""

    @abstractmethod
    def terms(self, rows: Rows) -> list[Tensor]:
        """What rows add to each sum, scalars in float64."""

    @abstractmethod
    def of_sums(self, *sums: float) -> float:
        """The metric, of the sums; a division by zero makes it nan."""

    def count(self, rows: Rows) -> None:
        self.totals.add_(torch.stack(self.terms(rows)))

    def value(self) -> float:
        try:
            return self.of_sums(*self.totals.tolist())
        except ZeroDivisionError:
            return math.nan


class ClassHistogram(Totals):
    """A metric of the weights of each class in each score bin, [bin, class]."""

    def count(self, rows: Rows) -> None:
        self.totals.view(-1).scatter_add_(0, rows.cells, rows.mass)

    def classes(self) -> tuple[Tensor, Tensor]:
        """The weights of negatives and of positives per occupied bin, lowest scores first."""
        totals = self.totals.cpu()
        totals = totals[totals.sum(1) > 0]
        return totals[:, 0], totals[:, 1]
