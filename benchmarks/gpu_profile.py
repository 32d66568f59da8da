"""Which kernels run on the GPU, how long, and in which share of a stretch of time any runs at all."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Any, TypeVar

import torch
from torch.profiler import ProfilerActivity, profile

COPIES = ("Memcpy", "Memset")
Given = TypeVar("Given")
Span = tuple[str, float, float]  # name, start and end in microseconds


def spans_of(profiled: profile) -> list[Span]:
    """Everything that the device did."""
    cuda = torch.autograd.DeviceType.CUDA  # pyright: ignore[reportPrivateImportUsage] (torch.profiler gives no other)
    events = [event for event in profiled.events() or [] if event.device_type == cuda]
    return [(event.name, event.time_range.start, event.time_range.end) for event in events]


def per_step(spans: Iterable[Span], steps: int) -> dict[str, float]:
    """Microseconds of each kernel in a step, the longest first."""
    total: dict[str, float] = defaultdict(float)
    for name, start, end in spans:
        total[name[:80]] += (end - start) / steps
    return {name: round(us, 1) for name, us in sorted(total.items(), key=lambda one: -one[1]) if us >= 0.5}


def busy(spans: Iterable[Span]) -> float:
    """Seconds in which at least one kernel runs; copies are none.

    >>> busy([("a", 0.0, 2e6), ("b", 1e6, 3e6), ("Memcpy HtoD", 5e6, 6e6)])
    3.0
    """
    total, until = 0.0, float("-inf")
    for name, start, end in sorted(spans, key=lambda one: one[1]):
        if not name.startswith(COPIES):
            total += max(0.0, end - max(start, until))
            until = max(until, end)
    return total / 1e6


def idle_per_step(spans: Iterable[Span], steps: int) -> dict[str, float]:
    """Microseconds of a step in which no kernel runs, by the kernels before and after, the longest first.

    >>> idle_per_step([("a", 0.0, 2.0), ("b", 12.0, 13.0), ("a", 13.0, 15.0), ("b", 35.0, 36.0)], 2)
    {'a .. b': 15.0}
    """
    total: dict[str, float] = defaultdict(float)
    last, until = "", float("inf")
    for name, start, end in sorted(spans, key=lambda one: one[1]):
        if name.startswith(COPIES):
            continue
        total[f"{last[:60]} .. {name[:60]}"] += max(0.0, start - until) / steps
        last, until = (name, end) if end > until or until == float("inf") else (last, until)
    return {pair: round(us, 1) for pair, us in sorted(total.items(), key=lambda one: -one[1]) if us >= 0.5}


def kernels_us(step: Callable[[Given], Any], given: Sequence[Given]) -> dict[str, float]:
    """Microseconds of each kernel in a step, over one step per batch given."""
    for each in given:  # graphs are made in the first steps
        step(each)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for each in given:
            step(each)
        torch.cuda.synchronize()
    return per_step(spans_of(profiled), len(given))


def call_us(work: Callable[[int], Any], undo: Callable[[], Any] = lambda: None, calls: int = 8) -> dict[str, Any]:
    """What a call takes that nothing is queued before: of the host, of each kernel, and how many there are.

    Without the profiler for the host, and with it for the kernels; what undoes a call is in neither.
    """
    hosts, spans = [], []
    for number in range(2 * calls):
        torch.cuda.synchronize()
        if number < calls:
            begin = time.perf_counter()
            work(number)
            hosts.append(1e6 * (time.perf_counter() - begin))
        else:
            with profile(activities=[ProfilerActivity.CUDA]) as profiled:
                work(number)
                torch.cuda.synchronize()
            spans += spans_of(profiled)
        undo()
    kernels = per_step(spans, calls)
    return {
        **{"host_us": round(median(hosts), 1), "launches": round(len(spans) / calls, 1)},
        **{"kernels_us": round(sum(kernels.values()), 1), "kernels": kernels},
    }
