"""How long does a checkpoint of a large table stop training, and how fast does it come back from the disk?

The model has one table of 10 M rows of dim 16, used by 26 features (power-law ids over all rows), pairs and an MLP
64-32 as in DeepFM, and the Trainer's default optimizers. Every row was updated before, so that none can be left out.

save_stall_steps   seconds that `Checkpoints.save` blocks, the worst of several, over the median step before
slowdown           the median step while the checkpoint is being written over the median step before
restore_vs_disk    bytes per second of `load` into a new model over bytes per second of reading the same files in
                   blocks of 8 MiB; by turns, best of each; before each the page cache drops the files (fsync,
                   POSIX_FADV_DONTNEED)
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from train_workload import DIM, HIDDEN, ID_NAMES, Task, say
from workloads import power_law

import hybridrec as hr
from hybridrec.models.layers import MLP, fm_interaction
from hybridrec.train import Trainer, TrainOptions
from hybridrec.train.checkpoint import Checkpoints, Contents, load
from hybridrec.train.step import Learner, train_step
from hybridrec.types import Batch, IdBlock

SAVES, RESTORES, READY = 3, 3, 48
BLOCK = 8 << 20
FILL = 1 << 20  # ids per step while filling
MULTIPLIER = 2_654_435_761  # spreads neighbouring ranks over the table


class OneTable(nn.Module):
    """Pairs and MLP over features that share one table."""

    def __init__(self, rows: int, dynamic: bool) -> None:
        super().__init__()
        fixed, capacity = (None, rows + rows // 4) if dynamic else (rows, None)
        table = hr.Table("item", dim=DIM, rows=fixed, capacity=capacity, features=ID_NAMES)
        self.embeddings = hr.EmbeddingCollection([table])
        self.deep = MLP(len(ID_NAMES) * DIM, HIDDEN, out=1)

    def forward(self, batch: Batch) -> Tensor:
        vectors = self.embeddings(batch.ids).flat
        return fm_interaction(vectors.unflatten(1, (-1, DIM))) + self.deep(vectors).squeeze(1)


def batch_of(ids: Tensor) -> Batch:
    """A batch of ids [B, F] with labels by chance."""
    block = IdBlock.from_ragged({name: ids[:, i].contiguous() for i, name in enumerate(ID_NAMES)})
    return Batch(block, torch.zeros(len(ids), 0), (torch.rand(len(ids)) < 0.25).float())


def batches_of(task: Task) -> list[Batch]:
    """Ready batches with power-law ids, spread over the table."""
    rng = np.random.default_rng(0)
    shape = (task.batch, len(ID_NAMES))
    ranks = [power_law(rng, task.table_rows, shape[0] * shape[1]).reshape(shape) for _ in range(READY)]
    return [batch_of(torch.from_numpy(rank * MULTIPLIER % task.table_rows)) for rank in ranks]


def learner_of(task: Task) -> Learner:
    """A new model and the Trainer's default optimizers."""
    return Trainer(OneTable(task.table_rows, "dynamic" in task.kind), options=TrainOptions(progress="none")).learner


def fill(learner: Learner, rows: int) -> None:
    """Update every row once."""
    width = len(ID_NAMES)
    ids = torch.cat([torch.arange(rows), torch.arange(-rows % width)])
    for part in ids.view(-1, width).split(FILL // width):
        train_step(learner, [batch_of(part)])


def contents(learner: Learner) -> Contents:
    assert learner.dense is not None
    assert learner.rows is not None
    return Contents(learner.model, {"dense": learner.dense, "rows": learner.rows})


def saving(learner: Learner, batches: list[Batch], checkpoints: Checkpoints, steps: int) -> dict[str, Any]:
    """Steps before a save, the save, and steps while it is written; several times."""
    turns = cycle(batches)

    def step() -> float:
        begin = time.perf_counter()
        train_step(learner, [next(turns)])
        return 1e3 * (time.perf_counter() - begin)

    quiet, blocked, during, written = [], [], [], []
    for number in range(SAVES):
        quiet += [step() for _ in range(steps)][2:]
        begin = time.perf_counter()
        checkpoints.save(contents(learner), number + 1)
        blocked.append(1e3 * (time.perf_counter() - begin))
        while checkpoints.busy:
            during.append(step())
        checkpoints.wait()
        written.append(time.perf_counter() - begin)
    usual = median(quiet)
    return {
        "step_ms": usual,
        "blocked_ms": blocked,
        "save_stall_steps": max(blocked) / usual,
        "slowdown": median(during) / usual if during else 1.0,
        "slowest_step_ms": max(during, default=usual),
        "steps_while_writing": len(during),
        "written_s": written,
    }


def drop_cache(files: list[Path]) -> None:
    """Have the next reader go to the disk."""
    for file in files:
        handle = os.open(file, os.O_RDONLY)
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def read_all(files: list[Path]) -> None:
    buffer = bytearray(BLOCK)
    for file in files:
        with open(file, "rb", buffering=0) as handle:
            while handle.readinto(buffer):
                pass


def sample(learner: Learner, rows: int) -> Tensor:
    """About a thousand rows, and the first layer, as one vector."""
    embeddings = learner.model.get_submodule("embeddings")
    assert isinstance(embeddings, hr.EmbeddingCollection)
    found = embeddings.lookup("item", torch.arange(0, rows, max(1, rows // 1000)))
    return torch.cat([found.flatten(), next(learner.model.parameters()).detach().flatten()])


def restoring(task: Task, path: Path, wanted: Tensor) -> dict[str, Any]:
    """Reading the files and loading them, by turns; what is loaded must be what was saved."""
    files = [file for file in path.rglob("*") if file.is_file()]
    size = sum(file.stat().st_size for file in files)
    disk, restored = [], []
    for _ in range(RESTORES):
        drop_cache(files)
        begin = time.perf_counter()
        read_all(files)
        disk.append(size / (time.perf_counter() - begin))
        learner = learner_of(task)
        drop_cache(files)
        begin = time.perf_counter()
        load(path, contents(learner))
        restored.append(size / (time.perf_counter() - begin))
        if not torch.equal(sample(learner, task.table_rows), wanted):
            raise ValueError(f"the weights loaded from {path.name} are not those that were saved")
        del learner
    return {
        "checkpoint_bytes": size,
        "disk_bytes_per_s": disk,
        "restore_bytes_per_s": restored,
        "restore_vs_disk": max(restored) / max(disk),
    }


def measure(task: Task) -> dict[str, Any]:
    torch.set_num_threads(task.threads)
    learner = learner_of(task)
    fill(learner, task.table_rows)
    with tempfile.TemporaryDirectory(dir=task.folder) as folder:
        with Checkpoints(folder, keep=1) as checkpoints:
            found = saving(learner, batches_of(task), checkpoints, max(4, task.steps // 10))
            checkpoints.save(contents(learner), SAVES + 1, wait=True)
        wanted = sample(learner, task.table_rows)
        del learner
        return {**found, **restoring(task, checkpoints.all()[-1], wanted)}


if __name__ == "__main__":
    say(measure(Task.from_json(sys.argv[1])))
