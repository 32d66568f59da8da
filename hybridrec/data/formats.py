"""The other formats with the same contract: CSV and TSV, Arrow IPC, and tables in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from hybridrec.data.file_source import MASK_ROWS, Contents, FileSource, Reading
from hybridrec.data.files import File
from hybridrec.data.source import (
    BadFile,
    Group,
    Layout,
    check_columns,
    exact_chunks,
    fingerprint,
    layout,
    leaf,
    record_batch,
    same_type,
)
from hybridrec.data.where import evaluate, filter_columns

TABLE_GROUP_ROWS = 131_072


@dataclass(frozen=True, slots=True)
class CsvOptions:
    """How text becomes columns; types not stated in `types` are inferred from a file's first megabyte.

    `delimiter=None` means a tab for .tsv files and a comma for others. With `header=False`, `column_names`
    names the columns; with a header it renames them. An unquoted field among `null_values` is null.

    >>> CsvOptions(delimiter="|", header=False, column_names=("user", "item")).delimiter
    '|'
    """

    delimiter: str | None = None
    header: bool = True
    column_names: Sequence[str] | None = None
    types: Mapping[str, pa.DataType] = field(default_factory=dict)
    null_values: Sequence[str] = ("", "NULL", "null", "\\N")

    def __post_init__(self) -> None:
        if not self.header and not self.column_names:
            raise ValueError("header=False needs column_names=, one name for each column of the file")


class CsvSource(FileSource):
    """CSV and TSV files, also compressed (.gz, .bz2, .zst, .lz4 by suffix); each file is one group.

    The rows are counted, and the types checked, in one streaming pass when the source is made.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "a.csv")
    >>> _ = path.write_text("user,price\\n1,2.5\\n2,\\n")
    >>> CsvSource(path).schema
    user: int64
    price: double
    """

    suffixes = tuple(f".{text}{packed}" for text in ("csv", "tsv") for packed in ("", ".gz", ".bz2", ".zst", ".lz4"))

    def __init__(self, paths: Any, options: CsvOptions | None = None, **files: Any) -> None:
        self.options = options or CsvOptions()
        super().__init__(paths, **files)
        unknown = [name for name in self.options.types if name not in self.schema.names]
        check_columns(unknown, self.schema, self.left_out)

    def _merge(self, first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
        """As for all files, but of numbers of two types the wider holds both: fractions, else uint64."""
        kinds = {first, second}
        if kinds < {pa.int64(), pa.uint64(), pa.float64()} and len(kinds) == 2:
            return pa.float64() if pa.float64() in kinds else pa.uint64()
        return same_type(first, second)

    def _index(self, file: File) -> Contents:
        stated = dict(self.options.types)
        try:
            columns, rows, first = self._scan(file, stated)
            large = [name for name in _beyond_int64(first) if name not in stated and self._is_whole(file, name)]
            if large:
                columns, rows, _ = self._scan(file, stated | dict.fromkeys(large, pa.uint64()))
        except pa.ArrowInvalid as error:
            raise BadFile(
                file.name,
                f"{error}; if a type is wrong, state it with types={{name: type}} (hybridrec convert --types)",
            ) from error
        size = file.filesystem.get_file_info(file.path).size or 0
        return Contents(columns, [(0, rows, size)], size)

    def _scan(self, file: File, types: dict[str, pa.DataType]) -> tuple[Layout, int, pa.RecordBatch | None]:
        """Columns, number of rows and first batch of a file that is read to its end."""
        with self._reader(file, types, [], False) as reader:
            first = next(iter(reader), None)
            rows = sum(batch.num_rows for batch in reader)
            return layout(reader.schema), rows + (0 if first is None else first.num_rows), first

    def _is_whole(self, file: File, name: str) -> bool:
        """Whether the column begins with whole numbers of 64 bits without a sign."""
        try:
            with self._reader(file, {name: pa.uint64()}, [name], False) as reader:
                return next(iter(reader)).num_rows > 0
        except pa.ArrowInvalid:
            return False

    def _batches(self, group: Group, columns: list[str], reading: Reading) -> Iterator[pa.RecordBatch]:
        file = self._files[group.file]
        here = self._contents[group.file].layout.types
        types = {name: self.schema.field(name).type for name in here}
        # No column at all would mean every column to Arrow; one is enough to count the rows.
        with self._reader(file, types, columns or list(here)[:1], reading.threads) as reader:
            yield from reader

    def _reader(
        self, file: File, types: dict[str, pa.DataType], columns: list[str], threads: bool
    ) -> csv.CSVStreamingReader:
        options = self.options
        tabs = ".tsv" in file.path.rsplit("/", 1)[-1].lower()
        return csv.open_csv(
            file.filesystem.open_input_stream(file.path),
            read_options=csv.ReadOptions(
                use_threads=threads,
                column_names=list(options.column_names) if options.column_names else None,
                skip_rows=1 if options.header and options.column_names else 0,
            ),
            parse_options=csv.ParseOptions(delimiter=options.delimiter or ("\t" if tabs else ",")),
            convert_options=csv.ConvertOptions(
                column_types=types,
                include_columns=columns,
                null_values=list(options.null_values),
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )


def _beyond_int64(batch: pa.RecordBatch | None) -> list[str]:
    """Columns that may be ids of 64 bits without a sign: Arrow takes them for fractions, which lose digits."""
    if batch is None:
        return []
    fractions = [field.name for field in batch.schema if field.type == pa.float64()]
    ends = {name: pc.call_function("min_max", [batch[name]]).as_py() for name in fractions}
    return [name for name, end in ends.items() if end["min"] is not None and end["min"] >= 0 and end["max"] >= 2**63]


class IpcSource(FileSource):
    """Arrow IPC files (Feather V2 too): a record batch is a group. An IPC stream is one group.

    >>> import pyarrow as pa, pyarrow.feather, tempfile
    >>> path = tempfile.mkdtemp() + "/a.arrow"
    >>> pa.feather.write_feather(pa.table({"user": range(5)}), path, chunksize=3)
    >>> [group.rows for group in IpcSource(path).groups]
    [3, 2]
    """

    suffixes = (".arrow", ".ipc", ".feather", ".arrows")

    def _index(self, file: File) -> Contents:
        if not self._is_file_format(file):
            with pa.ipc.open_stream(file.filesystem.open_input_stream(file.path)) as reader:
                columns, rows = layout(reader.schema), sum(batch.num_rows for batch in reader)
            size = file.filesystem.get_file_info(file.path).size or 0
            return Contents(columns, [(0, rows, size)], size, "stream")
        with file.filesystem.open_input_file(file.path) as handle:
            size, schema = handle.size(), pa.ipc.open_file(handle).schema
            narrow = min(range(len(schema)), key=lambda i: _width(schema.field(i).type), default=0)
            reader = pa.ipc.open_file(handle, options=pa.ipc.IpcReadOptions(included_fields=[narrow]))
            rows = [reader.get_batch(i).num_rows for i in range(reader.num_record_batches)]
        whole = max(sum(rows), 1)
        return Contents(layout(schema), [(i, n, size * n // whole) for i, n in enumerate(rows)], size, "file")

    def _batches(self, group: Group, columns: list[str], reading: Reading) -> Iterator[pa.RecordBatch]:
        file, contents = self._files[group.file], self._contents[group.file]
        tops = {contents.layout.paths[name][0] for name in columns}

        def options(schema: pa.Schema) -> pa.ipc.IpcReadOptions:
            wanted = [i for i, name in enumerate(schema.names) if name in tops] or [0]
            return pa.ipc.IpcReadOptions(included_fields=wanted, use_threads=reading.threads)

        if contents.footer == "stream":
            with pa.ipc.open_stream(file.filesystem.open_input_stream(file.path)) as reader:
                schema = reader.schema
            with pa.ipc.open_stream(file.filesystem.open_input_stream(file.path), options=options(schema)) as reader:
                yield from reader
            return
        with self._opened(group) as handle:
            schema = pa.ipc.open_file(handle).schema
            yield pa.ipc.open_file(handle, options=options(schema)).get_batch(group.index)

    def _is_file_format(self, file: File) -> bool:
        with file.filesystem.open_input_stream(file.path) as handle:
            start = handle.read(6)
        if start[:4] == b"FEA1":
            raise BadFile(file.name, "Feather V1 is not read; write it again as Feather V2 (pyarrow.feather)")
        return start == b"ARROW1"


def _width(kind: pa.DataType) -> int:
    """Bits of one value, to find the column that is cheapest to read; variable widths come last."""
    try:
        return kind.bit_width
    except ValueError:
        return 1 << 30


class TableSource:
    """A table in memory: pyarrow Table or RecordBatches, pandas or polars frame, dict. Nothing is copied.

    >>> source = TableSource(pa.table({"user": [1, 2, 3]}))
    >>> [chunk.num_rows for chunk in source.open(0, ["user"], chunk_rows=2)]
    [2, 1]
    """

    def __init__(self, table: Any, group_rows: int = TABLE_GROUP_ROWS) -> None:
        self._table = as_table(table)
        self._layout = layout(self._table.schema)
        self.schema = pa.schema(list(self._layout.types.items()))
        self.left_out = self._layout.left_out
        self.files, self.bad = ["<table>"], []
        rows, size = self._table.num_rows, self._table.nbytes
        self._starts = range(0, rows, group_rows)
        counts = [min(group_rows, rows - start) for start in self._starts]
        self.groups = [Group(0, i, count, size * count // rows) for i, count in enumerate(counts)]
        # as text: Python has not every date that Arrow has
        ends = [c.to_string() for at in (0, max(rows - 1, 0)) for c in self._table.slice(at, 1).columns]
        self.fingerprint = fingerprint([counts, [f"{f.name}: {f.type}" for f in self.schema], ends])

    def __repr__(self) -> str:
        return f"TableSource(rows={self._table.num_rows:,}, columns={len(self.schema)})"

    def absent(self, file: int) -> set[str]:
        """A table has all its columns."""
        return set()

    def describe(self, group: int) -> str:
        """The group's name in messages."""
        start = self._starts[group]
        return f"{self.files[0]}, rows {start} to {start + self.groups[group].rows - 1}"

    def open(
        self, group: int, columns: Sequence[str], chunk_rows: int, column_threads: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """The chunks of one group, as slices of the table wherever its own chunks allow."""
        check_columns(columns, self.schema, self.left_out)
        if chunk_rows < 1:
            raise ValueError(f"chunk_rows={chunk_rows}; a chunk must hold at least 1 row")
        return self._chunks(group, list(columns), chunk_rows)

    def mask(self, group: int, where: pc.Expression) -> np.ndarray:
        """A bool for each row of the group."""
        columns = filter_columns(where, self.schema)
        plain = pa.schema([self.schema.field(name) for name in columns])
        chunks = self._chunks(group, columns, MASK_ROWS)
        return np.concatenate([evaluate(where, chunk.cast(plain) if columns else chunk) for chunk in chunks])

    def prune(self, where: pc.Expression) -> set[int]:
        """All groups: a table has no statistics."""
        filter_columns(where, self.schema)
        return set(range(len(self.groups)))

    def _chunks(self, number: int, columns: list[str], chunk_rows: int) -> Iterator[pa.RecordBatch]:
        group, paths = self.groups[number], self._layout.paths
        if not columns:
            rows = range(0, group.rows, chunk_rows)
            yield from (record_batch([], [], min(chunk_rows, group.rows - start)) for start in rows)
            return
        tops = list(dict.fromkeys(paths[name][0] for name in columns))
        part = self._table.select(tops).slice(self._starts[number], group.rows)
        for batch in exact_chunks(part.to_batches(max_chunksize=chunk_rows), chunk_rows):
            arrays = [leaf(batch, paths[name]) for name in columns]
            yield record_batch(arrays, columns, batch.num_rows)


def as_table(data: Any) -> pa.Table:
    """A pyarrow Table of anything tabular in memory; a pandas index is not a column."""
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if isinstance(data, list | tuple) and data and all(isinstance(batch, pa.RecordBatch) for batch in data):
        return pa.Table.from_batches(list(data))
    if isinstance(data, Mapping):
        return pa.table({name: _column(name, values) for name, values in data.items()})
    module = type(data).__module__.split(".")[0]
    if module == "pandas":
        return pa.Table.from_pandas(data, preserve_index=False)
    if module == "polars" or hasattr(data, "__arrow_c_stream__"):
        return pa.table(data)
    raise TypeError(
        f"a table must be a pyarrow Table, a RecordBatch or a list of them, a pandas or a polars frame, "
        f"or a dict of columns, got {type(data).__name__}"
    )


def _column(name: Any, values: Any) -> pa.Array | pa.ChunkedArray:
    """One column of a dict."""
    if not isinstance(name, str):
        raise TypeError(f"a column's name must be a string, got {name!r}")
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise TypeError(f"column {name!r} is {values!r}; it must have a value for each row, such as [{values!r}]")
    try:
        return values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)
    except (pa.ArrowException, TypeError) as error:
        raise ValueError(f"column {name!r} cannot be read: {error}") from None
