"""The ways into the data room: one function per format, each giving a `Dataset`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa

from hybridrec.data.dataset import Dataset
from hybridrec.data.formats import CsvOptions, CsvSource, IpcSource, TableSource
from hybridrec.data.loader import MEMORY, Effort
from hybridrec.data.parquet_source import ParquetSource
from hybridrec.data.rows import RowSet
from hybridrec.data.schema import Schema
from hybridrec.data.source import Source
from hybridrec.data.stream_source import StreamRows


def parquet(
    paths: Any, *, batch_size: int, filesystem: Any = None, hive: bool = True, **options: Any
) -> Dataset:
    """Batches from Parquet files: a path, glob, directory, list of them, or URL (s3, gs, hdfs, fsspec's).

    Folders named `key=value` become columns (`hive=False`: not). The options, common to all formats, are
    `label=` (name or names), `weight=` (sample weights), `schema=` (an edited one), `where=` (filter),
    `drop_last=`, `threads=` (all cores), `prefetch=` (finished batches kept ready, 2), `memory=` (bytes the
    loader may hold, 640 MiB), `on_bad_file="error"|"skip"`.

    >>> import hybridrec as hr, pyarrow.parquet as pq, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     pq.write_table(pa.table({"user": [7, 8], "click": [0, 1]}), f"{folder}/a.parquet")
    ...     ds = hr.data.parquet(f"{folder}/*.parquet", label="click", batch_size=2)
    ...     [batch.label.tolist() for batch in ds]
    [[0.0, 1.0]]
    """
    source = ParquetSource(
        paths, filesystem=filesystem, hive=hive, on_bad_file=options.get("on_bad_file", "error")
    )
    return _dataset(source, batch_size, **options)


def csv(
    paths: Any,
    *,
    batch_size: int,
    format: CsvOptions | None = None,
    filesystem: Any = None,
    hive: bool = True,
    **options: Any,
) -> Dataset:
    """Batches from CSV or TSV files (`.gz` too); `format=CsvOptions(delimiter=...)` states details.

    Text has no index: each file is read once to count its rows, and a resumed epoch reads up to its place
    again. `hybridrec convert` makes Parquet of it, many times faster to load. Options as for `parquet`.
    """
    source = CsvSource(
        paths, format, filesystem=filesystem, hive=hive, on_bad_file=options.get("on_bad_file", "error")
    )
    return _dataset(source, batch_size, **options)


def ipc(paths: Any, *, batch_size: int, filesystem: Any = None, hive: bool = True, **options: Any) -> Dataset:
    """Batches from Arrow IPC files (Feather too), file or stream format. Options as for `parquet`."""
    source = IpcSource(
        paths, filesystem=filesystem, hive=hive, on_bad_file=options.get("on_bad_file", "error")
    )
    return _dataset(source, batch_size, **options)


def table(frame: Any, *, batch_size: int, **options: Any) -> Dataset:
    """Batches from memory: a pyarrow Table, a pandas or polars frame, or a dict of columns.

    Options as for `parquet`.

    >>> ds = table({"tags": [[1, 2], [], [3]]}, batch_size=3)
    >>> next(iter(ds)).ids["tags"].to_list()
    [[1, 2], [], [3]]
    """
    return _dataset(TableSource(pa.table(frame) if isinstance(frame, dict) else frame), batch_size, **options)


def stream(
    batches: Iterable[pa.RecordBatch] | Callable[[], Iterable[pa.RecordBatch]],
    *,
    batch_size: int,
    **options: Any,
) -> Dataset:
    """Batches from an iterator of RecordBatches, or (for several epochs) a function that makes one.

    The number of rows is unknown, so there is no split(), where() or shard(by="rows"), and a resumed epoch
    reads up to its place again. Options as for `parquet`.

    >>> parts = [pa.record_batch({"user": [1, 2]}), pa.record_batch({"user": [3]})]
    >>> [batch.ids.values.tolist() for batch in stream(parts, batch_size=3)]
    [[1, 2, 3]]
    """
    if "on_bad_file" in options:
        raise ValueError("on_bad_file= is for files; a stream that fails raises its own error")
    if options.pop("where", None) is not None:
        raise ValueError("where= cannot count the rows of a stream; filter its batches before they come here")
    return _assemble(StreamRows.over(batches), batch_size, **options)


def _dataset(source: Source, batch_size: int, *, where: Any = None, **options: Any) -> Dataset:
    rows = RowSet(source, skip_bad=options.get("on_bad_file") == "skip")
    made = _assemble(rows, batch_size, **options)
    return made if where is None else made.where(where)


def _assemble(
    rows: RowSet | StreamRows,
    batch_size: int,
    *,
    label: str | Sequence[str] = (),
    weight: str | None = None,
    schema: Schema | None = None,
    drop_last: bool = False,
    threads: int | None = None,
    prefetch: int = 2,
    memory: int = MEMORY,
    on_bad_file: str = "error",
) -> Dataset:
    threads = threads if threads is not None else os.cpu_count() or 1
    for name, value in {"threads": threads, "prefetch": prefetch, "memory": memory}.items():
        if value < 1:
            raise ValueError(f"{name}={value}: at least 1")
    if on_bad_file not in ("error", "skip"):
        raise ValueError(f'on_bad_file={on_bad_file!r}; the choices are "error" and "skip"')
    if schema is None:
        schema = Schema.infer(rows.schema, label=label, weight=weight)
    elif label or weight:
        raise ValueError(
            "schema= already says which column is the label and the weight; leave label= and weight= out"
        )
    return Dataset(rows, schema, Effort(threads, prefetch, memory, on_bad_file), batch_size, drop_last)
