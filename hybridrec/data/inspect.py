"""What is in these Parquet files: `inspect`, which reads the footers and a bounded sample of the rows."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from hybridrec.data.arrow_types import is_list, plain_type
from hybridrec.data.files import File, find_files
from hybridrec.data.parquet_source import ParquetSource

pc: Any = pyarrow.compute  # its functions are made at import, unseen by pyright
SAMPLED_GROUPS = 16
HISTOGRAM_BARS = 10
SHOWN_VALUES = 3


@dataclass
class Lengths:
    """Lengths of the lists that are not null; `counts[i]` of them lie in [edges[i], edges[i + 1])."""

    mean: float
    p50: int
    p99: int
    max: int
    edges: list[int]
    counts: list[int]


@dataclass
class Column:
    """One leaf column (struct fields have dotted names). Shares are of rows, `element_nulls` of elements."""

    name: str
    type: str
    bytes: int = 0
    raw_bytes: int = 0
    encodings: list[str] = field(default_factory=list)
    nulls: float | None = None
    nulls_from: str = "statistics"  # or "sample", "all rows"
    element_nulls: float | None = None
    distinct: int | None = None
    distinct_from: str = ""  # "all rows" (exact) or "sample" (Chao's estimate)
    low: Any = None
    high: Any = None
    lengths: Lengths | None = None
    values: list[Any] = field(default_factory=list)


@dataclass
class Report:
    """What `inspect` found over all files together."""

    files: list[str]
    rows: int
    row_groups: int
    group_rows: tuple[int, int]  # fewest and most rows in a row group
    bytes: int
    raw_bytes: int
    compression: list[str]
    created_by: list[str]
    metadata: dict[str, str]
    sampled_rows: int
    columns: list[Column]

    def to_json(self) -> dict[str, Any]:
        """Plain lists, dicts, numbers and strings."""
        return asdict(self)


def inspect(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], sample_rows: int = 100_000) -> Report:
    """Describe Parquet files (paths, globs, folders, URLs) of one schema: sizes, nulls, values, list lengths.

    Sizes and encodings are exact. Null shares of flat columns come from the statistics in the footers. The
    rest is exact when the data have at most `sample_rows` rows, else from a sample of up to 16 row groups.

    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/a.parquet"
    >>> pq.write_table(pa.table({"tags": [[1, 2], [], None]}), path)
    >>> report = inspect(path)
    >>> report.rows, report.columns[0].lengths.max
    (3, 2)
    """
    if sample_rows < 1:
        raise ValueError(f"sample_rows={sample_rows} must be at least 1")
    files = find_files(paths, hive=False)
    opened = [(file, _footer(file)) for file in files]
    first_file, first = opened[0]
    schema = first.schema.to_arrow_schema()
    for file, footer in opened[1:]:
        _check_agreement(first_file, schema, file, footer.schema.to_arrow_schema())
    groups = [(file, g, footer.row_group(g)) for file, footer in opened for g in range(footer.num_row_groups)]
    sample = _sample(groups, schema, sample_rows)
    rows = sum(footer.num_rows for _, footer in opened)
    columns = _columns(schema, sample, rows)
    _add_footers(columns, [group for _, _, group in groups], rows)
    chunks = [group.column(c) for _, _, group in groups for c in range(group.num_columns)]
    sizes = [group.num_rows for _, _, group in groups] or [0]
    metadata = {
        k.decode(): v.decode(errors="replace") for k, v in (first.metadata or {}).items() if k != b"ARROW:schema"
    }
    return Report(
        files=[file.name for file in files],
        rows=rows,
        row_groups=len(groups),
        group_rows=(min(sizes), max(sizes)),
        bytes=sum(chunk.total_compressed_size for chunk in chunks),
        raw_bytes=sum(chunk.total_uncompressed_size for chunk in chunks),
        compression=sorted({chunk.compression.lower() for chunk in chunks}),
        created_by=sorted({footer.created_by or "unknown" for _, footer in opened}),
        metadata=metadata,
        sampled_rows=sample.num_rows,
        columns=columns,
    )


def _footer(file: File) -> pq.FileMetaData:
    try:
        with file.filesystem.open_input_file(file.path) as stream:
            return pq.ParquetFile(stream).metadata
    except FileNotFoundError:
        raise FileNotFoundError(f"{file.name} does not exist") from None
    except (pa.ArrowException, OSError) as error:
        text = "" if file.name.endswith(ParquetSource.suffixes) else "; hybridrec convert makes Parquet of text"
        raise ValueError(f"{file.name} is no readable Parquet file: {_first_line(error).rstrip('.')}{text}") from None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _check_agreement(first: File, schema: pa.Schema, file: File, other: pa.Schema) -> None:
    for name in dict.fromkeys([*schema.names, *other.names]):
        types = [plain_type(s.field(name).type) if name in s.names else "absent" for s in (schema, other)]
        if types[0] != types[1]:
            raise ValueError(
                f"{file.name}: column {name!r} is {types[1]}, in {first.name} it is {types[0]}; inspect them apart"
            )


def _sample(groups: list[tuple[File, int, pq.RowGroupMetaData]], schema: pa.Schema, rows: int) -> pa.Table:
    """All rows if they fit, else the first rows of row groups spread evenly over the data."""
    if sum(group.num_rows for _, _, group in groups) > rows and len(groups) > SAMPLED_GROUPS:
        groups = [groups[i * len(groups) // SAMPLED_GROUPS] for i in range(SAMPLED_GROUPS)]
    parts: list[pa.RecordBatch] = []
    left = rows
    for i, (file, g, group) in enumerate(groups):
        wanted = min(-(-left // (len(groups) - i)), group.num_rows)
        left -= wanted
        if not wanted or not len(schema):
            continue
        try:
            with file.filesystem.open_input_file(file.path) as stream:
                batches = pq.ParquetFile(stream).iter_batches(wanted, row_groups=[g], use_threads=False)
                while wanted > 0:
                    part = next(batches).slice(0, wanted)
                    wanted -= part.num_rows
                    parts.append(part)
        except (pa.ArrowException, OSError, StopIteration) as error:
            raise ValueError(f"{file.name}, row group {g}: {_first_line(error)}") from None
    plain = schema.remove_metadata()
    tables = [pa.Table.from_batches([part]).select(schema.names).cast(plain) for part in parts]
    return pa.concat_tables(tables) if tables else plain.empty_table()


def _columns(schema: pa.Schema, sample: pa.Table, rows: int) -> list[Column]:
    columns = []
    for name in schema.names:
        array = pa.chunked_array(sample.column(name).chunks, type=schema.field(name).type)
        for leaf, values in _leaves(name, _combined(array)):
            columns.append(_column(leaf, values, rows))
    return columns


def _combined(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return combined if isinstance(combined, pa.Array) else pa.concat_arrays(combined.chunks)


def _leaves(name: str, array: pa.Array) -> list[tuple[str, pa.Array]]:
    """Struct fields by dotted name, everything else as it is."""
    if not pa.types.is_struct(array.type):
        return [(name, array)]
    fields = [array.type.field(i).name for i in range(array.type.num_fields)]
    return [leaf for f, child in zip(fields, array.flatten(), strict=True) for leaf in _leaves(f"{name}.{f}", child)]


def _column(name: str, array: pa.Array, rows: int) -> Column:
    whole = len(array) == rows
    source = "all rows" if whole else "sample"
    column = Column(name, str(array.type), nulls_from=source, distinct_from=source)
    column.values = [_shown(v) for v in array.slice(0, SHOWN_VALUES).to_pylist()]
    if len(array):
        column.nulls = array.null_count / len(array)
    elements = array
    if is_list(array.type):
        column.lengths = _lengths(pc.list_value_length(array.drop_null()).to_numpy(zero_copy_only=False))
        while is_list(elements.type):
            elements = elements.flatten()
        column.element_nulls = elements.null_count / len(elements) if len(elements) else None
    most = None if is_list(array.type) else round(rows * (1 - (column.nulls or 0)))
    column.distinct = _distinct(elements.drop_null(), whole, most)
    return column


def _shown(value: Any) -> Any:
    """A value that JSON can hold and a terminal can show."""
    if isinstance(value, dict):
        return {str(k): _shown(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(v) for v in value[:10]] + (["..."] if len(value) > 10 else [])
    if isinstance(value, bytes):
        return value[:40].hex()
    if isinstance(value, str):
        return value if len(value) <= 80 else value[:77] + "..."
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float) and np.isfinite(value):
        return value
    return str(value)


def _distinct(values: pa.Array, whole: bool, most: int | None) -> int | None:
    """Exact over all rows; from a sample Chao's estimate, about seen + once^2 / (2 twice), if that is not too many."""
    try:
        counts = pc.value_counts(values).field("counts").to_numpy()
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return None  # maps, structs in lists ...
    if whole:
        return len(counts)
    once, twice = int((counts == 1).sum()), int((counts == 2).sum())
    estimate = len(counts) + once * (once - 1) // (2 * (twice + 1))
    return estimate if most is None else max(len(counts), min(estimate, most))


