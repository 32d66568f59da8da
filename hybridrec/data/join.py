"""Columns of an in-memory table appended to every chunk by key: user and item features, histories."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hybridrec.data.arrow_types import is_text, is_whole, without_dictionary, without_views
from hybridrec.data.hashing import as_int64, hash_array


class KeyIndex:
    """Where each of some unique keys stands: sorted once, then found by binary search.

    Whole numbers are compared by value, whatever their width or sign. Strings are found by their XXH64 and
    then compared byte for byte; the seed is one under which the keys do not collide.

    >>> KeyIndex(pa.array(["x", "y"])).find(pa.array(["y", None, "z"])).tolist()
    [1, -1, -1]
    """

    def __init__(self, keys: pa.Array) -> None:
        keys = keys.dictionary_decode() if pa.types.is_dictionary(keys.type) else keys
        self.type = keys.type
        self._seed = 0
        if keys.null_count:
            raise ValueError(f"{keys.null_count} of {len(keys)} keys are null; drop those rows first")
        if is_text(keys.type):
            self._bytes = keys.cast(pa.large_binary())
            values = self._hashed_without_collisions()
        elif is_whole(keys.type):
            values = _whole(keys)
            _refuse_duplicates(keys, values)
        else:
            raise TypeError(f"keys of type {keys.type} cannot be looked up; use integers or strings")
        self._order = np.argsort(values, kind="stable")
        self._sorted = values[self._order]

    def __len__(self) -> int:
        return len(self._order)

    def matches(self, kind: pa.DataType) -> bool:
        """Whether values of this type can be looked up: text among text, numbers among numbers."""
        kind = without_dictionary(kind)
        return pa.types.is_null(kind) or (is_text(kind) if is_text(self.type) else is_whole(kind))

    def find(self, array: pa.Array) -> np.ndarray:
        """Position of each value among the keys, int64; -1 where it is null or not there."""
        kind = array.type
        if pa.types.is_dictionary(kind):
            if len(array.dictionary) > len(array):
                return self.find(array.dictionary_decode())
            slots = array.indices.cast(pa.int64()).fill_null(-1).to_numpy()
            return np.append(self.find(array.dictionary), -1)[slots]
        if not self.matches(kind):
            raise TypeError(f"values of type {kind} cannot match keys of type {self.type}; cast one of them")
        if pa.types.is_null(kind) or not len(self):
            return np.full(len(array), -1, np.int64)
        if is_text(kind):
            array = array.cast(without_views(kind))
            return self._verified(array, self._search(hash_array(array, self._seed), np.dtype(np.int64)))
        return self._search(array, self._sorted.dtype)

    def _search(self, array: pa.Array, dtype: np.dtype) -> np.ndarray:
        """Binary search of whole numbers among the sorted ones."""
        values = _whole(array.fill_null(pa.scalar(0, pa.int64()).cast(array.type)) if array.null_count else array)
        fits = np.ones(len(values), bool)
        if values.dtype != dtype:  # one side is uint64: beyond the other's range nothing matches
            fits = values <= np.uint64(2**63 - 1) if values.dtype == np.uint64 else values >= 0
            values = values.astype(dtype)
        if array.null_count:
            fits &= array.is_valid().to_numpy(zero_copy_only=False)
        at = np.minimum(np.searchsorted(self._sorted, values), len(self) - 1)
        return np.where(fits & (self._sorted[at] == values), self._order[at], -1)

    def _verified(self, array: pa.Array, found: np.ndarray) -> np.ndarray:
        """Matches by hash, less those whose bytes differ."""
        rows = np.flatnonzero(found >= 0)
        mine, theirs = (
            self._bytes.take(pa.array(found[rows])),
            array.take(pa.array(rows)).cast(pa.large_binary()),
        )
        found[rows[~pc.equal(mine, theirs).to_numpy(zero_copy_only=False)]] = -1  # pyright: ignore[reportAttributeAccessIssue] (made at import)
        return found

    def _hashed_without_collisions(self) -> np.ndarray:
        for seed in count():
            hashes = hash_array(self._bytes, seed).to_numpy()
            if seed == 0 and len(np.unique(hashes)) < len(hashes):
                _refuse_duplicates(self._bytes, self._bytes.dictionary_encode().indices.to_numpy())
            if len(np.unique(hashes)) == len(hashes):
                self._seed = seed
                return hashes
        raise AssertionError("unreachable: seeds do not run out")


class Join:
    """Append a table's columns to each chunk, matched on a key column that both have.

    Keys are integers or strings, unique and not null in the table; a row without a match gets nulls, which
    then follow the null policy of each feature. `prefix` goes before the names of the new columns.

    >>> join = Join(pa.table({"user": [7, 8], "age": [30, 40]}), on="user", prefix="user_")
    >>> join(pa.record_batch({"user": [8, 9]})).to_pydict()
    {'user': [8, 9], 'user_age': [40, None]}
    """

    def __init__(self, table: Any, on: str, prefix: str = "") -> None:
        if not isinstance(table, pa.Table):
            if not hasattr(table, "__arrow_c_stream__") and not hasattr(table, "__arrow_c_array__"):
                raise TypeError(f"join needs an Arrow table or a frame that exports one, not {type(table).__name__}")
            table = pa.table(table)
        if on not in table.column_names:
            raise ValueError(f"the table has no key column {on!r}; it has {_listed(table.column_names)}")
        if len(table.column_names) != len(set(table.column_names)):
            raise ValueError(f"the table repeats a column name: {_listed(table.column_names)}; rename one")
        self.on = on
        self.prefix = prefix
        plain = pa.schema([f.with_type(without_views(f.type)) for f in table.schema], table.schema.metadata)
        table = (table if plain == table.schema else table.cast(plain)).unify_dictionaries()
        self._fields = [f.with_name(prefix + f.name).with_nullable(True) for f in table.schema if f.name != on]
        self._columns = [_one_array(table[f.name]) for f in table.schema if f.name != on]
        try:
            self._index = KeyIndex(_one_array(table[on]))
        except (TypeError, ValueError) as error:
            raise type(error)(f"key column {on!r} of the joined table: {error}") from None

    def __repr__(self) -> str:
        prefix = f", prefix={self.prefix!r}" if self.prefix else ""
        return f"Join({len(self._index):,} rows of {_listed(self.columns)}, on={self.on!r}{prefix})"

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that the join appends."""
        return tuple(field.name for field in self._fields)

    def output(self, schema: pa.Schema) -> pa.Schema:
        """The schema after the join; an absent key, one of another kind or a taken name is an error."""
        if self.on not in schema.names:
            raise ValueError(f"the data has no key column {self.on!r}; it has {_listed(schema.names)}")
        key = schema.field(self.on).type
        if not self._index.matches(key):
            raise TypeError(f"key {self.on!r} is {key} in the data and {self._index.type} in the table; cast one")
        taken = sorted(set(self.columns) & set(schema.names))
        if taken:
            raise ValueError(f"the data already has {_listed(taken)}; pass prefix= to rename the joined columns")
        return pa.schema([*schema, *self._fields], schema.metadata)

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        schema = self.output(batch.schema)
        found = self._index.find(batch.column(self.on))
        rows = pa.array(found, mask=found < 0)
        return pa.RecordBatch.from_arrays([*batch.columns, *(c.take(rows) for c in self._columns)], schema=schema)


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.array([], column.type)])


def _whole(array: pa.Array) -> np.ndarray:
    """Whole numbers as int64, or as uint64 where they are stored so."""
    if pa.types.is_uint64(array.type):
        return array.to_numpy()
    return as_int64(array).to_numpy()


def _refuse_duplicates(keys: pa.Array, values: np.ndarray) -> None:
    """Raise if a value occurs twice."""
    ordered = np.sort(values)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(twice):
        rows = np.flatnonzero(values == twice[0])
        key = keys[int(rows[0])].as_py()
        key = key.decode(errors="backslashreplace") if isinstance(key, bytes) else key
        raise ValueError(f"key {key!r} occurs {len(rows)} times (rows {rows[0]}, {rows[1]}, ...); keys must be unique")


def _listed(names: Any) -> str:
    return ", ".join(map(repr, names)) or "no columns"
