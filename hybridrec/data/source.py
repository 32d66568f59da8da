"""The contract of a source, and what all sources share: plain types, union schema, exactly sized chunks."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hybridrec.data.arrow_types import plain_type


class Group(NamedTuple):
    """A run of rows that is read as one: `index` counts within its file, `bytes` is its uncompressed size."""

    file: int
    index: int
    rows: int
    bytes: int


class BadFile(ValueError):
    """A file, or one of its row groups, that cannot be read as it should.

    >>> print(BadFile("clicks/a.parquet", "it is truncated", 3))
    clicks/a.parquet, row group 3: it is truncated; repair or remove the file, or pass on_bad_file="skip"
    """

    def __init__(self, file: str, reason: str, row_group: int | None = None) -> None:
        super().__init__(file, reason, row_group)
        self.file, self.reason, self.row_group = file, reason, row_group

    def __str__(self) -> str:
        return f'{self._what()}; repair or remove the file, or pass on_bad_file="skip"'

    @property
    def on_command_line(self) -> str:
        return f"{self._what()}; repair or remove the file; training can go without it: data.on_bad_file=skip"

    def _what(self) -> str:
        where = self.file if self.row_group is None else f"{self.file}, row group {self.row_group}"
        return f"{where}: {self.reason}"


class MissingFile(BadFile):
    """A file that is not there.

    >>> print(MissingFile("clicks.parquet", "the file does not exist (any more)"))
    clicks.parquet: the file does not exist (any more); check the path, or pass on_bad_file="skip"
    """

    def __str__(self) -> str:
        return f'{self._what()}; check the path, or pass on_bad_file="skip"'

    @property
    def on_command_line(self) -> str:
        return f"{self._what()}; check the path"


class Source(Protocol):
    """Files and their row groups, read as chunks: RecordBatches of `chunk_rows` rows, the last one shorter.

    A source is immutable, can be pickled, and its methods may be called by several threads at once. Its
    schema is the union of the columns over all files in plain types (no dictionaries, no large or view types,
    struct fields by dotted name). A chunk may carry a column dictionary-encoded, or with large offsets, where
    the file has it so; this can differ from group to group.
    """

    @property
    def schema(self) -> pa.Schema: ...
    @property
    def groups(self) -> list[Group]: ...
    @property
    def files(self) -> list[str]: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def bad(self) -> list[tuple[str, str]]: ...
    @property
    def left_out(self) -> dict[str, str]: ...
    def absent(self, file: int) -> set[str]:
        """Columns of the union schema that this file does not have."""
        ...

    def open(
        self, group: int, columns: Sequence[str], chunk_rows: int, column_threads: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """The chunks of one group: these columns, in this order."""
        ...

    def mask(self, group: int, where: pc.Expression) -> np.ndarray:
        """A bool for each row of the group: where the expression holds (null counts as False)."""
        ...

    def prune(self, where: pc.Expression) -> set[int]:
        """The groups that may hold a matching row, as far as their statistics tell."""
        ...

    def describe(self, group: int) -> str:
        """The group's name in messages."""
        ...


@dataclass(frozen=True, slots=True)
class Layout:
    """Leaf columns of a file: plain type and path through structs by dotted name; what stays out and why."""

    types: dict[str, pa.DataType]
    paths: dict[str, tuple[str, ...]]
    left_out: dict[str, str]


def layout(schema: pa.Schema) -> Layout:
    """Flatten structs to dotted names. A struct or map inside a list has no row-wise leaf, so it stays out.

    >>> layout(pa.schema({"user": pa.struct({"age": pa.int8()}), "id": pa.large_string()})).types
    {'user.age': DataType(int8), 'id': DataType(string)}
    """
    return _layout(schema.remove_metadata())


@functools.lru_cache(maxsize=64)
def _layout(schema: pa.Schema) -> Layout:
    found = Layout({}, {}, {})

    def visit(field: pa.Field, path: tuple[str, ...]) -> None:
        path = (*path, field.name)
        name, kind = ".".join(path), plain_type(field.type)
        if pa.types.is_struct(kind):
            for i in range(kind.num_fields):
                visit(kind.field(i), path)
        elif not name:
            found.left_out[name] = (
                "it has no name, as the index of a frame that was written as text; name it to read it"
            )
        elif name in found.types or name in found.left_out:
            raise ValueError(f"column {name!r} appears twice; column names must be unique, so rename one of them")
        elif reason := _no_leaf(kind):
            found.left_out[name] = reason
        else:
            found.types[name], found.paths[name] = kind, path

    for field in schema:
        visit(field, ())
    return found


def _no_leaf(kind: pa.DataType) -> str | None:
    if pa.types.is_map(kind):
        return f"{kind}: maps are not read; store keys and values as two list columns"
    if pa.types.is_struct(kind):
        return "a struct inside a list is not read; store each of its fields as a list column"
    if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        return _no_leaf(kind.value_type)
    return None


