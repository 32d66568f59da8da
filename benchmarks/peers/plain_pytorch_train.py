"""Peer: DeepFM in plain PyTorch, as a careful person writes it. Parquet to updated weights, no metrics.

`bags`: nn.EmbeddingBag(sparse=True) per feature, twice (vectors, and first-order weights). `big`: one nn.Embedding
for all features, with an offset per feature, and another of dim 1: fewer calls, the stronger variant.
`ParquetFile.iter_batches` gives whole batches, read ahead by a thread (`_inline`: by the loop itself), and no row is
touched in Python. torch.optim.Adagrad updates everything.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from train_workload import DENSE_NAMES, DIM, HIDDEN, ID_NAMES, LR, Task, say
from workloads import LABEL

Rows = tuple[Tensor, Tensor, Tensor]  # ids [F, B], dense [B, n], labels [B]
FIELDS, NUMBERS = len(ID_NAMES), len(DENSE_NAMES)


class Bags(nn.Module):
    """A table per feature: ids [F, B] to [B, F * dim]."""

    def __init__(self, rows: int, dim: int) -> None:
        super().__init__()
        made = [nn.EmbeddingBag(rows, dim, mode="sum", sparse=True) for _ in range(FIELDS)]
        self.bags = nn.ModuleList(made)

    def forward(self, ids: Tensor) -> Tensor:
        return torch.cat([bag(column.unsqueeze(1)) for bag, column in zip(self.bags, ids, strict=True)], 1)

    def tables(self) -> list[Tensor]:
        return [bag.weight for bag in self.bags]  # pyright: ignore[reportReturnType]


class BigTable(nn.Module):
    """One table for all features: ids [F, B] to [B, F * dim]."""

    offsets: Tensor

    def __init__(self, rows: int, dim: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(rows * FIELDS, dim, sparse=True)
        self.register_buffer("offsets", torch.arange(FIELDS) * rows)

    def forward(self, ids: Tensor) -> Tensor:
        return self.embedding(ids.T + self.offsets).flatten(1)

    def tables(self) -> list[Tensor]:
        return list(self.embedding.weight.chunk(FIELDS))


class DeepFM(nn.Module):
    """First order, pairs and MLP over ids and normalised numbers (means and variances of all rows seen)."""

    seen: Tensor  # sums, sums of squares
    count: int

    def __init__(self, rows: int, big: bool = False) -> None:
        super().__init__()
        kind = BigTable if big else Bags
        self.wide, self.vectors = kind(rows, 1), kind(rows, DIM)
        self.fields = nn.Parameter(torch.empty(NUMBERS, DIM).uniform_(-0.05, 0.05))
        self.slopes, self.bias = nn.Parameter(torch.zeros(NUMBERS)), nn.Parameter(torch.zeros(1))
        first, second = HIDDEN
        self.deep = nn.Sequential(
            *(nn.Linear(FIELDS * DIM + NUMBERS, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU()),
            nn.Linear(second, 1),
        )
        self.register_buffer("seen", torch.zeros(2, NUMBERS))
        self.count = 0
        with torch.no_grad():
            for table in self.vectors.tables():
                table.normal_(0, 0.01)
            for table in self.wide.tables():
                table.zero_()

    def forward(self, ids: Tensor, dense: Tensor) -> Tensor:
        numbers = self.normalised(dense)
        vectors = self.vectors(ids)  # [B, F * dim]
        both = torch.cat([vectors.unflatten(1, (FIELDS, DIM)), numbers.unsqueeze(2) * self.fields], 1)
        pairs = 0.5 * (both.sum(1).square() - both.square().sum(1)).sum(1)
        first = self.wide(ids).sum(1) + numbers @ self.slopes + self.bias
        return first + pairs + self.deep(torch.cat([vectors, numbers], 1)).squeeze(1)

    @torch.no_grad()
    def normalised(self, dense: Tensor) -> Tensor:
        self.seen += torch.stack([dense.sum(0), dense.square().sum(0)])
        self.count += len(dense)
        mean, squares = self.seen / self.count
        return (dense - mean) * (squares - mean.square()).rsqrt()


def read(path: str, batch: int) -> Iterator[Rows]:
    """Batches of a Parquet file; each column is copied once, into the tensor of its kind."""
    with pq.ParquetFile(path, pre_buffer=True) as file:
        for part in file.iter_batches(batch):
            ids = np.stack([part[name].to_numpy() for name in ID_NAMES])
            dense = np.stack([part[name].to_numpy() for name in DENSE_NAMES], 1)
            label = part[LABEL].to_numpy().astype(np.float32)
            yield torch.from_numpy(ids), torch.from_numpy(dense), torch.from_numpy(label)


def ahead(batches: Iterator[Rows], depth: int = 4) -> Iterator[Rows]:
    """The same batches, made by a thread a few batches ahead."""
    ready: queue.Queue[Rows | BaseException | None] = queue.Queue(depth)

    def work() -> None:
        try:
            for rows in batches:
                ready.put(rows)
            ready.put(None)
        except BaseException as error:
            ready.put(error)

    threading.Thread(target=work, daemon=True).start()
    while (rows := ready.get()) is not None:
        if isinstance(rows, BaseException):
            raise rows
        yield rows


def step(model: DeepFM, optimizer: torch.optim.Optimizer, rows: Rows) -> float:
    """One update; the loss before it."""
    ids, dense, label = rows
    loss = binary_cross_entropy_with_logits(model(ids, dense), label)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def epoch(model: DeepFM, batches: Iterable[Rows]) -> dict[str, Any]:
    """Train over the batches: rows, seconds, mean loss. The clock begins before the first batch is asked for."""
    optimizer = torch.optim.Adagrad(model.parameters(), lr=LR)
    start, rows, losses = time.perf_counter(), 0, 0.0
    for batch in batches:
        losses += step(model, optimizer, batch) * len(batch[2])
        rows += len(batch[2])
    seconds = time.perf_counter() - start
    return {"rows": rows, "seconds": seconds, "rows_per_s": rows / seconds, "loss": losses / rows}


def prepare(task: Task, big: bool) -> DeepFM:
    """Threads as asked for, and a model."""
    torch.set_num_threads(task.threads)
    pa.set_cpu_count(task.threads)
    torch.manual_seed(0)
    return DeepFM(task.ids, big)


def main() -> None:
    task = Task.from_json(sys.argv[1])
    model = prepare(task, big=task.kind.startswith("plain_big"))
    batches = read(task.path, task.batch)
    say(epoch(model, batches if task.kind.endswith("_inline") else ahead(batches)))


if __name__ == "__main__":
    main()
