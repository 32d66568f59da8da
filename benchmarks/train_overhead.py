"""How much of a step is our Python? An upper bound, as a share of the step at the full batch.

Python costs the same for one row as for 8192, and kernels next to nothing for one. So three times are measured:

    ours at 1 row        a whole step of the Trainer: lookups, net, loss, checks, both optimizers, metrics, its share
                         of the records (run directory on, display off; one in 10 steps, since the fit is short)
    torch at 1 row       forward, loss, backward and optimizer step of the same `net` on ready tensors
    ours at full batch   as the first, with batches of 8192 rows

    step_overhead = (ours at 1 row - torch at 1 row + handover) / ours at full batch

The difference is all that the framework adds to a plain loop over the net. It holds the fixed costs of native calls and
of the torch calls in our loss and metrics, so our Python alone is less. Batches are ready in memory, so that no time
waits for data; `handover` is the time to take a finished batch from the loader, at the full batch.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from torch.nn.functional import binary_cross_entropy_with_logits
from train_ours import dataset, model_of, ready_batches, stages_of, trainer_of
from train_workload import LR, Task, say

from hybridrec.train import Callback, Trainer
from hybridrec.types import Batch

READY, ONE_ROW, FULL = 32, 5, 3  # batches in memory; repetitions of `steps` steps, of which the first does not count


class Clock(Callback):
    """The time at the end of every `steps` steps, so that each stretch has as many records."""

    def __init__(self, steps: int) -> None:
        self.steps, self.times = steps, []

    def on_step(self, trainer: Trainer, result: Any) -> None:
        if trainer.step % self.steps == 0:
            self.times.append(time.perf_counter())


class Again:
    """The same batches over and over."""

    def __init__(self, batches: list[Batch]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Batch]:
        return itertools.cycle(self.batches)


def ours_ms(task: Task, stretches: int) -> dict[str, Any]:
    """Milliseconds of a Trainer's step at the task's batch size: the median stretch, and its stages."""
    clock, batches = Clock(task.steps), Again(ready_batches(task, READY))
    with tempfile.TemporaryDirectory(dir=task.folder) as out:
        trainer = trainer_of(model_of(dataset(task).schema, task.ids), out, [clock])
        history = trainer.fit(batches, steps=task.steps * stretches)
    spent = [end - begin for begin, end in itertools.pairwise(clock.times)]
    stages = stages_of(history.records)
    return {
        "ms": 1e3 * median(spent) / task.steps,
        "stages_ms": {name: 1e3 * seconds / trainer.step for name, seconds in stages.items()},
    }


def torch_ms(task: Task, stretches: int) -> float:
    """Milliseconds of forward, loss, backward and update of the net alone, on one row that is ready."""
    model = model_of(dataset(task).schema, task.ids)
    (batch,) = ready_batches(replace(task, batch=1), 1)
    assert batch.label is not None
    label, made = batch.label, [tensor.detach() for tensor in model.inputs(batch)]
    optimizer = torch.optim.Adagrad(model.net.parameters(), lr=LR)

    def step() -> float:
        first, vectors, dense = made
        logits = model.net(first.requires_grad_(), vectors.requires_grad_(), dense)
        loss = binary_cross_entropy_with_logits(model.logits(logits), label)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        first.grad = vectors.grad = None
        return loss.item()

    return 1e3 * median(_stretches(step, task.steps, stretches)) / task.steps


def _stretches(step: Callable[[], Any], steps: int, stretches: int) -> list[float]:
    """Seconds of each stretch but the first."""
    times = []
    for _ in range(stretches):
        for _ in range(steps):
            step()
        times.append(time.perf_counter())
    return [end - begin for begin, end in itertools.pairwise(times)]


def handover_ms(task: Task, busy_s: float) -> float:
    """Milliseconds to take a batch that the loader has finished: it had as long as a step takes, twice."""
    spent, batches = [], iter(dataset(task))
    while True:
        begin = time.perf_counter()
        if next(batches, None) is None:
            break
        spent.append(time.perf_counter() - begin)
        time.sleep(2 * busy_s)
    return 1e3 * median(spent)


def overhead(task: Task) -> dict[str, Any]:
    """All three times, and the share."""
    torch.set_num_threads(task.threads)
    one = ours_ms(replace(task, batch=1), ONE_ROW)
    net = torch_ms(task, ONE_ROW)
    full = ours_ms(task, FULL)
    given = handover_ms(task, full["ms"] / 1e3)
    return {
        "ours_1_ms": one["ms"],
        "torch_1_ms": net,
        "handover_ms": given,
        "full_ms": full["ms"],
        "share": (one["ms"] - net + given) / full["ms"],
        "stages_1_ms": one["stages_ms"],
        "stages_full_ms": full["stages_ms"],
    }


if __name__ == "__main__":
    say(overhead(Task.from_json(sys.argv[1])))
