"""A table as an Arrow file: id, row, optimizer state, touched, count; read back without copying.

Rows of bfloat16 are written as float32, which holds them exactly: Arrow and its readers have no such type.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from hybridrec.embedding.store import RowData

TYPES = {
    torch.float32: pa.float32(),
    torch.float16: pa.float16(),
    torch.bfloat16: pa.float32(),
    torch.int64: pa.int64(),
}
DTYPES = {pa.float32(): torch.float32, pa.float16(): torch.float16, pa.int64(): torch.int64}


def write_table(path: Path, chunks: Iterable[RowData]) -> int:
    """Write the rows in the order in which they come, a record batch per chunk; returns how many there are."""
    written = 0
    with pa.OSFile(str(path), "wb") as file, contextlib.ExitStack() as open_until_end:
        writer = None
        for data in chunks:
            columns = {"id": data.ids, "row": data.rows, **data.state, "touched": data.touched, "count": data.counts}
            given = {name: column for name, column in columns.items() if column is not None}
            schema = pa.schema([pa.field(name, _type(column), nullable=False) for name, column in given.items()])
            writer = writer or open_until_end.enter_context(pa.ipc.new_file(file, schema))
            arrays = [_array(column, field.type) for column, field in zip(given.values(), schema, strict=True)]
            writer.write_batch(pa.record_batch(arrays, schema=schema))
            written += len(data.ids)
    return written


def _type(column: Tensor) -> pa.DataType:
    each = TYPES[column.dtype]
    if column.dim() == 1:
        return each
    return pa.list_(pa.field("item", each, nullable=False), column.shape[1])


def _array(column: Tensor, kind: pa.DataType) -> pa.Array:
    values = column.float() if column.dtype == torch.bfloat16 else column
    flat = values.contiguous().view(-1).numpy()
    if not pa.types.is_fixed_size_list(kind):
        return pa.array(flat, type=kind)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat), type=kind)


class TableFile:
    """A table file, read in batches whose columns are views of it: nothing is read before it is used."""

    def __init__(self, path: Path, rows: int) -> None:
        table, self._content = _open(path)
        if table.num_rows != rows:
            raise ValueError(f"{path} has {table.num_rows} rows, and the manifest says {rows}")
        self._batches = [batch for batch in table.to_batches() if batch.num_rows]
        self.names = table.schema.names

    def __len__(self) -> int:
        return len(self._batches)

    def column(self, batch: int, name: str) -> Tensor:
        """A column of a batch, [n] or [n, width]."""
        return _tensor(self._batches[batch].column(name), self._content)

    def ids(self) -> Iterator[Tensor]:
        """The ids of each batch."""
        return (self.column(batch, "id") for batch in range(len(self)))


def open_table(path: Path | str) -> pa.Table:
    """A table file as a pyarrow Table over a map of the file, for pandas, DuckDB and others.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp(), "item.arrow")
    >>> write_table(file, [RowData(torch.tensor([7, 3]), torch.ones(2, 4), {"sum": torch.zeros(2)})])
    2
    >>> open_table(file).to_pylist()[1]
    {'id': 3, 'row': [1.0, 1.0, 1.0, 1.0], 'sum': 0.0}
    """
    return _open(Path(path))[0]


def _open(path: Path) -> tuple[pa.Table, np.ndarray]:
    with open(path, "rb") as file:
        content = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), dtype=np.uint8)
    return pa.ipc.open_file(pa.py_buffer(content)).read_all(), content


def _tensor(column: pa.Array, content: np.ndarray) -> Tensor:
    if not pa.types.is_fixed_size_list(column.type):
        return _view(column, DTYPES[column.type], content)
    width = column.type.list_size
    return _view(column.flatten(), DTYPES[column.type.value_type], content).view(-1, width)


def _view(array: Any, dtype: torch.dtype, content: np.ndarray) -> Tensor:
    """The numbers of an array as they lie in the mapped file."""
    if not len(array):
        return torch.empty(0, dtype=dtype)
    start = array.buffers()[1].address - content.ctypes.data + array.offset * dtype.itemsize
    return torch.from_numpy(content[start : start + len(array) * dtype.itemsize]).view(dtype)
