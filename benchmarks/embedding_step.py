"""The measured loop of `embedding_cpu.py`: one contender in a process of its own.

A contender's program is started with a task as JSON, and its answer is a line of JSON after an `@`; anything else
that a library prints is ignored. Steps are timed first, then the forward alone (eval, no gradients).
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any

import embedding_workload as workload
import torch
from embedding_workload import Setting, Shape
from torch import Tensor

LR, EPS = 0.01, 1e-8


@dataclass(frozen=True)
class Task:
    """What a contender is asked to do; `capacity` makes our tables dynamic."""

    variant: str
    setting: Setting
    shape: Shape
    cache: str
    threads: int = 2
    warm: int = 3
    reps: int = 9
    forward_reps: int = 9
    capacity: int | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Task:
        parts = json.loads(text)
        return cls(**{**parts, "setting": Setting(**parts["setting"]), "shape": Shape(**parts["shape"])})


@dataclass(frozen=True)
class Bags:
    """A batch as tensors, in every form that some contender wants: making them is not timed."""

    values: Tensor  # int64 [N], table after table
    lengths: Tensor  # int64 [T * B]
    offsets: Tensor  # int64 [T, B + 1], each line from 0
    flat_offsets: Tensor  # int64 [T * B + 1]
    starts: tuple[int, ...]
    per_table: list[tuple[Tensor, Tensor]]  # ids and the start of each bag [B]

    @classmethod
    def of(cls, batch: workload.Batch) -> Bags:
        values, offsets = torch.from_numpy(batch.values), torch.from_numpy(batch.offsets)
        sizes = (batch.starts[1:] - batch.starts[:-1]).tolist()
        per_table = [(ids, line[:-1]) for ids, line in zip(values.split(sizes), offsets, strict=True)]
        flat = torch.from_numpy(batch.flat_offsets)
        lengths = torch.from_numpy(batch.lengths.ravel())
        return cls(values, lengths, offsets, flat, tuple(batch.starts.tolist()), per_table)


@dataclass(frozen=True)
class Contender:
    """A model over all tables: `forward(bags)` gives [B, T * dim]; `update()` ends a step after backward."""

    module: torch.nn.Module
    forward: Callable[[Bags], Tensor]
    update: Callable[[], Any] = lambda: None


def batches(task: Task) -> list[Bags]:
    return [Bags.of(batch) for batch in workload.load(task.shape, task.setting.hot, Path(task.cache))]


def gradient(task: Task) -> Tensor:
    """The fixed gradient of the output. [B, T * dim]"""
    width = task.shape.tables * task.setting.dim
    return torch.randn(task.shape.batch, width, generator=torch.Generator().manual_seed(1)) * 1e-3


def step(contender: Contender, bags: Bags, grad: Tensor) -> float:
    """Milliseconds of forward, backward and update."""
    start = time.perf_counter()
    out = contender.forward(bags)
    out.backward(grad)
    contender.update()
    return (time.perf_counter() - start) * 1e3


def forward(contender: Contender, bags: Bags) -> float:
    """Milliseconds of a forward; the output is freed outside the clock."""
    start = time.perf_counter()
    out = contender.forward(bags)
    passed = time.perf_counter() - start
    del out
    return passed * 1e3


def measure(contender: Contender, task: Task) -> dict[str, Any]:
    """Medians of one pass. Dynamic tables see every batch before the clock: no id is new in it."""
    bags, grad = batches(task), gradient(task)
    turn = cycle(bags)
    warm = task.warm if task.capacity is None else max(task.warm, len(bags))
    for _ in range(warm):
        step(contender, next(turn), grad)
    steps = [step(contender, next(turn), grad) for _ in range(task.reps)]
    contender.module.eval()
    with torch.no_grad():
        forwards = [forward(contender, next(turn)) for _ in range(task.forward_reps + 1)][1:]
    return {
        "step_ms": median(steps),
        "forward_ms": median(forwards),
        "rss_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def serve(build: Callable[[Task], Contender], versions: dict[str, str]) -> None:
    """The main of a contender's program."""
    task = received()
    torch.manual_seed(0)
    say({**measure(build(task), task), "versions": {**versions, "torch": torch.__version__}})


def received() -> Task:
    """The task of this process, its threads set."""
    task = Task.from_json(sys.argv[1])
    torch.set_num_threads(task.threads)
    return task


def say(answer: dict[str, Any]) -> None:
    print("@" + json.dumps(answer), flush=True)