def leaf(batch: pa.RecordBatch, path: tuple[str, ...]) -> pa.Array:
    """One leaf column. A null struct gives null leaves; view, run-end and extension layouts are undone."""
    array = batch.column(batch.schema.get_field_index(path[0]))
    for name in path[1:]:
        array = pc.call_function("struct_field", [_storage(array)], pc.StructFieldOptions([name]))
    array = _storage(array)
    if pa.types.is_primitive(array.type):
        return array
    if pa.types.is_run_end_encoded(array.type):
        array = pc.call_function("run_end_decode", [array])
    if pa.types.is_list_view(array.type) or pa.types.is_large_list_view(array.type):
        array = _list_of_view(array)
    return array.cast(plain_type(array.type)) if "_view" in str(array.type) else array


def is_leaf(schema: pa.Schema, path: tuple[str, ...]) -> bool:
    """Whether the column is its own leaf: not inside a struct, and in no layout that must be undone."""
    kind = schema.field(path[0]).type
    if len(path) > 1 or isinstance(kind, pa.BaseExtensionType):
        return False
    return pa.types.is_primitive(kind) or not any(word in str(kind) for word in ("_view", "run_end", "extension"))


def _list_of_view(array: pa.Array) -> pa.Array:
    """A list view as a list; Arrow's own cast leaves out the last offset."""
    ends = np.cumsum(pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False))  # pyright: ignore[reportAttributeAccessIssue] (made at import)
    offsets = np.concatenate([[0], ends])
    small = offsets[-1] < 2**31
    mask = array.is_null() if array.null_count else None
    build = pa.ListArray if small else pa.LargeListArray
    return build.from_arrays(pa.array(offsets, pa.int32() if small else pa.int64()), array.flatten(), mask=mask)


def _storage(array: Any) -> Any:
    while isinstance(array, pa.ExtensionArray):
        array = array.storage
    return array


Merge = Callable[[pa.DataType, pa.DataType], pa.DataType | None]


def same_type(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    """The common type of a column of two files, or None; a column of untyped nulls fits any type."""
    if pa.types.is_null(second):
        return first
    return second if first == second or pa.types.is_null(first) else None


def union_schema(names: Sequence[str], layouts: Sequence[Layout], merge: Merge = same_type) -> pa.Schema:
    """All columns of all files in order of first appearance; files that disagree on a type are an error."""
    types: dict[str, pa.DataType] = {}
    first: dict[str, str] = {}
    last: Layout | None = None
    for file, found in zip(names, layouts, strict=True):
        if found is last:  # equal schemas share one Layout
            continue
        last = found
        for column, kind in found.types.items():
            common = merge(types[column], kind) if column in types else kind
            if common is None:
                raise ValueError(
                    f"{file}: column {column!r} is {kind}, but {first[column]} has it as {types[column]}; "
                    "files read together must agree: rewrite one of them or read them as two datasets"
                )
            if column not in types or pa.types.is_null(types[column]):
                first[column] = file
            types[column] = common
    return pa.schema(list(types.items()))


def record_batch(arrays: Sequence[pa.Array], names: Sequence[str], rows: int) -> pa.RecordBatch:
    """A RecordBatch that knows its rows even when it has no column."""
    if arrays:
        return pa.RecordBatch.from_arrays(list(arrays), names=list(names))
    return pa.RecordBatch.from_struct_array(pa.Array.from_buffers(pa.struct([]), rows, [None]))


def exact_chunks(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of exactly `rows`, the last one shorter; those of that size pass untouched."""
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        if not held and batch.num_rows == rows:
            yield batch
            continue
        start = 0
        while count + batch.num_rows - start >= rows:
            stop = start + rows - count
            held.append(batch.slice(start, stop - start))
            yield _concat(held)
            held, count, start = [], 0, stop
        if start < batch.num_rows:
            held.append(batch.slice(start))
            count += batch.num_rows - start
    if held:
        yield _concat(held)


def _concat(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(parts) == 1:
        return parts[0]
    arrays = [pa.concat_arrays([part.column(i) for part in parts]) for i in range(parts[0].num_columns)]
    return record_batch(arrays, parts[0].schema.names, sum(part.num_rows for part in parts))


def check_columns(columns: Sequence[str], schema: pa.Schema, left_out: dict[str, str]) -> None:
    """An unknown column is an error that lists the known ones."""
    known = set(schema.names)
    for name in columns:
        if name in known:
            continue
        if name in left_out:
            raise ValueError(f"column {name!r} cannot be read: {left_out[name]}")
        raise ValueError(f"unknown column {name!r}; the columns are {', '.join(schema.names)}")


def fingerprint(parts: Iterable[Any]) -> str:
    """A short hash of what identifies the data."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(repr(part).encode() + b"\n")
    return digest.hexdigest()
