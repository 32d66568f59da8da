"""A process of `train_gpu.py`: a model trained from Parquet by the Trainer, or stepped over batches on the device.

`gpu_busy` is the share of the time of training in which a kernel runs, copies not counted. A stretch of steps is timed
as it is, and gives the samples per second. The next one runs under torch.profiler, which slows the host by a quarter,
so only the union of the kernels' intervals is taken from it. Their share under the profiler is `gpu_busy_profiled`.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any, Self

import pyarrow as pa
import torch
from gpu_models import power_law
from gpu_process import Task as Clock
from gpu_process import median_ms, say
from gpu_profile import busy, idle_per_step, kernels_us, per_step, spans_of
from torch.profiler import ProfilerActivity, profile
from train_workload import DENSE_NAMES, ID_NAMES
from workloads import LABEL

import hybridrec as hr
from hybridrec.data.schema import Schema
from hybridrec.models import DLRM, DCNv2
from hybridrec.models.model import Model
from hybridrec.train import Callback, Trainer, TrainOptions
from hybridrec.train.placed import Placed
from hybridrec.train.step import StepResult, train_step
from hybridrec.types import Batch, IdBlock

READY = 16  # batches that wait on the device where steps are timed alone


@dataclass(frozen=True)
class Task:
    """A model ("dlrm", "dcnv2"), its precision, sizes, and the files; without files, batches are drawn."""

    model: str
    precision: str  # "tf32" or "bf16"
    rows: tuple[int, ...]  # of every table
    files: tuple[str, ...] = ()
    device: str = "cuda"
    batch: int = 65_536
    dim: int = 128
    warm: int = 20
    steps: int = 60
    compile: bool = False

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def received(cls) -> Self:
        return cls(**json.loads(sys.argv[1]))


def model_of(task: Task, schema: Schema) -> Model:
    """The layers of the MLPerf benchmark for DLRM; for DCNv2 those of NVIDIA's examples, without a bottom MLP."""
    tables = {name: {"rows": rows} for name, rows in zip(ID_NAMES, task.rows, strict=True)}
    where: Any = {} if task.device == "cpu" else {"device": task.device}
    top = (1024, 1024, 512, 256)
    if task.model == "dlrm":  # the bottom MLP ends with a layer of the width of rows
        return DLRM(schema, task.dim, bottom=(512, 256), top=top, tables=tables, **where)
    rank = 4 * task.dim  # 512
    return DCNv2(schema, task.dim, crosses=3, rank=rank, hidden=top, structure="stacked", tables=tables, **where)


def trainer_of(task: Task, schema: Schema, *callbacks: Callback) -> Trainer:
    """The Trainer with its usual optimizers: Adam for the layers, row-wise Adagrad for the rows."""
    options = TrainOptions(progress="none", bf16=task.precision == "bf16", compile=task.compile)
    model = model_of(task, schema)
    model.net.to(task.device)
    return Trainer(model, callbacks=callbacks, options=options)


# -- from files ------------------------------------------------------------------------------------------------


class Watch(Callback):
    """Times `steps` steps after `warm` ones, then as many under the profiler."""

    def __init__(self, task: Task) -> None:
        self.task, self.seen, self.found = task, 0, {}
        self.began, self.profiler = 0.0, None
        self.spent = Spent()

    def on_step(self, trainer: Trainer, result: StepResult) -> None:
        self.seen += 1
        warm, steps = self.task.warm, self.task.steps
        self.spent.look(trainer.learner.stages.seconds)
        if self.seen == warm:
            self.spent.clear()
            self.began = now(self.task)
        elif self.seen == warm + steps:
            self.found["wall_ms"] = 1e3 * (now(self.task) - self.began) / steps
            self.found |= self.spent.told()
            if self.task.device != "cpu":
                self.profiler = profile(activities=[ProfilerActivity.CUDA])
                self.profiler.start()
                self.began = now(self.task)
        elif self.seen == warm + 2 * steps and self.profiler is not None:
            seconds = now(self.task) - self.began
            self.profiler.stop()
            self.found |= shares(self.profiler, seconds, self.found["wall_ms"], steps)


