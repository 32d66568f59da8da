"""Calibration curves of all labels, drawn during a validation."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from hybridrec.metrics import CalibrationCurve
from hybridrec.metrics.metric import Gathers
from hybridrec.types import Batch


class Curves:
    """A calibration curve per label.

    >>> Curves(["click"]).to_json()
    {'click': {'edges': [], 'predicted': [], 'observed': [], 'count': []}}
    """

    def __init__(self, labels: Sequence[str]) -> None:
        self._curves = {name: CalibrationCurve() for name in labels}

    def __call__(self, scores: Tensor, batch: Batch) -> None:
        """Take in the scores of a batch."""
        if batch.label is None or scores.shape != batch.label.shape or not len(batch):
            return
        wide = scores.dim() == 2
        for at, curve in enumerate(self._curves.values()):
            curve.update(
                scores[:, at] if wide else scores, batch.label[:, at] if wide else batch.label, weights=batch.weight
            )

    def together(self, ranks: Gathers) -> Curves:
        """The curves of the rows of all ranks."""
        made = Curves(())
        made._curves = {name: curve.together(ranks) for name, curve in self._curves.items()}
        return made

    def to_json(self) -> dict[str, dict[str, list[float]]]:
        return {name: curve.curve().to_dict() for name, curve in self._curves.items()}
