"""From the passes of `embedding_cpu.py` to its figures: pure functions.

The best pass counts (each is a median already), because the noise of a shared machine only ever adds time.
A figure is there only if all of its settings have an answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from embedding_jobs import DECLARED, WIDE, thread_job
from embedding_workload import Batch, Setting, Shape

FORWARD = Setting(128, 10)  # the setting of forward_vs_copy
RATIOS = {  # key: the step time of the first over that of the second
    "vs_fbgemm_rowwise_adagrad": ("fbgemm_rowwise_adagrad", "ours_rowwise_adagrad"),
    "vs_fbgemm_adagrad": ("fbgemm_adagrad", "ours_adagrad"),
    "vs_nn_embeddingbag_adagrad": ("nn_adagrad", "ours_adagrad"),
    "vs_torchrec_rowwise_adagrad": ("torchrec_rowwise_adagrad", "ours_rowwise_adagrad"),
    "dynamic_vs_fixed": ("ours_dynamic", "ours_rowwise_adagrad"),
    "virtual_scale": tuple(DECLARED),
}
FORWARDS = {"ours": "ours_rowwise_adagrad", "fbgemm": "fbgemm_rowwise_adagrad", "nn": "nn_adagrad"}
STATES: dict[str, Callable[[int], int]] = {"rowwise_adagrad": lambda dim: 1, "adagrad": lambda dim: dim}
FLOAT, ID = 4, 8  # bytes


@dataclass(frozen=True)
class Load:
    """Ids and distinct rows of a step, on average over the batches."""

    ids: float
    unique: float

    @classmethod
    def of(cls, batches: list[Batch]) -> Load:
        n = len(batches)
        return cls(sum(len(b.values) for b in batches) / n, sum(b.unique_rows() for b in batches) / n)


@dataclass(frozen=True)
class Measured:
    """Every pass of every job, and what was run."""

    passes: Mapping[str, Mapping[str, list[dict[str, Any]]]]  # setting, job, one answer per pass
    settings: list[Setting]
    shape: Shape
    loads: dict[int, Load]  # by hotness
    threads: list[int]
    usual_threads: int

    def has(self, settings: list[str], *jobs: str) -> bool:
        return bool(settings) and all(job in self.passes.get(name, {}) for name in settings for job in jobs)

    def best(self, setting: str, job: str, field: str = "step_ms") -> float:
        return min(answer[field] for answer in self.passes[setting][job])

    def middle(self, setting: str, job: str) -> float:
        return median(answer["step_ms"] for answer in self.passes[setting][job])

    def copy_bytes_per_s(self) -> float:
        """The best of all passes; bytes are counted once."""
        return max(answer["bytes_per_s"] for jobs in self.passes.values() for answer in jobs.get("copy", []))


def geomean(values: Iterable[float]) -> float:
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))


def figures(measured: Measured) -> dict[str, Any]:
    """Every figure that the passes can answer."""
    found: dict[str, Any] = {}
    names = [setting.name for setting in measured.settings]
    wide = [setting.name for setting in measured.settings if setting.dim == WIDE]
    for key, jobs in RATIOS.items():
        chosen = wide if key == "virtual_scale" else names
        if measured.has(chosen, *jobs):
            found[key] = ratios(measured, *jobs, settings=chosen)
    if measured.has([FORWARD.name], FORWARDS["ours"], "copy"):
        found["forward_vs_copy"] = forward_vs_copy(measured)
    if measured.has(names, "ours_rowwise_adagrad", "ours_adagrad", "copy"):
        found["roofline"] = {setting.name: roofline(measured, setting) for setting in measured.settings}
    jobs_of_threads = {n: thread_job(n, measured.usual_threads) for n in measured.threads}
    if measured.has(names, *jobs_of_threads.values()):
        found["threads"] = {
            name: {str(n): measured.best(name, job) for n, job in jobs_of_threads.items()} for name in names
        }
    return found


def reasons(failed: dict[str, str]) -> dict[str, str]:
    """Why a ratio is not there: the first of its jobs that failed. `failed`: "setting job" and its reason."""
    found: dict[str, str] = {}
    for key, jobs in RATIOS.items():
        for name, reason in failed.items():
            if name.split()[-1] in jobs:
                found.setdefault(key, f"{name}: {reason}")
    return found


def ratios(measured: Measured, upper: str, lower: str, settings: list[str]) -> dict[str, Any]:
    """Step time over step time in each setting, and over all; the medians of the passes stand beside the best."""
    found = {name: measured.best(name, upper) / measured.best(name, lower) for name in settings}
    middle = {name: measured.middle(name, upper) / measured.middle(name, lower) for name in settings}
    return {
        "geomean": geomean(found.values()),
        "min": min(found.values()),
        "max": max(found.values()),
        "geomean_of_medians": geomean(middle.values()),
        "settings": found,
    }


def step_bytes(setting: Setting, shape: Shape, load: Load, state: int) -> float:
    """Bytes that an exact step must move; `state` floats of optimizer state per row.

    Ids are read; each distinct row is read once for the forward, then it and its state are read and written once;
    the output is written once and its gradient read once.
    """
    row, output = setting.dim * FLOAT, shape.batch * shape.tables * setting.dim * FLOAT
    return load.ids * ID + load.unique * row + 2 * output + 2 * load.unique * (row + state * FLOAT)


def roofline(measured: Measured, setting: Setting) -> dict[str, dict[str, float]]:
    """Per optimizer: bytes of a step, their time at a copy's traffic (it reads and writes each byte), our multiple."""
    found = {}
    for variant, state in STATES.items():
        size = step_bytes(setting, measured.shape, measured.loads[setting.hot], state(setting.dim))
        floor = size / (2 * measured.copy_bytes_per_s()) * 1e3
        ours = measured.best(setting.name, f"ours_{variant}")
        found[variant] = {"bytes": size, "floor_ms": floor, "ours_ms": ours, "multiple": ours / floor}
    return found


def forward_vs_copy(measured: Measured) -> dict[str, float]:
    """Bytes of rows that a forward reads per second, every id counted, over the bytes copied per second."""
    size, copied = measured.loads[FORWARD.hot].ids * FORWARD.dim * FLOAT, measured.copy_bytes_per_s()
    times = {
        name: measured.best(FORWARD.name, job, "forward_ms")
        for name, job in FORWARDS.items()
        if measured.has([FORWARD.name], job)
    }
    return {
        **{name: size / (ms / 1e3) / copied for name, ms in times.items()},
        "copy_bytes_per_s": copied,
        **{f"{name}_ms": ms for name, ms in times.items()},
    }
