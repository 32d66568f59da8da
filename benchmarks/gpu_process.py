"""What the processes of the GPU benchmarks share: a task as JSON in, lines of JSON out, and clocks of the device.

A process tells all that it knows after every measurement, in a line that begins with `@`. The last line counts, so
what was measured before a crash is not lost; the reason of the crash is kept beside it.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Self, TypeVar

import torch

HERE = Path(__file__).parent
LIMIT_S = 540
Given = TypeVar("Given")


@dataclass(frozen=True)
class Task:
    """What one process measures: `model` on `device`, medians of `steps` steps over `batches` batches of `batch`."""

    model: str
    device: str = "cuda"
    batch: int = 65_536
    batches: int = 16
    steps: int = 40
    warm: int = 8
    profile: bool = False
    most_rows: int | None = None  # cap of every table: for smoke runs and checks
    skip: tuple[str, ...] = ()  # variants, "step compiled", that have no chance to be the fastest

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def received(cls) -> Self:
        """The task of this process."""
        return cls(**json.loads(sys.argv[1]))


def say(answer: dict[str, Any]) -> None:
    print("@" + json.dumps(answer), flush=True)


def run(program: str, task: str) -> dict[str, Any]:
    """The last answer of a fresh process for a task as JSON; why it ended badly, if it did, is its `crash`."""
    paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, str(HERE / program), task]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, errors="replace", timeout=LIMIT_S
        )
        out, err, status = done.stdout, done.stderr, done.returncode
    except subprocess.TimeoutExpired as late:
        out, err = (text.decode(errors="replace") if text else "" for text in (late.stdout, late.stderr))
        status = f"none within {LIMIT_S} seconds"
    answers = [line for line in out.splitlines() if line.startswith("@")]
    answer = json.loads(answers[-1][1:]) if answers else {}
    if status or not answers:
        said = err.strip().splitlines() or ["it said nothing"]
        answer["crash"] = f"status {status}: {said[-1][:400]}"
    return answer


# -- inside a process ------------------------------------------------------------------------------------------


def median_ms(step: Callable[[Given], Any], given: Sequence[Given], task: Task) -> float:
    """The median milliseconds of a step, by the device's clock where it has one; steps follow without a pause."""
    for number in range(task.warm):
        step(given[number % len(given)])
    if task.device == "cpu":
        times = [time.perf_counter()]
        for number in range(task.steps):
            step(given[number % len(given)])
            times.append(time.perf_counter())
        return 1e3 * median(b - a for a, b in pairwise(times))
    torch.cuda.synchronize()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(task.steps + 1)]
    events[0].record()
    for number in range(task.steps):
        step(given[number % len(given)])
        events[number + 1].record()
    torch.cuda.synchronize()
    return median(a.elapsed_time(b) for a, b in pairwise(events))


def captured(work: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    """The work as a CUDA graph, after a few runs on another stream."""
    usual, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(usual)
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    usual.wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            work()
    finally:
        torch.cuda.set_stream(usual)  # a capture that fails leaves its own
    return graph


def copy_gb_per_s(device: str) -> float:
    """How fast the device copies, bytes read and written counted."""
    if device == "cpu":
        return 1.0  # nobody reads it: a smoke run has no figures
    source = torch.empty(1 << 30, device=device)
    target = torch.empty_like(source)
    one = Task("copy", device, steps=10, warm=3)
    return 2 * source.nbytes / 1e6 / median_ms(lambda _: target.copy_(source), [None], one)


@dataclass
class Measured:
    """What a process found: times by part and variant, and why some variants have none."""

    task: Task
    facts: dict[str, Any]
    ms: dict[str, dict[str, float]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def time(self, part: str, variant: str, make: Callable[[], Callable[[Given], Any]], given: Sequence[Given]) -> None:
        """Time what `make` makes; a variant that cannot be had says why, and the others go on."""
        if f"{part} {variant}" in self.task.skip:
            return
        try:
            ms = median_ms(make(), given, self.task)
            self.ms.setdefault(part, {})[variant] = ms
        except Exception as reason:
            self.failures[f"{part} {variant}"] = f"{type(reason).__name__}: {reason}"[:400]
        self.tell()
        tidy(self.task)

    def tell(self) -> None:
        """Say all that is known so far."""
        peak = {}
        if self.task.device != "cpu":
            peak = {"peak_gib": torch.cuda.max_memory_allocated() / 2**30}
        say({**self.facts, **peak, "ms": self.ms, "failures": self.failures})


def tidy(task: Task) -> None:
    """Give back what the last variant held."""
    gc.collect()
    if task.device != "cpu":
        torch.cuda.empty_cache()


def affordable(wanted: int, each: int, working: int, device: str) -> int:
    """How many of `wanted` batches of `each` bytes fit beside `working` bytes: at least 2."""
    if device == "cpu":
        return wanted
    free, _ = torch.cuda.mem_get_info()
    return max(2, min(wanted, (free - working) // max(each, 1)))
