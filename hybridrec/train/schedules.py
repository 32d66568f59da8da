"""Learning rates over the steps, as schedulers of torch."""

from __future__ import annotations

import math

import torch
from torch.optim.lr_scheduler import LambdaLR

from hybridrec.train.options import Schedule


def factor(schedule: Schedule, step: int, total: int | None) -> float:
    """What the learning rate is multiplied by in a step (0 is the first) of `total`.

    >>> [factor(Schedule("linear", warmup=2), step, 6) for step in range(7)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]
    """
    if step < schedule.warmup:
        return (step + 1) / schedule.warmup
    if schedule.kind == "constant":
        return 1.0
    since = step - schedule.warmup
    if schedule.kind == "inverse_sqrt":
        return max(schedule.end, 1 / math.sqrt(1 + since / max(schedule.warmup, 1)))
    assert total is not None, "make_scheduler checks it"
    done = min(1.0, since / max(total - schedule.warmup, 1))
    left = 1 - done if schedule.kind == "linear" else (1 + math.cos(math.pi * done)) / 2
    return schedule.end + (1 - schedule.end) * left


def make_scheduler(
    optimizer: torch.optim.Optimizer | None, schedule: Schedule, total: int | None, name: str
) -> LambdaLR | None:
    """A scheduler that is stepped after each step of the optimizer; None where the rate stays as it is."""
    if optimizer is None or schedule == Schedule():
        return None
    total = schedule.steps or total
    if total is None and schedule.kind in ("linear", "cosine"):
        raise ValueError(
            f"{name} is {schedule.kind!r}, but the number of steps is not known; give fit(steps=...), or Schedule(..., "
            "steps=...)"
        )
    return LambdaLR(optimizer, lambda step: factor(schedule, step, total))
