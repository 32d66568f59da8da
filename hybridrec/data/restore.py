"""Rows restored from deduplicated blocks, by gather."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from hybridrec.data.arrow_types import is_list
from hybridrec.data.lists import null_mask, offsets_of, ranges, unnest


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
                raise ValueError(f"column {name!r} stands twice in the groups of restore; it can have one role")
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
                raise ValueError(f"no column {name!r} to restore; the data has {', '.join(map(repr, schema.names))}")
        return self._row_schema(schema)

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        schema = self._row_schema(batch.schema)
        have = set(batch.schema.names)
        present = [group for group in self.groups if group[0] in have]
        for index, values in self.groups:
            if index not in have and have & set(values):
                raise ValueError(f"index column {index!r} of {', '.join(values)} was not read; see Restore.needs")
        if not present:
            raise ValueError(f"no index column was read; one of {', '.join(g[0] for g in self.groups)} is needed")
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
                    items if valid is None else _gather(items, ranges(offsets[:-1], offsets_of(counts)), counts, valid)
                )
        return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)

    def _row_schema(self, schema: pa.Schema) -> pa.Schema:
        dropped = {index for index, _ in self.groups}
        kept = [field for field in schema if field.name not in dropped]
        for field in kept:
            if not is_list(field.type):
                raise TypeError(f"column {field.name!r} is {field.type}; in deduplicated data every column is a list")
        return pa.schema([f.with_type(f.type.value_type).with_nullable(True) for f in kept], schema.metadata)


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
