"""What each batch of a step counts for: within the step of this rank, and among all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from hybridrec.parallel.ranks import Ranks
from hybridrec.train.losses import Divisor
from hybridrec.train.placed import Placed


class StepShare(NamedTuple):
    """`divisor` makes the loss of a batch; `weight` is what this rank's gradients count for among those of all ranks.

    `scale` makes of that loss the batch's part of the mean over this rank's rows.
    """

    divisor: Divisor
    weight: float
    scale: float = 1.0


def step_shares(placed: Sequence[Placed], ranks: Ranks | None, across: bool) -> list[StepShare]:
    """A share for each batch of a step, so that gradients are those of the mean over all rows of all ranks.

    As a rule a rank's loss is the mean over its rows, and counts by their weight. With a loss `across` ranks, rows
    without a weight are negatives for others and take gradients, so a rank counts by its rows, whatever their weight;
    that takes one more collective, of a few numbers.
    """
    total = sum(each.weight for each in placed)
    if ranks is None or not across:
        return [StepShare(Divisor.of(each.weight, total), total) for each in placed]
    rows = [float(len(each.batch)) for each in placed]
    everyones_weight, *everyones_rows = ranks.sum(torch.tensor([total, *rows], dtype=torch.float64)).tolist()
    shares = []
    for each, own, all_rows in zip(placed, rows, everyones_rows, strict=True):
        part = everyones_weight * own / all_rows if all_rows else 0.0
        shares.append(StepShare(Divisor.of(each.weight, part), own, part / total if total else 0.0))
    return shares
