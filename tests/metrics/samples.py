"""Rows to measure: hypothesis draws them with many ties, single classes, zero weights, and few groups."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

from hybridrec.metrics import NAMES, Metric, make


@dataclass(frozen=True)
class Sample:
    scores: Tensor
    labels: Tensor
    weights: Tensor | None
    groups: Tensor

    def __len__(self) -> int:
        return len(self.scores)

    def part(self, index: Tensor) -> Sample:
        weights = None if self.weights is None else self.weights[index]
        return Sample(self.scores[index], self.labels[index], weights, self.groups[index])

    def arguments(self) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        return self.scores, self.labels, self.weights, self.groups


# Grid scores tie; the others reach the ends of float32.
SCORES = st.one_of(
    st.sampled_from([0.0, 0.125, 0.25, 0.5, 0.75, 1.0, -0.0, 1e-30, 2**-24, 1 - 2**-24]),
    st.floats(0, 1, width=32),
)
ROW = st.tuples(SCORES, st.booleans(), st.sampled_from([0.0, 0.5, 1.0, 1.0, 2.0, 3.25]), st.integers(-2, 2))


@st.composite
def samples(draw: st.DrawFn, least: int = 0, weighted: bool | None = None) -> Sample:
    rows = draw(st.lists(ROW, min_size=least, max_size=40))
    scores, labels, weights, groups = zip(*rows, strict=True) if rows else ((), (), (), ())
    given = draw(st.booleans()) if weighted is None else weighted
    return Sample(
        torch.tensor(scores, dtype=torch.float32),
        torch.tensor(labels, dtype=torch.float32),
        torch.tensor(weights, dtype=torch.float32) if given else None,
        torch.tensor(groups, dtype=torch.int64),
    )


def clicks(rows: int, seed: int = 0, spread: float = 1.5, base: float = -4.0, weighted: bool = False) -> Sample:
    """Rows as a click model has them: skewed scores, calibrated labels, groups of a few rows."""
    torch.manual_seed(seed)
    scores = torch.sigmoid(torch.randn(rows) * spread + base)
    labels = (torch.rand(rows) < scores).float()
    weights = torch.rand(rows) if weighted else None
    return Sample(
        scores,
        labels,
        weights,
        torch.randint(-(2**62), 2**62, (rows // 10 + 1,))[torch.randint(0, rows // 10 + 1, (rows,))],
    )


def counted(name: str, *parts: Sample) -> Metric:
    """A metric that has seen these parts, one update each."""
    metric = make(name)
    for part in parts:
        metric.update(*part.arguments())
    return metric


__all__ = ["NAMES", "Sample", "clicks", "counted", "samples"]
