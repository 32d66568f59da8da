"""Parquet files as a source: footers shared, row groups streamed, strings by dictionary where it pays."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from hybridrec.data.file_source import INDEX_THREADS, Contents, FileSource, Reading
from hybridrec.data.files import File
from hybridrec.data.source import Group, layout
from hybridrec.data.where import filter_columns

FOOTER_BUDGET = 64 << 20  # bytes of footers that stay in memory; the others are read again with their groups
READ_AHEAD = 4 << 20  # bytes of read buffers for one open group, shared by its columns
DICTIONARY_LIMIT = 5 << 18  # writers give up on a dictionary page at 1 MiB; some slack for page headers


class ParquetSource(FileSource):
    """Parquet files, read one row group at a time in chunks, only the columns asked for.

    Strings arrive dictionary-encoded where the file has them so. Local files are streamed through small
    buffers, so that a row group of any size needs little memory; of remote files, a row group's columns are
    fetched ahead at once.

    >>> import pyarrow as pa, pyarrow.parquet as pq, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> pq.write_table(pa.table({"user": [1, 2, 3], "tags": [[1], [], [2, 3]]}), f"{folder}/a.parquet")
    >>> source = ParquetSource(folder)
    >>> [chunk.num_rows for chunk in source.open(0, ["tags"], chunk_rows=2)]
    [2, 1]
    """

    suffixes = (".parquet", ".parq", ".pq")

    def __init__(self, paths: Any, **options: Any) -> None:
        super().__init__(paths, **options)
        spent, kept = 0, []
        for contents in self._contents:
            spent += contents.footer.serialized_size
            slim = Contents(contents.layout, contents.groups, contents.size)
            kept.append(contents if spent <= FOOTER_BUDGET else slim)
        self._contents = kept

    def prune(self, where: pc.Expression) -> set[int]:
        """The groups that may hold a matching row, by the statistics in the footers and the folder values."""
        filter_columns(where, self.schema)
        with ThreadPoolExecutor(min(INDEX_THREADS, len(self.files))) as pool:
            possible = list(pool.map(lambda file: self._possible(file, where), range(len(self.files))))
        return {
            number
            for number, group in enumerate(self.groups)
            if (indices := possible[group.file]) is None or group.index in indices
        }

    def _possible(self, number: int, where: pc.Expression) -> set[int] | None:
        """Row groups of one file that may match; None where statistics cannot tell."""
        file = self._files[number]
        folders = [
            pc.field(name) == values[number] if values[number].is_valid else pc.field(name).is_null()
            for name, values in self._constants.items()
            if number in values
        ]
        known = functools.reduce(operator.and_, folders) if folders else None

        def subset() -> set[int]:
            fragment = ds.ParquetFileFormat().make_fragment(file.path, file.filesystem, partition_expression=known)
            schema = fragment.physical_schema
            for field in self.schema:
                if field.name not in schema.names:
                    schema = schema.append(field)
            return {group.id for group in fragment.subset(where, schema=schema).row_groups}

        try:
            return self.retry.call(subset, local=file.local)
        except (OSError, pa.ArrowException):
            return None  # pruning only saves work; what is wrong with the file shows when its group is read

    def _index(self, file: File) -> Contents:
        with file.filesystem.open_input_file(file.path) as handle:
            parquet = pq.ParquetFile(handle, pre_buffer=False)
            footer, size = parquet.metadata, handle.size()
            columns = layout(parquet.schema_arrow)
        groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
        sizes = [(i, group.num_rows, group.total_byte_size) for i, group in enumerate(groups)]
        return Contents(columns, sizes, size, footer)

    def _batches(self, group: Group, columns: list[str], reading: Reading) -> Iterator[pa.RecordBatch]:
        file, contents = self._files[group.file], self._contents[group.file]
        with self._opened(group) as handle:
            footer = contents.footer or pq.read_metadata(handle)
            encoded = _dictionary_paths(footer, group.index, set(columns)) if reading.dictionaries else []
            parquet = pq.ParquetFile(
                handle,
                metadata=footer,
                read_dictionary=encoded,
                pre_buffer=not file.local,
                buffer_size=max(64 << 10, min(1 << 20, READ_AHEAD // max(len(columns), 1))) if file.local else 0,
            )
            yield from parquet.iter_batches(
                reading.chunk_rows, row_groups=[group.index], columns=columns, use_threads=reading.threads
            )


def _dictionary_paths(footer: pq.FileMetaData, index: int, columns: set[str]) -> list[str]:
    """Paths of the string and binary columns that are dictionary-encoded throughout this row group.

    Where a writer gave up on the dictionary midway, Arrow would rebuild one by hashing every value and hand
    it out again, grown, with each batch: such columns are read plain. In the footer only their size shows it.
    """
    group, paths = footer.row_group(index), []
    for i in range(group.num_columns):
        column = group.column(i)
        path = column.path_in_schema
        if column.physical_type != "BYTE_ARRAY" or not (path in columns or _leaf_name(path) in columns):
            continue
        if footer.schema.column(i).converted_type not in ("UTF8", "NONE", "ENUM"):
            continue
        indices = column.num_values * (column.num_values.bit_length() + 4) // 8  # and the levels of lists
        whole = column.total_uncompressed_size <= DICTIONARY_LIMIT + indices
        if whole and any("DICTIONARY" in encoding for encoding in column.encodings):
            paths.append(path)
    return paths


def _leaf_name(path: str) -> str:
    """The leaf that a column's path belongs to: "user.tags.list.element" is "user.tags"."""
    while path.endswith((".list.element", ".list.item", ".bag.array_element", ".array")):
        path = path.rsplit(".", 1 if path.endswith(".array") else 2)[0]
    return path
