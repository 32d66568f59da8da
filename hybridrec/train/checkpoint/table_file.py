"""A table as an Arrow file: id, row, optimizer state, touched, count; read back without copying.

Rows of bfloat16 are written as float32, which holds them exactly: Arrow and its readers have no such type.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from hybridrec.embedding.store import RowData
from hybridrec.train.checkpoint.table_info import TableInfo

CONVERTED_ROWS = 1 << 18  # at a time, where rows are written in another type than they have
TYPES = {
    torch.float32: pa.float32(),
    torch.float16: pa.float16(),
    torch.bfloat16: pa.float32(),
    torch.int64: pa.int64(),
}
DTYPES = {pa.float32(): torch.float32, pa.float16(): torch.float16, pa.int64(): torch.int64}


def write_table(path: Path, data: RowData) -> None:
    """Write the rows in the order in which they come."""
    columns = {"id": data.ids, "row": data.rows, **data.state, "touched": data.touched, "count": data.counts}
    given = {name: column for name, column in columns.items() if column is not None}
    schema = pa.schema([pa.field(name, _type(column), nullable=False) for name, column in given.items()])
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        for part in _parts(given):
            arrays = [_array(column, field.type) for column, field in zip(part, schema, strict=True)]
            writer.write_batch(pa.record_batch(arrays, schema=schema))


def _type(column: Tensor) -> pa.DataType:
    each = TYPES[column.dtype]
    if column.dim() == 1:
        return each
    return pa.list_(pa.field("item", each, nullable=False), column.shape[1])


def _parts(columns: dict[str, Tensor]) -> Iterator[list[Tensor]]:
    """All rows at once, so that they can be read without copying; where they must be converted, some at a time."""
    count = len(columns["id"])
    step = CONVERTED_ROWS if columns["row"].dtype == torch.bfloat16 else max(count, 1)
    for start in range(0, count, step):
        yield [column[start : start + step] for column in columns.values()]


def _array(column: Tensor, kind: pa.DataType) -> pa.Array:
    values = column.float() if column.dtype == torch.bfloat16 else column
    flat = values.contiguous().view(-1).numpy()
    if not pa.types.is_fixed_size_list(kind):
        return pa.array(flat, type=kind)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat), type=kind)


def read_table(path: Path, info: TableInfo) -> RowData:
    """The rows as they were saved, as views of the file: nothing is read before it is used, and nothing written."""
    table, content = _open(path)
    if table.num_rows != info.rows:
        raise ValueError(f"{path} has {table.num_rows} rows, and the manifest says {info.rows}")
    columns = {name: _tensor(table[name], content) for name in table.column_names}
    rows = columns["row"].to(getattr(torch, info.dtype))
    names = info.rule.names if info.rule else ()
    state = {name: columns[name] for name in names}
    return RowData(columns["id"], rows, state, columns.get("touched"), columns.get("count"))


def open_table(path: Path | str) -> pa.Table:
    """A table file as a pyarrow Table over a map of the file, for pandas, DuckDB and others.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp(), "item.arrow")
    >>> write_table(file, RowData(torch.tensor([7, 3]), torch.ones(2, 4), {"sum": torch.zeros(2)}))
    >>> open_table(file).to_pylist()[1]
    {'id': 3, 'row': [1.0, 1.0, 1.0, 1.0], 'sum': 0.0}
    """
    return _open(Path(path))[0]


def _open(path: Path) -> tuple[pa.Table, np.ndarray]:
    with open(path, "rb") as file:
        content = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), dtype=np.uint8)
    return pa.ipc.open_file(pa.py_buffer(content)).read_all(), content


def _tensor(column: pa.ChunkedArray, content: np.ndarray) -> Tensor:
    listed = pa.types.is_fixed_size_list(column.type)
    width = column.type.list_size if listed else None
    dtype = DTYPES[column.type.value_type if listed else column.type]
    parts = [_view(chunk.flatten() if listed else chunk, dtype, content) for chunk in column.chunks]
    joined = parts[0] if len(parts) == 1 else torch.cat([torch.empty(0, dtype=dtype), *parts])
    return joined if width is None else joined.view(-1, width)


def _view(array: Any, dtype: torch.dtype, content: np.ndarray) -> Tensor:
    """The numbers of an array as they lie in the mapped file."""
    if not len(array):
        return torch.empty(0, dtype=dtype)
    start = array.buffers()[1].address - content.ctypes.data + array.offset * dtype.itemsize
    return torch.from_numpy(content[start : start + len(array) * dtype.itemsize]).view(dtype)
