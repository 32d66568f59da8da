"""Blocks of planted clicks -> record batches -> Parquet files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from hybridrec.data.output import atomic_file, atomic_folder, check_compression
from hybridrec.data.rechunk import Rows
from hybridrec.data.synthetic.auc import StreamingAuc
from hybridrec.data.synthetic.clicks import BLOCK, Block, Clicks, Planted

METADATA_KEY = "hybridrec.synthetic"
MAX_FILES = 200  # all stay open until the end, because every footer holds the AUC of the whole data


@dataclass(frozen=True)
class Summary:
    """What was written. `best_auc`: the AUC of the true probabilities against the labels as drawn."""

    rows: int
    best_auc: float | None
    click_rate: float | None
    files: tuple[str, ...]
    bytes: int


def schema(clicks: Clicks | None = None, probability: bool = False) -> pa.Schema:
    """The Arrow schema of the data: click int8, ids int64, dense float32, histories list<int64>.

    >>> schema(Clicks(ids=1, dense=1, histories=1)).names
    ['click', 'id_1', 'dense_1', 'history_1']
    """
    spec = clicks or Clicks()
    fields = [pa.field("click", pa.int8(), nullable=False)]
    fields += [pa.field(name, pa.int64(), nullable=False) for name in spec.id_names]
    fields += [pa.field(name, pa.float32(), nullable=False) for name in spec.dense_names]
    item = pa.field("element", pa.int64(), nullable=False)
    fields += [pa.field(name, pa.list_(item), nullable=False) for name in spec.history_names]
    if probability:
        fields.append(pa.field("probability", pa.float64(), nullable=False))
    return pa.schema(fields)


def tables(
    rows: int,
    *,
    seed: int = 0,
    clicks: Clicks | None = None,
    chunk_rows: int = 131_072,
    probability: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield the data as record batches of `chunk_rows` rows, the last one shorter.

    The values depend on `seed` and `clicks` alone: not on `chunk_rows`, and `rows` only says where to stop.
    `probability=True` adds the true chance of a click as a last column (do not train on it).

    >>> [batch.num_rows for batch in tables(2500, chunk_rows=1000)]
    [1000, 1000, 500]
    """
    _check_count("rows", rows, 0)
    _check_count("chunk_rows", chunk_rows, 1)
    spec = clicks or Clicks()
    return _rechunk(_blocks(rows, Planted(spec, seed), schema(spec, probability)), chunk_rows)


def write(
    path: str | os.PathLike[str],
    *,
    rows: int,
    seed: int = 0,
    clicks: Clicks | None = None,
    files: int = 1,
    row_group_rows: int = 131_072,
    compression: str = "zstd",
    probability: bool = False,
    force: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Summary:
    """Write click data as Parquet and return a `Summary`; memory does not grow with `rows`.

    `files` > 1 makes `path` a folder of `part-00000.parquet`, ... The output appears whole or not at all.
    Every footer holds the summary as JSON under `METADATA_KEY`. `progress` is called with the rows so far.

    >>> import tempfile
    >>> summary = write(tempfile.mkdtemp() + "/clicks.parquet", rows=20_000)
    >>> summary.rows, 0.78 < summary.best_auc < 0.82
    (20000, True)
    """
    _check_count("rows", rows, 0)
    _check_count("row_group_rows", row_group_rows, 1)
    _check_count("files", files, 1, MAX_FILES)
    spec = clicks or Clicks()
    options = {
        "compression": check_compression(compression),
        # Dense values hardly repeat: a dictionary would only cost time.
        "use_dictionary": spec.id_names + [f"{name}.list.element" for name in spec.history_names],
    }
    with ExitStack() as stack:
        if files == 1:
            targets = [stack.enter_context(atomic_file(path, force))]
            names = [str(path)]
        else:
            if str(path).endswith(".parquet"):
                raise ValueError(f"{files} files need a folder, and {path} names a file; drop the suffix")
            folder = stack.enter_context(atomic_folder(path, force))
            targets = [folder / f"part-{i:05d}.parquet" for i in range(files)]
            names = [str(Path(path) / target.name) for target in targets]
        planted = Planted(spec, seed)
        writers = [_open(target, schema(spec, probability), options, stack) for target in targets]
        auc = _fill(writers, planted, rows, row_group_rows, probability, progress)
        rate = auc.positives / rows if rows else None
        about = {
            "version": 1,
            "rows": rows,
            "files": files,
            "seed": seed,
            "best_auc": auc.value(),
            "best_auc_is": "AUC of the true probabilities against the labels as drawn, over all files",
            "click_rate": rate,
            "clicks": vars(spec),
        }
        for writer in writers:
            writer.add_key_value_metadata({METADATA_KEY: json.dumps(about)})
            writer.close()
        size = sum(target.stat().st_size for target in targets)
    return Summary(rows, auc.value(), rate, tuple(names), size)


def _open(target: Path, columns: pa.Schema, options: dict, stack: ExitStack) -> pq.ParquetWriter:
    writer = pq.ParquetWriter(target, columns, **options)
    stack.callback(writer.close)
    return writer


def _fill(
    writers: list[pq.ParquetWriter],
    planted: Planted,
    rows: int,
    row_group_rows: int,
    probability: bool,
    progress: Callable[[int], None] | None,
) -> StreamingAuc:
    """Write rows [rows * i // files, rows * (i + 1) // files) to file i; return the AUC of all of them."""
    auc, done = StreamingAuc(), 0
    blocks = _blocks(rows, planted, schema(planted.spec, probability), auc)
    source = Rows(blocks)
    for i, writer in enumerate(writers):
        end = rows * (i + 1) // len(writers)
        while done < end:
            batch = source.take(min(row_group_rows, end - done))
            assert batch is not None
            writer.write_batch(batch, row_group_size=row_group_rows)
            done += batch.num_rows
            if progress is not None:
                progress(done)
    return auc


def _blocks(
    rows: int, planted: Planted, columns: pa.Schema, auc: StreamingAuc | None = None
) -> Iterator[pa.RecordBatch]:
    for number in range(-(-rows // BLOCK)):
        block = planted.block(number)
        wanted = min(BLOCK, rows - number * BLOCK)
        if auc is not None:
            auc.add(block.probability[:wanted], block.click[:wanted])
        yield _record_batch(block, columns).slice(0, wanted)


def _record_batch(block: Block, columns: pa.Schema) -> pa.RecordBatch:
    arrays: list[pa.Array] = [pa.array(block.click)]
    arrays += [pa.array(ids) for ids in block.ids]
    arrays += [pa.array(values) for values in block.dense]
    for values, offsets in block.histories:
        arrays.append(
            pa.ListArray.from_arrays(pa.array(offsets), pa.array(values)).cast(columns.field("history_1").type)
        )
    if len(arrays) < len(columns):
        arrays.append(pa.array(block.probability))
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def _rechunk(blocks: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    source = Rows(blocks)
    while (batch := source.take(rows)) is not None:
        yield batch


def _check_count(name: str, value: int, low: int, high: int | None = None) -> None:
    if not isinstance(value, int) or value < low or (high is not None and value > high):
        rule = f"from {low:,} to {high:,}" if high is not None else f"of at least {low:,}"
        raise ValueError(f"{name}={value!r} must be a whole number {rule}")