def _lengths(lengths: np.ndarray) -> Lengths | None:
    if not len(lengths):
        return None
    longest = int(lengths.max())
    width = -(-(longest + 1) // HISTOGRAM_BARS)
    edges = np.arange(0, longest + 1 + width, width)
    counts = np.histogram(lengths, edges)[0]
    edges[-1] = longest + 1
    p50, p99 = np.quantile(lengths, [0.5, 0.99], method="inverted_cdf")
    return Lengths(float(lengths.mean()), int(p50), int(p99), longest, edges.tolist(), counts.tolist())


def _add_footers(columns: list[Column], groups: list[pq.RowGroupMetaData], rows: int) -> None:
    """Bytes, encodings, and for flat columns exact null shares and bounds, from the footers."""
    by_name = {column.name: column for column in columns}
    nulls: dict[str, int | None] = dict.fromkeys(by_name, 0)
    for group in groups:
        for i in range(group.num_columns):
            chunk = group.column(i)
            column = by_name.get(_owner(chunk.path_in_schema, by_name))
            if column is None:
                continue
            column.bytes += chunk.total_compressed_size
            column.raw_bytes += chunk.total_uncompressed_size
            column.encodings = list(dict.fromkeys([*column.encodings, *chunk.encodings]))
            known, flat = nulls[column.name], chunk.path_in_schema == column.name
            statistics = chunk.statistics if flat else None
            if known is None or statistics is None or not statistics.has_null_count:
                nulls[column.name] = None
                continue
            nulls[column.name] = known + statistics.null_count
            _widen(column, statistics)
    for name, count in nulls.items():
        if count is not None and rows:
            by_name[name].nulls, by_name[name].nulls_from = count / rows, "statistics"
    for column in columns:
        column.low, column.high = _shown(column.low), _shown(column.high)


def _owner(path: str, names: dict[str, Column]) -> str:
    """The column that a Parquet leaf (tags.list.element) belongs to: its longest dotted prefix."""
    while path not in names and "." in path:
        path = path.rsplit(".", 1)[0]
    return path


def _widen(column: Column, statistics: pq.Statistics) -> None:
    if statistics.has_min_max:
        low, high = statistics.min, statistics.max
        try:
            low = low if column.low is None or low < column.low else column.low
            high = high if column.high is None or high > column.high else column.high
        except TypeError:
            return
        column.low, column.high = low, high
