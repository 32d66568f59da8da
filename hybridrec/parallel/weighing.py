"""Weighing: what each rank's rows count for in the mean over the global batch."""

from __future__ import annotations

from collections.abc import Sequence


class Weighing:
    """The weight of this rank's rows, and its share of that of all ranks in the forward pass at work."""

    def __init__(self) -> None:
        self.stated: float | None = None
        self.rows: int | None = None  # of the batch that the model was called with
        self.last = 1.0  # the share of the last lookup with gradients: those of layers count by it too

    def weight_of(self, rows: int) -> float:
        """What was stated, or the rows of the model's batch, or those of a lookup outside of a model.

        >>> Weighing().weight_of(30)
        30.0
        """
        return float(rows if self.rows is None else self.rows) if self.stated is None else self.stated


def share_of(mine: float, all_ranks: Sequence[float]) -> float:
    """A rank's part of the weight. Where there is none at all, gradients are zero, and ranks count alike.

    >>> share_of(30.0, [30.0, 10.0]), share_of(0.0, [0.0, 0.0])
    (0.75, 0.5)
    """
    total = sum(all_ranks)
    return mine / total if total else 1 / len(all_ranks)
