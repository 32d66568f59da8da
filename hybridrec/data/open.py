"""The ways into the data room: one function per format, each giving a `Dataset`."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypedDict, Unpack

import pyarrow as pa

from hybridrec.data.dataset import Dataset
from hybridrec.data.effort import MEMORY, Effort
from hybridrec.data.files import Retry
from hybridrec.data.formats import CsvOptions, CsvSource, IpcSource, TableSource
from hybridrec.data.parquet_source import ParquetSource
from hybridrec.data.rows import RowSet
from hybridrec.data.schema import Schema
from hybridrec.data.source import Source
from hybridrec.data.stream_source import StreamRows

log = logging.getLogger("hybridrec.data")


class Options(TypedDict, total=False):
    """What every way in takes beside its data and `batch_size`."""

    label: str | Sequence[str]  # name or names
    weight: str | None  # the column of sample weights
    schema: Schema | None  # an edited one, in place of label and weight
    where: Any  # a filter: pyarrow Expression or [("day", ">=", 3), ...]
    drop_last: bool  # leave out a short last batch
    threads: int | None  # that decode; all cores
    prefetch: int  # finished batches kept ready, 2
    memory: int  # bytes that the loader may hold, 640 MiB


class FileOptions(Options, total=False):
    """And what files take besides."""

    filesystem: Any  # a pyarrow or fsspec file system, in place of the one that the path names
    hive: bool  # folders named `key=value` become columns, True
    on_bad_file: Literal["error", "skip"]  # a file that cannot be read
    retries: int  # of a transient error of the file system, 3


def parquet(paths: Any, *, batch_size: int, **options: Unpack[FileOptions]) -> Dataset:
    """Batches from Parquet files: a path, glob, directory, list of them, or URL (s3, gs, hdfs, fsspec's).

    Folders named `key=value` become columns (`hive=False`: not). The options are those of `FileOptions`:
    `label=` (name or names), `weight=` (sample weights), `schema=` (an edited one), `where=` (filter),
    `drop_last=`, `threads=` (all cores), `prefetch=` (finished batches kept ready, 2), `memory=` (bytes the
    loader may hold, 640 MiB), `on_bad_file="error"|"skip"`, `retries=` (3), `filesystem=`, `hive=`.

    >>> import hybridrec as hr, pyarrow.parquet as pq, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     pq.write_table(pa.table({"user": [7, 8], "click": [0, 1]}), f"{folder}/a.parquet")
    ...     ds = hr.data.parquet(f"{folder}/*.parquet", label="click", batch_size=2)
    ...     [batch.label.tolist() for batch in ds]
    [[0.0, 1.0]]
    """
    return _from_files(ParquetSource, paths, batch_size, options)


def csv(paths: Any, *, batch_size: int, format: CsvOptions | None = None, **options: Unpack[FileOptions]) -> Dataset:
    """Batches from CSV or TSV files (`.gz` too); `format=CsvOptions(delimiter=...)` states details.

    Text has no index: each file is read once to count its rows, and a resumed epoch reads up to its place
    again. `hybridrec convert` makes Parquet of it, many times faster to load. Options as for `parquet`.
    """
    return _from_files(partial(CsvSource, options=format), paths, batch_size, options)


def ipc(paths: Any, *, batch_size: int, **options: Unpack[FileOptions]) -> Dataset:
    """Batches from Arrow IPC files (Feather too), file or stream format. Options as for `parquet`."""
    return _from_files(IpcSource, paths, batch_size, options)


def table(frame: Any, *, batch_size: int, **options: Unpack[Options]) -> Dataset:
    """Batches from memory: a pyarrow Table, a pandas or polars frame, or a dict of columns.

    Options as for `parquet`, those of files excepted.

    >>> ds = table({"tags": [[1, 2], [], [3]]}, batch_size=3)
    >>> next(iter(ds)).ids["tags"].to_list()
    [[1, 2], [], [3]]
    """
    _check_options(options, Options)
    return _dataset(RowSet(TableSource(frame)), batch_size, options)


def stream(
    batches: Iterable[pa.RecordBatch] | Callable[[], Iterable[pa.RecordBatch]],
    *,
    batch_size: int,
    **options: Unpack[Options],
) -> Dataset:
    """Batches from an iterator of RecordBatches, or (for several epochs) a function that makes one.

    The number of rows is unknown, so there is no split(), where() or shard(by="rows"), and a resumed epoch
    reads up to its place again. Options as for `table`, `where=` excepted.

    >>> parts = [pa.record_batch({"user": [1, 2]}), pa.record_batch({"user": [3]})]
    >>> [batch.ids.values.tolist() for batch in stream(parts, batch_size=3)]
    [[1, 2, 3]]
    """
    _check_options(options, Options)
    if options.get("where") is not None:
        raise ValueError("where= cannot count the rows of a stream; filter its batches before they come here")
    return _dataset(StreamRows.over(batches), batch_size, options)


def _from_files(source: Callable[..., Source], paths: Any, batch_size: int, options: FileOptions) -> Dataset:
    _check_options(options, FileOptions)
    on_bad_file = options.get("on_bad_file", "error")
    opened = source(
        paths,
        filesystem=options.get("filesystem"),
        hive=options.get("hive", True),
        on_bad_file=on_bad_file,
        retry=Retry(attempts=1 + options.get("retries", 3)),
    )
    return _dataset(RowSet(opened, skip_bad=on_bad_file == "skip"), batch_size, options)


def _check_options(options: Mapping[str, Any], known: type[Options]) -> None:
    names = list(known.__annotations__) if known is Options else [*Options.__annotations__, *known.__annotations__]
    if unknown := sorted(set(options) - set(names)):
        raise TypeError(f"no option named {', '.join(unknown)} here; there are {', '.join(dict.fromkeys(names))}")


def _dataset(rows: RowSet | StreamRows, batch_size: int, options: Options | FileOptions) -> Dataset:
    threads = options.get("threads")
    effort = Effort(
        threads if threads is not None else os.cpu_count() or 1,
        options.get("prefetch", 2),
        options.get("memory", MEMORY),
        options.get("on_bad_file", "error"),
    )
    label, weight, schema = options.get("label", ()), options.get("weight"), options.get("schema")
    if schema is None:
        schema = Schema.infer(rows.schema, label=label, weight=weight)
    elif label or weight:
        raise ValueError("schema= already says which column is the label and the weight; leave label= and weight= out")
    made = Dataset(rows, schema, effort, batch_size, options.get("drop_last", False))
    if made.left_out:
        log.warning("columns that are not read: %s", made.left_out)
    where = options.get("where")
    return made if where is None else made.where(where)
