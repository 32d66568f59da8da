"""Our contender: an EmbeddingCollection with a row optimizer; the IdBlock is built inside the clock."""

from __future__ import annotations

from typing import Any

import torch
from embedding_step import EPS, LR, Bags, Contender, Task, serve
from torch import Tensor

import hybridrec as hr

OPTIMIZERS = {"rowwise_adagrad": "RowWiseAdagrad", "adagrad": "Adagrad"}


def collection(task: Task) -> Any:
    """One table per feature: fixed, or dynamic where the task names a capacity."""
    rows = task.shape.rows if task.capacity is None else None
    names = range(task.shape.tables)
    return hr.EmbeddingCollection(
        [hr.Table(f"t{i}", dim=task.setting.dim, rows=rows, capacity=task.capacity, features=[f"f{i}"]) for i in names]
    )


def optimizer(task: Task, emb: Any, **options: float) -> torch.optim.Optimizer:
    return getattr(hr.optim, OPTIMIZERS[task.variant])(emb, lr=LR, eps=EPS, **options)


def block(bags: Bags, hot: int, rows: int) -> hr.IdBlock:
    """The ids as our loader hands them over: hotness 1 is declared, other bags are ragged."""
    names = tuple(f"f{i}" for i in range(len(bags.starts) - 1))
    hotness, offsets = (1, bags.offsets[:0]) if hot == 1 else (None, bags.offsets)
    return hr.IdBlock(names, bags.values, bags.starts, (hotness,) * len(names), offsets, batch_size=rows)


def build(task: Task) -> Contender:
    emb = collection(task)
    rows = optimizer(task, emb)

    def forward(bags: Bags) -> Tensor:
        return emb(block(bags, task.setting.hot, task.shape.batch)).flat

    return Contender(emb, forward, rows.step)


if __name__ == "__main__":
    serve(build, {"hybridrec": hr.__version__})
