"""The measured loop of `parallel.py`, for ours and the peer: stretches of steps that all ranks begin together."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any, TypeVar

import torch
from parallel_workload import CHECKED, Task
from torch import distributed

T = TypeVar("T")


def timed(task: Task, batches: Sequence[T], step: Callable[[T], Any]) -> dict[str, Any]:
    """Milliseconds of a step in each stretch, by the clock of the first rank, and what the best one makes of it."""
    turn = cycle(batches)
    for _ in range(task.warm):
        step(next(turn))
    found = [stretch(task, step, turn) for _ in range(task.stretches)]
    best = min(found)
    return {
        "step_ms": best,
        "stretches_ms": found,
        "rows_per_s": task.world * task.batch / best * 1e3,
        "rss_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def stretch(task: Task, step: Callable[[T], Any], turn: Any) -> float:
    """Milliseconds of a step, from when all ranks are here until all have done the last one."""
    meet(task)
    start = time.perf_counter()
    for _ in range(task.steps):
        step(next(turn))
    meet(task)
    return (time.perf_counter() - start) / task.steps * 1e3


def meet(task: Task) -> None:
    """Until all ranks are here."""
    if task.world > 1:
        distributed.all_reduce(torch.zeros(1))


def mean_losses(task: Task, batches: Sequence[T], step: Callable[[T], float]) -> list[float]:
    """The losses of the first steps, each a mean over the rows of all ranks."""
    losses = torch.tensor([step(batch) for batch in batches[:CHECKED]], dtype=torch.float64)
    if task.world > 1:
        distributed.all_reduce(losses)
    return (losses / task.world).tolist()
