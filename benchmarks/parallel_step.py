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
    best, cpu = (min(each) for each in zip(*found, strict=True))
    return {
        "step_ms": best,
        "cpu_ms": cpu,
        "stretches_ms": [each for each, _ in found],
        "rows_per_s": task.world * task.batch / best * 1e3,
        "rss_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def stretch(task: Task, step: Callable[[T], Any], turn: Any) -> tuple[float, float]:
    """Milliseconds of a step, from when all ranks are here until all have done the last one; those of the processor."""
    meet(task)
    start, busy = time.perf_counter(), time.process_time()
    for _ in range(task.steps):
        step(next(turn))
    meet(task)
    passed, worked = time.perf_counter() - start, time.process_time() - busy
    return passed / task.steps * 1e3, worked / task.steps * 1e3


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
