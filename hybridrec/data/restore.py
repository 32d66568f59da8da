"""Lists taken apart and put together, and deduplicated blocks of rows restored by gather."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa


@dataclass(frozen=True)
class Restore:
    """Rows out of deduplicated blocks: unique key rows plus, per output row, the index of the one to take.

    A stored row is a block and every column a list. `groups` pairs each index column with its value columns,
    which hold the block's unique rows; other columns hold one item per output row. Index columns are dropped.
    A null list (a column that the file lacks) stands for null in each of the block's rows.

    >>> blocks = pa.record_batch({"at": [[0, 1, 0]], "age": [[30, 40]], "click": [[1, 0, 1]]})
    >>> Restore((("at", ("age",)),))(blocks).to_pydict()
    {'age': [30, 40, 30], 'click': [1, 0, 1]}
    """

    groups: tuple[tuple[str, tuple[str, ...]], ...]

    def __init__(self, groups: Iterable[tuple[str, Sequence[str]]]) -> None:
        pairs = [(index, (values,) if isinstance(values, str) else tuple(values)) for index, values in groups]
        object.__setattr__(self, "groups", tuple(pairs))
        if not pairs:
            raise ValueError("restore needs at least one (index column, value columns) group")
        names = [name for index, values in pairs for name in (index, *values)]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(
                    f"column {name!r} stands twice in the groups of restore; it can have one role"
                )
        for index, values in pairs:
            if not values:
                raise ValueError(f"index column {index!r} has no value columns; name those that it restores")

    @staticmethod
    def rows(index: pa.Array) -> np.ndarray:
        """Output rows of each block, from an index column alone, int64."""
        if not is_list(index.type) or not pa.types.is_integer(index.type.value_type):
            raise TypeError(f"an index column is a list of integers, not {index.type}")
        nulls = null_mask(index)
        if nulls is not None:
            raise ValueError(f"block {np.argmax(nulls)} has a null index list; every block needs one")
        return np.diff(unnest(index)[1])

    def needs(self, columns: Sequence[str]) -> list[str]:
        """Stored columns to read for these output columns: themselves and the index columns they stand on."""
        used = [index for index, values in self.groups if set(values) & set(columns)]
        return [*columns, *(used or [self.groups[0][0]])]

    def output(self, schema: pa.Schema) -> pa.Schema:
        """The schema of the rows, for a schema of blocks that has every column of the groups."""
        for name in (name for index, values in self.groups for name in (index, *values)):
            if name not in schema.names:
                raise ValueError(
                    f"no column {name!r} to restore; the data has {', '.join(map(repr, schema.names))}"
                )
        return self._row_schema(schema)

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        schema = self._row_schema(batch.schema)
        have = set(batch.schema.names)
        present = [group for group in self.groups if group[0] in have]
        for index, values in self.groups:
            if index not in have and have & set(values):
                raise ValueError(
                    f"index column {index!r} of {', '.join(values)} was not read; see Restore.needs"
                )
        if not present:
            raise ValueError(
                f"no index column was read; one of {', '.join(g[0] for g in self.groups)} is needed"
            )
        first = present[0][0]
        counts = self.rows(batch.column(first))
        columns: dict[str, pa.Array] = {}
        for index, values in present:
            at = batch.column(index)
            _agree(index, self.rows(at), f"index column {first!r} has", counts)
            picks = _whole_items(index, at)
            lists = {name: unnest(batch.column(name)) for name in values if name in have}
            _agree_on_unique_rows(lists)
            for name, (items, offsets, valid) in lists.items():
                _check_range(index, name, picks, counts, np.diff(offsets), valid)
                places = np.repeat(offsets[:-1], counts) + picks
                columns[name] = _gather(items, places, counts, valid)
        for name in schema.names:
            if name not in columns:
                items, offsets, valid = unnest(batch.column(name))
                _agree(name, np.diff(offsets), f"index column {first!r} has", counts, valid)
                columns[name] = (
                    items
                    if valid is None
                    else _gather(items, ranges(offsets[:-1], offsets_of(counts)), counts, valid)
                )
        return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)

    def _row_schema(self, schema: pa.Schema) -> pa.Schema:
        dropped = {index for index, _ in self.groups}
        kept = [field for field in schema if field.name not in dropped]
        for field in kept:
            if not is_list(field.type):
                raise TypeError(
                    f"column {field.name!r} is {field.type}; in deduplicated data every column is a list"
                )
        return pa.schema([f.with_type(f.type.value_type).with_nullable(True) for f in kept], schema.metadata)


def is_list(kind: pa.DataType) -> bool:
    """Whether a type is a list, large list or fixed-size list."""
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def unnest(array: pa.Array) -> tuple[pa.Array, np.ndarray, np.ndarray | None]:
    """A list array as its items, int64 offsets from 0 into them, and which rows are valid (None: all).

    Slices are honoured, and items hidden under null rows are left out, so no one computes on garbage.
    """
    nulls = null_mask(array)
    valid = None if nulls is None else ~nulls
    if not len(array):
        return array.values.slice(0, 0), np.zeros(1, np.int64), None
    if pa.types.is_fixed_size_list(array.type):
        lengths = np.full(len(array), array.type.list_size, np.int64)
        return array.flatten(), offsets_of(lengths if valid is None else lengths * valid), valid
    offsets = array.offsets.to_numpy().astype(np.int64)
    if valid is not None and np.diff(offsets)[nulls].any():
        return array.flatten(), offsets_of(np.diff(offsets) * valid), valid
    return array.values.slice(offsets[0], offsets[-1] - offsets[0]), offsets - offsets[0], valid


def renest(kind: pa.DataType, items: pa.Array, offsets: np.ndarray, valid: np.ndarray | None) -> pa.Array:
    """The reverse of unnest, as a list of type `kind`."""
    rows = len(offsets) - 1
    bits = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    if pa.types.is_fixed_size_list(kind):
        if valid is not None:  # null rows need slots of their own
            slots = np.repeat(valid, kind.list_size)
            items = items.take(pa.array(np.cumsum(slots) - 1, mask=~slots))
        return pa.Array.from_buffers(kind, rows, [bits], children=[items])
    if pa.types.is_list(kind):
        if offsets[-1] > np.iinfo(np.int32).max:
            raise ValueError(
                f"{offsets[-1]} items do not fit in one {kind}; use smaller chunks or large_list"
            )
        offsets = offsets.astype(np.int32)
    return pa.Array.from_buffers(kind, rows, [bits, pa.py_buffer(offsets)], children=[items])


def ranges(starts: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """starts[i], starts[i] + 1, ... for each i, as many as offsets[i] .. offsets[i + 1] spans."""
    return np.repeat(starts - offsets[:-1], np.diff(offsets)) + np.arange(offsets[-1])


def offsets_of(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def null_mask(array: pa.Array) -> np.ndarray | None:
    return array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None


def _gather(items: pa.Array, places: np.ndarray, counts: np.ndarray, valid: np.ndarray | None) -> pa.Array:
    """Items at these places, null in blocks that are null."""
    return items.take(pa.array(places, mask=None if valid is None else np.repeat(~valid, counts)))


def _whole_items(name: str, index: pa.Array) -> np.ndarray:
    """The indices of all blocks in one int64 array."""
    items, offsets, _ = unnest(index)
    nulls = null_mask(items)
    if nulls is not None:
        block = np.searchsorted(offsets, np.argmax(nulls), side="right") - 1
        raise ValueError(f"block {block}, index column {name!r}: an index is null; every row needs one")
    return items.cast(pa.int64()).to_numpy()


def _agree(name: str, got: np.ndarray, whose: str, want: np.ndarray, valid: np.ndarray | None = None) -> None:
    bad = np.flatnonzero(got != want if valid is None else (got != want) & valid)
    if len(bad):
        raise ValueError(
            f"block {bad[0]}, column {name!r} has {got[bad[0]]} items where {whose} {want[bad[0]]}; "
            "the file was not written as deduplicated blocks of these groups"
        )


def _agree_on_unique_rows(lists: dict[str, tuple[pa.Array, np.ndarray, np.ndarray | None]]) -> None:
    """The value columns of one group have as many unique rows in each block, save where they are null."""
    known: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for name, (_, offsets, valid) in lists.items():
        lengths, valid = np.diff(offsets), np.ones(len(offsets) - 1, bool) if valid is None else valid
        for other, (theirs, theirs_valid) in known.items():
            _agree(name, lengths, f"column {other!r} has", theirs, valid & theirs_valid)
        known[name] = lengths, valid


def _check_range(
    index: str, name: str, picks: np.ndarray, counts: np.ndarray, unique: np.ndarray, valid: np.ndarray | None
) -> None:
    """Every index points at a unique row of its own block."""
    limit = np.repeat(unique, counts)
    bad = (picks < 0) | (picks >= limit)
    if valid is not None:
        bad &= np.repeat(valid, counts)
    if bad.any():
        at = int(np.argmax(bad))
        block = np.searchsorted(np.cumsum(counts), at, side="right")
        raise ValueError(
            f"block {block}, column {name!r}: index {picks[at]} of {index!r} is outside "
            f"its {limit[at]} unique rows; indices count from 0 within the block"
        )
