"""Rows of a table as an Arrow IPC file: `id` int64 and `row`, a list of fixed length."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from hybridrec.embedding.store import Capture, RowData, Store

CHUNK = 65536  # rows at a time, written and read


def write(path: Path, store: Store) -> int:
    """Write what an evaluation would see of every row, and return how many there are."""
    if not store.share.whole:
        raise ValueError(
            f"table {store.table.name!r} lies on several ranks, and this one has {store.share}; save a checkpoint, and "
            "export the run from one process with hybridrec export"
        )
    half = store.dtype == torch.float16
    kind = pa.list_(pa.float16() if half else pa.float32(), store.dim)  # bfloat16 is exact in float32
    schema = pa.schema([pa.field("id", pa.int64(), False), pa.field("row", kind, False)])
    path.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as out:
        for ids in _ids(store).split(CHUNK):
            rows = store.lookup(ids).cpu().to(torch.float16 if half else torch.float32)
            flat = pa.array(rows.reshape(-1).numpy())
            out.write_batch(
                pa.record_batch(
                    [pa.array(ids.numpy()), pa.FixedSizeListArray.from_arrays(flat, type=kind)], schema=schema
                )
            )
            count += len(ids)
    return count


def _ids(store: Store) -> Tensor:
    """All rows of a fixed table: one that training never touched has its initial values."""
    return store.ids() if store.table.dynamic else torch.arange(store.table.fixed_rows)


class ExportedRows(Capture):
    """The rows of a file, a part at a time; the file is mapped, not read as a whole."""

    def __init__(self, path: Path, clock: int) -> None:
        with pa.memory_map(str(path)) as file:
            self._table = pa.ipc.open_file(file).read_all()
        super().__init__(clock, None, None, self._table.num_rows)

    def chunks(self, size: int = CHUNK) -> Iterator[RowData]:
        dim = self._table.schema.field("row").type.list_size
        for part in self._table.to_batches(size):
            ids, rows = np.array(part.column("id")), np.array(part.column("row").flatten())
            yield RowData(torch.from_numpy(ids), torch.from_numpy(rows.reshape(-1, dim)), {})

    def close(self) -> None:
        del self._table


def fill(store: Store, path: Path) -> None:
    """Have a store hold the rows of a file."""
    with ExportedRows(path, store.clock) as rows:
        store.restore(rows)
