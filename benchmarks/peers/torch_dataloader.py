"""Peer: torch's DataLoader over Parquet, as its documentation builds it.

Random reads of Parquet are expensive, so it is an `IterableDataset`; the workers share the row groups by
`get_worker_info()`; it yields one sample (a dict) per row; `collate_fn` stacks scalars with `default_collate`
and ragged columns, which that function refuses, as values and lengths.
`--batched` is the hand-tuned way: automatic batching off, whole batches from Arrow buffers, no row in Python.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from protocol import Request, serve
from torch.utils.data import DataLoader, IterableDataset, default_collate, get_worker_info

CHUNK_ROWS = 8_192  # rows turned into Python objects at a time: bounds the worker's memory


def groups_of_this_worker(file: pq.ParquetFile) -> list[int]:
    worker = get_worker_info()
    first, step = (worker.id, worker.num_workers) if worker else (0, 1)
    return list(range(first, file.num_row_groups, step))


class Rows(IterableDataset):
    """One dict per row."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __iter__(self) -> Iterator[dict]:
        file = pq.ParquetFile(self.path)
        for group in groups_of_this_worker(file):
            for chunk in file.iter_batches(CHUNK_ROWS, row_groups=[group], use_threads=False):
                yield from chunk.to_pylist()


class Batches(IterableDataset):
    """One dict of tensors per batch, straight from Arrow's buffers."""

    def __init__(self, path: Path, batch: int) -> None:
        self.path, self.batch = path, batch

    def __iter__(self) -> Iterator[dict]:
        file = pq.ParquetFile(self.path)
        groups = groups_of_this_worker(file)
        if groups:
            for chunk in file.iter_batches(self.batch, row_groups=groups, use_threads=False):
                yield {name: tensors(column) for name, column in zip(chunk.schema.names, chunk.columns, strict=True)}


def tensors(column: pa.Array) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    if isinstance(column, pa.ListArray):
        offsets = np.asarray(column.offsets)
        return copied(column.flatten()), torch.from_numpy(offsets - offsets[0])
    return copied(column)


def copied(column: pa.Array) -> torch.Tensor:
    return torch.from_numpy(column.to_numpy(zero_copy_only=False).copy())


def collate(rows: list[dict], ragged: list[str]) -> dict:
    batch = default_collate([{k: v for k, v in row.items() if k not in ragged} for row in rows])
    for name in ragged:
        lists = [row[name] for row in rows]
        batch[name] = (torch.tensor(list(chain.from_iterable(lists))), torch.tensor([len(x) for x in lists]))
    return batch


def prepare(request: Request) -> DataLoader:
    if "--batched" in sys.argv:
        return DataLoader(
            Batches(request.path, request.batch), None, num_workers=request.threads, persistent_workers=True
        )
    ragged = [field.name for field in pq.read_schema(request.path) if pa.types.is_list(field.type)]
    return DataLoader(
        Rows(request.path),
        request.batch,
        num_workers=request.threads,
        collate_fn=partial(collate, ragged=ragged),
        persistent_workers=True,
    )


if __name__ == "__main__":
    serve(
        prepare,
        lambda batch, label: len(batch[label]),
        {"torch": torch.__version__, "pyarrow": pa.__version__},
    )
