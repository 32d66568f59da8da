"""Text logs -> Parquet: `convert`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.parquet as pq

from hybridrec.data.convert.delimited import (
    DelimitedReader,
    criteo_layout,
    csv_layout,
    tsv_layout,
    with_names,
)
from hybridrec.data.convert.libsvm import LibsvmReader
from hybridrec.data.convert.problems import POLICIES, Problems
from hybridrec.data.convert.values import type_named
from hybridrec.data.files import File, find_files
from hybridrec.data.output import atomic_file, check_compression, check_no_input
from hybridrec.data.rechunk import Rows

__all__ = ["FORMATS", "POLICIES", "Options", "Summary", "convert", "type_named"]

FORMATS = ("csv", "tsv", "criteo", "libsvm")
_SUFFIXES = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".libsvm": "libsvm",
    ".svm": "libsvm",
    ".svmlight": "libsvm",
}
_CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}


@dataclass(frozen=True)
class Options:
    """How to read the text and write the Parquet; the defaults suit most files."""

    columns: tuple[str, ...] | None = None  # names for files without a header line (csv, tsv)
    types: dict[str, pa.DataType] | None = None  # instead of the inferred ones
    list_separator: str = "|"  # between the elements of columns whose type is list<...>
    on_error: str = "error"  # or "skip": malformed lines are counted
    row_group_rows: int = 131_072
    compression: str = "zstd"


@dataclass(frozen=True)
class Summary:
    """What was written; `examples` are the first few of the skipped lines."""

    rows: int
    skipped: int
    examples: tuple[str, ...]
    inputs: tuple[str, ...]
    output: str
    bytes: int
    schema: pa.Schema


def convert(
    inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    format: str | None = None,
    options: Options | None = None,
    force: bool = False,
    progress: Callable[[int, int, int], None] | None = None,
) -> Summary:
    """Convert CSV, TSV, Criteo or libsvm text (plain, .gz, .bz2, .zst, .lz4) to one Parquet file.

    Files are read in the order given, in bounded memory. Types come from the first block of the first file.
    The output appears whole or not at all. `progress` is called with (bytes read, bytes in all, rows).

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> with open(folder + "/a.csv", "w") as file:
    ...     _ = file.write("user,price\\n1,2.5\\n2,\\n")
    >>> convert(folder + "/a.csv", folder + "/a.parquet").rows
    2
    """
    options = options or Options()
    if options.row_group_rows < 1:
        raise ValueError(f"row_group_rows={options.row_group_rows} must be at least 1")
    files = find_files(inputs, suffixes=tuple(s + c for s in (*_SUFFIXES, ".txt") for c in ("", *_CODECS)), hive=False)
    kind = format or _format_of([file.path for file in files])
    if kind not in FORMATS:
        raise ValueError(f"format {kind!r} is not one of {', '.join(FORMATS)}")
    if kind in ("criteo", "libsvm") and options.columns:
        raise ValueError(f"the columns of {kind} have fixed names; leave --columns (columns=) out")
    if kind == "libsvm" and options.types:
        raise ValueError("the columns of libsvm have fixed types; leave --types (types=) out")
    problems = Problems(options.on_error)
    check_compression(options.compression)
    check_no_input(output, (file.path for file in files if file.local))
    reader = _reader(kind, options)
    with atomic_file(output, force) as temporary:
        sizes = [_size(file) for file in files]
        meter = _Meter(progress, sum(sizes))
        rows = _write(temporary, reader, _read(files, sizes, reader, problems, meter), options, meter)
        size = temporary.stat().st_size
    names = tuple(file.name for file in files)
    return Summary(rows, problems.count, tuple(problems.examples), names, str(output), size, reader.finish())


def _reader(kind: str, options: Options) -> DelimitedReader | LibsvmReader:
    if kind == "libsvm":
        return LibsvmReader()
    layout = {"csv": csv_layout, "tsv": tsv_layout, "criteo": criteo_layout}[kind]()
    return DelimitedReader(with_names(layout, options.columns), options.types or {}, options.list_separator)


def _format_of(paths: list[str]) -> str:
    """The format that the file names tell."""
    kinds = {}
    for path in paths:
        stem, suffix = os.path.splitext(path.lower())
        if suffix in _CODECS:
            suffix = os.path.splitext(stem)[1]
        kinds.setdefault(_SUFFIXES.get(suffix), path)
    if None in kinds or len(kinds) > 1:
        what = f"{kinds[None]} does not tell its format by its name" if None in kinds else "the files differ in format"
        raise ValueError(f"{what}; pass --format (format=) with one of {', '.join(FORMATS)}")
    return cast(str, kinds.popitem()[0])


class _Meter:
    """Bytes read and rows written so far."""

    def __init__(self, progress: Callable[[int, int, int], None] | None, total: int) -> None:
        self.progress, self.total = progress, total
        self.bytes = self.rows = 0

    def tell(self) -> None:
        if self.progress is not None:
            self.progress(min(self.bytes, self.total), self.total, self.rows)


def _size(file: File) -> int:
    info = file.filesystem.get_file_info(file.path)
    if not info.is_file:
        raise FileNotFoundError(f"{file.name} does not exist")
    return info.size or 0


def _open(file: File) -> tuple[Any, BinaryIO]:
    """(the raw file, whose position is the progress, and the text inside it)."""
    raw = file.filesystem.open_input_file(file.path)
    codec = _CODECS.get(os.path.splitext(file.path.lower())[1])
    return raw, cast(BinaryIO, pa.CompressedInputStream(raw, codec) if codec else raw)


def _read(
    files: list[File],
    sizes: list[int],
    reader: DelimitedReader | LibsvmReader,
    problems: Problems,
    meter: _Meter,
) -> Iterator[pa.RecordBatch]:
    before = 0
    for file, size in zip(files, sizes, strict=True):
        raw, stream = _open(file)
        with raw:
            batches = reader.read(file.name, lambda file=file: _open(file)[1], stream, problems)
            try:
                for batch in batches:
                    meter.bytes = before + raw.tell()
                    yield batch
            except OSError as error:
                raise OSError(f"{file.name}: {error}") from None
        before += size
        meter.bytes = before


def _write(
    path: os.PathLike[str],
    reader: DelimitedReader | LibsvmReader,
    batches: Iterator[pa.RecordBatch],
    options: Options,
    meter: _Meter,
) -> int:
    """Write exact row groups; the schema is known once the first batch is read."""
    source = Rows(batches)
    group = source.take(options.row_group_rows)
    with pq.ParquetWriter(path, reader.finish(), compression=options.compression) as writer:
        while group is not None:
            writer.write_batch(group, row_group_size=options.row_group_rows)
            meter.rows += group.num_rows
            meter.tell()
            group = source.take(options.row_group_rows)
    meter.tell()
    return meter.rows