class Spent:
    """What the thread of the steps did with its time, step by step; its stages begin anew with each record."""

    def __init__(self) -> None:
        self.before: dict[str, float] = {}
        self.clear()

    def clear(self) -> None:
        self.steps: list[dict[str, float]] = []

    def look(self, seconds: dict[str, float]) -> None:
        """Seconds by stage, once a step."""
        anew = any(spent < self.before.get(stage, 0.0) for stage, spent in seconds.items())
        before = {} if anew else self.before
        self.steps.append({stage: spent - before.get(stage, 0.0) for stage, spent in seconds.items()})
        self.before = dict(seconds)

    def told(self) -> dict[str, Any]:
        """Milliseconds of a step by stage, and the longest waits for a batch."""
        stages = {stage: 1e3 * sum(step[stage] for step in self.steps) / len(self.steps) for stage in self.steps[0]}
        waits = sorted((1e3 * step["data"] for step in self.steps), reverse=True)
        return {"stages_ms": stages, "longest_waits_ms": waits[:8]}


def shares(profiler: profile, seconds: float, wall_ms: float, steps: int) -> dict[str, Any]:
    """How busy the device was, and with what."""
    spans = spans_of(profiler)
    running = busy(spans)
    return {
        "gpu_busy": 1e3 * running / steps / wall_ms,
        "gpu_busy_profiled": running / seconds,
        "profiled_ms": 1e3 * seconds / steps,
        "kernels_us": dict(list(per_step(spans, steps).items())[:40]),
        "idle_us": dict(list(idle_per_step(spans, steps).items())[:20]),
    }


def now(task: Task) -> float:
    """The time, once the device has done all that it was told."""
    if task.device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter()


def from_files(task: Task) -> dict[str, Any]:
    """Train over the files, then take the same step over batches that are on the device already."""
    ds = hr.data.parquet(list(task.files), label=LABEL, batch_size=task.batch, drop_last=True)
    watch = Watch(task)
    trainer = trainer_of(task, ds.schema, watch)
    trainer.fit(ds, epochs=1_000, steps=task.warm + 2 * task.steps)
    ready = []
    for batch in ds:
        ready.append(batch.clone().to(task.device))
        if len(ready) == READY:
            break
    found = {**watch.found, "samples_per_s": 1e3 * task.batch / watch.found["wall_ms"]}
    found |= {f"alone_{key}": value for key, value in alone(task, trainer, ready).items()}
    return {**found, "alone_share": found["alone_step_ms"] / found["wall_ms"]}


# -- on the device ---------------------------------------------------------------------------------------------


def drawn(task: Task) -> list[Batch]:
    """Batches of power-law ids, drawn where they are used."""
    generator = torch.Generator(task.device).manual_seed(0)
    batches = []
    for _ in range(READY):
        ids = {name: power_law(task.batch, rows, generator) for name, rows in zip(ID_NAMES, task.rows, strict=True)}
        dense = torch.randn(task.batch, len(DENSE_NAMES), device=task.device, generator=generator)
        label = torch.randint(0, 2, (task.batch,), device=task.device, generator=generator).float()
        batches.append(Batch(IdBlock.from_ragged(ids), dense, label))
    return batches


def alone(task: Task, trainer: Trainer, batches: list[Batch], profiled: bool = False) -> dict[str, Any]:
    """The step without a loader; and which kernels it runs, if it is profiled."""
    clock = Clock(task.model, task.device, steps=task.steps, warm=task.warm)
    placed = [Placed(batch, float(len(batch))) for batch in batches]

    def step(each: Placed) -> StepResult:
        return train_step(trainer.learner, [each])

    ms = median_ms(step, placed, clock)
    kernels = {"kernels_us": dict(list(kernels_us(step, placed).items())[:40])} if profiled else {}
    return {"step_ms": ms, "samples_per_s": 1e3 * task.batch / ms, **kernels}


def on_device(task: Task) -> dict[str, Any]:
    columns = {name: pa.int64() for name in ID_NAMES} | {name: pa.float32() for name in DENSE_NAMES}
    schema = Schema.infer(pa.schema(columns | {LABEL: pa.int8()}), label=LABEL)
    trainer = trainer_of(task, schema)
    return alone(task, trainer, drawn(task), profiled=task.device != "cpu")


def main() -> None:
    task = Task.received()
    torch.set_float32_matmul_precision("high")
    found = from_files(task) if task.files else on_device(task)
    if task.device != "cpu":
        found["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
    say(found)


if __name__ == "__main__":
    main()
