"""What all sources of files do alike: index in parallel, union, constants, retries, errors with a name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hybridrec.data.files import File, Retry, find_files
from hybridrec.data.source import (
    BadFile,
    Group,
    Layout,
    MissingFile,
    check_columns,
    exact_chunks,
    fingerprint,
    is_leaf,
    leaf,
    record_batch,
    same_type,
    union_schema,
)
from hybridrec.data.where import evaluate, filter_columns
from hybridrec.remedy import remedied

MASK_ROWS = 65_536
INDEX_THREADS = 16


@dataclass(frozen=True, slots=True)
class Contents:
    """What the index pass learns about one file: columns, (index, rows, bytes) of each group, size."""

    layout: Layout
    groups: list[tuple[int, int, int]]
    size: int
    footer: Any = None


@dataclass(frozen=True, slots=True)
class Reading:
    """How one group is to be read."""

    columns: list[str]
    chunk_rows: int
    threads: bool
    dictionaries: bool


class FileSource(ABC):
    """The base of sources that read files; a format adds `_index` (one file) and `_batches` (one group)."""

    suffixes: tuple[str, ...]

    def __init__(
        self,
        paths: Any,
        *,
        filesystem: Any = None,
        hive: bool = True,
        on_bad_file: str = "error",
        retry: Retry | None = None,
    ) -> None:
        if on_bad_file not in ("error", "skip"):
            raise ValueError(f'on_bad_file={on_bad_file!r}; the choices are "error" and "skip"')
        self.retry = retry or Retry()
        found = find_files(paths, self.suffixes, filesystem, hive, self.retry)
        self.bad: list[tuple[str, str]] = []
        self._files: list[File] = []
        self._contents: list[Contents] = []
        for file, contents in zip(found, self._index_all(found), strict=True):
            if isinstance(contents, Contents):
                self._files.append(file)
                self._contents.append(contents)
            elif on_bad_file == "error":
                raise contents
            else:
                self.bad.append((file.name, contents.reason))
        if not self._files:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in self.bad[:3])
            raise ValueError(f"none of {len(self.bad)} files can be read ({reasons}); check the path and the format")
        self.files = [file.name for file in self._files]
        self.groups = [
            Group(number, index, rows, size)
            for number, contents in enumerate(self._contents)
            for index, rows, size in contents.groups
            if rows
        ]
        self.left_out = {name: why for contents in self._contents for name, why in contents.layout.left_out.items()}
        self._constants = _typed_constants(self._files)
        self.schema = self._union()
        self.fingerprint = self._fingerprint()

    def __repr__(self) -> str:
        rows = sum(group.rows for group in self.groups)
        return f"{type(self).__name__}(files={len(self.files)}, groups={len(self.groups)}, rows={rows:,})"

    def absent(self, file: int) -> set[str]:
        """Columns of the union schema that this file does not have, or has only as untyped nulls."""
        here = {name for name, kind in self._contents[file].layout.types.items() if not pa.types.is_null(kind)}
        constants = {name for name, values in self._constants.items() if file in values}
        return set(self.schema.names) - here - constants

    def describe(self, group: int) -> str:
        """The group's name in messages."""
        return f"{self.files[self.groups[group].file]}, row group {self.groups[group].index}"

    def open(
        self, group: int, columns: Sequence[str], chunk_rows: int, column_threads: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """The chunks of one group; a transient error reopens it and goes on with the chunk that failed."""
        check_columns(columns, self.schema, self.left_out)
        if chunk_rows < 1:
            raise ValueError(f"chunk_rows={chunk_rows}; a chunk must hold at least 1 row")
        return self._chunks(group, Reading(list(columns), chunk_rows, column_threads, True))

    def mask(self, group: int, where: pc.Expression) -> np.ndarray:
        """A bool for each row of the group; only the filter's columns are read."""
        columns = filter_columns(where, self.schema)
        plain = pa.schema([self.schema.field(name) for name in columns])
        keep = [
            evaluate(where, chunk.cast(plain) if columns else chunk)
            for chunk in self._chunks(group, Reading(columns, MASK_ROWS, False, False))
        ]
        return np.concatenate(keep)

    def prune(self, where: pc.Expression) -> set[int]:
        """The groups that may hold a matching row: all, where the format has no statistics."""
        filter_columns(where, self.schema)
        return set(range(len(self.groups)))

    @abstractmethod
    def _index(self, file: File) -> Contents:
        """Read what is needed to know the file's columns and groups."""

    @abstractmethod
    def _batches(self, group: Group, columns: list[str], reading: Reading) -> Iterator[pa.RecordBatch]:
        """Batches of any size that hold at least these columns of the file; structs are not yet flattened."""

    @contextmanager
    def _opened(self, group: Group) -> Iterator[pa.NativeFile]:
        """The file of a group, which must have the size that it had when it was indexed."""
        file, size = self._files[group.file], self._contents[group.file].size
        with file.filesystem.open_input_file(file.path) as handle:
            if handle.size() != size:
                told = f"it had {size} bytes when indexed, now it has {handle.size()}"
                raise BadFile(file.name, told, group.index)
            yield handle

    def _merge(self, first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
        """The common type of a column in two files, or None when they disagree."""
        return same_type(first, second)

    def _index_all(self, files: list[File]) -> list[Contents | BadFile]:
        with ThreadPoolExecutor(min(INDEX_THREADS, len(files)), thread_name_prefix="hybridrec-index") as pool:
            return list(pool.map(self._index_one, files))

    def _index_one(self, file: File) -> Contents | BadFile:
        try:
            contents = self.retry.call(lambda: self._index(file), local=file.local)
        except BadFile as error:
            return error
        except (OSError, ValueError, pa.ArrowException) as error:
            kind = MissingFile if isinstance(error, FileNotFoundError) else BadFile
            return kind(file.name, _reason(error))
        if not contents.layout.types and not contents.layout.left_out:
            return BadFile(file.name, "the file has no columns")
        return contents

    def _union(self) -> pa.Schema:
        schema = union_schema(self.files, [contents.layout for contents in self._contents], self._merge)
        for name, values in self._constants.items():
            if name in schema.names:
                raise remedied(
                    ValueError,
                    f"{name!r} is a column of the files and a folder ({name}=...) above them",
                    call="pass hive=False to take the files' column",
                    setting="rename the folder, or the column",
                )
            schema = schema.append(pa.field(name, next(iter(values.values())).type))
        return schema

    def _fingerprint(self) -> str:
        names = [(file.path.rsplit("/", 1)[-1], sorted(file.constants.items())) for file in self._files]
        return fingerprint(
            [names, [tuple(group) for group in self.groups], [f"{f.name}: {f.type}" for f in self.schema]]
        )

    def _chunks(self, number: int, reading: Reading) -> Iterator[pa.RecordBatch]:
        group = self.groups[number]
        file, contents = self._files[group.file], self._contents[group.file]
        missing = self.absent(group.file)
        present = [
            name for name in dict.fromkeys(reading.columns) if name in contents.layout.paths and name not in missing
        ]
        done = failures = 0
        while True:
            rows = 0
            try:
                finish = self._finisher(group.file, reading.columns, set(present))
                batches = exact_chunks(self._batches(group, present, reading), reading.chunk_rows)
                for position, batch in enumerate(batches):
                    rows += batch.num_rows
                    if position >= done:
                        yield finish(batch)
                        done, failures = position + 1, 0
                if rows != group.rows:
                    raise BadFile(file.name, f"{rows} rows were read, {group.rows} are announced", group.index)
                return
            except (pa.ArrowMemoryError, pa.ArrowCancelled):
                raise
            except (OSError, pa.ArrowException) as error:
                if not self.retry.again(error, failures, file.local):
                    _fail(file, group, error)
                failures += 1

    def _finisher(self, file: int, columns: list[str], present: set[str]) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        """File batch -> chunk: leaves in order, absent columns as nulls, folder values as constants."""
        paths = self._contents[file].layout.paths

        def column(name: str, batch: pa.RecordBatch) -> pa.Array:
            if name in present:
                return leaf(batch, paths[name])
            constant = self._constants.get(name, {}).get(file)
            if constant is not None:
                return pa.repeat(constant, batch.num_rows)
            return pa.nulls(batch.num_rows, self.schema.field(name).type)

        def finish(batch: pa.RecordBatch) -> pa.RecordBatch:
            if columns and all(name in present and is_leaf(batch.schema, paths[name]) for name in columns):
                return batch.select(columns)
            return record_batch([column(name, batch) for name in columns], columns, batch.num_rows)

        return finish


def _typed_constants(files: list[File]) -> dict[str, dict[int, pa.Scalar]]:
    """Folder values by column and file: int64 where all values are whole numbers, else strings."""
    columns: dict[str, dict[int, str | None]] = {}
    for number, file in enumerate(files):
        for name, value in file.constants.items():
            columns.setdefault(name, {})[number] = value
    typed = {}
    for name, values in columns.items():
        texts = [value for value in values.values() if value is not None]
        whole = bool(texts) and all(_is_whole(text) for text in texts)
        kind = pa.int64() if whole else pa.string()
        typed[name] = {
            number: pa.scalar(int(text) if whole and text is not None else text, kind)
            for number, text in values.items()
        }
    return typed


def _is_whole(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit() and len(digits) <= 18


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "the file does not exist (any more)"
    return " ".join(str(error).split()).rstrip(".")


def _fail(file: File, group: Group, error: Exception) -> NoReturn:
    raise BadFile(file.name, _reason(error), group.index) from error
